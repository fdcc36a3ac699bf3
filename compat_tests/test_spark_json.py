"""JSON to columns by Arrow's parser: the same as message by message, or left to that."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyxbroker.entry_columns import Filled
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.columns import Columns, names_of
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.json_columns import arrays_of_json
from pyxbroker.spark.positions import Position
from pyxbroker.spark.values import JSON, Record

pytestmark = pytest.mark.spark

INNER = {"type": "record", "name": "I", "fields": [{"name": "n", "type": ["null", "long"]}]}
TYPES: dict[str, Any] = {
    "flag": "boolean",
    "small": "int",
    "big": "long",
    "part": "float",
    "size": "double",
    "text": "string",
    "kind": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "exact": {"type": "long", "logicalType": "timestamp-micros"},
    "inner": INNER,
    "many": {"type": "array", "items": ["null", "string"]},
    "rows": {"type": "array", "items": "I"},
}


def record_of(**types: Any) -> Record:
    fields = [{"name": name, "type": ["null", each]} for name, each in types.items()]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    found = Record.of(JSON, text.encode())
    assert found is not None
    return found


ALL = record_of(**TYPES)


def filled_of(record: Record, *payloads: bytes | None) -> Filled:
    columns = record.columns(-1, lambda _: b"", 15)
    columns.set_range(Position(3, -1), Position(4, 0))
    for number, each in enumerate(payloads):
        columns.take_entry(3, number, section(each or b"", each is None))
    return columns.finish()


def section(payload: bytes, is_null: bool) -> bytes:
    """An entry of one message."""
    head = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    head.null_value = is_null
    encoded = head.SerializeToString()
    return len(encoded).to_bytes(4, "big") + encoded + payload


def kinds_of(record: Record) -> list[pa.DataType]:
    names = [field.name for field in record.fields()]
    assert names_of(record)[: len(names)] == names
    return [field.type for field in Columns(record, names).arrow_schema()]


def by_arrow(record: Record, *payloads: bytes | None) -> list[list[Any]] | None:
    filled = filled_of(record, *payloads)
    found = arrays_of_json(filled, record._fields(), record._named(), kinds_of(record))
    if found is None:
        return None
    assert [each.type for each in found] == kinds_of(record)
    for each in found:
        each.validate(full=True)
    return [each.to_pylist() for each in found]


def one_by_one(record: Record, *payloads: bytes | None) -> list[list[Any]]:
    found = record._decoded(filled_of(record, *payloads), kinds_of(record), lambda _: b"")
    return [each.to_pylist() for each in found]


MOMENTS = st.integers(-(10**12), 10**12)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
INNERS = st.fixed_dictionaries({"n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1)})
VALUES = {
    "flag": st.booleans(),
    "small": st.integers(-(1 << 31), (1 << 31) - 1),
    "big": st.integers(-(1 << 63), (1 << 63) - 1),
    "part": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "size": st.floats(allow_nan=False, allow_infinity=False),
    "text": TEXTS,
    "kind": st.sampled_from(["A", "B"]),
    "day": st.integers(-10_000, 10_000),
    "at": MOMENTS,
    "exact": MOMENTS,
    "inner": INNERS,
    "many": st.lists(st.none() | TEXTS, max_size=3),
    "rows": st.lists(INNERS, max_size=3),
    "unknown": st.integers() | TEXTS,
}
RECORDS = st.fixed_dictionaries({}, optional={n: st.none() | each for n, each in VALUES.items()})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.none() | RECORDS, min_size=1, max_size=6), st.sampled_from([None, 2]))
def test_columns_are_what_is_read_message_by_message(
    records: list[dict[str, Any] | None], indent: int | None
) -> None:
    payloads = [
        None
        if each is None
        else json.dumps(each, indent=indent, ensure_ascii=bool(indent)).encode()
        for each in records
    ]
    found = by_arrow(ALL, *payloads)
    assert found is not None and found == one_by_one(ALL, *payloads)


@pytest.mark.parametrize(
    "payloads",
    [
        *((b"",), (b"null",), (b"5",), (b"[]",), (b'{"big":1}{"big":2}',), (b"{", b"}")),
        *((b'{"big":1}{"big":2}', b""), (b'{"big":1', b'"small":2}'), (b'{"text":"a', b'b"}')),
        *((b'{"big":1.0}',), (b'{"big":"1"}',), (b'{"text":1}',)),
        *((b'{"big":1,"big":2}',), (b'{"text":"\xff"}',), (b'{"small":2147483648}',)),
        *((b'{"inner":5}',), (b'{"many":"a"}',), (b'{"at":9223372036854775807}',)),
    ],
)
def test_what_arrow_may_not_decide_is_left_to_python(payloads: tuple[bytes, ...]) -> None:
    assert by_arrow(ALL, b'{"big":1}', *payloads) is None


def test_white_space_around_payloads_is_none_of_them() -> None:
    assert by_arrow(record_of(big="long"), b' {"big":1}\n', b'\t{"big":2} ') == [[1, 2]]


def test_types_that_arrow_does_not_read_are_left_to_python() -> None:
    for type_ in ("bytes", {"type": "map", "values": "int"}):
        record = record_of(it=type_)
        assert by_arrow(record, b"{}") is None
        assert one_by_one(record, b"{}") == [[None]]


def test_a_value_of_another_type_is_told_with_its_message_and_field() -> None:
    filled = filled_of(ALL, b'{"big":1}', b'{"big":"much"}')
    with pytest.raises(PulsarSparkError, match=r"the message 3:1 .* field big is not int64"):
        ALL.arrays(filled, kinds_of(ALL), lambda _: b"")

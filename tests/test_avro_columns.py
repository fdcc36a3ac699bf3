"""avro_columns.pyx and what makes its programs: records of Avro as columns."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_broker import section
from oracles.columns import Row, rows_of
from pyxbroker import avro_columns
from pyxbroker.avro_columns import AvroProgram, Undecodable, width_of
from pyxbroker.spark.avro_programs import Programs, is_flat
from pyxbroker.spark.positions import Position

COLOURS = {"type": "enum", "name": "Colour", "symbols": ["red", "green", "blue"]}
FOUR = {"type": "fixed", "name": "Four", "size": 4}
DAY = {"type": "int", "logicalType": "date"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
JAVA_TEXT = {"type": "string", "avro.java.string": "String"}
INTS, LONGS = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)

TYPES: list[tuple[Any, Any]] = [
    ("boolean", st.booleans()),
    ("int", INTS),
    ("long", LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=9)),
    ("string", st.text(max_size=9)),
    (JAVA_TEXT, st.text(max_size=9)),
    (COLOURS, st.sampled_from(COLOURS["symbols"])),
    (FOUR, st.binary(min_size=4, max_size=4)),
    (DAY, st.integers(0, 40_000)),
    (MILLIS, st.integers(-(1 << 40), 1 << 40)),
    (MICROS, st.integers(-(1 << 50), 1 << 50)),
]


def record(*fields: Any, name: str = "Order") -> bytes:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)}).encode()


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def written(definition: bytes, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(definition)), value)
    return out.getvalue()


def rows(
    newest: bytes, *payloads: bytes | None, version: bytes = b"", **versions: bytes
) -> list[Row]:
    """The rows of payloads with a schema version."""
    programs = Programs(newest, lambda asked: versions[asked.decode()])
    columns = programs.columns(-1)
    columns.set_range(Position(3, -1), Position(4, -1))
    for number, each in enumerate(payloads):
        fields = {"schema_version": version} if version else {}
        columns.take_entry(3, number, section(each or b"", null_value=each is None, **fields))
    widths = tuple(width_of(each.kind) for each in programs.fields.values())
    return rows_of(columns.finish(), widths)


def cell(type_: Any, value: Any) -> bytes | bool | None:
    """A value as it is in a column."""
    kind = type_.get("logicalType", type_["type"]) if isinstance(type_, dict) else type_
    if value is None or kind == "boolean":
        return value
    if kind in ("string", "enum"):
        return value.encode()
    if kind == "timestamp-millis":
        value *= 1000
    formats = {"int": "i", "date": "i", "float": "f", "double": "d"}
    return value if isinstance(value, bytes) else struct.pack(f"<{formats.get(kind, 'q')}", value)


@st.composite
def records(draw: st.DrawFn) -> tuple[list[Any], list[dict[str, Any]]]:
    """(types of fields, values of several records)."""
    chosen = draw(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(-1, 1)), max_size=6))
    types, values = [], []
    for (type_, of_type), null_branch in chosen:
        union = ["null", type_] if null_branch == 0 else [type_, "null"]
        types.append((type_, type_ if null_branch < 0 else union))
        values.append(of_type if null_branch < 0 else of_type | st.none())
    of_record = st.fixed_dictionaries({f"f{n}": each for n, each in enumerate(values)})
    return types, draw(st.lists(of_record, max_size=5))


def once(schema: Any, seen: set[str]) -> Any:
    """A schema in which a named type is defined where it comes first."""
    if isinstance(schema, list):
        return [once(each, seen) for each in schema]
    if isinstance(schema, dict) and "name" in schema:
        if schema["name"] in seen:
            return schema["name"]
        seen.add(schema["name"])
    return schema


@settings(deadline=None, max_examples=100)
@given(records())
def test_records_become_what_was_written(made: tuple[list[Any], list[dict[str, Any]]]) -> None:
    types, values = made
    seen: set[str] = set()
    fields = [field(f"f{n}", once(full, seen)) for n, (_, full) in enumerate(types)]
    definition = record(*fields)
    assert is_flat(definition)
    found = rows(definition, *(written(definition, each) for each in values), None)
    for row, value in zip(found[:-1], values, strict=True):
        assert row.values == [cell(type_, value[f"f{n}"]) for n, (type_, _) in enumerate(types)]
    assert found[-1].values == [None] * len(types)


NEWEST = record(
    field("id", "long"),
    field("colour", COLOURS, default="green"),
    field("note", ["null", "string"], default=None),
    field("when", MILLIS, default=5),
    field("text", "string", default="é"),
)
DEFAULTS = [b"green", None, struct.pack("<q", 5000), "é".encode()]


def test_a_field_that_was_not_written_has_its_default() -> None:
    old = record(field("gone", "string"), field("id", "int"), field("more", ["null", FOUR]))
    payload = written(old, {"gone": "x", "id": 7, "more": b"1234"})
    (row,) = rows(NEWEST, payload, version=b"old", old=old)
    assert row.values == [struct.pack("<q", 7), *DEFAULTS]


def test_what_is_written_in_another_order_is_told_in_the_newest() -> None:
    old = record(field("text", "string"), field("colour", COLOURS), field("id", "long"))
    payload = written(old, {"text": "t", "colour": "blue", "id": 1})
    (row,) = rows(NEWEST, payload, version=b"old", old=old)
    assert row.values == [struct.pack("<q", 1), b"blue", None, DEFAULTS[2], b"t"]


@pytest.mark.parametrize(
    ("old", "value", "expected"),
    [
        (record(field("x", "int")), {"x": 3}, struct.pack("<d", 3)),
        (record(field("x", "float")), {"x": 0.5}, struct.pack("<d", 0.5)),
        (record(field("old", "long")), {"old": 9}, struct.pack("<d", 9)),
        (
            record(field("x", "double"), field("within", {"type": "array", "items": "int"})),
            {"x": 1.0, "within": [1, 2]},
            struct.pack("<d", 1),
        ),
    ],
    ids=["int", "float", "alias", "array"],
)
def test_what_has_become_another_type_is_translated(
    old: bytes, value: dict[str, Any], expected: bytes
) -> None:
    newest = record(field("x", "double", aliases=["old"]))
    (row,) = rows(newest, written(old, value), version=b"old", old=old)
    assert row.values == [expected]


@pytest.mark.parametrize(
    "old",
    [
        record(field("y", "double")),
        record(field("x", ["null", "double"])),
        record(field("x", "string")),
    ],
)
def test_what_cannot_be_read_by_the_newest_schema_is_said(old: bytes) -> None:
    payload = written(old, {"y": 1.0} if b'"y"' in old else {"x": None if b"null" in old else "t"})
    with pytest.raises(Undecodable):
        rows(record(field("x", "double")), payload, version=b"old", old=old)


@pytest.mark.parametrize(
    "type_",
    [
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        {"type": "record", "name": "Inner", "fields": []},
        ["int", "string"],
        ["null", "int", "string"],
        {"type": "bytes", "logicalType": "decimal", "precision": 4},
        {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"},
        "null",
    ],
)
def test_records_within_records_and_unions_are_not_flat(type_: Any) -> None:
    assert not is_flat(record(field("x", type_)))


# --- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "payload", "sentence"),
    [
        ("boolean", b"", "a field of 1 bytes at offset 0 exceeds the 0 bytes"),
        ("int", b"", "a number ends outside of the payload"),
        ("int", b"\xff\xff", "a number ends outside of the payload"),
        ("long", b"\xff" * 11, "a number ends outside of the payload"),
        ("int", b"\x80\x80\x80\x80\x20", "4294967296 does not fit into 32 bits"),
        ("float", bytes(3), "a field of 4 bytes at offset 0 exceeds the 3 bytes"),
        ("double", bytes(7), "a field of 8 bytes at offset 0 exceeds the 7 bytes"),
        ("string", b"\x04a", "a field of 2 bytes at offset 1 exceeds the 2 bytes"),
        ("string", b"\x01", "a field of -1 bytes"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a field of 9223372036854775807"),
        (FOUR, bytes(3), "a field of 4 bytes at offset 0 exceeds the 3 bytes"),
        (COLOURS, b"\x06", "the enum has no symbol 3"),
        (COLOURS, b"\x01", "the enum has no symbol -1"),
        (["null", "int"], b"\x04", "a union of two types has no branch 2"),
        (["null", "int"], b"\x01", "a union of two types has no branch -1"),
        (
            MILLIS,
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "milliseconds are outside of the range",
        ),
    ],
)
def test_payloads_that_are_no_record(type_: Any, payload: bytes, sentence: str) -> None:
    with pytest.raises(Undecodable) as caught:
        rows(record(field("x", type_)), payload)
    assert sentence in str(caught.value)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_bytes_of_strangers_are_records_or_none(payload: bytes) -> None:
    types = [once(type_, set()) for type_, _ in TYPES]
    definition = record(*(field(f"f{n}", ["null", each]) for n, each in enumerate(types)))
    try:
        (row,) = rows(definition, payload)
    except Undecodable:
        return
    assert len(row.values) == len(types)


def test_programs_that_leave_columns_uneven_are_refused() -> None:
    step = (avro_columns.LONG, -1, 0, 0, None, None)
    text = (avro_columns.BYTES, -1, 0, 0, None, None)
    AvroProgram((8,), [step])
    for widths, steps in (
        ((8,), []),
        ((8, 8), [step]),
        ((8,), [step, step]),
        ((8,), [text]),
        ((8,), [(avro_columns.LONG, -1, 1, 0, None, None)]),
        ((8,), [(avro_columns.LONG, 2, 0, 0, None, None)]),
        ((8,), [(99, -1, 0, 0, None, None)]),
        ((8,), [step, (-1, -1, -1, 0, None, None)]),
    ):
        with pytest.raises(ValueError):
            AvroProgram(widths, steps)

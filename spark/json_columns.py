"""Columns of JSON records by Arrow's parser, for all payloads of a part in one call.

Arrow gets the types, and rejects other values, numbers in strings, duplicate names and invalid
UTF-8. Rejected parts are decoded message by message in Python (values.py): this accepts slightly
more (1.0 for an integer), and names the invalid message. Arrow cannot parse maps, bytes and fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyxbroker.entry_columns import Filled
from pyxbroker.spark.arrays import array_of
from pyxbroker.spark.avro_types import NoColumn, resolve

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_MAX = 256 << 20
"""The limit of payloads for one call. Only a large message makes a part exceed it."""

_EMPTY = "{}"


def arrays_of_json(
    filled: Filled, fields: list[dict[str, Any]], named: dict[str, Any], kinds: list[pa.DataType]
) -> list[pa.Array] | None:
    """Return a column for each field; None: decode message by message."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json

    (column,) = filled.values
    if not filled.rows or len(column.data) > BYTES_MAX:
        return None
    try:
        types = [_types(field["type"], named) for field in fields]
    except NoColumn:
        return None
    schema = pa.schema([(f["name"], raw) for f, (raw, _) in zip(fields, types, strict=True)])
    try:
        lines = _lines(filled)
        if lines is None:
            return None
        table = json.read_json(
            pa.BufferReader(lines),
            json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != filled.rows:
            return None
        return [
            pc.cast(pc.cast(table.column(f["name"]).combine_chunks(), final), kind)
            for f, (_, final), kind in zip(fields, types, kinds, strict=True)
        ]
    except pa.ArrowException:
        return None


def _lines(filled: Filled) -> pa.Buffer | None:
    """Return the payloads as lines, or None if one of them is not a JSON object.

    A text that starts with { and ends with } has at least one object, or Arrow rejects it. So if
    Arrow finds as many objects as payloads, each payload is one object.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = array_of(pa.string(), filled.rows, filled.values[0])
    texts.validate(full=True)
    if texts.null_count:  # a tombstone has no fields
        texts = pc.fill_null(texts, _EMPTY)
    if not _are_objects(texts):
        texts = pc.ascii_trim_whitespace(texts)
        if not _are_objects(texts):
            return None
    ends = pa.array([0, filled.rows], pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, texts), "\n")
    found: pa.Buffer = joined[0].as_buffer()
    return found


def _are_objects(texts: pa.Array) -> bool:
    import pyarrow.compute as pc

    begins, ends = pc.starts_with(texts, "{"), pc.ends_with(texts, "}")
    return bool(pc.all(pc.and_(begins, ends)).as_py())


def _types(schema: Any, named: dict[str, Any]) -> tuple[pa.DataType, pa.DataType]:
    """Return (the type that Arrow parses, the type of the column). Raises NoColumn."""
    import pyarrow as pa

    kind, schema = resolve(schema, named)
    if kind == "record":
        inner = [(field["name"], *_types(field["type"], named)) for field in schema["fields"]]
        return (
            pa.struct([(name, raw) for name, raw, _ in inner]),
            pa.struct([(name, final) for name, _, final in inner]),
        )
    if kind == "array":
        raw, final = _types(schema["items"], named)
        return pa.list_(raw), pa.list_(final)
    meant = {
        "date": (pa.int32(), pa.date32()),
        "timestamp-millis": (pa.int64(), pa.timestamp("ms", tz="UTC")),
        "timestamp-micros": (pa.int64(), pa.timestamp("us", tz="UTC")),
    }
    plain = {
        **{"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64()},
        **{"float": pa.float32(), "double": pa.float64()},
        **dict.fromkeys(("string", "enum", "uuid"), pa.string()),
    }
    if kind in plain:
        return plain[kind], plain[kind]
    if kind not in meant:
        raise NoColumn(kind)
    return meant[kind]

"""Arrow arrays over the buffers of decoded entries, without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyxbroker.entry_columns import Block, ColumnBuffers, Filled
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.positions import Position, position_of

if TYPE_CHECKING:
    import pyarrow as pa


def array_of(kind: pa.DataType, rows: int, column: ColumnBuffers) -> pa.Array:
    """Return a column without validating its text."""
    import pyarrow as pa

    buffers = [_buffer(column.valid)]
    if column.offsets is not None:
        buffers.append(_buffer(column.offsets))
    return pa.Array.from_buffers(
        kind, rows, [*buffers, _buffer(column.data)], null_count=column.nulls
    )


def text_array(filled: Filled, kind: pa.DataType, column: ColumnBuffers) -> pa.Array:
    """Return a column of text. Raises PulsarSparkError if a value is not UTF-8."""
    import pyarrow as pa

    array = array_of(kind, filled.rows, column)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        row = _bad_text(column, filled.rows)
        raise PulsarSparkError(
            f"the message {position_in(filled, row)} cannot be read by its schema: it has text that"
            " is not UTF-8."
        ) from error
    return array


def properties_of(filled: Filled, kind: pa.DataType) -> pa.Array:
    """Return the column of properties. Raises PulsarSparkError if one is not UTF-8."""
    import pyarrow as pa

    names = array_of(pa.string(), filled.properties, filled.property_names)
    values = array_of(pa.string(), filled.properties, filled.property_values)
    try:
        names.validate(full=True)
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise PulsarSparkError(
            "the properties of a message between"
            f" {position_in(filled, 0)} and {position_in(filled, filled.rows - 1)} are not UTF-8."
        ) from error
    offsets = pa.Array.from_buffers(
        pa.int32(), filled.rows + 1, [None, _buffer(filled.property_offsets)], null_count=0
    )
    return pa.MapArray.from_arrays(offsets, names, values, kind)


def repeated_text(text: str, rows: int) -> pa.Array:
    """Return a column with the same text in each row."""
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), rows)


def sender_text(filled: Filled, kind: pa.DataType) -> pa.Array:
    """Return the column of producer names. Raises PulsarSparkError if one is not UTF-8."""
    import pyarrow as pa

    array = array_of(kind, filled.rows, filled.producer_name)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        row = _bad_text(filled.producer_name, filled.rows)
        raise PulsarSparkError(
            f"the producer of the message {position_in(filled, row)} has a name that is not UTF-8."
        ) from error
    return array


def versions_of(filled: Filled, kind: pa.DataType) -> pa.Array:
    """Return the column of schema versions, Pulsar's numbers; null without a schema."""
    import pyarrow as pa

    begins = [row for row, _ in filled.versions]
    ends = [*begins[1:], filled.rows]
    parts = [
        pa.repeat(pa.scalar(_version(version), kind), end - begin)
        for (begin, version), end in zip(filled.versions, ends, strict=True)
    ]
    return pa.concat_arrays(parts) if parts else pa.array([], kind)


def _version(version: bytes) -> int | None:
    """Return the number of a version, or None for one of a registry other than Pulsar's."""
    return int.from_bytes(version, "big", signed=True) if len(version) == 8 else None


def payloads_of(filled: Filled) -> list[bytes | None]:
    """Return the payloads of messages whose values are bytes."""
    (column,) = filled.values
    return bytes_of(column, filled.rows)


def bytes_of(column: ColumnBuffers, rows: int) -> list[bytes | None]:
    """Return the values of a column of bytes."""
    assert column.offsets is not None
    ends = memoryview(column.offsets).cast("i")
    data = memoryview(column.data)
    return [
        bytes(data[ends[row] : ends[row + 1]]) if _is_valid(column, row) else None
        for row in range(rows)
    ]


def positions_of(filled: Filled) -> Iterator[tuple[int, int, int]]:
    """Return (ledger, entry, batch index) of each message. POSITION has to be among the columns."""
    ledgers, entries = (
        memoryview(each.data).cast("q") for each in (filled.ledger_id, filled.entry_id)
    )
    indexes = memoryview(filled.batch_index.data).cast("i")
    return zip(ledgers, entries, indexes, strict=True)


def position_in(filled: Filled, row: int) -> Position:
    """Return the position of the message in a row."""
    assert filled.message_id.offsets is not None
    ends = memoryview(filled.message_id.offsets).cast("i")
    data = memoryview(filled.message_id.data)[ends[row] : ends[row + 1]]
    found = pb.MessageIdData.FromString(bytes(data))
    return position_of(found)._replace(batch=found.batch_index)


def _is_valid(column: ColumnBuffers, row: int) -> bool:
    if column.valid is None:
        return True
    return bool(memoryview(column.valid)[row >> 3] >> (row & 7) & 1)


def _bad_text(column: ColumnBuffers, rows: int) -> int:
    """Return the first row whose text is not UTF-8."""
    assert column.offsets is not None
    ends = memoryview(column.offsets).cast("i")
    data = memoryview(column.data)
    for row in range(rows):
        try:
            str(data[ends[row] : ends[row + 1]], "utf-8")
        except UnicodeDecodeError:
            return row
    raise AssertionError("all rows are UTF-8")


def _buffer(block: Block | None) -> pa.Buffer | None:
    import pyarrow as pa

    return None if block is None else pa.py_buffer(block)

"""Columns of decoded entries as the rows they are, read from their buffers one by one."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyxbroker.entry_columns import BITS, VARIABLE, Block, ColumnBuffers, Filled
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.positions import Position, position_of


class Row(NamedTuple):
    """A message. Values are bytes as they are in their columns; times are microseconds."""

    position: Position
    partition: int
    batch_size: int
    values: list[Any]
    key: bytes | None
    publish_time: int
    event_time: int | None
    properties: list[tuple[str, str]]
    schema_version: bytes

    @property
    def payload(self) -> Any:
        """Where values are bytes."""
        (found,) = self.values
        return found


def rows_of(filled: Filled, widths: tuple[int, ...] = (VARIABLE,)) -> list[Row]:
    """Each row, values of these widths; asserts that buffers are as long as Arrow wants them."""
    names = texts(filled.property_names, filled.properties)
    values = texts(filled.property_values, filled.properties)
    ends = list(memoryview(filled.property_offsets).cast("i"))
    assert len(ends) == filled.rows + 1 and ends[0] == 0 and ends[-1] == filled.properties
    keys = cells(filled.key, filled.rows, VARIABLE)
    ids = cells(filled.message_id, filled.rows, VARIABLE)
    publish_times = numbers(filled.publish_time, filled.rows)
    event_times = numbers(filled.event_time, filled.rows)
    columns = [
        cells(each, filled.rows, width) for each, width in zip(filled.values, widths, strict=True)
    ]
    versions = dict(filled.versions)
    version = b""
    found = []
    for row in range(filled.rows):
        version = versions.get(row, version)
        message_id = pb.MessageIdData.FromString(ids[row])
        found.append(
            Row(
                position_of(message_id)._replace(batch=message_id.batch_index),
                message_id.partition,
                message_id.batch_size,
                [each[row] for each in columns],
                keys[row],
                publish_times[row],
                event_times[row],
                list(zip(names, values, strict=True))[ends[row] : ends[row + 1]],
                version,
            )
        )
    return found


def cells(column: ColumnBuffers, rows: int, width: int) -> list[Any]:
    """The values of a column of that width: bytes, or truth values where they are bits."""
    data = memoryview(column.data)
    is_null = [column.valid is not None and not bit(column.valid, row) for row in range(rows)]
    assert sum(is_null) == column.nulls
    if width == BITS:
        assert len(data) == (rows + 7) // 8
        found: list[Any] = [bit(column.data, row) for row in range(rows)]
    elif width == VARIABLE:
        assert column.offsets is not None
        ends = list(memoryview(column.offsets).cast("i"))
        assert len(ends) == rows + 1 and ends[0] == 0 and ends[-1] == len(data)
        assert ends == sorted(ends)
        found = [bytes(data[ends[row] : ends[row + 1]]) for row in range(rows)]
    else:
        assert len(data) == width * rows
        found = [bytes(data[width * row : width * (row + 1)]) for row in range(rows)]
    return [None if null else value for null, value in zip(is_null, found, strict=True)]


def bit(block: Block, row: int) -> bool:
    return bool(memoryview(block)[row >> 3] >> (row & 7) & 1)


def numbers(column: ColumnBuffers, rows: int) -> list[Any]:
    """Of a column of 64-bit integers."""
    found = cells(column, rows, 8)
    return [None if each is None else int.from_bytes(each, "little", signed=True) for each in found]


def texts(column: ColumnBuffers, rows: int) -> list[str]:
    return [each.decode() for each in cells(column, rows, VARIABLE)]

"""What the Spark connector reads: any frames, entries and records become columns that are whole, or
they are refused.
"""

from __future__ import annotations

import json
from contextlib import suppress

import driver

with driver.guided("pyxbroker"):
    from pyxbroker.spark import avro_programs

from compacting import Sent, batched, packed_batch, single
from oracles.columns import cells
from pyxbroker import entry_columns
from pyxbroker.avro_columns import Undecodable, width_of
from pyxbroker.base import compression
from pyxbroker.client.entries import split_section
from pyxbroker.client.errors import DamagedEntry
from pyxbroker.entry_columns import (
    CHUNK,
    FULL,
    NEW_LEDGER,
    ColumnBuffers,
    Damaged,
    Encrypted,
    EntryColumns,
    Filled,
)
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.chunks import name_of

FIELDS = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "bytes",
    {"type": "enum", "name": "E", "symbols": ["a", "bc"]},
    {"type": "fixed", "name": "F", "size": 3},
    {"type": "long", "logicalType": "timestamp-millis"},
]
RECORD = {
    "type": "record",
    "name": "R",
    "fields": [{"name": f"f{n}", "type": ["null", each]} for n, each in enumerate(FIELDS)]
    + [{"name": "more", "type": "string", "default": "d"}],
}
OLDER = {**RECORD, "fields": RECORD["fields"][::-2]}
OTHER = {**RECORD, "fields": [{"name": "f1", "type": {"type": "array", "items": "int"}}]}
WRITERS = {b"1": OLDER, b"2": OTHER}
PROGRAMS = avro_programs.Programs(
    json.dumps(RECORD).encode(),
    lambda version: json.dumps(WRITERS.get(version, RECORD)).encode(),
)
VARIABLE, BITS = entry_columns.VARIABLE, entry_columns.BITS
AVRO_WIDTHS = tuple(width_of(each.kind) for each in PROGRAMS.fields.values())
LAYOUTS = (
    (entry_columns.BYTES, (VARIABLE,)),
    (entry_columns.TRUTH, (BITS,)),
    (entry_columns.NUMBER, (4,)),
    (entry_columns.AVRO, AVRO_WIDTHS),
    (entry_columns.NONE, ()),
)


USUAL = entry_columns.DEFAULT
KEPT = (USUAL, 255, 0)
"""Columns beside the values."""


def columns_of(choice: int) -> tuple[EntryColumns, tuple[int, ...]]:
    decoding, widths = LAYOUTS[choice % len(LAYOUTS)]
    if decoding == entry_columns.AVRO:
        return PROGRAMS.columns(choice % 3 - 1, KEPT[choice % len(KEPT)]), widths
    # Full at once, or not so soon: an entry is read in one go, or in several.
    rows_max = 1 + choice // 16
    arguments = (decoding, widths, compression, choice % 3 - 1)
    return EntryColumns(*arguments, rows_max=rows_max, kept=KEPT[choice % len(KEPT)]), widths


def look_at(filled: Filled, widths: tuple[int, ...]) -> None:
    """Every byte that Arrow would read of the columns."""
    for each, width in zip(filled.values, widths, strict=True):
        cells(each, filled.rows, width)
    cells(filled.message_id, filled.rows, VARIABLE)
    for column in (filled.key, filled.producer_name, filled.ordering_key):
        cells(column, rows_in(filled, column, VARIABLE), VARIABLE)
    numbers = (filled.publish_time, filled.event_time, filled.sequence_id)
    for column in (*numbers, filled.ledger_id, filled.entry_id):
        cells(column, rows_in(filled, column, 8), 8)
    cells(filled.batch_index, rows_in(filled, filled.batch_index, 4), 4)
    for column in (filled.property_names, filled.property_values):
        cells(column, filled.properties, VARIABLE)
    ends = list(memoryview(filled.property_offsets).cast("i"))
    assert len(ends) in (filled.rows + 1, 1)
    assert ends == sorted(ends) and ends[-1] == filled.properties


def rows_in(filled: Filled, column: ColumnBuffers, width: int) -> int:
    """None of a column that is not kept."""
    if width == VARIABLE:
        return filled.rows if len(column.offsets or b"") > 4 else 0
    return filled.rows if len(column.data) else 0


def take_all(columns: EntryColumns, widths: tuple[int, ...], stream: bytes) -> None:
    view = memoryview(stream)
    while True:
        done, stop = columns.take(view)
        view = view[done:]
        if stop == FULL:
            look_at(columns.finish(), widths)
        elif stop == NEW_LEDGER:
            columns.accept_ledger()
        elif stop == CHUNK:
            place = (columns.ledger_id, columns.entry_id, -1)
            columns.add_message(place, columns.chunk_metadata, columns.chunk_payload)
            columns.accept_chunk()
        else:
            break
    look_at(columns.finish(), widths)


def message(entry: int, stored: bytes) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.message_id.ledgerId = 3
    command.message.message_id.entryId = entry
    data = command.SerializeToString()
    size = 4 + len(data) + len(stored)
    return size.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + stored


def seeds() -> list[bytes]:
    """A byte that chooses the columns, two of the range, one of what is looked at, and that."""
    sent = (Sent("a", b"\0\0\0\1"), Sent(None, b""), Sent("c", b"\1"))
    record = b"\2\1" + b"\2\x0a" * 2 + b"\2" + bytes(4) + b"\2" + bytes(8) + b"\2\2x" * 2
    record += b"\2\2" + b"\2abc" + b"\2\x0a" + b"\2t"
    properties = [pb.KeyValue(key="k", value="v")]
    entries = [
        single("a", b"1", properties=properties, event_time=5),
        single(None, b"", null_value=True),
        *(packed_batch(batched(*sent), 3, codec) for codec in range(5)),
        single("YQ==", b"", partition_key_b64_encoded=True),
        single(None, b"1", chunk_id=1, num_chunks_from_msg=2, uuid="u"),
        single(None, record),
        single(None, record, schema_version=b"1"),
        single(None, record, schema_version=b"2"),
    ]
    # Without their checksums, which a change would make wrong.
    bare = [each[6:] for each in entries]
    stream = b"".join(message(number, each) for number, each in enumerate(bare))
    return [
        *(bytes([choice]) + b"\0\xff\0" + stream for choice in (0, 1, 2, 3, 4, 32)),
        *(bytes([choice]) + b"\0\xff\1" + each for choice in (0, 3) for each in bare),
        *(b"\0\0\xff\1" + each for each in entries),
    ]


def one_input(data: bytes) -> None:
    if len(data) < 4:
        return
    columns, widths = columns_of(data[0])
    columns.set_range(
        (3, data[1] % 8 - 1, data[1] // 8 % 4 - 1), (3, data[2], data[2] // 8 % 4 - 1)
    )
    stream = data[4:] if data[3] % 2 == 0 else message(2, data[4:])
    with suppress(Damaged, Encrypted, Undecodable):
        take_all(columns, widths, stream)
    with suppress(DamagedEntry):
        metadata, payload = split_section(data[4:])
        assert len(payload) < len(data) and len(name_of(metadata)) == 16


if __name__ == "__main__":
    driver.main(seeds, one_input, input_bytes_max=2000)

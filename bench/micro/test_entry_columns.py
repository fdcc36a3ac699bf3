"""entry_columns.pyx and avro_columns.pyx: decoding entries with batches to columns."""

from __future__ import annotations

import json
from typing import Any

import cramjam
from harness import wire

from pyxbroker import entry_columns
from pyxbroker.base import compression
from pyxbroker.entry_columns import FULL, MORE, EntryColumns
from pyxbroker.spark.avro_programs import Programs

MESSAGES, ENTRIES = 100, 80
BODY = b"".join(b"%016x" % (n * 0x9E3779B97F4A7C15 % (1 << 64)) for n in range(64))
LZ4 = 1
FLAT = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": f"f{n}", "type": ["null", "long"]} for n in range(8)]
    + [{"name": "text", "type": "string"}],
}
RECORD = b"\x02\xa0\x9c\x01" * 8 + b"\x14" + b"0123456789"


def frames(body: bytes, codec: int) -> bytes:
    """Return MESSAGE frames of entries with a number of messages each."""
    plain = b""
    for number in range(MESSAGES):
        head = wire.encode({2: f"key-{number}", 3: len(body)})
        plain += len(head).to_bytes(4, "big") + head + body
    fields: dict[int, Any] = {11: MESSAGES}
    packed = plain
    if codec == LZ4:
        packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        fields |= {8: LZ4, 9: len(plain)}
    frame = wire.send(1, 0, wire.metadata("p", 0, 1, fields=fields), packed)
    stored = frame[8 + int.from_bytes(frame[4:8], "big") :]
    found = b""
    for entry in range(ENTRIES):
        message = wire.encode({1: 1, 2: wire.encode({1: 3, 2: entry})})
        command = wire.encode({1: wire.MESSAGE, wire.MESSAGE: message})
        size = 4 + len(command) + len(stored)
        found += size.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + stored
    return found


def read(columns: EntryColumns, stream: bytes) -> int:
    columns.set_range((3, -1, -1), (4, 0, -1))
    view = memoryview(stream)
    rows, stop = 0, FULL
    while stop == FULL:
        done, stop = columns.take(view)
        view = view[done:]
        rows += columns.finish().rows
    assert stop == MORE and not view
    return rows


def columns_of_bytes() -> EntryColumns:
    return EntryColumns(entry_columns.BYTES, (entry_columns.VARIABLE,), compression)


def test_8000_messages_of_1_kib(benchmark: Any) -> None:
    stream = frames(BODY, 0)
    columns = columns_of_bytes()
    assert benchmark(lambda: read(columns, stream)) == MESSAGES * ENTRIES


def test_8000_messages_of_1_kib_in_lz4(benchmark: Any) -> None:
    stream = frames(BODY, LZ4)
    columns = columns_of_bytes()
    assert benchmark(lambda: read(columns, stream)) == MESSAGES * ENTRIES


def test_8000_records_of_avro(benchmark: Any) -> None:
    stream = frames(RECORD, 0)
    columns = Programs(json.dumps(FLAT).encode(), lambda _: b"").columns(-1)
    assert benchmark(lambda: read(columns, stream)) == MESSAGES * ENTRIES

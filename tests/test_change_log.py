"""Change logs and copies of the embedded metadata store, byte by byte as change_log.py says: other
versions have to read them.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.metadata import change_log
from pyxbroker.metadata.embedded import EmbeddedStore

HEAD_BYTES = 4096
FILE_FORMAT = 1
BEGINS = 2
CHANGES, END_OF_COPY = 1, 2
HEAD = change_log.Head(change_log.CHANGES_MAGIC, 2, BEGINS, 1, 0, 0, bytes(16))
NODE, DELETION, COUNTER = 1, 2, 3


def number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def plain_head(data: bytes) -> dict[str, Any]:
    assert number(data, 8, 4) == zlib.crc32(data[12:64])
    return {
        "magic": data[:8],
        "format": number(data, 12, 4),
        "database": number(data, 16, 4),
        "flags": number(data, 20, 4),
        "number": number(data, 24, 8),
        "closed": number(data, 520, 8) if number(data, 512, 4) else None,
        "end": number(data, 528, 8) if number(data, 512, 4) else None,
        "seed": zlib.crc32(data[48:64]),
    }


def plain_records(data: bytes, seed: int) -> tuple[list[tuple[Any, ...]], int]:
    """(type, count, changes) of each, a change with kind, path, version and value; where they
    end.
    """
    found: list[tuple[Any, ...]] = []
    at = HEAD_BYTES
    while at < len(data) and number(data, at + 4, 4):
        size = number(data, at + 4, 4)
        assert size % 8 == 0
        assert number(data, at, 4) == zlib.crc32(data[at + 4 : at + size], seed)
        kind, count = data[at + 16], number(data, at + 20, 4)
        changes, place = [], at + 32
        while kind == CHANGES and len(changes) < count:
            path_bytes, value_bytes = number(data, place + 4, 4), number(data, place + 8, 4)
            path = data[place + 44 : place + 44 + path_bytes].decode()
            end = place + 44 + path_bytes + value_bytes
            value = data[end - value_bytes : end]
            changes.append((data[place], path, number(data, place + 20, 8), value))
            place = end
        found.append((kind, count, changes))
        at += size
    return found, at


@coroutine_test
async def test_a_change_log_and_a_copy_have_the_bytes_that_are_described(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/a", b"0")
    await store.put("/a", b"1")
    await store.put("/ü/b", b"xyz" * 100)
    await store.put("/gone", b"")
    await store.delete("/gone")
    await store.put("/s/n", b"7", sequential=True)
    log = next((tmp_path / "m.copies").glob("*.changes"))
    began = log.read_bytes()
    copy = (await store.make_copy()).read_bytes()
    await store.close()

    head = plain_head(began)
    assert (head["magic"], head["format"], head["database"]) == (b"PYXMCHG1", FILE_FORMAT, 2)
    assert (head["flags"], head["closed"]) == (BEGINS, None)
    records, _ = plain_records(began, head["seed"])
    assert {kind for kind, _, _ in records} == {CHANGES}
    changes = [each for _, _, found in records for each in found]
    assert [each for each in changes if each[1] in ("/a", "/ü/b", "/gone")] == [
        (NODE, "/a", 0, b"0"),
        (NODE, "/a", 1, b"1"),
        (NODE, "/ü/b", 0, b"xyz" * 100),
        (NODE, "/gone", 0, b""),
        (DELETION, "/gone", 0, b""),
    ]
    assert COUNTER in {each[0] for each in changes}

    head = plain_head(copy)
    assert (head["magic"], head["format"], head["database"]) == (b"PYXMCPY1", FILE_FORMAT, 2)
    *nodes, last = plain_records(copy, head["seed"])[0]
    kept = [each for kind, _, found in nodes for each in found if each[0] == NODE]
    assert {kind for kind, _, _ in nodes} == {CHANGES}
    assert {"/a", "/ü/b"} < {path for _, path, _, _ in kept}
    assert (NODE, "/a", 1, b"1") in kept and "/gone" not in {path for _, path, _, _ in kept}
    assert last[0] == END_OF_COPY and last[1] == len(kept)

    # Closed, the log says where its records end.
    logs = sorted((tmp_path / "m.copies").glob("*.changes"))
    closed = logs[-1].read_bytes()
    head = plain_head(closed)
    assert head["closed"] is not None and head["end"] == plain_records(closed, head["seed"])[1]


@coroutine_test
async def test_what_says_that_a_store_was_closed_is_synced_behind_all_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how far the records go: on the disk before them it would be a lie."""
    log = change_log.ChangeLog.create(tmp_path / "log", HEAD, b"x" * 64)
    synced: list[dict[str, Any]] = []
    fdatasync = os.fdatasync

    def noted(descriptor: int) -> None:
        fdatasync(descriptor)
        data = log.path.read_bytes()
        synced.append({"last": data[log.end - 1 : log.end], "closed": plain_head(data)["closed"]})

    monkeypatch.setattr("os.fdatasync", noted)
    log.append(b"y" * 64)
    log.close_cleanly(9)
    log.close()
    assert synced == [{"last": b"y", "closed": None}, {"last": b"y", "closed": 9}]

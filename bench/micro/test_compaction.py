"""compaction.pyx: scanning, resolving and selecting, and reading a compacted ledger back."""

from __future__ import annotations

from typing import Any

from harness import wire

from pyxbroker.compaction import KEY_PARTS, LatestMessages, record, unwrap
from pyxbroker.entry import EntryBatch, EntryRun, Position

MESSAGES = 100
BODY = bytes(1024)


def batch_of_100() -> EntryBatch:
    """Return an entry with messages of 1 KiB, each with a key of its own."""
    plain = b""
    for number in range(MESSAGES):
        head = wire.encode({2: f"key-{number}", 3: len(BODY)})
        plain += len(head).to_bytes(4, "big") + head + BODY
    meta = wire.metadata("p", 0, 1, fields={11: MESSAGES})
    frame = wire.send(1, 0, meta, plain)
    return EntryBatch.of_run(EntryRun.of(frame[8 + int.from_bytes(frame[4:8], "big") :]))


def scanned(batch: EntryBatch) -> LatestMessages:
    latest = LatestMessages(bytes(16))
    assert latest.scan(batch, 0) == 1
    return latest


def test_scan_of_100(benchmark: Any) -> None:
    batch = batch_of_100()
    assert benchmark(lambda: scanned(batch)).messages == MESSAGES


def test_scan_and_resolve_of_100(benchmark: Any) -> None:
    batch = batch_of_100()

    def resolved() -> LatestMessages:
        latest = scanned(batch)
        for part in range(KEY_PARTS):
            latest.resolve(part, None)
        return latest

    assert benchmark(resolved).messages == MESSAGES


def test_select_of_an_entry_of_100(benchmark: Any) -> None:
    batch = batch_of_100()
    latest = scanned(batch)
    for part in range(KEY_PARTS):
        latest.resolve(part, None)

    def select() -> EntryRun | None:
        latest.begin_selection()
        return latest.select(batch, 0, -1, 1 << 20)[0]

    run = benchmark(select)
    assert run.count == 1


def test_unwrap_of_a_record(benchmark: Any) -> None:
    stored = EntryBatch.of_run(EntryRun.of(record(Position(3, 4), -1, BODY)))
    found, _ = benchmark(lambda: unwrap(stored, 0))
    assert found.data(0) == BODY

"""A storage in a test's own directory, and batches read from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyxbroker import _native
from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.storage import StorageReader, StorageWriter

LEDGER = 7


@contextmanager
def storage(directory: Path) -> Iterator[_native.Storage]:
    opened = _native.Storage(
        directory / "journal",
        directory / "ledgers",
        journal_file_bytes=16 << 20,
        dirty_bytes_max=64 << 20,
        cache_bytes_max=128 << 20,
        entry_bytes_max=6 << 20,
        journal_sync_data=False,
    )
    try:
        yield opened
    finally:
        opened.close(flush=False)


def add(
    opened: _native.Storage, entries: list[bytes], first: int = 0, ledger: int = LEDGER
) -> None:
    """Adds entries to a ledger, one run each."""
    writer = StorageWriter(opened)
    length = 0
    for entry_id, data in enumerate(entries, start=first):
        run = EntryRun.of(data)
        run.ledger_id, run.first_entry_id = ledger, entry_id
        added, _, error = writer.add_run(run, entry_id - 1, length, 0, 0)
        assert (added, error) == (1, 0)
        length += len(data)
    writer.commit()


def read(opened: _native.Storage, first: int, last: int, ledger: int = LEDGER) -> EntryBatch:
    batch = StorageReader(opened).read_cached(ledger, first, last, last - first + 1, 1 << 30)
    assert batch is not None
    return batch

"""storage.pyx: reading batches of entries from the cache."""

from __future__ import annotations

from typing import Any

import pytest

from bench.micro import material
from pyxbroker import _native
from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.storage import StorageReader, StorageWriter


def fill(storage: _native.Storage, entries: int, section: bytes) -> None:
    """Add entries to ledger 1, from entry 0 on."""
    writer = StorageWriter(storage)
    for entry in range(entries):
        run = EntryRun.of(section)
        run.ledger_id = 1
        run.first_entry_id = entry
        added, _, error = writer.add_run(run, entry - 1, entry * len(section), 0, 0)
        assert (added, error) == (1, 0)
    writer.commit()


@pytest.mark.parametrize("entries", [1, 100])
def test_cached_entries(benchmark: Any, storage: _native.Storage, entries: int) -> None:
    section = material.section()
    fill(storage, entries, section)
    reader = StorageReader(storage)

    def read() -> EntryBatch:
        batch = reader.read_cached(1, 0, entries - 1, entries, 1 << 30)
        assert batch is not None
        return batch

    batch = benchmark(read)
    assert len(batch) == entries
    assert batch.data(entries - 1) == section

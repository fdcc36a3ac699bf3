"""quorum.pyx: counting acknowledgements; adds of the embedded bookie."""

from __future__ import annotations

from typing import Any

import pytest

from bench.micro import material
from pyxbroker import _native
from pyxbroker.entry import EntryRun
from pyxbroker.quorum import PendingAdds
from pyxbroker.storage import StorageWriter

RUN = 64


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2)])
def test_a_run_of_64_confirmed(benchmark: Any, quorums: tuple[int, int, int]) -> None:
    adds = PendingAdds(*quorums)

    def confirm() -> int:
        first = adds.add(RUN)
        for index in range(quorums[2]):
            adds.on_ack(index, first, first + RUN - 1)
        return adds.pending

    assert benchmark(confirm) == 0


def test_one_entry_of_1_kib_into_the_journals_queue(
    benchmark: Any, storage: _native.Storage
) -> None:
    writer = StorageWriter(storage)
    section = material.section()
    entries = iter(range(10**9))

    def setup() -> tuple[tuple[EntryRun], dict[str, Any]]:
        run = EntryRun.of(section)
        run.ledger_id = 1
        run.first_entry_id = next(entries)
        return (run,), {}

    def add(run: EntryRun) -> tuple[int, int, int]:
        added = writer.add_run(run, run.first_entry_id - 1, 0, 0, 0)
        writer.commit()
        return added

    added, sequence, error = benchmark.pedantic(add, setup=setup, rounds=2000)
    assert (added, error) == (1, 0)
    assert sequence > 0

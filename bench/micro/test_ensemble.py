"""ensemble.py and writer.py: a run on its way to several bookies, and their acknowledgements."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bench.micro import material
from pyxbroker.entry import EntryRun
from pyxbroker.ledger.bookie import Bookie
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.metadata import LedgerMetadata, LedgerMetadataStore
from pyxbroker.ledger.writer import LedgerWriter

NAMES = ("a", "b", "c")


class Silent:
    """A bookie that stores everything and says nothing."""

    is_embedded = False

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id

    def add_run(self, *arguments: Any) -> bool:
        return True


class Listener:
    confirmed = 0

    def on_run_confirmed(self, run: EntryRun) -> None:
        self.confirmed += 1

    def on_ledger_failed(self, handle: object, error: Exception) -> None:
        raise error


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize("runs", [1, 32])
def test_runs_of_one_entry_to_three_bookies(
    benchmark: Any, runs: int, quorums: tuple[int, int, int]
) -> None:
    """Runs that are acknowledged together, by each bookie as one range."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    listener = Listener()
    metadata = LedgerMetadata(*quorums, {0: NAMES})
    bookies = {name: cast(Bookie, Silent(name)) for name in NAMES}
    handle = EnsembleHandle(
        LedgerWriter(1, metadata, 0),
        bookies,
        lambda wanted: {},
        cast(LedgerMetadataStore, None),
        cast(Any, listener),
        5.0,
    )

    def setup() -> tuple[tuple[list[EntryRun]], dict[str, Any]]:
        return ([EntryRun.of_all([material.PAYLOAD]) for _ in range(runs)],), {}

    def add(added: list[EntryRun]) -> None:
        first = handle.pending.next
        for each in added:
            handle.append(each)
        for slot in range(3):
            handle.on_adds_acked(slot, first, first + runs - 1)

    async def measure() -> None:
        benchmark.pedantic(add, setup=setup, rounds=2000)

    loop.run_until_complete(measure())
    loop.close()
    assert handle.pending.pending == 0
    assert listener.confirmed >= runs

"""ackset.pyx: acknowledgement state of a cursor."""

from __future__ import annotations

from typing import Any

from pyxbroker.ackset import AckSet, PositionSet
from pyxbroker.entry import AckRun

ENTRIES = 1000
HOLES = 1_000_000


def setup_run(entries: range) -> tuple[tuple[AckSet, AckRun], dict[str, Any]]:
    return (AckSet(1, -1), AckRun.of([(1, each) for each in entries])), {}


def add_run(acks: AckSet, run: AckRun) -> AckSet:
    acks.add_run(run, lambda ledger_id: HOLES * 2)
    acks.advance(lambda ledger_id, entry_id: None)
    return acks


def test_1000_acks_in_order(benchmark: Any) -> None:
    acks = benchmark.pedantic(add_run, setup=lambda: setup_run(range(ENTRIES)), rounds=200)
    assert (acks.mark_entry_id, acks.holes) == (ENTRIES - 1, 0)


def test_1000_acks_with_a_gap_after_each(benchmark: Any) -> None:
    entries = range(1, 2 * ENTRIES, 2)
    acks = benchmark.pedantic(add_run, setup=lambda: setup_run(entries), rounds=200)
    assert (acks.mark_entry_id, acks.holes) == (-1, ENTRIES)


def test_words_of_a_million_holes(benchmark: Any) -> None:
    acks = AckSet(1, -1)
    acks.add_longs(1, [0xAAAAAAAAAAAAAAA] * (HOLES // 30), 64 * HOLES)
    assert acks.holes > HOLES * 0.9
    encoded = benchmark(acks.encode_longs, 6)
    assert len(encoded) > HOLES // 30 * 9


def test_1000_positions_to_redeliver(benchmark: Any) -> None:
    def fill_and_drain() -> int:
        positions = PositionSet()
        for entry in range(ENTRIES):
            positions.add(1, entry)
        ledger_id, first, last = positions.first_range(ENTRIES)
        positions.discard_range(ledger_id, first, last)
        return len(positions)

    assert benchmark(fill_and_drain) == 0

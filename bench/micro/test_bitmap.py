"""bitmap.pyx: storing and restoring a million acknowledgements out of order."""

from __future__ import annotations

from typing import Any

from pyxbroker.ackset import AckSet

WORDS = 31_250
LAST = 64 * WORDS - 1


def every_second(tracked: bool = False) -> AckSet:
    acks = AckSet(1, -1, tracked)
    acks.add_longs(1, [-0x5555555555555556] * WORDS, LAST)
    acks.forget_changes()
    return acks


def test_a_million_holes_are_encoded(benchmark: Any) -> None:
    acks = every_second()
    assert acks.holes == 1_000_000
    runs, rest = benchmark(acks.encode_runs, 1, 0, 1 << 20, False)
    assert (len(runs), rest) == (4 + 8 * WORDS, -1)


def test_a_million_holes_are_restored(benchmark: Any) -> None:
    runs, _ = every_second().encode_runs(1, 0, 1 << 20, False)

    def restore() -> AckSet:
        acks = AckSet(1, -1)
        acks.add_runs(1, runs, LAST)
        return acks

    assert benchmark(restore).holes == 1_000_000


def test_a_million_ranges_are_counted(benchmark: Any) -> None:
    assert benchmark(every_second().count_ranges) == 1_000_000


def test_100_changes_of_a_million_holes_are_encoded(benchmark: Any) -> None:
    acks = every_second(tracked=True)
    entries = iter(range(0, 2_000_000, 2))

    def change() -> int:
        for _ in range(100):
            acks.add(1, next(entries))
        return len(acks.encode_runs(1, 0, 1 << 20, True)[0])

    assert 0 < benchmark.pedantic(change, rounds=50) < 100 * 10

"""Latencies and sizes of what is added: which bucket, which period."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from itertools import pairwise

import pytest

from pyxbroker.add_stats import BOUNDS_US, NO_ADDS, AddStats, PublishLatency
from pyxbroker.entry import EntryRun
from pyxbroker.stats import definitions

PERIOD_S = 0.2  # a busy machine has to look once in each


class Adds:
    """What is added to a managed ledger, and what is told of it, by the names of the series."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self.all = PublishLatency(period_s)
        self.stats = AddStats(self.all)

    def add(self, *sizes: int) -> None:
        for size in sizes:
            self.stats.on_added(EntryRun.of(bytes(size)))

    def told(self) -> dict[str, int]:
        """What is not 0."""
        names = (each.series.removeprefix("pulsar_") for each in definitions.ADDS)
        return {
            name: each for name, each in zip(names, self.stats.last_period(), strict=True) if each
        }

    def told_until_some(self) -> dict[str, int]:
        """Waits for the end of the period."""
        deadline = time.monotonic() + 30
        while not (told := self.told()):
            assert time.monotonic() < deadline
            time.sleep(PERIOD_S / 10)
        return told


SIZES = {128: "128", 512: "512", 1024: "1_kb", 2048: "2_kb", 4096: "4_kb", 16384: "16_kb"}


@pytest.mark.parametrize("bound", SIZES)
def test_an_entry_is_in_the_bucket_whose_bound_it_reaches(bound: int) -> None:
    """As Pulsar's StatsBuckets: what is of the bound's size is not in the next one."""
    names = [f"entry_size_le_{name}" for name in SIZES.values()] + ["entry_size_le_100_kb"]
    at = list(SIZES).index(bound)
    # Within one period, which this machine may end between the two: then again.
    for _ in range(50):
        adds = Adds()
        adds.add(bound, bound + 1)
        told = adds.told_until_some()
        if told["entry_size_count"] == 2:
            break
    assert told[names[at]] == 1
    assert told[names[at + 1]] == 1
    assert told["entry_size_sum"] == 2 * bound + 1
    assert told["storage_write_latency_count"] == 2


def test_the_sizes_above_a_megabyte_have_their_own_bucket() -> None:
    adds = Adds()
    adds.add(1_232_897)
    assert adds.told_until_some()["entry_size_le_overflow"] == 1


def test_the_time_of_an_add_counts_from_its_run_on() -> None:
    adds = Adds()
    run = EntryRun.of(b"x")
    time.sleep(0.011)
    adds.stats.on_added(run)
    told = adds.told_until_some()
    assert told["storage_write_latency_sum"] >= 11_000
    early = ("0_5", "1", "5", "10")
    assert not any(f"storage_write_latency_le_{each}" in told for each in early)
    sum_ns, counts = adds.all.counts()
    assert sum_ns >= 11_000_000
    buckets = array("Q", counts)
    assert sum(buckets) == 1
    bucket = next(at for at, count in enumerate(buckets) if count)
    assert bucket == bisect_left(BOUNDS_US, sum_ns // 1000)


def test_a_period_in_which_nothing_came_tells_nothing() -> None:
    adds = Adds()
    adds.add(10)
    assert adds.told_until_some()["entry_size_count"] == 1
    deadline = time.monotonic() + 30
    while adds.stats.last_period() != NO_ADDS:
        assert time.monotonic() < deadline
        time.sleep(PERIOD_S / 10)


def test_what_is_older_than_the_last_period_is_not_told() -> None:
    adds = Adds()
    adds.add(10)
    time.sleep(3 * PERIOD_S)
    assert adds.told() == {}
    assert sum(array("Q", adds.all.counts()[1])) == 1


def test_bounds_of_latencies_grow_and_are_a_sixteenth_apart() -> None:
    assert BOUNDS_US[:17] == tuple(range(17))
    for before, bound in pairwise(BOUNDS_US[16:]):
        assert 0 < bound - before <= (bound + 1) / 16

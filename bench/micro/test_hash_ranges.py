"""hash_ranges.pyx: the maximum number of ranges of a STICKY consumer."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pyxbroker.base.limits import HASH_RANGES_MAX
from pyxbroker.hash_ranges import HashRanges, HeldRanges
from pyxbroker.proto import PulsarApi as pb

ALL = [(i, i) for i in range(HASH_RANGES_MAX)]


@pytest.mark.parametrize("order", ["ascending", "descending", "mixed"])
def test_all_ranges_are_read(benchmark: Any, order: str) -> None:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY)
    asked = ALL if order == "ascending" else ALL[::-1]
    if order == "mixed":
        asked = Random(1).sample(ALL, len(ALL))
    for first, last in asked:
        meta.hashRanges.add(start=first, end=last)
    message = meta.SerializeToString()
    _, ranges, _ = benchmark(HashRanges.of_message, message, HASH_RANGES_MAX)
    assert len(ranges) == HASH_RANGES_MAX


def test_all_ranges_are_given_to_one_and_taken_back(benchmark: Any) -> None:
    ranges = HashRanges.of(ALL)
    held = HeldRanges()

    def come_and_go() -> int:
        assert held.conflict(ranges) == 0
        held.add(1, ranges)
        ends, _ = held.owners()
        held.remove(1)
        return len(ends)

    assert benchmark(come_and_go) == HASH_RANGES_MAX

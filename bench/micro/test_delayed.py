"""delayed_index.pyx: an index with a million entries."""

from __future__ import annotations

import random
from typing import Any

from pyxbroker.delayed_index import DelayedIndex

COUNT = 1_000_000
CHANGED = 10_000


def test_put_and_take(benchmark: Any) -> None:
    choose = random.Random(1)
    index = DelayedIndex()
    for entry_id in range(COUNT):
        index.put(choose.randrange(10**9), 1, entry_id)

    def change() -> None:
        for entry_id in range(CHANGED):
            index.put(choose.randrange(10**9), 2, entry_id)
        assert len(index.take_due(2**40, CHANGED)) == CHANGED

    benchmark(change)
    assert len(index) == COUNT

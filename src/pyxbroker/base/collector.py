"""A setup of Python's cyclic garbage collector that keeps its pauses short.

Long-lived objects (topics, subscriptions, connections) are many, and reference counting frees them:
nothing that a client leaves behind is part of a cycle. By default the collector scans all objects
again whenever their number has grown by a quarter, which takes 10 ms for each 100,000.

Here survivors of a full collection are excluded from later ones (gc.freeze), so a collection costs
only what was allocated since the one before it. Once FOUND_MAX objects were found in cycles among
the young, old ones are likely to be in cycles, too. One collection then scans the frozen objects.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

YOUNG = 700  # net allocations before a collection of generation 0
MIDDLE = 10  # collections of generation 0 before one of generation 1
OLD = 1  # collections of generation 1 before one of all not frozen: 15,000 objects or 1.5 ms
FOUND_MAX = 200_000  # objects found in cycles, some 20 MiB, before frozen objects are scanned


class Collector:
    """Configures the garbage collector of this process, until `stop`.

    later(call) runs call() in a loop iteration of its own. Any thread may call it.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._found = 0
        self._is_due = False
        self._former = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, OLD)
        gc.callbacks.append(self._on_collection)
        gc.enable()

    def stop(self) -> None:
        """Restore Python's default thresholds."""
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._former)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop":
            return
        self._found += info["collected"]
        if info["generation"] == 2:
            gc.freeze()
        if self._found >= FOUND_MAX and not self._is_due:
            self._is_due = True
            self._later(self.collect_all)

    def collect_all(self) -> None:
        """Collect all objects, including frozen ones."""
        gc.unfreeze()
        gc.collect()  # `_on_collection` freezes what survives
        self._found = 0
        self._is_due = False

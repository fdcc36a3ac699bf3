"""When Python's cyclic garbage collector looks at what, so that no turn of the loop waits for it.

What lives long here (topics, subscriptions, connections) is many objects, which are freed by their
reference counts: nothing that a client leaves behind is a ring. The collector's own rule looks at
all objects again whenever they have grown by a quarter: 10 ms for each 100,000. Instead what has
survived is set aside (gc.freeze), so a collection costs what was made since the one before it. Only
when the objects have doubled are those that were set aside looked at too: rings that a defect made
cannot take more than half of the memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

YOUNG = 700  # objects more than before: a collection of the youngest
MIDDLE = 10  # of those: one of what survived them
OLD = 4  # of those: one of all that is not set aside, some 28,000 objects or 3 ms
ROUNDS_MIN = 20  # of those, before what was set aside is looked at


class Collector:
    """Sets the collector of this process up, until `stop`.

    later(call) lets call() run in a turn of its own; whichever thread it is called in.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._rounds = 0
        self._rounds_max = ROUNDS_MIN
        self._former = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, OLD)
        gc.callbacks.append(self._on_collection)
        gc.enable()

    def stop(self) -> None:
        """Python's own rule is in force again."""
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._former)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] < 2:
            return
        gc.freeze()
        self._rounds += 1
        if self._rounds == self._rounds_max:
            self._later(self.collect_all)

    def collect_all(self) -> None:
        """Looks at everything; the next time is when there is twice as much."""
        gc.unfreeze()
        gc.collect()  # which sets aside what survives
        self._rounds = 0
        self._rounds_max = max(ROUNDS_MIN, gc.get_freeze_count() // (YOUNG * MIDDLE * OLD))

"""When Python's cyclic garbage collector looks at what, so that no turn of the loop waits for it.

What lives long here (topics, subscriptions, connections) is many objects, which are freed by their
reference counts: nothing that a client leaves behind is a ring. The collector's own rule looks at
all objects again whenever they have grown by a quarter: 10 ms for each 100,000. Instead what has
survived is set aside (gc.freeze), so a collection costs what was made since the one before it. What
was set aside is looked at too, at the price of such a turn, once that many objects were found in
rings among the young: somebody makes rings then, and there will be old ones as well.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

YOUNG = 700  # objects more than before: a collection of the youngest
MIDDLE = 10  # of those: one of what survived them
OLD = 1  # of those: one of all that is not set aside, some 15,000 objects or 1.5 ms
FOUND_MAX = 200_000  # objects in rings, some 20 MiB, before what was set aside is looked at


class Collector:
    """Sets the collector of this process up, until `stop`.

    later(call) lets call() run in a turn of its own; whichever thread it is called in.
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
        """Python's own rule is in force again."""
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
        """Looks at everything, also at what was set aside."""
        gc.unfreeze()
        gc.collect()  # which sets aside what survives
        self._found = 0
        self._is_due = False

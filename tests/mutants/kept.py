"""Mutants that are known: some are no bugs, some are bugs that no test notices and why.

Each is named by its file, its function, and the line before and after: it stays when lines move.
What is equivalent does not count, another one is drawn; what is open counts as not caught.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mutants.draw import Mutant

EQUIVALENT, OPEN = "equivalent", "open"


class Kept(NamedTuple):
    kind: str
    path: str
    function: str
    before: str
    after: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.function, _one_line(self.before), _one_line(self.after)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def kept_for(mutant: Mutant, kept: Iterable[Kept]) -> Kept | None:
    key = (mutant.path, mutant.function, _one_line(mutant.before), _one_line(mutant.after))
    return next((each for each in kept if each.key == key), None)


KEPT: list[Kept] = [
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/topics/producer.py",
        "Producer._answer_in_order",
        """            self._answer(run, error)
            sends = run.count""",
        """            sends = run.count
            self._answer(run, error)""",
        "answering a run does not change how many entries it has",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/ackset.pyx",
        "LedgerBatches.__cinit__",
        """        self.ids = EntryBitmap()
        self.changed = EntryBitmap() if tracked else None""",
        """        self.changed = EntryBitmap() if tracked else None
        self.ids = EntryBitmap()""",
        "two bitmaps that do not know each other are made",
    ),
]

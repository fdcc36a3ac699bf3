"""Random disk errors: of the calls that the fault table knows, where they are made.

A round under load draws from the rows of a running broker, a start from those of its kind of start.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from harness.errors import Errors

from torture.fault_table import ROWS, STARTS

WINDOW_S = (0.05, 0.2, 0.5, 1.0, 2.0)
SLOW_MS = 2000


@dataclass(frozen=True)
class Episode:
    """One rule: which calls of which files fail how, and for how long (0: until the end)."""

    kind: str
    calls: tuple[str, ...]
    effect: str
    seconds: float
    skip: int = 0

    def begin(self, errors: Errors) -> int:
        """Put it in force; returns the number of its rule."""
        seconds = self.seconds or None
        if self.effect == "slow":
            more: dict[str, Any] = {"delay_ms": SLOW_MS, "hits_max": 1}
        elif self.effect == "short":
            more = {"bytes_max": 1000}
        else:
            more = {"error": self.effect.split()[0]}
            if self.effect == "EIO once":
                more["hits_max"] = 1
        return errors.rule(self.kind, *self.calls, seconds=seconds, skip=self.skip, **more)

    def may_fail_journal(self) -> bool:
        """Whether a write or a sync of a journal file may fail by it, which ends the journal."""
        return (
            self.kind in ("journal", "any")
            and bool({"write", "sync"} & {*self.calls})
            and self.effect not in ("short", "slow")
        )

    def __str__(self) -> str:
        until = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.effect}{until} on {'/'.join(self.calls)} of {self.kind}"


def random_episodes(generator: random.Random, start: str = "") -> list[Episode]:
    """One to three errors; one time in eight the whole disk has the same one.

    ``start`` is the kind of start that is to meet them, an action of the fault table.
    """
    if generator.random() < 0.125:
        return [_everywhere(generator)]
    return [_one(generator, start) for _ in range(generator.choice((1, 1, 1, 2, 3)))]


def _one(generator: random.Random, start: str) -> Episode:
    rows = [row for row in ROWS if (row.action == start if start else row.action not in STARTS)]
    kind = generator.choice(sorted({row.kind for row in rows}))
    row = generator.choice([row for row in rows if row.kind == kind])
    effect = generator.choice(row.errors)
    seconds = 0.0
    if effect in ("EIO for a while", "ENOSPC", "EDQUOT", "short"):
        seconds = generator.choice(WINDOW_S)
    skip = generator.choice((0, 0, 1, 3) if start else (0, 0, 0, 1, 20))
    return Episode(kind, (row.call,), effect, seconds, skip)


def _everywhere(generator: random.Random) -> Episode:
    if generator.random() < 0.5:
        # A full disk: what is overwritten in place goes on.
        kinds = "bookie/journal/prepare.tmp|bookie/ledgers/*.log.tmp|metadata*/*|bookie/current/*"
        full = ("open", "write", "allocate", "mkdir")
        return Episode(kinds, full, "ENOSPC", generator.choice(WINDOW_S))
    calls: tuple[str, ...] = generator.choice(
        (("read",), ("write", "sync"), ("open",), ("read", "write", "sync"))
    )
    return Episode("any", calls, "EIO for a while", generator.choice(WINDOW_S[:4]))

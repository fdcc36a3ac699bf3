"""Which disk calls there are for each kind of file, and random errors of them.

``CALLS_OF`` is what a running broker was seen to do; ``torture/test_fault_table.py`` looks again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from torture.errors import Errors

# By kind of file: the calls of a running broker, and those of a start (or a stop) alone.
CALLS_OF: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "journal": (("write", "sync", "rename", "unlink"), ("open", "read")),
    "journal_new": (("open", "write", "sync", "rename", "allocate"), ("unlink",)),
    "entry_log": (("open", "read", "mmap", "punch", "unlink"), ()),
    "entry_log_new": (("open", "write", "sync", "rename", "allocate"), ()),
    "metadata": (("read", "write", "sync", "truncate"), ("open",)),
    "metadata_wal": (("read", "write", "sync"), ("open", "unlink")),
    "metadata_other": ((), ("open", "read", "write", "sync", "unlink")),
    "cookie": ((), ("open", "read", "write", "sync", "rename")),
    "lock": ((), ("open", "write", "truncate")),
    "directory": (("sync",), ("open", "read", "mkdir")),
}

EFFECTS = ("EIO once", "EIO for a while", "EIO for ever", "ENOSPC", "EDQUOT", "short", "slow")
NO_SPACE_CALLS = ("open", "write", "sync", "rename", "allocate", "truncate", "punch", "mkdir")
WINDOW_S = (0.05, 0.2, 0.5, 1.0, 2.0)
SLOW_MS = 2000


def effects_of(call: str) -> list[str]:
    """The errors that this call can meet."""
    found = ["EIO once", "EIO for a while", "EIO for ever"]
    if call in NO_SPACE_CALLS:
        found += ["ENOSPC", "EDQUOT"]
    if call in ("read", "write"):
        found.append("short")
    return [*found, "slow"]


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
            more = {"delay_ms": SLOW_MS, "hits_max": 1}
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


def random_episodes(generator: random.Random, at_start: bool) -> list[Episode]:
    """One to three errors; one time in eight the whole disk has the same one."""
    if generator.random() < 0.125:
        return [_everywhere(generator)]
    return [_one(generator, at_start) for _ in range(generator.choice((1, 1, 1, 2, 3)))]


def _one(generator: random.Random, at_start: bool) -> Episode:
    kinds = [kind for kind, (running, _) in CALLS_OF.items() if running or at_start]
    kind = generator.choice(kinds)
    running, starting = CALLS_OF[kind]
    call = generator.choice(starting if at_start and starting else running or starting)
    effect = generator.choice(effects_of(call))
    seconds = 0.0
    if effect in ("EIO for a while", "ENOSPC", "EDQUOT", "short"):
        seconds = generator.choice(WINDOW_S)
    skip = generator.choice((0, 0, 1, 5, 50)) if not at_start else generator.choice((0, 0, 1, 3))
    return Episode(kind, (call,), effect, seconds, skip)


def _everywhere(generator: random.Random) -> Episode:
    if generator.random() < 0.5:
        # A full disk: what is overwritten in place goes on.
        kinds = "bookie/journal/prepare.tmp|bookie/ledgers/*.log.tmp|metadata/*|bookie/current/*"
        calls = ("open", "write", "allocate", "mkdir")
        return Episode(kinds, calls, "ENOSPC", generator.choice(WINDOW_S))
    calls = generator.choice((("read",), ("write", "sync"), ("open",), ("read", "write", "sync")))
    return Episode("any", calls, "EIO for a while", generator.choice(WINDOW_S[:4]))

"""Listeners that a topic notifies of each run, once it is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyxbroker.entry import EntryRun, Position


class ConfirmListener(Protocol):
    """A follower of a topic's log as it grows."""

    def on_confirmed(self, run: EntryRun, first: Position) -> None:
        """Take note of a durable run; runs come in the order of the log.

        Its entries have the ids from `first` on. run.owner is the producer, which has answered its
        client by now. The run's bytes may be released: they can be read from the log.
        """


def resolve(listeners: tuple[ConfirmListener, ...]) -> Callable[[EntryRun], None] | None:
    """Return the function that a log calls for each run, None without listeners."""
    if not listeners:
        return None

    def on_run(run: EntryRun) -> None:
        first = Position(run.ledger_id, run.first_entry_id)
        for each in listeners:
            each.on_confirmed(run, first)

    return on_run

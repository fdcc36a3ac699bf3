"""Who wants to know what a topic has stored: told of each run once it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyxbroker.entry import EntryRun, Position


class ConfirmListener(Protocol):
    """Somebody who follows a topic's log as it grows."""

    def on_confirmed(self, run: EntryRun, first: Position) -> None:
        """A run is durable; runs come in the order of the log.

        Its entries have the ids from `first` on. run.owner is the producer, which has answered its
        client by now. The bytes may be gone: they can be read from the log.
        """


def resolve(listeners: Sequence[ConfirmListener]) -> Callable[[EntryRun], None] | None:
    """What a log calls for each run; None: nobody wants to know."""
    if not listeners:
        return None
    told = tuple(listeners)

    def on_run(run: EntryRun) -> None:
        first = Position(run.ledger_id, run.first_entry_id)
        for each in told:
            each.on_confirmed(run, first)

    return on_run

"""What becomes of a run of SENDs before it is appended to a topic's log.

A step sees each run on its way and decides about single SENDs of it: nobody is told (drop), the
client gets an error (refuse), or a receipt, although nothing is stored (answer). What no step
decides about is appended. A topic without steps has no chain either: its `publish` is the append.

Clients hold their SENDs in a queue and expect the answers in its order; a receipt that comes too
early makes some of them reconnect. So what is decided here is answered when every SEND before it
was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.errors import PulsarError
from pyxbroker.broker.commands import replies
from pyxbroker.broker.topics.producer import refusal_of
from pyxbroker.entry import EntryRun, Position
from pyxbroker.mledger.errors import ManagedLedgerError

if TYPE_CHECKING:
    from pyxbroker.broker.topics.producer import Producer

Append = Callable[[EntryRun], None]


class StepOrder(IntEnum):
    """The order in which the steps of a topic check a SEND. Steps with the same order run as they
    were added. A step comes before those that must not see SENDs that it refuses.
    """

    POLICY = 0  # what policies forbid (policy_checks.py)
    CHECK = 1  # steps that are added to single topics
    DEDUPLICATION = 2  # last: it stores the sequence ids of SENDs that no other step refused


class PublishStep(Protocol):
    """A check that may prevent a SEND from being stored."""

    @property
    def order(self) -> StepOrder:
        """The place among the steps of a topic."""

    def check(self, publication: Publication) -> None:
        """Decides about the SENDs of a run, where it has to; their data is there until it returns.

        What an earlier step has decided stays.
        """


# What a step has decided about a SEND: an error, a position for a receipt, or nothing at all.
Decision = PulsarError | Position | None


class Publication:
    """A run on its way through the steps, and until its SENDs are answered.

    Without steps: a run, or a SEND, that was refused while others before it are not answered yet.
    """

    def __init__(self, run: EntryRun) -> None:
        self.run = run
        self.producer: Producer = run.owner
        self.stored: EntryRun | None = None  # what was left of it, when it was appended
        self.sends_before = 0  # appended whole after the one before it; they are answered first
        self._decisions: dict[int, Decision] = {}
        self._is_settled = False
        self._error: ManagedLedgerError | None = None

    @classmethod
    def of_refused(cls, run: EntryRun, error: ManagedLedgerError) -> Publication:
        """A run of which nothing will be stored, that waits for its turn to be answered."""
        publication = cls(run)
        publication.stored = run
        publication.on_settled(error)
        run.release()
        return publication

    @property
    def undecided(self) -> list[int]:
        """The indexes in the run of those SENDs that will be stored, as things are."""
        return [index for index in range(self.run.count) if index not in self._decisions]

    @property
    def has_decisions(self) -> bool:
        return bool(self._decisions)

    def drop(self, index: int) -> None:
        """A SEND is not stored, and its client hears nothing of it."""
        self._decisions.setdefault(index, None)

    def refuse(self, index: int, error: PulsarError) -> None:
        """A SEND is not stored; its client gets the error."""
        self._decisions.setdefault(index, error)

    def answer(self, index: int, position: Position) -> None:
        """A SEND is not stored; its client gets a receipt that says it is at a position."""
        self._decisions.setdefault(index, position)

    def raise_refusal(self) -> None:
        """Raises the first PulsarError that a SEND of the run was refused with."""
        for decision in self._decisions.values():
            if isinstance(decision, PulsarError):
                raise decision

    def append_rest(self, append: Append) -> None:
        """Appends what no step has decided about. Raises ManagedLedgerError."""
        self.stored = self.run.without(self._decisions.keys())
        try:
            if self.stored is not None:
                append(self.stored)
        finally:
            # The data was that of the turn: whoever has to keep it has a copy by now.
            self.run.release()

    def on_settled(self, error: ManagedLedgerError | None) -> None:
        """What was appended is stored, or never will be."""
        self._is_settled = True
        self._error = error

    @property
    def is_due(self) -> bool:
        """Its SENDs can be answered, when its turn has come."""
        return self.sends_before == 0 and (self.stored is None or self._is_settled)

    def answers(self, is_persistent: bool) -> Iterator[bytes]:
        """The frames that answer the SENDs of the run, in order."""
        producer_id = self.producer.producer_id
        stored, at = self.stored, 0
        for index, (sequence_id, highest) in enumerate(self.run.sequence_ids()):
            if index in self._decisions:
                outcome = self._decisions[index]
            elif self._error is not None:
                outcome = refusal_of(self._error)
            else:
                assert stored is not None
                outcome = Position(stored.ledger_id, stored.first_entry_id + at)
                # What is not kept has no places: all of it gets the same id.
                at += is_persistent
            if isinstance(outcome, PulsarError):
                yield replies.send_error(producer_id, sequence_id, outcome.code, str(outcome))
            elif outcome is not None:
                yield replies.send_receipt(producer_id, sequence_id, highest, outcome)


class PublishChain:
    """The steps of one topic, in their order, and the append behind them."""

    def __init__(self, steps: Sequence[PublishStep], append: Append) -> None:
        self._steps = tuple(steps)
        self._append = append

    def publish(self, run: EntryRun) -> None:
        """Appends what the steps leave of a run. Raises ManagedLedgerError like the append."""
        publication = Publication(run)
        for step in self._steps:
            step.check(publication)
        if publication.has_decisions:
            publication.producer.publish_rest(publication, self._append)
        else:
            self._append(run)

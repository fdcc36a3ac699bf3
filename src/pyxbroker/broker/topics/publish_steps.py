"""Publish steps: checks of SENDs before they are appended to the log of a topic.

A step sees each run and may decide about single SENDs of it. A SEND is dropped without an answer
(drop), refused with an error (refuse), or answered with a receipt without being stored (answer).
Undecided SENDs are appended. A topic without steps has no chain: its `publish` is the append.

Clients queue their SENDs and expect answers in the same order. Some reconnect after an early
receipt. A decision is therefore sent to the client after the answers to all SENDs before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.errors import NotAllowed, PulsarError
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
        """Decide about SENDs of a run; their data is valid until this returns.

        A decision of an earlier step cannot be changed.
        """


# A step's decision about a SEND: an error, a position for a receipt, or None to drop it.
Decision = PulsarError | Position | None


class Publication:
    """A run from the first step until its SENDs are answered.

    Topics without steps use it for a refused run or SEND that waits for earlier answers.
    """

    def __init__(self, run: EntryRun) -> None:
        self.run = run
        self.producer: Producer = run.owner
        self.stored: EntryRun | None = None  # the undecided SENDs, once they were appended
        # SENDs between the previous publication and this one, which are answered first.
        self.sends_before = 0
        self._decisions: dict[int, Decision] = {}
        self._is_settled = False
        self._error: ManagedLedgerError | None = None

    @classmethod
    def of_refused(cls, run: EntryRun, error: ManagedLedgerError) -> Publication:
        """Return the publication of a run that was refused as a whole."""
        publication = cls(run)
        publication.stored = run
        publication.on_settled(error)
        run.release()
        return publication

    @property
    def undecided(self) -> list[int]:
        """The indexes in the run of the SENDs that no step has decided about."""
        return [index for index in range(self.run.count) if index not in self._decisions]

    @property
    def has_decisions(self) -> bool:
        return bool(self._decisions)

    def drop(self, index: int) -> None:
        """Do not store a SEND, and do not answer it."""
        self._decisions.setdefault(index, None)

    def refuse(self, index: int, error: PulsarError) -> None:
        """Do not store a SEND; answer it with an error."""
        self._decisions.setdefault(index, error)

    def answer(self, index: int, position: Position) -> None:
        """Do not store a SEND; answer it with a receipt for a position."""
        self._decisions.setdefault(index, position)

    def raise_refusal(self) -> None:
        """Raise the first error with which a SEND of the run was refused."""
        for decision in self._decisions.values():
            if isinstance(decision, PulsarError):
                raise decision

    def append_undecided(self, append: Append) -> None:
        """Append the undecided SENDs. Raises ManagedLedgerError."""
        self.stored = self.run.without(self._decisions.keys())
        try:
            if self.stored is not None:
                append(self.stored)
        finally:
            # The receive buffer is reused after this iteration. The log has copied what it needs.
            self.run.release()

    def on_settled(self, error: ManagedLedgerError | None) -> None:
        """Take note that the appended SENDs are stored, or of the error if they will not be."""
        self._is_settled = True
        self._error = error

    @property
    def is_due(self) -> bool:
        """True if the SENDs can be answered, provided that this publication is the oldest."""
        return self.sends_before == 0 and (self.stored is None or self._is_settled)

    def answers(self, is_persistent: bool) -> Iterator[bytes]:
        """Yield the frames that answer the SENDs of the run, in order."""
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
                # All messages of a non-persistent topic have the same id.
                at += is_persistent
            if isinstance(outcome, PulsarError):
                yield replies.send_error(producer_id, sequence_id, outcome.code, str(outcome))
            elif outcome is not None:
                yield replies.send_receipt(producer_id, sequence_id, highest, outcome)


class NoTransactions:
    """A publish step of topics that cannot have transactions."""

    order = StepOrder.CHECK

    def check(self, publication: Publication) -> None:
        for index, _, _ in publication.run.transactions or ():
            publication.refuse(index, NotAllowed("Transaction buffer disable!"))


NO_TRANSACTIONS = NoTransactions()


class PublishChain:
    """The steps of one topic, in their order, and the append behind them."""

    def __init__(self, steps: Sequence[PublishStep], append: Append) -> None:
        self._steps = tuple(steps)
        self._append = append

    def publish(self, run: EntryRun) -> None:
        """Run the steps, and append the undecided SENDs. Raises ManagedLedgerError."""
        publication = Publication(run)
        for step in self._steps:
            step.check(publication)
        if publication.has_decisions:
            publication.producer.publish_undecided(publication, self._append)
        else:
            self._append(run)

"""A producer of one topic: publishes the SENDs of one client and answers them in order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.errors import PersistenceError, PulsarError, ServiceNotReady, TopicTerminated
from pyxbroker.base.rates import Rates
from pyxbroker.broker.client_memory import CLOSED_PRODUCER_BYTES, PRODUCER_BYTES, texts_bytes
from pyxbroker.broker.commands import replies
from pyxbroker.connection import Connection, ProducerState
from pyxbroker.entry import EntryRun
from pyxbroker.mledger.errors import (
    ManagedLedgerError,
    ManagedLedgerNotReady,
    ManagedLedgerTakenBack,
    ManagedLedgerTerminated,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.broker.topics.entry_metadata import EntryMetadata
    from pyxbroker.broker.topics.publish_steps import Append, Publication


class ProducerTopic(Protocol):
    """The topic of a producer (topic.py)."""

    name: TopicName
    epoch: int | None
    entry_metadata: EntryMetadata | None
    publish: Callable[[EntryRun], None]

    def publish_transactional(self, run: EntryRun) -> None: ...
    def last_sequence_id(self, name: str) -> int: ...
    def remove_producer(self, producer: Producer) -> None: ...
    def on_not_stored(self, producer: Producer) -> None: ...


class Producer(ProducerState):
    """One producer; also the owner of its runs until they are answered."""

    schema_version = b""  # of the schema in PRODUCER; most producers have none
    access_mode = 0  # ProducerAccessMode; SHARED for most producers

    def __init__(
        self,
        connection: Connection,
        producer_id: int,
        topic: ProducerTopic,
        name: str,
        epoch: int,
        user_provided_name: bool,
        metadata: dict[str, str],
    ) -> None:
        super().__init__(connection, producer_id)
        self.topic = topic
        self.name = name
        self.epoch = epoch
        self.user_provided_name = user_provided_name
        self.metadata = metadata
        self.connected_s = time.time()  # since 1970
        self.rates: Rates | None = None  # created by the first request for statistics
        self.cost = PRODUCER_BYTES + len(name) + texts_bytes(metadata)  # client_memory.py
        self._waiting_idle: list[asyncio.Future[None]] = []
        # Publications with answers that wait for earlier ones, in order. Most producers have none.
        self._publications: deque[Publication] | tuple[()] = ()

    def release(self) -> None:
        """Return the memory of the closed producer to its connection's account."""
        cost, self.cost = self.cost, 0
        self.connection.session.memory.release(cost)

    def forget(self) -> None:
        """Close the producer's id on its connection, so that later SENDs for it are dropped.

        Nothing changes if the id belongs to another producer by now.
        """
        if self.connection.producers.get(self.producer_id) is not self:
            return
        ids = self.connection.forget_producer(self.producer_id)
        if ids:
            self.connection.session.memory.take_over(ids * CLOSED_PRODUCER_BYTES)

    def leave(self) -> None:
        """Leave the topic, since the connection was closed. A second call does nothing."""
        self.topic.remove_producer(self)

    def publish(self, run: EntryRun) -> None:
        """Publish all SENDs that one loop iteration has read, in order."""
        try:
            self.topic.publish(run)
        except ManagedLedgerError as error:
            self.refuse_run(run, error)

    def publish_transactional(self, run: EntryRun) -> None:
        """Publish a run with SENDs of transactions."""
        try:
            self.topic.publish_transactional(run)
        except ManagedLedgerError as error:
            self.refuse_run(run, error)

    def refuse_run(self, run: EntryRun, error: ManagedLedgerError) -> None:
        """Answer the newest run with an error. Of several runs the last one comes first."""
        self._refuse_newest(run, error)
        self.topic.on_not_stored(self)

    def refuse(self, sequence_id: int, highest_sequence_id: int, error: PulsarError) -> None:
        """Answer a SEND with an error, after the answers to all SENDs before it.

        A client expects answers in the order of its SENDs. It reconnects after an error for
        a SEND that is not its oldest pending one.
        """
        if not self.pending_sends:
            frame = replies.send_error(self.producer_id, sequence_id, error.code, str(error))
            self.connection.send_frame(frame)
            return
        from pyxbroker.broker.topics.publish_steps import Publication

        refused = Publication(self.refused_run(sequence_id, highest_sequence_id))
        refused.refuse(0, error)
        refused.sends_before = self._sends_behind - 1
        self._wait_for_turn(refused)

    def publish_undecided(self, publication: Publication, append: Append) -> None:
        """Append the undecided SENDs of a run, and answer the others in order."""
        publication.sends_before = self._sends_behind - publication.run.count
        self._wait_for_turn(publication)
        try:
            publication.append_undecided(append)
        except ManagedLedgerError as error:
            publication.on_settled(error)
            self._answer_what_is_due()
            self.topic.on_not_stored(self)
            return
        self._answer_what_is_due()

    def on_run_added(self, run: EntryRun) -> None:
        """Answer a run that is durable, or that a non-persistent topic has sent to consumers."""
        if self._publications:
            self._answer_in_order(run, None)
        else:
            self._answer(run, None)
        if self._waiting_idle and self.pending_sends == 0:
            self._notify_idle()

    def on_run_failed(self, run: EntryRun, error: ManagedLedgerError) -> None:
        """Answer each SEND of a run with the reason why the run was not stored."""
        if isinstance(error, ManagedLedgerTakenBack):
            self._refuse_newest(run, error)
        elif self._publications:
            self._answer_in_order(run, error)
        else:
            self._answer(run, error)
        if self._waiting_idle and self.pending_sends == 0:
            self._notify_idle()
        if self.topic.entry_metadata is not None:
            self.topic.entry_metadata.take_back(run)
        self.topic.on_not_stored(self)

    def _answer(self, run: EntryRun, error: ManagedLedgerError | None) -> None:
        if self.closed:
            # The client knows that the producer is closed, and may have reused its id.
            self.settle(run)
        elif error is None:
            self.send_receipts(run, self.topic.name.is_persistent)
        else:
            self.settle(run)
            refusal = refusal_of(error)
            for sequence_id, _ in run.sequence_ids():
                self.connection.send_frame(
                    replies.send_error(self.producer_id, sequence_id, refusal.code, str(refusal))
                )

    def _answer_in_order(self, run: EntryRun, error: ManagedLedgerError | None) -> None:
        """Answer a run while publications wait; the run may be the stored part of one of them."""
        for publication in self._publications:
            if publication.stored is run:
                publication.on_settled(error)
                break
        else:
            self._answer(run, error)
            sends = run.count
            for publication in self._publications:
                moved = min(sends, publication.sends_before)
                publication.sends_before -= moved
                sends -= moved
        self._answer_what_is_due()

    def _refuse_newest(self, run: EntryRun, error: ManagedLedgerError) -> None:
        """Answer the newest run with an error, after the runs before it, which may be stored."""
        if any(each.stored is run for each in self._publications):
            self._answer_in_order(run, error)
            return
        is_alone = self.pending_sends == run.count
        if is_alone or (self.closed and not self._publications):
            self._answer(run, error)
            if self._waiting_idle and self.pending_sends == 0:
                self._notify_idle()
            return
        # Imported here since this is rare, and most topics have no steps.
        from pyxbroker.broker.topics.publish_steps import Publication

        refused = Publication.of_refused(run, error)
        if behind := self._sends_behind:
            refused.sends_before = behind - run.count
            self._wait_for_turn(refused)
        else:
            # All later runs were only partly appended.
            at = max(at for at, each in enumerate(self._publications) if each.sends_before)
            refused.sends_before = self._publications[at].sends_before - run.count
            self._publications[at].sends_before = 0
            self._wait_for_turn(refused, at)
        self._answer_what_is_due()

    @property
    def _sends_behind(self) -> int:
        """The number of unanswered SENDs that came after the last waiting publication."""
        counted = sum(each.sends_before + each.run.count for each in self._publications)
        return self.pending_sends - counted

    def _wait_for_turn(self, publication: Publication, at: int | None = None) -> None:
        if not isinstance(self._publications, deque):
            self._publications = deque()
        self._publications.insert(len(self._publications) if at is None else at, publication)

    def _answer_what_is_due(self) -> None:
        waiting = self._publications
        while waiting and waiting[0].is_due:
            publication = waiting.popleft()
            self.settle(publication.run)
            if not self.closed:
                for frame in publication.answers(self.topic.name.is_persistent):
                    self.connection.send_frame(frame)
        if self._waiting_idle and self.pending_sends == 0:
            self._notify_idle()

    async def idle(self) -> None:
        """Wait until every SEND so far is answered."""
        if self.pending_sends:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_idle.append(waiter)
            await waiter

    def _notify_idle(self) -> None:
        waiters, self._waiting_idle = self._waiting_idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def refusal_of(error: ManagedLedgerError) -> PulsarError:
    """Return the error for the client of a SEND that was not stored."""
    if isinstance(error, ManagedLedgerTerminated):
        return TopicTerminated(str(error))
    if isinstance(error, ManagedLedgerNotReady):
        return ServiceNotReady(str(error))
    return PersistenceError(str(error))

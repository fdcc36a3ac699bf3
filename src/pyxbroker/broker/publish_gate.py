"""Whether clients may publish: what becomes of their SENDs while nothing can be stored.

    open    Everything is given to the storage. When its write cache is full for a moment, reading
            from those who publish stops.
    held    Nothing can be stored. What clients send is kept (maxMessagePublishBufferSizeInMB), and
            every connection is read: a client that publishes may be the one whose acknowledgements
            free space.
    closed  That lasted for storageUnavailableTimeoutMs, more was sent than is kept, or nothing will
            ever be stored again. Producers with unanswered SENDs are closed, and those SENDs are
            forgotten; producers that are opened are refused with the reason. Official clients
            then fail what is pending with that error, and try to come back from time to time.

It opens again by itself. An entry that the storage had begun with may be there, although its SEND
was forgotten; what was acknowledged is there in any case.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyxbroker.base.errors import ProducerBlockedQuotaExceededException
from pyxbroker.base.log import get_logger
from pyxbroker.connection import Connections

if TYPE_CHECKING:
    from pyxbroker.broker.storage_view import StorageView
    from pyxbroker.broker.topics.topic import Topic

log = get_logger("pyxbroker.broker")

SLICE_S = 0.001  # of sending producers away before others have their turn


class PublishGate:
    """One for each broker."""

    def __init__(
        self,
        storage: StorageView,
        connections: Connections,
        topics: Callable[[], Iterable[Topic]],
        timeout_s: float,
    ) -> None:
        self.is_closed = False
        self.refused_sends = 0
        self._storage = storage
        self._connections = connections
        self._topics = topics
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._closing_due = False
        # While those who wait are sent away: the topics that are still to be looked at.
        self._rest: Iterator[Topic] | None = None
        self._has_walked = False  # since it closed
        self._sends = 0  # that were refused, since those who wait are sent away
        connections.on_overflow = self._close
        storage.on_change(self._on_change)

    def check(self) -> None:
        """Raises ProducerBlockedQuotaExceededException while it is closed."""
        if self.is_closed:
            raise ProducerBlockedQuotaExceededException(self._storage.refusal)

    def set_full(self, full: bool) -> None:
        """The storage has no room for a run (or has again), or does not take it now."""
        self._connections.set_full(full)
        if full and self.is_closed and not self._closing_due:
            # A producer that had nothing pending when the others were closed.
            self._closing_due = True
            self._connections.turn.at_end(self._close_waiting)

    def _on_change(self) -> None:
        self._connections.turn.run(self._change)

    def _change(self) -> None:
        if self._storage.refusal is None:
            self._open()
            return
        self._connections.set_holding(True)
        self._storage.set_holding(True)
        if self._storage.has_failed:
            self._close()
        elif self._timer is None and not self.is_closed:
            loop = self._connections.loop
            self._timer = loop.call_later(self._timeout_s, self._connections.turn.run, self._close)

    def _open(self) -> None:
        self._stop_timer()
        self.is_closed = False
        self._has_walked = False
        self._rest = None
        self._storage.set_holding(False)
        self._connections.set_holding(False)

    def _close(self) -> None:
        if self._storage.refusal is None or self.is_closed:
            return
        self._stop_timer()
        self.is_closed = True
        self._close_waiting()

    def _close_waiting(self) -> None:
        """Closes the producers that wait for an answer, and drops what waits for room."""
        self._closing_due = False
        if not self.is_closed or self._rest is not None:
            return
        # Who had something pending when it closed is found by a walk. Later it can only be one of
        # those that have published meanwhile.
        self._rest = iter(() if self._has_walked else self._topics())
        self._sends = 0
        self._step()

    def _step(self) -> None:
        """Does a part of it, so that topics in any number do not keep others from their turn."""
        if self._rest is None:
            return
        until = time.monotonic() + SLICE_S
        for topic in self._rest:
            self._close_topic(topic)
            if time.monotonic() > until:
                self._go_on()
                return
        held = self._connections.held
        while held:
            producer, _ = held.popitem()
            if producer.pending_sends:
                self._close_topic(producer.topic)
            if time.monotonic() > until:
                self._go_on()
                return
        # In this turn nobody waits: what is taken back now needs no answer.
        self._rest = None
        self._has_walked = True
        self._storage.take_back()
        self.refused_sends += self._sends
        if self._sends:
            log.warning("sends were refused", sends=self._sends, reason=self._storage.refusal)

    def _close_topic(self, topic: Topic) -> None:
        from pyxbroker.broker.topics.persistent import PersistentTopic

        if not isinstance(topic, PersistentTopic):
            return
        try:
            self._sends += topic.close_waiting_producers()
            topic.take_back_waiting()
        except Exception as error:
            # A defect of one topic is not one of the others, whose clients wait as well.
            log.failure("sends could not be refused", error, topic=topic.name)

    def _go_on(self) -> None:
        self._connections.loop.call_soon(self._connections.turn.run, self._step)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """The broker stops: nobody waits any more."""
        self._stop_timer()
        self._close()
        while self._rest is not None:
            self._step()

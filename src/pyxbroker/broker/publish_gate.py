"""The publish gate decides what happens to SENDs while nothing can be stored.

    open    SENDs go to the storage. While its write cache is full, the broker does not read from
            publishing clients.
    held    Nothing can be stored. SENDs wait in memory (maxMessagePublishBufferSizeInMB). The
            broker reads all connections: a publishing client may also acknowledge, which frees
            space.
    closed  The state held has lasted for storageUnavailableTimeoutMs, the memory is full, or the
            storage has failed for good. Producers with unanswered SENDs are closed, and the SENDs
            dropped. New producers are refused with the reason. Official clients report this
            error for pending messages, and reconnect from time to time.

The gate opens again by itself. An entry may have been stored although its SEND was dropped. An
acknowledged message is always stored.
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

SLICE_S = 0.001  # time slice for closing producers


class PublishGate:
    """The publish gate of a broker."""

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
        # While waiting producers are being closed: the remaining topics.
        self._remaining: Iterator[Topic] | None = None
        self._has_walked = False  # all topics were visited since the gate closed
        self._sends = 0  # refused while waiting producers are being closed
        connections.on_overflow = self._close
        storage.on_change(self._on_change)

    def check(self) -> None:
        """Raise ProducerBlockedQuotaExceededException while the gate is closed."""
        if self.is_closed:
            raise ProducerBlockedQuotaExceededException(self._storage.refusal)

    def set_full(self, full: bool) -> None:
        """Note that the storage has no room for a run of entries, or has room again."""
        self._connections.set_full(full)
        if full and self.is_closed and not self._closing_due:
            # A producer without pending SENDs, which was not closed with the others.
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
        self._remaining = None
        self._storage.set_holding(False)
        self._connections.set_holding(False)

    def _close(self) -> None:
        if self._storage.refusal is None or self.is_closed:
            return
        self._stop_timer()
        self.is_closed = True
        self._close_waiting()

    def _close_waiting(self) -> None:
        """Close the producers that wait for an answer, and drop their SENDs."""
        self._closing_due = False
        if not self.is_closed or self._remaining is not None:
            return
        # The first walk visits all topics. Afterwards only producers that have published since can
        # have pending SENDs.
        self._remaining = iter(() if self._has_walked else self._topics())
        self._sends = 0
        self._step()

    def _step(self) -> None:
        """Close one slice of the producers, so that many topics do not block the event loop."""
        if self._remaining is None:
            return
        until = time.monotonic() + SLICE_S
        for topic in self._remaining:
            self._close_topic(topic)
            if time.monotonic() > until:
                self._step_later()
                return
        held = self._connections.held
        while held:
            producer, _ = held.popitem()
            if producer.pending_sends:
                self._close_topic(producer.topic)
            if time.monotonic() > until:
                self._step_later()
                return
        # No producer waits in this loop iteration, so dropped entries need no answer.
        self._remaining = None
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
            # An exception for one topic must not affect the other topics.
            log.failure("sends could not be refused", error, topic=topic.name)

    def _step_later(self) -> None:
        self._connections.loop.call_soon(self._connections.turn.run, self._step)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Refuse all waiting SENDs, because the broker stops."""
        self._stop_timer()
        self._close()
        while self._remaining is not None:
            self._step()

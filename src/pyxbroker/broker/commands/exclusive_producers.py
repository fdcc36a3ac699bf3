"""PRODUCER commands that ask for exclusive access to a topic, and those that wait for it.

A waiting PRODUCER is answered twice: immediately that it is not ready, and again when it gets
access. Until then, neither its topic nor its connection lists the producer, and no command is in
progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import PulsarError, ServiceNotReady
from pyxbroker.base.pacing import paced
from pyxbroker.broker.commands import replies
from pyxbroker.broker.topics.access import AccessMode, ProducerAccess

if TYPE_CHECKING:
    from pyxbroker.broker.topics.producer import Producer
    from pyxbroker.broker.topics.topic import Topic

Answer = Callable[[int, "Producer"], None]  # called for an opened producer


class WaitingProducer:
    """A producer whose client waits for access."""

    __slots__ = ("_access", "_answer", "_epoch", "_is_over", "_producer", "_request_id", "_task")

    def __init__(
        self,
        producer: Producer,
        access: ProducerAccess,
        request_id: int,
        epoch: int | None,
        answer: Answer,
    ) -> None:
        self._producer = producer
        self._access = access
        self._request_id = request_id
        self._epoch = epoch
        self._answer = answer
        self._is_over = False
        self._task: asyncio.Future[None] | None = None

    def leave(self) -> None:
        """Stop waiting, because the client has closed the producer or the connection."""
        self._end()
        self._access.leave(self._producer)

    def on_turn(self, error: PulsarError | None) -> None:
        """Open the producer, or report the error that ends the wait."""
        if self._is_over:
            return  # closed by its client meanwhile
        if error is not None:
            self._refuse(error)
            return
        queue = self._producer.connection.session.step_queue
        self._task = asyncio.ensure_future(paced(self._begin(), queue))

    async def _begin(self) -> None:
        producer = self._producer
        try:
            await self._access.begin(producer, self._epoch)
        except Exception as error:
            if not self._is_over:
                self._refuse(error)
            return
        self._is_over = True
        connection = producer.connection
        connection.session.waiting_producers.pop(producer.producer_id, None)
        connection.producers[producer.producer_id] = producer
        self._answer(self._request_id, producer)

    def _refuse(self, error: Exception) -> None:
        connection = self._producer.connection
        reported = connection.group.handlers.client_error(connection, "CommandProducer", error)
        connection.session.waiting_producers.pop(self._producer.producer_id, None)
        self._end()
        connection.send_frame(replies.error(self._request_id, reported.code, str(reported)))

    def _end(self) -> None:
        self._is_over = True
        self._producer.closed = True
        self._producer.release()


def check_not_waiting(session: Any, producer_id: int) -> None:
    """Raise ServiceNotReady for the id of a producer that waits for access."""
    if producer_id in session.waiting_producers:
        raise ServiceNotReady("Producer is already present on the connection")


async def admit_producer(topic: Topic, producer: Producer, message: Any, answer: Answer) -> bool:
    """Add a producer to its topic. Return False if it waits; it is answered later.

    Raises ProducerFenced and ProducerBusy if other producers prevent it, and the errors of
    add_producer.
    """
    mode = AccessMode(message.producer_access_mode)
    if mode is AccessMode.SHARED:
        if topic.access is not None:
            topic.access.check_shared()
        topic.add_producer(producer)
        return True
    topic.check_open()
    if topic.access is None:
        topic.access = ProducerAccess(topic)
    access = topic.access
    epoch = message.topic_epoch if message.HasField("topic_epoch") else None
    if access.claim(producer, mode, epoch):
        await access.begin(producer, epoch, fences=mode is AccessMode.EXCLUSIVE_WITH_FENCING)
        return True
    waiting = WaitingProducer(producer, access, message.request_id, epoch, answer)
    connection = producer.connection
    connection.session.waiting_producers[producer.producer_id] = waiting
    access.wait(producer, waiting.on_turn)
    connection.send_frame(
        replies.producer_success(message.request_id, producer.name, is_ready=False)
    )
    return False

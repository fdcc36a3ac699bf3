"""PRODUCER commands that ask for more than to share a topic, and those that wait for their turn.

One that waits is answered twice: at once that it is not ready, and when its turn has come. Until
then it is no producer, neither of its topic nor of its connection, and no command is under way.
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

Answer = Callable[[int, "Producer"], None]  # of a producer that is open


class WaitingProducer:
    """A producer whose client was told to wait."""

    __slots__ = ("_answer", "_epoch", "_is_over", "_producer", "_request_id", "_task")

    def __init__(
        self, producer: Producer, request_id: int, epoch: int | None, answer: Answer
    ) -> None:
        self._producer = producer
        self._request_id = request_id
        self._epoch = epoch
        self._answer = answer
        self._is_over = False
        self._task: asyncio.Future[None] | None = None

    def leave(self) -> None:
        """Its client has closed it, or is gone."""
        self._end()
        access = self._producer.topic.access
        assert access is not None
        access.leave(self._producer)

    def on_turn(self, error: PulsarError | None) -> None:
        """Its turn has come, or will never be."""
        if self._is_over:
            return  # Its client closed it before it was told.
        if error is not None:
            self._refuse(error)
            return
        line = self._producer.connection.session.line
        self._task = asyncio.ensure_future(paced(self._begin(), line))

    async def _begin(self) -> None:
        producer = self._producer
        access = producer.topic.access
        assert access is not None
        try:
            await access.begin(producer, self._epoch)
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
        told = connection.group.handlers.client_error(connection, "CommandProducer", error)
        connection.session.waiting_producers.pop(self._producer.producer_id, None)
        self._end()
        connection.send_frame(replies.error(self._request_id, told.code, str(told)))

    def _end(self) -> None:
        self._is_over = True
        self._producer.closed = True
        self._producer.release()


def check_not_waiting(session: Any, producer_id: int) -> None:
    """Raises ServiceNotReady for the id of a producer that waits for its turn."""
    if producer_id in session.waiting_producers:
        raise ServiceNotReady("Producer is already present on the connection")


async def is_admitted(producer: Producer, message: Any, answer: Answer) -> bool:
    """Lets a producer into its topic; False: it waits, and is answered when its turn comes.

    Raises ProducerFenced and ProducerBusy where others are in the way, and what add_producer does.
    """
    topic = producer.topic
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
    waiting = WaitingProducer(producer, message.request_id, epoch, answer)
    connection = producer.connection
    connection.session.waiting_producers[producer.producer_id] = waiting
    access.wait(producer, waiting.on_turn)
    connection.send_frame(
        replies.producer_success(message.request_id, producer.name, is_ready=False)
    )
    return False

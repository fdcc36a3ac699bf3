"""The position of a subscription: SEEK, the start of readers, GET_LAST_MESSAGE_ID."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyxbroker.base.errors import MetadataStoreError, UnknownError
from pyxbroker.base.pacing import StepQueue, run_incrementally
from pyxbroker.base.signed import signed
from pyxbroker.broker.commands import replies
from pyxbroker.broker.commands.session import Session, wait_for
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.connection import Connection
from pyxbroker.entry import Position
from pyxbroker.proto import PulsarApi as pb

SEEK_MAX_S = 25.0  # how long other commands wait for a seek; clients give up after 30
READER_KEPT_S = 60.0  # after a seek, until its client subscribes again


async def handle_seek(connection: Connection, message: Any) -> None:
    """SEEK: move the subscription. Its consumers are disconnected, and subscribe again.

    Clients drop their queues when they subscribe again, and send new permits. Otherwise the permits
    of the dropped messages would be lost.
    """
    subscription: Subscription = _consumer(connection, message.consumer_id).subscription
    topic = subscription.topic
    if not isinstance(topic, PersistentTopic):
        # The subscription has no position. Pulsar answers with success.
        connection.send_frame(replies.success(message.request_id))
        return
    ack_set: Sequence[int] = ()
    compacted_from: Position | None = None  # the first entry of the compacted view
    if message.HasField("message_id"):
        compacted_from = position_of(message.message_id)
        mark_delete = topic.mark_before(compacted_from)
        ack_set = tuple(message.message_id.ack_set)
    elif message.HasField("message_publish_time"):
        mark_delete, compacted_from = await at_time(
            topic, subscription, message.message_publish_time
        )
    else:
        raise MetadataStoreError("Message id and message publish time were not present")
    if subscription.closing:
        raise UnknownError("Error when resetting subscription: Failed to fence subscription")
    topic.check_open()
    try:
        with moving(subscription):
            await subscription.seek(mark_delete, ack_set, compacted_from)
    finally:
        if not subscription.is_durable:
            KeptReader(connection, subscription)
    connection.send_frame(replies.success(message.request_id))


class KeptReader:
    """The subscription of a reader that a seek has disconnected, until its client subscribes again.
    Its memory is charged to the client that asked for the seek, and it is deleted when that
    connection closes.
    """

    __slots__ = ("_cost", "_session", "_subscription", "_timer")

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        topic = subscription.topic
        if connection.closed:
            topic.drop_unused_reader(subscription)
            return
        self._session: Session = connection.session
        self._subscription = subscription
        self._cost = subscription.cost_as(subscription.kind)
        end_kept_reader(connection, subscription)  # and was disconnected again
        self._session.kept_readers[subscription] = self
        self._session.memory.take_over(self._cost)
        self._timer = topic.loop.call_later(READER_KEPT_S, self.forget)

    def end(self) -> None:
        """End the charge: its consumers pay for it again, or it is deleted."""
        self._timer.cancel()
        self._session.kept_readers.pop(self._subscription, None)
        self._session.memory.release(self._cost)

    def forget(self) -> None:
        """Delete the reader's subscription: the time is over, or the connection is closed."""
        self.end()
        self._subscription.topic.drop_unused_reader(self._subscription)


def end_kept_reader(connection: Connection, subscription: Subscription) -> None:
    """Release the kept reader of a subscription that a consumer is about to join."""
    kept: KeptReader | None = connection.session.kept_readers.get(subscription)
    if kept is not None:
        kept.end()


async def at_time(
    topic: PersistentTopic, subscription: Subscription, time_ms: int
) -> tuple[Position, Position | None]:
    """Return the position of the first message published at a time or later: the mark before it in
    the log, and its entry in the compacted view. Raises LedgerError.
    """
    mark = await topic.position_before_time(time_ms)
    if subscription.compacted is None:
        return mark, None
    return mark, await subscription.compacted.first_since(time_ms)


@contextlib.contextmanager
def moving(subscription: Subscription) -> Iterator[None]:
    """Disconnect the consumers of a subscription while it is moved; new consumers wait.

    Raises ServiceNotReady if the subscription is being moved or deleted.
    """
    # A deletion relies on it that no consumer joins any more.
    subscription.check_settled()
    done: asyncio.Future[None] = subscription.topic.loop.create_future()
    consumers = list(subscription.consumers)
    subscription.closing = True
    subscription.move = done
    try:
        subscription.disconnect()
        yield
    finally:
        subscription.closing = False
        subscription.move = None
        done.set_result(None)
        run_incrementally(_forget_move(consumers, done), subscription.topic.turn.run)


def _forget_move(consumers: list[Consumer], move: asyncio.Future[None]) -> Iterator[StepQueue]:
    while consumers:
        consumer = consumers.pop()
        session = consumer.connection.session
        # The consumer may have subscribed to another topic since, and been disconnected there.
        if session.moves.get(consumer.consumer_id) is move:
            del session.moves[consumer.consumer_id]
        yield session.step_queue


def move_of(connection: Connection, consumer_id: int) -> asyncio.Future[None] | None:
    """Return the seek that disconnected a consumer, even before the client is notified, or None."""
    consumer = connection.consumers.get(consumer_id)
    if consumer is not None and consumer.closed:
        subscription: Subscription = consumer.subscription
        return subscription.move
    move: asyncio.Future[None] | None = connection.session.moves.get(consumer_id)
    return move


async def wait_for_move(connection: Connection, move: asyncio.Future[None] | None) -> None:
    """Wait for the seek that has disconnected a consumer (Session.moves), if any."""
    if move is not None:
        await wait_for(connection, move, SEEK_MAX_S)


async def handle_get_last_message_id(connection: Connection, message: Any) -> None:
    """GET_LAST_MESSAGE_ID: return the last message, and the subscription's mark-delete position."""
    subscription: Subscription = _consumer(connection, message.consumer_id).subscription
    topic = subscription.topic
    if not isinstance(topic, PersistentTopic):
        raise UnknownError(f"Topic {topic.name} is non-persistent: it has no last message.")
    if _consumer(connection, message.consumer_id).reads_compacted:
        position, batch_index = await topic.last_compacted_message()
    else:
        position, batch_index = await topic.last_message()
    mark_delete = subscription.acks.mark_delete
    connection.send_frame(
        replies.last_message_id(
            message.request_id, position, topic.partition, batch_index, mark_delete
        )
    )


def reader_since(message: Any) -> int | None:
    """Return the first publish time for a reader, from its SUBSCRIBE, in ms since the epoch."""
    seconds = message.start_message_rollback_duration_sec
    return int((time.time() - seconds) * 1000) if seconds else None


def reader_start(message: Any) -> Position | None:
    """Return the first entry that a SUBSCRIBE of a reader names, or None if it names none."""
    named = message.HasField("start_message_id")
    return position_of(message.start_message_id) if named else None


def is_earliest(message: Any) -> bool:
    """Return True if a SUBSCRIBE asks for all stored messages."""
    return bool(message.initialPosition == pb.CommandSubscribe.Earliest)


def position_of(message_id: Any) -> Position:
    """Return the first entry to deliver for a message id; of a chunked message, the first chunk.

    The named entry is included. Only the client knows if it wants that message too, and which
    messages of the batch it has received; it drops the others.
    """
    if message_id.HasField("first_chunk_message_id"):
        message_id = message_id.first_chunk_message_id
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


def _consumer(connection: Connection, consumer_id: int) -> Any:
    consumer = connection.consumers.get(consumer_id)
    if consumer is None or consumer.closed:
        raise MetadataStoreError("Consumer not found")
    return consumer

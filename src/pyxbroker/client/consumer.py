"""Consumers and readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyxbroker.base.log import get_logger
from pyxbroker.client import requests
from pyxbroker.client.attachment import Attachment
from pyxbroker.client.connection import Connection, Handler
from pyxbroker.client.entries import EARLIEST, LATEST, Message, MessageId, ReceivedEntry
from pyxbroker.client.errors import ClientError, Closed, DamagedEntry
from pyxbroker.client.lookup import Lookup
from pyxbroker.client.pool import ConnectionPool
from pyxbroker.client.receive_queue import BatchAcks, ReceiveQueue
from pyxbroker.proto import PulsarApi as pb

log = get_logger("pyxbroker.client")


@dataclass(frozen=True)
class ConsumerSettings:
    """Options of one consumer or reader."""

    subscription: str
    type: int = pb.CommandSubscribe.Exclusive
    name: str = ""
    is_durable: bool = True
    initial_position: int = pb.CommandSubscribe.Latest
    start: MessageId = LATEST
    """The start position of a reader."""
    is_start_included: bool = False
    receive_queue_size: int = 1000
    creates_topic: bool = True
    read_compacted: bool = False
    is_replicated: bool = False
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    schema: Any = None


class Consumer(Attachment):
    """Create it by `Client.consumer` or `Client.reader`, and close it.

    A reader has a subscription without a stored cursor. After a lost connection it continues behind
    the message that was received last.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        lookup: Lookup,
        topic: str,
        number: int,
        settings: ConsumerSettings,
        partition: int = -1,
    ) -> None:
        super().__init__(pool, lookup, topic, number)
        self.is_active: bool | None = None
        """True if a Failover consumer is the active one; None before the first notification."""
        self.has_reached_end = False
        """True once a terminated topic has no more messages."""
        self._settings = settings
        self._partition = partition
        self._queue = ReceiveQueue(settings.receive_queue_size)
        self._acks = BatchAcks()
        self._arrived = asyncio.Event()
        self._seeking: asyncio.Future[None] | None = None
        self._start: MessageId | None = settings.start
        self._is_start_included = settings.is_start_included

    # --- receiving ------------------------------------------------------------------------------

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message; None: there was none in time, or the topic's end is reached.

        Raises what ended the consumer.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._queue:
            self.raise_if_ended()
            if self.has_reached_end:
                return None
            # Another task may take what arrives.
            self._arrived.clear()
            left_s = None if end is None else end - time.monotonic()
            try:
                await asyncio.wait_for(self._arrived.wait(), left_s)
            except (TimeoutError, asyncio.TimeoutError):
                return None
        self.raise_if_ended()
        message = self._queue.pop()
        permits = self._queue.permits()
        if not self._settings.is_durable:
            self._start, self._is_start_included = message.id, False
            if permits or not self._queue:
                self._acknowledge_read(message.id)
        self._grant(permits)
        return message

    def _acknowledge_read(self, id: MessageId) -> None:
        """Acknowledge all up to a message for a reader: brokers count its backlog by that, and
        report the end of a topic only to a consumer without a backlog.
        """
        if self._connection is not None and self._connection.is_open:
            command = requests.ack_command(self.number, is_cumulative=True)
            id.write(command.ack.message_id.add(), self._acks.acknowledge_up_to(id))
            self._connection.send(command)

    def _grant(self, permits: int) -> None:
        if permits and self._connection is not None and self._connection.is_open:
            self._connection.send(requests.flow_command(self.number, permits))

    # --- acknowledging --------------------------------------------------------------------------

    async def acknowledge(
        self, *ids: MessageId, is_cumulative: bool = False, waits: bool = False
    ) -> None:
        """Acknowledge messages, or all up to one. waits: until the broker has stored it.

        While the consumer is not attached nothing is sent, and the messages are redelivered.
        Raises what ended the consumer; with `waits` ConnectionFailed, BrokerRefused.
        """
        self.raise_if_ended()
        command = requests.ack_command(self.number, is_cumulative)
        for id in ids:
            of_batches = self._acks.acknowledge_up_to if is_cumulative else self._acks.acknowledge
            id.write(command.ack.message_id.add(), of_batches(id))
        connection = self._connection
        if waits:
            await requests.acknowledge(await self.attached(), command)
        elif connection is not None and connection.is_open:
            connection.send(command)

    def redeliver(self, ids: Iterable[MessageId] = ()) -> None:
        """Let the broker send unacknowledged messages again; no ids: all of them."""
        self.raise_if_ended()
        command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        redeliver = command.redeliverUnacknowledgedMessages
        redeliver.consumer_id = self.number
        for id in ids:
            id._replace(batch=-1, partition=-1).write(redeliver.message_ids.add())
        if self._connection is not None and self._connection.is_open:
            self._connection.send(command)
            if not redeliver.message_ids:
                # The broker sends the messages of the queue again, too.
                self._acks.clear()
                self._grant(self._queue.drop())

    # --- the subscription -----------------------------------------------------------------------

    async def seek(self, to: MessageId | None, time_ms: int = 0) -> None:
        """Continue at a message, or with to=None at the first one published at a time or later."""
        connection = await self.attached()
        self._seeking = asyncio.get_running_loop().create_future()
        try:
            await requests.seek(connection, self.number, to, time_ms)
            self.has_reached_end = False
            self._acks.clear()
            if not self._settings.is_durable:
                self._start, self._is_start_included = to or EARLIEST, True
            # The broker has closed the consumer before it answered, and so the queue is empty
            # when it is opened again; otherwise the broker sends from the new position.
            self._grant(self._queue.drop())
        finally:
            self._seeking.set_result(None)
            self._seeking = None

    async def _leave(self) -> None:
        """Wait for a seek: messages from before it would be taken for those behind it."""
        if self._seeking is not None:
            await asyncio.shield(self._seeking)

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; -1:-1: the topic is empty."""
        _, last = await requests.last_message_id(await self.attached(), self.number)
        return last

    async def unsubscribe(self, force: bool = False) -> None:
        """Delete the subscription, which ends the consumer."""
        command = pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE)
        command.unsubscribe.consumer_id = self.number
        command.unsubscribe.force = force
        await (await self.attached()).ask(command)
        self.end(Closed(f"the consumer of {self.topic} has unsubscribed"))

    async def close(self) -> None:
        await self._close(Closed(f"the consumer of {self.topic} was closed"))

    # --- the connection -------------------------------------------------------------------------

    async def _register(self, connection: Connection) -> None:
        settings = self._settings
        command = requests.subscribe_command(self.topic, settings.subscription, self.number)
        subscribe = command.subscribe
        subscribe.subType = settings.type
        subscribe.durable = settings.is_durable
        subscribe.initialPosition = settings.initial_position
        subscribe.force_topic_creation = settings.creates_topic
        subscribe.read_compacted = settings.read_compacted
        subscribe.replicate_subscription_state = settings.is_replicated
        subscribe.priority_level = settings.priority
        if settings.name:
            subscribe.consumer_name = settings.name
        if not settings.is_durable and self._start is not None:
            self._start._replace(partition=-1).write(subscribe.start_message_id)
        if settings.schema is not None:
            subscribe.schema.CopyFrom(settings.schema)
        for name, text in settings.properties.items():
            subscribe.metadata.add(key=name, value=text)
        for name, text in settings.subscription_properties.items():
            subscribe.subscription_properties.add(key=name, value=text)
        await connection.ask(command)

    def _on_attached(self, connection: Connection) -> None:
        self._acks.clear()
        permits = self._queue.restart()
        connection.send(requests.flow_command(self.number, permits))

    def _handlers_of(self, connection: Connection) -> dict[int, Handler]:
        return connection.consumers

    def _close_command(self) -> Any:
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self.number
        return command

    def _on_end(self, error: ClientError) -> None:
        self._arrived.set()

    def on_command(self, kind: int, body: Any, section: bytes) -> None:
        if kind == pb.BaseCommand.MESSAGE:
            self._on_message(body, section)
        elif kind == pb.BaseCommand.CLOSE_CONSUMER:
            self._moved(body)
        elif kind == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.is_active = bool(body.is_active)
        elif kind == pb.BaseCommand.REACHED_END_OF_TOPIC:
            self.has_reached_end = True
            self._arrived.set()

    def _on_message(self, body: Any, section: bytes) -> None:
        id = MessageId.read(body.message_id)._replace(partition=self._partition)
        entry = ReceivedEntry(id, body.redelivery_count, tuple(body.ack_set), section)
        permits = 1
        try:
            metadata, _ = entry.split()
            permits = max(1, metadata.num_messages_in_batch)
            found = [each for each in entry.messages() if self._is_wanted(each.id)]
            if not found and self._settings.is_durable:
                self._acknowledge_entry(body.message_id)
        except DamagedEntry as error:
            log.warning("an entry cannot be read", topic=self.topic, reason=str(error))
            # The acknowledgement has the reason, as that of official clients.
            self._acknowledge_entry(body.message_id, pb.CommandAck.BatchDeSerializeError)
            found = []
        self._acks.arrived(found)
        self._queue.add(found, permits)
        self._arrived.set()
        self._grant(self._queue.permits())

    def _is_wanted(self, id: MessageId) -> bool:
        """Return False for a message before a reader's start: brokers send the whole entry."""
        if self._settings.is_durable or self._start is None or self._start in (EARLIEST, LATEST):
            return True
        start = self._start
        if id.entry_key != start.entry_key:
            return id.entry_key > start.entry_key
        if start.batch < 0:
            return self._is_start_included
        return id.batch > start.batch or (id.batch == start.batch and self._is_start_included)

    def _acknowledge_entry(self, id: Any, reason: int | None = None) -> None:
        """Acknowledge an entry that has no message for the application."""
        if self._connection is not None and self._settings.is_durable:
            command = requests.ack_command(self.number)
            command.ack.message_id.add().CopyFrom(id)
            if reason is not None:
                command.ack.validation_error = reason
            self._connection.send(command)

"""A producer: messages of one topic in order, and again what a lost connection left unanswered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyxbroker.client.attachment import Attachment, close_at
from pyxbroker.client.connection import Connection, Handler
from pyxbroker.client.entries import (
    MessageId,
    OutgoingMessage,
    Packing,
    batch_section,
    single_section,
)
from pyxbroker.client.errors import (
    BrokerRefused,
    ClientError,
    Closed,
    MessageTooLarge,
    SendTimeout,
    code_name,
)
from pyxbroker.client.lookup import Lookup
from pyxbroker.client.pending_sends import OutOfOrder, Pending, PendingSends
from pyxbroker.client.pool import ConnectionPool
from pyxbroker.proto import PulsarApi as pb

REJECTED_CODES = ("ChecksumError", "NotAllowedError", "UnsupportedVersionError")
"""ServerErrors of a SEND_ERROR that end one message and not the producer."""
ENDING_CODES = ("TopicTerminatedError", "ProducerFenced", "IncompatibleSchema")
"""ServerErrors of a SEND_ERROR that end the producer; after all others it connects again."""
REFUSED_PAUSE_S = 0.1
"""The pause before entries are sent again that the broker refused for the moment."""
SINGLE_OVERHEAD_BYTES = 64
"""An estimate of what a batch has for each message in addition to its value, key and properties."""


@dataclass(frozen=True)
class ProducerSettings:
    """Options of one producer."""

    name: str = ""
    """Empty: the broker chooses it."""
    schema: Any = None
    """A Schema of PulsarApi."""
    properties: Mapping[str, str] = field(default_factory=dict)
    access_mode: int = pb.Shared
    codec: int = 0
    """A number of CODECS."""
    send_timeout_s: float = 30.0
    """0: none."""
    pending_entries_max: int = 1000
    pending_bytes_max: int = 64 << 20
    batch_messages_max: int = 1
    """1: no batches."""
    batch_bytes_max: int = 128 << 10
    batch_delay_s: float = 0.001


class Producer(Attachment):
    """Create it by `Client.producer`, and close it."""

    def __init__(
        self,
        pool: ConnectionPool,
        lookup: Lookup,
        topic: str,
        number: int,
        settings: ProducerSettings,
        partition: int = -1,
    ) -> None:
        super().__init__(pool, lookup, topic, number)
        self._loop = asyncio.get_running_loop()
        self.name = settings.name
        self.last_sequence_id = -1
        """The last one that the broker had stored of this name when the producer was opened."""
        self.topic_epoch: int | None = None
        self._settings = settings
        self._packing = Packing(settings.name, codec=settings.codec)
        self._pending = PendingSends(
            settings.pending_entries_max, settings.pending_bytes_max, partition
        )
        self._next_sequence_id = 0
        self._batch: list[tuple[OutgoingMessage, int, asyncio.Future[MessageId]]] = []
        self._batch_bytes = 0
        self._batch_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._has_room: asyncio.Future[None] | None = None
        self._epochs = itertools.count()
        self._left: Connection | None = None

    @property
    def is_full(self) -> bool:
        """True while `publish` waits for room in the window of pending entries."""
        return self._pending.is_full

    async def send(self, message: OutgoingMessage | bytes) -> MessageId:
        """Publish a message and return its id when it is stored. Raises ClientError."""
        return await (await self.publish(message))

    async def publish(self, message: OutgoingMessage | bytes) -> asyncio.Future[MessageId]:
        """Wait for room in the window of pending entries, then publish; the future has the id.

        Raises Closed, MessageTooLarge and what ended the producer.
        """
        await self.wait_for_room()
        return self.publish_now(message)

    def publish_now(self, message: OutgoingMessage | bytes) -> asyncio.Future[MessageId]:
        """Publish without a wait for room. The caller checks `is_full`; the event loop need not
        run. Raises Closed, MessageTooLarge and what ended the producer.
        """
        self.raise_if_ended()
        if isinstance(message, bytes):
            message = OutgoingMessage(message)
        future: asyncio.Future[MessageId] = self._loop.create_future()
        sequence_id = message.sequence_id
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        self._next_sequence_id = max(self._next_sequence_id, sequence_id + 1)
        if self._settings.batch_messages_max > 1 and not message.deliver_at_ms:
            self._add_to_batch(message, sequence_id, future)
        else:
            self._send_batch()
            section = single_section(message, sequence_id, self._packing)
            self._add(Pending(sequence_id, sequence_id, section, [future], time.monotonic()))
        return future

    async def flush(self) -> None:
        """Wait until every published message is answered. Raises the first failure."""
        self._send_batch()
        waiting = [future for pending in self._pending for future in pending.futures]
        if waiting:
            await asyncio.gather(*waiting)

    async def reopen(self) -> None:
        """Open the producer again, which updates `last_sequence_id`. Nothing may be pending."""
        assert not self._pending and not self._batch
        connection = self._connection
        self._forget()
        if connection is not None and connection.is_open:
            await close_at(connection, self._close_command())
        self._has_been_open = False
        await self.open()

    async def close(self) -> None:
        """Close the producer; messages that are not answered yet fail with Closed."""
        await self._close(Closed(f"the producer of {self.topic} was closed"))

    # --- entries --------------------------------------------------------------------------------

    def _add_to_batch(
        self, message: OutgoingMessage, sequence_id: int, future: asyncio.Future[MessageId]
    ) -> None:
        size = _size_of(message)
        limit = min(self._settings.batch_bytes_max, self._message_bytes_max)
        if self._batch and self._batch_bytes + size > limit:
            self._send_batch()
        self._batch.append((message, sequence_id, future))
        self._batch_bytes += size
        if len(self._batch) >= self._settings.batch_messages_max or self._batch_bytes >= limit:
            self._send_batch()
        elif self._batch_timer is None:
            self._batch_timer = self._loop.call_later(
                self._settings.batch_delay_s, self._send_batch
            )

    def _send_batch(self) -> None:
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        ids = [sequence_id for _, sequence_id, _ in batch]
        section = batch_section([message for message, _, _ in batch], ids, self._packing)
        futures = [future for _, _, future in batch]
        more = {"num_messages": len(batch), "highest_sequence_id": ids[-1]}
        pending = Pending(ids[0], ids[-1], section, futures, time.monotonic(), True, more)
        try:
            self._add(pending)
        except MessageTooLarge as error:
            pending.fail(error)

    def _add(self, pending: Pending) -> None:
        if len(pending.section) > self._message_bytes_max:
            raise MessageTooLarge(self.topic, len(pending.section), self._message_bytes_max)
        self._pending.add(pending)
        self._watch_time()
        if self._connection is not None and self._connection.is_open:
            self._write(self._connection, pending)

    @property
    def _message_bytes_max(self) -> int:
        if self._connection is not None:
            self._last_message_bytes_max = self._connection.message_bytes_max
        return self._last_message_bytes_max

    _last_message_bytes_max = 5 << 20

    def _write(self, connection: Connection, pending: Pending) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id = self.number
        command.send.sequence_id = pending.sequence_id
        for name, value in pending.more.items():
            setattr(command.send, name, value)
        connection.send(command, pending.section)

    async def wait_for_room(self) -> None:
        """Wait while the window is full, or the socket. Raises what ended the producer."""
        self.raise_if_ended()
        while self._pending.is_full:
            if self._has_room is None:
                self._has_room = self._loop.create_future()
            await asyncio.shield(self._has_room)
            self.raise_if_ended()
        if self._connection is not None and not self._connection.is_writable:
            await self._connection.drain()
            self.raise_if_ended()

    def _wake(self) -> None:
        if self._has_room is not None and (self.error is not None or not self._pending.is_full):
            self._has_room.set_result(None)
            self._has_room = None

    # --- the connection -------------------------------------------------------------------------

    async def _register(self, connection: Connection) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        producer = command.producer
        producer.topic = self.topic
        producer.producer_id = self.number
        if self.name:
            producer.producer_name = self.name
        producer.user_provided_producer_name = bool(self._settings.name)
        producer.epoch = next(self._epochs)
        producer.producer_access_mode = self._settings.access_mode
        if self.topic_epoch is not None:
            producer.topic_epoch = self.topic_epoch
        if self._settings.schema is not None:
            producer.schema.CopyFrom(self._settings.schema)
        for name, text in self._settings.properties.items():
            producer.metadata.add(key=name, value=text)
        answer = await connection.ask(command)
        self.name = answer.producer_name
        if answer.HasField("topic_epoch"):
            self.topic_epoch = answer.topic_epoch
        self._packing = Packing(self.name, answer.schema_version, self._settings.codec)
        if not self._has_been_open:
            self.last_sequence_id = answer.last_sequence_id
            self._next_sequence_id = answer.last_sequence_id + 1

    def _on_attached(self, connection: Connection) -> None:
        for pending in self._pending:
            self._write(connection, pending)

    def _handlers_of(self, connection: Connection) -> dict[int, Handler]:
        return connection.producers

    def _close_command(self) -> Any:
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = self.number
        return command

    async def _leave(self) -> None:
        """Close the producer whose order of entries is broken, so that no late answer is taken for
        that of an entry which is sent again.
        """
        connection, self._left = self._left, None
        if connection is not None:
            await asyncio.sleep(REFUSED_PAUSE_S)
            await close_at(connection, self._close_command())

    def on_command(self, kind: int, body: Any, section: bytes) -> None:
        if kind == pb.BaseCommand.SEND_RECEIPT:
            id = MessageId.read(body.message_id)
            try:
                self._pending.acknowledge(body.sequence_id, id.ledger, id.entry)
            except OutOfOrder:
                self._start_again()
            self._watch_time()
            self._wake()
        elif kind == pb.BaseCommand.SEND_ERROR:
            self._on_send_error(body)
        elif kind == pb.BaseCommand.CLOSE_PRODUCER:
            self._moved(body)

    def _on_send_error(self, body: Any) -> None:
        error = BrokerRefused(code_name(body.error), body.message, self.url)
        if error.code in ENDING_CODES:
            self.end(error)
        elif error.code in REJECTED_CODES:
            self._pending.reject(body.sequence_id, error)
            self._watch_time()
            self._wake()
        else:
            self._start_again()

    def _start_again(self) -> None:
        """Open the producer again, and send again all entries that are pending."""
        self._left = self._connection
        self._reopen(None)

    def _on_end(self, error: ClientError) -> None:
        for timer in (self._batch_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        for _, _, future in self._batch:
            if not future.done():
                future.set_exception(error)
                future.exception()
        self._batch.clear()
        self._pending.fail_all(error)
        self._wake()

    # --- the time-out ---------------------------------------------------------------------------

    def _watch_time(self) -> None:
        oldest, timeout_s = self._pending.oldest_sent_at, self._settings.send_timeout_s
        if self._send_timer is None and oldest is not None and timeout_s > 0:
            delay_s = max(0.0, oldest + timeout_s - time.monotonic())
            self._send_timer = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._send_timer = None
        timeout_s = self._settings.send_timeout_s
        error = SendTimeout(f"no broker acknowledged a message of {self.topic} in {timeout_s:g} s.")
        self._pending.expire(time.monotonic() - timeout_s, error)
        self._watch_time()
        self._wake()


def _size_of(message: OutgoingMessage) -> int:
    properties = sum(len(name) + len(text) + 8 for name, text in message.properties.items())
    key = len(message.key or "") + len(message.ordering_key or b"")
    return len(message.value or b"") + key + properties + SINGLE_OVERHEAD_BYTES

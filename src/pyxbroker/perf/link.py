"""One connection of the load generator."""

from __future__ import annotations

import asyncio
from typing import Any

from pyxbroker.base import compression
from pyxbroker.client import requests
from pyxbroker.client.connection import Connection
from pyxbroker.client.entries import MessageId
from pyxbroker.client.errors import ClientError, ConnectionFailed, ProtocolFault, code_name
from pyxbroker.load_generator import (
    FIXED_KEY,
    INCREMENTED_KEY,
    NO_KEY,
    RANDOM_KEY,
    LoadConnection,
    LoadConsumer,
    LoadPayload,
    LoadProducer,
    LoadStats,
    WakeTimer,
    now_ns,
)
from pyxbroker.perf.groups import OUTSTANDING_MAX, TYPES, ConsumerGroup, ProducerGroup
from pyxbroker.proto import PulsarApi as pb

WRITE_BYTES = 256 << 10
"""Frames are built in pieces of about this size."""
PAUSE_NS = 50_000
"""The minimum time between two wake-ups. Messages that are due in it are sent together."""
KEY_MODES = {
    "none": NO_KEY,
    "producer": FIXED_KEY,
    "autoIncrement": INCREMENTED_KEY,
    "random": RANDOM_KEY,
}


class Link:
    """A connection with its producers and consumers.

    A lost connection, a closed producer and a closed consumer end the run: `failed` has the error.
    """

    def __init__(self, connection: Connection, failed: asyncio.Future[ClientError]) -> None:
        self.load = LoadConnection()
        self.producers: list[LoadProducer] = []
        self._connection = connection
        self._failed = failed
        self._refusal: str | None = None
        self._consumer_count = 0
        self._is_producing = False
        self._waiting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = WakeTimer()
        self._loop.add_reader(self._timer.fd, self._on_timer)
        connection.on_bytes = self._on_bytes

    @property
    def refusal(self) -> str | None:
        """The last reason for which the broker refused a message."""
        return self._refusal

    async def add_producer(
        self,
        topic: str,
        group: ProducerGroup,
        payload: LoadPayload,
        stats: LoadStats,
        place: tuple[int, int],
    ) -> LoadProducer:
        """Create a producer. `place` is its index in the group, and the size of the group.

        Raises ClientError.
        """
        index, size = place
        number = len(self.producers)
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = number
        command.producer.producer_access_mode = group.access_mode
        if group.producer_name:
            command.producer.producer_name = f"{group.producer_name}-{index}"
            command.producer.user_provided_producer_name = True
        self._connection.producers[number] = self
        answer = await self._connection.ask(command)
        made = LoadProducer(
            number,
            answer.producer_name.encode(),
            payload,
            stats,
            group.outstanding_max or max(OUTSTANDING_MAX, 2 * payload.batch_max),
            quota=_share(group.messages, size, index),
            next_sequence_id=answer.last_sequence_id + 1,
            key_mode=KEY_MODES[group.keys],
            key=f"key-{index}".encode() if group.keys == "producer" else b"",
            key_bound=group.key_count,
            seed=index + 1,
        )
        self.load.add_producer(made)
        self.producers.append(made)
        return made

    def payload_of(self, group: ProducerGroup, payload: bytes) -> LoadPayload:
        """Return what the producers of a group send on this connection."""
        slot = len(payload) + 16
        limit = min(group.batch_bytes, self._connection.message_bytes_max - 1024)
        batch_max = max(min(group.batch_messages, limit // slot), 1)
        return LoadPayload(payload, batch_max, group.codec, compression.compress)

    async def add_consumer(
        self, topic: str, subscription: str, group: ConsumerGroup, stats: LoadStats
    ) -> None:
        """Subscribe to a topic. Raises ClientError."""
        number = self._consumer_count
        self._consumer_count += 1
        command = requests.subscribe_command(topic, subscription, number)
        subscribe = command.subscribe
        subscribe.subType = TYPES.index(group.type)
        subscribe.force_topic_creation = True
        subscribe.initialPosition = group.position
        if group.is_reader:
            subscribe.durable = False
            MessageId(*group.start).write(subscribe.start_message_id)
        self._connection.consumers[number] = self
        await self._connection.ask(command)
        self.load.add_consumer(
            LoadConsumer(number, stats, group.queue_size, acknowledges=not group.is_reader)
        )
        self._write_answers()

    def start(self) -> None:
        """Begin to send; the producers have their schedules."""
        self._is_producing = True
        self._produce()

    def flush_acks(self) -> None:
        self.load.flush_acks()
        self._write_answers()

    def close(self) -> None:
        self._is_producing = False
        self._loop.remove_reader(self._timer.fd)
        self._timer.close()
        if self._waiting is not None:
            self._waiting.cancel()
        self._connection.close()

    # --- the hot path ---------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self._timer.read()
        self._produce()

    def _produce(self) -> None:
        """Write what is due, and set the timer for what comes next."""
        if not self._is_producing or not self._connection.is_open:
            return
        while self._connection.is_writable:
            frames = self.load.produce(WRITE_BYTES)
            if not frames:
                break
            self._connection.write(frames)
        else:
            if self._waiting is None:
                self._waiting = self._loop.create_task(self._produce_again())
            return
        due = self.load.next_due_ns
        if due > 0:
            self._timer.set(max(due, now_ns() + PAUSE_NS))

    async def _produce_again(self) -> None:
        """Continue when the socket accepts further bytes."""
        await self._connection.drain()
        self._waiting = None
        self._produce()

    def _on_bytes(self) -> None:
        connection, load = self._connection, self.load
        while connection.is_open:
            try:
                connection.received.consume(load.receive(connection.received.waiting()))
            except ValueError as error:
                self._fail(ProtocolFault(connection.url, str(error)))
                return
            if not load.is_other_next:
                break
            connection.handle_frames(is_one=True)
        if connection.is_open:
            self._write_answers()
            self._produce()

    def _write_answers(self) -> None:
        answers = self.load.take_answers()
        if answers:
            self._connection.write([answers])

    # --- what is not on the hot path ------------------------------------------------------------

    def on_command(self, kind: int, body: Any, section: bytes) -> None:
        if kind == pb.BaseCommand.SEND_ERROR:
            self._refusal = f"{code_name(body.error)}: {body.message}"
            self.load.fail(body.producer_id, body.sequence_id)
        elif kind in (pb.BaseCommand.CLOSE_PRODUCER, pb.BaseCommand.CLOSE_CONSUMER):
            what = "producer" if kind == pb.BaseCommand.CLOSE_PRODUCER else "consumer"
            reason = f"the broker closed a {what}"
            if self._refusal is not None:
                reason += f" ({self._refusal})"
            self._fail(ConnectionFailed(self._connection.url, reason))

    def on_connection_lost(self, error: ClientError) -> None:
        self._fail(error)

    def _fail(self, error: ClientError) -> None:
        if not self._failed.done():
            self._failed.set_result(error)


def _share(total: int, parts: int, index: int) -> int:
    """Return how many of `total` messages a part sends; total 0: without end."""
    if total == 0:
        return (1 << 64) - 1
    return total // parts + (index < total % parts)

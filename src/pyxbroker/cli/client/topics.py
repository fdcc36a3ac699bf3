"""A topic or all partitions of one: which partition gets a message, and what consumers receive."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from pyxbroker.base import compression
from pyxbroker.base.topic_name import TopicName
from pyxbroker.cli.client.session import InputError, UsageError
from pyxbroker.client import requests
from pyxbroker.client.client import Client
from pyxbroker.client.consumer import Consumer
from pyxbroker.client.entries import Message, MessageId
from pyxbroker.client.errors import ClientError
from pyxbroker.client.producer import Producer, ProducerSettings
from pyxbroker.proto import PulsarApi as pb

CHUNKED_BYTES_MAX = 1 << 30


async def names_of(client: Client, topic: str) -> list[str]:
    """Return the partitions of a topic, or its own name. Creates a partitioned topic if the
    namespace's policy says so.
    """
    name = TopicName.get(topic)
    if name.partition_index >= 0:
        return [str(name)]
    count = await client.lookup.from_service(
        lambda connection: requests.partitions(connection, str(name), may_create=True)
    )
    return [f"{name}-partition-{index}" for index in range(count)] or [str(name)]


async def names_like(client: Client, pattern: str) -> list[str]:
    """Return the topics of a namespace that a regular expression matches, as pulsar-client's."""
    name = TopicName.get(pattern)
    try:
        wanted = re.compile(str(name))
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}.") from None
    mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
    if not name.is_persistent:
        mode = pb.CommandGetTopicsOfNamespace.NON_PERSISTENT
    found = [
        each
        for each in await client.topics(str(name.namespace), mode)
        if wanted.fullmatch(re.sub(r"-partition-\d+$", "", each)) or wanted.fullmatch(each)
    ]
    if not found:
        raise InputError(f"No topic of {name.namespace} matches {name.local_name!r}.")
    return found


class Route:
    """The producers of a topic's partitions, each opened with its first message.

    As in Pulsar's Java client, a key's hash chooses the partition; messages without a key go to the
    partitions in rotation.
    """

    def __init__(self, client: Client, names: Sequence[str], settings: ProducerSettings) -> None:
        self._client = client
        self._names = names
        self._settings = settings
        self._next = random.randrange(len(names))
        self._open: dict[str, Producer] = {}

    async def to(self, key: str | None) -> Producer:
        if key is not None:
            index = java_hash(key) % len(self._names)
        else:
            self._next = index = (self._next + 1) % len(self._names)
        name = self._names[index]
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = await self._client.producer(name, self._settings)
        return found

    async def flush(self) -> None:
        await asyncio.gather(*(each.flush() for each in self._open.values()))

    async def close(self) -> None:
        for each in self._open.values():
            await each.close()


def java_hash(text: str) -> int:
    """Return String.hashCode without its sign."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class Received(NamedTuple):
    """A message, the consumer that received it, and the ids to acknowledge."""

    consumer: Consumer
    message: Message
    ids: Sequence[MessageId]


class Receiver:
    """The messages of several consumers as they come. Chunks are put together."""

    def __init__(self, consumers: Sequence[Consumer]) -> None:
        self.consumers = consumers
        self._arrived: asyncio.Queue[Received | ClientError | None] = asyncio.Queue(1)
        self._pumps: list[asyncio.Task[None]] = []
        self._left = len(consumers)
        self._chunks: dict[tuple[Consumer, str], list[Message]] = {}

    async def receive(self) -> Received | None:
        """Return the next message; None: terminated topics have no more. Raises ClientError."""
        while True:
            found = await self._next()
            if found is None or not found.message.metadata.num_chunks_from_msg > 1:
                return found
            whole = self._joined(found)
            if whole is not None:
                return whole

    async def _next(self) -> Received | None:
        if len(self.consumers) == 1:
            return await _receive(self.consumers[0])
        if not self._pumps:
            self._pumps = [asyncio.ensure_future(self._pump(each)) for each in self.consumers]
        while self._left:
            found = await self._arrived.get()
            if isinstance(found, ClientError):
                raise found
            if found is not None:
                return found
            self._left -= 1
        return None

    async def _pump(self, consumer: Consumer) -> None:
        while True:
            try:
                found: Received | ClientError | None = await _receive(consumer)
            except ClientError as error:
                found = error
            await self._arrived.put(found)
            if not isinstance(found, Received):
                return

    def _joined(self, found: Received) -> Received | None:
        """Return the message whose last chunk has come; None: chunks are missing."""
        consumer, message, _ = found
        metadata = message.metadata
        key = consumer, metadata.uuid
        if metadata.chunk_id == 0:
            self._chunks[key] = []
        chunks = self._chunks.get(key)
        if chunks is None or metadata.chunk_id != len(chunks):
            return None  # its first chunks are not on the topic any more
        chunks.append(message)
        if len(chunks) < metadata.num_chunks_from_msg:
            return None
        del self._chunks[key]
        value = b"".join(each.value for each in chunks)
        if metadata.compression:
            if metadata.uncompressed_size > CHUNKED_BYTES_MAX:
                raise InputError(f"A message unpacks to {metadata.uncompressed_size} bytes.")
            value = compression.decompress(metadata.compression, value, metadata.uncompressed_size)
        return Received(consumer, message._replace(value=value), [each.id for each in chunks])

    async def close(self) -> None:
        for each in self._pumps:
            each.cancel()
        for consumer in self.consumers:
            await consumer.close()


async def _receive(consumer: Consumer) -> Received | None:
    message = await consumer.receive()
    return None if message is None else Received(consumer, message, (message.id,))

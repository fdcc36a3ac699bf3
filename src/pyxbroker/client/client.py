"""A client: its connections, and the producers, consumers and readers on them."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace
from types import TracebackType
from typing import Any

from pyxbroker.base.topic_name import TopicName
from pyxbroker.client import requests
from pyxbroker.client.addresses import Address
from pyxbroker.client.consumer import Consumer, ConsumerSettings
from pyxbroker.client.entries import LATEST, MessageId
from pyxbroker.client.lookup import Lookup
from pyxbroker.client.pool import ConnectionPool
from pyxbroker.client.producer import Producer, ProducerSettings
from pyxbroker.client.settings import ClientSettings
from pyxbroker.proto import PulsarApi as pb


class Client:
    """A client of one cluster, for one event loop. Use it in `async with`, or close it."""

    def __init__(self, settings: ClientSettings) -> None:
        """Create a client; it connects when needed. Raises BadSetting."""
        self.pool = ConnectionPool(settings)
        self.lookup = Lookup(self.pool)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and with them every producer and consumer."""
        self.pool.close()

    async def producer(self, topic: str, settings: ProducerSettings | None = None) -> Producer:
        """Open a producer of a topic, or of one partition. Raises ClientError."""
        name = TopicName.get(topic)
        made = Producer(
            *(self.pool, self.lookup, str(name), next(self._numbers)),
            settings or ProducerSettings(),
            name.partition_index,
        )
        await made.open()
        return made

    async def consumer(self, topic: str, settings: ConsumerSettings) -> Consumer:
        """Subscribe to a topic, or to one partition. Raises ClientError."""
        name = TopicName.get(topic)
        made = Consumer(
            *(self.pool, self.lookup, str(name), next(self._numbers)),
            settings,
            name.partition_index,
        )
        await made.open()
        return made

    async def reader(
        self,
        topic: str,
        start: MessageId = LATEST,
        settings: ConsumerSettings | None = None,
        is_start_included: bool = False,
    ) -> Consumer:
        """Open a reader that begins at a message, or behind it. Raises ClientError."""
        name = f"reader-{uuid.uuid4().hex[:16]}"
        settings = replace(
            settings or ConsumerSettings(name),
            is_durable=False,
            start=start,
            is_start_included=is_start_included,
        )
        return await self.consumer(topic, settings)

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0: none. Raises BrokerRefused."""
        return await self.lookup.from_service(lambda each: requests.partitions(each, topic))

    async def topics(
        self, namespace: str, mode: int = pb.CommandGetTopicsOfNamespace.PERSISTENT
    ) -> list[str]:
        return await self.lookup.from_service(
            lambda each: requests.topics_of(each, namespace, mode)
        )

    async def schema(self, topic: str, version: bytes = b"") -> Any:
        """Return the Schema of a topic; None: it has none."""
        return await self.lookup.from_service(lambda each: requests.schema_of(each, topic, version))

    async def owner_of(self, topic: str) -> Address:
        return await self.lookup.owner_of(topic)

"""Writing at least once, in batches, with producers without a name of ours."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyxbroker.spark.entry_producer import EntryProducer, key_text, needs_entry
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.official import (
    client_of,
    close_client,
    register_schema,
    schema_of,
    translate_errors,
)
from pyxbroker.spark.options import Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.receipts import Receipts, send_timeout_s
from pyxbroker.spark.routing import Router
from pyxbroker.spark.topics import name_of

TOPICS_MAX = 1_000
"""The limit of topics that one task writes."""


class Sender(Protocol):
    """A sender of the messages of one task. The caller closes it."""

    def send(self, message: Outgoing) -> None:
        """Send a message. Raises PulsarSparkError, also for an earlier message."""
        ...

    def finish(self) -> None:
        """Wait until all messages are acknowledged. Raises PulsarSparkError."""
        ...

    def close(self) -> None: ...


@dataclass
class Topic:
    """A topic that one producer of the client writes, with all its partitions."""

    partitions: list[str]
    router: Router
    producer: Any = None
    chosen: int = 0  # the partition of the current message

    def route(self, message: Any, partitions: int) -> int:
        """Return the chosen partition; the client calls it for each message."""
        return self.chosen


class AtLeastOnce:
    """A sender with a producer for each topic. A repeated task stores its messages again."""

    def __init__(self, options: Options, schema: tuple[str, str] | None) -> None:
        self._options = options
        self._described = schema
        self._schema = schema_of(schema)
        self._made: dict[str, Topic] = {}
        self._is_done = False
        self._client = client_of(options)
        self._receipts = Receipts(options, self._client)
        self._entries = Entries(options, schema, self._client)

    def send(self, message: Outgoing) -> None:
        if needs_entry(message):
            self._entries.send(message)
            return
        topic = self._made.get(message.topic) or self._open(message.topic)
        topic.chosen = topic.router.partition_of(key_text(message.key), len(topic.partitions))
        send(topic.producer, message, self._receipts, topic.partitions[topic.chosen])
        if self._receipts.is_full:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._entries.flush()
        self._is_done = True

    def close(self) -> None:
        self._entries.close()
        close_client(self._client, self._is_done)

    def _flush(self) -> None:
        for topic in self._made.values():
            # Not its flush(), which would block for as long as the broker is unavailable.
            topic.producer._producer.flush_async(lambda _: None)
        self._receipts.settle()

    def _open(self, name: str) -> Topic:
        check_room(self._made)
        full = str(name_of(name))
        partitions = translate_errors(
            self._options, name, lambda: self._client.get_topic_partitions(full)
        )
        topic = Topic(partitions, router_of(self._options, random.randrange(1 << 16)))
        settings = producer_settings(self._options, self._schema) | {"message_router": topic.route}
        topic.producer = translate_errors(
            self._options,
            name,
            lambda: self._client.create_producer(full, **settings),
            self._described,
        )
        register_schema(self._options, self._client, full, self._described)
        self._made[name] = topic
        return topic


class Entries:
    """EntryProducers for the messages of a task that the client cannot send."""

    def __init__(self, options: Options, schema: tuple[str, str] | None, client: Any) -> None:
        self._options = options
        self._schema = schema
        self._client = client
        self._partitions: dict[str, list[str]] = {}
        self._made: dict[str, EntryProducer] = {}
        self._router = router_of(options, 0)

    def send(self, message: Outgoing) -> None:
        """Send a message. Raises PulsarSparkError."""
        if message.topic not in self._partitions:
            check_room(self._partitions)
            name = str(name_of(message.topic))
            self._partitions[message.topic] = translate_errors(
                self._options, message.topic, lambda: self._client.get_topic_partitions(name)
            )
        names = self._partitions[message.topic]
        name = names[self._router.partition_of(key_text(message.key), len(names))]
        if name not in self._made:
            self._made[name] = EntryProducer(self._options, name, self._schema)
        self._made[name].send(message)

    def flush(self) -> None:
        """Wait until all messages are stored. Raises PulsarSparkError."""
        for each in self._made.values():
            each.flush()

    def close(self) -> None:
        for each in self._made.values():
            each.close()


def send(
    producer: Any,
    message: Outgoing,
    receipts: Receipts,
    partition: str,
    sequence_id: int | None = None,
) -> None:
    """Send a message with the client, and wait first while too many are unacknowledged.

    Raises PulsarSparkError, also for an earlier message.
    """
    producer.send_async(
        message.value,
        receipts.expect(partition, len(message.value or b"")),
        properties=message.properties,
        partition_key=message.key,
        ordering_key=message.ordering_key,
        event_timestamp=message.event_time or None,
        deliver_at=message.deliver_at or None,
        sequence_id=sequence_id,
    )


def check_room(made: Mapping[str, Any]) -> None:
    """Raise PulsarSparkError if a task would write too many topics."""
    if len(made) == TOPICS_MAX:
        raise PulsarSparkError(f"one task writes more than {TOPICS_MAX} topics.")


def router_of(options: Options, begin: int) -> Router:
    hashing = options["pulsar.producer.hashingScheme"]
    return Router(hashing, options["pulsar.producer.messageRoutingMode"], begin)


def producer_settings(options: Options, schema: Any) -> dict[str, Any]:
    """Return the arguments of the client's create_producer for the options of docs/spark.md."""
    import pulsar

    encryption = {}
    if options["pulsar.producer.encryptionKeys"] is not None:
        key = options["pulsar.producer.defaultCryptoKeyReader"]
        encryption["encryption_key"] = options["pulsar.producer.encryptionKeys"]
        encryption["crypto_key_reader"] = pulsar.CryptoKeyReader(key, "")
    is_chunked = options["pulsar.producer.chunkingEnabled"]
    # The send timeout includes the time in which a message waits for its batch.
    delay_s = min(
        options["pulsar.producer.batchingMaxPublishDelayMicros"] / 1_000_000,
        send_timeout_s(options) / 2,
    )
    return {
        "schema": schema,
        # Receipts applies both limits instead.
        "send_timeout_millis": 0,
        "max_pending_messages": 0,
        "compression_type": getattr(
            pulsar.CompressionType, options["pulsar.producer.compressionType"]
        ),
        "batching_enabled": options["pulsar.producer.batchingEnabled"] and not is_chunked,
        "batching_type": pulsar.BatchingType.KeyBased,
        "batching_max_messages": options["pulsar.producer.batchingMaxMessages"],
        "batching_max_allowed_size_in_bytes": options["pulsar.producer.batchingMaxBytes"],
        "batching_max_publish_delay_ms": max(1, round(1000 * delay_s)),
        "chunking_enabled": is_chunked,
        "properties": options["pulsar.producer.properties"],
        **encryption,
    }

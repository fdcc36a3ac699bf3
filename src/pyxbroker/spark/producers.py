"""What a task sends by: at least once, in batches, by producers of any name."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyxbroker.spark.entry_producer import EntryProducer, key_text, needs_entry
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.official import (
    MEANINGS,
    SILENCE,
    client_of,
    close_client,
    reason_of_silence,
    schema_of,
    sentence_of,
    tell_schema,
    tell_trouble,
)
from pyxbroker.spark.options import Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.routing import Router
from pyxbroker.spark.topics import name_of

PENDING_MAX = 1_000
"""Messages that a producer has sent and the broker has not acknowledged."""
PENDING_BYTES_MAX = 64 << 20
"""Of their payloads, in one task."""
TOPICS_MAX = 1_000
"""Topics that one task writes at once."""
ANSWERS_S = 5.0
"""How long an answer may be on its way from the client's thread after a flush."""


class Sender(Protocol):
    """Sends the messages of one task. Close it."""

    def send(self, message: Outgoing) -> None:
        """Raises PulsarSparkError; also for what was sent before."""
        ...

    def finish(self) -> None:
        """Waits until all is acknowledged. Raises PulsarSparkError."""
        ...

    def close(self) -> None: ...


class Receipts:
    """Counts what was sent and what was answered; the client's threads answer."""

    def __init__(self, reason_of_silence: Callable[[], str]) -> None:
        """reason_of_silence: asks why a broker did not answer in time."""
        self._reason_of_silence = reason_of_silence
        self._lock = threading.Condition()
        self._waiting = 0
        self._failed = 0
        self._reason = ""
        self._bytes = 0

    def expect(self, size: int) -> bool:
        """A message is to be sent; whether so much is under way that it is better to wait."""
        with self._lock:
            self._waiting += 1
            self._bytes += size
            return self._bytes > PENDING_BYTES_MAX

    def take(self, result: Any, _: Any) -> None:
        """An answer of the client."""
        import pulsar

        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self._bytes = 0
                self._lock.notify_all()
            if result != pulsar.Result.Ok:
                self._failed += 1
                self._reason = self._reason or sentence_of(result)

    def check(self) -> None:
        """Raises PulsarSparkError if a message was not acknowledged."""
        if not self._failed:
            return
        with self._lock:
            failed, reason = self._failed, self._reason
        if reason == MEANINGS[SILENCE]:
            reason = self._reason_of_silence()
        raise PulsarSparkError(f"{failed} messages were not acknowledged: {reason}.")

    def settle(self) -> None:
        """Waits for the last answers, after a flush. Raises PulsarSparkError."""
        with self._lock:
            if not self._lock.wait_for(lambda: not self._waiting, ANSWERS_S):
                raise PulsarSparkError(f"{self._waiting} messages were not acknowledged in time.")
        self.check()


class AtLeastOnce:
    """A producer for each topic; what a task sends again is there again."""

    def __init__(self, options: Options, schema: tuple[str, str] | None) -> None:
        self._options = options
        self._described = schema
        self._schema = schema_of(schema)
        self._made: dict[str, Any] = {}
        self._receipts = Receipts(lambda: reason_of_silence(options, list(self._made)[:1]))
        self._client = client_of(options)
        self._entries = Entries(options, schema, self._client)

    def send(self, message: Outgoing) -> None:
        if needs_entry(message):
            self._entries.send(message)
            return
        producer = self._made.get(message.topic) or self._open(message.topic)
        self._receipts.check()
        is_much = self._receipts.expect(len(message.value or b""))
        send(producer, message, self._receipts)
        if is_much:
            self.finish()

    def finish(self) -> None:
        flush(self._made, self._receipts)
        self._entries.flush()

    def close(self) -> None:
        self._entries.close()
        close_client(self._client)

    def _open(self, topic: str) -> Any:
        check_room(self._made)
        router = router_of(self._options, random.randrange(1 << 16))

        def route(message: Any, partitions: int) -> int:
            return router.partition_of(message.partition_key(), partitions)

        settings = producer_settings(self._options, self._schema) | {"message_router": route}
        name = str(name_of(topic))
        made = tell_trouble(topic, lambda: self._client.create_producer(name, **settings))
        tell_schema(self._options, self._client, name, self._described)
        self._made[topic] = made
        return made


class Entries:
    """Producers of our own for the messages of a task that the client cannot send."""

    def __init__(self, options: Options, schema: tuple[str, str] | None, client: Any) -> None:
        self._options = options
        self._schema = schema
        self._client = client
        self._partitions: dict[str, list[str]] = {}
        self._made: dict[str, EntryProducer] = {}
        self._router = router_of(options, 0)

    def send(self, message: Outgoing) -> None:
        """Raises PulsarSparkError."""
        if message.topic not in self._partitions:
            check_room(self._partitions)
            name = str(name_of(message.topic))
            self._partitions[message.topic] = tell_trouble(
                message.topic, lambda: self._client.get_topic_partitions(name)
            )
        names = self._partitions[message.topic]
        name = names[self._router.partition_of(key_text(message.key), len(names))]
        if name not in self._made:
            self._made[name] = EntryProducer(self._options, name, self._schema)
        self._made[name].send(message)

    def flush(self) -> None:
        """Raises PulsarSparkError."""
        for each in self._made.values():
            each.flush()

    def close(self) -> None:
        for each in self._made.values():
            each.close()


def send(
    producer: Any, message: Outgoing, receipts: Receipts, sequence_id: int | None = None
) -> None:
    """Gives a message to the client; waits where it has no room."""
    producer.send_async(
        message.value,
        receipts.take,
        properties=message.properties,
        partition_key=message.key,
        ordering_key=message.ordering_key,
        event_timestamp=message.event_time or None,
        deliver_at=message.deliver_at or None,
        sequence_id=sequence_id,
    )


def flush(producers: dict[str, Any], receipts: Receipts) -> None:
    """Waits until all is acknowledged. Raises PulsarSparkError."""
    try:
        for topic, producer in producers.items():
            tell_trouble(topic, producer.flush)
    except PulsarSparkError:
        receipts.check()  # that says more
        raise
    receipts.settle()


def check_room(made: Mapping[str, Any]) -> None:
    """Raises PulsarSparkError."""
    if len(made) == TOPICS_MAX:
        raise PulsarSparkError(f"one task writes more than {TOPICS_MAX} topics.")


def router_of(options: Options, begin: int) -> Router:
    hashing = options["pulsar.producer.hashingScheme"]
    return Router(hashing, options["pulsar.producer.messageRoutingMode"], begin)


def producer_settings(options: Options, schema: Any) -> dict[str, Any]:
    """What the client's create_producer is given; see docs/spark.md for the names of options."""
    import pulsar

    encryption = {}
    if options["pulsar.producer.encryptionKeys"] is not None:
        key = options["pulsar.producer.defaultCryptoKeyReader"]
        encryption["encryption_key"] = options["pulsar.producer.encryptionKeys"]
        encryption["crypto_key_reader"] = pulsar.CryptoKeyReader(key, "")
    is_chunked = options["pulsar.producer.chunkingEnabled"]
    return {
        "schema": schema,
        "send_timeout_millis": round(
            1000
            * (
                options["pulsar.producer.sendTimeoutMs"]
                or options["pulsar.client.operationTimeoutMs"]
            )
        ),
        "compression_type": getattr(
            pulsar.CompressionType, options["pulsar.producer.compressionType"]
        ),
        "block_if_queue_full": True,
        "max_pending_messages": options["pulsar.producer.maxPendingMessages"] or PENDING_MAX,
        "batching_enabled": options["pulsar.producer.batchingEnabled"] and not is_chunked,
        "batching_type": pulsar.BatchingType.KeyBased,
        "batching_max_messages": options["pulsar.producer.batchingMaxMessages"],
        "batching_max_allowed_size_in_bytes": options["pulsar.producer.batchingMaxBytes"],
        "batching_max_publish_delay_ms": max(
            1, round(options["pulsar.producer.batchingMaxPublishDelayMicros"] / 1000)
        ),
        "chunking_enabled": is_chunked,
        "properties": options["pulsar.producer.properties"],
        **encryption,
    }

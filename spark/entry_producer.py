"""A producer for messages that the official client cannot send.

These are messages whose key or ordering key is not UTF-8. Java's clients encode such a key in
base64 and set a flag; the official Python client has no way to set it. Each message is an entry of
its own with a sequence id. After a lost connection, messages without a receipt are sent again under
the same producer name, so deduplication drops those that were stored.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pyxbroker.client.client import Client
from pyxbroker.client.entries import CODECS, MessageId, OutgoingMessage
from pyxbroker.client.errors import AnswerTimeout, BrokerRefused, ClientError, MessageTooLarge
from pyxbroker.client.producer import (
    ENDING_CODES,
    REJECTED_CODES,
    Producer,
    ProducerSettings,
)
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.broker_connection import Runner, closed_on_error, error_of
from pyxbroker.spark.errors import (
    NotReachable,
    PulsarSparkError,
    Refused,
    TopicMissing,
    WrongOption,
)
from pyxbroker.spark.options import Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.plan import cluster_of, settings_of
from pyxbroker.spark.receipts import send_timeout_s
from pyxbroker.spark.records import NUMBERS
from pyxbroker.spark.topics import name_of
from pyxbroker.spark.values import AVRO, JSON

T = TypeVar("T")

UNANSWERED_MAX = 1_000
"""The limit of messages without a receipt."""
UNANSWERED_BYTES_MAX = 16 << 20
RETRY_S = 0.3
BUSY = "ProducerBusy"

_TYPES = NUMBERS | {"AVRO": AVRO, "JSON": JSON}


def needs_entry(message: Outgoing) -> bool:
    """Return True if the official client cannot send the message."""
    return isinstance(message.key, bytes) or isinstance(message.ordering_key, bytes)


def key_text(key: str | bytes | None) -> str | None:
    """Return a key as it is in a message's metadata, which also decides the partition."""
    return base64.b64encode(key).decode() if isinstance(key, bytes) else key


class EntryProducer:
    """A producer of one topic that has no partitions. The caller closes it."""

    def __init__(
        self, options: Options, topic: str, schema: tuple[str, str] | None, name: str = ""
    ) -> None:
        """Open the producer. name: if empty, the broker chooses one. Raises PulsarSparkError."""
        if options["pulsar.producer.encryptionKeys"] is not None:
            raise WrongOption(
                "a row has a key that is not UTF-8, and pulsar.producer.encryptionKeys is given:"
                " such messages cannot be encrypted. Encode the key as text."
            )
        self._topic = topic
        self._timeout_s = send_timeout_s(options)
        self._producer_settings = ProducerSettings(
            name=name,
            schema=_schema_of(schema),
            codec=CODECS[options["pulsar.producer.compressionType"].upper()],
            send_timeout_s=0,  # calls have their own timeouts: between them nothing is read
            pending_entries_max=UNANSWERED_MAX,
            pending_bytes_max=UNANSWERED_BYTES_MAX,
        )
        self._futures: set[asyncio.Future[MessageId]] = set()
        self._failure: ClientError | None = None
        self._runner = Runner()
        self._client = Client(settings_of(options).of_client(options["service.url"]))
        with closed_on_error(self):
            self._producer = self._opened(self._open)

    @property
    def last_sequence_id(self) -> int:
        """The last stored sequence id of this name, as the broker returned it on opening."""
        return self._producer.last_sequence_id

    def send(self, message: Outgoing, sequence_id: int | None = None) -> None:
        """Send a message, and wait first if too many have no receipt. Raises PulsarSparkError."""
        ordering = message.ordering_key
        sent = OutgoingMessage(
            message.value,
            key=message.key,
            ordering_key=ordering.encode() if isinstance(ordering, str) else ordering,
            properties=message.properties,
            event_time_ms=message.event_time,
            deliver_at_ms=message.deliver_at,
            sequence_id=sequence_id,
        )
        self._raise_failure()
        if self._producer.is_full:
            self._run(self._in_time(self._producer.wait_for_room()))
            self._raise_failure()
        try:
            future = self._producer.publish_now(sent)
        except ClientError as error:
            raise self._error_of(error) from error
        self._futures.add(future)
        future.add_done_callback(self._settle)

    def flush(self) -> None:
        """Wait until all messages are stored. Raises PulsarSparkError."""
        if self._futures:
            self._run(self._in_time(_wait_for_all(self._futures)))
        self._raise_failure()

    def reopen(self) -> None:
        """Open the producer again to learn the last stored sequence id. Raises PulsarSparkError."""
        self._opened(self._reopen)

    def close(self) -> None:
        """Close the connection, which ends the producer."""
        self._client.close()
        self._runner.close()

    # --- the client -----------------------------------------------------------------------------

    async def _open(self) -> Producer:
        return await self._client.producer(self._topic, self._producer_settings)

    async def _reopen(self) -> Producer:
        await self._producer.reopen()
        return self._producer

    def _opened(self, do: Callable[[], Coroutine[Any, Any, Producer]]) -> Producer:
        """Retry until the send timeout is over. Raises PulsarSparkError."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._runner.run(do(), self._topic)
            except (NotReachable, Refused) as error:
                code = error.code if isinstance(error, Refused) else ""
                may_pass = isinstance(error, NotReachable) or error.may_pass or code == BUSY
                if not may_pass or time.monotonic() > deadline:
                    raise PulsarSparkError(f"{self._topic} cannot be written: {error}") from error
                time.sleep(RETRY_S)

    async def _in_time(self, waiting: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wait_for(waiting, self._timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise self._producer.last_failure or AnswerTimeout(self._producer.url) from None

    def _run(self, request: Coroutine[Any, Any, T]) -> T:
        """Run a request to its end. Raises PulsarSparkError."""
        try:
            return self._runner.complete(request)
        except ClientError as error:
            raise self._error_of(error) from error

    def _settle(self, future: asyncio.Future[MessageId]) -> None:
        self._futures.discard(future)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, ClientError) and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        """Raise PulsarSparkError if a message was not stored."""
        if self._failure is not None:
            raise self._error_of(self._failure)

    def _error_of(self, error: ClientError) -> PulsarSparkError:
        if isinstance(error, MessageTooLarge):
            return PulsarSparkError(
                f"a message with a key that is not UTF-8 has {error.size} bytes, and the broker"
                f" accepts {error.limit}: such messages cannot be sent in chunks."
            )
        if isinstance(error, BrokerRefused) and error.code in (*REJECTED_CODES, *ENDING_CODES):
            return PulsarSparkError(f"a message was not acknowledged: {error.message}")
        reason = error_of(error, self._topic)
        return PulsarSparkError(f"{self._topic} cannot be written: {reason}")


async def _wait_for_all(futures: set[asyncio.Future[MessageId]]) -> None:
    """Wait for all futures. `_settle` handles their errors."""
    await asyncio.gather(*futures, return_exceptions=True)


def refusal_of(options: Options, topic: str, schema: tuple[str, str] | None) -> str:
    """Return the broker's message if it refuses a producer; empty if it accepts one.

    The official client reports only the name of an error.
    """
    name = name_of(topic)
    runner = Runner()
    client = Client(settings_of(options).of_client(options["service.url"]))
    settings = ProducerSettings(schema=_schema_of(schema), send_timeout_s=0)
    try:
        with cluster_of(options) as cluster:
            if not name.is_partitioned and cluster.any_broker().partitions(str(name)):
                name = name.partition(0)
        runner.run(client.producer(str(name), settings), str(name))
    except PulsarSparkError as error:
        return error.words if isinstance(error, Refused | TopicMissing) else ""
    finally:
        client.close()
        runner.close()
    return ""


def _schema_of(described: tuple[str, str] | None) -> Any:
    if described is None:
        return None
    kind, definition = described
    return pb.Schema(name=kind, type=_TYPES[kind], schema_data=definition.encode())

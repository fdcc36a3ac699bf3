"""Sends messages by a connection of our own: those that the official client has no place for.

These are messages whose key, or ordering key, is no text in UTF-8. Java's clients put such a key
into the metadata in base64, and say so beside it; the official Python client cannot say it. Each
message is an entry of its own here, with a sequence id; what is not answered when a connection ends
is sent again by the next one, under the same name, so that deduplication drops what was stored.
"""

from __future__ import annotations

import base64
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from pyxbroker import _native
from pyxbroker.base import compression
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.broker_connection import BrokerConnection, Cluster, closed_on_error
from pyxbroker.spark.errors import (
    NotReachable,
    PulsarSparkError,
    Refused,
    TopicMissing,
    WrongOption,
)
from pyxbroker.spark.options import Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.plan import cluster_of
from pyxbroker.spark.receipts import send_timeout_s
from pyxbroker.spark.records import NUMBERS
from pyxbroker.spark.topics import name_of
from pyxbroker.spark.values import AVRO, JSON

T = TypeVar("T")

UNANSWERED_MAX = 1_000
"""Messages under way."""
UNANSWERED_BYTES_MAX = 16 << 20
RETRY_S = 0.3
BUSY = "ProducerBusy"

_PRODUCER = 1
_CODECS = {"NONE": 0, "LZ4": 1, "ZLib": 2, "ZSTD": 3, "SNAPPY": 4}
_TYPES = NUMBERS | {"AVRO": AVRO, "JSON": JSON}
_MAGIC = b"\x0e\x01"


def needs_entry(message: Outgoing) -> bool:
    """Whether the official client cannot send it."""
    return isinstance(message.key, bytes) or isinstance(message.ordering_key, bytes)


def key_text(key: str | bytes | None) -> str | None:
    """As it stands in a message's metadata, and as Java's client chooses a partition by it."""
    return base64.b64encode(key).decode() if isinstance(key, bytes) else key


class EntryProducer:
    """A producer of one topic, a partition by itself. Close it."""

    def __init__(
        self, options: Options, topic: str, schema: tuple[str, str] | None, name: str = ""
    ) -> None:
        """name: empty lets the broker choose. Raises PulsarSparkError."""
        if options["pulsar.producer.encryptionKeys"] is not None:
            raise WrongOption(
                "a row has a key that is no UTF-8, and pulsar.producer.encryptionKeys is given:"
                " such messages cannot be encrypted here. Encode the key as text."
            )
        self._options = options
        self._topic = topic
        self._schema = schema
        self._name = name
        self._is_named = bool(name)
        self._codec = _CODECS[options["pulsar.producer.compressionType"]]
        self._timeout_s = send_timeout_s(options)
        self._schema_version = b""
        self._unanswered: deque[tuple[int, bytes]] = deque()
        self._unanswered_bytes = 0
        self._next = 0
        self._cluster: Cluster = cluster_of(options)
        self._connection: _Connection | None = None
        self.last_sequence_id = -1
        """That is stored of this name, as the broker said when it was opened."""
        with closed_on_error(self):
            self._patiently(lambda _: None)

    def send(self, message: Outgoing, sequence_id: int | None = None) -> None:
        """Waits where too much is under way. Raises PulsarSparkError."""
        number = self._next if sequence_id is None else sequence_id
        self._next = number + 1
        section = self._section(message, number)
        self._patiently(lambda connection: connection.send_entry(number, section))
        self._unanswered.append((number, section))
        self._unanswered_bytes += len(section)
        if len(self._unanswered) > UNANSWERED_MAX or self._unanswered_bytes > UNANSWERED_BYTES_MAX:
            self._settle(len(self._unanswered) // 2)

    def flush(self) -> None:
        """Waits until all is stored. Raises PulsarSparkError."""
        self._settle(0)

    def reopen(self) -> None:
        """Asks the broker anew what is stored, when all was answered. Raises PulsarSparkError."""
        self._drop()
        self._patiently(lambda _: None)

    def close(self) -> None:
        self._drop()
        self._cluster.close()

    def _settle(self, left: int) -> None:
        while len(self._unanswered) > left:
            number = self._patiently(lambda connection: connection.receipt(self._timeout_s))
            while self._unanswered and self._unanswered[0][0] <= number:
                self._unanswered_bytes -= len(self._unanswered.popleft()[1])

    # --- the connection -------------------------------------------------------------------------

    def _patiently(self, do: Callable[[_Connection], T]) -> T:
        """Does it by a connection, and by another one where that ends, for as long as a message may
        take. Raises PulsarSparkError.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return do(self._connection or self._open())
            except (NotReachable, Refused) as error:
                self._drop()
                may_pass = isinstance(error, NotReachable) or error.may_pass or error.code == BUSY
                if not may_pass or time.monotonic() > deadline:
                    raise PulsarSparkError(f"{self._topic} cannot be written: {error}") from error
                self._cluster.close()
                time.sleep(RETRY_S)

    def _open(self) -> _Connection:
        found = self._cluster.connect(self._topic, _Connection)
        with closed_on_error(found):
            answer = found.open_producer(
                self._topic, self._name, self._is_named, _schema_of(self._schema)
            )
            for number, section in self._unanswered:
                found.send_entry(number, section)
        self._name = answer.producer_name
        self._schema_version = answer.schema_version
        self.last_sequence_id = answer.last_sequence_id
        self._connection = found
        return found

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- entries --------------------------------------------------------------------------------

    def _section(self, message: Outgoing, number: int) -> bytes:
        """A message as an entry, from its checksum on."""
        payload = message.value or b""
        head = pb.MessageMetadata(
            producer_name=self._name, sequence_id=number, publish_time=time.time_ns() // 1_000_000
        )
        if message.value is None:
            head.null_value = True
        if message.key is not None:
            head.partition_key = key_text(message.key)
            head.partition_key_b64_encoded = isinstance(message.key, bytes)
        if message.ordering_key is not None:
            ordering = message.ordering_key
            head.ordering_key = ordering if isinstance(ordering, bytes) else ordering.encode()
        for name, text in message.properties.items():
            head.properties.add(key=name, value=text)
        if message.event_time:
            head.event_time = message.event_time
        if message.deliver_at:
            head.deliver_at_time = message.deliver_at
        if self._schema_version:
            head.schema_version = self._schema_version
        if self._codec and payload:
            head.compression, head.uncompressed_size = self._codec, len(payload)
            payload = compression.compress(self._codec, payload)
        encoded = head.SerializeToString()
        checked = len(encoded).to_bytes(4, "big") + encoded + payload
        return _MAGIC + _native.crc32c(checked).to_bytes(4, "big") + checked


class _Connection(BrokerConnection):
    """A connection whose only producer it is."""

    def open_producer(self, topic: str, name: str, is_named: bool, schema: Any) -> Any:
        """The CommandProducerSuccess. Raises NotReachable, Refused."""
        ask = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        ask.producer.topic = topic
        ask.producer.producer_id = _PRODUCER
        if name:
            ask.producer.producer_name = name
        ask.producer.user_provided_producer_name = is_named
        if schema is not None:
            ask.producer.schema.CopyFrom(schema)
        return self._ask(ask, ask.producer, topic).producer_success

    def send_entry(self, number: int, section: bytes) -> None:
        """Raises NotReachable, PulsarSparkError."""
        if len(section) > self.message_bytes_max:
            raise PulsarSparkError(
                f"a message with a key that is no UTF-8 has {len(section)} bytes, and the broker"
                f" takes {self.message_bytes_max}: such messages cannot be sent in parts."
            )
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id = _PRODUCER
        command.send.sequence_id = number
        self._send(command, section)

    def receipt(self, timeout_s: float) -> int:
        """The next sequence id that is stored. Raises NotReachable, PulsarSparkError."""
        answer, _ = self._receive(time.monotonic() + timeout_s)
        if answer.type == pb.BaseCommand.SEND_RECEIPT:
            return int(answer.send_receipt.sequence_id)
        if answer.type == pb.BaseCommand.SEND_ERROR:
            raise PulsarSparkError(f"a message was not acknowledged: {answer.send_error.message}")
        raise NotReachable(f"the broker at {self.url} gave the topic away.")


def refusal_of(options: Options, topic: str, schema: tuple[str, str] | None) -> str:
    """Return why the broker refuses a producer, in the broker's words; empty: it does not.

    The official client tells the name of an error only.
    """
    name = name_of(topic)
    try:
        with cluster_of(options) as cluster:
            if not name.is_partitioned and cluster.any_broker().partitions(str(name)):
                name = name.partition(0)
            connection = cluster.connect(str(name), _Connection)
            with closing(connection):
                connection.open_producer(str(name), "", False, _schema_of(schema))
    except PulsarSparkError as error:
        return error.words if isinstance(error, Refused | TopicMissing) else ""
    return ""


def _schema_of(described: tuple[str, str] | None) -> Any:
    if described is None:
        return None
    kind, definition = described
    return pb.Schema(name=kind, type=_TYPES[kind], schema_data=definition.encode())

"""Apache Pulsar's Go client with the names of the official Python client.

``Client``, ``Producer``, ``Consumer``, ``Reader``, ``Message`` and ``MessageId`` have the methods
and the options of ``pulsar.Client`` and the others, so one test body runs with both clients.
Enumerations and policies are those of ``pulsar``; errors are its exceptions, named after the
broker's ServerError, with the Go client's text.  An option that the Go client does not have is a
``TypeError``: nothing is passed over in silence.  The Go client has no ack timeout, no initial
sequence id, no access mode ExclusiveWithFencing and no redelivery of everything at once.  Where it
behaves otherwise:

- A message outside of a batch has batch index 0, not -1, and a plain topic is partition 0.
- A consumer of several topics cannot seek.
- It takes up to 10 messages more than ``receiver_queue_size`` from the broker.
- An ACTIVE_CONSUMER_CHANGE that comes before the answer to SUBSCRIBE is lost.
- An empty message outside of a batch and without properties is dropped as a broken one.
- A reader that starts at a chunked message starts at its last chunk.
- ``has_message_available`` tells of the place before a seek until the reader has reconnected.
- Acknowledgements are sent within 100 ms, so what follows them at once may overtake them
  (``ack_with_response=True`` waits).

What only the Go client has is here under names in the same manner:

===================  =============================================================================
``Client``           ``keep_alive_interval_ms``, ``connections_per_broker``,
                     ``memory_limit_bytes``, ``enable_transaction`` with ``new_transaction()``;
                     ``kill()`` ends it as a crash would
``create_producer``  ``chunk_max_message_size``, ``hashing_scheme`` (``"JavaStringHash"``,
                     ``"Murmur3_32Hash"``), ``partitions_update_interval_ms``, ``schema`` (a
                     dictionary of type, definition, properties)
``subscribe``        ``schema``, ``ack_with_response``, ``ack_group_ms``, ``nack_precision_bits``,
                     ``subscription_properties``, ``subscription_mode`` (``"Durable"``,
                     ``"NonDurable"``), ``retry_enable``, ``retry_letter_topic`` (with a
                     ``dead_letter_policy``), ``expire_time_of_incomplete_chunked_message_ms``,
                     ``active_listener(topic, partition, active)`` for ACTIVE_CONSUMER_CHANGE
``Producer``         ``transaction`` in ``send`` and ``send_async``
``Consumer``         ``acknowledge_within(transaction, message)``, ``acknowledge_list(ids)``,
                     ``get_last_message_ids()``, ``reconsume_later``,
                     ``unsubscribe(force=True)``
``create_reader``    ``subscription_name``, ``properties``, ``max_pending_chunked_message``
``Reader``           ``get_last_message_id()``
===================  =============================================================================

Each client is a process of its own (``harness/goclient``).  ``GOCLIENT_LOG=1`` makes it tell
all it does on standard error.
"""

from __future__ import annotations

import base64
import enum
import itertools
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import _pulsar
import pulsar

from harness.go_build import program
from harness.line_program import Kept, Program

# Longer than any operation of a test may take; an answer that does not come is an error then.
_LIMIT_S = 120.0
# Names of ServerError whose exception in the official clients has another name.
_SERVER_ERRORS = {
    "MetadataError": "BrokerMetadataError",
    "PersistenceError": "BrokerPersistenceError",
    "ServiceNotReady": "ServiceUnitNotReady",
    "TooManyRequests": "TooManyLookupRequestException",
    "TopicTerminatedError": "TopicTerminated",
    "TransactionCoordinatorNotFound": "TransactionCoordinatorNotFoundError",
    "InvalidTxnStatus": "InvalidTxnStatusError",
}


def exception(result: str, text: str) -> Exception:
    """The exception of ``pulsar`` for a result or a ServerError, its name in ``server_error``."""
    if result == "BadArguments":
        return TypeError(text)
    kind = getattr(pulsar, _SERVER_ERRORS.get(result, result), pulsar.UnknownError)
    error = kind(text)
    error.server_error = result
    return error


def _plain(value: Any) -> Any:
    """An option as it goes into JSON: enumerations by name."""
    is_enumeration = isinstance(value, enum.Enum) or hasattr(type(value), "__members__")
    return value.name if is_enumeration else value


def _options(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    merged = defaults | {name: value for name, value in given.items() if value is not None}
    return {name: _plain(value) for name, value in merged.items()}


class MessageId(pulsar.MessageId):
    """An id of the Go client.  It may be passed to the Python client, too, and be compared."""

    def __init__(self, program: Program, answer: dict[str, Any]) -> None:
        self._msg_id = _pulsar.MessageId.deserialize(base64.b64decode(answer["bytes"]))
        self._bytes = base64.b64decode(answer["bytes"])
        self._size: int = answer["batch_size"]
        self._topic: str = answer["topic"]
        self.kept = Kept(program, answer["kept"])

    def serialize(self) -> bytes:
        """The bytes that every client reads, as the Go client wrote them."""
        return self._bytes

    def batch_size(self) -> int:
        """The messages in the batch, or 0."""
        return self._size

    def topic_name(self) -> str:
        """The topic, for ids of ``get_last_message_ids``; else empty."""
        return self._topic

    def __repr__(self) -> str:
        return f"MessageId{self._msg_id}"

    def __hash__(self) -> int:
        return hash((self.ledger_id(), self.entry_id(), self.batch_index(), self.partition()))

    def __eq__(self, other: object) -> bool:
        return self._msg_id == getattr(other, "_msg_id", other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return self._msg_id < getattr(other, "_msg_id", other)

    def __le__(self, other: Any) -> bool:
        return self._msg_id <= getattr(other, "_msg_id", other)

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        return not self < other


def _name_of(program: Program, one: Any) -> dict[str, Any]:
    """How an id or a message of either client is named in a request."""
    if isinstance(one, (Message, pulsar.Message)):
        one = one.message_id()
    if isinstance(one, MessageId) and one.kept.program is program:
        return {"kept": one.kept.number}
    for end in ("earliest", "latest"):
        if getattr(one, "_msg_id", one) == getattr(pulsar.MessageId, end):
            return {"end": end}
    return {"bytes": base64.b64encode(one.serialize()).decode()}


class Message:
    """A received message, see ``pulsar.Message``."""

    def __init__(self, program: Program, answer: dict[str, Any]) -> None:
        self._answer = answer
        self._data = base64.b64decode(answer["data"] or "")
        self._id = MessageId(program, answer["id"])

    def data(self) -> bytes:
        return self._data

    def value(self) -> bytes:
        return self._data

    def message_id(self) -> MessageId:
        return self._id

    def properties(self) -> dict[str, str]:
        return self._answer["properties"] or {}

    def partition_key(self) -> str:
        return self._answer["key"]

    def ordering_key(self) -> str:
        return self._answer["ordering_key"]

    def publish_timestamp(self) -> int:
        return self._answer["publish_ms"]

    def event_timestamp(self) -> int:
        return self._answer["event_ms"]

    def redelivery_count(self) -> int:
        return self._answer["redelivery_count"]

    def topic_name(self) -> str:
        return self._answer["topic"]

    def producer_name(self) -> str:
        return self._answer["producer_name"]


class Producer:
    """See ``pulsar.Producer``."""

    def __init__(self, program: Program, handle: int, answer: dict[str, Any]) -> None:
        self._program, self._handle, self._answer = program, handle, answer
        self._sending = 0
        self._changed = threading.Condition()

    def topic(self) -> str:
        return self._answer["topic"]

    def producer_name(self) -> str:
        return self._answer["producer_name"]

    def last_sequence_id(self) -> int:
        return self._program.ask("last_sequence_id", self._handle, {}, _LIMIT_S)

    def send(self, content: bytes | None, **options: Any) -> MessageId:
        arguments = self._message(content, options)
        return MessageId(
            self._program, self._program.ask("send", self._handle, arguments, _LIMIT_S)
        )

    def send_async(
        self, content: bytes | None, callback: Callable[[Any, Any], object] | None, **options: Any
    ) -> None:
        """The callback runs in the thread that reads answers, so it must not ask for any."""

        def done(answer: Any, error: Exception | None) -> None:
            try:
                if callback is None:
                    return
                if error is None:
                    callback(pulsar.Result.Ok, MessageId(self._program, answer))
                else:
                    callback(getattr(pulsar.Result, type(error).__name__), None)
            finally:
                with self._changed:
                    self._sending -= 1
                    self._changed.notify_all()

        with self._changed:
            self._sending += 1
        self._program.start("send_async", self._handle, self._message(content, options), done)

    def flush(self) -> None:
        self._program.ask("flush", self._handle, {}, _LIMIT_S)
        with self._changed:
            if not self._changed.wait_for(lambda: self._sending == 0, _LIMIT_S):
                raise AssertionError(f"{self._sending} sends were not answered after a flush")

    def close(self) -> None:
        self._program.ask("close_producer", self._handle, {}, _LIMIT_S)

    @staticmethod
    def _message(content: bytes | None, options: dict[str, Any]) -> dict[str, Any]:
        after: timedelta | None = options.pop("deliver_after", None)
        transaction: Transaction | None = options.pop("transaction", None)
        arguments = _options({}, options)
        if transaction is not None:
            arguments["transaction"] = transaction.handle
        if content is not None:
            arguments["content"] = base64.b64encode(content).decode()
        if after is not None:
            arguments["deliver_after_ms"] = round(after.total_seconds() * 1000)
        return arguments


class Consumer:
    """See ``pulsar.Consumer``."""

    def __init__(self, program: Program, handle: int, topic: Any, subscription: str) -> None:
        self._program, self._handle = program, handle
        self._topic, self._subscription = topic, subscription
        self._name = ""

    def topic(self) -> str:
        return self._topic

    def subscription_name(self) -> str:
        return self._subscription

    def consumer_name(self) -> str:
        return self._name

    def receive(self, timeout_millis: int | None = None) -> Message:
        return Message(self._program, self._wait("receive", timeout_millis))

    def _wait(self, op: str, timeout_millis: int | None) -> Any:
        if timeout_millis is None:
            return self._program.ask(op, self._handle, {}, None)
        limit_s = timeout_millis / 1000 + _LIMIT_S
        return self._program.ask(op, self._handle, {"timeout_millis": timeout_millis}, limit_s)

    def _about(self, op: str, one: Any) -> Any:
        return self._program.ask(op, self._handle, _name_of(self._program, one), _LIMIT_S)

    def acknowledge(self, message: Any) -> None:
        self._about("ack", message)

    def acknowledge_cumulative(self, message: Any) -> None:
        self._about("ack_cumulative", message)

    def acknowledge_list(self, messages: list[Any]) -> None:
        names = [_name_of(self._program, one) for one in messages]
        self._program.ask("ack_list", self._handle, names, _LIMIT_S)

    def acknowledge_within(self, transaction: Transaction, message: Any) -> None:
        """Acknowledge in a transaction; return when the broker has answered."""
        arguments = {
            "message": _name_of(self._program, message),
            "transaction": transaction.handle,
        }
        self._program.ask("ack_within", self._handle, arguments, _LIMIT_S)

    def negative_acknowledge(self, message: Any) -> None:
        self._about("nack", message)

    def reconsume_later(
        self, message: Message, delay_ms: int, properties: dict[str, str] | None = None
    ) -> None:
        arguments = {
            "message": _name_of(self._program, message),
            "delay_ms": delay_ms,
            "properties": properties or {},
        }
        self._program.ask("reconsume_later", self._handle, arguments, _LIMIT_S)

    def seek(self, messageid: Any) -> None:
        """To an id of either client, or to a publish time in milliseconds."""
        self._program.ask("seek", self._handle, _seek_arguments(self._program, messageid), _LIMIT_S)

    def get_last_message_id(self) -> MessageId:
        (one,) = self.get_last_message_ids()
        return one

    def get_last_message_ids(self) -> list[MessageId]:
        answers = self._program.ask("last_ids", self._handle, {}, _LIMIT_S)
        return [MessageId(self._program, answer) for answer in answers]

    def unsubscribe(self, force: bool = False) -> None:
        self._program.ask("unsubscribe", self._handle, {"force": force}, _LIMIT_S)

    def close(self) -> None:
        self._program.ask("close_consumer", self._handle, {}, _LIMIT_S)


def _seek_arguments(program: Program, place: Any) -> dict[str, Any]:
    return {"time_ms": place} if isinstance(place, int) else {"id": _name_of(program, place)}


class Reader:
    """See ``pulsar.Reader``."""

    def __init__(self, program: Program, handle: int, topic: str) -> None:
        self._program, self._handle, self._topic = program, handle, topic

    def topic(self) -> str:
        return self._topic

    def read_next(self, timeout_millis: int | None = None) -> Message:
        arguments = {} if timeout_millis is None else {"timeout_millis": timeout_millis}
        limit_s = None if timeout_millis is None else timeout_millis / 1000 + _LIMIT_S
        return Message(
            self._program, self._program.ask("read_next", self._handle, arguments, limit_s)
        )

    def has_message_available(self) -> bool:
        return self._program.ask("has_next", self._handle, {}, _LIMIT_S)

    def get_last_message_id(self) -> MessageId:
        answer = self._program.ask("reader_last_id", self._handle, {}, _LIMIT_S)
        return MessageId(self._program, answer)

    def seek(self, messageid: Any) -> None:
        arguments = _seek_arguments(self._program, messageid)
        self._program.ask("reader_seek", self._handle, arguments, _LIMIT_S)

    def close(self) -> None:
        self._program.ask("close_reader", self._handle, {}, _LIMIT_S)


class Transaction:
    """See the Go client's ``Transaction``; ``id`` has the most and the least significant bits."""

    def __init__(self, program: Program, handle: int, id: tuple[int, int]) -> None:
        self._program, self.handle, self.id = program, handle, id

    def commit(self) -> None:
        self._program.ask("commit", self.handle, {}, _LIMIT_S)

    def abort(self) -> None:
        self._program.ask("abort", self.handle, {}, _LIMIT_S)

    def state(self) -> str:
        """Return the state that the client knows: TxnOpen, TxnCommitted, TxnTimeout..."""
        return self._program.ask("state", self.handle, {}, _LIMIT_S)


class Client:
    """See ``pulsar.Client``; the defaults of options are those of the Python client."""

    def __init__(self, service_url: str, **options: Any) -> None:
        self._program = Program("the Go client", [str(program())], exception)
        self._handles = itertools.count(1)
        self._handle = next(self._handles)
        # The Go client would hold back producers at 64 MiB; the Python client has no such limit.
        defaults = {"operation_timeout_seconds": 30, "memory_limit_bytes": -1}
        arguments = _options(defaults | {"service_url": service_url}, options)
        try:
            self._program.ask("new_client", 0, arguments, _LIMIT_S, make=self._handle)
        except BaseException:
            self._program.kill()
            raise

    def _make(self, op: str, arguments: dict[str, Any], handle: int) -> Any:
        return self._program.ask(op, self._handle, arguments, _LIMIT_S, make=handle)

    def create_producer(self, topic: str, **options: Any) -> Producer:
        defaults = {
            "topic": topic,
            "max_pending_messages": 1000,
            "batching_enabled": False,
            "batching_max_messages": 1000,
            "batching_max_allowed_size_in_bytes": 128 * 1024,
            "batching_max_publish_delay_ms": 10,
            "send_timeout_millis": 30_000,
        }
        arguments = _options(defaults, options)
        if arguments["send_timeout_millis"] == 0:
            arguments["send_timeout_millis"] = -1
        handle = next(self._handles)
        return Producer(self._program, handle, self._make("create_producer", arguments, handle))

    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: Any = pulsar.ConsumerType.Exclusive,
        message_listener: Callable[[Consumer, Message], object] | None = None,
        active_listener: Callable[[str, int, bool], object] | None = None,
        **options: Any,
    ) -> Consumer:
        defaults = {
            "subscription_name": subscription_name,
            "consumer_type": consumer_type,
            "receiver_queue_size": 1000,
            "negative_ack_redelivery_delay_ms": 60_000,
            "max_pending_chunked_message": 10,
            "pattern_auto_discovery_period": 60,
        }
        arguments = _options(defaults | _topics(topic), _policies(options))
        handle = next(self._handles)
        made = Consumer(self._program, handle, topic, subscription_name)
        if active_listener is not None:
            arguments["listen_for_active"] = True
            self._program.listen(
                handle, lambda e: active_listener(e["topic"], e["partition"], e["active"])
            )
        made._name = self._make("subscribe", arguments, handle)["consumer_name"]
        if message_listener is not None:
            _feed(made, message_listener)
        return made

    def create_reader(self, topic: str, start_message_id: Any, **options: Any) -> Reader:
        defaults = {"topic": topic, "receiver_queue_size": 1000}
        arguments = _options(defaults, options)
        arguments["start_message_id"] = _name_of(self._program, start_message_id)
        handle = next(self._handles)
        self._make("create_reader", arguments, handle)
        return Reader(self._program, handle, topic)

    def new_transaction(self, timeout_ms: int = 60_000) -> Transaction:
        """Start a transaction; the client needs ``enable_transaction``."""
        handle = next(self._handles)
        id = self._make("new_transaction", {"timeout_ms": timeout_ms}, handle)
        return Transaction(self._program, handle, (id["most"], id["least"]))

    def get_topic_partitions(self, topic: str) -> list[str]:
        return self._program.ask("partitions", self._handle, {"topic": topic}, _LIMIT_S)

    def kept_count(self) -> int:
        """The messages and ids that the process keeps because somebody here may name them."""
        return self._program.ask("kept_count", self._handle, {}, _LIMIT_S)

    def close(self) -> None:
        """Close all that was made here, then end the process.

        Raises ``pulsar.AlreadyClosed`` when that was done before.
        """
        if self._program.ended:
            raise pulsar.AlreadyClosed("the client is closed")
        try:
            self._program.ask("close_client", self._handle, {}, _LIMIT_S)
        finally:
            self._program.end()

    def shutdown(self) -> None:
        """End without waiting for anything."""
        self._program.kill()

    def kill(self) -> None:
        """SIGKILL to the client's process: what a crash looks like to the broker."""
        self._program.kill()


def _topics(topic: str | list[str] | re.Pattern[str]) -> dict[str, Any]:
    if isinstance(topic, re.Pattern):
        return {"topics_pattern": topic.pattern}
    return {"topics": topic} if isinstance(topic, list) else {"topic": topic}


def _policies(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the policy objects of ``pulsar`` taken apart."""
    plain = dict(options)
    letters: dict[str, Any] = {}
    policy = plain.pop("dead_letter_policy", None)
    if policy is not None:
        letters["max_redeliver_count"] = policy.max_redeliver_count
        letters["dead_letter_topic"] = policy.dead_letter_topic
        letters["initial_subscription_name"] = policy.initial_subscription_name
    if "retry_letter_topic" in plain:
        letters["retry_letter_topic"] = plain.pop("retry_letter_topic")
    if letters:
        plain["dead_letter_policy"] = letters
    sharing = plain.pop("key_shared_policy", None)
    if sharing is not None:
        plain["key_shared_policy"] = {
            "key_shared_mode": sharing.key_shared_mode.name,
            "allow_out_of_order_delivery": sharing.allow_out_of_order_delivery,
            "sticky_ranges": [edge for pair in sharing.sticky_ranges for edge in pair],
        }
    return plain


def _feed(consumer: Consumer, listener: Callable[[Consumer, Message], object]) -> None:
    """Hand each message to a listener, until the consumer is closed."""

    def feed() -> None:
        while True:
            try:
                message = consumer.receive()
            except (pulsar.AlreadyClosed, pulsar.ConnectError):
                return
            listener(consumer, message)

    threading.Thread(target=feed, name="go-listener", daemon=True).start()

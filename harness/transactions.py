"""One interface for the transactions of Pulsar's Java client and of its Go client.

    client = GoTransactions(broker.url)  # or JavaTransactions(java, broker.url)
    transaction = client.begin()
    client.producer(topic).send(b"x", transaction)
    transaction.commit()

A scenario is written once and runs with both clients. ``refused`` expects an error by the name of
Pulsar's ServerError, whatever exception the client makes of it.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import pulsar

from harness import go_client, java_client
from harness.brokers import Broker

NOTHING_MS = 400  # how long a test waits for a message that must not come
RECEIVE_MS = 20_000
SETTINGS = {
    "transactionCoordinatorEnabled": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}
SEGMENTS = {
    "transactionBufferSegmentedSnapshotEnabled": "true",
    "transactionBufferSnapshotSegmentSize": "1024",  # bytes, of about 300 aborted transactions
}
# Java's exceptions and the Go client's results, by the end of their names.
_REASONS = {
    "TransactionNotFoundException": "TransactionNotFound",
    "InvalidTxnStatusException": "InvalidTxnStatus",
    "TransactionConflictException": "TransactionConflict",
    "NotAllowedException": "NotAllowedError",
    "TimeoutException": "Timeout",
}


class Transaction(Protocol):
    """What both clients offer of a transaction."""

    id: tuple[int, int]

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def state(self) -> str: ...


class Message(NamedTuple):
    """A received message and the client's own object for it."""

    data: bytes
    redelivery_count: int
    position: tuple[int, int]
    own: Any


def reason(error: Exception) -> str:
    """Return the name of Pulsar's ServerError that a client's exception stands for."""
    if isinstance(error, java_client.JavaError):
        return _REASONS.get(error.name, error.name)
    if isinstance(error, pulsar.Timeout):
        return "Timeout"
    return str(getattr(error, "server_error", type(error).__name__))


@contextlib.contextmanager
def refused(*names: str) -> Iterator[None]:
    """Expect one of these errors."""
    try:
        yield
    except (java_client.JavaError, pulsar.PulsarException) as error:
        assert reason(error) in names, f"expected {names}, got {reason(error)}: {error}"
        return
    raise AssertionError(f"expected {names}, but there was no error")


def state_of(transaction: Transaction) -> str:
    """Return the state under Java's name: OPEN, COMMITTED, ABORTED, ERROR, TIME_OUT."""
    name = transaction.state().removeprefix("Txn").upper()
    return {"TIMEOUT": "TIME_OUT"}.get(name, name)


class JavaProducer:
    """See ``Producer`` of ``java_client``."""

    def __init__(self, own: java_client.Producer) -> None:
        self.own = own

    def send(self, data: bytes, within: Transaction | None = None, **more: Any) -> tuple[int, int]:
        """Return the position of the message when the broker has stored it."""
        return self.own.send(data, **_given(within), **more).position

    def send_all(self, bodies: list[bytes], within: Transaction | None = None) -> None:
        """Send without waiting in between, so that the messages form batches."""
        self.own.send_all(bodies, **_given(within))

    def close(self) -> None:
        self.own.close()


class GoProducer:
    """See ``Producer`` of ``go_client``."""

    def __init__(self, own: go_client.Producer) -> None:
        self.own = own

    def send(self, data: bytes, within: Transaction | None = None, **more: Any) -> tuple[int, int]:
        """Return the position of the message when the broker has stored it."""
        id = self.own.send(data, **_given(within), **more)
        return id.ledger_id(), id.entry_id()

    def send_all(self, bodies: list[bytes], within: Transaction | None = None) -> None:
        """Send without waiting in between, so that the messages form batches."""
        results: list[Any] = []
        for each in bodies:
            self.own.send_async(each, lambda result, _: results.append(result), **_given(within))
        self.own.flush()
        assert results == [pulsar.Result.Ok] * len(bodies), results

    def close(self) -> None:
        self.own.close()


def _given(transaction: Transaction | None) -> dict[str, Any]:
    return {} if transaction is None else {"transaction": transaction}


class JavaConsumer:
    """See ``Consumer`` of ``java_client``."""

    def __init__(self, own: java_client.Consumer) -> None:
        self.own = own

    def receive(self, timeout_ms: int = RECEIVE_MS) -> Message:
        one = self.own.receive(timeout_ms)
        return Message(one.data, one.redelivery_count, one.id.position, one)

    def acknowledge(self, message: Message) -> None:
        self.own.acknowledge(message.own)

    def acknowledge_within(
        self, transaction: Transaction, message: Message, cumulative: bool = False
    ) -> None:
        assert isinstance(transaction, java_client.Transaction)
        self.own.acknowledge_within(transaction, message.own, cumulative=cumulative)

    def redeliver(self) -> None:
        """Ask for all messages that are not acknowledged."""
        self.own.call("redeliverUnacknowledgedMessages")

    def close(self) -> None:
        self.own.close()


class GoConsumer:
    """See ``Consumer`` of ``go_client``."""

    def __init__(self, subscribe: Callable[[], go_client.Consumer]) -> None:
        self._subscribe = subscribe
        self.own = subscribe()

    def receive(self, timeout_ms: int = RECEIVE_MS) -> Message:
        one = self.own.receive(timeout_ms)
        id = one.message_id()
        return Message(one.data(), one.redelivery_count(), (id.ledger_id(), id.entry_id()), one)

    def acknowledge(self, message: Message) -> None:
        self.own.acknowledge(message.own)

    def acknowledge_within(
        self, transaction: Transaction, message: Message, cumulative: bool = False
    ) -> None:
        assert not cumulative, "the Go client has no cumulative ack in a transaction"
        assert isinstance(transaction, go_client.Transaction)
        self.own.acknowledge_within(transaction, message.own)

    def redeliver(self) -> None:
        """Subscribe again: the client cannot ask for all that is not acknowledged."""
        self.own.close()
        self.own = self._subscribe()

    def close(self) -> None:
        self.own.close()


class JavaTransactions:
    """A Java client with transactions."""

    kind = "java"

    def __init__(self, java: java_client.Java, url: str, **options: Any) -> None:
        self.own = java.client(url, **({"enableTransaction": True} | options))

    def begin(self, timeout_ms: int = 60_000) -> java_client.Transaction:
        return self.own.new_transaction(timeout_ms)

    def producer(self, topic: str, batched: bool = False, **options: Any) -> JavaProducer:
        batches = {"batchingEnabled": batched, "sendTimeoutMs": 0}
        if batched:  # a batch ends with the flush, not by time
            batches |= {"batchingMaxPublishDelayMicros": 1_000_000, "batchingMaxMessages": 1000}
        return JavaProducer(self.own.create_producer(topic, **(batches | options)))

    def consumer(
        self, topic: str, name: str = "s", kind: str = "Exclusive", **options: Any
    ) -> JavaConsumer:
        """Subscribe from the earliest message."""
        wanted: dict[str, Any] = {
            "subscriptionType": kind,
            "batchIndexAckEnabled": True,
            "ackReceiptEnabled": True,
        }
        return JavaConsumer(self.own.subscribe(topic, name, **(wanted | options)))

    def close(self) -> None:
        self.own.close()


class GoTransactions:
    """A Go client with transactions."""

    kind = "go"

    def __init__(self, url: str, **options: Any) -> None:
        self.own = go_client.Client(url, **({"enable_transaction": True} | options))

    def begin(self, timeout_ms: int = 60_000) -> go_client.Transaction:
        return self.own.new_transaction(timeout_ms)

    def producer(self, topic: str, batched: bool = False, **options: Any) -> GoProducer:
        batches = {"batching_enabled": batched, "batching_max_publish_delay_ms": 1000}
        return GoProducer(self.own.create_producer(topic, **(batches | options)))

    def consumer(
        self, topic: str | list[str], name: str = "s", kind: str = "Exclusive", **options: Any
    ) -> GoConsumer:
        """Subscribe from the earliest message."""
        wanted = {
            "consumer_type": kind,
            "initial_position": pulsar.InitialPosition.Earliest,
            "ack_with_response": True,
        }

        def subscribe() -> go_client.Consumer:
            return self.own.subscribe(topic, name, **(wanted | options))

        return GoConsumer(subscribe)

    def close(self) -> None:
        with contextlib.suppress(pulsar.AlreadyClosed):
            self.own.close()


TransactionClient: TypeAlias = "JavaTransactions | GoTransactions"
Producer: TypeAlias = "JavaProducer | GoProducer"
Consumer: TypeAlias = "JavaConsumer | GoConsumer"


def receive_bodies(consumer: Consumer, count: int, acknowledge: bool = False) -> list[bytes]:
    """Receive so many messages; one that does not come is an error."""
    bodies = []
    for _ in range(count):
        message = consumer.receive()
        bodies.append(message.data)
        if acknowledge:
            consumer.acknowledge(message)
    return bodies


def assert_nothing(consumer: Consumer, timeout_ms: int = NOTHING_MS) -> None:
    """Fail if a message comes within the time."""
    try:
        message = consumer.receive(timeout_ms)
    except (java_client.JavaError, pulsar.Timeout) as error:
        assert reason(error) == "Timeout", error
        return
    raise AssertionError(f"a message came: {message.data!r} at {message.position}")


def bodies(count: int, prefix: str = "m") -> list[bytes]:
    """Return different contents in order."""
    return [f"{prefix}-{number:04}".encode() for number in range(count)]


def path_of(topic: str) -> str:
    """Return the part of a REST path that names a topic."""
    return topic.replace("://", "/")


def topic_stats(broker: Broker, topic: str) -> Any:
    status, stats = broker.rest("GET", f"/admin/v2/{path_of(topic)}/stats")
    assert status == 200, (status, stats)
    return stats


def internal_stats(broker: Broker, topic: str) -> Any:
    status, stats = broker.rest("GET", f"/admin/v2/{path_of(topic)}/internalStats")
    assert status == 200, (status, stats)
    return stats


def transaction_rest(broker: Broker, path: str) -> tuple[int, Any]:
    """GET below /admin/v3/transactions; the text where the answer is no JSON."""
    status, text = broker.request("GET", f"/admin/v3/transactions/{path}")
    return status, text if status != 200 else json.loads(text)


def buffer_stats(broker: Broker, topic: str) -> Any:
    """Return what REST says about the transaction buffer of a topic."""
    status, stats = transaction_rest(broker, f"transactionBufferStats/{_name_of(topic)}")
    assert status == 200, (status, stats)
    return stats


def _name_of(topic: str) -> str:
    return topic.removeprefix("persistent://")


def unload(broker: Broker, topic: str) -> None:
    """Close a topic; it is loaded again when a client asks for it."""
    status, text = broker.request("PUT", f"/admin/v2/{path_of(topic)}/unload")
    assert status == 204, (status, text)


def wait_until(condition: Callable[[], Any], limit_s: float = 20.0) -> Any:
    """Return the first result that is true; fail after the limit."""
    until = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until, f"{condition} stays {found!r}"
        time.sleep(0.05)
    return found


def metric(broker: Broker, name: str) -> float:
    """Return the sum of a metric over its labels; 0 when it does not exist."""
    _, text = broker.request("GET", "/metrics/")
    lines = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)", text, re.M)
    return sum(float(each) for each in lines)

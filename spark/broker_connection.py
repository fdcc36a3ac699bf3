"""Connections to brokers, by which a plan learns topics, their first and last messages and schemas.

The connector blocks, and the client (client/) uses asyncio. So each request runs the client's event
loop in the calling thread until the answer arrives. Between requests nothing is read: messages that
a broker sends in advance wait in the socket.

The official client cannot find the first message of a topic without a durable subscription, which
would remain. This module uses a non-durable reader, which ends with its connection. It works with
any broker of the protocol.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from pyxbroker.client import requests
from pyxbroker.client.addresses import Address
from pyxbroker.client.connection import Connection
from pyxbroker.client.entries import MessageId
from pyxbroker.client.errors import (
    CLOSED_BY_SERVER,
    AnswerTimeout,
    BrokerRefused,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    ConnectionRefused,
    NotPulsar,
    ProtocolFault,
    RedirectLoop,
    TlsFailed,
    UntrustedCertificate,
)
from pyxbroker.client.lookup import Lookup
from pyxbroker.client.pool import ConnectionPool
from pyxbroker.client.settings import ClientSettings
from pyxbroker.entry_columns import MORE, OTHER, EntryColumns
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.errors import NotReachable, PulsarSparkError, Refused, TopicMissing
from pyxbroker.spark.positions import BEGINNING, Position
from pyxbroker.spark.security import Security, spark_error

T = TypeVar("T")

CLIENT_VERSION = "pyxbroker-spark"
RETRIES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""The pauses between requests while a broker is not ready for a topic."""

_CONSUMER = 1
_NOT_THERE = "TopicNotFound"


class Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_error(made: Closable) -> Iterator[None]:
    """Close the object if the body raises, also when Spark stops the worker."""
    try:
        yield
    except BaseException:
        made.close()
        raise


class Runner:
    """An event loop that runs in the calling thread during a request."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()

    def run(self, request: Coroutine[Any, Any, T], topic: str = "") -> T:
        """Return the answer. Raises PulsarSparkError for an error of the client."""
        try:
            return self.complete(request)
        except ClientError as error:
            raise error_of(error, topic) from error

    def complete(self, request: Coroutine[Any, Any, T]) -> T:
        """Return the answer. Raises ClientError."""
        return self._loop.run_until_complete(request)

    def run_until_stopped(self, timeout_s: float) -> None:
        """Run until `stop` is called or the time is over."""
        timer = self._loop.call_later(timeout_s, self._loop.stop)
        self._loop.run_forever()
        timer.cancel()

    def stop(self) -> None:
        self._loop.stop()

    def close(self) -> None:
        """Close the loop, once the sockets of closed connections are closed."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(_end_tasks())
            self._loop.close()


async def _end_tasks() -> None:
    """Let cancelled tasks and closed transports finish."""
    remaining = asyncio.all_tasks() - {asyncio.current_task()}
    for task in remaining:
        task.cancel()
    await asyncio.gather(*remaining, return_exceptions=True)
    await asyncio.sleep(0)


class BrokerConnection:
    """One connection to one broker. The broker keeps its state until the caller closes it."""

    def __init__(
        self, connection: Connection, runner: Runner, settings: Settings, owns: bool = False
    ) -> None:
        """Wrap a connection. owns: the runner is closed with the connection."""
        self.url = connection.url
        self._connection = connection
        self._runner = runner
        self._settings = settings
        self._owns_runner = owns
        self._descriptor = connection.plain_descriptor
        self._poll = select.poll()
        if self._descriptor >= 0:
            self._poll.register(self._descriptor, select.POLLIN)
        self._consumer = _Consumer()
        connection.consumers[_CONSUMER] = self._consumer

    def close(self) -> None:
        self._connection.close()
        if self._owns_runner:
            self._runner.close()

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 for a topic without. Creates nothing."""
        try:
            return self._ask(requests.partitions(self._connection, topic), topic)
        except TopicMissing:
            return 0  # its reader reports that it is missing

    def topics(self, namespace: str) -> list[str]:
        """Return the persistent topics of a namespace, with each partition as a topic."""
        return self._ask(requests.topics_of(self._connection, namespace))

    def ends(self, topic: str) -> tuple[Position, Position]:
        """Return the positions before the first message and of the last one of a topic.
        Positions are those of whole entries. Raises TopicMissing.
        """
        self.open(topic, BEGINNING)
        found = self._consumers_ends(topic)
        self._close_consumer(topic)
        return found

    def before_time(self, topic: str, moment: int) -> Position:
        """Return the position before the first message of a publish time (ms since 1970).

        The broker finds it by bisection, as for a seek. Raises TopicMissing.
        """
        name = self.open(topic, BEGINNING)
        self._ask(requests.seek(self._connection, _CONSUMER, None, moment), topic)
        # A seek closes the consumer; the subscription remains until the connection ends.
        self.open(topic, BEGINNING, name)
        found, _ = self._consumers_ends(topic)
        self._close_consumer(topic)
        return found

    def move_subscription(self, topic: str, subscription: str, at: Position) -> None:
        """Move a durable subscription to a position, forward or back; create it if it is missing.

        The broker retains the messages after it. An entry that was read in part stays
        unacknowledged. Raises TopicMissing, Refused.
        """
        subscribe = requests.subscribe_command(topic, subscription, _CONSUMER)
        self._ask(self._connection.ask(subscribe), topic)
        mark, last = self._consumers_ends(topic)
        if at.batch >= 0:
            at = Position(at.ledger, at.entry - 1)
        if at.key >= last.key:
            # The end of the topic: the beginning of an empty ledger cannot be acknowledged.
            at = last
        if mark.key < at.key and at.entry >= 0:
            ack = requests.ack_command(_CONSUMER, is_cumulative=True)
            MessageId(at.ledger, at.entry).write(ack.ack.message_id.add())
            self._ask(requests.acknowledge(self._connection, ack), topic)
        elif mark.key != at.key and at.key < last.key:
            # Back, or to the beginning of a ledger that has entries.
            next_ = MessageId(at.ledger, at.entry + 1)
            self._ask(requests.seek(self._connection, _CONSUMER, next_), topic)
            return  # a seek closes the consumer
        self._close_consumer(topic)

    def _consumers_ends(self, topic: str) -> tuple[Position, Position]:
        """Return (the consumer's mark-delete position, the last message) of a topic."""
        asked = requests.last_message_id(self._connection, _CONSUMER)
        mark, last = self._ask(asked, topic)
        first = BEGINNING if mark is None else Position(mark.ledger, mark.entry)
        return first, Position(last.ledger, last.entry)

    def _close_consumer(self, topic: str) -> None:
        self._ask(requests.close_consumer(self._connection, _CONSUMER), topic)

    def open(self, topic: str, at: Position, name: str = "") -> str:
        """Open the connection's reader at an entry, and return the reader's name.

        Its subscription is not durable: it ends with the connection. Raises TopicMissing.
        """
        name = name or f"{self._settings.subscription_prefix}-{uuid.uuid4().hex[:16]}"
        command = requests.subscribe_command(topic, name, _CONSUMER)
        command.subscribe.durable = False
        MessageId(at.ledger, at.entry).write(command.subscribe.start_message_id)
        self._ask(self._connection.ask(command), topic)
        self._consumer.is_closed = False
        return name

    def flow(self, permits: int) -> None:
        """Allow the broker to send more messages to the reader."""
        try:
            self._connection.send(requests.flow_command(_CONSUMER, permits))
        except ClientError as error:
            raise error_of(error) from error

    def take(self, columns: EntryColumns, timeout_s: float) -> int | None:
        """Decode received entries, and read from the socket once without any.

        Return the reason why decoding stopped, or None if nothing arrived in time. Raises
        NotReachable, also when the broker unloads the topic.
        """
        connection, deadline = self._connection, time.monotonic() + timeout_s
        received, is_read = connection.received, False
        while True:
            done, stop = columns.take(received.waiting())
            received.consume(done)
            if stop == OTHER:
                self._handle_command()
            elif stop != MORE or is_read:
                return stop
            elif not self._read(deadline):
                return None
            else:
                is_read = True

    def _read(self, deadline: float) -> bool:
        """Read once from the socket. Return False if nothing arrived in time. Raises NotReachable.

        A read by the event loop costs 6 us more than a direct one, and a range of small entries
        needs thousands of reads. So the loop reads only with TLS, and when the connection ends.
        """
        self._check_open()
        connection = self._connection
        received, left_s = connection.received, max(0.0, deadline - time.monotonic())
        if self._descriptor >= 0:
            if not self._poll.poll(left_s * 1000):
                return False
            with suppress(OSError):
                if size := os.readv(self._descriptor, (received.room(),)):
                    received.add(size)
                    return True
        before = len(received)
        connection.on_bytes = self._runner.stop
        try:
            self._runner.run_until_stopped(left_s)
        finally:
            connection.on_bytes = None
        if len(received) > before:
            return True
        self._check_open()
        return False

    def _handle_command(self) -> None:
        """Handle a command other than MESSAGE. Raises NotReachable."""
        self._connection.handle_frames(is_one=True)
        self._check_open()
        if self._consumer.entries:
            raise NotReachable(
                f"the broker at {self.url} broke the protocol: a message without an id."
            )

    def _check_open(self) -> None:
        """Raise NotReachable if the connection is lost or the broker has unloaded the topic."""
        if self._connection.error is not None:
            raise error_of(self._connection.error)
        if self._consumer.is_closed:
            raise NotReachable(f"the broker at {self.url} unloaded the topic.")

    def entry(self, timeout_s: float | None) -> tuple[Position, bytes]:
        """Return the position and the payload section of the reader's next entry.

        Raises NoAnswer, NotReachable.
        """
        if timeout_s is None:
            timeout_s = self._settings.timeout_s
        deadline = time.monotonic() + timeout_s
        while not self._consumer.entries:
            if not self._read(deadline):
                raise NoAnswer(f"{self.url} did not answer in time.")
            self._connection.handle_frames()
        return self._consumer.entries.popleft()

    def schema(self, topic: str, version: bytes = b"") -> Any:
        """Return a version of a topic's Schema, by default the newest; None without a schema."""
        return self._ask(requests.schema_of(self._connection, topic, version), topic)

    def register_schema(self, topic: str, name: str, type_: int) -> None:
        """Register a schema without a definition for an existing topic. Raises Refused."""
        schema = pb.Schema(name=name, type=type_, schema_data=b"")
        self._ask(requests.register_schema(self._connection, topic, schema), topic)

    def _ask(self, request: Coroutine[Any, Any, T], topic: str = "") -> T:
        return self._runner.run(request, topic)


class _Consumer:
    """The connection's reader, with its received entries where they are read one by one."""

    def __init__(self) -> None:
        self.entries: deque[tuple[Position, bytes]] = deque()
        self.is_closed = False

    def on_command(self, kind: int, body: Any, section: bytes) -> None:
        if kind == pb.BaseCommand.MESSAGE:
            id = MessageId.read(body.message_id)
            self.entries.append((Position(id.ledger, id.entry), section))
        elif kind == pb.BaseCommand.CLOSE_CONSUMER:
            self.is_closed = True

    def on_connection_lost(self, error: ClientError) -> None:
        """Do nothing: `_check_open` inspects the connection."""


class NoAnswer(NotReachable):
    """Raised when nothing arrives in time."""


class Settings(NamedTuple):
    """The settings of connections to brokers."""

    timeout_s: float
    connect_timeout_s: float
    security: Security
    subscription_prefix: str

    def of_client(self, service_url: str) -> ClientSettings:
        return ClientSettings(
            service_url,
            authentication=self.security.authentication,
            tls=self.security.tls,
            connect_timeout_s=self.connect_timeout_s,
            operation_timeout_s=self.timeout_s,
            # The connector counts attempts itself, and the loop does not run between requests.
            lookup_retry_s=0,
            keep_alive_s=0,
            client_version=CLIENT_VERSION,
        )


class Cluster:
    """The brokers of a service URL, with a connection to each one that was needed so far."""

    def __init__(self, service_url: str, settings: Settings) -> None:
        self._settings = settings
        self._client_settings = settings.of_client(service_url)
        self._open: _Open | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next request opens them again."""
        found, self._open = self._open, None
        if found is not None:
            found.pool.close()
            found.runner.close()

    def any_broker(self) -> BrokerConnection:
        """Return a connection to a broker of the service URL that answers. Raises NotReachable."""
        found = self._opened()
        return self._wrapped(found, found.runner.run(found.pool.to_service()))

    def schema(self, topic: str, version: bytes = b"") -> Any:
        """Return a schema; see BrokerConnection.schema. An idle connection may have been closed."""
        try:
            return self.any_broker().schema(topic, version)
        except NotReachable:
            self.close()
            return self.any_broker().schema(topic, version)

    def connect(self, topic: str) -> BrokerConnection:
        """Return a new connection to the owner of a topic. The caller closes it."""
        address = self._owner_of(topic)
        runner = Runner()
        with closed_on_error(runner):
            connection = runner.run(Connection.open(address, self._client_settings))
        return BrokerConnection(connection, runner, self._settings, owns=True)

    def reader(self, topic: str, at: Position) -> BrokerConnection:
        """Return a new connection with a reader at the position; see BrokerConnection.open."""
        connection = self.connect(topic)
        with closed_on_error(connection):
            connection.open(topic, at)
        return connection

    def ends(self, topic: str) -> tuple[Position, Position]:
        """Return the first and last positions of a topic; see BrokerConnection.ends."""
        return self.ask(topic, lambda broker: broker.ends(topic))

    def ask(self, topic: str, request: Callable[[BrokerConnection], T]) -> T:
        """Send a request to the owner of a topic, and retry while the owner is not ready."""
        for pause_s in (*RETRIES_S, None):
            try:
                address, found = self._owner_of(topic), self._opened()
                return request(self._wrapped(found, found.runner.run(found.pool.to(address))))
            except Refused as error:
                if pause_s is None or not error.may_pass:
                    raise
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _owner_of(self, topic: str) -> Address:
        found = self._opened()
        return found.runner.run(found.lookup.owner_of(topic), topic)

    def _opened(self) -> _Open:
        if self._open is None:
            pool = ConnectionPool(self._client_settings)
            self._open = _Open(Runner(), pool, Lookup(pool), {})
        return self._open

    def _wrapped(self, found: _Open, connection: Connection) -> BrokerConnection:
        """Return the one wrapper of a connection."""
        if connection not in found.wrapped:
            wrapped = BrokerConnection(connection, found.runner, self._settings)
            found.wrapped[connection] = wrapped
        return found.wrapped[connection]


class _Open(NamedTuple):
    """The state of a cluster while it has connections."""

    runner: Runner
    pool: ConnectionPool
    lookup: Lookup
    wrapped: dict[Connection, BrokerConnection]


# --- errors ---------------------------------------------------------------------------------------


def error_of(error: ClientError, topic: str = "") -> PulsarSparkError:
    """Return the sentence that Spark shows for an error of the client."""
    if isinstance(error, ConnectionRefused):
        return Refused(
            f"the broker at {error.url} refused the connection ({error.code}):"
            f" {error.message}{_advice(error.code)}",
            may_pass=error.is_retriable,
        )
    if isinstance(error, BrokerRefused):
        return _refusal(error, topic)
    if isinstance(error, UntrustedCertificate):
        return PulsarSparkError(
            f"the certificate of {error.url} is not trusted: {error.reason}. Give the"
            " authority's by pulsar.client.tlsTrustCertsFilePath."
        )
    if isinstance(error, RedirectLoop):
        return PulsarSparkError(
            f"the lookup of {topic} failed: brokers redirect each other in a loop."
        )
    if isinstance(error, AnswerTimeout):
        return NoAnswer(f"{error.url} did not answer in time.")
    if isinstance(error, ConnectionFailed):
        for kind, sentence in _LOST.items():
            if isinstance(error, kind):
                return NotReachable(sentence.format(url=error.url, reason=error.reason))
        if error.reason == CLOSED_BY_SERVER:
            return NotReachable(f"the broker at {error.url} closed the connection.")
        return NotReachable(f"the broker at {error.url} is gone: {error.reason}")
    return spark_error(error)


def _refusal(error: BrokerRefused, topic: str) -> PulsarSparkError:
    message = " ".join(error.message.split())  # Apache Pulsar's may contain schemas of many lines
    found: TopicMissing | Refused
    if error.code == _NOT_THERE:
        found = TopicMissing(f"there is no topic {topic}: {message}")
    else:
        what = f"the broker refused {topic}" if topic else "the broker refused"
        advice = _advice(error.code)
        sentence = message.rstrip(".") if advice else message
        found = Refused(
            f"{what} ({error.code}): {sentence}{advice}", error.is_retriable, error.code
        )
    found.words = message
    return found


def _advice(error: str) -> str:
    """Return what the user can do about a refusal; empty without advice."""
    found = _ADVICE.get(error)
    return f". {found}" if found else ""


_LOST: dict[type[ConnectionFailed], str] = {
    ConnectFailed: "no broker answers at {url}: {reason}",
    TlsFailed: "there is no TLS with {url}: {reason}",
    NotPulsar: "what answers at {url} does not speak Pulsar's protocol.",
    ProtocolFault: "the broker at {url} broke the protocol: {reason}",
}
_ADVICE = {
    "AuthenticationError": "Check pulsar.client.authPluginClassName and"
    " pulsar.client.authParams; a token may have expired.",
    "IncompatibleSchema": "The topic's schema is not compatible with what is written.",
    "AuthorizationError": "Reading needs the right to consume, a pattern a right on the namespace,"
    " and writing the right to produce; docs/security.md of the broker says who grants rights.",
}

"""What a plan asks of a broker: which topics, how far they reach, what their schemas are.

A blocking connection that asks one question after the other over Pulsar's binary protocol. The
official client cannot say where a topic begins and ends without a durable subscription, which would
stay behind; a reader of our own says both, and is gone with its connection.

Works against any broker of the protocol, so nothing here knows ours.
"""

from __future__ import annotations

import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from pyxbroker.entry_columns import MORE, OTHER, EntryColumns
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.errors import NotReachable, PulsarSparkError, Refused, TopicMissing
from pyxbroker.spark.positions import BEGINNING, Position, position_of
from pyxbroker.spark.security import Security

T = TypeVar("T")
C = TypeVar("C", bound="BrokerConnection")

CLIENT_VERSION = "pyxbroker-spark"
PROTOCOL_VERSION = 21
DEFAULT_PORT, DEFAULT_PORT_TLS = 6650, 6651
TLS = "pulsar+ssl"
FRAME_BYTES_MAX = 128 << 20
REDIRECTS_MAX = 20
RETRIES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""How long to wait before asking again while a broker is not ready for a topic."""

READ_BYTES = 1 << 20
"""Of memory to read into; a frame that is larger gets more, as long as it is there."""

KEPT_BYTES_MAX = 8 << 20
"""Of that memory, what is kept for the next frames."""

_CONSUMER = 1
_ID_MAX = (1 << 64) - 1
_NOT_READY = ("ServiceNotReady", "MetadataError", "PersistenceError", "TooManyRequests")
_NOT_THERE = ("TopicNotFound",)
_OWN = (pb.BaseCommand.PING, pb.BaseCommand.PONG, pb.BaseCommand.AUTH_CHALLENGE)
_UNASKED = (
    *(pb.BaseCommand.ACTIVE_CONSUMER_CHANGE, pb.BaseCommand.MESSAGE),
    *(pb.BaseCommand.CLOSE_CONSUMER, pb.BaseCommand.REACHED_END_OF_TOPIC),
)


def address_of(url: str) -> tuple[str, int]:
    """(host, port) of a broker's URL, whose form option_values.py has checked, or a broker said."""
    scheme, _, where = url.partition("://")
    where = where.rstrip("/")
    host, colon, port = where.rpartition(":")
    if not colon or where.endswith("]"):
        host, port = where, str(DEFAULT_PORT_TLS if scheme == TLS else DEFAULT_PORT)
    return host.strip("[]"), int(port)


def urls_of(service_url: str) -> list[str]:
    """The URLs of the brokers that a service URL names, which may be several."""
    scheme, _, where = service_url.partition("://")
    return [f"{scheme}://{each}" for each in where.rstrip("/").split(",")]


def is_tls(url: str) -> bool:
    return url.startswith(f"{TLS}://")


class Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_error(made: Closable) -> Iterator[None]:
    """Whatever ends what is done within, a worker that is stopped too, leaves nothing open."""
    try:
        yield
    except BaseException:
        made.close()
        raise


class Address(NamedTuple):
    """Where to connect, and behind a proxy, whom it shall ask."""

    url: str
    proxied: str = ""


class BrokerConnection:
    """One connection to one broker. Close it; nothing of it stays with the broker then."""

    message_bytes_max = 5 << 20
    """What a message may have; brokers say it, or mean this."""

    def __init__(self, url: str, settings: Settings, proxied: str = "") -> None:
        """proxied: the broker that who answers at the URL shall ask. Raises NotReachable."""
        self.url = url
        self._timeout_s = settings.timeout_s
        self._login = settings.security.login
        self._subscription_prefix = settings.subscription_prefix
        self._received = Received()
        self._last_request = 0
        self._socket = _open_socket(url, settings)
        with closed_on_error(self):
            self._connect(proxied)

    def close(self) -> None:
        self._socket.close()

    def partitions(self, topic: str) -> int:
        """Of a partitioned topic; 0: it has none. Creates nothing."""
        ask = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
        ask.partitionMetadata.topic = topic
        ask.partitionMetadata.metadata_auto_creation_enabled = False
        answer = self._ask(ask, ask.partitionMetadata).partitionMetadataResponse
        if answer.response == answer.Failed:
            if _error_name(answer.error) in _NOT_THERE:
                return 0  # what reads it says that it is missing
            raise _refusal(topic, answer.error, answer.message)
        return int(answer.partitions)

    def topics(self, namespace: str) -> list[str]:
        """The persistent topics of a namespace, each partition by itself."""
        ask = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE)
        ask.getTopicsOfNamespace.namespace = namespace
        ask.getTopicsOfNamespace.mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
        answer = self._ask(ask, ask.getTopicsOfNamespace)
        return sorted(answer.getTopicsOfNamespaceResponse.topics)

    def broker_of(self, topic: str, is_final: bool = False) -> Address:
        """The broker that has the topic. Raises _Redirected.

        is_final: another broker said that this one decides (`authoritative`).
        """
        ask = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        ask.lookupTopic.topic = topic
        ask.lookupTopic.authoritative = is_final
        answer = self._ask(ask, ask.lookupTopic).lookupTopicResponse
        if answer.response == answer.Failed:
            raise _refusal(topic, answer.error, answer.message)
        if answer.response == answer.Redirect:
            raise _Redirected(self._url_in(answer, topic), answer.authoritative)
        if answer.proxy_through_service_url:
            return Address(self.url, self._url_in(answer, topic))
        return Address(self._url_in(answer, topic))

    def _url_in(self, answer: Any, topic: str) -> str:
        """The broker's URL of the kind that was asked by."""
        url = answer.brokerServiceUrlTls if is_tls(self.url) else answer.brokerServiceUrl
        if not url:
            kind = "with TLS" if is_tls(self.url) else "without TLS"
            raise PulsarSparkError(f"the broker that has {topic} cannot be reached {kind}.")
        return str(url)

    def ends(self, topic: str) -> tuple[Position, Position]:
        """(before the first message, the last message) of a topic that this broker has.

        Positions are those of whole entries. Raises TopicMissing.
        """
        self.open(topic, BEGINNING)
        found = self._consumers_ends(topic)
        self._close_consumer(topic)
        return found

    def before_time(self, topic: str, moment: int) -> Position:
        """What lies before the first message that was published at a time (ms since 1970) or after.

        A broker finds it among entries by bisection, as it does for a seek. Raises TopicMissing.
        """
        name = self.open(topic, BEGINNING)
        ask = pb.BaseCommand(type=pb.BaseCommand.SEEK)
        ask.seek.consumer_id = _CONSUMER
        ask.seek.message_publish_time = moment
        self._ask(ask, ask.seek, topic)
        # A seek closes the consumer; its subscription is there until the connection is not.
        self.open(topic, BEGINNING, name)
        found, _ = self._consumers_ends(topic)
        self._close_consumer(topic)
        return found

    def hold(self, topic: str, subscription: str, at: Position) -> None:
        """Moves a durable subscription, which is made if it is not there, up to and with a message,
        forward or back. Of an entry that is read in part nothing counts as acknowledged.

        What lies behind it is kept by the broker. Raises TopicMissing, Refused.
        """
        ask = self._subscribe(topic, subscription)
        self._ask(ask, ask.subscribe, topic)
        mark, last = self._consumers_ends(topic)
        if at.batch >= 0:
            at = Position(at.ledger, at.entry - 1)
        if at.key >= last.key:
            # All that is there. Nobody can acknowledge the beginning of a ledger, and need not.
            at = last
        if mark.key < at.key and at.entry >= 0:
            self._acknowledge(topic, at)
        elif mark.key != at.key and at.key < last.key:
            # Back, or to the beginning of a ledger with entries, of which the first is there.
            self._seek(topic, at._replace(entry=at.entry + 1))
            return  # a seek closes the consumer
        self._close_consumer(topic)

    def _acknowledge(self, topic: str, last: Position) -> None:
        ask = pb.BaseCommand(type=pb.BaseCommand.ACK)
        ask.ack.consumer_id = _CONSUMER
        ask.ack.ack_type = pb.CommandAck.Cumulative
        place = ask.ack.message_id.add()
        place.ledgerId, place.entryId = last.ledger, last.entry
        self._ask(ask, ask.ack, topic)

    def _seek(self, topic: str, next_: Position) -> None:
        """next_: what the subscription would be given first."""
        ask = pb.BaseCommand(type=pb.BaseCommand.SEEK)
        ask.seek.consumer_id = _CONSUMER
        ask.seek.message_id.ledgerId = next_.ledger & _ID_MAX
        ask.seek.message_id.entryId = next_.entry & _ID_MAX
        self._ask(ask, ask.seek, topic)

    def _consumers_ends(self, topic: str) -> tuple[Position, Position]:
        """(where the consumer stands, the last message) of a topic."""
        ask = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID)
        ask.getLastMessageId.consumer_id = _CONSUMER
        answer = self._ask(ask, ask.getLastMessageId, topic).getLastMessageIdResponse
        first, last = BEGINNING, answer.last_message_id
        if answer.HasField("consumer_mark_delete_position"):
            first = position_of(answer.consumer_mark_delete_position)
        return first, position_of(last)

    def _close_consumer(self, topic: str) -> None:
        ask = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
        ask.close_consumer.consumer_id = _CONSUMER
        self._ask(ask, ask.close_consumer, topic)

    def open(self, topic: str, at: Position, name: str = "") -> str:
        """Makes the connection's reader, whose first entry is that at the position; its name.

        It has no cursor that is kept: it is gone with the connection. Raises TopicMissing.
        """
        name = name or f"{self._subscription_prefix}-{uuid.uuid4().hex[:16]}"
        ask = self._subscribe(topic, name)
        ask.subscribe.durable = False
        ask.subscribe.start_message_id.ledgerId = at.ledger & _ID_MAX
        ask.subscribe.start_message_id.entryId = at.entry & _ID_MAX
        self._ask(ask, ask.subscribe, topic)
        return name

    def _subscribe(self, topic: str, subscription: str) -> Any:
        """A command for the connection's only consumer."""
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic = topic
        command.subscribe.subscription = subscription
        command.subscribe.subType = pb.CommandSubscribe.Exclusive
        command.subscribe.consumer_id = _CONSUMER
        # What is not there yet is not made by who reads.
        command.subscribe.force_topic_creation = False
        command.subscribe.initialPosition = pb.CommandSubscribe.Earliest
        return command

    def flow(self, permits: int) -> None:
        """Lets the broker send so many messages more to the reader."""
        command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        command.flow.consumer_id = _CONSUMER
        command.flow.messagePermits = permits
        self._send(command)

    def take(self, columns: EntryColumns, timeout_s: float) -> int | None:
        """Gives entries to columns, what came and once what comes in time; why these stopped, or
        None: nothing came.

        Raises NotReachable, also when the broker gives the topic away.
        """
        deadline = time.monotonic() + timeout_s
        is_read = False
        while True:
            done, stop = columns.take(self._received.waiting())
            self._received.pass_over(done)
            if stop == OTHER:
                self._see_other(deadline)
            elif stop != MORE or is_read:
                return stop
            else:
                try:
                    self._read(deadline)
                except NoAnswer:
                    return None
                is_read = True

    def _see_other(self, deadline: float) -> None:
        """A command that is no message, between messages."""
        command, _ = self._receive_any(deadline)
        if self._sees_to(command):
            return
        if command.type == pb.BaseCommand.CLOSE_CONSUMER:
            raise NotReachable(f"the broker at {self.url} gave the topic away.")
        if command.type == pb.BaseCommand.MESSAGE:
            raise NotReachable(f"the broker at {self.url} sent nonsense: a message without an id.")

    def schema(self, topic: str, version: bytes = b"") -> Any:
        """The Schema of a topic, of a version or the newest; None: it has none."""
        ask = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA)
        ask.getSchema.topic = topic
        if version:
            ask.getSchema.schema_version = version
        answer = self._ask(ask, ask.getSchema).getSchemaResponse
        if answer.HasField("schema"):
            return answer.schema
        if _error_name(answer.error_code) in _NOT_THERE:
            return None
        raise _refusal(topic, answer.error_code, answer.error_message)

    def tell_schema(self, topic: str, name: str, type_: int) -> None:
        """Gives a topic that is there a schema without a definition. Raises Refused."""
        ask = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA)
        ask.getOrCreateSchema.topic = topic
        ask.getOrCreateSchema.schema.name = name
        ask.getOrCreateSchema.schema.type = type_
        ask.getOrCreateSchema.schema.schema_data = b""
        answer = self._ask(ask, ask.getOrCreateSchema, topic).getOrCreateSchemaResponse
        if answer.HasField("error_code"):
            raise _refusal(topic, answer.error_code, answer.error_message)

    # --- one question ---------------------------------------------------------------------------

    def _connect(self, proxied: str) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        command.connect.client_version = CLIENT_VERSION
        command.connect.protocol_version = PROTOCOL_VERSION
        command.connect.feature_flags.supports_auth_refresh = True
        self._show(command.connect)
        if proxied and proxied != self.url:
            command.connect.proxy_to_broker_url = proxied.partition("://")[2]
        self._send(command)
        answer, _ = self._receive(time.monotonic() + self._timeout_s)
        if answer.type == pb.BaseCommand.ERROR:
            name = _error_name(answer.error.error)
            raise Refused(
                f"the broker at {self.url} refused the connection ({name}):"
                f" {answer.error.message}{_advice(name)}",
                may_pass=name in _NOT_READY,
            )
        if answer.type != pb.BaseCommand.CONNECTED:
            raise NotReachable(f"what answers at {self.url} does not speak Pulsar's protocol.")
        self.message_bytes_max = answer.connected.max_message_size or self.message_bytes_max

    def _ask(self, command: Any, body: Any, topic: str = "") -> Any:
        """The answer to a command with a request id; an ERROR is raised."""
        self._last_request += 1
        body.request_id = self._last_request
        self._send(command)
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer, _ = self._receive(deadline)
            if answer.type == pb.BaseCommand.ERROR:
                raise _refusal(topic, answer.error.error, answer.error.message)
            elif answer.type not in _UNASKED:
                return answer

    def _show(self, body: Any) -> None:
        """Says who this is, in a CONNECT."""
        if self._login.method:
            body.auth_method_name = self._login.method
            body.auth_data = self._login.show()

    def _answer_challenge(self) -> None:
        """A token is about to expire: shows it again, as it is by now."""
        command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
        command.authResponse.client_version = CLIENT_VERSION
        command.authResponse.protocol_version = PROTOCOL_VERSION
        command.authResponse.response.auth_method_name = self._login.method
        command.authResponse.response.auth_data = self._login.show()
        self._send(command)

    def _pong(self) -> None:
        self._send(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))

    def _send(self, command: Any, section: bytes = b"") -> None:
        """section: a message's metadata and payload, which follow the command."""
        body = command.SerializeToString()
        size = 4 + len(body) + len(section)
        frame = size.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + section
        self._socket.settimeout(self._timeout_s)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise NotReachable(f"the broker at {self.url} is gone: {error}") from error

    def _receive(self, deadline: float) -> tuple[Any, bytes]:
        """The next command that is none of the connection's own, and what follows it.

        Raises NoAnswer, NotReachable.
        """
        while True:
            command, section = self._receive_any(deadline)
            if not self._sees_to(command):
                return command, section

    def _sees_to(self, command: Any) -> bool:
        """Whether it is the connection's own; then it is answered."""
        if command.type == pb.BaseCommand.PING:
            self._pong()
        elif command.type == pb.BaseCommand.AUTH_CHALLENGE:
            self._answer_challenge()
        return command.type in _OWN

    def _receive_any(self, deadline: float) -> tuple[Any, bytes]:
        """The next command and what follows it. Raises NoAnswer, NotReachable."""
        frame = self._frame()
        while frame is None:
            self._read(deadline)
            frame = self._frame()
        end = 4 + int.from_bytes(frame[:4], "big")
        from google.protobuf.message import DecodeError

        try:
            return pb.BaseCommand.FromString(frame[4:end]), frame[end:]
        except DecodeError as error:
            raise NotReachable(f"the broker at {self.url} sent nonsense: {error}") from error

    def _frame(self) -> bytes | None:
        """The next one, behind its size; None: it is not there as a whole. Raises NotReachable."""
        waiting = self._received.waiting()
        if len(waiting) < 4:
            return None
        size = int.from_bytes(waiting[:4], "big")
        if not 4 < size <= FRAME_BYTES_MAX:
            raise NotReachable(f"what answers at {self.url} does not speak Pulsar's protocol.")
        if len(waiting) < 4 + size:
            return None
        frame = bytes(waiting[4 : 4 + size])
        self._received.pass_over(4 + size)
        return frame

    def _read(self, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise NoAnswer(f"{self.url} did not answer in time.")
        self._socket.settimeout(left_s)
        try:
            size = self._socket.recv_into(self._received.room())
        except TimeoutError as error:
            raise NoAnswer(f"{self.url} did not answer in time.") from error
        except OSError as error:
            raise NotReachable(f"the broker at {self.url} is gone: {error}") from error
        if not size:
            raise NotReachable(f"the broker at {self.url} closed the connection.")
        self._received.add(size)


class Received:
    """Bytes that came and are not done with, in one piece of memory that is read into."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(READ_BYTES))
        self._begin = self._end = 0

    def waiting(self) -> memoryview:
        return self._view[self._begin : self._end]

    def pass_over(self, size: int) -> None:
        """So many bytes of what waits are done with."""
        self._begin += size
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._view) > KEPT_BYTES_MAX:
                self._view = memoryview(bytearray(READ_BYTES))

    def room(self) -> memoryview:
        """Where the next bytes go; `add` says how many came."""
        waiting = self._end - self._begin
        if waiting > len(self._view) // 2:
            self._move(memoryview(bytearray(2 * len(self._view))))
        elif self._end > len(self._view) // 2:
            self._move(self._view)
        return self._view[self._end :]

    def add(self, size: int) -> None:
        self._end += size

    def _move(self, to: memoryview) -> None:
        waiting = self._end - self._begin
        to[:waiting] = self._view[self._begin : self._end]
        self._view, self._begin, self._end = to, 0, waiting


class NoAnswer(NotReachable):
    """Nothing came in time."""


class Settings(NamedTuple):
    """How to connect."""

    timeout_s: float
    connect_timeout_s: float
    security: Security
    subscription_prefix: str


class Cluster:
    """The brokers behind a service URL: a connection to each that had to be asked."""

    def __init__(self, service_url: str, settings: Settings) -> None:
        self._urls = urls_of(service_url)
        self._settings = settings
        self._connections: dict[Address, BrokerConnection] = {}

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
        """Closes all connections; another question opens them again."""
        for each in self._connections.values():
            each.close()
        self._connections.clear()

    def any_broker(self) -> BrokerConnection:
        """One of those that the service URL names, which answers. Raises NotReachable."""
        trouble: NotReachable | None = None
        for _ in range(len(self._urls)):
            try:
                return self._at(Address(self._urls[0]))
            except NotReachable as error:
                trouble = trouble or error
                self._urls.append(self._urls.pop(0))  # the next one is asked from now on
        assert trouble is not None
        raise trouble

    def schema(self, topic: str, version: bytes = b"") -> Any:
        """See BrokerConnection.schema; the connection may have been idle until it was closed."""
        try:
            return self.any_broker().schema(topic, version)
        except NotReachable:
            self.close()
            return self.any_broker().schema(topic, version)

    def connect(self, topic: str, kind: type[C]) -> C:
        """A connection of its own with the broker that has a topic. Close it."""
        url, proxied = self._broker_of(topic)
        return kind(url, self._settings, proxied)

    def reader(self, topic: str, at: Position) -> BrokerConnection:
        """The same with a reader at the position; see BrokerConnection.open."""
        connection = self.connect(topic, BrokerConnection)
        with closed_on_error(connection):
            connection.open(topic, at)
        return connection

    def ends(self, topic: str) -> tuple[Position, Position]:
        """(before the first message, the last message) of a topic; see BrokerConnection.ends."""
        return self.ask(topic, lambda broker: broker.ends(topic))

    def ask(self, topic: str, question: Callable[[BrokerConnection], T]) -> T:
        """What the broker that has a topic says; it is asked again while it is not ready."""
        for pause_s in (*RETRIES_S, None):
            try:
                return question(self._at(self._broker_of(topic)))
            except Refused as error:
                if pause_s is None or not error.may_pass:
                    raise
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _broker_of(self, topic: str) -> Address:
        asked, is_final = self.any_broker(), False
        for _ in range(REDIRECTS_MAX):
            try:
                return asked.broker_of(topic, is_final)
            except _Redirected as redirected:
                asked, is_final = self._at(Address(redirected.url)), redirected.is_final
        raise PulsarSparkError(f"the brokers send who looks for {topic} round in a ring.")

    def _at(self, where: Address) -> BrokerConnection:
        if where not in self._connections:
            self._connections[where] = BrokerConnection(where.url, self._settings, where.proxied)
        return self._connections[where]


def _open_socket(url: str, settings: Settings) -> socket.socket:
    """Raises NotReachable."""
    host, port = address_of(url)
    context = settings.security.context() if is_tls(url) else None
    try:
        made = socket.create_connection((host, port), timeout=settings.connect_timeout_s)
    except OSError as error:
        raise NotReachable(f"no broker answers at {url}: {error}") from error
    if context is None:
        return made
    try:
        return context.wrap_socket(made, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        made.close()
        raise PulsarSparkError(
            f"the certificate of {url} is not trusted: {error.verify_message}. Give the"
            " authority's by pulsar.client.tlsTrustCertsFilePath."
        ) from error
    except OSError as error:
        made.close()
        raise NotReachable(f"there is no TLS with {url}: {error}") from error


class _Redirected(Exception):
    def __init__(self, url: str, is_final: bool) -> None:
        super().__init__(url)
        self.url = url
        self.is_final = is_final


def _error_name(code: int) -> str:
    return str(pb.ServerError.Name(code))


def _refusal(topic: str, code: int, message: str) -> PulsarSparkError:
    name = _error_name(code)
    message = " ".join(message.split())  # Apache's has schemas of many lines
    found: TopicMissing | Refused
    if name in _NOT_THERE:
        found = TopicMissing(f"there is no topic {topic}: {message}")
    else:
        what = f"the broker refused {topic}" if topic else "the broker refused"
        advice = _advice(name)
        said = message.rstrip(".") if advice else message
        found = Refused(f"{what} ({name}): {said}{advice}", name in _NOT_READY, name)
    found.words = message
    return found


def _advice(error: str) -> str:
    """What who reads a refusal may do about it; empty: nothing."""
    found = _ADVICE.get(error)
    return f". {found}" if found else ""


_ADVICE = {
    "AuthenticationError": "Who this is say pulsar.client.authPluginClassName and"
    " pulsar.client.authParams; a token may have expired.",
    "IncompatibleSchema": "The topic's schema does not go with what is written.",
    "AuthorizationError": "Reading needs the right to consume, and a pattern that of the namespace,"
    " writing that to produce; who grants it is in docs/security.md of the broker.",
}

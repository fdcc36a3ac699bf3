"""One connection to one broker: handshake, requests and their answers, keep-alive.

Frames are found by the hot path's scanner in the memory that the event loop reads into. Answers go
to the request with their id, everything else to the producer or consumer with its id. Code that
decodes entries in that memory itself, such as the Spark connector's reader, sets `on_bytes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from google.protobuf.message import DecodeError

from pyxbroker.base.log import get_logger
from pyxbroker.client.addresses import Address
from pyxbroker.client.errors import (
    CLOSED_BY_SERVER,
    AnswerTimeout,
    BrokerRefused,
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionFailed,
    ConnectionRefused,
    NoPong,
    NotPulsar,
    ProtocolFault,
    TlsFailed,
    UntrustedCertificate,
    code_name,
    network_reason,
)
from pyxbroker.client.receive_buffer import ReceiveBuffer
from pyxbroker.client.settings import ClientSettings
from pyxbroker.client.tls import reason_of
from pyxbroker.commands import decode_base_py
from pyxbroker.frames import scan
from pyxbroker.proto import PulsarApi as pb

PROTOCOL_VERSION = 21
MESSAGE_BYTES_MAX = 5 << 20
"""The limit of brokers that do not send theirs."""
FRAME_BYTES_MAX = 128 << 20

_UNRELATED = (1 << 64) - 1
"""The request id of an ERROR that answers no request."""
_FIELDS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}

log = get_logger("pyxbroker.client")


class Handler(Protocol):
    """A producer or a consumer of a connection."""

    def on_command(self, kind: int, body: Any, section: bytes) -> None:
        """Handle a command with the handler's id."""

    def on_connection_lost(self, error: ClientError) -> None:
        """Handle the end of the connection."""


class Connection(asyncio.BufferedProtocol):
    """A connection. `open` returns one that is ready for requests."""

    def __init__(self, address: Address, settings: ClientSettings) -> None:
        self.address = address
        self.url = address.url
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.protocol_version = 0
        self.error: ClientError | None = None
        """The reason why the connection ended; None while it is open."""
        self.producers: dict[int, Handler] = {}
        self.consumers: dict[int, Handler] = {}
        self.received = ReceiveBuffer()
        self.on_bytes: Callable[[], None] | None = None
        """Called for received bytes instead of the decoding of frames here."""
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._requests: dict[int, _Request] = {}
        self._last_request_id = 0
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[Any] = self._loop.create_future()
        self._ended: asyncio.Future[ClientError] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        self._keep_alive: asyncio.TimerHandle | None = None
        self._has_heard = False
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, address: Address, settings: ClientSettings) -> Connection:
        """Connect and authenticate. Raises ConnectionFailed, ConnectionRefused and others."""
        self = cls(address, settings)
        try:
            await self._connect()
            await self._shake_hands()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the connection; requests that wait for their answers fail."""
        self._end(Closed(f"the connection to {self.url} was closed by the client"))

    async def wait_ended(self) -> ClientError:
        """Wait for the end of the connection; return the reason."""
        return await asyncio.shield(self._ended)

    @property
    def is_open(self) -> bool:
        return self.error is None

    @property
    def plain_descriptor(self) -> int:
        """The socket, for a caller that reads while the event loop does not run; -1: it has TLS."""
        if self.address.is_tls or self._transport is None:
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    # --- requests -------------------------------------------------------------------------------

    async def ask(self, command: Any, timeout_s: float | None = None) -> Any:
        """Send a command with a new request id and return the body of its answer.

        Raises BrokerRefused for an ERROR, AnswerTimeout, and what ended the connection.
        """
        self._raise_if_ended()
        self._last_request_id += 1
        number = self._last_request_id
        getattr(command, _FIELDS[command.type]).request_id = number
        request = _Request(self._loop)
        if timeout_s is None:
            timeout_s = self._settings.operation_timeout_s
        request.start_timer(timeout_s, AnswerTimeout(self.url))
        self._requests[number] = request
        try:
            self.send(command)
            return await request.future
        finally:
            request.stop_timer()
            self._requests.pop(number, None)

    def notify(self, command: Any) -> None:
        """Send a command with a new request id, and ignore its answer and a lost connection."""
        if self.error is None:
            self._last_request_id += 1
            getattr(command, _FIELDS[command.type]).request_id = self._last_request_id
            self.send(command)

    def send(self, command: Any, section: bytes = b"") -> None:
        """Write a frame. section: what follows the command of a SEND. Raises what ended the
        connection.
        """
        self._raise_if_ended()
        assert self._transport is not None
        body = command.SerializeToString()
        size = 4 + len(body) + len(section)
        head = size.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
        if section:
            self._transport.writelines((head, section))
        else:
            self._transport.write(head)

    def write(self, frames: Sequence[bytes | memoryview]) -> None:
        """Write frames that the caller has built. Raises what ended the connection."""
        self._raise_if_ended()
        assert self._transport is not None
        self._transport.writelines(frames)

    @property
    def is_writable(self) -> bool:
        """False while more bytes wait for the socket than the transport's limit."""
        return self._writable is None

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _raise_if_ended(self) -> None:
        if self.error is not None:
            raise self.error

    # --- opening --------------------------------------------------------------------------------

    async def _connect(self) -> None:
        settings, url = self._settings, self.url
        host, port = self.address.host_and_port
        options: dict[str, Any] = {}
        if self.address.is_tls:
            own = settings.authentication.certificate()
            options = {"ssl": settings.tls.context(own), "server_hostname": host}
        connecting = self._loop.create_connection(lambda: self, host, port, **options)
        try:
            await asyncio.wait_for(connecting, settings.connect_timeout_s)
        except ssl.SSLCertVerificationError as error:
            raise UntrustedCertificate(url, error.verify_message) from error
        except ssl.SSLError as error:
            raise TlsFailed(url, reason_of(error)) from error
        except (OSError, asyncio.TimeoutError) as error:
            if self.address.is_tls and isinstance(error, ConnectionResetError):
                raise TlsFailed(url, str(error)) from error
            raise ConnectFailed(url, network_reason(error)) from error

    async def _shake_hands(self) -> None:
        settings = self._settings
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect = command.connect
        connect.client_version = settings.client_version
        connect.protocol_version = PROTOCOL_VERSION
        connect.feature_flags.supports_auth_refresh = True
        if settings.authentication.method:
            connect.auth_method_name = settings.authentication.method
            connect.auth_data = await settings.authentication.current_credentials()
        if settings.original_principal:
            connect.original_principal = settings.original_principal
        if self.address.proxied and self.address.proxied != self.url:
            connect.proxy_to_broker_url = self.address.proxied.partition("://")[2]
        self.send(command)
        try:
            connected = await asyncio.wait_for(self._connected, settings.operation_timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise AnswerTimeout(self.url) from None
        self.message_bytes_max = connected.max_message_size or MESSAGE_BYTES_MAX
        self.protocol_version = connected.protocol_version
        if settings.keep_alive_s > 0:
            self._keep_alive = self._loop.call_later(settings.keep_alive_s, self._check_alive)

    # --- the transport --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's classes are its own
        if self.error is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.received.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.received.add(nbytes)
        self._has_heard = True
        if self.on_bytes is not None:
            self.on_bytes()
        else:
            self.handle_frames()

    def eof_received(self) -> bool:
        self._end(ConnectionFailed(self.url, CLOSED_BY_SERVER))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = network_reason(exc) if isinstance(exc, OSError) else str(exc or CLOSED_BY_SERVER)
        self._end(ConnectionFailed(self.url, reason))

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def _end(self, error: ClientError) -> None:
        """Close the connection. The error of the first call is the reason that users see."""
        if self.error is not None:
            return
        self.error = error
        self._ended.set_result(error)
        if self._transport is not None:
            # An abort drops what was not written yet; a close by the client sends it first.
            self._transport.close() if isinstance(error, Closed) else self._transport.abort()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        for task in self._tasks:
            task.cancel()
        if self._writable is not None:
            self.resume_writing()
        _fail(self._connected, error)
        for request in self._requests.values():
            _fail(request.future, error)
        for handler in (*self.producers.values(), *self.consumers.values()):
            handler.on_connection_lost(error)
        if self.on_bytes is not None:
            self.on_bytes()

    # --- frames ---------------------------------------------------------------------------------

    def handle_frames(self, is_one: bool = False) -> None:
        """Handle all frames that were received as a whole, or the first one of them."""
        waiting = self.received.waiting()
        if is_one:
            waiting = waiting[: 4 + int.from_bytes(waiting[:4], "big")]
        frames, done, fault = scan(waiting, FRAME_BYTES_MAX)
        self.received.consume(done)
        for command, section in frames:
            if self.error is not None:
                return
            try:
                self._handle(command, section)
            except DecodeError as error:
                kind = ProtocolFault if self._connected.done() else NotPulsar
                self._end(kind(self.url, f"the server sent a broken command: {error}"))
        if fault is not None:
            self._end(NotPulsar(self.url, f"the server sent a frame that is {fault}"))

    def _handle(self, data: bytes, section: bytes) -> None:
        found = decode_base_py(data)
        if found is not None:
            # Commands of the hot path are parsed without the BaseCommand around them.
            kind, message = found
            parse = _DIRECT.get(kind)
            if parse is not None:
                body = parse(message)
                _check_whole(body)
                self._route(kind, body, section)
                return
        command = pb.BaseCommand.FromString(data)
        name = _FIELDS.get(command.type)
        if name is None:
            return  # a command of a later protocol version
        body = getattr(command, name)
        _check_whole(body)
        handle = _OWN.get(command.type)
        if handle is not None:
            handle(self, body)
        elif command.type in _CLOSES or not hasattr(body, "request_id"):
            self._route(command.type, body, section)
        else:
            self._answer(command.type, body)

    def _answer(self, kind: int, body: Any) -> None:
        request = self._requests.get(body.request_id)
        if request is None or request.future.done():
            return  # the request timed out
        if kind == pb.BaseCommand.PRODUCER_SUCCESS and not body.producer_ready:
            # The broker answers again once the producer has exclusive access.
            request.stop_timer()
            return
        request.future.set_result(body)

    def _route(self, kind: int, body: Any, section: bytes) -> None:
        if kind in _OF_PRODUCERS:
            handler = self.producers.get(body.producer_id)
        else:
            handler = self.consumers.get(getattr(body, "consumer_id", -1))
        if handler is not None:
            handler.on_command(kind, body, section)

    # --- commands of the connection itself ------------------------------------------------------

    def _on_connected(self, body: Any) -> None:
        if not self._connected.done():
            self._connected.set_result(body)

    def _on_error(self, body: Any) -> None:
        code, message = code_name(body.error), body.message
        request = self._requests.get(body.request_id)
        if request is not None:
            _fail(request.future, BrokerRefused(code, message, self.url))
        elif not self._connected.done():
            self._end(ConnectionRefused(code, message, self.url))
        elif body.request_id == _UNRELATED:
            self._end(ConnectionFailed(self.url, f"the broker ended the connection: {message}"))

    def _on_ping(self, body: Any) -> None:
        self.send(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))

    def _on_pong(self, body: Any) -> None:
        """Do nothing: `buffer_updated` has noted the sign of life."""

    def _on_auth_challenge(self, body: Any) -> None:
        task = self._loop.create_task(self._answer_challenge())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_challenge(self) -> None:
        """Send the current credentials: those of the connection are about to expire."""
        authentication = self._settings.authentication
        command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
        command.authResponse.client_version = self._settings.client_version
        command.authResponse.protocol_version = PROTOCOL_VERSION
        command.authResponse.response.auth_method_name = authentication.method
        try:
            credentials = await authentication.current_credentials()
        except ClientError as error:
            self._end(error)
            return
        command.authResponse.response.auth_data = credentials
        with contextlib.suppress(ClientError):
            self.send(command)

    def _check_alive(self) -> None:
        """Send a PING, at intervals; end the connection if the peer has been silent since then."""
        if not self._has_heard:
            self._end(NoPong(self.url))
            return
        self._has_heard = False
        self.send(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
        self._keep_alive = self._loop.call_later(self._settings.keep_alive_s, self._check_alive)


class _Request:
    """A request whose answer has not come yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    def start_timer(self, timeout_s: float, error: ClientError) -> None:
        loop = self.future.get_loop()
        self._timer = loop.call_later(timeout_s, _fail, self.future, error)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _fail(future: asyncio.Future[Any], error: ClientError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as retrieved, also where the caller was cancelled


def _check_whole(body: Any) -> None:
    """Raise DecodeError for a command that lacks a required field."""
    if not body.IsInitialized():
        raise DecodeError("a required field is missing")


_CLOSES = (pb.BaseCommand.CLOSE_PRODUCER, pb.BaseCommand.CLOSE_CONSUMER)
_OF_PRODUCERS = (
    *(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR),
    pb.BaseCommand.CLOSE_PRODUCER,
)
_DIRECT: dict[int, Callable[[bytes], Any]] = {
    pb.BaseCommand.MESSAGE: pb.CommandMessage.FromString,
    pb.BaseCommand.SEND_RECEIPT: pb.CommandSendReceipt.FromString,
}
_OWN: dict[int, Callable[[Connection, Any], None]] = {
    pb.BaseCommand.CONNECTED: Connection._on_connected,
    pb.BaseCommand.ERROR: Connection._on_error,
    pb.BaseCommand.PING: Connection._on_ping,
    pb.BaseCommand.PONG: Connection._on_pong,
    pb.BaseCommand.AUTH_CHALLENGE: Connection._on_auth_challenge,
}

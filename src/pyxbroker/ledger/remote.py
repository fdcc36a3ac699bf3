"""A bookie in another process, over one TCP connection on the broker's event loop.

idle          no connection. The first request begins to connect and waits for that.
connecting    requests wait in the channel.
connected     requests are sent.
pausing       an attempt or a connection has failed. Requests fail with DISCONNECTED until the
              next attempt succeeds. Pauses become longer; without requests there is no further
              attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable

from pyxbroker.base.backoff import pauses_s
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.bookie_channel import BookieChannel
from pyxbroker.entry import EntryBatch
from pyxbroker.ledger.bookie import Adder
from pyxbroker.ledger.registered_bookies import Address
from pyxbroker.tls import TlsStream
from pyxbroker.turn import Turn

log = get_logger("pyxbroker.ledger")

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0

# BookKeeper's v3 protocol, which is protobuf: a Request of START_TLS (9) with version 3 and
# transaction id 1, and the Response that grants it, EOK in both.
_START_TLS = bytes.fromhex("0000000b 0a06 0803 1009 1801 d20600")
_HANDSHAKE_BYTES_MAX = 1024
_STATUS_KEY = 2 << 3
_GRANTED = bytes((_STATUS_KEY, 0))


class RemoteSettings(NamedTuple):
    """Settings of all connections to bookies."""

    frame_bytes_max: int = (5 << 20) + 10_240
    """nettyMaxFrameSizeBytes of the bookies."""
    pending_bytes_max: int = 32 << 20
    add_timeout_s: float = 30.0
    """addEntryTimeoutSec, which Pulsar sets to bookkeeperClientTimeoutInSeconds."""
    read_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    tls: Callable[[], ssl.SSLContext] | None = None
    """A function that returns the context for a new connection; None for plain text."""


class BookieRefused(Exception):
    """The bookie was reached, and does not serve this broker; the text is a sentence."""


class RemoteBookie(BookieChannel):
    """A bookie elsewhere. Implements ledger/bookie.py.

    `address_of` returns where the bookie is reached now, and raises LookupError when that is
    unknown. `on_full` is called with True when adds of too many bytes wait for their answers.
    """

    is_embedded = False
    failure = 0

    def __init__(
        self,
        bookie_id: str,
        turn: Turn,
        address_of: Callable[[str], Address],
        settings: RemoteSettings,
        on_full: Callable[[bool], None],
    ) -> None:
        super().__init__(
            turn,
            frame_bytes_max=settings.frame_bytes_max,
            pending_bytes_max=settings.pending_bytes_max,
            add_timeout_s=settings.add_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )
        self.bookie_id = bookie_id
        self.connects = 0
        """Connections that were established."""
        self.trouble: str | None = None
        """The reason of a missing connection; None while connected, or before the first request."""
        self._address_of = address_of
        self._settings = settings
        self._on_full = on_full
        self._connecting: asyncio.Task[None] | None = None
        self._pauses = pauses_s(PAUSE_FIRST_S, PAUSE_MAX_S)
        self._was_asked = False
        self._is_closed = False

    # --- the contract ---------------------------------------------------------------------------

    def read_cached(
        self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        return None

    def take_back(self, only: Adder | None = None) -> None:
        """Do nothing: the bookie may have stored every run that was sent."""

    def delete_ledger(self, ledger_id: int) -> None:
        """Do nothing: the bookie frees the space when it notices that the metadata is gone."""

    def on_full(self, is_full: bool) -> None:
        self._on_full(is_full)

    def on_defect(self, error: Exception) -> None:
        log.failure("an answer of a bookie could not be handled", error, bookie=self.bookie_id)

    async def close(self) -> None:
        """Close the connection; pending and later requests fail."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        self.lose("the broker closed the connection")

    # --- connecting -----------------------------------------------------------------------------

    def open(self) -> bool:
        """Begin to connect; return False during a pause."""
        if self._is_closed:
            return False
        if self._connecting is not None:
            self._was_asked = True
            return False
        self._was_asked = False
        self.begin()
        self._connecting = self.turn.loop.create_task(self._connect())
        return True

    def on_lost(self, reason: str) -> None:
        """Reconnect when a request asks for it; after a pause if the bookie answered nothing."""
        if self._is_closed or self._connecting is not None:
            return
        self._note(reason)
        if self.answers:
            self._pauses = pauses_s(PAUSE_FIRST_S, PAUSE_MAX_S)
        else:
            self._was_asked = False
            self._connecting = self.turn.loop.create_task(self._connect(has_failed=True))

    async def _connect(self, has_failed: bool = False) -> None:
        """Connect; after a failure again and again, while requests ask for it."""
        while True:
            if has_failed:
                await asyncio.sleep(next(self._pauses))
                if not self._was_asked:
                    self._connecting = None
                    return
                self._was_asked = False
            try:
                sock, tls = await asyncio.wait_for(self._dial(), self._settings.connect_timeout_s)
            except (OSError, LookupError, BookieRefused, asyncio.TimeoutError) as error:
                has_failed = True
                reason = _reason(error)
                self._note(reason)
                self.lose(reason)
                continue
            self.connects += 1
            if self.trouble is not None:
                self.trouble = None
                log.info("the bookie is connected again", bookie=self.bookie_id)
            self._connecting = None
            self.attach(sock, tls)
            return

    def _note(self, reason: str) -> None:
        if self.trouble is None:
            log.warning("no connection to a bookie", bookie=self.bookie_id, reason=reason)
        self.trouble = reason

    async def _dial(self) -> tuple[socket.socket, TlsStream | None]:
        """Return a connected socket, on which a TLS handshake has begun if the settings ask for
        it.
        """
        loop = asyncio.get_running_loop()
        host, port = self._address_of(self.bookie_id)
        error: OSError | None = None
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
                if self._settings.tls is None:
                    return sock, None
                await self._start_tls(loop, sock)
                context = self._settings.tls()
                name = host if context.check_hostname else None
                return sock, TlsStream(context, True, name)
            except OSError as failed:
                sock.close()
                error = failed
            except BaseException:
                sock.close()
                raise
        raise error or OSError(f"{host} has no address")

    async def _start_tls(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        """Ask for TLS on the plain connection, as BookKeeper's clients do."""
        await loop.sock_sendall(sock, _START_TLS)
        size = int.from_bytes(await _receive(loop, sock, 4), "big")
        if size > _HANDSHAKE_BYTES_MAX:
            raise BookieRefused(f"the bookie answered START_TLS with a frame of {size} bytes")
        answer = await _receive(loop, sock, size)
        # The header is the first field; the status follows it.
        status = answer[2 + answer[1] :] if answer.startswith(b"\x0a") else b""
        if not status.startswith(_GRANTED):
            raise BookieRefused(
                "the bookie refuses TLS: set tlsProviderFactoryClass in its configuration, or"
                " bookkeeperTLSClientAuthentication=false in the broker's"
            )


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"its host name cannot be resolved: {error.strerror}"
    if isinstance(error, asyncio.TimeoutError):
        return "it does not answer the attempt to connect"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error.args[0]) if isinstance(error, LookupError) else str(error)


async def _receive(loop: asyncio.AbstractEventLoop, sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await loop.sock_recv(sock, size - len(data))
        if not part:
            raise BookieRefused("the bookie closed the connection during START_TLS")
        data += part
    return data

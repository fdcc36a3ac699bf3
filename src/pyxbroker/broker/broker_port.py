"""The port of the binary protocol: accepts connections within their limits."""

from __future__ import annotations

import socket
from collections import Counter
from typing import TYPE_CHECKING

from pyxbroker.base.half_open import TLS_HEADER_BYTES, PendingConnection, tls_first_bytes
from pyxbroker.base.listening import Acceptor, listen
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pyxbroker.base.tls import TlsContexts
    from pyxbroker.broker.broker import Broker

log = get_logger("pyxbroker.broker")

COMMAND_HEADER_BYTES = 4  # the size of a frame
CONNECT_BYTES_MAX = COMMAND_HEADER_BYTES + (128 << 10)  # HANDSHAKE_FRAME_BYTES_MAX
# First bytes that may wait in the kernel. Beyond that the connection reads them, and the number of
# connections with so many is limited (connection.pxd: STASH_BYTES_MAX, UNAUTHENTICATED_SLABS_MAX).
WAITED_BYTES_MAX = 8 << 10


class Ports(NamedTuple):
    """The listening ports of a process; None: not served."""

    broker: BrokerPort | None
    broker_tls: BrokerPort | None
    web: socket.socket | None
    web_tls: socket.socket | None
    tls: TlsContexts | None
    named: tuple[BrokerPort, ...] = ()  # ports of `bindAddresses`

    @property
    def broker_port(self) -> int:
        """Port number; 0: not served."""
        return 0 if self.broker is None else self.broker.port

    @property
    def broker_port_tls(self) -> int:
        """Port number; 0: not served."""
        return 0 if self.broker_tls is None else self.broker_tls.port

    @property
    def web_port(self) -> int:
        """Port number; 0: not served."""
        return 0 if self.web is None else int(self.web.getsockname()[1])

    @property
    def web_port_tls(self) -> int:
        """Port number; 0: not served."""
        return 0 if self.web_tls is None else int(self.web_tls.getsockname()[1])

    @property
    def brokers(self) -> list[BrokerPort]:
        """The ports of the binary protocol."""
        return [each for each in (self.broker, self.broker_tls, *self.named) if each is not None]


class BrokerPort:
    """Listens from its construction; connections wait until `serve`. Raises OSError."""

    def __init__(
        self, address: str, port: int, tls: TlsContexts | None = None, listener: str = ""
    ) -> None:
        self._tls = tls
        self.listener = listener  # clients of this port get the addresses of this listener
        self._socket = listen(address, port)
        self.port: int = self._socket.getsockname()[1]
        self.refused: Counter[str] = Counter()  # connections, by setting
        self._broker: Broker | None = None
        self._acceptor: Acceptor | None = None

    def serve(self, broker: Broker) -> None:
        """Accept connections for a broker."""
        self._broker = broker
        self._acceptor = Acceptor(self._socket, broker.poller, self._on_accepted, log)

    def _on_accepted(self, sock: socket.socket, address: str, number: int) -> None:
        broker = self._broker
        assert broker is not None, "the port accepts connections before serve()"
        if refused := self._refusal(broker, address):
            name, limit = refused
            self.refused[name] += 1
            log.warning(f"refused by {name}", peer=f"{address}:{number}", limit=limit)
            sock.close()
            return
        broker.add_half_open(self, sock, address, number)

    @staticmethod
    def _refusal(broker: Broker, address: str) -> tuple[str, int] | None:
        """Return the setting that forbids one more connection, and its value, or None."""
        limit = broker.config.brokerMaxConnectionsPerIp
        if limit and broker.connections_of(address) >= limit:
            return "brokerMaxConnectionsPerIp", limit
        limit = broker.config.brokerMaxConnections
        if not limit or broker.connection_count < limit:
            return None
        return (
            None
            if broker.evict_half_open("brokerMaxConnections")
            else ("brokerMaxConnections", limit)
        )

    # --- half-open connections ----------------------------------------------------------------

    @property
    def first_header_bytes(self) -> int:
        """Size of a TLS record's header, or of a frame's size."""
        return COMMAND_HEADER_BYTES if self._tls is None else TLS_HEADER_BYTES

    def first_bytes(self, header: bytes) -> int:
        """Return how many bytes must have arrived before the connection is served. A frame that is
        too large is served immediately, to be refused.
        """
        if self._tls is not None:
            return tls_first_bytes(header)
        size = COMMAND_HEADER_BYTES + int.from_bytes(header, "big")
        return min(size, WAITED_BYTES_MAX) if size <= CONNECT_BYTES_MAX else 0

    def begin(self, pending: PendingConnection) -> None:
        """Serve a connection whose CONNECT, or TLS handshake, has begun to arrive."""
        broker = self._broker
        assert broker is not None, "the port accepts connections before serve()"
        pending.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = None if self._tls is None else self._tls.current()
        broker.accept(pending, tls, self.listener)

    def on_closed(self, pending: PendingConnection) -> None:
        """Note that a connection was closed before it was served."""
        assert self._broker is not None, "the port accepts connections before serve()"
        self._broker.on_disconnected(pending.address)

    def close(self) -> None:
        """Stop listening."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._socket.close()

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

COMMAND_HEADER_BYTES = 4  # of a frame: how many bytes follow
CONNECT_BYTES_MAX = COMMAND_HEADER_BYTES + (128 << 10)  # HANDSHAKE_FRAME_BYTES_MAX
# Of a CONNECT that are left to the kernel. With more, it is the connection's, and there is a bound
# for how many have as much (connection.pxd: STASH_BYTES_MAX, UNAUTHENTICATED_SLABS_MAX).
WAITED_BYTES_MAX = 8 << 10


class Ports(NamedTuple):
    """The listening ports of a process; None: not served."""

    broker: BrokerPort | None
    broker_tls: BrokerPort | None
    web: socket.socket | None
    web_tls: socket.socket | None
    tls: TlsContexts | None
    named: tuple[BrokerPort, ...] = ()  # those of `bindAddresses`

    @property
    def broker_port(self) -> int:
        """Its number; 0: not served."""
        return 0 if self.broker is None else self.broker.port

    @property
    def broker_port_tls(self) -> int:
        """Its number; 0: not served."""
        return 0 if self.broker_tls is None else self.broker_tls.port

    @property
    def web_port(self) -> int:
        """Its number; 0: not served."""
        return 0 if self.web is None else int(self.web.getsockname()[1])

    @property
    def web_port_tls(self) -> int:
        """Its number; 0: not served."""
        return 0 if self.web_tls is None else int(self.web_tls.getsockname()[1])

    @property
    def brokers(self) -> list[BrokerPort]:
        """Those of the binary protocol."""
        return [each for each in (self.broker, self.broker_tls, *self.named) if each is not None]


class BrokerPort:
    """Listens from the moment it is made; who connects waits until `serve`. Raises OSError."""

    def __init__(
        self, address: str, port: int, tls: TlsContexts | None = None, listener: str = ""
    ) -> None:
        self._tls = tls
        self.listener = listener  # whose addresses clients are told that come by it
        self._socket = listen(address, port)
        self.port: int = self._socket.getsockname()[1]
        self.refused: Counter[str] = Counter()  # connections, by the setting that forbade them
        self._broker: Broker | None = None
        self._acceptor: Acceptor | None = None

    def serve(self, broker: Broker) -> None:
        """Accepts connections for a broker."""
        self._broker = broker
        self._acceptor = Acceptor(self._socket, broker.poller, self._on_accepted, log)

    def _on_accepted(self, sock: socket.socket, address: str, number: int) -> None:
        broker = self._broker
        assert broker is not None, "who accepts serves a broker"
        if refused := self._refusal(broker, address):
            name, limit = refused
            self.refused[name] += 1
            log.warning(f"refused by {name}", peer=f"{address}:{number}", limit=limit)
            sock.close()
            return
        broker.welcome(self, sock, address, number)

    @staticmethod
    def _refusal(broker: Broker, address: str) -> tuple[str, int] | None:
        """The setting that forbids one more connection, and its value."""
        limit = broker.config.brokerMaxConnectionsPerIp
        if limit and broker.connections_of(address) >= limit:
            return "brokerMaxConnectionsPerIp", limit
        limit = broker.config.brokerMaxConnections
        if not limit or broker.connection_count < limit:
            return None
        return None if broker.give_way("brokerMaxConnections") else ("brokerMaxConnections", limit)

    # --- who has come, until they begin -------------------------------------------------------

    @property
    def first_header_bytes(self) -> int:
        """Of a record of TLS, or a command's size."""
        return COMMAND_HEADER_BYTES if self._tls is None else TLS_HEADER_BYTES

    def first_bytes(self, header: bytes) -> int:
        """How many of what a client sends first have to be there; one that is too large begins at
        once, to be refused.
        """
        if self._tls is not None:
            return tls_first_bytes(header)
        size = COMMAND_HEADER_BYTES + int.from_bytes(header, "big")
        return min(size, WAITED_BYTES_MAX) if size <= CONNECT_BYTES_MAX else 0

    def begin(self, pending: PendingConnection) -> None:
        """Its CONNECT, or the beginning of its handshake, is there."""
        broker = self._broker
        assert broker is not None, "who accepts serves a broker"
        pending.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = None if self._tls is None else self._tls.current()
        broker.accept(pending, tls, self.listener)

    def on_closed(self, pending: PendingConnection) -> None:
        """It is closed before that."""
        assert self._broker is not None, "who accepts serves a broker"
        self._broker.on_disconnected(pending.address)

    def close(self) -> None:
        """Nobody connects any more."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._socket.close()

"""Listening sockets: opening them and accepting connections, for every server of the process."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from pyxbroker.base.log import Log
from pyxbroker.base.poller import Poller

BACKLOG = 1024  # connections that wait to be accepted
ACCEPT_RETRY_S = 1.0

_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def listen(address: str, port: int) -> socket.socket:
    """Open a listening, non-blocking TCP socket; port 0 takes any free one.

    Up to BACKLOG connections wait to be accepted. Raises OSError, for example EADDRINUSE.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class Acceptor:
    """Accepts connections from a listening socket, one per step of the poller.

    A burst of thousands of connections therefore delays only those connections. on_accepted gets a
    connected, non-blocking socket and the address of its client.
    """

    def __init__(
        self,
        sock: socket.socket,
        poller: Poller,
        on_accepted: Callable[[socket.socket, str, int], None],
        log: Log,
    ) -> None:
        self._socket = sock
        self._poller = poller
        self._on_accepted = on_accepted
        self._log = log
        self._retry: asyncio.TimerHandle | None = None  # while the socket is not watched
        poller.watch(sock.fileno(), self)

    def on_ready(self) -> None:
        """Accept one connection."""
        try:
            sock, address = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._log.error("a connection could not be accepted", error=error)
            if error.errno in _OUT_OF:
                # Connections in the backlog are accepted later.
                self._poller.unwatch(self._socket.fileno())
                self._accept_later()
            return  # Any other error concerns that connection only (accept(2)): continue.
        sock.setblocking(False)
        try:
            self._on_accepted(sock, *address[:2])
        except Exception as error:
            # For example, no more descriptors can be watched: drop only this connection.
            self._log.failure("an accepted connection could not be set up", error, peer=address[0])
            sock.close()

    def _accept_later(self) -> None:
        self._retry = self._poller.loop.call_later(ACCEPT_RETRY_S, self._accept_again)

    def _accept_again(self) -> None:
        try:
            self._poller.watch(self._socket.fileno(), self)
        except (OSError, MemoryError) as error:
            # The resource that was exhausted by accepting may be needed for this call as well.
            self._log.error("a port cannot be watched yet, retrying", error=error)
            self._accept_later()
        else:
            self._retry = None

    def close(self) -> None:
        """Close the listening socket."""
        if self._retry is not None:
            self._retry.cancel()
        else:
            self._poller.unwatch(self._socket.fileno())
        self._socket.close()

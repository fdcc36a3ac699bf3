"""Listening sockets: opening them and accepting connections, for every server of the process."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from pyxbroker.base.log import Log
from pyxbroker.base.poller import Poller
from pyxbroker.base.properties import ConfigError

BACKLOG = 1024  # connections that wait to be accepted
ACCEPT_RETRY_S = 1.0

_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_REMEDIES = {
    errno.EMFILE: "raise the number of files that this process may open (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "raise the number of files that this host may open (fs.file-max)",
}


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


def is_loopback(host: str) -> bool:
    """Return True for a host name or address that another host does not reach."""
    host = host.removeprefix("::ffff:")
    return host.startswith("127.") or host in ("localhost", "::1", "0.0.0.0", "::")


def explain_port(
    error: OSError, address: str, port: int, setting: str, also: str | None
) -> ConfigError:
    """Return the sentence for a port that cannot be opened.

    `setting` is what sets the port, and `also` what else has set the same one of this process.
    """
    bound_by = "bindAddresses" if setting == "bindAddresses" else "bindAddress"
    place = f"Port {port} on {address} ({setting})"
    if isinstance(error, socket.gaierror):
        return ConfigError(f"The host {address} ({bound_by}) is not known.")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"This host has no address {address} ({bound_by}).")
    if error.errno == errno.EADDRINUSE and also is not None:
        return ConfigError(f"{place} is also that of {also}; choose another port for one of them.")
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"{place} is in use by another process; stop that one, or choose another port"
            " (0 takes any free one)."
        )
    if error.errno == errno.EACCES:
        return ConfigError(f"{place}: a port below 1024 needs more rights than this user has.")
    return ConfigError(f"{place} cannot be opened: {error.strerror or error}.")


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
        self._port = int(sock.getsockname()[1])
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
            remedy = _REMEDIES.get(error.errno or 0)
            self._log.error(
                "a connection could not be accepted",
                port=self._port,
                error=error,
                **({"remedy": remedy} if remedy else {}),
            )
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
            self._log.failure(
                "an accepted connection could not be set up",
                error,
                peer=address[0],
                port=self._port,
            )
            sock.close()

    def _accept_later(self) -> None:
        self._retry = self._poller.loop.call_later(ACCEPT_RETRY_S, self._accept_again)

    def _accept_again(self) -> None:
        try:
            self._poller.watch(self._socket.fileno(), self)
        except (OSError, MemoryError) as error:
            # The resource that was exhausted by accepting may be needed for this call as well.
            self._log.error("a port cannot be watched yet, retrying", port=self._port, error=error)
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

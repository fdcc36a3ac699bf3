"""The listening socket of a port: one way to open it, for every server of the process."""

from __future__ import annotations

import socket

BACKLOG = 1024  # connections that wait for somebody to accept them


def listen(address: str, port: int) -> socket.socket:
    """A listening, non-blocking TCP socket; port 0 takes any free one.

    Connections that come before somebody accepts them wait, at most BACKLOG of them. Raises
    OSError, for example EADDRINUSE.
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

"""A client of the web port that costs little itself: for what is measured by the thousand."""

from __future__ import annotations

import socket

TIMEOUT_S = 60


def request(method: str, path: str, body: str = "") -> bytes:
    """A request as common clients send it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost:8080", "Accept: application/json"]
    lines += ["User-Agent: bench/1.0"]
    if body:
        lines += ["Content-Type: application/json"]
    if body or method in ("PUT", "POST"):
        lines += [f"Content-Length: {len(body)}"]
    return ("\r\n".join([*lines, "", ""]) + body).encode()


class WebClient:
    """A kept connection that sends some requests, then reads as many answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self.body = b""  # of the last answer

    def ask(self, requests: bytes, count: int = 1) -> list[int]:
        """The statuses of `count` answers."""
        self.socket.sendall(requests)
        return [self._answer() for _ in range(count)]

    def close(self) -> None:
        self.socket.close()

    def _answer(self) -> int:
        head = self._until(b"\r\n\r\n").lower()
        status = int(head.split(b" ", 2)[1])
        _, found, length = head.partition(b"content-length: ")
        if found:
            self.body = self._bytes(int(length.split(b"\r\n", 1)[0]))
        elif b"transfer-encoding: chunked" in head:
            pieces = []
            while size := int(self._until(b"\r\n"), 16):
                pieces.append(self._bytes(size))
                self._until(b"\r\n")
            self._until(b"\r\n")
            self.body = b"".join(pieces)
        else:
            self.body = b""
        return status

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._unread:
            self._read()
        found, _, self._unread = self._unread.partition(mark)
        return found

    def _bytes(self, size: int) -> bytes:
        pieces, left = [self._unread], size - len(self._unread)
        self._unread = b""
        while left > 0:
            self._read()
            pieces.append(self._unread)
            left -= len(self._unread)
            self._unread = b""
        whole = b"".join(pieces)
        self._unread = whole[size:]
        return whole[:size]

    def _read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._unread += data

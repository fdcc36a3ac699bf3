"""HTTP/1.1 requests over connections that are kept open; httptools parses the answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from pyxbroker.client.addresses import host_and_port, is_tls
from pyxbroker.client.errors import (
    CLOSED_BY_SERVER,
    AnswerTimeout,
    ConnectFailed,
    ConnectionFailed,
    ProtocolFault,
    TlsFailed,
    UntrustedCertificate,
    network_reason,
)
from pyxbroker.client.tls import reason_of

BODY_BYTES_MAX = 256 << 20
HEADERS_BYTES_MAX = 64 << 10
READ_BYTES = 64 << 10
IDLE_CONNECTIONS_MAX = 8
"""Connections to one origin that are kept open for later requests."""


class HttpAnswer(NamedTuple):
    """An answer; the names of headers are in lower case."""

    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


class HttpConnections:
    """Connections to any number of origins, one request at a time on each connection."""

    def __init__(
        self,
        make_context: Callable[[], ssl.SSLContext],
        connect_timeout_s: float,
        answer_timeout_s: float,
    ) -> None:
        self._make_context = make_context
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._idle: dict[str, list[_HttpConnection]] = {}

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> HttpAnswer:
        """Send a request and return its answer, whatever its status. Raises ConnectionFailed."""
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ConnectFailed(url, "the URL is not percent-encoded")
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body)}")
        data = "\r\n".join((*lines, "", "")).encode() + body
        idle = self._idle.setdefault(origin, [])
        # The server may close an idle connection in this very moment. A request that is lost by it
        # is sent again, so it has to be one that may be processed twice.
        while idle and method != "POST":
            connection = idle.pop()
            if connection.is_usable:
                try:
                    return await self._exchange(connection, origin, url, data)
                except _NoAnswerBegan:
                    continue
        connection = await self._connect(origin)
        try:
            return await self._exchange(connection, origin, url, data)
        except _NoAnswerBegan as error:
            raise ConnectionFailed(origin, CLOSED_BY_SERVER) from error

    def close(self) -> None:
        for connections in self._idle.values():
            for each in connections:
                each.close()
        self._idle.clear()

    async def _exchange(
        self, connection: _HttpConnection, origin: str, url: str, data: bytes
    ) -> HttpAnswer:
        try:
            answer = await asyncio.wait_for(connection.exchange(url, data), self._answer_timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            connection.close()
            raise AnswerTimeout(origin) from None
        except BaseException:
            connection.close()
            raise
        idle = self._idle.setdefault(origin, [])
        if connection.is_usable and len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connect(self, origin: str) -> _HttpConnection:
        host, port = host_and_port(origin)
        context = self._make_context() if is_tls(origin) else None
        name = host if context is not None else None
        opening = asyncio.open_connection(host, port, ssl=context, server_hostname=name)
        try:
            reader, writer = await asyncio.wait_for(opening, self._connect_timeout_s)
        except ssl.SSLCertVerificationError as error:
            raise UntrustedCertificate(origin, error.verify_message) from error
        except ssl.SSLError as error:
            raise TlsFailed(origin, reason_of(error)) from error
        except (OSError, asyncio.TimeoutError) as error:
            raise ConnectFailed(origin, network_reason(error)) from error
        return _HttpConnection(reader, writer)


class _NoAnswerBegan(Exception):
    """The connection ended before the first byte of an answer."""


class _HttpConnection:
    """One connection, and the parser's callbacks for the answer that is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._may_be_kept = True

    @property
    def is_usable(self) -> bool:
        closing = self._reader.at_eof() or self._writer.is_closing()
        return self._may_be_kept and not closing

    def close(self) -> None:
        self._writer.close()

    async def exchange(self, url: str, data: bytes) -> HttpAnswer:
        answer = _Answer()
        parser = answer.parser = httptools.HttpResponseParser(answer)
        has_begun = False
        try:
            self._writer.write(data)
            await self._writer.drain()
            while not answer.is_complete:
                received = await self._reader.read(READ_BYTES)
                if not received:
                    break
                has_begun = True
                parser.feed_data(received)
        except OSError as error:
            if not has_begun:
                raise _NoAnswerBegan from error
            raise ConnectionFailed(url, str(error)) from error
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ProtocolFault(url, f"the answer is not HTTP: {error}") from error
        if not has_begun:
            raise _NoAnswerBegan
        if not answer.is_complete and (answer.has_length or not answer.has_headers):
            raise ConnectionFailed(url, "the server closed the connection within an answer")
        # Without a length the end of the connection is the end of the body.
        self._may_be_kept = answer.is_complete and answer.keeps_alive
        body = b"".join(answer.body)
        return HttpAnswer(url, parser.get_status_code(), answer.reason, answer.headers, body)


class _Answer:
    """The callbacks of httptools for one answer."""

    def __init__(self) -> None:
        self.parser: Any = None
        self.keeps_alive = False
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.reason = ""
        self.has_headers = False
        self.is_complete = False
        self._bytes = 0

    @property
    def has_length(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    def on_status(self, status: bytes) -> None:
        self.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value), HEADERS_BYTES_MAX)
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_headers = True
        # The parser has forgotten it once the message is complete.
        self.keeps_alive = self.parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._count(len(data), BODY_BYTES_MAX)
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True

    def _count(self, size: int, limit: int) -> None:
        self._bytes += size
        if self._bytes > limit:
            raise ValueError(f"the answer has more than {limit} bytes")

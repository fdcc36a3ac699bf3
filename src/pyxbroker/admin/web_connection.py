"""One client of the web port: HTTP/1.1 (RFC 9112) by httptools, with limits and deadlines.

A connection waits for a head, answers its request while the body comes in, then waits for the next
head. What a client sends ahead is kept in order, up to a bound, and the socket is not read
meanwhile. A client that is too slow, sends too much or is not understood gets a refusal behind the
answers that it waits for, and is closed.

There is one deadline at a time: for a head, for a body, for the next request, or for the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, cast

import httptools

from pyxbroker.admin.errors import HttpError, refusal
from pyxbroker.admin.request import Body, Request
from pyxbroker.admin.response import BODILESS, Response
from pyxbroker.base.log import get_logger

if TYPE_CHECKING:
    from pyxbroker.admin.server import WebServer

_log = get_logger(__name__)

URL_BYTES_MAX = 8 << 10
HEAD_BYTES_MAX = 16 << 10
# Requests that a client may send before it has got the answer to the first one.
PIPELINE_MAX = 32
# Bytes of a body that wait for a resource; with more, the socket is not read.
BODY_WINDOW = 64 << 10
# What nobody has read of a body is taken in, up to this size, to keep the connection.
DISCARD_BYTES_MAX = 256 << 10
# Up to here an answer's head and body are joined into one piece.
JOIN_BYTES_MAX = 64 << 10

HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 30.0
KEEP_ALIVE_TIMEOUT_S = 75.0
# A client that takes nothing of its answer for so long is cut off.
WRITE_TIMEOUT_S = 30.0
# A client that was refused may send the rest of what it wanted for so long.
LINGER_S = 5.0

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(asyncio.Protocol):
    """A connection of `server`, which answers its requests and knows when to stop."""

    def __init__(self, server: WebServer) -> None:
        self._server = server
        self._loop = server.loop
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = False  # kept for a next request, of which nothing has come
        self._is_reading = True
        self._is_deaf = False  # nothing more of what the client sends is looked at
        self._is_stopping = False  # the request that is being answered is the last one
        # The answer: to which request, and what waits behind it.
        self._current: Request | None = None
        self._waiting: deque[Request | HttpError] = deque()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._writable: asyncio.Future[None] | None = None
        # The head that is coming in.
        self._in_head = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        # Bytes since the parser last found anything in them.
        self._silent_bytes = 0
        self._has_found = False
        # The request whose body is coming in.
        self._receiving: Request | None = None
        self._wants_continue = False
        self._wants_upgrade = False
        self._is_resuming = False  # the parser is told again of a request that wanted an upgrade
        self._is_cut = False  # the client may be sending something that is not looked at

    # --- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._server.admit(self):
            self._set_timer(HEAD_TIMEOUT_S, self._on_head_timeout)
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._is_idle:
            self._is_idle = False
            self._set_timer(HEAD_TIMEOUT_S, self._on_head_timeout)
        self._has_found = False
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if not self._is_deaf:
                self._refuse(_explain(error))
            return
        # httptools joins the pieces of a header or a trailer by itself, however long it gets.
        self._silent_bytes = 0 if self._has_found else self._silent_bytes + len(data)
        if self._silent_bytes > HEAD_BYTES_MAX:
            self._refuse(_too_long_head())

    def eof_received(self) -> bool:
        """The client sends no more; it may still wait for its answers."""
        self._is_deaf = True
        self._end_body()
        return self._current is not None

    def connection_lost(self, error: Exception | None) -> None:
        self._is_deaf = True
        self._set_timer(0, None)
        self._waiting.clear()
        self._end_body()
        self.resume_writing()
        self._server.forget(self)
        # The parser and this object refer to each other.
        del self._parser

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._unsent = self._transport.get_write_buffer_size()
        self._stall_timer = self._loop.call_later(WRITE_TIMEOUT_S, self._on_stalled)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = self._stall_timer = None

    def stop(self) -> None:
        """Closes the connection, behind the answer that is being made."""
        self._is_stopping = True
        self._waiting.clear()
        if self._current is None:
            self._close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._is_deaf = True
        self._transport.abort()

    # --- deadlines ----------------------------------------------------------------------------

    def _set_timer(self, seconds: float, on_time: Callable[[], None] | None) -> None:
        """Replaces the deadline; by none, without `on_time`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if on_time is None else self._loop.call_later(seconds, on_time)

    def _on_head_timeout(self) -> None:
        if self._in_head:
            self._refuse(HttpError(408, f"The request did not come within {HEAD_TIMEOUT_S:g} s."))
        else:
            self._close()

    def _on_body_timeout(self) -> None:
        if not self._is_reading:
            # It is the resource that is slow.
            self._set_timer(BODY_TIMEOUT_S, self._on_body_timeout)
        elif self._current is None:
            self.abort()
        else:
            self._refuse(HttpError(408, f"The body did not come within {BODY_TIMEOUT_S:g} s."))

    def _on_stalled(self) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent >= self._unsent:
            self.abort()
            return
        self._unsent = unsent
        self._stall_timer = self._loop.call_later(WRITE_TIMEOUT_S, self._on_stalled)

    def _on_linger_timeout(self) -> None:
        unsent = self._transport.get_write_buffer_size()
        if 0 < unsent < self._unsent:
            self._unsent = unsent
            self._set_timer(WRITE_TIMEOUT_S, self._on_linger_timeout)
        else:
            self.abort()

    # --- requests come in ---------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Raises HttpParserError; whatever a callback raises is its context."""
        while data and not self._is_deaf:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            # Not in the handler: the upgrade would be the context of an error in what follows.
            self._resume()

    def _resume(self) -> None:
        """Goes on behind the head of a request that offered another protocol, such as h2c.

        Nobody has to take such an offer (RFC 9110, 7.8), and Java's client makes it with its first
        request. The parser stops there, before the body. A new one takes over; a head that says
        only how the body is framed brings it to the same place.
        """
        request = self._receiving
        assert request is not None
        lines = ["POST / HTTP/1.1"]
        for name in ("content-length", "transfer-encoding"):
            if name in request.headers:
                lines.append(f"{name}: {request.headers[name]}")
        if not request.keep_alive:
            lines.append("connection: close")
        self._wants_upgrade = False
        self._is_resuming = True
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        self._has_found = self._in_head = True
        self._url = b""
        self._headers = {}
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._is_resuming:
            return
        self._has_found = True
        self._url += url
        if len(self._url) > URL_BYTES_MAX:
            raise HttpError(414, f"The URL is longer than {URL_BYTES_MAX} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_resuming:
            return
        self._has_found = True
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _too_long_head()
        if not self._in_head:
            return  # A trailer; nobody reads those.
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        before = self._headers.get(key)
        if before is not None:
            if key == "host":
                raise HttpError(400, "The request names its host more than once.")
            text = f"{before}, {text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            self._is_resuming = False
            return
        self._has_found = True
        self._in_head = False
        headers = self._headers
        version = self._parser.get_http_version()
        if version == "1.1" and "host" not in headers:
            raise HttpError(400, "The request does not name its host.")
        if len(self._waiting) >= PIPELINE_MAX:
            raise HttpError(429, f"More than {PIPELINE_MAX} requests wait for their answers.")
        path, query = _parse_url(self._url)
        chunked = "transfer-encoding" in headers
        length = None if chunked else int(headers.get("content-length", 0))
        request = Request(
            self._parser.get_method().decode("ascii"),
            path,
            query,
            headers,
            Body(length, self._on_body_awaited),
            version=version,
            keep_alive=self._parser.should_keep_alive(),
        )
        self._wants_continue = version == "1.1" and "100-continue" in headers.get("expect", "")
        self._wants_upgrade = self._parser.should_upgrade()
        self._receiving = request
        if self._current is None:
            self._start(request)
        else:
            self._waiting.append(request)
            self._pause_reading()

    def on_body(self, data: bytes) -> None:
        self._has_found = True
        self._wants_continue = False
        assert self._receiving is not None
        body = self._receiving.body
        body.feed(data)
        if body.discarded > DISCARD_BYTES_MAX:
            self._close()
        elif body.size > BODY_WINDOW and not body.is_awaited and not body.is_discarded:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._wants_upgrade:
            return
        self._has_found = True
        request, self._receiving = self._receiving, None
        assert request is not None
        self._set_timer(0, None)
        request.body.end()
        if not request.keep_alive:
            self._is_deaf = True
        if self._current is None:
            self._next()

    def _on_body_awaited(self) -> None:
        """The resource wants more of the body than has come."""
        if self._wants_continue and self._current is self._receiving:
            self._wants_continue = False
            self._transport.write(CONTINUE)
        self._resume_reading()

    def _end_body(self) -> None:
        """No more of a body will come."""
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.body.fail(HttpError(400, "The connection ended before the body did."))

    def _refuse(self, error: HttpError) -> None:
        """Nothing more is understood, or wanted, of what the client sends."""
        self._is_deaf = self._is_cut = True
        receiving, self._receiving = self._receiving, None
        if receiving is not None and not receiving.body.is_discarded:
            # The resource's answer is the last one; it is this error if it reads the body.
            receiving.body.fail(error)
        elif self._current is None:
            self._write_refusal(error)
        else:
            self._waiting.append(error)

    def _pause_reading(self) -> None:
        if self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    # --- answers go out -----------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        self._current = request
        if request.body.complete:
            self._set_timer(0, None)
        else:
            self._set_timer(BODY_TIMEOUT_S, self._on_body_timeout)
        self._server.spawn(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            response = await self._server.answer(request)
            keep_alive = await self._respond(request, response)
        except asyncio.CancelledError:
            self.abort()
            raise
        except ConnectionError:
            return  # The client has gone.
        except Exception:
            # The answer has begun: nothing can be said to the client but that it is not whole.
            _log.exception("answer failed", method=request.method, path=request.path)
            self.abort()
            return
        self._on_answered(request, keep_alive)

    async def _respond(self, request: Request, response: Response) -> bool:
        """Writes an answer; returns whether the connection goes on. Raises ConnectionError."""
        keep_alive = self._can_go_on(request)
        version = "1.0" if request.version == "1.0" else "1.1"
        has_body = request.method != "HEAD" and response.status not in BODILESS
        framing = []
        if isinstance(response.body, bytes):
            if response.status not in BODILESS:
                framing.append(("Content-Length", str(len(response.body))))
        elif version == "1.1":
            framing.append(("Transfer-Encoding", "chunked"))
        elif has_body:
            keep_alive = False  # The end of the connection is the end of the body.
        if not keep_alive:
            framing.append(("Connection", "close"))
        elif version == "1.0":
            framing.append(("Connection", "keep-alive"))
        head = response.encode_head(version, framing)
        if isinstance(response.body, bytes):
            self._write_whole(head, response.body if has_body else b"")
        else:
            try:
                self._write_whole(head, b"")
                if has_body:
                    await self._write_pieces(response.body, version == "1.1")
            finally:
                await response.close()
        return keep_alive

    def _can_go_on(self, request: Request) -> bool:
        """Whether another request can follow: what nobody has read of the body is in the way."""
        if self._is_stopping or not request.keep_alive:
            return False
        body = request.body
        if body.complete:
            return True
        if self._is_deaf or self._wants_continue:
            return False
        return (body.length or 0) - body.size <= DISCARD_BYTES_MAX

    def _write_whole(self, head: bytes, body: bytes) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError
        if len(body) <= JOIN_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])

    async def _write_pieces(self, pieces: AsyncIterator[bytes], chunked: bool) -> None:
        """Writes a body as it is made, no faster than the client takes it."""
        async for piece in pieces:
            if not piece:
                continue
            if chunked:
                self._transport.writelines([b"%x\r\n" % len(piece), piece, b"\r\n"])
            else:
                self._transport.write(piece)
            if self._writable is not None:
                await self._writable
            if self._transport.is_closing():
                raise ConnectionResetError
        if chunked:
            self._transport.write(b"0\r\n\r\n")

    def _on_answered(self, request: Request, keep_alive: bool) -> None:
        self._current = None
        if not keep_alive:
            self._waiting.clear()
            self._close()
        elif request.body.complete:
            self._next()
        else:
            # The next request begins behind the rest of the body, whose deadline stays.
            request.body.discard()
            self._resume_reading()

    def _next(self) -> None:
        """Answers what waits, or waits for the next request."""
        if self._waiting:
            waiting = self._waiting.popleft()
            if isinstance(waiting, HttpError):
                self._write_refusal(waiting)
            else:
                self._start(waiting)
        elif self._is_deaf or self._is_stopping:
            self._close()
        else:
            self._resume_reading()
            if self._in_head:
                self._set_timer(HEAD_TIMEOUT_S, self._on_head_timeout)
            else:
                self._is_idle = True
                self._set_timer(KEEP_ALIVE_TIMEOUT_S, self._close)

    def _write_refusal(self, error: HttpError) -> None:
        """The last answer of a connection."""
        response = refusal(error.status, error.reason, error.headers)
        assert isinstance(response.body, bytes)
        framing = [("Content-Length", str(len(response.body))), ("Connection", "close")]
        if not self._transport.is_closing():
            self._transport.write(response.encode_head("1.1", framing) + response.body)
        self._close()

    def _close(self) -> None:
        """Closes when everything is written, or when the client has stopped to take it.

        A client that may be sending is heard to its end meanwhile: to close before that would
        reset the connection, and the client might lose the answer.
        """
        self._is_deaf = True
        if self._transport.is_closing():
            return
        if self._stall_timer is not None:
            # The deadline of the end takes over: two that look at one count would take each other's
            # look for a client that took nothing since.
            self._stall_timer.cancel()
            self._stall_timer = None
        self._unsent = self._transport.get_write_buffer_size()
        if (self._is_cut or self._receiving is not None) and self._transport.can_write_eof():
            self._set_timer(LINGER_S, self._on_linger_timeout)
            self._resume_reading()
            self._transport.write_eof()
        else:
            self._set_timer(WRITE_TIMEOUT_S, self._on_linger_timeout)
            self._transport.close()


def _too_long_head() -> HttpError:
    return HttpError(431, f"The headers are longer than {HEAD_BYTES_MAX} bytes.")


def _parse_url(url: bytes) -> tuple[str, str]:
    """The raw path and query of a request's target. Raises HttpError."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is None or parsed.path is None or not parsed.path.startswith(b"/"):
        raise HttpError(400, f"{url.decode('latin-1')!r} is not a path.")
    return parsed.path.decode("ascii"), (parsed.query or b"").decode("ascii")


def _explain(error: httptools.HttpParserError) -> HttpError:
    """The refusal for what the parser, or a callback of it, has met."""
    cause = error.__context__
    if isinstance(cause, HttpError):
        return cause
    if cause is not None:
        _log.failure("a request could not be taken in", cause)
        return HttpError(500, "The broker failed to read this request; its log says why.")
    return HttpError(400, f"This is not an HTTP request: {error}.")

"""One connection of the web port: its socket, its limits and deadlines, and its answers.

A connection waits for a head, answers the request while the body arrives, then waits for the next
head. Requests that a client pipelines are queued in order, up to a limit, while the socket is not
read. The next answer is produced when the client has received enough of the previous one. A client
that is too slow, sends too much, or sends invalid HTTP gets a refusal after the answers that are
due, and the connection is closed. `request_parser` interprets the bytes.

One deadline is active at a time: for a head, for a body, for the next request, or for the end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyxbroker.base.errors import AnswersNotRead, PulsarError, TooManyBodies
from pyxbroker.base.log import get_logger
from pyxbroker.base.memory_budget import (
    BODY_FREE_BYTES,
    COMMAND_BYTES,
    COMMAND_FACTOR,
    UnauthenticatedRequest,
    WebBody,
)
from pyxbroker.web.errors import HttpError, refusal
from pyxbroker.web.request import Body, Request
from pyxbroker.web.request_parser import (
    PIPELINE_MAX,
    End,
    Event,
    Head,
    RequestParser,
    State,
)
from pyxbroker.web.response import BODILESS, Response

if TYPE_CHECKING:
    from pyxbroker.web.server import WebServer

log = get_logger(__name__)

# Bytes of a body that wait for the resource to read them; above it the socket is not read.
BODY_WINDOW = BODY_FREE_BYTES
# An unread body is received and discarded up to this size, so that the connection can be reused.
DISCARD_BYTES_MAX = 256 << 10
# Head and body of an answer up to this size are joined for one write.
JOIN_BYTES_MAX = 64 << 10
PIECE_BYTES = 512 << 10  # of a larger answer, written per loop iteration

BODY_TIMEOUT_S = 30.0
KEEP_ALIVE_TIMEOUT_S = 75.0
# A connection is closed if its client receives none of an answer for this long.
WRITE_TIMEOUT_S = 30.0
# A refused client may continue to send for this long.
LINGER_S = 5.0

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Deadline(Enum):
    """The event that a connection waits for until its deadline."""

    HEAD = "a head"
    BODY = "a body"
    NEXT = "the next request"
    END = "remaining output or input"


class HttpConnection(asyncio.Protocol):
    """A connection of `server`."""

    def __init__(self, server: WebServer, address: str = "") -> None:
        self._server = server
        self.address = address  # of the client, without its port
        self.opening: asyncio.Task[None] | None = None  # done when there is a transport
        self._loop = server.loop
        self._queue = server.unauthenticated_queue()  # until its first request
        self._has_requested = False
        self._transport: asyncio.Transport  # from connection_made on
        self._is_open = False
        self._has_sent_eof = False  # the client has sent EOF; answers may still be due
        self._parser: RequestParser  # from connection_made on
        # Events of received bytes that are not handled yet.
        self._events: deque[Event] = deque()
        # The request whose body is being received.
        self._receiving: Request[Any] | None = None
        self._deadline: Deadline | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The request that is being answered, and the requests queued behind it.
        self._current: Request[Any] | None = None
        self._answering: asyncio.Task[None] | None = None  # while the answer is produced
        self._waiting: deque[Request[Any] | HttpError] = deque()
        # Until the request is authenticated: the account charged for it, and the task that
        # authenticates it.
        self._unauthenticated: UnauthenticatedRequest | None = None
        self._authenticating: asyncio.Task[None] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._was_waiting = False  # before writing was paused, or will be after it
        self._unsent = 0
        self._charged = 0  # for the answer that is being written
        self._writable: asyncio.Future[None] | None = None

    # --- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._common_name = ""
        if certificate := transport.get_extra_info("peercert"):
            from pyxbroker.auth.certificates import common_name_of

            self._common_name = common_name_of(certificate)
        self._is_open = True
        self._parser = RequestParser()
        self._set_deadline(Deadline.HEAD, self._server.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._queue.pace.is_free:
            self._queue.run(partial(self._receive, data))
            return
        # Limits the work per loop iteration when thousands of clients send at the same moment.
        self._pause_reading()
        self._queue.wait(partial(self._receive_later, data))

    def _receive_later(self, data: bytes) -> None:
        self._resume_reading()
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self._parser.has_ended:
            return
        if self._deadline is Deadline.NEXT:
            self._set_deadline(Deadline.HEAD, self._server.head_timeout_s)
        # The first request does not count as waiting.
        room = PIPELINE_MAX - len(self._waiting) + (self._current is None)
        self._events.extend(self._parser.receive(data, room))
        if self._parser.state is State.REFUSED and not self._has_requested:
            self._name_other_protocol(data)
        while self._events:
            self._handle(self._events.popleft())
        if self._unauthenticated is not None:
            self._charge_unauthenticated(self._unauthenticated)

    def _name_other_protocol(self, first: bytes) -> None:
        """Log the protocol of a client that does not speak HTTP, if it is recognized.

        Such a client does not understand the answer that it gets.
        """
        from pyxbroker.base.other_protocols import spoken_to_web_port

        what = spoken_to_web_port(first)
        if what is not None:
            log.warning("closed", peer=self.address, reason=what)

    def eof_received(self) -> bool:
        """Handle the client's EOF; answers may still be due."""
        if not self._queue.pace.is_free:
            self._queue.wait(self._end_later)
            return True  # _end_later closes it
        self._queue.run(self._end)
        return self._current is not None

    def _end_later(self) -> None:
        self._end()
        if self._current is None and not self._transport.is_closing():
            self._transport.close()

    def _end(self) -> None:
        self._parser.end()
        self._end_body()
        self._has_sent_eof = True
        if self._current is not None:
            self._current.has_sent_eof = True
            self._server.set_waiting(self, True)  # it may be evicted: probably disconnected

    def connection_lost(self, error: Exception | None) -> None:
        self._parser.end()
        self._clear_deadline()
        self._drop_waiting()
        self._end_body()
        if self._authenticating is not None:
            self._authenticating.cancel()  # a change by an authenticated client runs to completion
        elif self._answering is not None and self._current is not None:
            self._current.is_disconnected = True
            if self._current.is_for_client_only:
                self._answering.cancel()
        self.resume_writing()
        self._release(self._charged)
        self._server.forget(self)
        self._parser.close()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._unsent = self._transport.get_write_buffer_size()
        self._stall_timer = self._loop.call_later(WRITE_TIMEOUT_S, self._on_stalled)
        # A client that does not read its answer keeps the connection for the write timeout, unless
        # another client needs the place.
        self._was_waiting = self._server.set_waiting(self, True)

    def resume_writing(self) -> None:
        if self._writable is not None and not self._was_waiting:
            self._server.set_waiting(self, False)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = self._stall_timer = None

    def stop(self) -> None:
        """Close the connection after the answer that is being produced."""
        self._drop_waiting()
        if not self._is_open:
            self.abort()
        elif self._current is None:
            self._close()

    def abort(self) -> None:
        """Close the connection immediately, also during its handshake."""
        if self._is_open:
            self._ignore_input()
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    # --- deadlines ----------------------------------------------------------------------------

    def _set_deadline(self, deadline: Deadline, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = deadline
        self._timer = self._loop.call_later(seconds, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._deadline = self._timer = None

    def _on_deadline(self) -> None:
        if self._deadline is Deadline.HEAD:
            self._on_head_timeout()
        elif self._deadline is Deadline.BODY:
            self._on_body_timeout()
        elif self._deadline is Deadline.NEXT:
            self._close()
        else:
            self._on_linger_timeout()

    def _on_head_timeout(self) -> None:
        if self._parser.state is State.HEAD:
            within = f"{self._server.head_timeout_s:g} s"
            self._refuse(HttpError(408, f"The request did not come within {within}."))
        else:
            self._close()

    def _on_body_timeout(self) -> None:
        if not self._transport.is_reading():
            # The resource is slow, not the client.
            self._set_deadline(Deadline.BODY, BODY_TIMEOUT_S)
        elif self._current is None:
            self.abort()
        else:
            self._refuse(HttpError(408, f"The body did not come within {BODY_TIMEOUT_S:g} s."))

    def _on_stalled(self) -> None:
        # Nothing is written while the client is behind, so the count can only decrease.
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
            self._set_deadline(Deadline.END, WRITE_TIMEOUT_S)
        else:
            self.abort()

    # --- requests come in ---------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, bytes):
            self._on_body(event)
        elif isinstance(event, Head):
            self._on_head(event)
        elif isinstance(event, End):
            self._on_end()
        else:
            if event.__cause__ is not None:
                log.failure("a request could not be parsed", event.__cause__)
            self._refuse(event)

    def _on_head(self, head: Head) -> None:
        account = None
        if head.length != 0:
            account = WebBody(self._server.memory, self._refuse_body)
        body = Body(
            head.length,
            self._on_body_awaited,
            needs_continue=head.expects_continue,
            account=account,
        )
        request: Request[Any] = Request(
            head.method,
            head.path,
            head.query,
            head.headers,
            body,
            version=head.version,
            keep_alive=head.keep_alive,
            common_name=self._common_name,
            address=self.address,
            is_tls=self._is_tls,
            login=self._login,
        )
        self._receiving = request
        if self._current is None:
            self._start(request)
        else:
            self._waiting.append(request)
            self._pause_reading()

    def _on_body(self, data: bytes) -> None:
        assert self._receiving is not None
        body = self._receiving.body
        if body.account is not None:
            try:
                body.account.take_in(body.size + len(data))
            except TooManyBodies as error:
                self._refuse_body(str(error))
                return
        body.feed(data)
        if body.discarded > DISCARD_BYTES_MAX:
            self._close()
        elif body.size > BODY_WINDOW and not body.is_awaited and not body.is_discarded:
            self._pause_reading()

    def _on_end(self) -> None:
        request, self._receiving = self._receiving, None
        assert request is not None
        self._clear_deadline()
        request.body.end()
        if self._current is None:
            self._start_next()

    def _on_body_awaited(self) -> None:
        """Resume reading: the resource waits for more of the body than has arrived."""
        if self._current is not None and self._current is self._receiving:
            body = self._current.body
            if body.needs_continue:
                body.needs_continue = False
                self._transport.write(CONTINUE)
        self._resume_reading()

    def _end_body(self) -> None:
        """End the body that is being received: no more of it will arrive."""
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.body.fail(HttpError(400, "The connection ended before the body did."))

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error after the answers that are due, and ignore further input."""
        self._events.clear()
        self._parser.refuse()
        receiving, self._receiving = self._receiving, None
        if receiving is not None and not receiving.body.is_discarded:
            # The resource's answer is the last one; it is this error if the resource reads the
            # body.
            receiving.body.fail(error)
        elif self._current is None:
            self._write_refusal(error)
        else:
            self._waiting.append(error)

    def _refuse_body(self, reason: str) -> None:
        """Refuse the body that is being received: all bodies together are too large."""
        self._refuse(HttpError(TooManyBodies.http_status, reason))

    def _ignore_input(self) -> None:
        """Discard received events and ignore further input."""
        self._events.clear()
        self._parser.end()

    def _pause_reading(self) -> None:
        if self._transport.is_reading() and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()

    def _drop_waiting(self) -> None:
        """Drop the requests that wait for an answer."""
        for waiting in self._waiting:
            if isinstance(waiting, Request):
                waiting.body.close()
        self._waiting.clear()

    # --- authentication -----------------------------------------------------------------------

    @contextmanager
    def _login(self) -> Iterator[None]:
        """Charge the request like a CONNECT while it is being authenticated, which may query an
        external service.

        Authentication is cancelled when the client disconnects, and the connection may be evicted.
        Raises TooManyRequests.
        """
        if self._transport.is_closing():
            raise asyncio.CancelledError  # the result is not needed
        server = self._server
        account = UnauthenticatedRequest(server.memory, self.address, self.abort)
        try:
            server.memory.charge_unauthenticated(account, self._held_bytes())
            self._unauthenticated, self._authenticating = account, asyncio.current_task()
            server.set_waiting(self, True)
            yield
            if self._transport.is_closing():
                raise asyncio.CancelledError  # evicted meanwhile
        finally:
            self._unauthenticated = self._authenticating = None
            server.set_waiting(self, False)
            server.memory.forget_unauthenticated(account)
            account.memory.end()

    def _held_bytes(self) -> int:
        """Return the approximate size of the current request and of those queued behind it."""
        held = 0
        for request in (self._current, *self._waiting):
            if isinstance(request, Request):
                fields = sum(len(name) + len(text) for name, text in request.headers.items())
                head = fields + len(request.path) + len(request.query_string)
                held += COMMAND_BYTES + COMMAND_FACTOR * head + request.body.size
        return held

    def _charge_unauthenticated(self, account: UnauthenticatedRequest) -> None:
        """Charge what an unauthenticated client has sent since the last charge."""
        more = self._held_bytes() - account.memory.used
        try:
            if more > 0:
                self._server.memory.charge_unauthenticated(account, more)
        except PulsarError:
            self.abort()  # memory_budget has logged why

    # --- answers go out -----------------------------------------------------------------------

    def _start(self, request: Request[Any]) -> None:
        if not self._has_requested:
            self._has_requested = True
            self._queue = self._server.queue()
        self._current = request
        request.has_sent_eof = self._has_sent_eof
        self._server.set_waiting(self, request.has_sent_eof)
        if request.body.complete:
            self._clear_deadline()
        else:
            self._set_deadline(Deadline.BODY, BODY_TIMEOUT_S)
        self._server.spawn(self._serve(request), self._queue)

    async def _serve(self, request: Request[Any]) -> None:
        counts, began_s = self._server.counts, time.perf_counter()
        counts.begin()
        try:
            self._answering = asyncio.current_task()
            try:
                response = await self._server.answer(request)
            finally:
                self._answering = None
            request.body.close()
            keep_alive = await self._respond(request, await self._charge(response))
            if keep_alive:
                await self._wait_for_client(request)
        except asyncio.CancelledError:
            self.abort()
            self._current = None  # task and connection refer to each other: a cycle
            raise
        except ConnectionError:
            self._current = (
                None  # The client has disconnected. As above: the reference cycle is broken.
            )
            return
        except AnswersNotRead:
            # Already logged. The answer has begun: closing is the only way to mark it as
            # incomplete.
            self.abort()
            return
        except Exception:
            # The answer has begun: closing is the only way to mark it as incomplete.
            log.exception("answer failed", method=request.method, path=request.path)
            self.abort()
            return
        finally:
            counts.end(time.perf_counter() - began_s)
            request.body.close()
        self._on_answered(request, keep_alive)

    async def _charge(self, response: Response) -> Response:
        """Charge an answer until the client has received it; return a refusal if it is too
        large.
        """
        if self._transport.is_closing():
            await response.close()
            raise ConnectionResetError
        head = sum(len(name) + len(value) for name, value in response.headers)
        body = len(response.body) if isinstance(response.body, bytes) else response.held_bytes
        try:
            self._charged = self._server.memory.charge_answer(head + body)
        except AnswersNotRead as error:
            await response.close()
            return refusal(error.http_status, str(error))
        return response

    def _release(self, cost: int) -> None:
        self._server.memory.release_answer(cost)
        self._charged -= cost

    async def _respond(self, request: Request[Any], response: Response) -> bool:
        """Write an answer; return True if the connection stays open. Raises ConnectionError."""
        keep_alive = self._can_keep_alive(request)
        version = "1.0" if request.version == "1.0" else "1.1"
        has_body = request.method != "HEAD" and response.status not in BODILESS
        framing = []
        if isinstance(response.body, bytes):
            if response.status not in BODILESS:
                framing.append(("Content-Length", str(len(response.body))))
        elif version == "1.1":
            framing.append(("Transfer-Encoding", "chunked"))
        elif has_body:
            keep_alive = False  # The end of the connection marks the end of the body.
        if not keep_alive:
            framing.append(("Connection", "close"))
        elif version == "1.0":
            framing.append(("Connection", "keep-alive"))
        head = response.encode_head(version, framing)
        self._server.counts.responses[f"{response.status // 100}xx"] += 1
        if isinstance(response.body, bytes):
            await self._write_body(head, response.body if has_body else b"")
        else:
            try:
                self._write(head)
                if has_body:
                    await self._write_pieces(response.body, version == "1.1")
            finally:
                await response.close()
        return keep_alive

    def _can_keep_alive(self, request: Request[Any]) -> bool:
        """Return True if another request can follow the rest of the body that the resource did not
        read.
        """
        if self._server.is_stopping or not request.keep_alive:
            return False
        body = request.body
        if body.complete:
            return True
        if self._parser.has_ended or body.needs_continue:
            return False
        return (body.length or 0) - body.size <= DISCARD_BYTES_MAX

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError
        self._server.counts.response_bytes += len(data)
        self._transport.write(data)

    async def _write_body(self, head: bytes, body: bytes) -> None:
        """Write a complete body. Bytes that the client has not received wait in the transport."""
        if len(body) <= JOIN_BYTES_MAX:
            self._write(head + body)
        else:
            self._write(head)
            await self._write_long(body)

    async def _write_long(self, data: bytes) -> None:
        """Write a large body in pieces, one per loop iteration.

        The kernel accepts megabytes in one call, which would delay other clients.
        """
        view = memoryview(data)
        for at in range(0, len(data), PIECE_BYTES):
            if self._writable is not None:
                # The client is behind: the transport only queues the rest.
                self._write(view[at:])
                self._unsent = self._transport.get_write_buffer_size()
                return
            self._write(view[at : at + PIECE_BYTES])
            await asyncio.sleep(0)  # uvloop sends written data between two iterations

    async def _write_pieces(self, pieces: AsyncIterator[bytes], chunked: bool) -> None:
        """Write a body piece by piece as it is produced, no faster than the client reads.

        Raises AnswersNotRead if a piece exceeds the memory limit, and ConnectionResetError.
        """
        async for piece in pieces:
            if not piece:
                continue
            if self._transport.is_closing():
                raise ConnectionResetError  # what is charged from now on would not be released
            cost = self._server.memory.charge_answer(len(piece))
            self._charged += cost
            if len(piece) > PIECE_BYTES:
                self._write(b"%x\r\n" % len(piece) if chunked else b"")
                await self._write_long(piece)
                self._write(b"\r\n" if chunked else b"")
            elif chunked:
                self._transport.writelines([b"%x\r\n" % len(piece), piece, b"\r\n"])
                self._server.counts.response_bytes += len(piece)
            else:
                self._write(piece)
            await self._wait_writable()
            self._release(cost)
        if chunked:
            self._transport.write(b"0\r\n\r\n")

    async def _wait_for_client(self, request: Request[Any]) -> None:
        """Wait until the client has received the answer, so that answers do not pile up.

        The rest of the body is received meanwhile, because many clients send all of it before they
        read. A connection whose body is incomplete may be evicted: clients are answered before
        their bodies are complete, also unauthenticated ones.
        """
        if not request.body.complete:
            request.body.discard()
            self._server.set_waiting(self, True)
            self._was_waiting = True
            self._resume_reading()
        await self._wait_writable()
        self._release(self._charged)

    async def _wait_writable(self) -> None:
        """Wait while the client is behind.

        Raises ConnectionResetError after it has disconnected.
        """
        if self._writable is not None:
            await self._writable
        if self._transport.is_closing():
            raise ConnectionResetError

    def _on_answered(self, request: Request[Any], keep_alive: bool) -> None:
        self._current = None
        if not keep_alive:
            self._drop_waiting()
            self._close()
        elif request.body.complete or self._parser.has_ended or self._server.is_stopping:
            self._start_next()
        # Otherwise the client still sends the body of this request, and its deadline remains.

    def _start_next(self) -> None:
        """Answer the next queued request, or wait for one."""
        if self._waiting:
            waiting = self._waiting.popleft()
            if isinstance(waiting, HttpError):
                self._write_refusal(waiting)
            else:
                self._start(waiting)
        elif self._server.is_stopping or (self._parser.has_ended and not self._events):
            self._close()
        else:
            self._resume_reading()
            self._server.set_waiting(self, True)
            if self._parser.state is State.HEAD:
                self._set_deadline(Deadline.HEAD, self._server.head_timeout_s)
            else:
                self._set_deadline(Deadline.NEXT, KEEP_ALIVE_TIMEOUT_S)

    def _write_refusal(self, error: HttpError) -> None:
        """Write an error as the last answer of the connection."""
        response = refusal(error.status, error.reason, error.headers)
        self._server.counts.responses[f"{error.status // 100}xx"] += 1
        assert isinstance(response.body, bytes)
        framing = [("Content-Length", str(len(response.body))), ("Connection", "close")]
        if not self._transport.is_closing():
            self._transport.write(response.encode_head("1.1", framing) + response.body)
        self._close()

    def _close(self) -> None:
        """Close when the client has received everything, or has stopped receiving.

        Input of a client that may still be sending is read until then. Closing earlier would reset
        the connection, and the client might lose the answer.
        """
        self._ignore_input()
        if self._transport.is_closing():
            return
        if self._stall_timer is not None:
            # The end deadline takes over. Both timers compare the same count: each would hide
            # progress from the other.
            self._stall_timer.cancel()
            self._stall_timer = None
        self._unsent = self._transport.get_write_buffer_size()
        # Until the client has received the rest and closed, which may take long over TLS.
        self._server.set_waiting(self, True)
        self._was_waiting = True
        is_sending = self._parser.state is State.REFUSED or self._receiving is not None
        if is_sending and self._transport.can_write_eof():
            self._set_deadline(Deadline.END, LINGER_S)
            self._resume_reading()
            self._transport.write_eof()
        else:
            self._set_deadline(Deadline.END, WRITE_TIMEOUT_S)
            self._transport.close()

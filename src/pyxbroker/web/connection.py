"""One client of the web port: its socket, with limits and deadlines, and its answers.

A connection waits for a head, answers its request while the body comes in, then waits for the next
head. What a client sends ahead is kept in order, up to a bound, and the socket is not read
meanwhile; the next answer is made when the client has taken enough of the last one. A client that
is too slow, sends too much or is not understood gets a refusal behind the answers that it waits
for, and is closed. What its bytes mean is `request_parser`'s to say.

There is one deadline at a time: for a head, for a body, for the next request, or for the end.
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

# Bytes of a body that wait for a resource; with more, the socket is not read.
BODY_WINDOW = BODY_FREE_BYTES
# What nobody has read of a body is taken in, up to this size, to keep the connection.
DISCARD_BYTES_MAX = 256 << 10
# Up to here an answer's head and body are joined into one piece.
JOIN_BYTES_MAX = 64 << 10
PIECE_BYTES = 512 << 10  # of a larger one, in a turn of the loop

BODY_TIMEOUT_S = 30.0
KEEP_ALIVE_TIMEOUT_S = 75.0
# A client that takes nothing of its answer for so long is cut off.
WRITE_TIMEOUT_S = 30.0
# A client that was refused may send the rest of what it wanted for so long.
LINGER_S = 5.0

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Deadline(Enum):
    """What has to come, or to be over, in time."""

    HEAD = "a head"
    BODY = "a body"
    NEXT = "the next request"
    END = "what is left to be written, or to be heard"


class HttpConnection(asyncio.Protocol):
    """A connection of `server`, which answers its requests and knows when to stop."""

    def __init__(self, server: WebServer, address: str = "") -> None:
        self._server = server
        self.address = address  # of the client, without its port
        self.opening: asyncio.Task[None] | None = None  # ends when there is a transport
        self._loop = server.loop
        self._line = server.strangers_line()  # another one from its first request on
        self._has_asked = False
        self._transport: asyncio.Transport  # from connection_made on
        self._is_open = False
        self._sends_no_more = False  # it may still wait for its answers
        self._parser: RequestParser  # from connection_made on
        # What has come in this turn and is not handled yet.
        self._events: deque[Event] = deque()
        # The request whose body is coming in.
        self._receiving: Request[Any] | None = None
        self._deadline: Deadline | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The answer: to which request, and what waits behind it.
        self._current: Request[Any] | None = None
        self._answering: asyncio.Task[None] | None = None  # while it is made
        self._waiting: deque[Request[Any] | HttpError] = deque()
        # While it is not known who has sent the request: who pays, and what looks at it.
        self._stranger: UnauthenticatedRequest | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._was_waiting = False  # for its client, before that was behind, or will be after it
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
        if self._line.pace.is_free:
            self._line.run(partial(self._receive, data))
            return
        # Thousands may send something in one moment.
        self._pause_reading()
        self._line.wait(partial(self._receive_later, data))

    def _receive_later(self, data: bytes) -> None:
        self._resume_reading()
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self._parser.has_ended:
            return
        if self._deadline is Deadline.NEXT:
            self._set_deadline(Deadline.HEAD, self._server.head_timeout_s)
        # The first one does not wait.
        room = PIPELINE_MAX - len(self._waiting) + (self._current is None)
        self._events.extend(self._parser.receive(data, room))
        if self._parser.state is State.REFUSED and not self._has_asked:
            self._name_other_protocol(data)
        while self._events:
            self._handle(self._events.popleft())
        if self._stranger is not None:
            self._charge_stranger(self._stranger)

    def _name_other_protocol(self, first: bytes) -> None:
        """Log what the client speaks, where that is known and not HTTP: it gets an answer that it
        does not understand.
        """
        from pyxbroker.base.other_protocols import spoken_to_web_port

        what = spoken_to_web_port(first)
        if what is not None:
            log.warning("closed", peer=self.address, reason=what)

    def eof_received(self) -> bool:
        """The client sends no more; it may still wait for its answers."""
        if not self._line.pace.is_free:
            self._line.wait(self._end_later)
            return True  # it is closed then
        self._line.run(self._end)
        return self._current is not None

    def _end_later(self) -> None:
        self._end()
        if self._current is None and not self._transport.is_closing():
            self._transport.close()

    def _end(self) -> None:
        self._parser.end()
        self._end_body()
        self._sends_no_more = True
        if self._current is not None:
            self._current.sends_no_more = True
            self._server.waits(self, True)  # for its end, mostly: others may need its place

    def connection_lost(self, error: Exception | None) -> None:
        self._parser.end()
        self._clear_deadline()
        self._drop_waiting()
        self._end_body()
        if self._looking is not None:
            self._looking.cancel()  # a change that somebody known has begun goes on
        elif self._answering is not None and self._current is not None:
            self._current.is_gone = True
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
        # Who takes nothing of its answer has so long for it, but not a place that others need.
        self._was_waiting = self._server.waits(self, True)

    def resume_writing(self) -> None:
        if self._writable is not None and not self._was_waiting:
            self._server.waits(self, False)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = self._stall_timer = None

    def stop(self) -> None:
        """Closes the connection, behind the answer that is being made."""
        self._drop_waiting()
        if not self._is_open:
            self.abort()
        elif self._current is None:
            self._close()

    def abort(self) -> None:
        """Closes the connection at once, also while its handshake is not over."""
        if self._is_open:
            self._hear_no_more()
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    # --- deadlines ----------------------------------------------------------------------------

    def _set_deadline(self, deadline: Deadline, seconds: float) -> None:
        """Replaces the deadline."""
        self._clear_deadline()
        self._deadline = deadline
        self._timer = self._loop.call_later(seconds, self._on_time)

    def _clear_deadline(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._deadline = self._timer = None

    def _on_time(self) -> None:
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
            # It is the resource that is slow.
            self._set_deadline(Deadline.BODY, BODY_TIMEOUT_S)
        elif self._current is None:
            self.abort()
        else:
            self._refuse(HttpError(408, f"The body did not come within {BODY_TIMEOUT_S:g} s."))

    def _on_stalled(self) -> None:
        # No answer is written while the client is behind: it can only become less.
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
                log.failure("a request could not be taken in", event.__cause__)
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
            self._next()

    def _on_body_awaited(self) -> None:
        """The resource wants more of the body than has come."""
        if self._current is not None and self._current is self._receiving:
            body = self._current.body
            if body.needs_continue:
                body.needs_continue = False
                self._transport.write(CONTINUE)
        self._resume_reading()

    def _end_body(self) -> None:
        """No more of a body will come."""
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.body.fail(HttpError(400, "The connection ended before the body did."))

    def _refuse(self, error: HttpError) -> None:
        """Nothing more is understood, or wanted, of what the client sends."""
        self._events.clear()
        self._parser.refuse()
        receiving, self._receiving = self._receiving, None
        if receiving is not None and not receiving.body.is_discarded:
            # The resource's answer is the last one; it is this error if it reads the body.
            receiving.body.fail(error)
        elif self._current is None:
            self._write_refusal(error)
        else:
            self._waiting.append(error)

    def _refuse_body(self, reason: str) -> None:
        """The body that comes in is too much, beside those of others."""
        self._refuse(HttpError(TooManyBodies.http_status, reason))

    def _hear_no_more(self) -> None:
        """Nothing more of what the client sends is looked at."""
        self._events.clear()
        self._parser.end()

    def _pause_reading(self) -> None:
        if self._transport.is_reading() and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()

    def _drop_waiting(self) -> None:
        """Nothing that waits behind the answer is answered."""
        for waiting in self._waiting:
            if isinstance(waiting, Request):
                waiting.body.close()
        self._waiting.clear()

    # --- who sends a request ------------------------------------------------------------------

    @contextmanager
    def _login(self) -> Iterator[None]:
        """While it is not known who has sent the request, which may have to be asked elsewhere: it
        ends with its client, gives way where places are wanted, and is paid for as a CONNECT is.
        Raises TooManyRequests.
        """
        if self._transport.is_closing():
            raise asyncio.CancelledError  # nobody waits for what would be found
        server = self._server
        stranger = UnauthenticatedRequest(server.memory, self.address, self.abort)
        try:
            server.memory.charge_unauthenticated(stranger, self._held_bytes())
            self._stranger, self._looking = stranger, asyncio.current_task()
            server.waits(self, True)
            yield
            if self._transport.is_closing():
                raise asyncio.CancelledError  # it was looked at to the end, and has gone
        finally:
            self._stranger = self._looking = None
            server.waits(self, False)
            server.memory.forget_unauthenticated(stranger)
            stranger.memory.end()

    def _held_bytes(self) -> int:
        """About what is kept of the request that is looked at, and of those behind it."""
        held = 0
        for request in (self._current, *self._waiting):
            if isinstance(request, Request):
                fields = sum(len(name) + len(text) for name, text in request.headers.items())
                head = fields + len(request.path) + len(request.query_string)
                held += COMMAND_BYTES + COMMAND_FACTOR * head + request.body.size
        return held

    def _charge_stranger(self, stranger: UnauthenticatedRequest) -> None:
        """More has come of somebody who is not known yet."""
        more = self._held_bytes() - stranger.memory.used
        try:
            if more > 0:
                self._server.memory.charge_unauthenticated(stranger, more)
        except PulsarError:
            self.abort()  # the log has why

    # --- answers go out -----------------------------------------------------------------------

    def _start(self, request: Request[Any]) -> None:
        if not self._has_asked:
            self._has_asked = True
            self._line = self._server.line()
        self._current = request
        request.sends_no_more = self._sends_no_more
        self._server.waits(self, request.sends_no_more)
        if request.body.complete:
            self._clear_deadline()
        else:
            self._set_deadline(Deadline.BODY, BODY_TIMEOUT_S)
        self._server.spawn(self._serve(request), self._line)

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
                await self._make_room(request)
        except asyncio.CancelledError:
            self.abort()
            self._current = None  # each knows the other: no ring is left of them
            raise
        except ConnectionError:
            self._current = None  # The client has gone, and here, too, no ring is left.
            return
        except AnswersNotRead:
            # It is logged. The answer has begun: that it is not whole is all that can be said.
            self.abort()
            return
        except Exception:
            # The answer has begun: nothing can be said to the client but that it is not whole.
            log.exception("answer failed", method=request.method, path=request.path)
            self.abort()
            return
        finally:
            counts.end(time.perf_counter() - began_s)
            request.body.close()
        self._on_answered(request, keep_alive)

    async def _charge(self, response: Response) -> Response:
        """Pays for an answer until the client has taken it; the refusal where that is too much."""
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

    def _can_go_on(self, request: Request[Any]) -> bool:
        """Whether another request can follow: what nobody has read of the body is in the way."""
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
        """Writes a body that is there as a whole: what a client has not taken waits in the
        transport.
        """
        if len(body) <= JOIN_BYTES_MAX:
            self._write(head + body)
        else:
            self._write(head)
            await self._write_long(body)

    async def _write_long(self, data: bytes) -> None:
        """Writes some of it in each turn: the system takes megabytes in one go, which is a long
        turn for everybody else.
        """
        view = memoryview(data)
        for at in range(0, len(data), PIECE_BYTES):
            if self._writable is not None:
                # The client is behind: the rest is only put in the queue.
                self._write(view[at:])
                self._unsent = self._transport.get_write_buffer_size()
                return
            self._write(view[at : at + PIECE_BYTES])
            await asyncio.sleep(0)  # what is written is sent between two turns

    async def _write_pieces(self, pieces: AsyncIterator[bytes], chunked: bool) -> None:
        """Writes a body as it is made, no faster than the client takes it. Raises AnswersNotRead
        where a piece is too much, and ConnectionResetError.
        """
        async for piece in pieces:
            if not piece:
                continue
            if self._transport.is_closing():
                raise ConnectionResetError  # nobody would give back what is charged from now on
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
            await self._until_writable()
            self._release(cost)
        if chunked:
            self._transport.write(b"0\r\n\r\n")

    async def _make_room(self, request: Request[Any]) -> None:
        """Waits for the client to take what is written: who reads nothing gets no more answers.

        The rest of the body comes in meanwhile: many clients read nothing before they sent it all.
        Who owes it waits for nothing but its own client, and may have to give way: strangers are
        answered before their body has come.
        """
        if not request.body.complete:
            request.body.discard()
            self._server.waits(self, True)
            self._was_waiting = True
            self._resume_reading()
        await self._until_writable()
        self._release(self._charged)

    async def _until_writable(self) -> None:
        """Waits while the client is behind. Raises ConnectionResetError when it has gone."""
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
            self._next()
        # Else the next request begins behind the rest of the body, whose deadline stays.

    def _next(self) -> None:
        """Answers what waits, or waits for the next request."""
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
            self._server.waits(self, True)
            if self._parser.state is State.HEAD:
                self._set_deadline(Deadline.HEAD, self._server.head_timeout_s)
            else:
                self._set_deadline(Deadline.NEXT, KEEP_ALIVE_TIMEOUT_S)

    def _write_refusal(self, error: HttpError) -> None:
        """The last answer of a connection."""
        response = refusal(error.status, error.reason, error.headers)
        self._server.counts.responses[f"{error.status // 100}xx"] += 1
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
        self._hear_no_more()
        if self._transport.is_closing():
            return
        if self._stall_timer is not None:
            # The deadline of the end takes over: two that look at one count would take each other's
            # look for a client that took nothing since.
            self._stall_timer.cancel()
            self._stall_timer = None
        self._unsent = self._transport.get_write_buffer_size()
        # For its client to take the rest, and to end, which over TLS may take long.
        self._server.waits(self, True)
        self._was_waiting = True
        is_sending = self._parser.state is State.REFUSED or self._receiving is not None
        if is_sending and self._transport.can_write_eof():
            self._set_deadline(Deadline.END, LINGER_S)
            self._resume_reading()
            self._transport.write_eof()
        else:
            self._set_deadline(Deadline.END, WRITE_TIMEOUT_S)
            self._transport.close()

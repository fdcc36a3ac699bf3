"""A client of the web port: any bytes, in any pieces.

An input is a byte that says how the stream is cut, a byte that says how the answers are made, and
requests: made ones with parts that are wrong, or bytes as they are. Held to:

- the events of the parser are the same however the stream is cut, and none says that it is our
  fault; a refusal or the last request is the end;
- h11 does not refuse what it can judge and we take, but for what llhttp is known to read otherwise;
- a connection answers every request it takes once, in order, in well-formed HTTP, and says `close`
  on the last answer only; nothing reaches the loop's handler of exceptions;
- what a connection keeps of a client is bounded, and given back at its end.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import driver

with driver.guided("pyxbroker.web"):
    from pyxbroker.base import pacing
    from pyxbroker.broker.client_memory import ClientMemory
    from pyxbroker.web import connection as web_connection
    from pyxbroker.web import request_parser
    from pyxbroker.web.counts import WebCounts
    from pyxbroker.web.errors import HttpError
    from pyxbroker.web.request_parser import END, End, Head, RequestParser, State
    from pyxbroker.web.response import Response

import h11

from web_client import echo

REWRITTEN = ("content-length", "transfer-encoding")  # h11 says them in its own way
ROOM = 33
TURNS_MAX = 30  # of the loop, in which a request is answered
INPUT_BYTES_MAX = 512
STREAM_BYTES_MAX = 20 << 10  # enough for a head that is too long
PIECES_MAX = 64
PARTS = (
    b"GET /a HTTP/1.1\r\n",
    b"POST /b%20c?d=e HTTP/1.1\r\n",
    b"HEAD /unread HTTP/1.0\r\n",
    b"PUT http://h/x HTTP/1.1\r\n",
    b"Host: h\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Expect:\t100-continue \r\n",
    b"\r\n",
    b"hello",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"0\r\nTrailer: x\r\n\r\n",
    b"Content-Length: 18446744073709551615\r\n",
    b"X: " + b"y" * 4000 + b"\r\n",
    b"GET /" + b"z" * 8190 + b" HTTP/1.1\r\n",
    b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
)


def stream_of(steps: driver.Steps) -> bytes:
    """Bytes below 32 choose a part; with another, so many bytes of the input come as they are."""
    found = b""
    while steps and len(found) < STREAM_BYTES_MAX:
        kind = steps.byte()
        found += PARTS[kind % len(PARTS)] if kind < 128 else steps.rest(kind - 127)
    return found


def pieces_of(stream: bytes, cut: int) -> list[bytes]:
    """The stream in pieces of a few lengths that take turns."""
    if cut == 0 or not stream:
        return [stream]
    least = len(stream) // PIECES_MAX
    lengths = (least + cut, least + 1 + cut % 7, least + 1 + cut * cut % 251)
    found, at = [], 0
    while at < len(stream):
        length = lengths[len(found) % 3]
        found.append(stream[at : at + length])
        at += length
    return found


# --- the parser -----------------------------------------------------------------------------------


def events_of(pieces: list[bytes]) -> tuple[list[Any], RequestParser]:
    """What a parser finds, bodies joined, refusals as their status."""
    parser = RequestParser()
    found: list[Any] = []
    for piece in pieces:
        if parser.has_ended:
            break
        for event in parser.receive(piece, ROOM):
            if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
                found[-1] += event
            elif isinstance(event, HttpError):
                assert event.__cause__ is None, f"a fault of ours: {event.__cause__!r}"
                found.append(event.status)
            else:
                found.append(event)
    check_bounds(parser)
    parser.close()
    return found, parser


def check_bounds(parser: RequestParser) -> None:
    assert len(parser._url) <= 2 * request_parser.URL_BYTES_MAX
    assert sum(map(len, parser._headers.values())) <= 2 * request_parser.HEAD_BYTES_MAX


def check_events(events: list[Any], parser: RequestParser) -> None:
    """A head, pieces, an end, and so on; after a refusal nothing."""
    is_open = False
    for at, event in enumerate(events):
        if isinstance(event, int):
            assert at == len(events) - 1 and parser.state is State.REFUSED
            assert 400 <= event < 500, event
        elif isinstance(event, Head):
            assert not is_open
            is_open = True
        else:
            assert is_open
            is_open = not isinstance(event, End)


def compare_with_h11(stream: bytes, events: list[Any]) -> None:
    """Where both took the first request, they read the same in it."""
    if not events or not isinstance(events[0], Head):
        return
    judge = h11.Connection(h11.SERVER, max_incomplete_event_size=64 << 10)
    try:
        judge.receive_data(stream)
        request = judge.next_event()
        body = b""
        while isinstance(event := judge.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return  # It is stricter in places, such as empty headers' names; that is no fault.
    head = events[0]
    if not isinstance(request, h11.Request) or not isinstance(event, h11.EndOfMessage):
        return
    assert request.method.decode() == head.method
    assert values_of(request) == {
        name: value for name, value in head.headers.items() if name not in REWRITTEN
    }
    if END in events:
        ours = b"".join(each for each in events[1 : events.index(END)] if isinstance(each, bytes))
        assert ours == body, f"{ours!r} instead of {body!r}"
    # It leaves this open behind an offer, and knows no keep-alive of HTTP/1.0.
    if head.version == "1.1" and judge.their_state in (h11.DONE, h11.MUST_CLOSE):
        assert head.keep_alive == (judge.their_state is h11.DONE)


def values_of(request: h11.Request) -> dict[str, str]:
    """Its headers as ours are: what comes twice is one, with a comma."""
    found: dict[str, list[str]] = {}
    for name, value in request.headers:
        found.setdefault(name.decode(), []).append(value.decode("latin-1"))
    return {name: ", ".join(each) for name, each in found.items() if name not in REWRITTEN}


# --- the connection -------------------------------------------------------------------------------


class Transport:
    """As much of a transport as a connection asks for; the client takes everything at once."""

    def __init__(self) -> None:
        self.sent = b""
        self.reading = True
        self.closing = False
        self.ended = False

    def get_extra_info(self, name: str) -> None:
        """Nothing: the client has not come over TLS."""

    def write(self, data: bytes) -> None:
        assert not self.ended, "something was written behind the end"
        self.sent += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_reading(self) -> bool:
        return self.reading and not self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closing = True

    abort = close


class Server:
    """As much of a WebServer as a connection asks for."""

    is_stopping = False
    head_timeout_s = 10.0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.tasks: set[asyncio.Task[None]] = set()
        # What an input does must not depend on the machine.
        self._pace = pacing.Pace(math.inf)
        self.memory = ClientMemory()
        self.heads: list[tuple[str, str]] = []
        self.counts = WebCounts()

    def set_waiting(self, connection: Any, is_waiting: bool) -> bool:
        """Nobody has to give way."""
        return False

    def forget(self, connection: Any) -> None:
        """Nothing is counted."""

    def line(self) -> pacing.Line:
        return self._pace.line()

    unauthenticated_line = line

    def spawn(self, answering: Any, line: pacing.Line) -> None:
        task = self.loop.create_task(pacing.paced(answering, line))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def answer(self, request: Any) -> Response:
        self.heads.append((request.method, request.path))
        with request.login():
            await asyncio.sleep(0)
        return await echo(request)


def serve(pieces: list[bytes], turns: int) -> tuple[Server, Transport, list[dict[str, Any]]]:
    """Gives a connection the pieces, with so many turns of the loop between two of them."""
    faults: list[dict[str, Any]] = []

    async def main() -> tuple[Server, Transport]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        server, transport = Server(loop), Transport()
        connection = web_connection.HttpConnection(server)  # type: ignore[arg-type]
        connection.connection_made(transport)  # type: ignore[arg-type]
        for piece in pieces:
            for _ in range(turns):
                await asyncio.sleep(0)
            for _ in range(ROOM * TURNS_MAX):
                if transport.is_reading() or transport.closing or not server.tasks:
                    break
                await asyncio.sleep(0)
            if transport.closing:
                break
            assert transport.is_reading(), "it waits for nothing, and does not read"
            connection.data_received(piece)
            assert len(connection._waiting) <= request_parser.PIPELINE_MAX + 1
        if not transport.closing:
            connection.eof_received()
        for _ in range(ROOM * TURNS_MAX):
            if not server.tasks:
                break
            await asyncio.sleep(0)
        assert not server.tasks, "an answer does not end"
        connection.connection_lost(None)
        assert server.memory.answer_bytes == 0, "what an answer held is not given back"
        assert server.memory.body_bytes == 0, "what a body held is not given back"
        assert server.memory.used == 0, "what a login held is not given back"
        return server, transport

    server, transport = LOOP.run_until_complete(main())
    return server, transport, faults


LOOP = asyncio.new_event_loop()


def check_answers(sent: bytes, heads: list[tuple[str, str]]) -> None:
    """Every request that was begun has its answer, in order; then at most a refusal."""
    stream = sent.replace(web_connection.CONTINUE, b"")
    at = 0
    closed = False
    while stream:
        assert not closed, "an answer follows the one that said close"
        method = heads[at][0] if at < len(heads) else "GET"
        head, blank, stream = stream.partition(b"\r\n\r\n")
        assert blank, "a head is cut short"
        first, *lines = head.decode("ascii").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version in ("HTTP/1.0", "HTTP/1.1") and 200 <= int(status) < 500, first
        headers = dict(line.split(": ", 1) for line in lines)
        length = 0 if method == "HEAD" else int(headers["Content-Length"])
        assert len(stream) >= length, "an answer is cut short"
        stream = stream[length:]
        closed = headers.get("Connection") == "close"
        at += 1
    assert len(heads) <= at <= len(heads) + 1, f"{at} answers to {len(heads)} requests"


# --- the target -----------------------------------------------------------------------------------


def seeds() -> list[bytes]:
    """Requests of every kind, whole and wrong."""
    get, length = bytes([0, 4, 11]), bytes([1, 4, 5, 11, 12])
    chunks, offer = bytes([1, 4, 6, 11, 13, 13, 15]), bytes([1, 4, 9, 5, 11, 12])
    wrong = [bytes([0, 4, each, 11, 12]) for each in range(len(PARTS))]
    bodies = [get * 3, length, chunks + get, offer + get, get * 40, *wrong, bytes([19] * 45)]
    raw = b"GET / HTTP/1.1\r\nHost: h\r\nX:\ty\r\n\r\n"
    bodies.append(bytes([127 + len(raw)]) + raw)
    return [bytes([cut, cut % 3]) + each for cut in (0, 1, 7) for each in bodies]


def one_input(data: bytes) -> None:
    steps = driver.Steps(data)
    cut, turns = steps.byte(), steps.byte() % 4
    stream = stream_of(steps)
    whole, parser = events_of([stream])
    check_events(whole, parser)
    pieces = pieces_of(stream, cut)
    found, parser = events_of(pieces)
    check_events(found, parser)
    if not any(isinstance(each, int) for each in (*found[-1:], *whole[-1:])):
        assert found == whole, f"{found} instead of {whole}"
    compare_with_h11(stream, whole)
    server, transport, faults = serve(pieces, turns)
    assert not faults, faults
    check_answers(transport.sent, server.heads)


if __name__ == "__main__":
    driver.main(seeds, one_input, INPUT_BYTES_MAX)

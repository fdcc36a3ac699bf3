"""A web server with an answer of the test's own, and clients that write what they like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from pyxbroker.admin.request import Request
from pyxbroker.base.listening import listen
from pyxbroker.base.pacing import Pace
from pyxbroker.base.poller import Poller
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.web.errors import HttpError, refusal
from pyxbroker.web.response import Response
from pyxbroker.web.server import WebServer

TIMEOUT_S = 10
HOST = b"Host: broker\r\n"
GET = b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n"
LAST = b"GET /last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"

Answer = Callable[[Request], Awaitable[Response]]
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's coroutine on one kind of loop, within TIMEOUT_S."""
    runner: Any = asyncio.run if request.param == "asyncio" else uvloop.run

    def run_on(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        runner(asyncio.wait_for(main(), TIMEOUT_S))

    return run_on


async def until(condition: Callable[[], object]) -> None:
    """Waits until something is so."""
    for _ in range(TIMEOUT_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


async def echo(request: Request) -> Response:
    """What came; the body is not read when the path says so."""
    try:
        body = b"" if "unread" in request.path else await request.read(1 << 20)
    except HttpError as error:
        return refusal(error.status, error.reason)
    return Response.json(
        [request.method, request.path, request.query_string, body.decode("latin-1")]
    )


@dataclass
class Served:
    """A server and the port that it serves."""

    server: WebServer
    port: int


@asynccontextmanager
async def served(
    answer: Answer = echo,
    connections_max: int = 0,
    pace: Pace | None = None,
    memory: ClientMemory | None = None,
    handshake_timeout_s: float = 10.0,
) -> AsyncIterator[Served]:
    sock = listen("127.0.0.1", 0)
    poller = Poller(asyncio.get_running_loop(), pace)
    server = WebServer(answer, connections_max, pace, memory, handshake_timeout_s, poller)
    web = Served(server, sock.getsockname()[1])
    web.server.start(sock)
    try:
        yield web
    finally:
        await web.server.stop()


async def dial(web: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection."""
    return await asyncio.open_connection("127.0.0.1", web.port)


async def talk(web: Served, *pieces: bytes, eof: bool = False) -> bytes:
    """Everything that the server says until it closes the connection."""
    reader, writer = await dial(web)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    if eof:
        # The server may have closed already, having heard enough.
        with suppress(OSError, RuntimeError):
            writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def parse(stream: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """The answers of a connection: status, headers, body; chunks are joined."""
    answers = []
    while stream:
        head, _, stream = stream.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        status = int(first.split()[1])
        if headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while True:
                size, _, stream = stream.partition(b"\r\n")
                length = int(size, 16)
                body, stream = body + stream[:length], stream[length + 2 :]
                if not length:
                    break
        else:
            length = int(headers.get("Content-Length", 0))
            body, stream = stream[:length], stream[length:]
        answers.append((status, headers, body))
    return answers


async def statuses(web: Served, *pieces: bytes) -> list[int]:
    return [status for status, _, _ in parse(await talk(web, *pieces))]

"""What requests by HTTP cost whose senders are not known yet: they push out none that are."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from harness.tokens import settings, token

from fake_service import FakeService
from pyxbroker.admin.app import Application
from pyxbroker.admin.request import Request
from pyxbroker.auth.authentication import Authentication
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.memory_budget import STRANGERS_PART
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.web.response import Response
from web_client import Run, Served, dial, parse, run, served, until

__all__ = ["run"]

PATH = b"/admin/v2/clusters"
STATUS = b"GET /status.html HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n"


def asking(shown: str, *lines: bytes, method: bytes = b"GET") -> bytes:
    """The head of a request with a token."""
    credentials = b"Authorization: Bearer " + shown.encode()
    return b"\r\n".join(
        (method + b" " + PATH + b" HTTP/1.1", b"Host: b", credentials, *lines, b"", b"")
    )


class Held:
    """A web server whose broker asks an issuer that does not answer about each token "slow...";
    one that is a guess as well is refused when its client has gone.
    """

    def __init__(self, web: Served, memory: ClientMemory, verdict: asyncio.Future[None]) -> None:
        self.web = web
        self.memory = memory
        self.verdict = verdict  # what it answers in the end
        self.looked_at = 0  # of those that wait

    @property
    def tasks(self) -> int:
        return len(self.web.server._tasks)

    async def waiting(
        self, request: bytes = asking("slow")
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One more request that waits."""
        before = self.looked_at
        reader, writer = await dial(self.web)
        writer.write(request)
        await until(lambda: self.looked_at > before)
        return reader, writer


@asynccontextmanager
async def held(
    monkeypatch: pytest.MonkeyPatch, connections_max: int = 0, memory_max: int = 0
) -> AsyncIterator[Held]:
    store = MemoryStore()
    await store.open()
    config = Config(**settings())
    service = FakeService(store, config)
    service.authentication = authentication = Authentication(config)
    application = Application(cast(Any, service), lambda: cast(Any, service))
    verify = authentication.verify_request
    memory = ClientMemory(memory_max)

    async def hold_up(headers: Any, *more: Any) -> Any:
        if "slow" in headers.get("authorization", ""):
            side.looked_at += 1
            try:
                await asyncio.shield(side.verdict)
            except asyncio.CancelledError:
                if "guess" not in headers["authorization"]:
                    raise
                raise AuthenticationError("It was looked at to the end.") from None
            headers = {"authorization": f"Bearer {token('me')}"}
        return await verify(headers, *more)

    monkeypatch.setattr(authentication, "verify_request", hold_up)
    async with served(application.answer, connections_max, memory=memory) as web:
        side = Held(web, memory, asyncio.get_running_loop().create_future())
        yield side
        side.verdict.cancel()
    await store.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Goes away without a goodbye."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def closed(reader: asyncio.StreamReader) -> None:
    with pytest.raises(ConnectionError):
        assert await reader.read() == b""
        raise ConnectionResetError  # one loop says so, the other that it is at its end


def test_who_goes_away_before_it_is_known_is_looked_at_no_longer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with held(monkeypatch, memory_max=64 << 20) as side:
            writers = [(await side.waiting())[1] for _ in range(5)]
            assert side.tasks == 5 and side.memory.stranger_bytes > 0
            for each in writers:
                reset(each)
            await until(lambda: not side.tasks)
            assert side.memory.stranger_bytes == side.memory.used == 0

    run(main)


def test_what_is_asked_for_by_who_is_known_goes_on_when_it_goes_away(run: Run) -> None:
    """A change that has begun is made."""

    async def main() -> None:
        goes_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begun, done = [], []

        async def answer(request: Request) -> Response:
            with request.login():
                pass
            begun.append(request)
            await goes_on
            done.append(request)
            return Response.json([])

        async with served(answer) as web:
            _, writer = await dial(web)
            writer.write(STATUS)
            await until(lambda: begun)
            reset(writer)
            await until(lambda: not web.server._connections)
            goes_on.set_result(None)
            await until(lambda: done)

    run(main)


def test_who_is_not_known_yet_gives_way_where_places_are_wanted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with held(monkeypatch, connections_max=6) as side:
            waiting = [await side.waiting() for _ in range(6)]
            reader, writer = await dial(side.web)
            writer.write(STATUS)
            assert parse(await reader.read())[0][0] == 404  # no statusFilePath
            await closed(waiting[0][0])
            assert side.web.server.evicted == 1 and side.tasks == 5
            # Whose login is over has its place, as before.
            side.verdict.set_result(None)
            for reader, _ in waiting[1:]:
                assert (await reader.readline()).split()[1] == b"200"
            for _, writer in waiting:
                writer.close()

    run(main)


def test_requests_of_who_is_not_known_yet_have_a_part_of_the_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with held(monkeypatch, memory_max=1 << 20) as side:
            part = side.memory.total_max // STRANGERS_PART
            large = asking("slow" * 2_000)
            waiting = [await side.waiting(large) for _ in range(7)]
            assert part - 40_000 < side.memory.stranger_bytes <= part
            # One that costs as much is refused; for one that costs less the first gives way.
            reader, writer = await dial(side.web)
            writer.write(large)
            assert (await reader.readline()).split()[1] == b"429"
            writer.close()
            small = [await side.waiting() for _ in range(4)]
            await closed(waiting[0][0])
            assert side.memory.stranger_bytes <= part and side.memory.closed == 1
            # Who is open to all is not asked, and answered.
            reader, writer = await dial(side.web)
            writer.write(STATUS)
            assert parse(await reader.read())[0][0] == 404  # no statusFilePath
            side.verdict.set_result(None)
            for reader, _ in [*waiting[1:], *small]:
                assert (await reader.readline()).split()[1] == b"200"
            assert side.memory.stranger_bytes == side.memory.used == 0
            for _, writer in [*waiting, *small]:
                writer.close()

    run(main)


def test_what_is_sent_behind_the_head_is_paid_for_while_its_sender_is_not_known(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with held(monkeypatch, memory_max=1 << 20) as side:
            head = asking("slow", b"Content-Length: 9999999", method=b"POST")
            _, writer = await side.waiting(head)
            alone = side.memory.stranger_bytes
            writer.write(bytes(20_000))
            await until(lambda: side.memory.stranger_bytes >= alone + 20_000)
            _, ahead = await side.waiting(asking("slow") + 4 * STATUS)
            assert side.memory.stranger_bytes > 2 * alone + 20_000 + 4 * len(STATUS)
            # More than there is for all strangers costs who sends it, and gives it back.
            more = [await side.waiting(head) for _ in range(12)]
            for _, each in more:
                each.write(bytes(40_000))
            await until(lambda: side.memory.closed)
            assert side.memory.stranger_bytes <= side.memory.total_max // STRANGERS_PART
            for each in (writer, ahead, *(each for _, each in more)):
                reset(each)

    run(main)


@pytest.mark.parametrize("shown", ["slow", "slow guess"])
def test_who_goes_away_before_it_is_known_leaves_no_rings(
    run: Run, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    async def main() -> None:
        async with held(monkeypatch, memory_max=64 << 20) as side:

            async def gone() -> None:
                _, writer = await side.waiting(asking(shown))
                reset(writer)
                await until(lambda: not side.tasks)

            await gone()
            gc.collect()
            gc.disable()
            try:
                for _ in range(10):
                    await gone()
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                left = [type(each) for each in gc.garbage]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
            names = [each.__name__ for each in left if each.__module__.startswith("pyxbroker")]
            assert names == []

    run(main)

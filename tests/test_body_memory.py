"""What bodies of requests of REST hold: they have a part of what is remembered for clients."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest

from pyxbroker.admin.refusals import refusal_of
from pyxbroker.admin.request import Request
from pyxbroker.base.errors import PulsarError
from pyxbroker.base.memory_budget import BODIES_PART, BODY_FREE_BYTES, BODY_STEP_BYTES
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.web import connection as web_connection
from pyxbroker.web.errors import HttpError
from pyxbroker.web.request import TOKEN_BYTES, Body
from pyxbroker.web.response import Response
from web_client import GET, HOST, LAST, Run, Served, dial, parse, run, served, statuses, talk, until

__all__ = ["run"]

MIB = 1 << 20
SENT = b"x" * MIB
SMALL = b"POST /small HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello"


def post(length: int, path: str = "x", close: bool = True) -> bytes:
    end = "Connection: close\r\n" if close else ""
    return f"POST /{path} HTTP/1.1\r\nHost: b\r\nContent-Length: {length}\r\n{end}\r\n".encode()


async def answer(request: Request) -> Response:
    try:
        if request.path == "/json":
            await request.json(8 * MIB, 1_000_000)
        size = len(await request.read(8 * MIB))
    except (HttpError, PulsarError) as error:
        found = refusal_of(error)
        assert found is not None
        return found
    return Response.json(size)


async def half_sent(
    web: Served, count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Clients that have sent a MiB of twice as much."""
    clients = [await dial(web) for _ in range(count)]
    for _, writer in clients:
        writer.write(post(2 * MIB) + SENT)
    return clients


def test_bodies_that_are_half_sent_hold_a_part_of_the_memory_at_most(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * 5 * MIB)
        most = 0
        charge = memory.charge_body

        def watched(*asked: object) -> None:
            nonlocal most
            charge(*asked)  # type: ignore[arg-type]
            most = max(most, memory.body_bytes)

        memory.charge_body = watched  # type: ignore[method-assign, assignment]
        async with served(answer, memory=memory) as web:
            clients = await half_sent(web, 20)
            await until(lambda: memory.bodies_refused >= 12)
            assert 3 * MIB < most <= 5 * MIB
            assert memory.used == 0
            # Others are answered: with a short body, and with a long one that is shorter than most.
            assert await statuses(web, SMALL) == [200]
            assert await statuses(web, GET + LAST) == [200, 200]
            short = MIB // 2
            [(status, _, body)] = parse(await talk(web, post(short) + SENT[:short]))
            assert (status, json.loads(body)) == (200, short)
            assert memory.body_bytes <= 5 * MIB
            for _, writer in clients:
                writer.transport.abort()
            await until(lambda: memory.body_bytes == 0)
            [(status, _, body)] = parse(await talk(web, post(2 * MIB) + 2 * SENT))
            assert (status, json.loads(body)) == (200, 2 * MIB)
            await until(lambda: memory.body_bytes == 0)

    run(main)


def test_a_body_that_is_too_much_is_told_so_and_its_connection_is_closed(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * MIB)
        async with served(answer, memory=memory) as web:
            [(status, headers, body)] = parse(
                await talk(web, post(4 * MIB, close=False) + 4 * SENT)
            )
            assert (status, headers["Connection"]) == (503, "close")
            assert "maxClientStateSizeInMB" in json.loads(body)["reason"]
            assert (memory.bodies_refused, memory.body_bytes) == (1, 0)

    run(main)


def test_while_connections_use_all_of_the_memory_long_bodies_are_refused(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * 5 * MIB)
        memory.used = memory.total_max
        async with served(answer, memory=memory) as web:
            longer = BODY_FREE_BYTES + 1
            [(status, _, body)] = parse(await talk(web, post(longer) + SENT[:longer]))
            assert status == 503
            assert "maxClientStateSizeInMB" in json.loads(body)["reason"]
            assert await statuses(web, SMALL) == [200]
            free = BODY_FREE_BYTES
            [(status, _, body)] = parse(await talk(web, post(free) + SENT[:free]))
            assert (status, json.loads(body)) == (200, free)
            memory.used = 0
            [(status, _, body)] = parse(await talk(web, post(longer) + SENT[:longer]))
            assert (status, json.loads(body)) == (200, longer)

    run(main)


def test_a_short_body_costs_nothing_and_a_long_one_what_it_has_beyond(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * 5 * MIB)
        async with served(answer, memory=memory) as web:
            reader, writer = await dial(web)
            writer.write(post(MIB) + SENT[:BODY_FREE_BYTES])
            await asyncio.sleep(0.05)
            assert memory.body_bytes == 0
            writer.write(b"x")
            await until(lambda: memory.body_bytes == BODY_STEP_BYTES)
            writer.write(SENT[BODY_FREE_BYTES + 1 :])
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            assert memory.body_bytes == 0
            writer.close()

    run(main)


async def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


@pytest.mark.parametrize("ends", ["reset", "eof", "timeout", "too long", "stop"])
def test_what_a_body_held_is_given_back_however_its_request_ends(
    run: Run, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        if ends == "timeout":
            monkeypatch.setattr(web_connection, "BODY_TIMEOUT_S", 0.2)
        memory = ClientMemory(total_max=BODIES_PART * 50 * MIB)
        async with served(answer, memory=memory) as web:
            reader, writer = await dial(web)
            chunked = b"POST /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
            writer.write(chunked + b"100000\r\n" + SENT + b"\r\n")
            await until(lambda: memory.body_bytes > MIB // 2)
            if ends == "reset":
                await reset(writer)
            elif ends == "eof":
                writer.write_eof()
            elif ends == "too long":
                for _ in range(8):
                    writer.write(b"100000\r\n" + SENT + b"\r\n")
            elif ends == "stop":
                await web.server.stop()
            await until(lambda: memory.body_bytes == 0)
            if ends in ("eof", "timeout", "too long"):
                status = {"eof": b"400", "timeout": b"408", "too long": b"413"}[ends]
                assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
            writer.close()

    run(main)


def test_a_body_is_paid_for_until_its_request_is_answered_also_when_its_client_has_gone(
    run: Run,
) -> None:
    goes_on = asyncio.Event()

    async def answer_late(request: Request) -> Response:
        await request.read(8 * MIB)
        await goes_on.wait()
        return Response.json(0)

    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * 5 * MIB)
        async with served(answer_late, memory=memory) as web:
            _, writer = await dial(web)
            writer.write(post(2 * MIB) + 2 * SENT)
            await until(lambda: memory.body_bytes == 2 * MIB - BODY_FREE_BYTES)
            await reset(writer)
            await asyncio.sleep(0.05)
            assert memory.body_bytes == 2 * MIB - BODY_FREE_BYTES
            goes_on.set()
            await until(lambda: memory.body_bytes == 0)

    run(main)


@pytest.mark.parametrize("ends", ["reset", "answered", "last"])
def test_a_body_behind_another_request_is_paid_for_too(run: Run, ends: str) -> None:
    goes_on = asyncio.Event()

    async def answer_late(request: Request) -> Response:
        await goes_on.wait()
        return await answer(request)

    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * 5 * MIB)
        size = 3 * BODY_FREE_BYTES // 2
        async with served(answer_late, memory=memory) as web:
            reader, writer = await dial(web)
            first = LAST if ends == "last" else GET
            writer.write(first + post(size) + SENT[:size])
            if ends == "last":  # nothing is read behind that
                await asyncio.sleep(0.05)
            else:
                await until(lambda: memory.body_bytes == BODY_STEP_BYTES)
            if ends == "reset":
                await reset(writer)  # it is noticed with the answer: nothing is read before
            goes_on.set()
            if ends != "reset":
                answers = parse(await reader.read())
                assert [status for status, _, _ in answers] == [200] * (1 + (ends != "last"))
            await until(lambda: memory.body_bytes == 0)
            writer.close()

    run(main)


def test_what_is_made_of_a_body_is_paid_for_and_who_is_still_sending_gives_way_to_it(
    run: Run,
) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * 5 * MIB)
        async with served(answer, memory=memory) as web:
            clients = await half_sent(web, 4)
            await until(lambda: memory.body_bytes == 4 * (MIB - BODY_FREE_BYTES))
            text = json.dumps("x" * (MIB // 2)).encode()
            assert await statuses(web, post(len(text), "json") + text) == [200]
            assert memory.bodies_refused in (1, 2)
            gone = clients[:2]
            for _, writer in clients[memory.bodies_refused :]:
                writer.transport.abort()
            await until(lambda: memory.body_bytes == 0)
            refused = [await reader.read() for reader, _ in gone[: memory.bodies_refused]]
            assert all(each.startswith(b"HTTP/1.1 503 ") for each in refused)
            # What would be too much by itself is refused.
            refused_before = memory.bodies_refused
            wide = json.dumps("\u20ac" + "x" * MIB, ensure_ascii=False).encode()
            assert await statuses(web, post(len(wide), "json") + wide) == [503]
            many = b"[" + b"[]," * (5 * MIB // TOKEN_BYTES) + b"1]"
            assert await statuses(web, post(len(many), "json") + many) == [503]
            assert memory.bodies_refused == refused_before + 2
            assert memory.body_bytes == 0

    run(main)


def test_nobody_gives_way_to_a_body_that_is_too_much_all_the_same(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=BODIES_PART * 5 * MIB)
        async with served(answer, memory=memory) as web:
            clients = await half_sent(web, 2)
            await until(lambda: memory.body_bytes == 2 * (MIB - BODY_FREE_BYTES))
            many = b"[" + b"[]," * (5 * MIB // TOKEN_BYTES) + b"1]"
            assert await statuses(web, post(len(many), "json") + many) == [503]
            # Connections have it.
            memory.used = memory.total_max
            assert await statuses(web, post(MIB) + SENT) == [503]
            assert memory.bodies_refused == 2
            memory.used = 0
            for reader, writer in clients:
                writer.write(SENT)
                assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
                writer.close()
            assert (memory.body_bytes, memory._coming_bytes) == (0, 0)

    run(main)


def test_without_a_limit_bodies_are_counted_and_none_is_refused(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory()
        async with served(answer, memory=memory) as web:
            clients = await half_sent(web, 20)
            await until(lambda: memory.body_bytes == 20 * (MIB - BODY_FREE_BYTES))
            for _, writer in clients:
                writer.write(SENT)
            for reader, writer in clients:
                assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
                writer.close()
            assert (memory.body_bytes, memory.bodies_refused) == (0, 0)

    run(main)


def test_pieces_of_two_bytes_take_no_more_than_they_have() -> None:
    """Each was an object of its own: many times as much as was sent."""
    body = Body(None, lambda: None)
    for _ in range(10_000):
        body.feed(b"ab")
    assert len(body._data) == 20_000 and body._data.__alloc__() < 25_000
    body.end()
    assert asyncio.run(body.read(1 << 20)) == b"ab" * 10_000

"""HTTP over time: deadlines, answers in pieces, and the end of the server."""

from __future__ import annotations

import asyncio
import time
from asyncio import Transport
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pytest

from pyxbroker.admin.request import Request
from pyxbroker.web import connection as connection
from pyxbroker.web import server
from pyxbroker.web.response import Response
from web_client import (
    GET,
    HOST,
    LAST,
    Answer,
    Run,
    Served,
    dial,
    echo,
    parse,
    run,
    served,
    statuses,
    talk,
    until,
)

__all__ = ["run"]

# --- deadlines --------------------------------------------------------------------------------


def quick(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    for name, value in seconds.items():
        monkeypatch.setattr(connection, name, value)


def test_a_slow_head_and_a_slow_body_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, BODY_TIMEOUT_S=0.1)

    async def main() -> None:
        async with served(handshake_timeout_s=0.1) as web:
            assert await statuses(web, b"GET /x HTTP/1.1\r\nHost:") == [408]
            assert await statuses(web, GET + b"GET /x HTT") == [200, 408]
            half = b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nab"
            assert await statuses(web, half) == [408]
            assert await talk(web, half.replace(b"/x", b"/unread")) != b""
            assert await talk(web, b"\r\n") == b""

    run(main)


def test_drops_do_not_put_a_deadline_off(run: Run) -> None:
    async def main() -> None:
        async with served(handshake_timeout_s=0.3) as web:
            for first, drop in ((b"", b"\r\n"), (GET, b"\r\n"), (b"GET /x HTTP/1.1\r\nA: ", b"b")):
                reader, writer = await dial(web)
                writer.write(first)
                started = time.monotonic()
                reading = asyncio.ensure_future(reader.read())
                while not reading.done():
                    assert time.monotonic() - started < 30
                    writer.write(drop)
                    await asyncio.sleep(0.02)
                writer.close()

    run(main)


def test_an_idle_connection_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, KEEP_ALIVE_TIMEOUT_S=0.1)

    async def main() -> None:
        async with served() as web:
            assert await statuses(web, GET + GET) == [200, 200]

    run(main)


def test_a_client_that_takes_nothing_is_cut_off(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, WRITE_TIMEOUT_S=0.1, LINGER_S=0.1)

    async def answer(request: Request) -> Response:
        return Response(b"x" * (32 << 20))

    async def main() -> None:
        async with served(answer) as web:
            for request in (GET, LAST):
                reader, writer = await dial(web)
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(request)
                await until(lambda: web.server._connections)
                await until(lambda: not web.server._connections)
                writer.transport.abort()

    run(main)


@pytest.mark.parametrize("is_made_meanwhile", [False, True])
def test_a_long_answer_goes_out_in_pieces_between_which_others_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_made_meanwhile: bool
) -> None:
    monkeypatch.setattr(connection, "PIECE_BYTES", 32 << 10)
    written: list[tuple[int, int]] = []  # turns so far, and bytes
    turns = 0
    write = connection.HttpConnection._write

    def noted(self: connection.HttpConnection, data: bytes | memoryview) -> None:
        written.append((turns, len(data)))
        write(self, data)

    monkeypatch.setattr(connection.HttpConnection, "_write", noted)

    async def watch() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def one_piece() -> AsyncIterator[bytes]:
        yield bytes(160 << 10)

    async def answer(request: Request) -> Response:
        return Response(one_piece() if is_made_meanwhile else bytes(160 << 10))

    async def main() -> None:
        watching = asyncio.ensure_future(watch())
        async with served(answer) as web:
            assert bytes(160 << 10) in await talk(web, LAST)
        watching.cancel()
        pieces = [each for each in written if each[1] >= 32 << 10]
        assert [size for _, size in pieces] == [32 << 10] * 5
        assert len({turn for turn, _ in pieces}) == 5

    run(main)


def test_a_slow_client_gets_all_of_a_long_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than a busy machine leaves a process without a turn, shorter than the whole answer.
    quick(monkeypatch, WRITE_TIMEOUT_S=1.2, LINGER_S=0.1, KEEP_ALIVE_TIMEOUT_S=0.1)
    size = 24 << 20

    async def answer(request: Request) -> Response:
        return Response(b"x" * size)

    async def main() -> None:
        async with served(answer) as web:
            for request in (GET, LAST):
                reader, writer = await dial(web)
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"Content-Length: %d\r\n" % size in head
                left = size
                began = time.monotonic()
                while left:
                    piece = await reader.read(2 << 20)
                    assert piece, left
                    left -= len(piece)
                    await asyncio.sleep(0.02)
                assert time.monotonic() - began > 1.2
                assert await reader.read() == b""
                writer.close()

    run(main)


# --- clients that are behind ------------------------------------------------------------------


async def large(request: Request) -> Response:
    return Response(b"x" * (1 << 20))


async def hold(web: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Transport]:
    """A connection whose client reads nothing; the last one is the server's end."""
    reader, writer = await dial(web)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"\r\n")  # before a request there may be such
    await until(lambda: any(each._is_open for each in web.server._connections))
    (served_one,) = web.server._connections
    return reader, writer, served_one._transport


def test_a_client_that_reads_nothing_gets_no_more_answers(run: Run) -> None:
    async def main() -> None:
        async with served(large) as web:
            reader, writer, transport = await hold(web)
            unsent = 0
            writer.write(GET * 30)
            for _ in range(50):
                await asyncio.sleep(0.01)
                unsent = max(unsent, transport.get_write_buffer_size())
            assert 0 < unsent < 2 << 20
            assert await statuses(web, LAST) == [200]
            # It gets them all when it reads.
            writer.write(LAST)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            answers = parse(await reader.read())
            assert [len(body) for _, _, body in answers] == [1 << 20] * 31
            writer.close()

    run(main)


def test_a_slow_client_that_asks_ahead_is_not_cut_off(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, WRITE_TIMEOUT_S=1.2)

    async def main() -> None:
        async with served(large) as web:
            reader, writer = await dial(web)
            writer.write(GET * 30)
            began = time.monotonic()
            for _ in range(30):
                await reader.readuntil(b"\r\n\r\n")
                assert len(await reader.readexactly(1 << 20)) == 1 << 20
                await asyncio.sleep(0.06)
            assert time.monotonic() - began > 1.2
            writer.close()

    run(main)


@pytest.mark.parametrize("whole", [True, False])
def test_a_body_comes_in_while_its_early_answer_waits(
    run: Run, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    requests = []
    size = 200_000
    put = b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size

    async def answer(request: Request) -> Response:
        requests.append(request)
        return Response(b"x" * (16 << 20))

    async def main() -> None:
        async with served(answer) as web:
            reader, writer, transport = await hold(web)
            if not whole:
                quick(monkeypatch, BODY_TIMEOUT_S=0.1)
            writer.write(put)
            await until(transport.get_write_buffer_size)
            sent = size - (not whole)
            writer.write(b"b" * sent)
            await until(lambda: requests[0].body.size == sent)
            await asyncio.sleep(0.2)
            assert transport.get_write_buffer_size()
            if whole:
                writer.write(LAST)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            found = [status for status, _, _ in parse(await reader.read())]
            assert found == [200, 200 if whole else 408]
            writer.close()

    run(main)


# --- answers in pieces ------------------------------------------------------------------------


def in_pieces(pieces: int, ended: list[str], size: int = 10) -> Answer:
    async def make() -> AsyncIterator[bytes]:
        try:
            for at in range(pieces):
                yield b"%d" % (at % 10) * size
                yield b""
                await asyncio.sleep(0)
        finally:
            ended.append("ended")

    async def answer(request: Request) -> Response:
        return Response(make(), "text/plain")

    return answer


def test_an_answer_in_pieces(run: Run) -> None:
    async def main() -> None:
        ended: list[str] = []
        async with served(in_pieces(3, ended)) as web:
            whole = b"0" * 10 + b"1" * 10 + b"2" * 10
            assert [each[2] for each in parse(await talk(web, GET + LAST))] == [whole, whole]
            old = await talk(web, b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert old.endswith(b"\r\n\r\n" + whole)
            assert b"Connection: close" in old
            head = await talk(web, b"HEAD /x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
            assert head.endswith(b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
            assert len(ended) == 3  # What was not begun has nothing to end.

    run(main)


def test_a_client_that_goes_away_ends_the_making(run: Run) -> None:
    async def main() -> None:
        ended: list[str] = []
        async with served(in_pieces(1_000_000, ended, 100_000)) as web:
            reader, writer = await dial(web)
            writer.write(GET)
            await reader.readexactly(1_000_000)
            assert not ended
            writer.transport.abort()
            await until(lambda: ended)
            assert await statuses(web, b"?\r\n\r\n") == [400]

    run(main)


def test_an_answer_that_fails_half_way_is_not_whole(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def make() -> AsyncIterator[bytes]:
        yield b"begun"
        raise ValueError("broken")

    async def answer(request: Request) -> Response:
        return Response(make())

    async def main() -> None:
        async with served(answer) as web:
            reader, writer = await dial(web)
            writer.write(GET)
            await reader.readuntil(b"begun\r\n")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readuntil(b"0\r\n\r\n")
            writer.close()

    run(main)
    assert "answer failed" in caplog.text


def test_a_header_cannot_begin_a_new_line() -> None:
    for name, value in (("A", "b\r\nSet-Cookie: c"), ("A\n", "b"), ("A", "b\0")):
        with pytest.raises(ValueError, match="header"):
            Response(headers=[(name, value)]).encode_head("1.1", ())


# --- the end ----------------------------------------------------------------------------------


def test_stopping_ends_idle_connections_at_once_and_busy_ones_with_their_answer(run: Run) -> None:
    async def main() -> None:
        may_answer = asyncio.Event()

        async def answer(request: Request) -> Response:
            if request.path == "/busy":
                await may_answer.wait()
            return await echo(request)

        async with served(answer) as web:
            silent = await dial(web)
            idle = await dial(web)
            idle[1].write(GET)
            await idle[0].readuntil(b"]")
            busy = await dial(web)
            busy[1].write(GET.replace(b"/x", b"/busy") + GET)
            await until(lambda: web.server._tasks)
            stopping = asyncio.ensure_future(web.server.stop())
            assert await idle[0].read() == b""
            assert await silent[0].read() == b""
            with pytest.raises(OSError):
                await dial(web)
            assert not stopping.done()
            may_answer.set()
            (only,) = parse(await busy[0].read())
            assert (only[0], only[1]["Connection"]) == (200, "close")
            await stopping
            for _, writer in (silent, idle, busy):
                writer.close()

    run(main)


def test_stopping_does_not_wait_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.1)

    async def main() -> None:
        async def answer(request: Request) -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        async with served(answer) as web:
            reader, writer = await dial(web)
            writer.write(GET)
            await until(lambda: web.server._tasks)
            await asyncio.wait_for(web.server.stop(), 30)
            assert not web.server._tasks
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()

    run(main)


def waiting(web: Served) -> int:
    """How many wait for their client, beside those that have said nothing."""
    return len(web.server._waiting) - len(web.server._silent)


def has_more_waiting(web: Served, before: int) -> bool:
    return waiting(web) > before


HUGE = 16 << 20  # more than the kernel takes
SMALL = b"GET /small HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"


@pytest.mark.parametrize("head", [GET, LAST])
def test_who_takes_nothing_of_its_answer_gives_way_and_who_takes_it_has_all_of_it(
    run: Run, head: bytes
) -> None:
    async def answer(request: Request) -> Response:
        return Response(b"x" if request.path == "/small" else b"x" * HUGE)

    async def main() -> None:
        async with served(answer, connections_max=3) as web:
            peers = [await dial(web) for _ in range(3)]
            for _, writer in peers:
                before = waiting(web)
                writer.write(head)
                await until(partial(has_more_waiting, web, before))
            assert await statuses(web, SMALL) == [200]
            with suppress(ConnectionResetError):
                assert len(await peers[0][0].read()) < HUGE
            reader, _ = peers[2]
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(HUGE) == b"x" * HUGE
            for _, writer in peers:
                writer.close()

    run(main)


def test_who_has_asked_for_nothing_yet_has_the_pace_of_the_door(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            reader, writer = await dial(web)
            writer.write(GET[:5])
            await until(lambda: web.server._connections)
            [asking] = web.server._connections
            assert asking._queue.pace is web.server._poller.pace
            writer.write(GET[5:])
            assert b"200 OK" in await reader.readline()
            assert asking._queue.pace is web.server._pace is not web.server._poller.pace
            writer.close()

    run(main)


def test_who_has_caught_up_waits_for_the_answer_and_keeps_its_place(run: Run) -> None:
    async def main() -> None:
        goes_on = asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * HUGE
            await goes_on.wait()
            yield b"y"

        async def answer(request: Request) -> Response:
            return Response(pieces())

        async with served(answer) as web:
            reader, writer = await dial(web)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            await until(lambda: len(web.server._waiting))
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(HUGE) == b"x" * HUGE
            await until(lambda: not len(web.server._waiting))
            goes_on.set()
            assert await reader.read() == b"y"
            writer.close()

    run(main)

"""HTTP as peculiar and hostile clients speak it: framing, and what is refused."""

from __future__ import annotations

import asyncio
import json
import random
import re

import pytest

from pyxbroker.admin.request import Request
from pyxbroker.web import connection as connection
from pyxbroker.web import request_parser
from pyxbroker.web.response import Response
from web_client import GET, HOST, LAST, Run, dial, echo, parse, run, served, statuses, talk

__all__ = ["run"]

# --- framing ----------------------------------------------------------------------------------


REQUESTS = b"".join(
    [
        b"GET /a%2Fb?c=%20d HTTP/1.1\r\n" + HOST + b"\r\n",
        b"POST /length HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello",
        b"PUT /chunks HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nDigest: none\r\n\r\n",
        b"\r\nDELETE /unread HTTP/1.1\r\n" + HOST + b"Content-Length: 6\r\n\r\nunread",
        b"GET /h2c HTTP/1.1\r\n" + HOST + b"Connection: Upgrade, HTTP2-Settings\r\n",
        b"Upgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n\r\n",
        b"POST /h2c HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"Content-Length: 4\r\n\r\nbody",
        b"POST /h2c HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        b"GET http://broker:1/absolute HTTP/1.1\r\n" + HOST + b"\r\n",
        LAST,
    ]
)
ECHOES = [
    ["GET", "/a%2Fb", "c=%20d", ""],
    ["POST", "/length", "", "hello"],
    ["PUT", "/chunks", "", "abcde"],
    ["DELETE", "/unread", "", ""],
    ["GET", "/h2c", "", ""],
    ["POST", "/h2c", "", "body"],
    ["POST", "/h2c", "", "body"],
    ["GET", "/absolute", "", ""],
    ["GET", "/last", "", ""],
]


def test_requests_are_understood_wherever_they_are_split(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            for at in range(0, len(REQUESTS), 3):
                answers = parse(await talk(web, REQUESTS[:at], REQUESTS[at:]))
                assert [json.loads(body) for _, _, body in answers] == ECHOES, at
                assert {status for status, _, _ in answers} == {200}
            every_byte = [REQUESTS[at : at + 1] for at in range(len(REQUESTS))]
            answers = parse(await talk(web, *every_byte))
            assert [json.loads(body) for _, _, body in answers] == ECHOES

    run(main)


def test_only_the_last_answer_says_close(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            answers = parse(await talk(web, GET + GET + LAST + GET))
            closing = [headers.get("Connection") for _, headers, _ in answers]
            assert closing == [None, None, "close"]
            pattern = r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} 20\d\d \d\d:\d\d:\d\d GMT"
            assert all(re.fullmatch(pattern, headers["Date"]) for _, headers, _ in answers)

    run(main)


def test_http_1_0_keeps_the_connection_only_when_asked(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            assert (await talk(web, b"GET /x HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 200 OK\r\n")
            kept = b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
            answers = parse(await talk(web, kept, b"GET /y HTTP/1.0\r\n\r\n"))
            closing = [headers["Connection"] for _, headers, _ in answers]
            assert closing == ["keep-alive", "close"]

    run(main)


def test_a_head_answer_has_the_length_and_no_body(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            head = b"HEAD /x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
            answer = await talk(web, head)
            assert b"Content-Length: 19\r\n" in answer
            assert answer.endswith(b"\r\n\r\n")

    run(main)


def test_an_answer_without_content_has_no_length(run: Run) -> None:
    async def answer(request: Request) -> Response:
        return Response.empty()

    async def main() -> None:
        async with served(answer) as web:
            text = await talk(web, GET + LAST)
            assert text.count(b"HTTP/1.1 204 No Content\r\n") == 2
            assert b"Content-Length" not in text

    run(main)


def test_continue_is_said_when_the_body_is_read(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            expect = HOST + b"Content-Length: 3\r\nExpect: 100-Continue\r\n\r\n"
            reader, writer = await dial(web)
            writer.write(b"PUT /x HTTP/1.1\r\n" + expect)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc" + LAST)
            assert parse(await reader.read())[0][2] == b'["PUT","/x","","abc"]'
            writer.close()
            # Nobody reads it: no Continue, and the client may never send the body.
            (only,) = parse(await talk(web, b"PUT /unread HTTP/1.1\r\n" + expect))
            assert (only[0], only[1]["Connection"]) == (200, "close")

    run(main)


def test_a_client_that_sends_no_more_gets_its_answers(run: Run) -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.05)
        return await echo(request)

    async def main() -> None:
        async with served(answer) as web:
            assert len(parse(await talk(web, GET + GET, eof=True))) == 2
            half = b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nab"
            assert [each[0] for each in parse(await talk(web, half, eof=True))] == [400]
            assert await talk(web, b"GET /x HT", eof=True) == b""

    run(main)


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"CONNECT broker:1 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /x HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n", 400),
        (b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (
            b"PUT /x HTTP/1.1\r\n"
            + HOST
            + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"PUT /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"x" * (8 << 10) + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET /x HTTP/1.1\r\n" + HOST + b"A: " + b"x" * (16 << 10) + b"\r\n\r\n", 431),
        (b"GET /x HTTP/1.1\r\n" + HOST + b"A: bc\r\n" * (16 << 8) + b"\r\n", 431),
        (b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 1048577\r\n\r\n", 413),
        (b"PUT /x HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    ],
)
def test_what_is_wrong_is_refused(run: Run, request_bytes: bytes, status: int) -> None:
    async def main() -> None:
        async with served() as web:
            (answer,) = parse(await talk(web, request_bytes))
            assert (answer[0], answer[1]["Connection"]) == (status, "close")
            assert json.loads(answer[2])["reason"]
            assert await statuses(web, LAST) == [200]

    run(main)


def test_a_refusal_waits_for_the_answers_before_it(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            assert await statuses(web, GET + GET + b"nonsense\r\n\r\n") == [200, 200, 400]

    run(main)


@pytest.mark.parametrize("path", [b"/x", b"/unread"])
def test_an_endless_trailer_or_header_ends(run: Run, path: bytes) -> None:
    async def main() -> None:
        async with served() as web:
            head = b"PUT " + path + b" HTTP/1.1\r\n" + HOST
            chunks = b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
            for before in (head + b"A: ", head + chunks + b"A: ", head + chunks[:-3] + b"1;"):
                reader, writer = await dial(web)
                writer.write(before)
                said = asyncio.ensure_future(reader.read())
                sent = 0
                while not said.done():
                    assert sent < 4 << 20, before
                    writer.write(b"x" * 4096)
                    sent += 4096
                    await asyncio.sleep(0)
                assert said.exception() or b" 431 " in said.result() or path == b"/unread", before
                writer.close()

    run(main)


def test_too_many_requests_at_once_are_refused(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            got = await statuses(web, GET * (connection.PIPELINE_MAX + 5))
            assert got == [200] * (connection.PIPELINE_MAX + 1) + [429]

    run(main)


def test_a_body_is_bounded_however_it_comes(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            head = b"PUT /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            assert await statuses(web, head, *[chunk] * 40) == [413]
            allowed = head.replace(HOST, HOST + b"Connection: close\r\n")
            (answer,) = parse(await talk(web, allowed, *[chunk] * 16, b"0\r\n\r\n"))
            assert (answer[0], len(json.loads(answer[2])[3])) == (200, 1 << 20)

    run(main)


def test_the_rest_of_a_body_keeps_the_connection_when_it_is_short(run: Run) -> None:
    async def main() -> None:
        async with served() as web:
            for length, closing in ((200_000, None), (2_000_000, "close")):
                reader, writer = await dial(web)
                head = b"PUT /unread HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n"
                writer.write(head % length)
                answer = parse(await reader.readuntil(b"]"))[0]
                assert (answer[0], answer[1].get("Connection")) == (200, closing)
                writer.write(b"x" * length)
                if closing is None:
                    writer.write(LAST)
                    assert len(parse(await reader.read())) == 1
                else:
                    assert await reader.read() == b""
                writer.close()

    run(main)


def test_a_fault_of_ours_in_taking_a_request_in_is_a_500_and_is_logged(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(url: bytes) -> tuple[str, str]:
        raise ZeroDivisionError("a fault")

    async def main() -> None:
        async with served() as web:
            monkeypatch.setattr(request_parser, "_parse_url", broken)
            (answer,) = parse(await talk(web, GET + GET))
            assert (answer[0], answer[1]["Connection"]) == (500, "close")
            assert "log" in json.loads(answer[2])["reason"]

    run(main)
    assert "a request could not be parsed" in caplog.text
    assert "a fault" in caplog.text


def test_connections_are_bounded(run: Run) -> None:
    async def main() -> None:
        async with served(connections_max=2) as web:
            kept = [await dial(web) for _ in range(2)]
            for reader, writer in kept:
                writer.write(GET)
                await reader.readuntil(b"]")
            # The one that has waited longest for its client gives way; who is served does not.
            assert await statuses(web, LAST) == [200]
            assert await kept[0][0].read() == b""
            kept[1][1].write(GET)
            await kept[1][0].readuntil(b"]")
            for _, writer in kept:
                writer.close()

    run(main)


def test_who_is_served_keeps_a_place_that_there_is_for_nobody_else(run: Run) -> None:
    async def main() -> None:
        may_end = asyncio.Event()

        async def answer(request: Request) -> Response:
            await may_end.wait()
            return Response.json("served")

        async with served(answer, connections_max=2) as web:
            asking = [await dial(web) for _ in range(2)]
            for _, writer in asking:
                writer.write(LAST)
            await asyncio.sleep(0.05)
            reader, writer = await dial(web)
            assert await reader.read() == b""  # or it is reset
            assert web.server.refused == 1
            may_end.set()
            for reader, writer in asking:
                assert b"served" in await reader.read()
                writer.close()

    run(main)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_who_was_answered_and_owes_the_rest_of_a_body_gives_way(run: Run, more: bytes) -> None:
    """A stranger is: what it is refused with comes before its body."""
    owing = b"POST /unread HTTP/1.1\r\n" + HOST + more + b"Content-Length: 1000\r\n\r\n"

    async def main() -> None:
        async with served(connections_max=3) as web:
            owe = [await dial(web) for _ in range(3)]
            for reader, writer in owe:
                writer.write(owing)
                await reader.readuntil(b"]")
            assert await statuses(web, LAST) == [200]
            assert await owe[0][0].read() == b""
            assert len(web.server._connections) <= 3
            for _, writer in owe:
                writer.close()

    run(main)


def test_who_sends_a_body_that_is_read_keeps_its_place(run: Run) -> None:
    owing = b"POST /x HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n\r\n"

    async def main() -> None:
        async with served(connections_max=2) as web:
            sending = [await dial(web) for _ in range(2)]
            for _, writer in sending:
                writer.write(owing)
            await asyncio.sleep(0.05)
            reader, writer = await dial(web)
            assert await reader.read() == b""
            writer.close()
            for reader, writer in sending:
                writer.write(b"body")
                assert b"body" in await reader.readuntil(b"]")
                writer.close()

    run(main)


def test_a_client_that_says_nothing_gives_way_to_one_that_asks(run: Run) -> None:
    async def main() -> None:
        async with served(connections_max=3) as web:
            silent = [await dial(web) for _ in range(30)]
            assert await statuses(web, LAST) == [200]
            for _, writer in silent:
                writer.close()

    run(main)


def test_damaged_requests_do_no_harm(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(1)
    marks = [
        b"\r\n",
        b"\0",
        b"0",
        b" ",
        b":",
        b"\xff",
        b"Transfer-Encoding: chunked\r\n",
        b"HTTP/1.1",
    ]

    def damaged() -> bytes:
        stream = bytearray(REQUESTS)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(stream))
            stream[at : at + chance.randint(0, 20)] = chance.choice(marks)
        return bytes(stream)

    async def main() -> None:
        async with served() as web:
            understood = 0
            for _ in range(300):
                stream = damaged()
                at = chance.randrange(len(stream))
                # Whatever is understood is answered in order, and the client is let go.
                try:
                    answers = parse(await talk(web, stream[:at], stream[at:], eof=True))
                except ConnectionError:
                    continue  # It sent more after the request that was its last one.
                assert {status for status, _, _ in answers} <= {200, 400, 413, 414, 431}
                understood += bool(answers)
            assert understood > 100
            assert await statuses(web, LAST) == [200]

    run(main)
    assert caplog.text == ""

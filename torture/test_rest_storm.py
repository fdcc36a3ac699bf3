"""A short storm of fuzzed requests, and what makes it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from harness.brokers import Broker

from torture import rest_bodies
from torture.rest_bodies import KINDS, Bodies
from torture.rest_requests import BATCH, FOR_ALL, NoAnswer, all_rows, an_answer, batch
from torture.rest_storm import SETTINGS, Storm, storm

REQUESTS = 20_000


def test_a_batch_is_the_same_for_the_same_seed_and_number() -> None:
    rows = all_rows()
    assert batch(1, 2, rows) == batch(1, 2, rows)
    assert len(batch(1, 0, rows)) == len(batch(1, 1, rows)) == BATCH
    assert len({tuple(batch(seed, number, rows)) for seed in (1, 2) for number in (1, 2)}) == 4


def test_no_row_is_one_that_changes_the_broker_for_everybody() -> None:
    rows = all_rows()
    assert len(rows) > 400
    assert not [row for row in rows if FOR_ALL.search(row.path)]


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, False, b"")),
        (b"HTTP/1.1 400 X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab", (400, True, b"ab")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            (200, False, b"abc"),
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", None),
        (b"", None),
    ],
)
def test_an_answer_is_read_or_missed(sent: bytes, wanted: tuple[int, bool, bytes] | None) -> None:
    async def read() -> tuple[int, bool, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        return await an_answer(reader)

    if wanted is not None:
        assert asyncio.run(read()) == wanted
        return
    with pytest.raises(NoAnswer):
        asyncio.run(read())


def test_a_fault_and_a_connection_that_ends_are_told_with_seed_and_request() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops")
        writer.close()

    async def run() -> list[str]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20)
        async with server:
            one = Storm(server.sockets[0].getsockname()[1], 7, BATCH)
            await one.run(1)
        return one.problems

    problems = asyncio.run(run())
    assert all(each.startswith("seed 7, batch 0: b'") for each in problems)
    assert any(each.endswith("500 b'oops'") for each in problems)
    assert any("no answer" in each for each in problems)


def problems_of_bodies(answer: bytes, read_bytes: int, count: int) -> tuple[Bodies, set[str]]:
    """What some bodies say of who answers so, after so many bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(read_bytes)
            writer.write(answer)
            await writer.drain()
            while read_bytes < 0 and await reader.read(1 << 20):
                pass
        writer.close()

    async def run() -> Bodies:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            bodies = Bodies(server.sockets[0].getsockname()[1], 7, all_rows())
            for number in range(count):
                await bodies.meet(number)
        return bodies

    bodies = asyncio.run(run())
    assert all(each.startswith("seed 7, body ") for each in bodies.problems)
    return bodies, {each.rsplit(": ", 1)[1] for each in bodies.problems}


def test_each_kind_of_body_is_sent_and_a_fault_is_told_of_each_but_who_is_gone() -> None:
    bodies, said = problems_of_bodies(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", 1, 60)
    assert said == {"500"}
    assert {each.split()[0] for each in bodies.answers} == {each.__name__[1:] for each in KINDS}
    assert bodies.answers["gone -"] == bodies.answers.total() - len(bodies.problems)
    fine, said = problems_of_bodies(b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n", 1, 20)
    assert (fine.answers.total(), said) == (20, set())


def test_a_body_that_has_no_answer_is_told() -> None:
    _, said = problems_of_bodies(b"", 1, 20)
    assert any("IncompleteReadError" in each for each in said)


def test_who_takes_an_endless_body_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_bodies, "KINDS", [rest_bodies._endless])
    monkeypatch.setattr(rest_bodies, "TAKEN_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(rest_bodies, "ANSWER_S_MAX", 1)
    _, said = problems_of_bodies(b"", -1, 3)
    assert said == {"no end after 1 s"}


def test_a_storm_of_requests_has_no_fault_and_nobody_else_notices(tmp_path: Path) -> None:
    broker = Broker("pyxbroker", tmp_path / "broker", settings=SETTINGS)
    try:
        broker.start()
        text, problems = storm(broker, REQUESTS, seed=1, connections=4)
    finally:
        broker.close()
    assert not problems, "\n".join(problems)
    assert f"{REQUESTS} answers" in text

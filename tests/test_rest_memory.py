"""What answers of REST hold: they have a part of what is remembered for clients."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append
from one_broker import section
from pyxbroker.admin.app import ENTRIES_READ_MAX
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources import messages
from pyxbroker.admin.resources.broker_stats import TOPIC_NAME_BYTES
from pyxbroker.base.memory_budget import ANSWERS_PART
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.broker.topics.entry_view import EntryView
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.web.response import Response
from test_admin_topics import NAME, P, Rest
from test_admin_topics import run as run_rest
from web_client import GET, LAST, Run, Served, dial, parse, run, served, statuses, talk, until

__all__ = ["run"]

LONG = 16 << 20  # more than sockets keep


async def answer(request: Request) -> Response:
    return Response(b"x" * (LONG if "last" not in request.path else 1_000))


async def behind(web: Served, asked: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that asks and reads nothing."""
    reader, writer = await dial(web)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(asked)
    return reader, writer


CLOSING = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("asked", [GET, CLOSING])
def test_long_answers_that_nobody_reads_are_refused_when_they_are_too_much(
    run: Run, asked: bytes
) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=ANSWERS_PART * 5 * LONG // 2)
        async with served(answer, memory=memory) as web:
            clients = [await behind(web, asked) for _ in range(2)]
            await until(lambda: memory.answer_bytes >= 2 * LONG)
            assert memory.answer_bytes < 2 * LONG + 1_000 and memory.used == 0
            (refused,) = parse(await talk(web, CLOSING))
            assert refused[0] == 503
            assert "maxClientStateSizeInMB" in json.loads(refused[2])["reason"]
            assert memory.answers_refused == 1
            # What is short is answered: also what tells of this trouble.
            assert await statuses(web, LAST) == [200]
            # Who goes, or reads, makes room.
            (_, gone), (reader, writer) = clients
            gone.transport.abort()
            await until(lambda: memory.answer_bytes < 2 * LONG)
            assert await statuses(web, GET + LAST) == [200, 200]
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            await reader.readexactly(LONG)
            await until(lambda: memory.answer_bytes == 0)
            writer.close()

    run(main)


def test_an_answer_is_refused_where_connections_have_the_budget(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=ANSWERS_PART * 2 * LONG)
        memory.used = memory.total_max - LONG // 2
        async with served(answer, memory=memory) as web:
            assert await statuses(web, CLOSING) == [503]
            memory.used -= LONG
            assert await statuses(web, CLOSING) == [200]
            await until(lambda: memory.answer_bytes == 0)

    run(main)


PIECE = b"x" * LONG
HELD = 1 << 20


async def answer_in_pieces(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield PIECE

    return Response(pieces(), held_bytes=HELD)


def test_pieces_of_an_answer_that_nobody_reads_and_what_makes_them_have_the_same_limit(
    run: Run,
) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=ANSWERS_PART * 5 * LONG // 2)
        async with served(answer_in_pieces, memory=memory) as web:
            clients = [await behind(web, GET) for _ in range(2)]
            await until(lambda: memory.answer_bytes == 2 * (LONG + HELD))
            # It has begun when its first piece is too much: it ends without its end.
            got = await talk(web, CLOSING)
            assert got == b"" or (got.startswith(b"HTTP/1.1 200 OK") and b"0\r\n\r\n" not in got)
            assert memory.answers_refused == 1
            await until(lambda: memory.answer_bytes == 2 * (LONG + HELD))
            # Who goes, or reads, makes room.
            (_, gone), (reader, writer) = clients
            gone.transport.abort()
            await until(lambda: memory.answer_bytes == LONG + HELD)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            whole = bytearray()
            while not whole.endswith(b"\r\n0\r\n\r\n"):
                whole += await reader.read(1 << 20)
            await until(lambda: memory.answer_bytes == 0)
            assert len((await talk(web, CLOSING)).partition(b"\r\n\r\n")[2]) > 2 * LONG
            writer.close()

    run(main)


def test_a_piece_that_comes_when_its_client_is_gone_is_not_charged(run: Run) -> None:
    async def main() -> None:
        memory = ClientMemory(total_max=ANSWERS_PART * 5 * LONG // 2)
        goes_on, ended = asyncio.Event(), asyncio.Event()

        async def answer_late(request: Request) -> Response:
            async def pieces() -> AsyncIterator[bytes]:
                try:
                    yield b"begins"
                    await goes_on.wait()
                    yield PIECE
                finally:
                    ended.set()

            return Response(pieces(), held_bytes=HELD)

        async with served(answer_late, memory=memory) as web:
            reader, writer = await dial(web)
            writer.write(GET)
            await reader.readuntil(b"begins")
            assert memory.answer_bytes == HELD
            # Its connection is reset: it does not only send no more.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            await until(lambda: memory.answer_bytes == 0)
            goes_on.set()
            await ended.wait()
            await asyncio.sleep(0.01)
            assert memory.answer_bytes == 0

    run(main)


def test_names_of_topics_that_an_answer_keeps_are_charged(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        for number in range(10):
            await rest.broker.topic(f"{NAME}/t{number}")
        answered = await rest.answer("GET", "/admin/v2/broker-stats/topics")
        assert answered.held_bytes == 10 * TOPIC_NAME_BYTES
        await answered.close()

    run_rest(tmp_path, scenario)


def test_few_entries_are_read_and_unpacked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = most = 0
    read_view, plain = messages.read_view, EntryView.plain

    async def count(*asked: Any) -> EntryView | None:
        nonlocal held, most
        held += 1
        most = max(most, held)
        await asyncio.sleep(0.001)
        return await read_view(*asked)

    async def unpack(view: EntryView) -> bytes:
        nonlocal held
        found = await plain(view)
        held -= 1
        return found

    async def scenario(rest: Rest) -> None:
        data = b"a" * (1 << 20)
        fields = {"compression": pb.ZLIB, "uncompressed_size": len(data)}
        topic = await rest.broker.topic(f"{NAME}/t")
        await append(topic.managed_ledger, section(zlib.compress(data), **fields))
        monkeypatch.setattr(messages, "read_view", count)
        monkeypatch.setattr(EntryView, "plain", unpack)
        asked = [rest.answer("GET", f"{P}/t/examinemessage") for _ in range(20)]
        answers = await asyncio.gather(*asked)
        assert {each.body for each in answers} == {data}
        assert held == 0 < most <= ENTRIES_READ_MAX

    run_rest(tmp_path, scenario)


def test_an_entry_with_endless_metadata_is_refused_in_a_short_turn(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await rest.broker.topic(f"{NAME}/t")
        fields: dict[str, Any] = {"replicate_to": [""] * 100_000, "num_messages_in_batch": 3}
        ((ledger, entry),) = await append(topic.managed_ledger, section(b"abc", **fields))
        status, reason = await rest.reason("GET", f"{P}/t/ledger/{ledger}/entry/{entry}")
        assert status == 422 and "at most 65536 are shown" in reason
        # What only asks how many messages it has is told.
        await rest("PUT", f"{P}/t/subscription/s")
        place = {"ledgerId": ledger, "entryId": entry, "batchIndex": 1}
        reset = f"{P}/t/subscription/s/resetcursor"
        assert (await rest("POST", reset, json.dumps(place)))[0] == 204
        assert topic.subscriptions["s"].acks.partial == 1

    run_rest(tmp_path, scenario)

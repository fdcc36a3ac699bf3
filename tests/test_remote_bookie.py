"""Connections to bookies: adds and reads, answers of every kind, lost connections, time-outs."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from one_bookie import until
from pyxbroker.base.properties import ConfigError
from pyxbroker.bookie_channel import BookieChannel
from pyxbroker.bookie_frames import frames_of
from pyxbroker.entry import CRC32C, Digest, EntryBatch, EntryRun
from pyxbroker.ledger import bookie
from pyxbroker.ledger.bookie import (
    ADD_HIGH_PRIORITY,
    ADD_RECOVERY,
    BUSY,
    DAMAGED,
    DISCONNECTED,
    FAILED,
    FENCED,
    NO_ENTRY,
    NO_LEDGER,
    READ_ONLY,
    REFUSED,
    TIMED_OUT,
    UNAUTHORIZED,
    Bookie,
    Stripe,
)
from pyxbroker.ledger.bookie_tls import make_contexts
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.metadata import DigestType, LedgerMetadata
from pyxbroker.ledger.pool import BookiePool
from pyxbroker.ledger.reader import ReadHandle, segments_of
from pyxbroker.ledger.registered_bookies import RegisteredBookies
from pyxbroker.ledger.remote import RemoteBookie, RemoteSettings
from pyxbroker.ledger.writer import LedgerWriter
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.turn import Turn
from scripted_bookie import (
    ADD,
    BATCH_READ,
    FENCING,
    HIGH_PRIORITY,
    READ,
    RECOVERY_ADD,
    Peer,
    Request,
    ScriptedBookie,
    added,
    found,
    frame,
)
from scripted_server import run

pytestmark = pytest.mark.usefixtures("each_loop")

MIB = 1 << 20
KEY = CRC32C.master_key


class Adder:
    """A writer that notes its answers."""

    def __init__(self, digest: Digest = CRC32C) -> None:
        self.digest = digest
        self.acked: list[tuple[int, int, int]] = []
        self.failed: list[tuple[int, int, int]] = []

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        self.acked.append((slot, first, last))

    def on_adds_failed(self, slot: int, first: int, code: int) -> None:
        self.failed.append((slot, first, code))

    def on_add_taken_back(self, slot: int, run: EntryRun) -> bool:
        raise AssertionError("a remote bookie takes nothing back")

    @property
    def entries(self) -> list[int]:
        return [each for _, first, last in self.acked for each in range(first, last + 1)]


class Scene:
    """A scripted bookie and the connection to it."""

    def __init__(self, server: ScriptedBookie, pool: BookiePool, full: list[bool]) -> None:
        self.server = server
        self.pool = pool
        self.full = full
        self.bookie = pool[server.bookie_id]
        self.adder = Adder()

    def add(
        self,
        first: int,
        *data: bytes,
        ledger_id: int = 1,
        slot: int = 0,
        adder: Adder | None = None,
        flags: int = 0,
        stripe: Stripe | None = None,
    ) -> EntryRun:
        one = run_of(ledger_id, first, *data)
        adder = adder or self.adder
        assert self.bookie.add_run(adder, slot, one, first - 1, 0, flags, stripe)
        return one

    async def read(self, first: int, last: int, **more: Any) -> EntryBatch | int:
        answers: list[EntryBatch | int] = []
        self.bookie.read(
            *(more.get("ledger_id", 1), first, last, more.get("count_max", 1000), MIB),
            answers.append,
            more.get("fencing_key"),
        )
        assert not answers, "no method answers within the call"
        await until(lambda: bool(answers))
        assert len(answers) == 1
        return answers[0]

    async def fence(self, ledger_id: int = 1) -> int:
        answers: list[int] = []
        self.bookie.fence(ledger_id, CRC32C, answers.append)
        await until(lambda: bool(answers))
        return answers[0]


def run_of(ledger_id: int, first: int, *data: bytes) -> EntryRun:
    """A run of several entries, appended to a ledger."""
    one = EntryRun.of_all(list(data))
    one.ledger_id, one.first_entry_id = ledger_id, first
    return one


def data_of(batch: EntryBatch | int) -> list[bytes]:
    assert isinstance(batch, EntryBatch), batch
    assert batch.unpack(CRC32C) == len(batch)
    return [batch.data(i) for i in range(len(batch))]


unregistered = RegisteredBookies(MemoryStore()).address_of
"""Without registrations an id is an address."""


def scene(scenario: Callable[[Scene], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        full: list[bool] = []
        pool = BookiePool(
            Turn(asyncio.get_running_loop()),
            unregistered,
            full.append,
            RemoteSettings(**({"add_timeout_s": 5.0, "read_timeout_s": 5.0} | settings)),
        )
        async with ScriptedBookie() as server:
            try:
                await scenario(Scene(server, pool, full))
            finally:
                await pool.close()

    run(main)


def test_a_run_is_stored_as_bookkeeper_packages_it() -> None:
    async def scenario(one: Scene) -> None:
        bookie: Bookie = one.bookie
        assert not bookie.is_embedded
        one.add(0, b"first", b"second", b"")
        await until(lambda: one.adder.acked == [(0, 0, 2)])
        assert [each.master_key for each in one.server.requests] == [KEY] * 3
        entry = one.server.ledgers[1][1]
        assert entry[:32] == b"".join(
            each.to_bytes(8, "big", signed=True) for each in (1, 1, -1, 11)
        )
        assert entry[36:] == b"second"
        assert data_of(await one.read(0, 2)) == [b"first", b"second", b""]

    scene(scenario)


def test_flags_and_keys_of_requests() -> None:
    async def scenario(one: Scene) -> None:
        hushed = Adder(Digest(DigestType.HMAC, b"hush"))
        one.add(0, b"x", adder=hushed, flags=ADD_RECOVERY)
        one.add(1, b"x", adder=hushed, flags=ADD_HIGH_PRIORITY)
        await until(lambda: hushed.entries == [0, 1])
        await one.read(0, 0, fencing_key=KEY)
        await one.read(0, 1, fencing_key=KEY)
        await one.fence()
        flags = [each.flags for each in one.server.requests]
        assert flags == [RECOVERY_ADD, HIGH_PRIORITY, *(FENCING | HIGH_PRIORITY,) * 3]
        assert {each.master_key for each in one.server.requests[2:]} == {KEY}
        assert one.server.requests[0].master_key == hushed.digest.master_key != KEY
        operations = [each.operation for each in one.server.requests]
        assert operations == [ADD, ADD, READ, BATCH_READ, READ]

    scene(scenario)


def test_a_run_is_packaged_once_for_all_bookies() -> None:
    one = run_of(7, 3, b"a" * 100, b"b" * 50)
    first = frames_of(one, CRC32C, 2, 1000)
    assert frames_of(one, CRC32C, 4, 1000) == first, "an older last add confirmed is true as well"
    assert len(first[0]) == 2 * (28 + 36) + 150
    assert [one.data(0), one.data(1)] == [b"a" * 100, b"b" * 50]
    recovered = frames_of(one, CRC32C, 2, 1000, RECOVERY_ADD)
    assert recovered[0] != first[0]
    assert [one.data(0), one.data(1)] == [b"a" * 100, b"b" * 50]
    one.ledger_id = 8
    assert frames_of(one, CRC32C, 2, 1000, RECOVERY_ADD)[0] != recovered[0]
    one.release()
    with pytest.raises(ValueError, match="released"):
        frames_of(one, CRC32C, 2, 1000)


def test_acknowledgements_of_a_ledger_are_one_range() -> None:
    async def scenario(one: Scene) -> None:
        held: list[bytes] = []

        def hold(peer: Peer, request: Request) -> bool:
            held.append(one.server.answer(request))
            if len(held) == 40:
                peer.write(*held)
            return True

        one.server.script = hold
        other = Adder()
        for entry_id in range(0, 20, 2):
            one.add(entry_id, b"x", b"y")
            one.add(entry_id, b"x", b"y", adder=other, slot=3, ledger_id=2)
        await until(lambda: len(one.adder.entries) == len(other.entries) == 20)
        assert one.adder.acked == [(0, 0, 19)]
        assert other.acked == [(3, 0, 19)]
        assert one.bookie.pending_bytes == 0

    scene(scenario)


def test_a_stripe_sends_its_entries_and_acknowledges_ranges_of_it() -> None:
    async def scenario(one: Scene) -> None:
        stripe = Stripe(1, 3, 2)
        for first in range(0, 30, 5):
            one.add(first, *(b"%d" % n for n in range(first, first + 5)), stripe=stripe)
        stored = [n for n in range(30) if stripe.has(n)]
        await until(lambda: len(one.server.ledgers.get(1, ())) == len(stored))
        assert sorted(one.server.ledgers[1]) == stored
        await until(lambda: set(stored) <= set(one.adder.entries))
        assert one.server.ledgers[1][4].endswith(b"4")
        assert not Stripe(2, 4, 1).has(1)
        one.add(1, b"x", ledger_id=9, stripe=Stripe(2, 4, 1))  # nothing to send
        assert one.bookie.pending_bytes == 0

    scene(scenario)


def test_answers_out_of_order_twice_and_of_nothing() -> None:
    async def scenario(one: Scene) -> None:
        requests: list[Request] = []

        def shuffle(peer: Peer, request: Request) -> bool:
            requests.append(request)
            if len(requests) == 60:
                answers = [added(each) for each in requests for _ in range(2)]
                answers += [added(Request(ADD, 0, 1, 5000)), added(Request(ADD, 0, 77, 0))]
                answers.append(found(Request(READ, 0, 1, 3), [], 2))
                random.Random(4).shuffle(answers)
                peer.write(*answers)
            return True

        one.server.script = shuffle
        for first in range(0, 60, 10):
            one.add(first, *(b"x" for _ in range(10)))
        await until(lambda: len(one.adder.entries) == 60)
        await asyncio.sleep(0.02)
        assert sorted(one.adder.entries) == list(range(60))
        assert one.adder.failed == []
        assert one.bookie.late_answers == 63
        assert one.bookie.pending_bytes == 0
        assert one.bookie.is_connected

    scene(scenario)


def test_torn_frames() -> None:
    async def scenario(one: Scene) -> None:
        def drip(peer: Peer, request: Request) -> bool:
            async def write() -> None:
                answer = one.server.answer(request)
                for at in range(0, len(answer), 7000 if len(answer) > 1000 else 3):
                    peer.write(answer[at : at + (7000 if len(answer) > 1000 else 3)])
                    await asyncio.sleep(0.0005)

            task = asyncio.ensure_future(write())
            tasks.append(task)
            return True

        tasks: list[asyncio.Future[None]] = []
        one.server.script = drip
        one.add(0, b"x" * 700_000)
        await until(lambda: one.adder.entries == [0])
        assert data_of(await one.read(0, 0)) == [b"x" * 700_000]

    scene(scenario)


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        *((1, NO_LEDGER), (2, NO_ENTRY), (100, REFUSED), (101, FAILED), (102, UNAUTHORIZED)),
        *((103, REFUSED), (104, FENCED), (105, READ_ONLY), (106, BUSY), (107, FAILED)),
        (-1, FAILED),
    ],
)
def test_codes_of_bookies(wire: int, code: int) -> None:
    async def scenario(one: Scene) -> None:
        def refuse(peer: Peer, request: Request) -> bool:
            is_add = request.operation == ADD
            peer.write(added(request, wire) if is_add else found(request, [], wire))
            return True

        one.server.script = refuse
        one.add(5, b"x", b"y", b"z", slot=2)
        await until(lambda: bool(one.adder.failed))
        assert await one.read(0, 0) == code
        assert await one.read(0, 9) == code
        assert await one.fence() == (-1 if code in (NO_LEDGER, NO_ENTRY) else code)
        assert one.adder.failed == [(2, 5, code)], "once for the run"
        assert one.bookie.pending_bytes == 0

    scene(scenario)


def test_fences_answer_the_last_add_confirmed() -> None:
    async def scenario(one: Scene) -> None:
        assert await one.fence() == -1, "the bookie does not have the ledger"
        one.server.fenced.clear()
        one.add(0, b"a", b"b")
        one.add(2, b"c")
        await until(lambda: one.adder.entries == [0, 1, 2])
        last: list[int] = []
        one.bookie.last_entry(1, last.append)
        one.bookie.read_last_add_confirmed(1, last.append)
        await until(lambda: last == [2, 1])
        assert one.server.fenced == set()
        assert await one.fence() == 1
        one.add(3, b"late")
        await until(lambda: one.adder.failed == [(0, 3, FENCED)])
        one.add(3, b"recovered", flags=ADD_RECOVERY)
        await until(lambda: one.adder.entries == [0, 1, 2, 3])

    scene(scenario)


def test_a_plain_read_does_not_answer_a_fence() -> None:
    """Both read the last entry, and an answer does not say which of them it belongs to."""

    async def scenario(one: Scene) -> None:
        held: list[tuple[Peer, Request]] = []

        def hold(peer: Peer, request: Request) -> bool:
            held.append((peer, request))
            return True

        one.server.script = hold
        answers: list[str] = []
        one.bookie.last_entry(1, lambda _: answers.append("last"))
        one.bookie.last_entry(1, lambda _: answers.append("last"))
        one.bookie.fence(1, CRC32C, lambda _: answers.append("fence"))
        await until(lambda: len(held) == 2)
        await asyncio.sleep(0.02)
        assert [each.flags for _, each in held] == [0, 0]
        for peer, each in held[:2]:
            peer.write(one.server.answer(each))
        await until(lambda: len(held) == 3)
        assert answers == ["last", "last"]
        held[2][0].write(one.server.answer(held[2][1]))
        await until(lambda: answers == ["last", "last", "fence"])

    scene(scenario)


def test_latencies_and_failures_of_a_bookie_are_counted() -> None:
    async def scenario(one: Scene) -> None:
        one.add(0, b"a", b"b")
        await until(lambda: one.adder.entries == [0, 1])
        await one.read(0, 1)
        assert await one.read(5, 5) == NO_ENTRY
        bookie = one.bookie
        assert (bookie.adds_done, bookie.adds_failed) == (2, 0)
        assert (bookie.reads_done, bookie.reads_failed) == (2, 0)
        assert 0 < bookie.adds_ns < 10**10
        assert 0 < bookie.reads_ns < 10**10
        await one.fence()
        one.add(2, b"late")
        await until(lambda: one.adder.failed == [(0, 2, FENCED)])
        one.server.script = lambda peer, request: True  # no answers
        one.add(3, b"lost", flags=ADD_RECOVERY)
        assert await one.read(0, 0) == TIMED_OUT
        await until(lambda: len(one.adder.failed) == 2)
        assert (bookie.adds_done, bookie.adds_failed) == (2, 2)
        assert bookie.reads_failed == 1

    scene(scenario, add_timeout_s=0.2, read_timeout_s=0.2)


def test_batches_end_where_the_bookie_ends() -> None:
    async def scenario(one: Scene) -> None:
        one.add(0, *(b"%d" % n for n in range(10)))
        await until(lambda: len(one.adder.entries) == 10)
        assert data_of(await one.read(3, 99)) == [b"%d" % n for n in range(3, 10)]
        assert data_of(await one.read(3, 99, count_max=2)) == [b"3", b"4"]
        assert [each.count for each in one.server.requests[-2:]] == [97, 2]
        assert await one.read(10, 12) == NO_ENTRY
        assert await one.read(0, 3, ledger_id=4) == NO_LEDGER

    scene(scenario)


def test_damaged_entries_are_noticed() -> None:
    async def scenario(one: Scene) -> None:
        one.add(0, b"first", b"second", b"third", b"fourth")
        await until(lambda: len(one.adder.entries) == 4)
        stored = one.server.ledgers[1]
        good = dict(stored)
        stored[2] = stored[2][:-1] + b"!"
        batch = await one.read(0, 3)
        assert isinstance(batch, EntryBatch)
        assert len(batch) == 4
        assert batch.unpack(CRC32C) == 2
        stored[2] = good[3]
        assert data_of(await one.read(0, 3)) == [b"first", b"second"]
        assert await one.read(2, 2) == DAMAGED
        stored[3] = b"short"
        assert await one.read(3, 3) == DAMAGED
        assert await one.fence() == DAMAGED
        stored[3] = good[3][:16] + (1).to_bytes(8, "big") + good[3][24:]
        assert await one.fence() == DAMAGED, "its digest does not cover the position that it names"
        stored[3] = good[3]
        assert await one.fence() == -1, "the runs were sent together"
        stored[3] = good[3][:16] + (9).to_bytes(8, "big") + good[3][24:]
        assert await one.fence() == DAMAGED, "it names a later entry as confirmed"
        assert one.bookie.malformed_answers == 0

    scene(scenario)


NONSENSE = {
    "text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no version": frame(bytes(24)),
    "another version": frame(b"\x03\x01\0\0" + bytes(20)),
    "an unknown operation": frame(b"\x02\x05\0\0" + bytes(20)),
    "a negative length": b"\xff" * 40,
    "a length of 0": bytes(40),
    "a short add": frame(b"\x02\x01\0\0" + bytes(16)),
    "a long add": frame(b"\x02\x01\0\0" + bytes(21)),
    "a short batch": frame(b"\x02\x07\0\0" + bytes(20)),
    "a large frame": (6 << 20).to_bytes(4, "big") + b"\x02\x02\0\0" + bytes(100),
    "a batch of another entry": found(Request(BATCH_READ, 0, 1, 8, 1), []),
    "an empty batch": found(Request(BATCH_READ, 0, 1, 0, 1), []),
    "a batch with too many entries": found(Request(BATCH_READ, 0, 1, 0, 1), [bytes(40)] * 3),
    "a batch whose sizes exceed it": found(Request(BATCH_READ, 0, 1, 0, 1), [bytes(40)])[:-1],
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_ends_the_connection(what: str, caplog: pytest.LogCaptureFixture) -> None:
    data = NONSENSE[what]
    if "sizes" in what:
        data = frame(data[4:])

    async def scenario(one: Scene) -> None:
        def babble(peer: Peer, request: Request) -> bool:
            peer.write(data)
            return True

        one.server.script = babble
        one.add(0, b"x")
        answer = await one.read(0, 1)
        assert answer in (DISCONNECTED, DAMAGED)
        await until(lambda: one.adder.failed == [(0, 0, DISCONNECTED)])
        assert one.bookie.malformed_answers == 1
        assert one.bookie.trouble is not None
        assert one.bookie.trouble.startswith("the bookie ")
        assert len(caplog.records) == 1
        one.server.script = lambda peer, request: False
        await until(lambda: one.bookie.connects == 2 or not one.add(1, b"y"))
        one.add(2, b"z")
        await until(lambda: 2 in one.adder.entries)

    scene(scenario)


def test_a_lost_connection_fails_what_is_in_flight() -> None:
    async def scenario(one: Scene) -> None:
        one.server.script = lambda peer, request: request.entry_id != 0
        one.add(0, b"a", b"b")
        one.add(2, b"c", ledger_id=2)
        answers: list[EntryBatch | int] = []
        fenced: list[int] = []
        one.bookie.read(1, 5, 9, 10, MIB, answers.append)
        one.bookie.fence(5, CRC32C, fenced.append)
        await until(lambda: len(one.server.requests) == 5 and one.adder.entries == [0])
        one.server.peers[0].close()
        await until(lambda: len(one.adder.failed) == 2 and bool(answers) and bool(fenced))
        assert one.adder.failed == [(0, 1, DISCONNECTED), (0, 2, DISCONNECTED)]
        assert (answers, fenced) == ([DISCONNECTED], [DISCONNECTED])
        assert one.bookie.pending_bytes == 0
        one.server.script = lambda peer, request: False
        one.add(7, b"x")
        await until(lambda: 7 in one.adder.entries)
        assert len(one.server.peers) == 2

    scene(scenario)


def test_a_bookie_that_is_away_fails_requests_and_returns() -> None:
    async def scenario(one: Scene) -> None:
        one.server.stop()
        port = one.server.port
        one.add(0, b"x")
        assert one.adder.failed == [], "no method answers within the call"
        await until(lambda: one.adder.failed == [(0, 0, DISCONNECTED)])
        one.add(1, b"x")
        await until(lambda: len(one.adder.failed) == 2)
        assert "refused" in (one.bookie.trouble or "")
        async with ScriptedBookie(port) as back:
            await until(lambda: one.bookie.trouble is None or not one.add(2, b"x"))
            one.add(3, b"x")
            await until(lambda: 3 in one.adder.entries)
            assert len(back.peers) == 1

    scene(scenario)


def test_a_bookie_whose_address_is_unknown() -> None:
    async def scenario(one: Scene) -> None:
        away = one.pool["bookie-7"]
        away.add_run(one.adder, 0, run_of(1, 0, b"x"), -1, 0)
        await until(lambda: one.adder.failed == [(0, 0, DISCONNECTED)])
        assert "bookie-7 is not registered" in (away.trouble or "")
        assert set(one.pool) == {one.server.bookie_id, "bookie-7"}

    scene(scenario)


def test_requests_without_an_answer_time_out_and_late_answers_are_dropped() -> None:
    async def scenario(one: Scene) -> None:
        held: list[tuple[Peer, Request]] = []

        def hold(peer: Peer, request: Request) -> bool:
            if request.ledger_id == 1:
                held.append((peer, request))
            return request.ledger_id == 1

        one.server.script = hold
        one.add(0, b"x", b"y")
        answers: list[EntryBatch | int] = []
        one.bookie.read(1, 0, 0, 1, MIB, answers.append)
        while not (one.adder.failed and answers):
            await one.read(0, 0, ledger_id=2)  # the bookie answers this
            await asyncio.sleep(0.02)
        assert one.adder.failed == [(0, 0, TIMED_OUT)]
        assert answers == [TIMED_OUT]
        assert one.bookie.timeouts == 2
        assert one.bookie.pending_bytes == 0
        one.add(0, b"x", b"y", slot=1)
        await until(lambda: len(held) == 5)
        for peer, request in held:
            peer.write(one.server.answer(request))
        await until(lambda: one.adder.acked == [(1, 0, 1)])
        assert (len(answers), len(one.adder.failed)) == (1, 1)
        assert one.bookie.late_answers == 3
        assert one.bookie.is_connected

    scene(scenario, add_timeout_s=0.3, read_timeout_s=0.3)


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_connection_that_withholds_answers_ends(is_silent: bool) -> None:
    async def scenario(one: Scene) -> None:
        one.server.script = lambda peer, request: is_silent or request.ledger_id == 1
        one.add(0, b"x")
        while one.bookie.trouble is None:
            one.bookie.read(2, 0, 0, 1, MIB, lambda _: None)
            await asyncio.sleep(0.01)
        assert one.adder.failed == [(0, 0, TIMED_OUT)]
        reason = "does not answer" if is_silent else "left a request without an answer"
        assert reason in one.bookie.trouble

    scene(scenario, add_timeout_s=0.15, read_timeout_s=0.15)


def test_a_bookie_without_batch_reads() -> None:
    async def scenario(one: Scene) -> None:
        def close(peer: Peer, request: Request) -> bool:
            if request.operation == BATCH_READ:
                peer.close()
            return request.operation == BATCH_READ

        one.server.script = close
        one.add(0, b"x", b"y")
        await until(lambda: one.adder.entries == [0, 1])
        assert await one.read(0, 1) == DISCONNECTED
        assert data_of(await one.read(0, 1)) == [b"x"]
        assert not one.bookie.has_batch_reads

    scene(scenario)


def test_bytes_in_flight_are_limited() -> None:
    async def scenario(one: Scene) -> None:
        one.server.script = lambda peer, request: request.entry_id < 4
        for entry_id in range(4):
            one.add(entry_id, b"x" * 300_000)
        assert one.bookie.holding
        assert one.full == [True]
        other = one.pool["127.0.0.1:1"]
        for _ in range(4):
            other.add_run(one.adder, 0, run_of(9, 0, b"x" * 300_000), -1, 0)
        assert one.full == [True], "two bookies are one reason to wait"
        await until(lambda: not other.holding)
        assert one.full == [True], "the first one still has too much to answer"
        await until(lambda: len(one.server.requests) == 4)
        for request in one.server.requests[:2]:
            one.server.peers[0].write(added(request))
        await until(lambda: one.full == [True, False])
        assert not one.bookie.holding
        one.add(5, b"y" * 1_100_000)
        assert one.full == [True, False, True]
        await until(lambda: 5 in one.adder.entries)
        assert one.full == [True, False, True, False]

    scene(scenario, pending_bytes_max=MIB)


def test_a_bookie_that_reads_slowly_gets_everything() -> None:
    async def scenario(one: Scene) -> None:
        one.server.reads.clear()
        for entry_id in range(0, 40, 2):
            one.add(entry_id, b"x" * 500_000, b"y" * 100)
        await asyncio.sleep(0.05)
        one.server.reads.set()
        await until(lambda: one.adder.entries == list(range(40)))
        assert [each.entry_id for each in one.server.requests] == list(range(40))

    scene(scenario)


def test_an_entry_above_the_limit_of_bookies_is_refused_here() -> None:
    async def scenario(one: Scene) -> None:
        one.add(0, b"x" * (6 << 20))
        await until(lambda: one.adder.failed == [(0, 0, REFUSED)])
        one.add(1, b"x")
        await until(lambda: one.adder.entries == [1])
        assert one.bookie.connects == 1

    scene(scenario)


def test_a_failing_callback_harms_no_other() -> None:
    async def scenario(one: Scene) -> None:
        broken = Adder()
        broken.on_adds_acked = None  # type: ignore[assignment, method-assign]
        one.add(0, b"x", adder=broken)
        one.bookie.read(1, 0, 0, 1, MIB, lambda _: 1 // 0)
        one.add(0, b"x", ledger_id=2)
        await until(lambda: one.adder.entries == [0])
        assert one.bookie.is_connected

    scene(scenario)


def test_requests_after_the_close_fail() -> None:
    async def scenario(one: Scene) -> None:
        one.add(0, b"x")
        await until(lambda: one.adder.entries == [0])
        await one.pool.close()
        one.add(1, b"x")
        await until(lambda: one.adder.failed == [(0, 1, DISCONNECTED)])
        assert await one.fence() == DISCONNECTED
        assert isinstance(one.bookie, RemoteBookie)

    scene(scenario)


def test_a_reader_finds_bookies_that_only_metadata_names() -> None:
    async def scenario(one: Scene) -> None:
        one.add(0, b"x")
        await until(lambda: one.adder.entries == [0])
        pool = BookiePool(Turn(asyncio.get_running_loop()), unregistered)
        segments = segments_of({0: (one.server.bookie_id,), 9: ("127.0.0.1:1",)}, pool, 1)
        batch = await ReadHandle(1, segments, 1).read_future(0, 0)
        assert batch.data(0) == b"x"
        await pool.close()

    scene(scenario)


def test_a_striped_ledger_from_run_to_reader() -> None:
    """The writer's handle and the reader on connections to three bookies."""

    async def scenario(one: Scene) -> None:
        async with ScriptedBookie() as second, ScriptedBookie() as third:
            members = (one.server.bookie_id, second.bookie_id, third.bookie_id)
            metadata = LedgerMetadata(3, 2, 2, {0: members})
            confirmed: list[EntryRun] = []
            listener = SimpleNamespace(on_run_confirmed=confirmed.append)
            handle = EnsembleHandle(
                *(LedgerWriter(4, metadata, 0), one.pool, lambda wanted: {}),
                *(SimpleNamespace(), listener, 5.0),  # type: ignore[arg-type]
            )
            data = [b"entry %d" % n for n in range(100)]
            for first in range(0, 100, 10):
                handle.append(EntryRun.of_all(data[first : first + 10]))
            await handle.drain()
            assert len(confirmed) == 10
            assert [len(each.ledgers[4]) for each in (one.server, second, third)] == [67, 67, 66]
            found: list[bytes] = []
            while len(found) < 100:
                found += data_of(await handle.read_future(len(found), 99))
            assert found == data
            assert all(confirmed[0].data(i) == data[i] for i in range(10))

    scene(scenario)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"key": ""}, "bookkeeperTLSKeyFilePath is empty, but bookkeeperTLSClientAuthentication"),
        ({"certificate": ""}, "bookkeeperTLSCertificateFilePath is empty"),
        ({"key_type": "BKS"}, "files of type 'BKS' are unknown. Use PEM, JKS or PKCS12."),
        ({"key_type": "JKS", "password": "/no"}, "its password in /no cannot be read: No such"),
        ({"key_type": "JKS"}, "bookkeeperTLSKeyFilePath (JKS): /k"),
        ({}, "bookkeeperTLSCertificateFilePath, bookkeeperTLSKeyFilePath: /c and /k cannot be"),
    ],
)
def test_settings_of_tls_that_cannot_be_used(values: dict[str, str], sentence: str) -> None:
    given = {"key": "/k", "certificate": "/c", "key_type": "PEM", "password": ""} | values
    config = SimpleNamespace(
        bookkeeperTLSClientAuthentication=True,
        bookkeeperTLSCertificateFilePath=given["certificate"],
        bookkeeperTLSKeyFilePath=given["key"],
        bookkeeperTLSKeyFileType=given["key_type"],
        bookkeeperTLSKeyStorePasswordPath=given["password"],
        bookkeeperTLSTrustCertsFilePath="",
        bookkeeperTLSTrustCertTypes="PEM",
        bookkeeperTLSTrustStorePasswordPath="",
        bookkeeperTlsCertFilesRefreshDurationSeconds=300,
        bookkeeper_tlsHostnameVerificationEnabled=False,
    )
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        make_contexts(config)
    config.bookkeeperTLSClientAuthentication = False
    assert make_contexts(config) is None


def test_mutated_answers_end_the_connection_or_are_understood() -> None:
    """Every request is answered once, whatever the bookie sends."""

    class Channel(BookieChannel):
        lost = ""

        def on_lost(self, reason: str) -> None:
            self.lost = reason

    async def main() -> None:
        chosen = random.Random(7)
        turn = Turn(asyncio.get_running_loop())
        entry = frames_of(run_of(1, 0, b"x" * 30), CRC32C, -1, 0)[0][28:]
        second = frames_of(run_of(1, 1, b"y" * 30), CRC32C, 0, 30)[0][28:]
        good = [
            added(Request(ADD, 0, 1, 0)),
            found(Request(READ, 0, 1, 0), [entry]),
            found(Request(BATCH_READ, 0, 1, 0, 1), [entry, second]),
            found(Request(READ, 0, 1, -1), [second]),
        ]
        ends = 0
        for _ in range(400):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            channel = Channel(
                turn, frame_bytes_max=MIB, pending_bytes_max=MIB, add_timeout_s=9, read_timeout_s=9
            )
            channel.attach(ours)
            adder, answers = Adder(), list[Any]()
            channel.add_run(adder, 0, run_of(1, 0, b"x" * 30), -1, 0)
            channel.read(1, 0, 0, 1, MIB, answers.append)
            channel.read(1, 0, 1, 2, MIB, answers.append)
            channel.fence(1, CRC32C, answers.append)
            data = bytearray(b"".join(chosen.sample(good, 4)))
            for _ in range(chosen.randrange(1, 4)):
                at = chosen.randrange(len(data))
                match chosen.randrange(3):
                    case 0:
                        data[at] ^= 1 << chosen.randrange(8)
                    case 1:
                        del data[at : at + chosen.randrange(1, 9)]
                    case 2:
                        data[at:at] = chosen.randbytes(chosen.randrange(1, 9))
            await asyncio.sleep(0)
            assert theirs.recv(4096)
            theirs.sendall(data)
            theirs.close()
            await until(lambda c=channel: bool(c.lost))  # type: ignore[misc]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ends += channel.malformed_answers
            assert len(adder.acked) + len(adder.failed) == 1
            assert len(answers) == 3
            for each in answers:
                assert isinstance(each, int) or each.unpack(CRC32C) <= 2
        assert 100 < ends < 400

    run(main)


def test_the_codes_of_the_connection_are_those_of_the_contract() -> None:
    text = (Path(bookie.__file__).parent.parent / "bookie_frames.pxd").read_text()
    _, _, rest = text.partition("# Codes and flags of ledger/bookie.py.\n")
    codes = dict(re.findall(r"^    ([A-Z_]+) = (\S+)$", rest.partition("\n\n")[0], re.MULTILINE))
    assert len(codes) == 13
    assert {name: int(code, 0) for name, code in codes.items()} == {
        name: getattr(bookie, name) for name in codes
    }

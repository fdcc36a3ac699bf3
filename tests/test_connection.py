"""A connection over a socket pair: what reads bring, what pauses them, and what leaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import select
import struct
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from oracles import wire
from pyxbroker.base.limits import METADATA_FIELDS_MAX
from pyxbroker.connection import Connection, Connections
from pyxbroker.entry import EntryRun
from pyxbroker.proto import PulsarApi as pb
from served import (
    Consumer,
    Notes,
    Producer,
    Served,
    ack,
    flow,
    nothing_can_be_watched_by,
    ping,
    section,
    send,
    turns,
)

UNFINISHED_MAX = 128  # UNAUTHENTICATED_SLABS_MAX
SLAB_BYTES, SLABS_KEPT_MAX = 512 * 1024, 16
ACKS_MAX = 1000

Scenario = Callable[[Served], Awaitable[None]]


@pytest.fixture(autouse=True, params=["plain", "tls"])
def over_tls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """All holds for a connection over TLS as well."""
    is_tls = bool(request.param == "tls")
    monkeypatch.setattr(Served, "over_tls", is_tls)
    return is_tls


def served(scenario: Scenario, **limits: int) -> None:
    """Runs a scenario with a connection of its own, and finds no defect met on the way."""

    async def run() -> None:
        failures: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        side = Served(**limits)
        try:
            await scenario(side)
        finally:
            side.close()
        await turns()
        assert not failures

    asyncio.run(run())


def runs_of(told: list[tuple[Any, ...]]) -> list[tuple[int, bytes]]:
    """(sequence id, bytes) of every entry in the runs; their checksums are right."""
    entries = [entry for what, *rest in told if what == "run" for entry in rest[1]]
    for _, _, data, crc in entries:
        if len(data) < 10_000:
            assert wire.crc32c(data) == crc
    return [(sequence_id, data) for sequence_id, _, data, _ in entries]


class UnwatchingLoop:
    """All that a set of connections asks of a loop before there is any."""

    def add_reader(self, fd: int, call: Callable[[], object]) -> None: ...


def unwatched() -> Connections:
    limits = dict.fromkeys(("frame_bytes_max", "sends_max", "publish_bytes_max"), 1 << 20)
    return Connections(UnwatchingLoop(), Notes(), **limits)


@pytest.mark.parametrize(
    ("spared", "what"), [(0, "the sockets of clients"), (1, "unauthenticated connections")]
)
def test_sockets_that_cannot_be_watched_are_said(spared: int, what: str) -> None:
    """Else nobody would ever be served."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [nothing]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (nothing + 64, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(nothing))
        for _ in range(spared):
            os.close(taken.pop())
        first = os.fstat(0)
        with pytest.raises(OSError, match=f"cannot create an epoll for {what}"):
            unwatched()
        gc.collect()
        assert os.path.samestat(os.fstat(0), first), "it has closed what it has not opened"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


def test_strangers_that_cannot_be_watched_any_more_are_said() -> None:
    group = unwatched()
    kept = os.dup(group.unauthenticated_fd)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), group.unauthenticated_fd)
        with pytest.raises(OSError, match="cannot poll the sockets of unauthenticated"):
            group.on_ready()
    os.dup2(kept, group.unauthenticated_fd)
    group.on_ready()
    os.close(kept)


# --- whose turn it is -----------------------------------------------------------------------------


class Permits:
    """A consumer that counts in which turn of the loop its connection was served."""

    def __init__(self, served_in: list[int], turn: list[int], call: Callable[[], object]) -> None:
        self._served_in, self._turn, self._call = served_in, turn, call

    def on_flow(self, permits: int) -> None:
        self._served_in.append(self._turn[0])
        self._call()

    def on_ack(self, *ack: Any) -> None:
        self.on_flow(0)


async def served_at_once(
    side: Served, count: int, call: Callable[[], object] = lambda: None
) -> tuple[list[int], list[Connection]]:
    """The turns in which so many connections were served that something came for at once."""
    turn, served_in = [0], list[int]()
    ends = [side.accept() for _ in range(count)]
    for connection, far in ends:
        connection.consumers[2] = Permits(served_in, turn, call)
        far.send(flow(1))
    while len(served_in) < count and turn[0] < 10 * count:
        turn[0] += 1
        await asyncio.sleep(0)
    for _, far in ends:
        far.close()
    return served_in, [connection for connection, _ in ends]


def test_a_turn_serves_so_many_sockets_however_many_are_ready() -> None:
    async def scenario(side: Served) -> None:
        served_in, connections = await served_at_once(side, 300)
        assert len(served_in) == 300
        assert max(Counter(served_in).values()) <= 256
        # All of them hang up in one moment.
        closing = []
        while side.group.live != {side.connection}:
            before = len(side.group.live)
            await asyncio.sleep(0)
            closing.append(before - len(side.group.live))
        assert max(closing) <= 256
        assert all(each.closed for each in connections)

    served(scenario)


def test_a_turn_serves_no_further_socket_when_its_time_is_over() -> None:
    """Reading and writing have 5 ms of it; a socket that has waited comes before those that come
    again.
    """

    async def scenario(side: Served) -> None:
        served_in, _ = await served_at_once(side, 5, lambda: time.sleep(0.006))
        assert Counter(Counter(served_in).values()) == {1: 5}

    served(scenario)


@pytest.mark.parametrize("command", [flow(1), ack()], ids=["flow", "ack"])
def test_what_a_command_makes_others_do_counts_in_a_turn(command: bytes) -> None:
    """A connection's turn is over when its time is, and not after so many commands."""

    async def scenario(side: Served) -> None:
        turn, served_in = [0], list[int]()
        side.connection.consumers[2] = Permits(served_in, turn, lambda: time.sleep(0.003))
        side.far.send(command * 12)
        while len(served_in) < 12 and turn[0] < 100:
            turn[0] += 1
            await asyncio.sleep(0)
        # 5 ms, and the command that they are over with; those of the first turn begin with it.
        assert len(served_in) == 12
        assert max(Counter(served_in).values()) <= 3

    served(scenario)


@pytest.mark.parametrize("over_tls", ["plain"], indirect=True)
def test_a_socket_that_is_closed_by_another_one_of_its_turn_is_not_served() -> None:
    """Nor is the one that has its number by then told anything that has not come."""

    async def scenario(side: Served) -> None:
        later: list[tuple[Connection, Any]] = []

        def close_others() -> None:
            if not later:
                numbers = {each.fd for each in others}
                for each in others:
                    each.close()
                later.extend(side.accept() for _ in range(4))
                assert numbers & {each.fd for each, _ in later}

        others: list[Connection] = []
        turn, served_in = [0], list[int]()
        ends = [side.accept() for _ in range(3)]
        for connection, far in ends:
            connection.consumers[2] = Permits(served_in, turn, close_others)
            far.send(flow(1))
        first = ends[0][0]
        others.extend(each for each, _ in ends[1:])
        await turns()
        assert served_in == [0]
        assert not first.closed
        assert {each[0] for each in side.told} == {"closed"}
        for each, far in later:
            assert not each.closed
            each.consumers[2] = Permits(served_in, turn, lambda: None)
            far.send(flow(1))
        await turns()
        assert served_in == [0] * 5
        for _, far in [*ends, *later]:
            far.close()
        await turns()

    served(scenario)


def test_who_waits_for_nothing_is_not_watched() -> None:
    """An error is told of whatever is watched, again and again."""

    async def scenario(side: Served) -> None:
        side.connection.pause_commands(True)
        side.far.close()
        calls = 0
        while select.select([side.group.fd], [], [], 0)[0] and calls < 10:
            calls += 1
            await turns()
        assert calls == 0
        assert not side.connection.closed
        side.connection.pause_commands(False)
        await turns()
        assert side.connection.closed

    served(scenario)


# --- reading ------------------------------------------------------------------------------------


def test_the_sends_of_one_read_come_as_one_run() -> None:
    async def scenario(side: Served) -> None:
        payloads = [section(b"one"), section(b""), section(b"three", checksum=False)]
        frames = [send(n, payload) for n, payload in enumerate(payloads)]
        await side.write(b"".join(frames))
        told = side.told
        assert [each[:2] for each in told] == [("run", 1)]
        assert runs_of(told) == list(enumerate(payloads))
        assert (side.producer.pending_sends, side.connection.pending_sends) == (3, 3)

    served(scenario)


def test_commands_come_the_same_however_the_stream_is_cut() -> None:
    stream = ping() + send(7, section(b"hello")) + flow(1000) + ping()

    async def scenario(side: Served) -> None:
        await side.write(stream)
        whole = side.told
        assert sorted(each[0] for each in whole) == ["command", "command", "flow", "run"]
        for cut in range(1, len(stream)):
            await side.write(stream[:cut])
            first = side.told
            await side.write(stream[cut:])
            assert sorted(first + side.told, key=repr) == sorted(whole, key=repr), cut
        for byte in stream:
            await side.write(bytes([byte]))
        assert sorted(side.told, key=repr) == sorted(whole, key=repr)

    served(scenario)


@pytest.mark.parametrize("size", [8_000, 9_000, 100_000, 524_288, 1_500_000, 5_242_880])
def test_frames_of_every_size_keep_their_bytes(size: int) -> None:
    """Small rests are stashed, large ones stay or move, and frames above a slab get their own."""

    async def scenario(side: Served) -> None:
        payloads = [section(os.urandom(size), checksum=False) for _ in range(4)]
        frames = [send(n, payload) for n, payload in enumerate(payloads)]
        side.group.set_holding(True)  # so that it is read on, however much waits for its receipt
        await side.write(b"".join(frames) + ping())
        told = side.told
        assert runs_of(told) == list(enumerate(payloads))
        assert told[-1][:2] == ("command", pb.BaseCommand.PING)

    served(scenario)


def test_few_slabs_are_kept_for_the_next_use_and_none_that_is_large() -> None:
    """Else what many clients sent at once, or in large frames, would never be given back."""

    async def scenario(side: Served) -> None:
        await side.write(send(1, section(bytes(1_500_000), checksum=False)))
        assert side.group.free_slabs == [SLAB_BYTES]
        frame = send(2, section(bytes(100_000), checksum=False))
        ends = [side.accept()[1] for _ in range(SLABS_KEPT_MAX + 2)]
        for far in ends:
            far.send(frame[:20_000])
        await turns(100)
        assert side.group.free_slabs == []
        for far in ends:
            far.send(frame[20_000:])
        await turns(100)
        assert side.group.free_slabs == [SLAB_BYTES] * SLABS_KEPT_MAX
        for far in ends:
            far.close()

    served(scenario)


def test_a_run_keeps_its_bytes_while_the_rest_of_the_next_frame_is_moved() -> None:
    async def scenario(side: Served) -> None:
        payloads = [section(os.urandom(150_000), checksum=False) for _ in range(12)]
        stream = b"".join(send(n, payload) for n, payload in enumerate(payloads))
        for at in range(0, len(stream), 190_000):
            await side.write(stream[at : at + 190_000])
        assert runs_of(side.told) == list(enumerate(payloads))

    served(scenario)


def test_a_cold_command_finds_the_sends_before_it_published() -> None:
    async def scenario(side: Served) -> None:
        await side.write(send(1, section(b"a")) + ping() + send(2, section(b"b")))
        assert [each[0] for each in side.told] == ["run", "command", "run"]

    served(scenario)


def test_commands_before_the_handshake_go_to_the_handlers() -> None:
    async def scenario(side: Served) -> None:
        _, far = side.accept_stranger()
        far.sendall(send(1, section(b"a")) + flow(3))
        await turns()
        assert [each[:2] for each in side.told] == [("command", 6), ("command", 11)]

    served(scenario)


def test_strangers_are_served_one_in_a_step_and_clients_do_not_wait_behind_them() -> None:
    async def scenario(side: Served) -> None:
        strangers = [side.accept_stranger() for _ in range(5)]
        for _, far in strangers:
            far.send(ping())
        side.far.send(ping())
        side.group._on_ready()
        assert len(side.told) == 1
        for _ in range(5):
            side.group.on_ready()
            assert len(side.told) == 1
        side.group.on_ready()
        assert side.told == []
        # Who is let in is served with the clients from then on, whatever it waits for.
        stranger, far = strangers[0]
        stranger.establish()
        stranger.establish()
        far.send(ping())
        side.group.on_ready()
        assert side.told == []
        side.group._on_ready()
        assert len(side.told) == 1
        for connection, far in strangers:
            connection.close()
            connection.establish()
            far.close()

    served(scenario)


def test_who_cannot_be_watched_is_no_connection(tmp_path: Path) -> None:
    """A file stands for a socket that epoll refuses."""

    async def scenario(side: Served) -> None:
        with (tmp_path / "file").open("wb") as file, pytest.raises(PermissionError):
            side.group.accept(file, "peer", None)
        assert side.group.live == {side.connection}
        assert list(side.group.watched.values()) == [side.connection]
        assert not side.group.unfinished

    served(scenario)


def test_who_cannot_be_watched_any_more_ends_and_nothing_is_left_of_it() -> None:
    async def scenario(side: Served) -> None:
        stranger, far = side.accept_stranger()
        far.send(struct.pack(">II", 100_000, 99_996) + bytes(19_996))
        await turns()
        assert list(side.group.unfinished) == [stranger]
        with nothing_can_be_watched_by(side.group.unauthenticated_fd):
            stranger.send_frame(
                bytes(10 << 20)
            )  # more than a socket takes: it has to be waited for
            await turns()
        assert stranger.closed and side.group.live == {side.connection}
        assert list(side.group.watched.values()) == [side.connection]
        assert not side.group.unfinished
        far.close()

    served(scenario)


def test_of_strangers_with_a_part_of_a_large_connect_the_first_gives_way() -> None:
    """Each of them keeps a slab: there are no more of those than the memory is worth."""

    async def scenario(side: Served) -> None:
        begun = struct.pack(">II", 100_000, 99_996) + bytes(19_996)
        strangers = []

        async def send_begun() -> Connection:
            stranger, far = side.accept_stranger()
            far.send(begun)
            await turns()
            strangers.append((stranger, far))
            return stranger

        for _ in range(UNFINISHED_MAX):
            await send_begun()
        assert list(side.group.unfinished) == [each for each, _ in strangers]
        assert not [each for each, _ in strangers if each.closed]
        # Who is let in, or goes, or has sent all of it, is none of them any more.
        strangers[0][0].establish()
        strangers[1][1].close()
        strangers[2][1].send(bytes(80_000 + 4))
        await turns(20)
        assert len(side.group.unfinished) == UNFINISHED_MAX - 3
        for _ in range(3):
            await send_begun()
        assert [each.closed for each, _ in strangers[2:5]] == [True, False, False]
        await send_begun()
        await send_begun()
        assert [each.closed for each, _ in strangers[3:6]] == [True, True, False]
        assert len(side.group.unfinished) == UNFINISHED_MAX
        assert not strangers[0][0].closed
        for _, far in strangers:
            far.close()

    served(scenario)


def test_acks_and_permits_reach_the_consumer() -> None:
    async def scenario(side: Served) -> None:
        ids = [
            pb.MessageIdData(ledgerId=3, entryId=4),
            pb.MessageIdData(ledgerId=3, entryId=5, ack_set=[0b1011, 1], batch_size=70),
            pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1, ack_set=[0]),
        ]
        await side.write(ack(*ids, request_id=9) + flow(2**31 - 1))
        await side.write(ack(ids[0], ack_type=1, txnid_most_bits=7, txnid_least_bits=0))
        assert side.told == [
            ("ack", [(3, 4, 0), (3, 5, 4), (-1, -1, 0)], False, 9, None),
            ("flow", 2**31 - 1),
            ("ack", [(3, 4, 0)], True, None, (7, 0)),
        ]

    served(scenario)


def test_acks_and_permits_for_nobody_are_dropped() -> None:
    async def scenario(side: Served) -> None:
        await side.write(ack(pb.MessageIdData(ledgerId=1, entryId=1), consumer_id=99))
        await side.write(flow(1, consumer_id=99))
        assert side.told == []
        assert side.notes.stray == ["ACK", "FLOW"]
        assert not side.connection.closed

    served(scenario)


# --- what is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x08\x00\x00\x00\x09",
        wire.frame(b"\x08\x06\x32\x02\x08\x01", section(b"")),  # SEND without sequence id
        send(1, section(b""), producer_id=99),
        wire.frame(b"\x08\x0a\x52\x02\x08\x02"),  # ACK without type
        wire.frame(b"\x08\x0b\x5a\x02\x08\x02"),  # FLOW without permits
        wire.frame(b"\x08\x14\xa2\x01\x02\x18\x01"),  # REDELIVER without consumer
        wire.frame(b"\x08\x14\xa2\x01\x03\x08\x02\x18"),  # its epoch does not end
        flow(0),
        flow(2**31),
        ack(pb.MessageIdData(ledgerId=1, entryId=1, ack_set=[1] * 4097)),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_closed_after_what_it_sent_before(bad: bytes) -> None:
    async def scenario(side: Served) -> None:
        await side.write(send(1, section(b"kept")) + bad + ping())
        assert [each[0] for each in side.told] == ["run", "malformed", "closed"]
        assert side.connection.closed
        assert side.group.live == set()
        assert await side.read() == b""

    served(scenario)


def test_a_damaged_entry_is_refused_and_the_rest_is_taken() -> None:
    async def scenario(side: Served) -> None:
        good = section(b"good")
        bad = good[:-1] + b"!"
        headless = section(b"", checksum=False)[:6]
        bare = wire.payload_section(b"\x10\x01", b"no name and no time")
        frames = [send(1, good), send(2, bad), send(3, headless), send(4, bare)]
        other = section(b"good", txnid_least_bits=2, txnid_most_bits=0)
        frames += [send(5, other, txnid_least_bits=1, txnid_most_bits=0), send(6, good)]
        await side.write(b"".join(frames))
        told = side.told
        assert runs_of(told[:1]) == [(1, good)]
        assert told[1:5] == [
            ("refused", 1, 2, "checksum"),
            ("refused", 1, 3, "metadata"),
            ("refused", 1, 4, "metadata"),
            ("refused", 1, 5, "transaction"),
        ]
        assert runs_of(told[5:]) == [(6, good)]

    served(scenario)


def test_the_transactions_of_a_run_are_those_of_its_commands_and_metadata() -> None:
    async def scenario(side: Served) -> None:
        plain = section(b"plain")
        of_txn = section(b"txn", txnid_most_bits=2**64 - 1, txnid_least_bits=7)
        ids = {"txnid_most_bits": 2**64 - 1, "txnid_least_bits": 7}
        frames = [send(1, plain), send(2, of_txn, **ids), send(3, plain), send(4, of_txn, **ids)]
        other = section(b"txn", txnid_most_bits=0, txnid_least_bits=8)
        frames += [send(5, plain), send(6, of_txn), send(7, other, **ids)]
        frames += [send(8, plain, txnid_least_bits=7)]  # half an id is none
        await side.write(b"".join(frames))
        refused = [each for each in side.told if each[0] == "refused"]
        assert refused == [("refused", 1, 6, "transaction"), ("refused", 1, 7, "transaction")]
        [run, last] = side.producer.runs
        assert run.transactions == [(1, -1, 7), (3, -1, 7)]
        assert last.transactions is None
        rest = run.without({0, 3})
        assert rest is not None
        assert rest.transactions == [(0, -1, 7)]
        rest = run.without({1, 3})
        assert rest is not None
        assert rest.transactions is None

    served(scenario)


@pytest.mark.parametrize("checksum", [True, False])
def test_the_metadata_gets_the_transaction_that_only_the_command_has(checksum: bool) -> None:
    async def scenario(side: Served) -> None:
        ids = {"txnid_most_bits": 2**64 - 1, "txnid_least_bits": 300}
        frames = [send(1, section(b"a")), send(2, section(b"b", checksum=checksum), **ids)]
        await side.write(b"".join(frames))
        [run] = side.producer.runs
        assert run.transactions == [(1, -1, 300)]
        [(_, _, entries)] = side.told
        assert entries[0][2] == section(b"a")
        _, _, stored, crc = entries[1]
        assert stored == section(b"b", **ids)
        assert crc == wire.crc32c(stored)

    served(scenario)


def test_metadata_with_too_many_fields_is_refused() -> None:
    """Whoever sends it to a consumer looks at it again."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    fields = METADATA_FIELDS_MAX - 3
    most = metadata.SerializeToString() + b"\x22\x00" * fields  # properties

    async def scenario(side: Served) -> None:
        await side.write(send(1, wire.payload_section(most, b"x")))
        assert [each[0] for each in side.told] == ["run"]
        await side.write(send(2, wire.payload_section(most + b"\x22\x00", b"x")))
        assert side.told == [("refused", 1, 2, "fields")]

    served(scenario)


def test_sends_for_a_producer_closed_just_now_are_dropped() -> None:
    async def scenario(side: Served) -> None:
        side.connection.forget_producer(1)
        await side.write(send(1, section(b"late")) + ping())
        assert [each[0] for each in side.told] == ["command"]
        assert side.notes.stray == ["SEND"]
        assert not side.connection.closed

    served(scenario)


def test_a_failing_handler_closes_its_connection_and_no_other() -> None:
    async def scenario(side: Served) -> None:
        other, far = side.accept()
        with far:
            side.connection.consumers[2] = None
            side.connection.consumers[3] = object()
            await side.write(flow(1, consumer_id=3))
            told = side.told
            assert [each[0] for each in told] == ["internal error", "closed"]
            assert side.connection.closed
            far.sendall(ping())
            await turns()
            assert [each[0] for each in side.told] == ["command"]
            assert not other.closed

    served(scenario)


# --- pausing ------------------------------------------------------------------------------------


def answered(side: Served) -> list[EntryRun]:
    runs, side.producer.runs = side.producer.runs, []
    return runs


def test_reading_pauses_at_too_many_pending_sends_and_goes_on_at_half() -> None:
    async def scenario(side: Served) -> None:
        for n in range(4):
            await side.write(send(n, section(b"x")))
        await side.write(ping())
        assert len(side.told) == 4
        runs = answered(side)
        side.producer.settle(runs[0])
        await turns()
        assert side.told == []
        side.producer.settle(runs[1])
        await turns()
        assert [each[0] for each in side.told] == ["command"]

    served(scenario, sends_max=4)


def test_reading_pauses_at_too_many_bytes_of_pending_sends_and_goes_on_at_half() -> None:
    """However few: what one client sends is written and synced at once, and others wait for it."""

    async def scenario(side: Served) -> None:
        for n in range(3):
            await side.write(send(n, section(bytes(3 << 20))))
        assert side.connection.pending_send_bytes > 9 << 20
        await side.write(ping())
        assert [each[0] for each in side.told] == ["run"] * 3
        runs = answered(side)
        side.producer.settle(runs[0])
        await turns()
        assert side.told == []
        side.producer.settle(runs[1])
        await turns()
        assert [each[0] for each in side.told] == ["command"]
        side.producer.settle(runs[2])
        assert side.connection.pending_send_bytes == 0

    served(scenario)


def test_connections_pause_while_too_many_bytes_are_in_flight_and_go_on_at_half() -> None:
    async def scenario(side: Served) -> None:
        other, far = side.accept()
        with far:
            other.producers[7] = Producer(other, 7, side.notes)
            await side.write(send(1, section(bytes(600))))
            await side.write(send(2, section(bytes(600))))
            far.sendall(ping())
            await turns()
            assert [each[0] for each in side.told] == ["run", "run"]
            assert side.group.publish_bytes > 1000
            first, last = answered(side)
            side.producer.settle(first)
            await turns()
            assert 500 < side.group.publish_bytes < 1000 and side.told == []
            side.producer.settle(last)
            await turns()
            assert [each[0] for each in side.told] == ["command"]
            assert side.group.publish_bytes == 0

    served(scenario, publish_bytes_max=1000)


def test_a_connection_that_only_consumes_goes_on_while_publishing_is_paused() -> None:
    async def scenario(side: Served) -> None:
        side.group.set_full(True)
        consuming, far = side.accept()
        with far:
            consuming.consumers[2] = Consumer(side.notes)
            far.sendall(flow(5) + ack(pb.MessageIdData(ledgerId=1, entryId=2)))
            await side.write(ping())
            assert [each[0] for each in side.told] == ["flow", "ack"]
        side.group.set_full(False)
        await turns()
        assert ("command", pb.BaseCommand.PING) in [each[:2] for each in side.told]

    served(scenario)


def test_a_producer_that_comes_while_publishing_is_paused_sends_once_and_waits() -> None:
    async def scenario(side: Served) -> None:
        side.group.set_full(True)
        late, far = side.accept()
        with far:
            late.producers[7] = Producer(late, 7, side.notes)
            for n in range(3):
                far.sendall(send(n, section(b"late"), producer_id=7))
                await turns()
            assert [(what, len(rest[1])) for what, *rest in side.told] == [("run", 1)]
            # Its producer was closed from our side: nothing that it sends needs room any more.
            late.forget_producer(7)
            far.sendall(ping())
            await turns()
            assert [each[0] for each in side.told] == ["command"]
        side.group.set_full(False)
        await turns()

    served(scenario)


def test_while_nothing_can_be_stored_a_connection_with_producers_is_read_on() -> None:
    async def scenario(side: Served) -> None:
        side.group.set_full(True)
        await side.write(flow(1))
        assert side.told == []
        side.group.set_holding(True)
        await turns()
        assert side.told == [("flow", 1)]
        # Neither the number of pending sends nor the full storage stops it.
        for n in range(6):
            await side.write(send(n, section(b"x")))
        await side.write(ack(pb.MessageIdData(ledgerId=1, entryId=2)))
        assert [each[0] for each in side.told] == ["run"] * 6 + ["ack"]
        side.group.set_holding(False)
        await side.write(flow(2))
        assert side.told == []

    served(scenario, sends_max=4)


def test_sends_that_were_too_many_when_nothing_could_be_stored_any_more_are_read_on() -> None:
    async def scenario(side: Served) -> None:
        for n in range(4):
            await side.write(send(n, section(b"x")))
        await side.write(flow(1))
        assert [each[0] for each in side.told] == ["run"] * 4
        side.group.set_holding(True)
        await turns()
        assert side.told == [("flow", 1)]

    served(scenario, sends_max=4)


def test_more_than_is_kept_while_nothing_can_be_stored_is_told_once_a_turn() -> None:
    async def scenario(side: Served) -> None:
        told: list[int] = []
        side.group.on_overflow = lambda: told.append(side.group.publish_bytes)
        side.group.set_holding(True)
        await side.write(send(1, section(bytes(600))))
        assert told == []
        await side.write(send(2, section(bytes(600))))
        assert len(told) == 1 and told[0] > 1000
        for run in answered(side):
            side.producer.settle(run)
        await side.write(flow(1))
        assert side.told[-1] == ("flow", 1)
        assert len(told) == 1

    served(scenario, publish_bytes_max=1000)


def test_sends_for_many_producers_closed_at_once_are_dropped() -> None:
    async def scenario(side: Served) -> None:
        for producer_id in range(100, 1100):
            side.connection.producers[producer_id] = side.producer
        for producer_id in range(100, 1100):
            side.connection.forget_producer(producer_id)
        await side.write(send(1, section(b"late"), producer_id=100) + ping())
        assert [each[0] for each in side.told] == ["command"]
        assert not side.connection.closed

    served(scenario)


def test_a_peer_that_does_not_read_is_not_read_either() -> None:
    async def scenario(side: Served) -> None:
        frame = wire.frame(b"\x08\x13\x9a\x01\x00", bytes(1 << 20))
        writable = []
        for _ in range(12):
            side.connection.send_frame(frame)
        await turns()
        assert side.connection.pending_bytes > 8 << 20
        side.connection.when_writable(lambda: writable.append(side.connection.pending_bytes))
        await side.write(ping())
        assert (side.told, writable) == ([], [])
        got = b""
        while len(got) < 12 * len(frame):
            got += await side.read()
        assert got == frame * 12
        assert [each[0] for each in side.told] == ["command"]
        assert len(writable) == 1
        assert writable[0] < 2 << 20

    served(scenario)


# --- answering ----------------------------------------------------------------------------------


def test_a_client_whose_acknowledgements_wait_is_read_again_when_half_of_them_are_answered() -> (
    None
):
    """Not after each: its socket would be watched, and watched no more, for every one of them."""

    async def scenario(side: Served) -> None:
        connection = side.connection
        for number in range(ACKS_MAX):
            assert not connection.is_paused, number
            connection.ack_begun()
        for number in range(ACKS_MAX // 2):
            assert connection.is_paused, number
            connection.ack_ended()
        assert not connection.is_paused
        await side.write(ping())
        assert [each[0] for each in side.told] == ["command"]

    served(scenario)


def test_a_peer_that_asks_on_without_reading_is_paused_at_the_limit() -> None:
    """Also when the socket was full long before: each answer that is queued counts."""

    async def scenario(side: Served) -> None:
        answer = wire.frame(b"x" * 20_000)

        def on_command(connection: Connection, kind: int, data: bytes, payload: bytes) -> None:
            connection.send_frame(answer)

        side.notes.on_command = on_command  # type: ignore[method-assign]
        sent = 0
        try:
            for _ in range(100_000):
                sent += side.far.send(ping())
                await turns(2)
        except BlockingIOError:
            await turns()
        # The limit, what one read may still bring, and records of TLS that are made already.
        assert (8 << 20) - (128 << 10) < side.connection.pending_bytes < 10 << 20
        answers = sent // len(ping())
        received = 0
        while received < answers * len(answer):
            received += len(await side.read())
        assert side.connection.pending_bytes == 0

    served(scenario)


def test_the_receipts_of_a_run_leave_in_one_write() -> None:
    async def scenario(side: Served) -> None:
        await side.write(b"".join(send(n, section(b"x")) for n in range(5, 8)))
        (run,) = answered(side)
        run.ledger_id, run.first_entry_id = 70, 80
        side.producer.send_receipts(run)
        side.connection.send_frame(ping())
        await turns()
        frames, _, error = wire.scan(await side.read(), 1000)
        assert error is None
        commands = [pb.BaseCommand.FromString(command) for command, _ in frames]
        assert commands.pop().type == pb.BaseCommand.PING
        receipts = [each.send_receipt for each in commands]
        assert [each.sequence_id for each in receipts] == [5, 6, 7]
        assert [each.producer_id for each in receipts] == [1, 1, 1]
        ids = [(each.message_id.ledgerId, each.message_id.entryId) for each in receipts]
        assert ids == [(70, 80), (70, 81), (70, 82)]
        assert (side.producer.pending_sends, side.connection.pending_sends) == (0, 0)

    served(scenario)


def test_receipts_for_a_closed_connection_only_settle() -> None:
    async def scenario(side: Served) -> None:
        await side.write(send(1, section(b"x")))
        side.connection.close()
        (run,) = answered(side)
        side.producer.send_receipts(run)
        assert (side.group.publish_bytes, side.connection.pending_bytes) == (0, 0)

    served(scenario)


def test_what_is_queued_leaves_before_the_connection_closes() -> None:
    async def scenario(side: Served) -> None:
        side.connection.send_frame(ping())
        side.connection.close()
        side.connection.close()
        side.connection.send_frame(ping())
        assert await side.read() == ping()
        assert side.told == [("closed",)]

    served(scenario)


def test_the_end_of_the_peer_closes_the_connection_and_frees_it() -> None:
    async def scenario(side: Served) -> None:
        session: set[int] = set()
        session_lives = weakref.ref(session)
        connection, far = side.accept(session)
        del session
        far.sendall(ping()[:6])
        await turns()
        far.close()
        await turns()
        assert connection.closed
        assert side.told == [("closed",)]
        assert connection not in side.group.live
        assert session_lives() is not None
        del connection
        gc.collect()
        assert session_lives() is None

    served(scenario)

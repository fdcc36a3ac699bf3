"""Delivery to one consumer: what it gets, in which frames, and what is pending afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import stored
from oracles import wire
from pyxbroker.ackset import AckSet
from pyxbroker.delivery import ConsumerState, Peeked, peek_entry
from pyxbroker.entry import AckRun, EntryBatch
from pyxbroker.proto import PulsarApi as pb
from served import Served
from stored import LEDGER

NOTHING_ACKED = AckSet(LEDGER, -1)


def entry(data: bytes, **fields: Any) -> bytes:
    """The bytes of a stored entry."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1234, **fields)
    return wire.payload_section(metadata.SerializeToString(), data)


def delivering(
    directory: Path, entries: list[bytes], scenario: Callable[[Served, EntryBatch], Awaitable[None]]
) -> None:
    """Runs a scenario with a connection and a batch of all these entries."""

    async def run() -> None:
        with stored.storage(directory) as opened:
            stored.add(opened, entries)
            side = Served()
            try:
                await scenario(side, stored.read(opened, 0, len(entries) - 1))
            finally:
                side.close()

    asyncio.run(run())


def consumer(side: Served, permits: int, partition: int = -1) -> ConsumerState:
    state = ConsumerState(side.connection, 2, partition)
    state.permits = permits
    return state


async def delivered(side: Served) -> list[tuple[Any, bytes]]:
    """(CommandMessage, stored bytes) of every frame that the client's end has got."""
    frames, _, error = wire.scan(await side.read(), 2**32 - 1)
    assert error is None
    return [(pb.BaseCommand.FromString(command).message, payload) for command, payload in frames]


@pytest.mark.parametrize(("permits", "entries"), [(-3, 1), (0, 1), (1, 1), (2, 2), (100, 20)])
def test_no_more_is_read_than_permits_are_worth(permits: int, entries: int) -> None:
    async def scenario() -> None:
        side = Served()
        assert consumer(side, permits).read_budget(20, 1000) == (entries, 1000)
        side.close()

    asyncio.run(scenario())


def test_each_entry_is_a_header_and_its_stored_bytes(tmp_path: Path) -> None:
    entries = [entry(b"one"), entry(b"x" * 5000), entry(b"")]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        state = consumer(side, 100, partition=4)
        state.consumer_epoch = 8
        assert state.deliver(batch, 0, 3, NOTHING_ACKED, {(LEDGER, 1): 6}, []) == 3
        got = await delivered(side)
        assert [payload for _, payload in got] == entries
        ids = [(each.message_id.ledgerId, each.message_id.entryId) for each, _ in got]
        assert ids == [(LEDGER, 0), (LEDGER, 1), (LEDGER, 2)]
        assert {each.message_id.partition for each, _ in got} == {4}
        assert {(each.consumer_id, each.consumer_epoch) for each, _ in got} == {(2, 8)}
        assert [each.redelivery_count for each, _ in got] == [0, 6, 0]
        assert (state.permits, state.unacked_messages, state.msg_out) == (97, 3, 3)
        assert (state.bytes_out, state.redelivered) == (sum(map(len, entries)), 1)
        assert state.pending_positions() == ids

    delivering(tmp_path, entries, scenario)


def test_what_another_broker_has_put_in_front_stays_with_brokers(tmp_path: Path) -> None:
    entries = [entry(b"one"), entry(b"x" * 5000), entry(b"three")]
    front = wire.BROKER_ENTRY_METADATA_MAGIC + (4).to_bytes(4, "big") + b"\x08\x01\x10\x02"

    async def scenario(side: Served, batch: EntryBatch) -> None:
        assert consumer(side, 100).deliver(batch, 0, 3, NOTHING_ACKED, {}, []) == 3
        assert [payload for _, payload in await delivered(side)] == entries

    delivering(tmp_path, [front + entries[0], front + entries[1], entries[2]], scenario)


def test_delivery_stops_when_permits_are_used_up_and_a_batch_may_overdraw_them(
    tmp_path: Path,
) -> None:
    entries = [entry(b"a"), entry(b"b", num_messages_in_batch=10), entry(b"c")]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        state = consumer(side, 3)
        assert state.can_deliver
        assert state.deliver(batch, 0, 3, NOTHING_ACKED, {}, []) == 2
        assert (state.permits, state.unacked_messages) == (-8, 11)
        assert not state.can_deliver
        state.permits += 9
        assert state.deliver(batch, 2, 3, NOTHING_ACKED, {}, []) == 3
        assert [payload for _, payload in await delivered(side)] == entries

    delivering(tmp_path, entries, scenario)


def test_acknowledged_entries_are_passed_over(tmp_path: Path) -> None:
    entries = [entry(b"%d" % n) for n in range(6)]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        acks = AckSet(LEDGER, 1)
        acks.add(LEDGER, 4)
        left_out: list[tuple[int, int]] = []
        state = consumer(side, 100)
        assert state.deliver(batch, 0, 6, acks, {}, left_out) == 6
        assert [payload for _, payload in await delivered(side)] == [entries[n] for n in (2, 3, 5)]
        assert left_out == []

    delivering(tmp_path, entries, scenario)


def test_markers_and_what_cannot_be_decoded_are_left_out(tmp_path: Path) -> None:
    entries = [
        entry(b"marker", marker_type=20),
        b"",
        b"\x00\x00\x00\x09cut",
        wire.payload_section(b"\x10\x01", b"no producer name"),
        entry(b"fine"),
    ]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        left_out: list[tuple[int, int]] = []
        state = consumer(side, 100)
        assert state.deliver(batch, 0, 5, NOTHING_ACKED, {}, left_out) == 5
        assert left_out == [(LEDGER, n) for n in range(4)]
        assert [payload for _, payload in await delivered(side)] == entries[4:]
        assert state.permits == 99

    delivering(tmp_path, entries, scenario)


def test_delivery_stops_while_the_client_does_not_read(tmp_path: Path) -> None:
    entries = [entry(bytes(1 << 20)) for _ in range(8)]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        state = consumer(side, 100)
        stopped = state.deliver(batch, 0, 8, NOTHING_ACKED, {}, [])
        assert 0 < stopped < 8
        assert not state.can_deliver
        again: list[bool] = []
        side.connection.when_writable(lambda: again.append(state.can_deliver))
        got = b""
        while not again:
            got += await side.read()
        assert again == [True]
        assert state.deliver(batch, stopped, 8, NOTHING_ACKED, {}, []) > stopped

    delivering(tmp_path, entries, scenario)


def test_a_closed_consumer_gets_nothing(tmp_path: Path) -> None:
    async def scenario(side: Served, batch: EntryBatch) -> None:
        state = consumer(side, 100)
        state.closed = True
        assert not state.can_deliver
        side.connection.close()
        assert state.deliver(batch, 0, 1, NOTHING_ACKED, {}, []) == 0

    delivering(tmp_path, [entry(b"x")], scenario)


def test_acknowledgements_settle_what_was_delivered(tmp_path: Path) -> None:
    entries = [entry(b"x", num_messages_in_batch=3) for _ in range(6)]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        state = consumer(side, 100)
        state.deliver(batch, 0, 6, NOTHING_ACKED, {}, [])
        assert state.is_pending(LEDGER, 5)
        assert state.settle(AckRun.of([(LEDGER, 5), (LEDGER, 5), (LEDGER, 9), (99, 0)])) == 3
        assert not state.is_pending(LEDGER, 5)
        assert state.settle_one(LEDGER, 4) == 3
        assert state.settle_one(LEDGER, 4) == 0
        assert state.unacked_messages == 12
        assert state.pending_positions() == [(LEDGER, each) for each in range(4)]
        state.take_back()
        assert (state.unacked_messages, state.pending_positions()) == (0, [])

    delivering(tmp_path, entries, scenario)


def test_entries_stay_readable_until_the_client_has_taken_them(tmp_path: Path) -> None:
    entries = [entry(bytes([n]) * 100_000) for n in range(15)]

    async def run() -> None:
        with stored.storage(tmp_path) as opened:
            stored.add(opened, entries)
            side = Served()
            state = consumer(side, 100)
            for n in range(15):
                state.deliver(stored.read(opened, n, n), 0, 1, NOTHING_ACKED, {}, [])
            opened.flush()
            stored.add(opened, [bytes(100_000)] * 15, first=15)
            got = b""
            while side.connection.pending_bytes or not got:
                got += await side.read()
            got += await side.read()
            frames, _, error = wire.scan(got, 2**32 - 1)
            assert error is None
            assert [payload for _, payload in frames] == entries
            side.close()

    asyncio.run(run())


def test_an_entry_can_be_looked_into(tmp_path: Path) -> None:
    entries = [
        entry(b"x"),
        entry(b"x", num_messages_in_batch=1),
        entry(b"x", num_messages_in_batch=-7, marker_type=21),
        b"\x00\x00",
    ]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        assert peek_entry(batch, 0) == Peeked(1234, 1, False, -1)
        assert peek_entry(batch, 1) == Peeked(1234, 1, True, -1)
        assert peek_entry(batch, 2) == Peeked(1234, 1, True, 21)
        assert peek_entry(batch, 3) is None
        for i in (-1, 4):
            with pytest.raises(IndexError):
                peek_entry(batch, i)

    delivering(tmp_path, entries, scenario)


def test_a_batch_that_is_partly_acknowledged_is_sent_with_what_is_left(tmp_path: Path) -> None:
    counts = (100, 100, 100, 4096 * 64)
    entries = [entry(b"x", num_messages_in_batch=count) for count in counts]

    async def scenario(side: Served, batch: EntryBatch) -> None:
        acks = AckSet(LEDGER, -1)
        acks.acknowledge_batch(LEDGER, 0, [-1, 0b11])
        acks.acknowledge_batch(LEDGER, 1, [0, 1 << 36])  # no message of the batch has this bit
        acks.acknowledge_batch(LEDGER, 3, [-1] * 4096)
        state = consumer(side, 1000)
        left_out: list[tuple[int, int]] = []
        assert state.deliver(batch, 0, 4, acks, {(LEDGER, 0): 2}, left_out) == 4
        got = await delivered(side)
        assert [list(each.ack_set) for each, _ in got] == [[-1, 0b11], [], [-1] * 4096]
        assert [each.redelivery_count for each, _ in got] == [2, 0, 0]
        assert [payload for _, payload in got] == [entries[0], entries[2], entries[3]]
        assert left_out == [(LEDGER, 1)]
        assert (state.permits, state.unacked_messages) == (1000 - 262_310, 262_310)
        assert state.reduce_pending(LEDGER, 0, 70) == 0
        assert state.reduce_pending(LEDGER, 0, 60) == 6
        assert state.reduce_pending(LEDGER, 1, 60) == 0
        assert state.reduce_pending(99, 1, 60) == 0
        assert state.unacked_messages == 262_304
        assert state.settle_one(LEDGER, 0) == 60

    delivering(tmp_path, entries, scenario)

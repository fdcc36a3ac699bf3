"""Cursor ledgers: states, changes and parts of them, restored from any prefix, with any losses."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from one_bookie import LIMITS, Node, append, ledgers_of, until
from oracles.ackset import longs_in, longs_of
from pyxbroker.ackset import AckSet
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.errors import EntryDamaged, LedgerError
from pyxbroker.mledger import cursor_ledger, positions, records
from pyxbroker.mledger.cursor import NO_LEDGER, Cursor
from pyxbroker.mledger.cursor_ledger import CursorLedger, recover_position
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.proto import MLDataFormats

T = TypeVar("T")
LEDGERS = {3: 500, 5: 20_000, 8: 64}
some_ledger = st.sampled_from(sorted(LEDGERS))
ENDS = {ledger: entries - 1 for ledger, entries in LEDGERS.items()}

# (mark, words of each ledger, ack sets of batches)
State = tuple[Position, dict[int, list[int]], dict[tuple[int, int], list[int]]]


def state_of(acks: AckSet) -> State:
    batches = {}
    for ledger in acks.batch_ledger_ids():
        encoded, rest = acks.encode_batches(ledger, 0, 5, 1 << 30, False)
        assert rest == -1
        info = MLDataFormats.PositionInfo.FromString(b"\x08\x00\x10\x00" + encoded)
        for each in info.batchedEntryDeletionIndexInfo:
            batches[each.position.ledgerId, each.position.entryId] = list(each.deleteSet)
    assert len(batches) == acks.partial
    return acks.mark_delete, {each: longs_in(acks, each) for each in acks.ledger_ids()}, batches


def is_within(acks: AckSet, state: State) -> bool:
    """Whether nothing is acknowledged that a state does not acknowledge."""
    mark, words, batches = state
    full = AckSet(*mark)
    for ledger, longs in words.items():
        full.add_longs(ledger, longs, ENDS[ledger])
    if acks.mark_delete > mark:
        return False
    for ledger, longs in state_of(acks)[1].items():
        for entry in range(64 * len(longs)):
            if longs[entry >> 6] >> (entry & 63) & 1 and not full.is_acknowledged(ledger, entry):
                return False
    for position, left in state_of(acks)[2].items():
        if not full.is_acknowledged(*position) and position not in batches:
            return False
        kept = batches.get(position, [])
        padded = left + [0] * (len(kept) - len(left))
        if any(word & ~wider for word, wider in zip(kept, padded, strict=False)):
            return False
    return True


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of which nothing has to wait."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


class Stored:
    """A ledger in memory, as its writer, its reader and the client see it."""

    ledger_id = 77
    failure = None

    def __init__(self, entries: list[bytes] | None = None) -> None:
        self.entries: list[bytes] = entries if entries is not None else []
        self.damaged: set[int] = set()
        self.pending = self

    @property
    def next(self) -> int:
        return len(self.entries)

    @property
    def length(self) -> int:
        return sum(map(len, self.entries))

    def append(self, run: EntryRun) -> None:
        self.entries.append(run.data(0))
        run.owner.on_run_confirmed(run)

    journal_failure = None

    async def recover(self, ledger_id: int) -> tuple[int, int]:
        return len(self.entries) - 1, self.length

    async def open_read(self, ledger_id: int) -> Stored:
        return self

    async def read_future(self, first: int, last: int) -> Any:
        if first in self.damaged:
            raise EntryDamaged("damaged")
        stop = min([each for each in self.damaged if first < each <= last], default=last + 1)
        return Batch(first, self.entries[first : min(stop, first + 3)])

    def restored(self, ends: Mapping[int, int] = ENDS) -> AckSet | None:
        found = at_once(recover_position(cast(Any, self), self.ledger_id, ends))
        return None if found is None else found[0]


class Batch:
    def __init__(self, first: int, entries: list[bytes]) -> None:
        self.first = first
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def entry_id(self, i: int) -> int:
        return self.first + i

    def data(self, i: int) -> bytes:
        return self.entries[i]


def ledger_on(stored: Stored, is_shared: bool) -> CursorLedger:
    limits = {"cursor_entries_per_ledger_max": 1000, "ranges_whole_max": 20}
    ledger = CursorLedger(LIMITS._replace(**limits, entry_bytes_max=3000), is_shared)
    ledger.handle = cast(Any, stored)
    return ledger


def read_as_pulsar(entry: bytes) -> AckSet:
    """Restore what Apache's brokers find in the last entry of a ledger: ranges, or else bits."""
    info = records.decode_position_info(entry)
    info.ClearField("changes")
    if info.individualDeletedMessages:
        info.ClearField("individualDeletedMessageRanges")
    acks, _ = positions.restore_position(info)
    for _ in positions.merge_position(acks, info, ENDS):
        pass
    return acks


class CursorLedgerMachine(RuleBasedStateMachine):
    """What a cursor does to its acknowledgements, and its ledger with them; with limits at which
    states of a few hundred bytes take several entries.
    """

    @initialize(is_shared=st.booleans())
    def open(self, is_shared: bool) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(cursor_ledger, "ENTRY_BYTES_MAX", 300)
        self.patch.setattr(cursor_ledger, "SMALL_BYTES", 200)
        self.patch.setattr(cursor_ledger, "CHANGES_BYTES_MIN", 1500)
        self.acks = AckSet(3, -1, tracked=True)
        self.is_shared = is_shared
        self.stored = Stored()
        self.ledger = ledger_on(self.stored, is_shared)
        self.states: dict[int, State] = {}  # by the entries of the ledger after a write

    @rule(ledger=some_ledger, seed=st.integers(0, 99), count=st.integers(1, 60))
    def acknowledge_some(self, ledger: int, seed: int, count: int) -> None:
        for entry in random.Random(seed).sample(range(LEDGERS[ledger]), count):
            self.acks.add(ledger, entry)
        self.acks.advance(lambda ledger_id, entry_id: None)

    @rule(ledger=some_ledger, first=st.integers(0, 400), step=st.integers(2, 9))
    def acknowledge_far_apart(self, ledger: int, first: int, step: int) -> None:
        for entry in range(first, min(first + 64 * step, LEDGERS[ledger]), step):
            self.acks.add(ledger, entry)

    @rule(ledger=some_ledger, seed=st.integers(0, 99), count=st.integers(1, 30))
    def acknowledge_messages(self, ledger: int, seed: int, count: int) -> None:
        chance = random.Random(seed)
        for entry in chance.sample(range(min(LEDGERS[ledger], 300)), count):
            self.acks.acknowledge_batch(ledger, entry, longs_of(chance.sample(range(200), 3)))
        self.acks.advance(lambda ledger_id, entry_id: None)

    @rule(ledger=some_ledger, entry=st.integers(0, 63))
    def acknowledge_up_to(self, ledger: int, entry: int) -> None:
        if (ledger, entry) > tuple(self.acks.mark_delete):
            self.acks.mark_delete_to(ledger, entry)
            self.acks.advance(lambda ledger_id, entry_id: None)

    @rule(ledger=some_ledger, entry=st.integers(-1, 63))
    def seek(self, ledger: int, entry: int) -> None:
        self.acks = AckSet(ledger, entry, tracked=True)

    @rule(urgent=st.booleans())
    def write(self, urgent: bool) -> None:
        at_once(self.ledger.write(self.acks, {}, urgent))
        if self.is_shared:
            fits = positions.whole_encoder(self.acks, None, 3000) is not None
            assert self.ledger.is_whole == fits
        self.states[len(self.stored.entries)] = state_of(self.acks)
        self.same()

    @rule()
    def write_at_the_end(self) -> None:
        at_once(self.ledger.write_for_pulsar(self.acks, {}))
        self.states[len(self.stored.entries)] = state_of(self.acks)
        assert self.ledger.is_whole or self.is_shared
        self.same()

    @rule()
    def go_on_in_a_new_ledger(self) -> None:
        self.check_prefixes()
        self.stored = Stored()
        self.ledger = ledger_on(self.stored, self.is_shared)
        self.states = {}
        self.write(True)

    def same(self) -> None:
        restored = self.stored.restored()
        assert restored is not None
        assert state_of(restored) == state_of(self.acks)
        if self.ledger.is_whole:
            last = Stored(self.stored.entries[-1:])
            assert len(last.entries[0]) < 3000 or not self.is_shared
            assert state_of(read_as_pulsar(last.entries[0])) == state_of(self.acks)

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def lose_entries(self, data: st.DataObject) -> None:
        """What is restored without them was acknowledged, at least before a seek."""
        entries = len(self.stored.entries)
        self.stored.damaged = data.draw(st.sets(st.integers(0, entries - 1), max_size=4))
        restored = self.stored.restored()
        if restored is None:
            assert 0 in self.stored.damaged
        else:
            assert any(is_within(restored, state) for state in self.states.values())
        self.stored.damaged = set()

    def check_prefixes(self) -> None:
        """A crash after any entry finds the state of the last write that was finished by then, or
        some of what the next one has.
        """
        finished: State | None = None
        for count in range(1, len(self.stored.entries) + 1):
            restored = Stored(self.stored.entries[:count]).restored()
            if count in self.states:
                finished = self.states[count]
                assert restored is not None
                assert state_of(restored) == finished
            else:
                assert restored is not None
                following = self.states[min(at for at in self.states if at > count)]
                assert restored.mark_delete == following[0] or state_of(restored) == finished
                assert is_within(restored, following) or state_of(restored) == finished

    def teardown(self) -> None:
        if hasattr(self, "stored"):
            self.patch.undo()
            self.check_prefixes()


TestCursorLedger = CursorLedgerMachine.TestCase
TestCursorLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# --- with a storage -------------------------------------------------------------------------------


async def opened(
    node: Node, entries: int, is_shared: bool = False, **limits: Any
) -> tuple[ManagedLedger, Cursor]:
    """A managed ledger with so many entries and a cursor before them.

    Only the ledger's counter knows of the entries: their bytes do not matter here.
    """
    node.store.is_shared = is_shared
    managed_ledger = await node.open(LIMITS._replace(**limits))
    cursor = Cursor(managed_ledger, "c", managed_ledger.first_position())
    managed_ledger.cursors["c"] = cursor
    await cursor.create_node()
    current = managed_ledger.current
    assert current is not None
    current.pending.add(entries)
    current.pending.on_ack(0, 0, entries - 1)
    managed_ledger.last_confirmed = Position(current.ledger_id, entries - 1)
    return managed_ledger, cursor


async def found_by(node: Node, cursor: Cursor, entries: int) -> AckSet:
    """What a successor restores of a cursor's ledger."""
    [ledger_id] = cursor.managed_ledger.ledgers
    found = await recover_position(node.client, cursor.ledger_id, {ledger_id: entries - 1})
    assert found is not None
    return found[0]


@pytest.mark.parametrize("entries", [2_000_000, 10_000_000])
def test_receipts_among_many_holes_cost_what_they_acknowledge(tmp_path: Path, entries: int) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await opened(node, entries)
            ledger = managed_ledger.last_confirmed.ledger_id
            holes = entries // 2
            cursor.acknowledge_positions((ledger, n) for n in range(1, entries, 2))
            await cursor.persist()
            assert cursor._ledger is not None
            handle = cursor._ledger.handle
            whole = handle.length
            assert whole < entries / 8 * 1.1
            parts = handle.pending.next
            assert parts >= whole >> 18
            chance = random.Random(1)
            for _ in range(100):
                cursor.acknowledge_positions([(ledger, 2 * chance.randrange(1, holes))])
                await cursor.persist()
            assert handle.pending.next == parts + 100
            assert handle.length - whole < 100 * 100
            cursor.acknowledge_positions([(ledger, 0)])
            await cursor.persist()
            expected = state_of(cursor.acks)
            successor = node.kill()
        async with successor as node:
            assert state_of(await found_by(node, cursor, entries)) == expected

    asyncio.run(scenario())


def test_what_is_written_stays_in_proportion(tmp_path: Path) -> None:
    """However often somebody waits for it, and although the state is hundreds of kilobytes."""

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await opened(node, 1_000_000)
            ledger = managed_ledger.last_confirmed.ledger_id
            written = acknowledged = 0
            used = None
            order = list(range(1, 1_000_000, 3))
            random.Random(2).shuffle(order)
            for start in range(0, 100_000, 500):
                cursor.acknowledge_positions((ledger, n) for n in order[start : start + 500])
                acknowledged += 500
                await cursor.persist()
                assert cursor._ledger is not None
                used = used or cursor._ledger
                written = used.handle.length
            assert used is cursor._ledger
            # A word and its place for each, and whole states of no more than that again.
            assert written < acknowledged * 12 * 2.5
            whole = used._whole_bytes
            assert whole > 80_000
            expected = state_of(cursor.acks)
            successor = node.kill()
        async with successor as node:
            read: list[int] = []
            ask = node.bookie.read

            def noted(*arguments: Any) -> None:
                def answer(batch: Any) -> None:
                    read.extend(len(batch.data(i)) for i in range(len(batch)))
                    arguments[-1](batch)

                ask(*arguments[:-1], answer)

            node.bookie.read = noted  # type: ignore[method-assign]
            node.bookie.read_cached = lambda *_: None  # type: ignore[method-assign]
            assert state_of(await found_by(node, cursor, 1_000_000)) == expected
            assert whole <= sum(read) < 2.1 * whole

    asyncio.run(scenario())


def test_a_state_that_pulsar_can_read_follows_what_was_written_in_haste(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await opened(node, 110_000, mark_delete_per_s=50.0)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions((ledger, n) for n in range(1, 100_000, 40))
            await cursor.persist()
            assert cursor._ledger is not None and cursor._ledger.is_whole
            handle = cursor._ledger.handle
            before = handle.length
            cursor.acknowledge_positions([(ledger, 105_000)])
            await cursor.persist()
            assert not cursor._ledger.is_whole
            assert handle.length - before < 100
            await until(lambda: cursor._ledger is not None and cursor._ledger.is_whole)
            assert not cursor._ledger.wants_whole
            [last] = [await handle.read_future(handle.last_add_confirmed, handle.pending.next - 1)]
            info = records.decode_position_info(last.data(0))
            [longs] = info.individualDeletedMessageRanges
            assert len(longs.values) == 105_000 // 64 + 1
            assert not info.HasField("changes")

    asyncio.run(scenario())


def test_a_state_with_too_many_ranges_for_an_entry_is_stored_as_pulsars_bits(
    tmp_path: Path,
) -> None:
    """Operators of Apache Pulsar set limits of millions of ranges."""

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            limits = {"ranges_whole_max": 10**7, "ranges_as_list_max": 10**7}
            managed_ledger, cursor = await opened(node, 400_000, **limits)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions((ledger, n) for n in range(1, 400_000, 2))
            await cursor.persist()
            assert cursor._ledger is not None
            assert cursor._ledger.is_whole
            assert cursor._ledger.handle.length < 70_000
            await cursor.close()
            assert cursor.ledger_id != NO_LEDGER
            assert state_of(await found_by(node, cursor, 400_000)) == state_of(cursor.acks)

    asyncio.run(scenario())


async def last_entry_of(cursor: Cursor) -> Any:
    assert cursor._ledger is not None
    last = cursor._ledger.last_entry_id
    batch = await cursor._ledger.handle.read_future(last, last)
    return records.decode_position_info(batch.data(0))


def test_on_a_shared_store_pulsar_finds_a_million_holes_after_each_receipt(tmp_path: Path) -> None:
    """Whenever the broker ends, an Apache broker that continues has all that was answered."""

    async def scenario() -> None:
        entries = 2_000_000
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await opened(node, entries, is_shared=True)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions((ledger, n) for n in range(1, entries, 2))
            began = time.monotonic()
            for answered in (10, 100, 1000, 10_000, 100_000):
                cursor.acknowledge_positions([(ledger, answered)])
                cursor.acks.acknowledge_batch(ledger, answered + 2, [5, -1])
                await cursor.persist()
                info = await last_entry_of(cursor)
                assert not info.HasField("changes")
                [longs] = info.individualDeletedMessageRanges
                assert longs.values[answered >> 6] >> (answered & 63) & 1
                last = info.batchedEntryDeletionIndexInfo[-1]
                assert (last.position.entryId, list(last.deleteSet)) == (answered + 2, [5, -1])
            # Receipts that follow each other do not take a bookie for themselves.
            assert cursor._ledger is not None
            written = cursor._ledger.handle.length
            assert written > 5 * entries / 64 * 10
            pace = cursor_ledger.WHOLE_BYTES_PER_S
            assert time.monotonic() - began > 0.8 * written / pace - written / 5 / pace
            expected = state_of(cursor.acks)
            successor = node.kill()
        async with successor as node:
            assert state_of(await found_by(node, cursor, entries)) == expected

    asyncio.run(scenario())


def test_on_a_shared_store_a_state_above_the_largest_entry_is_in_several(tmp_path: Path) -> None:
    async def scenario() -> None:
        entries = 1_000_000
        async with Node(tmp_path / "bookie") as node:
            limits = {"is_shared": True, "entry_bytes_max": 100_000}
            managed_ledger, cursor = await opened(node, entries, **limits)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions((ledger, n) for n in range(1, entries, 2))
            await cursor.persist()
            assert cursor._ledger is not None and not cursor._ledger.is_whole
            before = cursor._ledger.handle.length
            cursor.acknowledge_positions([(ledger, 8)])
            await cursor.persist()
            assert cursor._ledger.handle.length - before < 100
            expected = state_of(cursor.acks)
            successor = node.kill()
        async with successor as node:
            assert state_of(await found_by(node, cursor, entries)) == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("step", [2, 300])
def test_a_clean_close_leaves_many_holes_as_pulsar_reads_them(tmp_path: Path, step: int) -> None:
    async def scenario() -> None:
        entries = 30_000 * step
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await opened(node, entries)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions((ledger, n) for n in range(1, entries, step))
            await cursor.persist()
            assert cursor._ledger is not None and not cursor._ledger.is_whole
            await cursor.close()
            fits = step == 2
            assert cursor._ledger.is_whole == fits
            assert cursor.ledger_id != NO_LEDGER
            last = cursor._ledger.handle.last_add_confirmed
            batch = await cursor._ledger.handle.read_future(last, last)
            info = records.decode_position_info(batch.data(0))
            assert (len(info.individualDeletedMessageRanges) == 1) == fits
            assert state_of(await found_by(node, cursor, entries)) == state_of(cursor.acks)

    asyncio.run(scenario())


def test_a_long_ledger_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_ledger, "LEDGER_BYTES_MAX", 2000)

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await opened(node, 1000)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions([(ledger, 500), (ledger, 700), (ledger, 800)])
            used = set()
            for entry in range(100):
                cursor.acknowledge_positions([(ledger, entry)])
                await cursor.persist()
                assert cursor._ledger is not None
                assert cursor._ledger.handle.length < 2100
                used.add(cursor.ledger_id)
            assert len(used) == 3, "about 50 bytes each"
            assert ledgers_of(node.storage) == [cursor.ledger_id]
            assert state_of(await found_by(node, cursor, 1000)) == state_of(cursor.acks)

    asyncio.run(scenario())


# --- what others may have written -----------------------------------------------------------------


def info_of(**fields: Any) -> Any:
    return MLDataFormats.PositionInfo(ledgerId=3, entryId=-1, **fields)


def test_ranges_over_the_ends_of_ledgers_are_restored() -> None:
    info = info_of()
    each = info.individualDeletedMessages.add()
    each.lowerEndpoint.ledgerId, each.lowerEndpoint.entryId = 3, 497
    each.upperEndpoint.ledgerId, each.upperEndpoint.entryId = 8, 2
    acks = Stored([info.SerializeToString()]).restored()
    assert acks is not None
    assert acks.ledger_ids() == [3, 5, 8]
    assert (acks.ranges(3), acks.ranges(5)) == ([(497, 499)], [(-1, 19_999)])
    assert acks.ranges(8) == [(-1, 2)]


def test_a_long_state_is_restored_in_short_steps() -> None:
    """So that the loop serves clients meanwhile."""
    info = info_of()
    for number in range(20_000):
        each = info.individualDeletedMessages.add()
        each.lowerEndpoint.ledgerId = each.upperEndpoint.ledgerId = 3
        each.lowerEndpoint.entryId, each.upperEndpoint.entryId = 2 * number, 2 * number + 1
        place = info.batchedEntryDeletionIndexInfo.add(deleteSet=[1]).position
        place.ledgerId, place.entryId = 3, 2 * number
    info.individualDeletedMessageRanges.add(key=4, values=[5] * 100_000)
    acks, _ = positions.restore_position(info)
    restored = []
    for _ in positions.merge_position(acks, info, {3: 10**6, 4: 10**8}):
        restored.append((len(acks.ranges(3)), acks.acknowledged_up_to(4, 0, 10**7), acks.partial))
    assert restored[-1] == (20_000, 200_000, 20_000)
    # Ranges, words of two bits, and batches: each step takes a millisecond.
    for before, after in pairwise([(0, 0, 0), *restored]):
        added = [now - then for then, now in zip(before, after, strict=True)]
        assert added[0] <= 1000 and added[1] <= 2 * 16_384 and added[2] <= 1000


def test_entries_that_do_not_exist_are_not_restored() -> None:
    """Whatever the bytes say, and without taking memory for them."""
    info = info_of()
    for ledger, lower, upper in ((3, 0, 2**62), (9, 0, 2**62), (2, 0, 5), (5, 2**61, 2**62)):
        each = info.individualDeletedMessages.add()
        each.lowerEndpoint.ledgerId = each.upperEndpoint.ledgerId = ledger
        each.lowerEndpoint.entryId, each.upperEndpoint.entryId = lower, upper
    info.individualDeletedMessageRanges.add(key=8, values=[-1] * 1000)
    info.individualDeletedMessageRanges.add(key=9, values=[-1])
    runs = info.changes.runs
    runs.add(ledgerId=5, runs=b"\x80\x80\x80\x80\x80\x01\x01" + b"\xff" * 8)
    runs.add(ledgerId=9, runs=b"\x00\x01" + b"\xff" * 8)
    for ledger, entry in ((8, 64), (9, 0), (5, -1), (5, 2**62)):
        position = info.batchedEntryDeletionIndexInfo.add(deleteSet=[1]).position
        position.ledgerId, position.entryId = ledger, entry
    acks = Stored([info.SerializeToString()]).restored()
    assert acks is not None
    assert acks.ledger_ids() == [3, 8]
    assert acks.holes == 499 + 64
    assert acks.partial == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"since": 1},
        {"since": -1},
        {"since": 2**62},
        {"before": 0},
        {"before": 2**62},
        {"since": 0, "runs": [{"ledgerId": 3, "runs": b"\x00\x09cut"}]},
    ],
)
def test_entries_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    info = info_of(changes=MLDataFormats.CursorChanges(**changes))
    with pytest.raises(records.MalformedRecord):
        Stored([info.SerializeToString()]).restored()


def test_an_empty_ledger_has_no_state() -> None:
    assert Stored().restored() is None


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger = await node.open()
            await append(managed_ledger, b"x")
            ledger = await CursorLedger.create(node.client, "t", "c", LIMITS, False)
            await ledger.write(AckSet(3, 1), {"p": 1}, urgent=True)
            await node.client.recover(ledger.ledger_id)
            for _ in range(2):
                with pytest.raises(LedgerError):
                    await ledger.write(AckSet(3, 2), {}, urgent=True)
            found = await recover_position(node.client, ledger.ledger_id, ENDS)
            assert found is not None
            assert (found[0].mark_delete, found[1]) == ((3, 1), {"p": 1})

    asyncio.run(scenario())


def test_pieces_are_as_long_as_they_may_be() -> None:
    acks = AckSet(3, -1, tracked=True)
    for ledger in LEDGERS:
        for entry in range(1, min(LEDGERS[ledger], 3000), 2):
            acks.add(ledger, entry)
    for entry in range(0, 400, 2):
        acks.acknowledge_batch(3, entry, [-1] * 10)
    sizes = [
        sum(len(runs) for _, runs in piece.runs) + len(piece.batches)
        for piece in positions.pieces(acks, 1000, only_changed=False)
    ]
    assert max(sizes) < 1200
    assert len(sizes) < 2 + sum(sizes) // 700

"""Recovery of a ledger on an ensemble: by hand, on model bookies, and named schedules."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from one_bookie import NAME, Runs, until
from pyxbroker.entry import CRC32C, EntryRun
from pyxbroker.ledger import ensemble, recovery
from pyxbroker.ledger.bookie import DISCONNECTED, FAILED, FENCED, NO_ENTRY, NO_LEDGER, TIMED_OUT
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.errors import LedgerError, LedgerFenced
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.metadata import LedgerMetadata, LedgerState, VersionedLedgerMetadata
from pyxbroker.ledger.recovery import (
    READ_AHEAD,
    Action,
    Fence,
    FoundEntry,
    LedgerRecovery,
    Read,
    ReadLength,
    Recovered,
    Restart,
    WriteBack,
)
from pyxbroker.ledger.writer import Action as WriterAction
from pyxbroker.ledger.writer import Fail, LedgerWriter, ReadMetadata, WriteMetadata
from simulate_ledger import ModelRun
from test_ensemble import Cluster, run

NAMES = ("a", "b", "c", "d", "e")


def begun(
    ensemble: int = 3, write: int = 3, ack: int = 2, first: int = 0
) -> tuple[LedgerRecovery, list[Action]]:
    metadata = LedgerMetadata(ensemble, write, ack, {0: NAMES[:ensemble]})
    if first:
        metadata = metadata.with_ensemble(first, NAMES[:ensemble])
    machine = LedgerRecovery(7)
    found = VersionedLedgerMetadata(metadata.in_recovery(), 5)
    return machine, machine.on_metadata_read(found)


def fenced(confirmed: int = -1, ensemble: int = 3, write: int = 3, ack: int = 2) -> LedgerRecovery:
    machine, _ = begun(ensemble, write, ack)
    for member in range(ensemble):
        machine.on_fenced(member, confirmed)
    return machine


def found(length: int = 10) -> FoundEntry:
    return FoundEntry(cast(EntryRun, ModelRun(1)), length)


def asked(actions: list[Action]) -> list[tuple[int, int]]:
    return [(each.entry_id, each.member) for each in actions if isinstance(each, Read)]


# --- the machine ----------------------------------------------------------------------------------


def test_an_open_ledger_is_marked_before_its_bookies_are_fenced() -> None:
    metadata = LedgerMetadata(3, 3, 2, {0: ("x", "y", "z"), 5: NAMES[:3]})
    machine = LedgerRecovery(7)
    (write,) = machine.on_metadata_read(VersionedLedgerMetadata(metadata, 5))
    assert write == WriteMetadata(metadata.in_recovery(), 5)
    assert machine.on_metadata_lost() == [ReadMetadata()]
    (write,) = machine.on_metadata_read(VersionedLedgerMetadata(metadata, 6))
    assert write == WriteMetadata(metadata.in_recovery(), 6)
    assert machine.on_metadata_written(7) == [Fence(0, "a"), Fence(1, "b"), Fence(2, "c")]
    assert machine.confirmed == 4, "earlier segments are confirmed"


def test_a_ledger_that_is_closed_already_has_its_end() -> None:
    metadata = LedgerMetadata(3, 3, 2, {0: NAMES[:3]}).closed(8, 90)
    found = VersionedLedgerMetadata(metadata, 5)
    assert LedgerRecovery(7).on_metadata_read(found) == [Recovered(8, 90)]


def test_entries_are_read_when_no_ack_quorum_is_left_unfenced() -> None:
    machine, _ = begun()
    assert machine.on_fenced(0, 3) == []
    assert machine.on_fenced(0, 3) == [], "an answer that arrives twice counts once"
    assert asked(machine.on_fenced(2, 4))[:4] == [(5, 0), (5, 1), (5, 2), (6, 0)]


def test_each_write_set_of_a_striped_ledger_needs_fenced_bookies() -> None:
    machine, _ = begun(5, 3, 2)
    for member in (0, 1, 2):
        assert machine.on_fenced(member, -1) == []
    # Of c, d, e one is fenced, and two could be an ack quorum.
    assert len(asked(machine.on_fenced(3, -1))) == READ_AHEAD * 3


def test_recovery_fails_when_an_ack_quorum_may_be_unfenced() -> None:
    machine, _ = begun()
    assert machine.on_fenced(0, TIMED_OUT) == []
    (fail,) = machine.on_fenced(1, DISCONNECTED)
    assert isinstance(fail, Fail)
    assert "a (Connection timed out), b (" in str(fail.error)
    assert machine.on_fenced(2, 3) == []


def test_an_entry_that_one_bookie_has_is_written_back_before_the_close() -> None:
    machine = fenced(confirmed=3)
    machine.on_read(4, 0, NO_ENTRY)
    one = found(50)
    assert machine.on_read(4, 1, one)[0] == WriteBack(one.run)
    assert machine.writer is not None
    assert machine.writer.length == 40
    assert len(machine.writer.append(one.run)) == 3
    assert one.run.first_entry_id == 4
    machine.on_read(5, 0, NO_ENTRY)
    assert machine.on_read(5, 1, NO_LEDGER) == [], "entry 4 is not on an ack quorum yet"
    machine.writer.on_acked(0, 4, 4)
    machine.writer.on_acked(1, 4, 4)
    (write,) = machine.on_written_back()
    assert isinstance(write, WriteMetadata)
    assert write.version == 5
    assert (write.metadata.last_entry_id, write.metadata.length) == (4, 50)
    assert machine.on_metadata_written(6) == [Recovered(4, 50)]


def test_entries_that_are_found_together_with_the_end_are_written_back_first() -> None:
    machine = fenced()
    machine.on_read(1, 0, NO_ENTRY)
    machine.on_read(1, 1, NO_ENTRY)
    one = found()
    assert machine.on_read(0, 0, one) == [WriteBack(one.run)]
    (write,) = machine.on_written_back()
    assert isinstance(write, WriteMetadata)


@pytest.mark.parametrize("code", [TIMED_OUT, DISCONNECTED])
def test_a_bookie_that_does_not_answer_may_have_the_entry(code: int) -> None:
    machine = fenced()
    machine.on_read(0, 0, NO_ENTRY)
    assert machine.on_read(0, 1, code) == []
    (fail,) = machine.on_read(0, 2, code)
    assert isinstance(fail, Fail)
    assert fail.error.code == code
    machine = fenced(ensemble=2, write=2, ack=2)
    assert machine.on_read(0, 0, NO_ENTRY)[0] == WriteMetadata(machine.metadata, 5)


def test_a_doubt_behind_the_end_does_not_matter() -> None:
    machine = fenced()
    for member in range(3):
        assert machine.on_read(1, member, TIMED_OUT) == []
    machine.on_read(0, 0, NO_ENTRY)
    (write,) = machine.on_read(0, 1, NO_ENTRY)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.last_entry_id == -1


def test_the_length_without_entries_to_write_back_is_that_of_the_last_confirmed_one() -> None:
    machine = fenced(confirmed=3)
    machine.on_read(4, 0, NO_ENTRY)
    assert machine.on_read(4, 1, NO_ENTRY) == [ReadLength(3)]
    (write,) = machine.on_length(77)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry_id, write.metadata.length) == (3, 77)


def test_a_bookie_that_fails_during_recovery_is_replaced_in_the_closed_metadata() -> None:
    machine = fenced(confirmed=3)
    one = found()
    machine.on_read(4, 1, one)
    writer = machine.writer
    assert writer is not None
    writer.append(one.run)
    writer.on_failed(2, 4, DISCONNECTED)
    (send,) = writer.on_bookies_found({2: "d"})
    assert (send.slot, send.bookie_id) == (3, "d")  # type: ignore[union-attr]
    writer.on_acked(0, 4, 4)
    writer.on_acked(3, 4, 4)
    machine.on_written_back()
    machine.on_read(5, 0, NO_ENTRY)
    (write,) = machine.on_read(5, 1, NO_ENTRY)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.ensembles == {0: ("a", "b", "c"), 4: ("a", "b", "d")}


def test_the_loser_of_two_recoveries_takes_the_end_of_the_other() -> None:
    machine = fenced()
    machine.on_read(0, 0, NO_ENTRY)
    machine.on_read(0, 1, NO_ENTRY)
    assert machine.on_metadata_lost() == [ReadMetadata()]
    closed = machine.metadata.closed(2, 30)
    assert machine.on_metadata_read(VersionedLedgerMetadata(closed, 6)) == [Recovered(2, 30)]


def test_a_recovery_whose_metadata_changed_starts_again() -> None:
    machine = fenced()
    machine.on_read(0, 0, NO_ENTRY)
    machine.on_read(0, 1, NO_ENTRY)
    machine.on_metadata_lost()
    replicated = LedgerMetadata(3, 3, 2, {0: ("a", "b", "d")}, LedgerState.IN_RECOVERY)
    assert machine.on_metadata_read(VersionedLedgerMetadata(replicated, 6)) == [Restart()]


# --- on model bookies -----------------------------------------------------------------------------


async def written(cluster: Cluster, count: int) -> tuple[LedgerHandle, Runs]:
    runs = Runs()
    handle = await cluster.client.create(runs, NAME)
    await append(cluster, handle, runs, count)
    return handle, runs


async def append(cluster: Cluster, handle: LedgerHandle, runs: Runs, count: int) -> None:
    before = runs.answered
    for n in range(before, before + count):
        cluster.node.turn.run(handle.append, runs.run(b"entry %d" % n))
    await until(lambda: runs.answered == before + count)


async def contents(cluster: Cluster, ledger_id: int, last: int) -> list[bytes]:
    reader = await cluster.client.open_read(ledger_id)
    return [(await reader.read_future(each, each)).data(0) for each in range(last + 1)]


@pytest.mark.parametrize("seed", range(3))
def test_two_recoveries_close_a_ledger_where_its_writer_confirmed(
    tmp_path: Path, seed: int
) -> None:
    async def scenario(cluster: Cluster) -> None:
        handle, runs = await written(cluster, 40)
        cluster.bookies[seed].is_down = True
        ends = await asyncio.gather(*(cluster.client.recover(handle.ledger_id) for _ in range(2)))
        assert ends == [(39, handle.length)] * 2
        assert await contents(cluster, handle.ledger_id, 39) == runs.added
        cluster.bookies[seed].is_down = False
        await append(cluster, handle, runs, 1)
        [(_, error)] = runs.failed
        assert isinstance(error, LedgerFenced)

    run(tmp_path, scenario, seed)


def test_an_entry_that_was_never_confirmed_survives_the_bookie_that_had_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        handle, runs = await written(cluster, 3)
        for silent in cluster.bookies[1:3]:
            silent.is_down = True
        cluster.node.turn.run(handle.append, runs.run(b"entry 3"))
        await until(lambda: cluster.bookies[0].inner.storage.last_entry(handle.ledger_id) == 3)
        handle.failure = LedgerError("the broker died")
        cluster.bookies[1].is_down = False
        assert await cluster.client.recover(handle.ledger_id) == (3, 28)
        cluster.bookies[0].is_down = True
        data = [b"entry %d" % n for n in range(4)]
        assert await contents(cluster, handle.ledger_id, 3) == data

    run(tmp_path, scenario)


def test_a_recovery_without_enough_bookies_succeeds_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "ANSWER_TIMEOUT_S", 1.0)

    async def scenario(cluster: Cluster) -> None:
        handle, _ = await written(cluster, 3)
        cluster.bookies[0].drops = 1.0
        cluster.bookies[1].is_down = True
        with pytest.raises(LedgerError, match=r"no answer: b0 .*, b1 "):
            await cluster.client.recover(handle.ledger_id)
        cluster.bookies[1].is_down = False
        assert await cluster.client.recover(handle.ledger_id) == (2, handle.length)

    run(tmp_path, scenario)


def test_a_recovery_that_has_ended_looks_for_no_bookies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble, "RETRY_S", 0.02)
    wanted: list[list[object]] = []
    retry = LedgerWriter.retry

    def listed(writer: LedgerWriter) -> list[WriterAction]:
        actions = retry(writer)
        wanted.append([*actions])
        return actions

    async def scenario(cluster: Cluster) -> None:
        handle, runs = await written(cluster, 3)
        cluster.bookies[2].is_down = True
        for spare in cluster.bookies[3:]:
            spare.inner.failure = FAILED
        await append(cluster, handle, runs, 1)
        assert isinstance(handle, EnsembleHandle)
        handle.give_up(LedgerError("the broker died"))
        assert (await cluster.client.recover(handle.ledger_id))[0] == 3
        monkeypatch.setattr(LedgerWriter, "retry", listed)
        await asyncio.sleep(0.2)
        assert not any(wanted)

    run(tmp_path, scenario)


@pytest.mark.parametrize("seed", range(3))
def test_recoveries_agree_while_answers_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(recovery, "ANSWER_TIMEOUT_S", 0.3)

    async def scenario(cluster: Cluster) -> None:
        cluster.client.add_timeout_s = 0.3
        handle, runs = await written(cluster, 10)
        for each in cluster.bookies:
            each.drops = 0.05
        for n in range(10, 50):
            cluster.node.turn.run(handle.append, runs.run(b"entry %d" % n))

        async def recover() -> tuple[int, int]:
            while True:
                try:
                    return await cluster.client.recover(handle.ledger_id)
                except LedgerError:
                    await asyncio.sleep(0.01)

        ends = await asyncio.gather(recover(), recover(), recover())
        await until(lambda: runs.answered == 50)
        for each in cluster.bookies:
            each.drops = 0.0
        assert len(set(ends)) == 1
        last, length = ends[0]
        data = [b"entry %d" % n for n in range(last + 1)]
        assert await contents(cluster, handle.ledger_id, last) == data
        assert length == sum(map(len, data))
        assert runs.added == data[: len(runs.added)], "what was confirmed is before the end"

    run(tmp_path, scenario, seed)


# --- named schedules ------------------------------------------------------------------------------


def test_a_recovery_read_fences_a_bookie_that_the_fence_did_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BookKeeper issue 2614: b2 says that it has no entry, and an add that is under way arrives
    there later. With the copy on b1 it would be on an ack quorum, behind the end of the ledger.
    """
    monkeypatch.setattr(recovery, "ANSWER_TIMEOUT_S", 1.0)

    async def scenario(cluster: Cluster) -> None:
        runs = Runs()
        handle = await cluster.client.create(runs, NAME)
        b0, b1, b2 = cluster.bookies[:3]
        b0.held_adds, b2.held_adds = [], []
        b2.lost_requests.add("fence")
        b1.lost_requests.add("read")
        cluster.node.turn.run(handle.append, runs.run(b"entry 0"))
        await until(lambda: b1.inner.storage.last_entry(handle.ledger_id) == 0)
        assert await cluster.client.recover(handle.ledger_id) == (-1, 0)
        b2.release()
        await until(lambda: runs.answered == 1)
        [(_, error)] = runs.failed
        assert isinstance(error, LedgerFenced)

    run(tmp_path, scenario)


def test_an_add_is_before_a_fence_and_is_found_or_after_it_and_is_refused(tmp_path: Path) -> None:
    """BookKeeper PR 4701: a bookie must not store an add after a fence because it checked it
    before. Here one add is in the write cache, one waits for room, and one comes after the fence.
    """

    async def scenario(cluster: Cluster) -> None:
        bookie = cluster.bookies[0].inner
        adder = Adds()
        answers: list[int] = []
        fence = partial(bookie.fence, 7, adder.digest, answers.append)

        def add(entry_id: int) -> None:
            entry = EntryRun.of(b"entry %d" % entry_id)
            entry.ledger_id, entry.first_entry_id = 7, entry_id
            bookie.add_run(adder, 0, entry, entry_id - 1, 7 * entry_id)

        def race() -> None:
            add(0)
            bookie.set_holding(True)
            add(1)
            fence()
            bookie.set_holding(False)
            add(2)

        cluster.node.turn.run(race)
        await until(lambda: len(answers) == 1 and len(adder.acked) + len(adder.failed) == 3)
        assert adder.acked == [0]
        assert adder.failed == [(1, FENCED), (2, FENCED)]
        assert bookie.storage.last_entry(7) == 0

    run(tmp_path, scenario)


def test_a_writer_that_returns_after_minutes_confirms_nothing_behind_the_end(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        handle, runs = await written(cluster, 2)
        for each in cluster.bookies[:3]:
            each.held_acks = []
        cluster.node.turn.run(handle.append, runs.run(b"entry 2"))
        await until(lambda: all(each.held_acks for each in cluster.bookies[:3]))
        for each in cluster.bookies[:3]:
            # These requests are in the network while the writer pauses.
            each.held_adds = []
        cluster.node.turn.run(handle.append, runs.run(b"entry 3"))
        adds = [each.held_adds for each in cluster.bookies[:3]]
        acks = [each.held_acks for each in cluster.bookies[:3]]
        for each in cluster.bookies[:3]:
            each.held_adds = each.held_acks = None
        assert await cluster.client.recover(handle.ledger_id) == (2, 21)
        for each, held_adds, held_acks in zip(cluster.bookies, adds, acks, strict=False):
            each.held_adds, each.held_acks = held_adds, held_acks
            each.release()
        await until(lambda: runs.answered == 4)
        assert runs.added[:2] == [b"entry 0", b"entry 1"]
        assert len(runs.added) <= 3
        assert isinstance(runs.failed[-1][1], LedgerFenced)
        assert await contents(cluster, handle.ledger_id, 2) == [b"entry %d" % n for n in range(3)]

    run(tmp_path, scenario)


class Adds:
    """An Adder that lists the answers."""

    digest = CRC32C

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.failed: list[tuple[int, int]] = []

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        self.acked += range(first, last + 1)

    def on_adds_failed(self, slot: int, first: int, code: int) -> None:
        self.failed.append((first, code))

    def on_add_taken_back(self, slot: int, run: EntryRun) -> bool:
        return False

"""Runs, batches and positions: what they hold, for how long, and how entries are packaged."""

from __future__ import annotations

import asyncio
import errno
import mmap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stored
from one_storage import Bookie, bookie, header, payload
from oracles import wire
from pyxbroker import _native
from pyxbroker.entry import CRC32C, AckRun, EntryBatch, EntryRun, Position
from pyxbroker.storage import StorageReader, StorageWriter
from served import Served, section, send
from stored import LEDGER

__all__ = ["bookie"]


def test_positions_are_ordered_and_read_well() -> None:
    assert Position(3, 9) < Position(4, 0) < Position(4, 1)
    assert str(Position(3, -1)) == "3:-1"


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_of_bytes_has_one_entry() -> None:
    owner = object()
    run = EntryRun.of(b"hello", owner)
    assert (run.count, run.bytes, run.messages) == (1, 5, 1)
    assert run.owner is owner
    assert (run.data(0), run.crc(0)) == (b"hello", wire.crc32c(b"hello"))
    assert (run.ledger_id, run.first_entry_id) == (-1, -1)
    run.first_entry_id = 10
    assert run.last_entry_id == 10


def test_an_empty_entry_is_an_entry() -> None:
    run = EntryRun.of(b"")
    assert (run.count, run.bytes, run.data(0)) == (1, 0, b"")


def test_a_released_run_has_no_bytes_left() -> None:
    run = EntryRun.of(b"hello")
    run.release()
    with pytest.raises(IndexError):
        run.data(0)
    assert run.crc(0) == wire.crc32c(b"hello")


def test_a_run_without_some_entries_has_the_others_and_the_same_owner() -> None:
    owner = object()
    run = EntryRun.of(b"hello", owner)
    rest = run.without(())
    assert rest is not None
    assert (rest.count, rest.bytes, rest.messages) == (1, 5, 1)
    assert (rest.data(0), rest.crc(0), rest.owner) == (b"hello", run.crc(0), owner)
    rest.copy_data()
    run.release()
    assert rest.data(0) == b"hello", "a run that was kept needs nobody else"
    assert run.without([0]) is None


@pytest.mark.parametrize("i", [1, 2**31])
def test_entries_outside_of_a_run_are_refused(i: int) -> None:
    run = EntryRun.of(b"hello")
    with pytest.raises(IndexError):
        run.data(i)
    with pytest.raises(IndexError):
        run.crc(i)


def received(frames: list[bytes]) -> list[EntryRun]:
    """The runs that these frames, read at once and followed by other reads, become when kept."""

    async def serve() -> list[EntryRun]:
        side = Served()
        try:
            publish = side.producer.publish

            def keep(run: EntryRun) -> None:
                publish(run)
                run.copy_data()

            side.producer.publish = keep
            await side.write(b"".join(frames))
            for _ in range(3):
                await side.write(send(99, section(b"\xff" * 100_000, checksum=False)))
            return side.producer.runs
        finally:
            side.close()

    return asyncio.run(serve())


def test_a_kept_run_outlives_the_read_that_brought_it() -> None:
    payloads = [section(bytes([n]) * (n * 500), checksum=False) for n in range(20)]
    run = received([send(n, payload) for n, payload in enumerate(payloads)])[0]
    assert run.count == 20
    assert [run.data(i) for i in range(20)] == payloads
    assert run.bytes == sum(map(len, payloads))
    run.copy_data()
    assert run.data(19) == payloads[19]
    run.release()
    with pytest.raises(IndexError):
        run.data(0)


def test_a_batch_counts_as_its_messages() -> None:
    frames = [
        send(1, section(b"x"), num_messages=10, highest_sequence_id=10),
        send(11, section(b"x")),
        send(12, section(b"x"), num_messages=-5),
    ]
    run = received(frames)[0]
    assert (run.count, run.messages) == (3, 12)
    assert run.sequence_ids() == [(1, 10), (11, 0), (12, 0)]


# --- packaging, and reading back ----------------------------------------------------------------


def packaged(entry_id: int, confirmed: int, length: int, data: bytes) -> bytes:
    """An entry as BookKeeper's DigestManager packages it with a CRC-32C digest."""
    numbers = (LEDGER, entry_id, confirmed, length)
    head = b"".join(value.to_bytes(8, "big", signed=True) for value in numbers)
    return head + wire.crc32c(head + data).to_bytes(4, "big") + data


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8))
def test_entries_are_packaged_as_bookkeeper_does(
    tmp_path_factory: pytest.TempPathFactory, entries: list[bytes]
) -> None:
    with stored.storage(tmp_path_factory.mktemp("packaging")) as opened:
        stored.add(opened, entries)
        batch = stored.read(opened, 0, len(entries) - 1)
        assert len(batch) == batch.count == len(entries)
        length = 0
        for i, data in enumerate(entries):
            length += len(data)
            assert batch.entry_id(i) == i
            assert batch.data(i) == data
            assert batch.packaged(i) == packaged(i, i - 1, length, data)
            assert len(batch.packaged(i)) == CRC32C.header_size + len(data)
        del batch


def test_a_run_received_from_a_socket_is_packaged_with_its_checksum(tmp_path: Path) -> None:
    payloads = [section(b"a" * 300), section(b"b" * 10, checksum=False), section(b"")]
    run = received([send(n, payload) for n, payload in enumerate(payloads)])[0]
    run.ledger_id, run.first_entry_id = LEDGER, 5
    with stored.storage(tmp_path) as opened:
        added, sequence, error = StorageWriter(opened).add_run(run, 2, 1000, 1, 0)
        assert (added, error) == (3, 0)
        assert sequence > 0
        batch = stored.read(opened, 6, 7)
        assert [batch.entry_id(i) for i in range(len(batch))] == [6, 7]
        length = 1000 + len(payloads[0]) + len(payloads[1])
        assert batch.packaged(0) == packaged(6, 2, length, payloads[1])
        assert batch.packaged(1) == packaged(7, 2, length + len(payloads[2]), payloads[2])
        assert StorageReader(opened).read_cached(LEDGER, 5, 5, 1, 1 << 20) is None
        del batch


def test_entries_outside_of_a_batch_are_refused(tmp_path: Path) -> None:
    with stored.storage(tmp_path) as opened:
        stored.add(opened, [b"x"])
        batch = stored.read(opened, 0, 0)
        for i in (-1, 1):
            for look in (batch.entry_id, batch.data, batch.packaged):
                with pytest.raises(IndexError):
                    look(i)
        del batch


def test_a_batch_keeps_its_bytes_while_it_lives(tmp_path: Path) -> None:
    with stored.storage(tmp_path) as opened:
        stored.add(opened, [bytes([n]) * 1000 for n in range(50)])
        batch = stored.read(opened, 0, 49)
        opened.flush()
        for first in range(50, 2000, 50):
            stored.add(opened, [b"\xff" * 1000] * 50, first)
        assert all(batch.data(i) == bytes([i]) * 1000 for i in range(50))
        del batch


def test_memory_that_a_batch_was_in_is_used_again_when_it_is_gone(bookie: Bookie) -> None:
    """Else nothing could be stored any more as soon as all of the cache had been read once."""
    opened = bookie.open()
    reader = StorageReader(opened)

    def is_added(entry_id: int) -> bool:
        data = payload(LEDGER, entry_id, 200_000)
        try:
            opened.add(header(LEDGER, entry_id), data, _native.crc32c(data))
        except OSError as error:
            assert error.errno == errno.ENOBUFS
            opened.commit()
            return False
        return True

    for entry_id in range(60):
        bookie.wait(lambda entry_id=entry_id: is_added(entry_id))
        batch = reader.read_cached(LEDGER, entry_id, entry_id, 1, 1 << 20)
        assert batch is not None and len(batch.data(0)) == 200_000
        del batch


def completion(reader: StorageReader, tag: int) -> Any:
    """The result of one read that was submitted."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for got, result in reader.completions():
            assert got == tag
            return result
        time.sleep(0.001)
    raise AssertionError(f"the read {tag} did not end")


def test_reads_through_the_read_thread_come_back_by_their_tag(tmp_path: Path) -> None:
    with stored.storage(tmp_path) as opened:
        stored.add(opened, [b"one", b"two", b"three"])
        opened.flush()
        reader = StorageReader(opened)
        tag = reader.submit(LEDGER, 1, 5, 10, 1 << 20)
        assert reader.outstanding == 1
        batch = completion(reader, tag)
        assert [batch.data(i) for i in range(len(batch))] == [b"two", b"three"]
        assert batch.ledger_id == LEDGER
        assert reader.outstanding == 0
        missing = reader.submit(LEDGER, 9, 9, 1, 1 << 20)
        assert completion(reader, missing) == _native.NO_ENTRY
        unknown = reader.submit(LEDGER + 1, 0, 0, 1, 1 << 20)
        assert completion(reader, unknown) == _native.NO_LEDGER
        del batch


def test_the_last_sequence_number_becomes_durable(tmp_path: Path) -> None:
    with stored.storage(tmp_path) as opened:
        writer = StorageWriter(opened)
        run = EntryRun.of(b"data")
        run.ledger_id, run.first_entry_id = LEDGER, 0
        _, sequence, _ = writer.add_run(run, -1, 0, 0, 0)
        writer.commit()
        until = time.monotonic() + 10
        while writer.durable_sequence() < sequence and time.monotonic() < until:
            time.sleep(0.001)
        assert writer.durable_sequence() == sequence
        assert writer.failure() == 0


def test_a_batch_that_is_gone_has_given_back_its_memory() -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    before = mapped()
    # Nothing is written into it, so that it is address space alone: 2 GB where it stays.
    for _ in range(50):
        EntryBatch(0, 1_000_000, None)
    assert mapped() - before < 1 << 30


# --- positions of an ACK ------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1)), max_size=40))
def test_an_ack_run_holds_whole_entries(positions: list[tuple[int, int]]) -> None:
    run = AckRun.of(positions)
    assert len(run) == run.count == len(positions)
    assert [run.position(i) for i in range(len(run))] == [(*each, 0) for each in positions]
    for i in (-1, len(positions)):
        with pytest.raises(IndexError):
            run.position(i)

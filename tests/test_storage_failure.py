"""A journal whose write or sync failed: what was acknowledged stays, what was not is forgotten."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from pathlib import Path

import pytest

from one_storage import Bookie, bookie, copy_of
from pyxbroker import _native

__all__ = ["bookie"]

ENTRIES = 10


def turn(bookie: Bookie) -> None:
    """What the owner does after each ring."""
    bookie.take_events()


def failing(bookie: Bookie, faults: _native.DiskFaults) -> None:
    """Ten durable entries, five more that never will be, and a flush that was under way."""
    storage = bookie.open(faults=faults)
    bookie.wait_durable([bookie.add(1, entry) for entry in range(ENTRIES)][-1])
    faults.rule("fdatasync", ".journal", errno=errno.EIO)
    for entry in range(ENTRIES, ENTRIES + 3):
        bookie.add(1, entry)
    storage.flush()
    # The flush has handed the first ones to the journal: these may come too late.
    with contextlib.suppress(OSError):
        for entry in range(ENTRIES + 3, ENTRIES + 5):
            bookie.add(1, entry)
        bookie.add(2, 0)
    storage.commit()
    bookie.wait(lambda: storage.failure != 0)


@pytest.mark.parametrize("call", ["fdatasync", "pwritev"])
def test_only_what_was_durable_is_stored_after_a_failure(bookie: Bookie, call: str) -> None:
    faults = _native.DiskFaults()
    storage = bookie.open(faults=faults)
    bookie.wait_durable([bookie.add(1, entry) for entry in range(ENTRIES)][-1])
    faults.rule(call, ".journal", errno=errno.EIO)
    bookie.add(1, ENTRIES)
    bookie.add(2, 0)
    storage.commit()
    bookie.wait(lambda: storage.failure != 0)
    assert storage.last_entry(1) == ENTRIES - 1
    assert storage.last_entry(2) == -1
    assert storage.read(1, ENTRIES, ENTRIES, 1, 1 << 20) == []
    assert bookie.read(1, ENTRIES) == _native.NO_ENTRY
    bookie.assert_holds(1, range(ENTRIES))
    for entry in (0, ENTRIES, ENTRIES + 1):
        with pytest.raises(OSError) as refused:
            bookie.add(1, entry)
        assert refused.value.errno == errno.EIO
    assert storage.last_entry(1) == ENTRIES - 1


def test_a_failure_during_a_flush_forgets_only_what_was_not_durable(bookie: Bookie) -> None:
    failing(bookie, _native.DiskFaults())
    assert bookie.storage.last_entry(1) == ENTRIES - 1
    assert bookie.read(2, 0) in (_native.NO_LEDGER, _native.NO_ENTRY)
    bookie.assert_holds(1, range(ENTRIES))


def test_what_was_acknowledged_goes_to_an_entry_log_after_a_failure(bookie: Bookie) -> None:
    """The journal's disk may be about to fail altogether."""
    failing(bookie, _native.DiskFaults())
    storage = bookie.storage

    def flushed() -> bool:
        turn(bookie)
        return storage.stats()["dirty_bytes"] == 0

    bookie.wait(flushed)
    assert storage.trouble() == 0
    bookie.assert_holds(1, range(ENTRIES))
    rescued = bookie.directory.parent / "rescued"
    shutil.copytree(bookie.directory / "ledgers", rescued / "ledgers")
    with pytest.raises(OSError):
        storage.close(flush=False)
    bookie.open_at(rescued)
    bookie.assert_holds(1, range(ENTRIES))
    assert bookie.storage.last_entry(1) == ENTRIES - 1
    bookie.wait_durable(bookie.add(1, ENTRIES))
    bookie.storage.close()
    # And with its journal, as a restart finds it.
    bookie.open()
    bookie.assert_holds(1, range(ENTRIES))
    assert bookie.storage.last_entry(1) >= ENTRIES - 1


def test_a_failed_journal_neither_spins_nor_fills_the_log(bookie: Bookie) -> None:
    failing(bookie, _native.DiskFaults())
    turn(bookie)
    used = time.process_time()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        time.sleep(0.02)
        turn(bookie)
    assert time.process_time() - used < 0.3
    assert len(bookie.events) <= 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_journal_write_without_space_is_made_when_there_is_some(
    bookie: Bookie, code: int
) -> None:
    faults = _native.DiskFaults()
    storage = bookie.open(faults=faults)
    bookie.wait_durable([bookie.add(1, entry) for entry in range(ENTRIES)][-1])
    faults.rule("pwritev", ".journal", errno=code)
    sequence = [bookie.add(1, entry, 6000) for entry in range(ENTRIES, 2 * ENTRIES)][-1]
    storage.commit()
    bookie.wait(lambda: storage.trouble() == -code)
    assert storage.failure == 0
    assert storage.durable_sequence < sequence
    # Half of the write succeeds, then there is no space again.
    faults.clear()
    faults.rule("pwritev", ".journal", short_bytes=8192, times=1)
    faults.rule("pwritev", ".journal", after=1, errno=code, times=2)
    bookie.wait_durable(sequence)
    bookie.wait(lambda: storage.trouble() == 0)
    directory = copy_of(bookie, "killed")
    assert len([text for severity, text in bookie.take_events() if severity == 2]) == 1
    bookie.events.clear()
    storage.close()
    bookie.open_at(directory)
    bookie.assert_holds(1, range(ENTRIES))
    bookie.assert_holds(1, range(ENTRIES, 2 * ENTRIES), 6000)
    assert [event for event in bookie.take_events() if event[0] > 0] == []


def test_a_close_does_not_wait_for_space(bookie: Bookie) -> None:
    faults = _native.DiskFaults()
    storage = bookie.open(faults=faults)
    bookie.wait_durable(bookie.add(1, 0))
    faults.rule("pwritev", ".journal", errno=errno.ENOSPC)
    bookie.add(1, 1)
    storage.commit()
    bookie.wait(lambda: storage.trouble() == -errno.ENOSPC)
    with pytest.raises(OSError) as failed:
        storage.close()  # else the test would not end
    assert failed.value.errno == errno.ENOSPC
    bookie.open()
    bookie.assert_holds(1, range(1))


def test_a_recycled_file_that_cannot_be_written_costs_nothing(bookie: Bookie) -> None:
    """Each call by which a journal file is recycled fails now and then, among many generations."""
    for call, match in (
        ("pwritev", "journal.manifest"),
        ("fdatasync", "journal.manifest"),
        ("rename", ".journal"),
        ("sync_directory", "journal"),
        ("unlink", ".journal"),
    ):
        faults = _native.DiskFaults()
        directory = Path(f"{bookie.directory}-{call}")
        bookie.open_at(directory, faults=faults)
        faults.rule(call, match, after=2, errno=errno.EIO, times=3)
        for entry in range(1200):
            last = bookie.add(1, entry, 4000)
            if entry % 40 == 39:
                bookie.wait_durable(last)
        bookie.wait_durable(last)
        assert bookie.storage.failure == 0
        bookie.wait(lambda: bookie.storage.trouble() == 0)
        bookie.storage.close(flush=False)
        bookie.open_at(directory)
        bookie.assert_holds(1, range(1200), 4000)
        assert [event for event in bookie.take_events() if event[0] == 2] == []
        bookie.storage.close()

"""The C storage on a disk that errs: an error is not damage, and what is missing is missed."""

from __future__ import annotations

import errno
import struct
import time

import pytest

from one_storage import Bookie, bookie
from pyxbroker import _native

__all__ = ["bookie"]


def flushed(bookie: Bookie, faults: _native.DiskFaults) -> _native.Storage:
    """Opens a bookie with entries 0 to 49 of ledgers 1 and 2 in a log each, none in the cache."""
    storage = bookie.open(faults=faults)
    for ledger in (1, 2):
        bookie.wait_durable([bookie.add(ledger, entry) for entry in range(50)][-1])
        bookie.flush()
    storage.close()
    return bookie.open(faults=faults)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENODATA, errno.ENOMEM])
def test_an_error_of_the_disk_is_answered_as_such_and_damages_nothing(
    bookie: Bookie, error: int
) -> None:
    faults = _native.DiskFaults()
    storage = flushed(bookie, faults)
    faults.rule("pread", ".log", errno=error)
    expected = -errno.EIO if error == errno.ENODATA else -error
    for _ in range(5):
        assert bookie.read(1, 0, 50) == expected
        assert bookie.read(2, 7) == expected
    texts = [text for _, text in bookie.take_events()]
    assert sum("could not be read" in text for text in texts) == 2, "one line for each log"
    faults.clear()
    bookie.assert_holds(1, range(50))
    bookie.assert_holds(2, range(50))
    assert storage.stats()["damaged_entries"] == 0


def test_an_error_of_a_moment_is_not_even_noticed(bookie: Bookie) -> None:
    faults = _native.DiskFaults()
    storage = flushed(bookie, faults)
    for entry in range(0, 50, 10):
        faults.rule("pread", ".log", errno=errno.EIO, times=2)
        bookie.assert_holds(1, range(entry, entry + 10))
        faults.clear()
    assert storage.stats()["damaged_entries"] == 0
    assert bookie.take_events() == []


def test_a_start_waits_for_a_disk_that_cannot_be_read_and_then_says_so(bookie: Bookie) -> None:
    faults = _native.DiskFaults()
    flushed(bookie, faults).close()
    faults.rule("pread", ".log", errno=errno.EIO, times=5)
    bookie.open(faults=faults).close()
    faults.clear()
    before = {file.name: file.read_bytes() for file in (bookie.directory / "ledgers").iterdir()}
    faults.rule("pread", ".log", errno=errno.EIO)
    start = time.monotonic()
    with pytest.raises(OSError, match="cannot be read: Input/output error"):
        bookie.open(faults=faults)
    assert 1.9 < time.monotonic() - start < 4
    faults.clear()
    after = {file.name: file.read_bytes() for file in (bookie.directory / "ledgers").iterdir()}
    assert before == after
    bookie.open(faults=faults)
    bookie.assert_holds(2, range(50))
    assert bookie.take_events() == []


def test_a_missing_entry_log_is_named_before_anything_is_served(bookie: Bookie) -> None:
    flushed(bookie, _native.DiskFaults()).close()
    log = bookie.directory / "ledgers" / "0000000000000001.log"
    content = log.read_bytes()
    log.unlink()
    with pytest.raises(FileNotFoundError, match="cannot be found, with up to 50 ent"):
        bookie.open()
    log.write_bytes(content)
    bookie.open().close()
    log.unlink()
    bookie.open(accept_loss=True)
    assert any("are lost (--accept-loss)" in text for _, text in bookie.take_events())
    bookie.assert_holds(2, range(50))


def test_an_entry_log_of_a_newer_version_is_refused(bookie: Bookie) -> None:
    flushed(bookie, _native.DiskFaults()).close()
    log = bookie.directory / "ledgers" / "0000000000000002.log"
    content = bytearray(log.read_bytes())
    content[12:16] = struct.pack("<I", 3)
    content[8:12] = struct.pack("<I", _native.crc32c(bytes(content[12:40])))
    log.write_bytes(content)
    with pytest.raises(OSError, match=r"a newer pyxbroker \(format 3; this one reads up to 1\)"):
        bookie.open()
    assert log.read_bytes() == content


def test_space_that_a_full_disk_did_not_free_is_freed_later(bookie: Bookie) -> None:
    faults = _native.DiskFaults()
    storage = bookie.open(faults=faults)
    for entry in range(100):
        bookie.add(1, entry, 4000)
        last = bookie.add(2, entry, 4000)
    bookie.wait_durable(last)
    bookie.flush()
    log = next((bookie.directory / "ledgers").glob("*.log"))
    before = log.stat().st_blocks
    faults.rule("fallocate", ".log", errno=errno.ENOSPC, times=3)
    storage.delete_ledger(1)
    bookie.wait(lambda: log.stat().st_blocks < before * 6 // 10)
    bookie.wait(lambda: any("freed again" in text for _, text in bookie.take_events()))
    assert sum("could not be freed" in text for _, text in bookie.take_events()) == 1
    bookie.assert_holds(2, range(100), 4000)

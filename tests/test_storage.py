"""The C storage as Python sees it: what was durable is there after any end, what is bad is told."""

from __future__ import annotations

import contextlib
import errno
import random
import re
import shutil
from pathlib import Path

import pytest

from one_bookie import ledgers_of
from one_storage import MIB, Bookie, bookie, copy_of, header, payload
from pyxbroker import _native

__all__ = ["bookie"]


def test_crc32c_check_value() -> None:
    assert _native.crc32c(b"123456789") == 0xE3069283
    assert _native.crc32c(b"") == 0


def test_crc32c_continues_and_combines() -> None:
    data = random.Random(1).randbytes(70_000)
    whole = _native.crc32c(data)
    for cut in (0, 1, 7, 64, 4096, 69_999, 70_000):
        a, b = data[:cut], data[cut:]
        assert _native.crc32c(b, _native.crc32c(a)) == whole
        assert _native.crc32c_combine(_native.crc32c(a), _native.crc32c(b), len(b)) == whole


def test_every_counter_of_the_header_is_told_to_python(bookie: Bookie) -> None:
    header_file = Path(__file__).resolve().parent.parent / "src" / "bookie_native" / "storage.h"
    fields = re.search(
        r"typedef struct storage_stats \{(.*?)\} storage_stats;", header_file.read_text(), re.S
    )
    assert fields is not None
    without_comments = re.sub(r"/\*.*?\*/", "", fields[1], flags=re.S)
    names = set(re.findall(r"(\w+)(?=[,;])", without_comments))
    assert len(names) > 15
    assert set(bookie.open().stats()) == names


def test_add_becomes_durable_and_readable(bookie: Bookie) -> None:
    storage = bookie.open()
    sequences = [bookie.add(7, entry) for entry in range(100)]
    assert sequences == sorted(set(sequences))
    bookie.wait_durable(sequences[-1])
    run = storage.read(7, 0, 99, 1000, 1 << 40)
    assert run == [(e, header(7, e) + payload(7, e)) for e in range(100)]
    assert storage.last_entry(7) == 99
    assert ledgers_of(storage) == [7]
    assert storage.stats()["queue_adds"] == 0


def test_ledgers_are_listed_in_one_pass_of_small_steps(bookie: Bookie) -> None:
    storage = bookie.open()
    stored = {n * n for n in range(1, 3000)}
    for ledger in stored:
        bookie.add(ledger, 0, 10)
    listed: list[int] = []
    position = steps = 0
    while steps == 0 or position:
        some, position = storage.ledgers(position, 50)
        assert len(some) <= 50
        listed += some
        steps += 1
    assert sorted(listed) == sorted(stored), "each of them once"
    assert steps <= 2 * len(stored) / 50, "no slot is looked at twice"


def test_a_pass_over_the_ledgers_begins_anew_when_their_table_grows(bookie: Bookie) -> None:
    storage = bookie.open()
    for ledger in range(100):
        bookie.add(ledger, 0, 10)
    seen, position = storage.ledgers(0, 60)
    assert position
    for ledger in range(100, 1000):
        bookie.add(ledger, 0, 10)
    while position:
        some, position = storage.ledgers(position, 60)
        seen += some
    assert set(seen) == set(range(1000))


def test_ledgers_that_go_during_a_pass_hide_hardly_any_other(bookie: Bookie) -> None:
    storage = bookie.open()
    stored = set(range(0, 6000, 2))
    for ledger in stored:
        bookie.add(ledger, 0, 10)
    deleted: set[int] = set()
    position = 0
    while True:
        some, position = storage.ledgers(position, 50)
        for ledger in some:
            storage.delete_ledger(ledger)
        deleted |= set(some)
        if position == 0:
            break
    assert len(stored - deleted) < 10
    assert ledgers_of(storage) == sorted(stored - deleted)


def test_read_limits(bookie: Bookie) -> None:
    storage = bookie.open()
    bookie.wait_durable([bookie.add(1, entry) for entry in range(10)][-1])
    assert [e for e, _ in storage.read(1, 2, 5, 100, 1 << 40)] == [2, 3, 4, 5]
    assert [e for e, _ in storage.read(1, 2, 9, 3, 1 << 40)] == [2, 3, 4]
    assert [e for e, _ in storage.read(1, 2, 9, 100, 1)] == [2]
    assert storage.read(1, 10, 20, 100, 1 << 40) == []
    assert storage.read(2, 0, 20, 100, 1 << 40) == []


def test_restart_after_clean_close_and_after_kill(bookie: Bookie) -> None:
    bookie.open()
    bookie.wait_durable([bookie.add(3, entry) for entry in range(500)][-1])
    killed = copy_of(bookie, "killed")
    bookie.storage.close()
    bookie.open()
    assert bookie.storage.stats()["replayed_entries"] == 0
    bookie.assert_holds(3, range(500))
    bookie.storage.close()
    bookie.open_at(killed)
    assert bookie.storage.stats()["replayed_entries"] == 500
    bookie.assert_holds(3, range(500))
    assert [event for event in bookie.take_events() if event[0] > 0] == []


def test_many_generations_and_journal_files(bookie: Bookie) -> None:
    """More data than the cache and several journal files hold; everything stays readable."""
    storage = bookie.open()
    for entry in range(1500):
        last = bookie.add(1 + entry % 3, entry // 3, 4000)
        if entry % 50 == 49:
            storage.commit()
    bookie.wait_durable(last)
    assert storage.stats()["flushes"] >= 3
    for ledger in (1, 2, 3):
        bookie.assert_holds(ledger, range(500), 4000)
    killed = copy_of(bookie, "killed")
    storage.close()
    assert len(list((bookie.directory / "journal").glob("*.journal"))) <= 3
    bookie.open_at(killed)
    for ledger in (1, 2, 3):
        bookie.assert_holds(ledger, range(500), 4000)
    assert [event for event in bookie.take_events() if event[0] > 0] == []


def test_out_of_order_and_repeated_adds(bookie: Bookie) -> None:
    storage = bookie.open()
    order = list(range(200))
    random.Random(5).shuffle(order)
    for entry in order:
        bookie.add(9, entry)
    again = bookie.add(9, 17)
    bookie.wait_durable(again)
    assert [e for e, _ in storage.read(9, 0, 199, 1000, 1 << 40)] == list(range(200))
    assert storage.stats()["adds"] == 200
    once_more = bookie.add(9, 18)
    assert once_more > again
    bookie.wait_durable(once_more)
    storage.close()
    bookie.open()
    bookie.assert_holds(9, range(200))


def test_fence_and_master_key_survive(bookie: Bookie) -> None:
    storage = bookie.open()
    key = bytes(range(20))
    assert storage.master_key(4, key) > 0
    assert storage.master_key(4, key) == 0
    with pytest.raises(PermissionError):
        storage.master_key(4, bytes(20))
    bookie.add(4, 0)
    bookie.wait_durable(storage.fence(4))
    bookie.wait_durable(storage.fence(5))
    with pytest.raises(OSError) as fenced:
        bookie.add(4, 1)
    assert (fenced.value.errno, fenced.value.strerror) == (errno.ESTALE, "the ledger is fenced")
    data = payload(4, 1)
    bookie.wait_durable(storage.add(header(4, 1), data, None, _native.ADD_RECOVERY))
    killed = copy_of(bookie, "killed")
    storage.close()

    def check() -> None:
        assert bookie.storage.is_fenced(4)
        assert bookie.storage.is_fenced(5)
        assert bookie.storage.last_entry(5) == -1
        assert bookie.storage.master_key(4, key) == 0
        with pytest.raises(OSError):
            bookie.add(4, 2)
        bookie.assert_holds(4, range(2))
        bookie.storage.close()

    bookie.open()
    check()
    bookie.open_at(killed)
    check()
    bookie.open_at(killed)
    check()


def test_unknown_ledger_and_entry(bookie: Bookie) -> None:
    storage = bookie.open()
    bookie.wait_durable(bookie.add(1, 0))
    assert bookie.read(2, 0) == _native.NO_LEDGER
    assert bookie.read(1, 5) == _native.NO_ENTRY
    with pytest.raises(FileNotFoundError):
        storage.last_entry(2)
    with pytest.raises(FileNotFoundError):
        storage.is_fenced(2)
    with pytest.raises(FileNotFoundError):
        storage.delete_ledger(2)


def test_bad_adds_are_refused(bookie: Bookie) -> None:
    storage = bookie.open()
    with pytest.raises(OSError) as short:
        storage.add(b"too short", b"")
    assert short.value.errno == errno.EINVAL
    with pytest.raises(OSError) as large:
        storage.add(header(1, 0), bytes(300 << 10))
    assert large.value.errno == errno.EMSGSIZE
    with pytest.raises(OSError) as negative:
        storage.add(header(-1, 0), b"x")
    assert negative.value.errno == errno.EINVAL


def test_largest_entry(bookie: Bookie) -> None:
    bookie.open()
    size = (256 << 10) - 36
    bookie.wait_durable([bookie.add(1, entry, size) for entry in range(20)][-1])
    bookie.assert_holds(1, range(20), size)


def test_second_process_gets_a_clear_error(bookie: Bookie) -> None:
    bookie.open()
    with pytest.raises(OSError, match="in use by another process"):
        _native.Storage(
            bookie.directory / "journal",
            bookie.directory / "other",
            journal_file_bytes=MIB,
            dirty_bytes_max=MIB,
            cache_bytes_max=MIB,
            entry_bytes_max=1024,
        )


def test_deleted_ledger_frees_its_space(bookie: Bookie) -> None:
    storage = bookie.open()
    for entry in range(100):
        bookie.add(1, entry, 4000)
        last = bookie.add(2, entry, 4000)
    bookie.wait_durable(last)
    bookie.flush()
    log = next((bookie.directory / "ledgers").glob("*.log"))
    before = log.stat().st_blocks
    storage.delete_ledger(1)
    assert ledgers_of(storage) == [2]
    assert bookie.read(1, 0) == _native.NO_LEDGER
    bookie.wait(lambda: log.stat().st_blocks < before * 6 // 10)
    bookie.assert_holds(2, range(100), 4000)
    storage.close()
    bookie.open()
    bookie.assert_holds(2, range(100), 4000)
    assert [event for event in bookie.take_events() if event[0] > 0] == []


def test_log_without_live_ledgers_goes_away(bookie: Bookie) -> None:
    storage = bookie.open()
    logs = bookie.directory / "ledgers"
    for ledger in (1, 2):
        bookie.wait_durable([bookie.add(ledger, entry) for entry in range(50)][-1])
        bookie.flush()
    assert len(list(logs.glob("*.log"))) == 2
    storage.delete_ledger(1)
    bookie.wait(lambda: len(list(logs.glob("*.log"))) == 1)
    bookie.assert_holds(2, range(50))


def test_removed_log_gives_its_space_back_while_open(bookie: Bookie) -> None:
    """Also when its entries were read before: no descriptor keeps the space of a removed log."""
    storage = bookie.open()
    for ledger in (1, 2):
        bookie.wait_durable([bookie.add(ledger, entry) for entry in range(50)][-1])
        bookie.flush()
    storage.close()
    storage = bookie.open()
    bookie.assert_holds(1, range(50))
    storage.delete_ledger(1)

    def open_removed_logs() -> int:
        names = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(str(descriptor.readlink()))
        return sum(f"{bookie.directory}/ledgers/" in name and "deleted" in name for name in names)

    logs = bookie.directory / "ledgers"
    bookie.wait(lambda: len(list(logs.glob("*.log"))) == 1)
    bookie.wait(lambda: open_removed_logs() == 0)
    bookie.assert_holds(2, range(50))


def test_failed_sync_ends_the_journal_and_loses_nothing_acknowledged(bookie: Bookie) -> None:
    faults = _native.DiskFaults()
    storage = bookie.open(faults=faults)
    bookie.wait_durable([bookie.add(1, entry) for entry in range(10)][-1])
    durable = storage.durable_sequence
    faults.rule("fdatasync", ".journal", errno=errno.EIO)
    bookie.add(1, 10)
    storage.commit()
    bookie.wait(lambda: storage.failure != 0)
    assert storage.durable_sequence == durable
    with pytest.raises(OSError) as failed:
        bookie.add(1, 11)
    assert failed.value.errno == errno.EIO
    assert any("fdatasync failed" in text for severity, text in bookie.take_events())
    bookie.assert_holds(1, range(10))
    with pytest.raises(OSError):
        storage.close()
    bookie.open()
    bookie.assert_holds(1, range(10))


@pytest.mark.parametrize("short", [512, 4096, 12288])
def test_short_writes_are_continued(bookie: Bookie, short: int) -> None:
    faults = _native.DiskFaults()
    bookie.open(faults=faults)
    faults.rule("pwritev", ".journal", short_bytes=short, times=20)
    bookie.wait_durable([bookie.add(1, entry, 3000) for entry in range(50)][-1])
    killed = copy_of(bookie, "killed")
    bookie.storage.close()
    bookie.open_at(killed)
    bookie.assert_holds(1, range(50), 3000)
    assert [event for event in bookie.take_events() if event[0] > 0] == []


def test_full_disk_at_flush_is_retried(bookie: Bookie) -> None:
    faults = _native.DiskFaults()
    storage = bookie.open(faults=faults)
    bookie.wait_durable([bookie.add(1, entry) for entry in range(100)][-1])
    faults.rule("fallocate", ".log.tmp", errno=errno.ENOSPC, times=2)
    storage.flush()
    bookie.wait(lambda: storage.stats()["flushes"] == 1)
    texts = [text for _, text in bookie.take_events()]
    assert sum("could not be flushed" in text for text in texts) == 1
    assert sum("can be flushed again" in text for text in texts) == 1
    bookie.assert_holds(1, range(100))


def test_full_disk_at_the_next_journal_file_only_delays(bookie: Bookie) -> None:
    faults = _native.DiskFaults()
    faults.rule("open", "prepare.tmp", after=1, errno=errno.ENOSPC)
    storage = bookie.open(faults=faults)

    def next_file_is_late() -> bool:
        return any("could not be prepared" in text for _, text in bookie.take_events())

    def wait_durable_or_late(sequence: int) -> None:
        bookie.wait(lambda: storage.durable_sequence >= sequence or next_file_is_late(), seconds=30)

    entry = 0
    is_full = False
    while not (is_full and next_file_is_late()):
        try:
            data = payload(1, entry, 4000)
            last = storage.add(header(1, entry), data)
            storage.commit()
            entry += 1
            is_full = False
        except OSError as error:
            assert error.errno == errno.ENOBUFS
            is_full = next_file_is_late()
            if not is_full:  # a slow disk: the first file has room, or the next is not tried yet
                wait_durable_or_late(last)
    assert storage.failure == 0
    faults.clear()
    bookie.wait_durable(last)
    bookie.assert_holds(1, range(entry), 4000)


def wait_trouble(bookie: Bookie, code: int) -> None:
    """Waits for the trouble to become -code, looking only when the storage rings."""
    while bookie.storage.trouble() != -code:
        bookie.wait_ring()
    assert bookie.storage.stats()["trouble"] == code


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_trouble_of_a_flush_is_told_while_it_lasts(bookie: Bookie, code: int) -> None:
    faults = _native.DiskFaults()
    storage = bookie.open(faults=faults)
    bookie.wait_durable([bookie.add(1, entry) for entry in range(100)][-1])
    assert storage.trouble() == 0
    faults.rule("fallocate", ".log.tmp", errno=code)
    storage.flush()
    wait_trouble(bookie, code)
    faults.clear()
    wait_trouble(bookie, 0)
    bookie.assert_holds(1, range(100))


def test_trouble_of_the_next_journal_file_is_told_before_the_journal_needs_it(
    bookie: Bookie,
) -> None:
    faults = _native.DiskFaults()
    faults.rule("open", "prepare.tmp", after=1, errno=errno.ENOSPC)
    bookie.open(faults=faults)
    bookie.wait_durable(bookie.add(1, 0))
    wait_trouble(bookie, errno.ENOSPC)
    bookie.wait_durable(bookie.add(1, 1))
    faults.clear()
    wait_trouble(bookie, 0)


def test_pulled_bytes_are_never_served(bookie: Bookie) -> None:
    """Flips one bit at many places of each kind of file; what is read is right or not there."""
    bookie.open()
    for entry in range(60):
        last = bookie.add(1 + entry % 2, entry // 2, 500)
        if entry % 10 == 9:
            bookie.wait_durable(last)
    journal = copy_of(bookie, "journal-copy")
    bookie.storage.close()
    rng = random.Random(11)
    for source, pattern in ((journal, "journal/*.journal"), (bookie.directory, "ledgers/*.log")):
        for trial in range(60):
            trial_directory = bookie.directory.parent / f"{source.name}-{trial}"
            shutil.copytree(source, trial_directory)
            for file in trial_directory.glob(pattern):
                size = min(file.stat().st_size, 64 << 10)
                with file.open("r+b") as opened:
                    place = rng.randrange(size)
                    opened.seek(place)
                    byte = opened.read(1)[0]
                    opened.seek(place)
                    opened.write(bytes([byte ^ (1 << rng.randrange(8))]))
            bookie.open_at(trial_directory)
            lost = 0
            for ledger in (1, 2):
                for entry in range(30):
                    read = bookie.read(ledger, entry)
                    if isinstance(read, int):
                        assert read in (_native.DAMAGED, _native.NO_ENTRY)
                        lost += 1
                    else:
                        content = header(ledger, entry) + payload(ledger, entry, 500)
                        assert read == [(entry, content)]
            assert lost <= 1
            if lost:
                assert bookie.take_events()
            bookie.storage.close(flush=False)
            shutil.rmtree(trial_directory)
    bookie.open()

"""Whether things can be stored: free space, the reserve, and what the storage says of itself."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyxbroker.bookie.space import (
    RESERVE_NAME,
    FileSystem,
    Need,
    Reserve,
    StorageState,
    file_systems_of,
    make_reserves,
    smallest_bytes,
)

MIB = 1 << 20
BLOCK = 4096


class Disk:
    """What statvfs says of every file system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, total_mib: int, free_mib: float) -> None:
        self.total_mib = total_mib
        self.free_mib = free_mib
        monkeypatch.setattr("pyxbroker.bookie.space.os.statvfs", self._statvfs)

    def _statvfs(self, path: Path) -> SimpleNamespace:
        return SimpleNamespace(
            f_bavail=int(self.free_mib * MIB) // BLOCK,
            f_blocks=self.total_mib * MIB // BLOCK,
            f_frsize=BLOCK,
        )


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch, total_mib=1000, free_mib=500)


def state_of(tmp_path: Path, reserve_mib: int = 0, **options: float) -> StorageState:
    """One file system where 100 MiB are needed."""
    needs = [Need(tmp_path / "ledgers", 60 * MIB), Need(tmp_path / "journal", 40 * MIB)]
    return StorageState(file_systems_of(needs, reserve_mib * MIB), **options)


def test_directories_of_one_file_system_need_the_sum(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    (found,) = state_of(tmp_path).file_systems
    assert found.needed == 100 * MIB
    assert found.directory == tmp_path / "ledgers"


def test_short_space_is_told_once_and_ends_with_a_margin(tmp_path: Path, disk: Disk) -> None:
    state = state_of(tmp_path)
    told: list[str | None] = []
    state.on_change(lambda: told.append(state.refusal))
    for disk.free_mib in (101, 99, 98, 101, 124, 126, 101):
        state.check()
    assert len(told) == 2
    assert told[0] is not None
    assert told[0].startswith(
        "The disk of the storage is full (99.0 MiB free, 100.0 MiB are needed)"
    )
    assert told[1] is None
    assert not state.is_short


def test_a_full_disk_is_told_without_its_path_which_the_log_has(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_of(tmp_path)
    disk.free_mib = 99
    state.check()
    assert state.refusal is not None
    assert str(tmp_path) not in state.refusal
    [record] = [each for each in caplog.records if each.message == "messages cannot be stored"]
    fields = vars(record)["fields"]
    assert fields["full"] == str(tmp_path / "ledgers")
    # What was told is in the line, so its reference finds the line.
    assert fields["reason"] == state.refusal
    assert re.search(r"\(reference [0-9a-f]{8}\)$", state.refusal)


def test_a_small_file_system_is_not_short_while_a_quarter_of_it_is_free(
    tmp_path: Path, disk: Disk
) -> None:
    disk.total_mib, disk.free_mib = 200, 51
    state = state_of(tmp_path)
    state.check()
    assert state.refusal is None
    disk.free_mib = 49
    state.check()
    assert state.refusal is not None


def test_the_used_part_counts_when_it_is_set(tmp_path: Path, disk: Disk) -> None:
    disk.total_mib, disk.free_mib = 100_000, 900
    for part, is_short in ((1.0, False), (0.995, False), (0.99, True)):
        state = state_of(tmp_path, used_part_max=part)
        state.check()
        assert state.is_short == is_short
    assert "99.1 % used (diskUsageThreshold)" in str(state.refusal)


@pytest.mark.parametrize(
    ("code", "words", "is_short"),
    [
        (-errno.ENOSPC, "disk of the storage is full (No space left on device)", True),
        (-errno.EDQUOT, "disk of the storage is full (Disk quota exceeded)", True),
        (-errno.EIO, "cannot write (Input/output error)", False),
        (-errno.ENOMEM, "cannot write (Cannot allocate memory)", False),
    ],
)
def test_what_the_storage_says_of_itself_counts(
    tmp_path: Path, disk: Disk, code: int, words: str, is_short: bool
) -> None:
    state = state_of(tmp_path)
    state.trouble = lambda: code
    state.check()
    assert words in str(state.refusal)
    assert state.is_short == is_short
    assert not state.has_failed
    state.trouble = lambda: 0
    state.check()
    assert state.refusal is None


def test_a_failure_is_for_good_and_its_sentence_comes_first(tmp_path: Path, disk: Disk) -> None:
    state = state_of(tmp_path)
    told: list[bool] = []
    state.on_change(lambda: told.append(state.has_failed))
    disk.free_mib = 1
    state.check()
    state.failure = lambda: "the journal failed"
    state.check()
    assert state.refusal == "the journal failed"
    assert told == [False, True]


def test_space_of_the_journal_is_short_where_its_directory_is(tmp_path: Path, disk: Disk) -> None:
    state = state_of(tmp_path)
    disk.free_mib = 99
    state.check()
    assert state.is_short_on(tmp_path / "journal")
    assert not state.is_short_on(tmp_path / "elsewhere")
    state.trouble = lambda: -errno.ENOSPC
    assert state.is_short_on(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("occupied", "needed", "reserve"),
    [(136, 136, 48), (136, 136, 0), (24, 20, 8), (4, 1000, 48), (1000, 10, 48), (8, 8, 4)],
)
def test_on_the_smallest_file_system_deleting_everything_ends_a_full_disk(
    tmp_path: Path, disk: Disk, occupied: int, needed: int, reserve: int
) -> None:
    smallest = -(-smallest_bytes(occupied * MIB, needed * MIB, reserve * MIB) // MIB)
    for disk.total_mib, is_enough in ((smallest, True), (smallest * 9 // 10, False)):
        disk.free_mib = 0
        (system,) = file_systems_of([Need(tmp_path, needed * MIB, occupied * MIB)], reserve * MIB)
        system.update(1.0)
        assert system.is_short
        # The reserve counts whether or not it is there.
        disk.free_mib = disk.total_mib - occupied
        system.update(1.0)
        assert system.is_short is not is_enough
        assert (system.too_small(reserve * MIB) is None) is is_enough


# --- the reserve --------------------------------------------------------------------------------


def test_the_reserve_takes_blocks_and_gives_them_back(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 4 * MIB)
    assert reserve.held == 0
    assert reserve.make()
    assert reserve.held == 4 * MIB
    assert (tmp_path / RESERVE_NAME).stat().st_blocks * 512 >= 4 * MIB
    assert reserve.release()
    assert not reserve.release()
    assert list(tmp_path.iterdir()) == []


def test_a_reserve_that_does_not_fit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pyxbroker.bookie.space.os.posix_fallocate", refuse)
    assert not Reserve(tmp_path, 4 * MIB).make()
    assert list(tmp_path.iterdir()) == []


def test_the_reserve_is_made_where_there_is_space_and_no_larger_than_an_eighth(
    tmp_path: Path, disk: Disk
) -> None:
    (tmp_path / "ledgers").mkdir()
    disk.total_mib, disk.free_mib = 40, 30
    state = state_of(tmp_path, reserve_mib=8)
    state.check()
    (reserve,) = state.missing_reserves()
    assert reserve.size == 5 * MIB
    disk.free_mib = 6
    state.check()
    assert state.missing_reserves() == []
    disk.free_mib = 7
    state.check()
    make_reserves(state.missing_reserves())
    assert reserve.held == reserve.size
    assert state.missing_reserves() == []


def test_space_of_a_reserve_that_was_given_back_is_not_for_publishing(
    tmp_path: Path, disk: Disk
) -> None:
    (tmp_path / "ledgers").mkdir()
    state = state_of(tmp_path, reserve_mib=10)
    state.check()
    make_reserves(state.missing_reserves())
    disk.free_mib = 105
    state.check()
    assert state.refusal is None
    assert state.release_reserves("a test")
    disk.free_mib = 109
    state.check()
    assert state.refusal is not None


def test_the_reserve_is_given_back_when_the_storage_has_no_space(
    tmp_path: Path, disk: Disk
) -> None:
    (tmp_path / "ledgers").mkdir()
    state = state_of(tmp_path, reserve_mib=4)
    state.check()
    make_reserves(state.missing_reserves())
    disk.free_mib = 0
    state.check()
    # Others have filled the disk, and nothing of ours has failed yet: it is kept for that.
    assert state.refusal is not None
    assert state.file_systems[0].reserve is not None
    assert state.file_systems[0].reserve.held == 4 * MIB
    state.trouble = lambda: -errno.ENOSPC
    state.check()
    assert state.file_systems[0].reserve.held == 0
    disk.free_mib = 400
    assert state.missing_reserves() == [], "not as long as something fails"
    state.trouble = lambda: 0
    state.check()
    assert len(state.missing_reserves()) == 1


def test_a_start_and_a_stop_get_the_reserve_only_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    reserve = Reserve(tmp_path, 4 * MIB)
    state = StorageState([FileSystem(0, tmp_path, 100 * MIB, reserve)])
    reserve.make()
    state.make_room("a test")
    assert reserve.held == 4 * MIB
    disk.free_mib = 2
    state.make_room("a test")
    assert reserve.held == 0


def test_a_disk_that_does_not_answer_ends_nothing(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(tmp_path, reserve_mib=10)
    state.check()
    assert state.missing_reserves()

    def fails(*arguments: object, **named: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("pyxbroker.bookie.space.os.statvfs", fails)
    monkeypatch.setattr(Path, "stat", fails)
    monkeypatch.setattr(Path, "unlink", fails)
    state.check()
    assert state.missing_reserves() == []
    state.make_room("test")
    assert not state.release_reserves("test")
    assert state.refusal is None

"""Starts on a disk's bad days: what cannot be read is not damage, what is missing is noticed."""

from __future__ import annotations

import errno
import gc
import shutil
import struct
import time
from pathlib import Path

import pytest

from one_storage import Bookie, bookie, copy_of
from pyxbroker import _native

__all__ = ["bookie"]

ENTRIES = 60
PATIENCE_S = 2.0


def killed(bookie: Bookie, name: str = "killed") -> Path:
    """A directory with entries in its journal, as kill -9 leaves it."""
    bookie.open()
    bookie.wait_durable([bookie.add(1, entry) for entry in range(ENTRIES)][-1])
    bookie.wait(lambda: len(listed(bookie.directory)) == 2)
    copy = copy_of(bookie, name)
    bookie.storage.close(flush=False)
    return copy


def listed(directory: Path) -> list[str]:
    """The journal files that the journal's manifest names, decoded anew from docs/formats.md."""
    path = directory / "journal" / "journal.manifest"
    content = path.read_bytes() if path.exists() else b""
    best: tuple[int, list[str]] = (-1, [])
    quarter = len(content) // 4
    for copy in (content[at : at + quarter] for at in range(0, len(content), quarter or 1)):
        magic, crc, version, _, count, sequence = struct.unpack_from("<8sIIIIQ", copy)
        if magic != b"PYXMNFST" or _native.crc32c(copy[12 : 64 + 8 * count]) != crc:
            continue
        assert version == 1
        ids = struct.unpack_from(f"<{count}Q", copy, 64)
        best = max(best, (sequence, [f"{each:016x}.journal" for each in ids]))
    return best[1]


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def in_use(directory: Path) -> str:
    """The journal file with groups."""
    for path in sorted((directory / "journal").glob("*.journal")):
        if path.read_bytes()[4096:4100] == b"PBJG":
            return path.name
    raise AssertionError("no journal file has groups")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("call", ["list", "open", "file_bytes", "pread", "fdatasync"])
def test_a_short_disk_error_at_the_start_only_delays_it(bookie: Bookie, call: str) -> None:
    directory = killed(bookie)
    faults = _native.DiskFaults()
    match = "journal" if call == "list" else in_use(directory)
    faults.rule(call, match, errno=errno.EIO, times=5)
    bookie.open_at(directory, faults=faults)
    assert faults.count(call) > 5
    bookie.assert_holds(1, range(ENTRIES))
    assert [event for event in bookie.take_events() if event[0] > 0] == []


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("list", errno.EIO),
        ("open", errno.EMFILE),
        ("file_bytes", errno.EIO),
        ("pread", errno.EIO),
        ("pread", errno.ENOMEM),
        ("fdatasync", errno.EIO),
    ],
)
def test_a_disk_that_cannot_be_read_refuses_the_start_and_changes_nothing(
    bookie: Bookie, call: str, code: int
) -> None:
    directory = killed(bookie)
    before = content(directory)
    faults = _native.DiskFaults()
    match = "journal" if call == "list" else in_use(directory)
    faults.rule(call, match, errno=code)
    # What other tests left to the collector is closed when that comes, and not in between.
    gc.collect()
    began, open_before = time.monotonic(), descriptors()
    with pytest.raises(OSError) as refused:
        bookie.open_at(directory, faults=faults)
    assert descriptors() == open_before
    assert PATIENCE_S * 0.9 < time.monotonic() - began < PATIENCE_S + 30
    assert refused.value.errno == code
    sentence = refused.value.args[1]
    assert sentence.splitlines() == [sentence]
    assert match in sentence
    assert {errno.EIO: "error", errno.EMFILE: "open files", errno.ENOMEM: "memory"}[
        code
    ] in sentence
    assert content(directory) == before
    bookie.open_at(directory)
    bookie.assert_holds(1, range(ENTRIES))


def test_a_manifest_of_the_journal_that_cannot_be_read_refuses_the_start(bookie: Bookie) -> None:
    directory = killed(bookie)
    before, open_before = content(directory), descriptors()
    faults = _native.DiskFaults()
    faults.rule("pread", "journal.manifest", errno=errno.EIO)
    with pytest.raises(OSError, match=r"journal\.manifest cannot be read: Input/output error"):
        bookie.open_at(directory, faults=faults)
    assert (content(directory), descriptors()) == (before, open_before)
    bookie.open_at(directory)
    bookie.assert_holds(1, range(ENTRIES))


def test_what_was_replayed_goes_to_an_entry_log_without_a_further_word(bookie: Bookie) -> None:
    """So that the next start need not read it again."""
    directory = killed(bookie)
    logs = directory / "ledgers"
    assert list(logs.glob("*.log")) == []
    bookie.open_at(directory)
    bookie.wait(lambda: len(list(logs.glob("*.log"))) == 1)
    bookie.assert_holds(1, range(ENTRIES))


def test_an_unreadable_block_in_the_middle_names_its_offset(bookie: Bookie) -> None:
    directory = killed(bookie)
    faults = _native.DiskFaults()
    # The header is read first, the rest in one piece, then block by block.
    faults.rule("pread", in_use(directory), after=1, errno=errno.EIO)
    with pytest.raises(OSError, match="offset 4096: Input/output error"):
        bookie.open_at(directory, faults=faults)


def test_a_file_that_may_not_be_opened_refuses_the_start_at_once(bookie: Bookie) -> None:
    directory = killed(bookie)
    faults = _native.DiskFaults()
    # Once: who tried again would find it open.
    faults.rule("open", in_use(directory), errno=errno.EACCES, times=1)
    with pytest.raises(PermissionError, match=in_use(directory)):
        bookie.open_at(directory, faults=faults)


def test_an_unreadable_journal_is_damage_for_who_accepts_the_loss(bookie: Bookie) -> None:
    directory = killed(bookie)
    faults = _native.DiskFaults()
    faults.rule("pread", in_use(directory), after=1, errno=errno.EIO)
    bookie.open_at(directory, faults=faults, accept_loss=True)
    assert bookie.read(1, 0) in (_native.NO_LEDGER, _native.NO_ENTRY)
    assert any(
        severity == 2 and "cannot be read" in text for severity, text in bookie.take_events()
    )


def test_a_missing_journal_file_refuses_the_start(bookie: Bookie) -> None:
    model = killed(bookie)
    names = listed(model)
    assert in_use(model) in names
    assert sorted(names) == sorted(p.name for p in (model / "journal").glob("*.journal"))
    for name in names:
        directory = model.parent / f"without-{name}"
        shutil.copytree(model, directory)
        (directory / "journal" / name).unlink()
        before = content(directory)
        with pytest.raises(OSError) as refused:
            bookie.open_at(directory)
        assert refused.value.args[1] == (
            f"journal file {name} is missing: acknowledged messages that are not in an entry log"
            " yet may be lost; restore it, or start with --accept-loss"
        )
        assert content(directory) == before
        bookie.open_at(directory, accept_loss=True)
        assert any(s == 2 and f"{name} is missing" in text for s, text in bookie.take_events())
        bookie.wait_durable(bookie.add(2, 0))
        bookie.storage.close()
        bookie.open_at(directory)
        bookie.storage.close()


def test_a_directory_without_a_manifest_is_taken_over(bookie: Bookie) -> None:
    directory = killed(bookie)
    (directory / "journal" / "journal.manifest").unlink()
    bookie.open_at(directory)
    bookie.assert_holds(1, range(ENTRIES))
    bookie.wait(lambda: len(listed(directory)) > 0)
    bookie.storage.close()
    assert sorted(listed(directory)) == sorted(
        path.name for path in (directory / "journal").glob("*.journal")
    )


def test_a_damaged_manifest_is_told_and_made_anew(bookie: Bookie) -> None:
    directory = killed(bookie)
    path = directory / "journal" / "journal.manifest"
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    bookie.open_at(directory)
    bookie.assert_holds(1, range(ENTRIES))
    assert any("journal.manifest" in text and "damaged" in text for _, text in bookie.take_events())
    bookie.wait(lambda: len(listed(directory)) > 0)


def test_a_newer_journal_file_is_refused(bookie: Bookie) -> None:
    directory = killed(bookie)
    path = directory / "journal" / in_use(directory)
    with path.open("r+b") as file:
        header = bytearray(file.read(32))
        header[12:16] = (3).to_bytes(4, "little")
        header[8:12] = _native.crc32c(header[12:32]).to_bytes(4, "little")
        file.seek(0)
        file.write(header)
    before = content(directory)
    with pytest.raises(OSError) as refused:
        bookie.open_at(directory)
    assert refused.value.args[1] == (
        f"journal file {path.name} was written by a newer pyxbroker"
        " (format 3; this one reads up to 1)"
    )
    assert content(directory) == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_start_without_space_for_a_journal_file_reads_and_goes_on_when_there_is_some(
    bookie: Bookie, code: int
) -> None:
    directory = killed(bookie)
    bookie.open_at(directory)
    bookie.storage.close()
    for path in (directory / "journal").iterdir():
        path.unlink()
    faults = _native.DiskFaults()
    faults.rule("fallocate", "prepare.tmp", errno=code)
    bookie.open_at(directory, faults=faults)
    assert bookie.storage.trouble() == -code
    bookie.assert_holds(1, range(ENTRIES))
    sequence = bookie.add(1, ENTRIES)
    bookie.storage.commit()
    time.sleep(0.1)
    assert bookie.storage.durable_sequence < sequence
    faults.clear()
    bookie.wait_durable(sequence)
    bookie.wait(lambda: bookie.storage.trouble() == 0)
    bookie.assert_holds(1, range(ENTRIES + 1))

"""Check, back up, restore and repair an embedded store that is not open."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest

from metadata_backends import coroutine_test
from pyxbroker.metadata import maintenance, paths
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.findings import Severity
from pyxbroker.metadata.store import CorruptStore, MetadataError, NoSpace
from test_metadata_flips import Content, content, fill, read


async def make(directory: Path, *, copies: int = 1) -> Content:
    """A closed store with some copies, and changes after the last one."""
    store = EmbeddedStore(directory / "metadata")
    await store.open()
    await fill(store, 0)
    for number in range(copies):
        await store.make_copy()
        await fill(store, number + 1)
    expected = await content(store)
    await store.close()
    return expected


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@coroutine_test
async def test_a_check_of_a_good_store_finds_nothing_and_changes_nothing(tmp_path: Path) -> None:
    await make(tmp_path, copies=2)
    before = snapshot(tmp_path)
    assert maintenance.check(tmp_path / "metadata") == []
    assert snapshot(tmp_path) == before


@coroutine_test
async def test_a_check_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    await make(tmp_path)
    flip(tmp_path / "metadata" / "metadata.db", 2)
    flip(tmp_path / "metadata.copies" / "0000000002.copy", 5000)
    before = snapshot(tmp_path)
    findings = maintenance.check(tmp_path / "metadata")
    assert {each.file.name for each in findings} == {"metadata.db", "0000000002.copy"}
    assert all(each.file.exists() for each in findings)
    assert any("pyxbroker metadata repair" in each.sentence for each in findings)
    assert snapshot(tmp_path) == before


@coroutine_test
async def test_a_check_copies_only_what_sqlite_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path, copies=2)
    (tmp_path / "metadata" / "metadata.db.damaged-20260101T000000Z").write_bytes(bytes(100))
    flip(tmp_path / "metadata.copies" / "0000000002.copy", 5000)
    before = snapshot(tmp_path)
    copied = []

    def copy(source: Path, to: Path) -> None:
        copied.append(source.name)
        to.write_bytes(source.read_bytes())

    monkeypatch.setattr(shutil, "copyfile", copy)
    findings = maintenance.check(tmp_path / "metadata")
    assert copied == ["metadata.db"]
    assert [each.file for each in findings] == [tmp_path / "metadata.copies" / "0000000002.copy"]
    assert snapshot(tmp_path) == before


@coroutine_test
async def test_a_check_after_a_kill_changes_no_change_log(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "living" / "metadata")
    await store.open()
    await fill(store, 0)
    shutil.copytree(tmp_path / "living", tmp_path / "killed")
    await store.close()
    [log] = (tmp_path / "killed" / "metadata.copies").glob("*.changes")
    data = log.read_bytes().rstrip(b"\0")
    log.write_bytes(data[:-20])  # A power cut took its end; a start writes it again.
    before = snapshot(tmp_path / "killed")
    assert maintenance.check(tmp_path / "killed" / "metadata") == []
    assert snapshot(tmp_path / "killed") == before


@coroutine_test
async def test_a_check_without_room_names_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path, copies=0)

    def full(source: Path, to: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to))

    monkeypatch.setattr(shutil, "copyfile", full)
    (tmp_path / "small").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "small"))
    with pytest.raises(NoSpace, match=rf"{tmp_path}/small has no room .*TMPDIR"):
        maintenance.check(tmp_path / "metadata")
    assert not list((tmp_path / "small").iterdir())


@coroutine_test
async def test_a_deleted_database_is_not_a_new_store_and_is_restored(tmp_path: Path) -> None:
    expected = await make(tmp_path)
    shutil.rmtree(tmp_path / "metadata")
    with pytest.raises(MetadataError, match=r"metadata\.db is missing.*metadata restore"):
        await EmbeddedStore(tmp_path / "metadata").open()
    summary = maintenance.restore(tmp_path / "metadata")
    assert summary.copy == tmp_path / "metadata.copies" / "0000000002.copy"
    assert (summary.nodes, summary.deleted) == (len(expected), 0)
    assert summary.set_aside is None
    assert await read(tmp_path) == expected


@pytest.mark.parametrize(("kept", "left"), [(1, 2), (2, 2), (3, 3)])
@coroutine_test
async def test_the_newest_copies_are_kept_and_one_damaged_costs_nothing(
    tmp_path: Path, kept: int, left: int
) -> None:
    store = EmbeddedStore(tmp_path / "metadata", CopySettings(kept=kept))
    await store.open()
    for number in range(6):
        await fill(store, number)
        await store.make_copy()
    expected = await content(store)
    await store.close()
    numbers = {
        suffix: sorted(int(each.stem) for each in (tmp_path / "metadata.copies").glob(f"*{suffix}"))
        for suffix in (".copy", ".changes")
    }
    newest = max(numbers[".copy"])
    assert numbers[".copy"] == [*range(newest - left + 1, newest + 1)]
    # With all changes since the oldest that is kept.
    assert set(numbers[".changes"]) >= set(range(newest - left + 1, newest + 1))
    (tmp_path / "metadata" / "metadata.db").write_bytes(b"gone" * 1000)
    flip(tmp_path / "metadata.copies" / f"{newest:010}.copy", 5000)
    assert await read(tmp_path) == expected


@coroutine_test
async def test_an_older_copy_is_restored_and_the_newer_state_after_it(tmp_path: Path) -> None:
    expected = await make(tmp_path, copies=2)
    newest, older = maintenance.list_copies(tmp_path / "metadata")
    assert newest.is_intact and older.is_intact and newest.transaction > older.transaction
    store = EmbeddedStore(tmp_path / "metadata")
    await store.open()
    await store.put("/later", b"")
    numbered = await store.put("/ids/ID-", b"", sequential=True)
    await store.close()
    summary = maintenance.restore(tmp_path / "metadata", older.path, with_changes=False)
    assert summary.deleted >= 2 and summary.set_aside is not None
    restored = await read(tmp_path)
    assert "/later" not in restored and restored["/large"] != expected["/large"]
    store = EmbeddedStore(tmp_path / "metadata")
    await store.open()
    # Nobody deleted what is gone by this, and no number is given twice.
    assert await store.was_deleted(["/later"]) == [False]
    assert (await store.put("/ids/ID-", b"", sequential=True)).path > numbered.path
    await store.close()
    maintenance.restore(tmp_path / "metadata", newest.path, with_changes=False)
    assert (await read(tmp_path))["/large"].value != restored["/large"].value
    assert maintenance.check(tmp_path / "metadata") == []


@coroutine_test
async def test_a_restore_that_a_crash_interrupts_is_finished_by_the_start(tmp_path: Path) -> None:
    await make(tmp_path, copies=2)
    older = maintenance.list_copies(tmp_path / "metadata")[1]
    database = (tmp_path / "metadata" / "metadata.db").read_bytes()
    maintenance.restore(tmp_path / "metadata", older.path, with_changes=False)
    expected = await read(tmp_path)
    (tmp_path / "metadata" / "metadata.db").write_bytes(database)
    assert {path: node.value for path, node in (await read(tmp_path)).items()} == {
        path: node.value for path, node in expected.items()
    }


@coroutine_test
async def test_a_backup_is_restored_elsewhere(tmp_path: Path) -> None:
    expected = await make(tmp_path / "one")
    backup = maintenance.backup(tmp_path / "one" / "metadata", tmp_path)
    assert backup.parent == tmp_path
    maintenance.restore(tmp_path / "two" / "metadata", backup)
    assert await read(tmp_path / "two") == expected
    flip(backup, 6000)
    with pytest.raises(CorruptStore, match="not a complete copy"):
        maintenance.restore(tmp_path / "three" / "metadata", backup)
    assert not (tmp_path / "three" / "metadata").exists()


@coroutine_test
async def test_a_backup_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path / "one")
    to = tmp_path / "backups"
    to.mkdir()

    def refuse(*arguments: object) -> None:
        assert list(to.iterdir()), "it has begun"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(maintenance.CopyWriter, "finish", refuse)
    with pytest.raises(MetadataError, match="No space left"):
        maintenance.backup(tmp_path / "one" / "metadata", to)
    assert list(to.iterdir()) == []


@coroutine_test
async def test_a_restore_without_copies_says_so_and_changes_nothing(tmp_path: Path) -> None:
    await make(tmp_path, copies=0)
    shutil.rmtree(tmp_path / "metadata.copies")
    before = snapshot(tmp_path)
    with pytest.raises(MetadataError, match=r"no copy in .* can be restored"):
        maintenance.restore(tmp_path / "metadata")
    assert snapshot(tmp_path) == before


@coroutine_test
async def test_what_neither_has_is_refused_by_name_and_all_else_is_served(tmp_path: Path) -> None:
    expected = await make(tmp_path, copies=0)
    shutil.rmtree(tmp_path / "metadata.copies")
    database = sqlite3.connect(tmp_path / "metadata" / "metadata.db")
    database.execute("UPDATE node SET value=x'00' WHERE name='t7'")
    database.commit()
    database.close()
    lost = "/managed-ledgers/t7"
    for _ in range(2):
        store = EmbeddedStore(tmp_path / "metadata")
        await store.open()
        with pytest.raises(CorruptStore, match=f"{lost} .*damaged"):
            await store.get(lost)
        with pytest.raises(CorruptStore):
            await store.put(lost, b"", -1)
        with pytest.raises(CorruptStore):
            await store.delete(lost, 0)
        assert "t7" in await store.children("/managed-ledgers")
        for path, node in expected.items():
            if path != lost:
                assert await store.get(path) == node
        await store.close()
    assert [each.severity for each in maintenance.repair(tmp_path / "metadata")] == []
    store = EmbeddedStore(tmp_path / "metadata")
    await store.open()
    await store.delete(lost)
    assert await store.get(lost) is None
    await store.close()


@coroutine_test
async def test_a_repair_makes_what_is_damaged_anew(tmp_path: Path) -> None:
    expected = await make(tmp_path)
    flip(tmp_path / "metadata.copies" / "0000000002.copy", 5000)
    findings = maintenance.repair(tmp_path / "metadata")
    assert [each.severity for each in findings] == [Severity.REPAIRED]
    assert maintenance.check(tmp_path / "metadata") == []
    assert maintenance.list_copies(tmp_path / "metadata")[0].is_intact
    assert await read(tmp_path) == expected


@coroutine_test
async def test_a_repair_keeps_what_is_left_where_a_start_refuses(tmp_path: Path) -> None:
    expected = await make(tmp_path, copies=0)
    shutil.rmtree(tmp_path / "metadata.copies")
    path = tmp_path / "metadata" / "metadata.db"
    # A page of nodes that is a page no more.
    at = path.read_bytes().index(b"/managed-ledgers") // 4096 * 4096
    with path.open("r+b") as file:
        file.seek(at)
        file.write(os.urandom(64))
    with pytest.raises(CorruptStore, match="metadata repair"):
        await EmbeddedStore(tmp_path / "metadata").open()
    maintenance.repair(tmp_path / "metadata")
    left = await read(tmp_path)
    assert all(expected[path] == node for path, node in left.items() if path != "/")


@coroutine_test
async def test_a_ledger_is_not_forgotten_while_it_has_metadata(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata")
    await store.open()
    await store.put(paths.ledger(1), b"")
    await store.close()
    assert maintenance.forget_unknown_ledgers(tmp_path / "metadata", [1, 2]) == [2]
    assert paths.ledger(1) in await read(tmp_path)

"""What is durable when a call returns: which files and directories are synced, and before what.

A power cut shows a missing sync only now and then (`torture/` has those); here each one is seen.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.base.directories import make_directory, write_whole_file
from pyxbroker.bookie.space import RESERVE_NAME, Reserve
from pyxbroker.cli import tokens
from pyxbroker.metadata import copies, database
from pyxbroker.metadata.change_log import ChangeLog, read_file
from pyxbroker.metadata.copies import CopyWriter
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.embedded_files import Files

LOG = "0000000001.changes"


def name_of(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Python asks of the disk, with names of files: "write x", "sync x", "rename x y"."""
    found: list[str] = []

    def note(call: str, word: str) -> None:
        original = getattr(os, call)

        def noted(*arguments: Any, **keywords: Any) -> Any:
            names = [
                name_of(each) if isinstance(each, int) else Path(each).name
                for each in (arguments if word == "rename" else arguments[:1])
            ]
            found.append(" ".join([word, *names]))
            return original(*arguments, **keywords)

        monkeypatch.setattr(os, call, noted)

    for call, word in {
        "pwrite": "write",
        "fsync": "sync",
        "fdatasync": "sync",
        "rename": "rename",
        "replace": "rename",
        "unlink": "remove",
    }.items():
        note(call, word)
    return found


async def crashed(tmp_path: Path) -> Path:
    """A store that was killed after some commits of which its change log has the first ones."""
    store = EmbeddedStore(tmp_path / "live" / "metadata")
    await store.open()
    await store.put("/a", b"")
    log = tmp_path / "live" / "metadata.copies" / LOG
    short = log.read_bytes()
    await store.put("/b", b"")
    shutil.copytree(tmp_path / "live", tmp_path / "cut")
    await store.close()
    (tmp_path / "cut" / "metadata.copies" / LOG).write_bytes(short)
    return tmp_path / "cut"


def opened(directory: Path) -> tuple[ChangeLog, int]:
    """The change log of a store that was killed, and the last transaction that it has."""
    path = directory / "metadata.copies" / LOG
    content = read_file(path)
    log = ChangeLog.append_to(path, content.head, content.end)
    return log, content.records[-1].transaction


def test_a_file_gets_its_name_when_it_is_durable_and_that_is_durable_too(
    tmp_path: Path, calls: list[str]
) -> None:
    write_whole_file(tmp_path / "cookie", b"text")
    directory = tmp_path.name
    whole = ["write cookie.tmp", "sync cookie.tmp", "rename cookie.tmp cookie"]
    assert calls == [*whole, f"sync {directory}"]


def test_directories_that_are_made_have_durable_names(tmp_path: Path, calls: list[str]) -> None:
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert calls == [f"sync {tmp_path.name}", "sync a"]
    make_directory(tmp_path / "a" / "b")
    assert len(calls) == 2, "what is there already is"


def test_what_a_file_with_a_key_has_is_durable_when_it_is_made(
    tmp_path: Path, calls: list[str]
) -> None:
    tokens.command(["create-secret-key", "--output", str(tmp_path / "key")])
    assert calls == ["sync key"]


def test_a_database_is_replaced_when_the_one_before_is_durably_aside(
    tmp_path: Path, calls: list[str]
) -> None:
    for name in ("metadata.db", "metadata.db-wal", "metadata.db.new"):
        (tmp_path / name).write_text(name)
    aside = database.finish_swap(tmp_path / "metadata.db")
    assert aside is not None
    assert calls == [
        f"rename metadata.db-wal {aside.name}-wal",
        f"rename metadata.db {aside.name}",
        f"sync {tmp_path.name}",
        "rename metadata.db.new metadata.db",
        f"sync {tmp_path.name}",
    ]
    assert (tmp_path / "metadata.db").read_text() == "metadata.db.new"


@coroutine_test
async def test_changes_are_durable_when_their_log_is_synced(
    tmp_path: Path, calls: list[str]
) -> None:
    log, _ = opened(await crashed(tmp_path))
    calls.clear()
    log.append(b"a record")
    assert not log.is_synced
    log.sync()
    assert calls == [f"write {LOG}", f"sync {LOG}"]
    assert log.is_synced


@coroutine_test
async def test_a_change_log_says_that_it_was_closed_when_its_records_are_durable(
    tmp_path: Path, calls: list[str]
) -> None:
    log, last = opened(await crashed(tmp_path))
    log.append(b"a record")
    calls.clear()
    log.close_cleanly(last)
    assert calls == [f"sync {LOG}", f"write {LOG}", f"sync {LOG}"]
    log.close()


@coroutine_test
async def test_the_change_log_is_durable_before_a_damaged_database_is_built_anew(
    tmp_path: Path, calls: list[str]
) -> None:
    files = Files(await crashed(tmp_path) / "metadata" / "metadata.db")
    files.open()
    assert files.log is not None
    files.log.append(b"a record")
    calls.clear()
    assert files.heal("a test says so")
    assert calls[0] == f"sync {LOG}"
    files.close()


@coroutine_test
async def test_what_a_power_cut_took_from_the_change_log_is_durable_there_when_it_is_open_again(
    tmp_path: Path, calls: list[str]
) -> None:
    directory = await crashed(tmp_path)
    calls.clear()
    store = EmbeddedStore(directory / "metadata")
    await store.open()
    of_log = [each for each in calls if each.endswith(LOG)]
    await store.close()
    assert of_log[:2] == [f"write {LOG}", f"sync {LOG}"]


@coroutine_test
async def test_the_name_of_a_database_that_another_program_made_is_durable(
    tmp_path: Path, calls: list[str]
) -> None:
    directory = tmp_path / "metadata"
    directory.mkdir()
    made = sqlite3.connect(directory / "metadata.db")
    made.execute("PRAGMA journal_mode=WAL")
    made.execute("VACUUM")
    made.close()
    assert (directory / "metadata.db").stat().st_size > 0
    store = EmbeddedStore(directory)
    await store.open()
    begun = calls.index(f"rename {LOG}.tmp {LOG}")
    await store.close()
    assert "sync metadata" in calls[:begun]


@coroutine_test
async def test_a_copy_is_synced_in_steps_and_then_gets_its_name(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = read_file(await crashed(tmp_path) / "metadata.copies" / LOG).head
    monkeypatch.setattr(copies, "SYNC_BYTES", 1000)
    directory = tmp_path / "copies"
    directory.mkdir()
    calls.clear()
    writer = CopyWriter(directory / "1.copy", head)
    for _ in range(4):
        writer.add_record(bytes(600))
    writer.finish(1)
    write, sync = "write 1.copy.tmp", "sync 1.copy.tmp"
    head_and_records = [write, sync, write, write, sync, write, write, sync]
    end = [write, sync, "rename 1.copy.tmp 1.copy", "sync copies"]
    assert calls == head_and_records + end


def test_the_blocks_of_a_reserve_are_free_when_it_is_given_back(
    tmp_path: Path, calls: list[str]
) -> None:
    reserve = Reserve(tmp_path, 1 << 20)
    assert reserve.make()
    calls.clear()
    assert reserve.release()
    assert calls == [f"remove {RESERVE_NAME}", f"sync {tmp_path.name}"]


def test_a_new_store_says_when_it_was_made(tmp_path: Path) -> None:
    async def main() -> None:
        store = EmbeddedStore(tmp_path / "metadata")
        await store.open()
        await store.put("/a", b"")
        root, node = await store.get("/"), await store.get("/a")
        assert root is not None
        assert node is not None
        assert 0 <= node.created_ms - root.created_ms < 60_000
        await store.close()

    asyncio.run(main())

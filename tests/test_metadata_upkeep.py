"""What the thread of the embedded store does besides operations: its failures cost nobody else."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metadata_backends import coroutine_test
from one_bookie import until
from pyxbroker.metadata import copies, damage, database, embedded_files, upkeep
from pyxbroker.metadata.change_log import DAMAGED, ChangeLog
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.embedded_tree import Operation, Tree
from pyxbroker.metadata.store import CorruptStore, MetadataError, Unavailable
from pyxbroker.metadata.upkeep import Upkeep


def refuse(*arguments: object, **options: object) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@coroutine_test
async def test_a_copy_that_can_be_neither_written_nor_removed_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/a", b"0")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        patch.setattr(copies.CopyWriter, "add", refuse)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(store.make_copy(), 10)
        assert (await asyncio.wait_for(store.put("/a", b"1"), 10)).version == 1
    assert [each for each in caplog.records if "incomplete copy" in each.getMessage()]
    assert (await store.make_copy()).exists()
    await store.close()


@coroutine_test
async def test_a_copy_that_is_given_up_within_a_commit_does_not_fail_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    head = store._tree.log.head  # type: ignore[union-attr]
    store._tree.copy = copies.CopyWriter(tmp_path / "given-up.copy", head)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        patch.setattr(copies, "write_fully", refuse)
        assert (await asyncio.wait_for(store.put("/a", b"0"), 10)).version == 0
    assert store._tree.copy is None and store._tree.failure is None
    await store.close()


@pytest.mark.parametrize("place", ["transact", "run"])
@coroutine_test
async def test_a_defect_of_the_thread_answers_everything_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/a", b"0")
    told: list[MetadataError] = []
    store.on_failure(told.append)

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(*((Tree, "transact") if place == "transact" else (Upkeep, "run")), broken)
        if place == "transact":
            batch = [store.put("/a", b"1"), store.get("/a")]
            outcomes = await asyncio.wait_for(asyncio.gather(*batch, return_exceptions=True), 10)
            assert all("broken" in str(each) for each in outcomes)
        await until(lambda: bool(told))
    assert len(told) == 1 and "broken" in str(told[0])
    for later in (store.put("/a", b"2"), store.exists("/a")):
        with pytest.raises(MetadataError, match="broken"):
            await asyncio.wait_for(later, 10)
    await asyncio.wait_for(store.close(), 10)
    await store.open()
    assert (await store.put("/a", b"1", 0)).version == 1
    await store.close()
    assert len(told) == 1


@coroutine_test
async def test_copies_that_cannot_be_planned_are_planned_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "RETRY_S", 0.1)
    store = EmbeddedStore(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "size_of", refuse)
        await store.open()
        copy = await store.make_copy()
        await store.close()
        await asyncio.wait_for(store.open(), 10)
        assert store._upkeep._copy_size == 0
    assert [each for each in caplog.records if "cannot be read, retrying" in each.getMessage()]
    await until(lambda: store._upkeep._copy_size > 0)
    assert store._upkeep._copy_size == copies.size_of(copy)
    await store.close()


@coroutine_test
async def test_a_defect_behind_the_opening_is_told_to_whoever_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(Upkeep, "start", refuse)
        with pytest.raises(Unavailable, match=r"Read-only file system"):
            await asyncio.wait_for(store.open(), 10)
    await asyncio.wait_for(store.open(), 10)  # Nothing holds its lock.
    await store.close()


def test_young_copies_are_kept_whatever_their_number(tmp_path: Path) -> None:
    kept = copies.Copies(tmp_path)
    for number in range(1, 6):
        kept.copy_path(number).touch()
        kept.log_path(number).touch()
    settings = CopySettings(kept=2, kept_s=3600)
    kept.prune(settings)
    assert kept.numbers() == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    long_ago = time.time() - 3700
    for number in (1, 3, 5):
        os.utime(kept.copy_path(number), (long_ago, long_ago))
    kept.prune(settings)
    assert kept.numbers() == ([2, 4, 5], [2, 3, 4, 5])


def test_records_are_read_once_for_what_they_cannot_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "m" / "metadata.db")
    tree.open()
    for number in range(10):
        put(tree, f"/n/{number}", b"old")
    ask(tree, tree.put_sequential, "/ids/ID-", b"", False)
    shutil.rmtree(tmp_path / "m.copies")
    tree._execute("UPDATE node SET value=x'00' WHERE parent='/n'")
    tree._execute("UPDATE sequence SET next=7")
    loads = count_loads(monkeypatch)
    for _ in range(3):
        assert isinstance(ask(tree, tree.get, "/n/3"), CorruptStore)
        assert isinstance(ask(tree, tree.put_sequential, "/ids/ID-", b"", False), CorruptStore)
    assert len(loads) == 2
    for _ in range(2):
        assert sum(row.kind == DAMAGED for rows in tree.slices() for row in rows) == 10
    assert len(loads) == 3
    # What is written in its place is another row.
    assert ask(tree, tree.delete, "/n/3", None) is None
    put(tree, "/n/3", b"again")
    assert ask(tree, tree.get, "/n/3").value == b"again"
    tree.close()


def test_records_that_lack_the_newest_repair_a_row_that_is_the_one_they_have(
    tmp_path: Path,
) -> None:
    tree = Tree(tmp_path / "m" / "metadata.db")
    tree.open()
    for path in ("/a", "/b"):
        put(tree, path, b"recorded")
    tree._drop_log()
    put(tree, "/b", b"newer")
    tree._execute("UPDATE node SET value=x'00' WHERE name IN ('a', 'b')")
    assert ask(tree, tree.get, "/a").value == b"recorded"
    assert isinstance(ask(tree, tree.get, "/b"), CorruptStore)
    tree.close()


def test_a_pass_that_repairs_rows_reads_the_records_once_and_knows_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.metadata.embedded_files.ROWS_PER_SLICE", 4)
    tree = Tree(tmp_path / "m" / "metadata.db")
    tree.open()
    paths = [f"/n/{number}" for number in range(10)]
    for path in paths:
        put(tree, path, b"old")
    tree._execute("UPDATE node SET value=x'00' WHERE parent='/n'")
    loads = count_loads(monkeypatch)
    slices = tree.slices()
    next(slices)
    put(tree, "/n/9", b"new")
    tree._execute("UPDATE node SET value=x'00' WHERE name='9'")
    for _ in slices:
        continue
    assert len(loads) == 1
    assert [ask(tree, tree.get, path).value for path in paths] == [b"old"] * 9 + [b"new"]
    tree.close()


def test_a_slice_has_few_large_values(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "m" / "metadata.db")
    tree.open()
    large = bytes(embedded_files.BYTES_PER_SLICE // 2)
    for number in range(9):
        put(tree, f"/n/{number}", large)
        put(tree, f"/s/{number}", b"small")
    sizes = [sum(len(row.value) for row in rows) for rows in tree.slices()]
    assert max(sizes) <= embedded_files.BYTES_PER_SLICE
    assert sum(sizes) == 9 * len(large) + 9 * len(b"small")
    tree.close()


def put(tree: Tree, path: str, value: bytes) -> None:
    result = ask(tree, tree.put, path, value, None, False)
    assert not isinstance(result, MetadataError), result


def ask(tree: Tree, apply: Callable[..., object], *arguments: object) -> Any:
    waiter: Any = None
    (result,), _ = tree.transact([Operation(apply, arguments, waiter)])
    return result


def count_loads(monkeypatch: pytest.MonkeyPatch) -> list[copies.Copies]:
    loads: list[copies.Copies] = []
    load = copies.Copies.load

    def counted(self: copies.Copies) -> copies.Recorded:
        loads.append(self)
        return load(self)

    monkeypatch.setattr(copies.Copies, "load", counted)
    return loads


@coroutine_test
async def test_space_that_could_not_be_reserved_is_reserved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "RESERVE_S", 0.01)
    monkeypatch.setattr(upkeep, "RETRY_S", 0.1)
    store = EmbeddedStore(tmp_path / "m")
    refusals: list[object] = []

    def refuse_once_more(path: Path) -> None:
        refusals.append(path)
        refuse()

    with monkeypatch.context() as patch:
        patch.setattr(database, "allocate_log", refuse_once_more)
        await store.open()
        await until(lambda: len(refusals) >= 2)
    log = tmp_path / "m" / "metadata.db-wal"
    await until(lambda: log.stat().st_size >= database.LOG_BYTES)
    await until(lambda: store._upkeep._reserve_due is None)
    await store.close()


@coroutine_test
async def test_logs_are_synced_and_folded_under_a_steady_stream_of_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "OVERDUE_S", 0.3)
    done = noted(monkeypatch, "sync_log", "checkpoint")
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    for _ in range(200):
        await store.put("/n", b"")
        await asyncio.sleep(0.005)  # No pause is long enough for what waits for one.
    assert "checkpoint" in done
    assert 2 <= done.count("sync_log") < 100, "not at each commit either"
    await store.close()


@coroutine_test
async def test_a_store_that_was_idle_for_long_waits_for_a_pause_before_it_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is overdue is so since the first commit that is not folded in, not since the start."""
    monkeypatch.setattr(upkeep, "OVERDUE_S", 60)
    monkeypatch.setattr(upkeep, "CHECKPOINT_IDLE_S", 60)
    done = noted(monkeypatch, "sync_log", "checkpoint")
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    store._upkeep._uncheckpointed_since -= 3600
    for _ in range(2 * upkeep.COMMITS_PER_CHECKPOINT):
        await store.put("/n", b"")
    await until(lambda: "sync_log" in done)
    await store.put("/n", b"")  # Its thread has done what was due.
    assert "checkpoint" not in done
    monkeypatch.setattr(upkeep, "CHECKPOINT_IDLE_S", 0)
    await store.put("/n", b"")
    await until(lambda: "checkpoint" in done)
    await store.close()


def noted(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Which of these methods trees are asked for from now on, each time."""
    done: list[str] = []

    def noting(name: str, method: Callable[[Tree], None]) -> Callable[[Tree], None]:
        def call(tree: Tree) -> None:
            done.append(name)
            method(tree)

        return call

    for name in names:
        monkeypatch.setattr(Tree, name, noting(name, getattr(Tree, name)))
    return done


def test_a_refused_commit_postpones_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "m" / "metadata.db")
    tree.open()
    put(tree, "/a", b"")
    assert tree.has_changed
    execute = Tree._execute

    def full(self: Tree, sql: str, *parameters: object) -> Any:
        if sql == "COMMIT":
            refuse()
        return execute(self, sql, *parameters)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "_execute", full)
        assert isinstance(ask(tree, tree.put, "/a", b"1", None, False), Unavailable)
        assert not tree.has_changed
    put(tree, "/a", b"2")
    assert tree.has_changed
    tree.failure = Unavailable("no more")
    assert isinstance(ask(tree, tree.put, "/a", b"3", None, False), Unavailable)
    assert not tree.has_changed
    tree.close()


def test_a_copy_gets_its_name_when_the_change_log_beside_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut no copy is newer than the transactions of which there is a record."""
    tree, work = that_syncs_no_log_by_the_clock(tmp_path, monkeypatch)
    made: list[Path | MetadataError] = []
    is_synced: list[bool] = []
    finish = copies.CopyWriter.finish

    def noting(self: copies.CopyWriter, transaction: int) -> None:
        assert tree.log is not None
        is_synced.append(tree.log.is_synced)
        finish(self, transaction)

    monkeypatch.setattr(copies.CopyWriter, "finish", noting)
    work.request_copy(made.append)
    work.run()
    assert tree.copy is not None, "it is begun"
    put(tree, "/b", b"")
    assert tree.log is not None and not tree.log.is_synced
    while not made:
        work.run()
    assert isinstance(made[0], Path)
    assert is_synced == [True]
    tree.close()


def test_a_change_log_is_durable_when_the_one_that_continues_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut in between would leave a gap that nobody sees."""
    tree, work = that_syncs_no_log_by_the_clock(tmp_path, monkeypatch)
    put(tree, "/b", b"")
    assert tree.log is not None and not tree.log.is_synced
    is_synced: list[bool] = []
    go_on = upkeep.continue_log

    def noting(folder: copies.Copies, former: ChangeLog, *rest: Any) -> ChangeLog:
        is_synced.append(former.is_synced)
        return go_on(folder, former, *rest)

    monkeypatch.setattr(upkeep, "continue_log", noting)
    work.request_copy(lambda made: None)
    work.run()
    assert is_synced == [True]
    tree.close()


def test_the_change_log_is_durable_before_the_log_of_the_database_is_folded_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that a power cut tears are built anew from a second record of every commit."""
    monkeypatch.setattr(upkeep, "CHECKPOINT_IDLE_S", 0)
    tree, work = that_syncs_no_log_by_the_clock(tmp_path, monkeypatch)
    for _ in range(upkeep.COMMITS_PER_CHECKPOINT):
        put(tree, "/b", b"")
    assert tree.log is not None and not tree.log.is_synced
    is_synced: list[bool] = []

    def noting(self: Tree) -> None:
        assert self.log is not None
        is_synced.append(self.log.is_synced)
        self.commits_in_log = 0

    monkeypatch.setattr(Tree, "checkpoint", noting)
    work.run()
    assert is_synced == [True]
    tree.close()


def test_pages_of_which_sqlite_says_something_odd_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, work = that_syncs_no_log_by_the_clock(tmp_path, monkeypatch)
    monkeypatch.setattr(damage, "structure_error", lambda database: "row 3 missing from index")
    tree.is_checked = False
    with pytest.raises(sqlite3.DatabaseError, match="row 3 missing from index") as odd:
        work.do_everything()
    assert damage.is_damage(odd.value)
    tree.close()


def test_damage_that_is_met_twice_is_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it may be a disk that cannot read at this moment."""
    tree, work = that_syncs_no_log_by_the_clock(tmp_path, monkeypatch)
    healed: list[str] = []
    monkeypatch.setattr(tree, "heal", healed.append)
    work._on_error(sqlite3.DatabaseError("malformed: once"))
    assert healed == []
    work._on_error(sqlite3.DatabaseError("malformed: twice"))
    assert healed == ["malformed: twice"]
    tree.close()


def that_syncs_no_log_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tree, Upkeep]:
    """A store with a node, and its upkeep: change logs are synced where something needs it."""
    monkeypatch.setattr(upkeep, "SYNC_IDLE_S", 3600)
    monkeypatch.setattr(upkeep, "OVERDUE_S", 3600)
    tree = Tree(tmp_path / "m" / "metadata.db")
    tree.open()
    put(tree, "/a", b"")
    work = Upkeep(tree, CopySettings())
    work.start()
    return tree, work

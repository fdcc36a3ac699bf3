"""The embedded metadata store against crashes, damage and a disk that refuses."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loop_turns import counted_turns
from metadata_backends import coroutine_test
from pyxbroker.metadata import database, embedded
from pyxbroker.metadata.embedded import NOTIFICATIONS_PER_STEP_MAX, EmbeddedStore
from pyxbroker.metadata.embedded_tree import Operation, Tree
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    CorruptStore,
    MetadataError,
    Put,
    PutResult,
    StoreClosed,
    Unavailable,
)

FRAME_BYTES = 24 + 4096


@coroutine_test
async def test_a_second_process_gets_a_clear_error(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    with pytest.raises(Unavailable, match=r"metadata\.db is in use by another process"):
        await EmbeddedStore(tmp_path / "m").open()
    await store.put("/n", b"")
    await store.close()


@coroutine_test
async def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=str(tmp_path / "file")):
        await EmbeddedStore(tmp_path / "file" / "m").open()


@coroutine_test
async def test_operations_of_one_moment_share_a_commit(tmp_path: Path) -> None:
    """1000 pipelined writes take a handful of transactions: each appends its pages to the log."""
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/n/0", b"")
    results = await asyncio.gather(*[store.put(f"/n/{index}", b"") for index in range(1000)])
    assert len(results) == 1000
    assert _count_commits((tmp_path / "m" / "metadata.db-wal").read_bytes()) < 30
    await store.close()


@coroutine_test
async def test_a_commit_has_few_large_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    transact = Tree.transact

    def counting(self: Tree, batch: Sequence[Operation]) -> Any:
        sizes.append(len(batch))
        return transact(self, batch)

    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    monkeypatch.setattr(Tree, "transact", counting)
    large = bytes(embedded.BYTES_PER_COMMIT // 4)
    await asyncio.gather(*(store.put(f"/n/{number}", large) for number in range(20)))
    assert sum(sizes) == 20 and max(sizes) <= 4
    await store.close()


@coroutine_test
async def test_notifications_come_on_the_loops_thread_before_the_caller_goes_on(
    tmp_path: Path,
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    heard: list[tuple[str, int]] = []
    store.watch(lambda news: heard.append((news.path, threading.get_ident())))
    await store.put("/n", b"")
    assert heard == [("/n", threading.get_ident()), ("/", threading.get_ident())]
    await store.close()


@coroutine_test
async def test_the_news_of_a_large_transaction_come_in_steps_and_before_what_comes_after_it(
    tmp_path: Path,
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    heard: list[tuple[int, str]] = []
    async with counted_turns() as turn:
        store.watch(lambda news: heard.append((turn(), news.path)))
        many = store.put_all([Put(f"/many/{index}", b"") for index in range(2000)])
        await asyncio.to_thread(lambda: None)  # the next one is of another transaction
        after = store.put("/after", b"")
        closing = asyncio.ensure_future(store.close())
        await many
        assert sum(path.startswith("/many/") for _, path in heard) == 2000
        await closing
    assert after.done()
    in_one_turn = Counter(turn for turn, _ in heard)
    assert max(in_one_turn.values()) <= 2 * NOTIFICATIONS_PER_STEP_MAX < len(heard) / 4
    assert [path for _, path in heard][-2:] == ["/after", "/"]


@coroutine_test
async def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    rng = random.Random(5)
    for _ in range(6):
        answered = _write_until_killed(tmp_path / "m", 0.05 + rng.random() * 0.15)
        store = EmbeddedStore(tmp_path / "m")
        await store.open()
        node = await store.get("/counter")
        assert node is not None
        assert int(node.value) in (answered, answered + 1)
        assert node.version == int(node.value)
        await store.close()


@coroutine_test
async def test_a_log_cut_anywhere_in_its_last_transaction_loses_only_that(tmp_path: Path) -> None:
    source = tmp_path / "source"
    await _make_crashed(source, writes=12)
    log = (source / "metadata.db-wal").read_bytes()
    last = _last_commit_start(log)
    rng = random.Random(7)
    for cut in [last, *sorted(rng.sample(range(last + 1, len(log)), 12))]:
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(source, copy)
        (copy / "metadata.db-wal").write_bytes(log[:cut])
        assert await _read_counter(copy) == 10
    assert await _read_counter(source) == 11


@coroutine_test
async def test_sectors_lost_from_the_last_transaction_lose_only_that(tmp_path: Path) -> None:
    source = tmp_path / "source"
    await _make_crashed(source, writes=12)
    log = (source / "metadata.db-wal").read_bytes()
    last = _last_commit_start(log)
    for sector in range(-(-last // 512), len(log) // 512):
        copy = tmp_path / f"sector-{sector}"
        shutil.copytree(source, copy)
        torn = bytearray(log)
        torn[sector * 512 : (sector + 1) * 512] = bytes(512)
        (copy / "metadata.db-wal").write_bytes(torn)
        assert await _read_counter(copy) in (10, 11)


@coroutine_test
async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "metadata.db").write_bytes(b"this is not a database" * 400)
    with pytest.raises(CorruptStore, match=r"metadata\.db is damaged"):
        await EmbeddedStore(directory).open()


@coroutine_test
async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    await _make_closed(tmp_path / "m")
    database = sqlite3.connect(tmp_path / "m" / "metadata.db")
    database.execute("PRAGMA user_version=9")
    database.close()
    with pytest.raises(MetadataError, match=r"newer pyxbroker \(format 9; this one"):
        await EmbeddedStore(tmp_path / "m").open()


@coroutine_test
async def test_a_full_disk_fails_the_writes_and_nothing_else(tmp_path: Path) -> None:
    """A file size limit makes SQLite's writes fail as a full disk does."""
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/n", b"0")
    await store.put("/e", b"0", ephemeral=True)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    try:
        doomed = [
            store.put("/e", b"lost"),
            store.put("/e2", b"lost", ephemeral=True),
            store.delete("/e"),
            store.put("/large", bytes(500_000)),
        ]
        outcomes = await asyncio.gather(*doomed, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 4
        assert "metadata.db" in str(outcomes[0])
        assert await store.exists("/n")
        ephemeral = await store.get("/e")
        assert ephemeral is not None and (ephemeral.value, ephemeral.version) == (b"0", 0)
        assert not await store.exists("/e2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert await store.put("/large", bytes(500_000), MUST_NOT_EXIST) == PutResult("/large", 0)
    await store.close()
    assert await _read_all(tmp_path / "m") == {"/": b"", "/n": b"0", "/large": bytes(500_000)}


@coroutine_test
async def test_a_defect_fails_its_batch_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/e", b"0", ephemeral=True)
    told: list[MetadataError] = []
    store.on_failure(told.append)

    def broken(tree: Tree, path: str) -> None:
        raise ZeroDivisionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "children", broken)
        batch = [
            store.put("/n", b""),
            store.put("/e", b"lost"),
            store.children("/bad"),
            store.get("/n"),
        ]
        outcomes = await asyncio.wait_for(asyncio.gather(*batch, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [MetadataError] * 4
    assert len({id(outcome) for outcome in outcomes}) == 4
    assert "ZeroDivisionError('/bad')" in str(outcomes[0])
    assert len([each for each in caplog.records if each.exc_info]) == 1
    assert await store.children("/") == ["e"]
    ephemeral = await store.get("/e")
    assert ephemeral is not None and ephemeral.value == b"0"
    assert await store.put("/n", b"1", MUST_NOT_EXIST) == PutResult("/n", 0)
    assert told == []
    await store.close()
    assert await _read_all(tmp_path / "m") == {"/": b"", "/n": b"1"}


@coroutine_test
async def test_a_store_that_cannot_go_on_says_so_once_and_answers_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/n", b"0")
    told: list[MetadataError] = []
    store.on_failure(told.append)
    read = Tree.get
    undo = Tree._undo_since

    def broken(tree: Tree, *arguments: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(Tree, "get", broken)
    monkeypatch.setattr(Tree, "_undo_since", broken)
    with pytest.raises(MetadataError, match="broken"):
        await asyncio.wait_for(store.put("/n", b"1"), 10)
    monkeypatch.setattr(Tree, "get", read)
    monkeypatch.setattr(Tree, "_undo_since", undo)
    for operation in (store.get("/n"), store.put("/m", b""), store.exists("/n")):
        with pytest.raises(MetadataError, match="broken"):
            await asyncio.wait_for(operation, 10)
    assert len(told) == 1
    await asyncio.wait_for(store.close(), 10)
    await store.open()
    assert await store.put("/n", b"1", 0) == PutResult("/n", 1)
    await store.close()
    assert len(told) == 1


@coroutine_test
async def test_a_defect_while_opening_or_closing_is_told_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("broken")

    store = EmbeddedStore(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(database, "make_schema", broken)
        with pytest.raises(MetadataError, match="broken"):
            await asyncio.wait_for(store.open(), 10)
    await store.open()
    await store.put("/n", b"")
    opened = store._tree._database
    assert opened is not None
    store._tree._database = cast(Any, SimpleNamespace(close=broken, execute=opened.execute))
    with pytest.raises(MetadataError, match="broken"):
        await asyncio.wait_for(store.close(), 10)
    with pytest.raises(StoreClosed):
        await store.get("/n")


@coroutine_test
async def test_who_gives_up_opening_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    make = database.make_schema

    def late(*arguments: Any) -> None:
        may_go_on.wait(10)
        make(*arguments)

    store = EmbeddedStore(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(database, "make_schema", late)
        opening = asyncio.create_task(store.open())
        await asyncio.sleep(0.05)
        opening.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(opening, 10)
    await asyncio.wait_for(store.open(), 10)  # nobody holds its lock
    await store.close()


@coroutine_test
async def test_a_log_that_cannot_be_folded_in_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    execute = Tree._execute

    def refuse(tree: Tree, sql: str, *parameters: object) -> sqlite3.Cursor:
        if "wal_checkpoint" in sql:
            raise sqlite3.DatabaseError("refused")
        return execute(tree, sql, *parameters)

    monkeypatch.setattr(Tree, "_execute", refuse)
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    for index in range(300):
        await asyncio.wait_for(store.put("/n", b"%d" % index), 10)
    assert [each for each in caplog.records if "cannot be checkpointed" in each.message]
    await store.close()
    assert (await _read_all(tmp_path / "m"))["/n"] == b"299"


@coroutine_test
async def test_the_log_is_folded_in_and_used_again(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    for index in range(150):
        await store.put("/n", b"%d" % index)
        if index in (70, 140):
            await asyncio.sleep(0.4)
    used = (tmp_path / "m" / "metadata.db-wal").read_bytes().rstrip(b"\0")
    assert len(used) < 150 * FRAME_BYTES
    await store.close()
    assert not (tmp_path / "m" / "metadata.db-wal").exists()


def _writer(directory: str, pipe) -> None:
    async def write() -> None:
        store = EmbeddedStore(Path(directory))
        await store.open()
        node = await store.get("/counter")
        number = int(node.value) + 1 if node else 0
        while True:
            await store.put("/counter", b"%d" % number)
            os.write(pipe, struct.pack(">I", number))
            number += 1

    asyncio.run(write())


def _write_until_killed(directory: Path, seconds: float) -> int:
    """The last number that a writer said was answered before it got kill -9."""
    reader, writer = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_writer, args=(str(directory), writer)
    )
    process.start()
    os.close(writer)
    said = os.read(reader, 4)
    threading.Event().wait(seconds)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while more := os.read(reader, 65536):
        said += more
    os.close(reader)
    return struct.unpack(">I", said[-4:])[0]


async def _make_crashed(directory: Path, writes: int) -> None:
    """The files of a store that was not closed, with /counter written so many times."""
    live = directory.with_name(directory.name + "-live")
    store = EmbeddedStore(live)
    await store.open()
    for number in range(writes):
        await store.put("/counter", b"%d" % number)
    shutil.copytree(live, directory)
    # What a power cut takes from SQLite's log, it takes from the change log as well.
    shutil.rmtree(directory.with_name(directory.name + ".copies"), ignore_errors=True)
    await store.close()


async def _make_closed(directory: Path) -> dict[str, bytes]:
    store = EmbeddedStore(directory)
    await store.open()
    for index in range(120):
        await store.put(f"/all/n{index}", b"value %d" % index * 5)
    await store.put("/ids/ID-", b"", sequential=True)
    await store.close()
    return await _read_all(directory)


async def _read_all(directory: Path) -> dict[str, bytes]:
    store = EmbeddedStore(directory)
    await store.open()
    found: dict[str, bytes] = {}
    try:
        pending = ["/"]
        while pending:
            path = pending.pop()
            node = await store.get(path)
            assert node is not None
            found[path] = node.value
            pending += [f"{path.rstrip('/')}/{name}" for name in await store.children(path)]
    finally:
        await store.close()
    return found


async def _read_counter(directory: Path) -> int:
    return int((await _read_all(directory))["/counter"])


def _count_commits(log: bytes) -> int:
    """Frames whose header says that a transaction ends there."""
    offsets = range(32, len(log) - 23, FRAME_BYTES)
    return sum(struct.unpack_from(">I", log, offset + 4)[0] != 0 for offset in offsets)


def _last_commit_start(log: bytes) -> int:
    """Where the last transaction's first frame begins."""
    offsets = list(range(32, len(log) - 23, FRAME_BYTES))
    ends = [offset for offset in offsets if struct.unpack_from(">I", log, offset + 4)[0]]
    return ends[-2] + FRAME_BYTES


def _flip_bit(path: Path, offset: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def test_names_of_children_are_read_without_what_they_say(tmp_path: Path) -> None:
    connection = database.connect(tmp_path / "metadata.db")
    try:
        connection.execute(database.SCHEMA["node"])
        steps = [row[1] for row in connection.execute("EXPLAIN " + database.CHILDREN, ("/a",))]
    finally:
        connection.close()
    # A comparison with a row of the index reads all of it; the beginning is sought once.
    assert "SeekGE" in steps and not {"IdxGT", "IdxGE", "IdxLT", "IdxLE"} & set(steps)
    assert "SorterOpen" not in steps

"""How the embedded store starts: after kills and power cuts, with files missing, other formats."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from metadata_backends import coroutine_test
from pyxbroker.metadata import damage, database, embedded_files
from pyxbroker.metadata.change_log import HEAD_BYTES, read_file
from pyxbroker.metadata.copies import Copies
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.findings import Severity
from pyxbroker.metadata.opening import Opening
from pyxbroker.metadata.store import CorruptStore, MetadataError, Unavailable
from test_metadata_flips import Content, content, fill, read


async def crashed(tmp_path: Path, name: str = "killed") -> Content:
    """What a kill leaves after some commits, below `name`."""
    store = EmbeddedStore(tmp_path / "live" / "metadata")
    await store.open()
    await fill(store, 1)
    await store.put("/last", b"answered")
    expected = await content(store)
    shutil.copytree(tmp_path / "live", tmp_path / name)
    await store.close()
    return expected


def wal(directory: Path) -> Path:
    return directory / "metadata" / "metadata.db-wal"


def log(directory: Path) -> Path:
    return directory / "metadata.copies" / "0000000001.changes"


@coroutine_test
async def test_a_flipped_bit_in_the_last_transaction_of_the_log_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await crashed(tmp_path)
    data = bytearray(wal(tmp_path / "killed").read_bytes().rstrip(b"\0"))
    data[-300] ^= 16
    wal(tmp_path / "killed").write_bytes(data)
    assert await read(tmp_path / "killed") == expected
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "lost transactions that were answered" in line and "/last came from" in line
    assert await read(tmp_path / "killed") == expected


@coroutine_test
async def test_a_deleted_log_loses_nothing(tmp_path: Path) -> None:
    expected = await crashed(tmp_path)
    wal(tmp_path / "killed").unlink()
    store = EmbeddedStore(tmp_path / "killed" / "metadata")
    await store.open()
    assert [each.severity for each in store.findings] == [Severity.REPAIRED]
    assert await content(store) == expected
    await store.close()


@coroutine_test
async def test_a_power_cut_of_the_change_log_is_no_damage(tmp_path: Path) -> None:
    """It is not synced for each commit: the database is the truth, and fills it up."""
    expected = await crashed(tmp_path)
    whole = read_file(log(tmp_path / "killed"))
    for number, record in enumerate(whole.records[1::3]):
        directory = tmp_path / f"cut-{number}"
        shutil.copytree(tmp_path / "killed", directory)
        log(directory).write_bytes(whole.data[: record.offset + number % 40])
        store = EmbeddedStore(directory / "metadata")
        await store.open()
        assert store.findings == []
        assert await content(store) == expected
        await store.close()
        (directory / "metadata" / "metadata.db").write_bytes(b"gone" * 1000)
        assert await read(directory) == expected


@coroutine_test
async def test_sectors_lost_from_unsynced_changes_are_no_damage(tmp_path: Path) -> None:
    expected = await crashed(tmp_path)
    whole = read_file(log(tmp_path / "killed"))
    assert max(record.synced for record in whole.records) < whole.records[3].offset
    for number, sector in enumerate(range(HEAD_BYTES // 512 + 1, whole.end // 512)):
        directory = tmp_path / f"sector-{number}"
        shutil.copytree(tmp_path / "killed", directory)
        data = bytearray(whole.data)
        data[sector * 512 : sector * 512 + 512] = bytes(512)
        log(directory).write_bytes(data)
        store = EmbeddedStore(directory / "metadata")
        await store.open()
        assert store.findings == []
        assert await content(store) == expected
        await store.close()
        shutil.rmtree(directory)


@coroutine_test
async def test_a_delete_that_a_power_cut_took_from_the_change_log_stays_done(
    tmp_path: Path,
) -> None:
    live = tmp_path / "live"
    store = EmbeddedStore(live / "metadata")
    await store.open()
    await store.put("/there", b"")
    await store.put("/gone", b"")
    short = log(live).read_bytes()
    await store.delete("/gone")
    shutil.copytree(live, tmp_path / "cut")
    await store.close()
    log(tmp_path / "cut").write_bytes(short)
    assert set(await read(tmp_path / "cut")) == {"/", "/there"}


@coroutine_test
async def test_missing_copies_are_told_and_made_again(tmp_path: Path) -> None:
    expected = await crashed(tmp_path)
    shutil.rmtree(tmp_path / "killed" / "metadata.copies")
    store = EmbeddedStore(tmp_path / "killed" / "metadata")
    await store.open()
    assert ["are missing" in each.sentence for each in store.findings] == [True]
    await store.make_copy()
    await store.close()
    (tmp_path / "killed" / "metadata" / "metadata.db").write_bytes(b"gone" * 1000)
    assert await read(tmp_path / "killed") == expected


@coroutine_test
async def test_copies_of_another_store_are_refused(tmp_path: Path) -> None:
    await crashed(tmp_path)
    await read(tmp_path / "other")
    shutil.rmtree(tmp_path / "killed" / "metadata.copies")
    shutil.copytree(tmp_path / "other" / "metadata.copies", tmp_path / "killed" / "metadata.copies")
    with pytest.raises(MetadataError, match="belong to another metadata store"):
        await EmbeddedStore(tmp_path / "killed" / "metadata").open()


@coroutine_test
async def test_a_damaged_database_is_built_anew_and_kept_as_it_was(tmp_path: Path) -> None:
    expected = await crashed(tmp_path)
    directory = tmp_path / "live"
    path = directory / "metadata" / "metadata.db"
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"/managed-ledgers")] ^= 1
    path.write_bytes(damaged)
    assert await read(directory) == expected
    [kept] = path.parent.glob("metadata.db.damaged-*")
    assert kept.read_bytes() == damaged
    checked = sqlite3.connect(path)
    assert checked.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checked.close()


@coroutine_test
async def test_a_large_store_is_looked_at_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await crashed(tmp_path)
    directory = tmp_path / "live"
    changed = sqlite3.connect(directory / "metadata" / "metadata.db")
    changed.execute("UPDATE node SET value=x'00' WHERE name IN ('t2', 'last')")
    changed.commit()
    changed.close()
    monkeypatch.setattr(damage, "CONTENT_CHECK_PAGES_MAX", 0)
    store = EmbeddedStore(directory / "metadata")
    await store.open()
    assert store.findings == []
    assert await store.get("/last") == expected["/last"]
    assert ["/last" in each.sentence for each in store.findings] == [True]
    await store.make_copy()  # It goes through every row.
    assert ["/t2" in each.sentence for each in store.findings] == [False, True]
    await store.close()
    assert await read(directory) == expected


@coroutine_test
async def test_a_page_that_is_damaged_at_run_time_is_repaired_for_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await crashed(tmp_path)
    path = tmp_path / "live" / "metadata" / "metadata.db"
    at = path.read_bytes().index(b"/managed-ledgers") // 4096 * 4096
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 64)
    monkeypatch.setattr(damage, "CONTENT_CHECK_PAGES_MAX", 0)
    store = EmbeddedStore(tmp_path / "live" / "metadata")
    await store.open()
    await store.put("/ephemeral", b"stays", ephemeral=True)
    found = await content(store)
    assert found.pop("/ephemeral").value == b"stays"
    assert found == expected
    assert [each.severity for each in store.findings] == [Severity.REPAIRED]
    await store.close()


@pytest.mark.parametrize("is_log_behind", [False, True])
@coroutine_test
async def test_a_change_log_that_lacks_changes_makes_up_for_no_damage(
    tmp_path: Path, is_log_behind: bool
) -> None:
    """It could not be written any more, so what it says last may be older than what was there."""
    await crashed(tmp_path)
    path = tmp_path / "live" / "metadata" / "metadata.db"
    at = path.read_bytes().index(b"/managed-ledgers") // 4096 * 4096
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 64)
    copies = Copies(tmp_path / "live" / "metadata.copies")
    opening = Opening(path, copies, "a page is damaged", is_log_behind)
    opening.inspect()
    try:
        if is_log_behind:
            with pytest.raises(CorruptStore, match="incomplete"):
                opening.plan()
        else:
            assert "/last" in opening.plan()[0].state.nodes
    finally:
        opening.close_database()


FORMAT_1 = """
BEGIN;
CREATE TABLE node (
    parent TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, checksum INTEGER NOT NULL,
    value BLOB NOT NULL, PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE TABLE sequence (
    parent TEXT PRIMARY KEY, next INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA user_version=1;
COMMIT;
"""


def make_format_1(directory: Path) -> None:
    """A store as it was before there were change logs."""
    directory.mkdir(parents=True)
    old = sqlite3.connect(directory / "metadata.db", isolation_level=None)
    old.executescript(f"PRAGMA journal_mode=WAL; {FORMAT_1}")
    for parent, name, version, value in (
        *(("", "", 0, b""), ("/", "a", 3, b"value"), ("/", "ids", 0, b"")),
        *(("/ids", f"ID-{n:010d}", 0, b"") for n in range(2)),
    ):
        checksum = damage.row_checksum_1(f"{parent}\0{name}".encode(), version, value)
        old.execute(
            "INSERT INTO node VALUES (?, ?, ?, 1000, 2000, ?, ?)",
            (parent, name, version, checksum, value),
        )
    checksum = damage.row_checksum_1(b"/ids\0", 2, b"")
    old.execute("INSERT INTO sequence VALUES ('/ids', 2, ?)", (checksum,))
    old.close()


@coroutine_test
async def test_a_store_of_format_1_is_copied_and_goes_on(tmp_path: Path) -> None:
    make_format_1(tmp_path / "metadata")
    store = EmbeddedStore(tmp_path / "metadata")
    await store.open()
    node = await store.get("/a")
    assert node == (b"value", 3, False, 1000, 2000, False)
    assert (await store.put("/ids/ID-", b"", sequential=True)).path == "/ids/ID-0000000002"
    assert await store.put("/a", b"new", 3) == ("/a", 4)
    assert [each.severity for each in store.findings] == [Severity.NOTE]
    expected = await content(store)
    await store.close()
    assert (tmp_path / "metadata.copies" / "0000000001.copy").exists()
    assert list((tmp_path / "metadata").glob("metadata.db.before-format-2-*"))
    (tmp_path / "metadata" / "metadata.db").write_bytes(b"gone" * 1000)
    assert await read(tmp_path) == expected


@coroutine_test
async def test_an_upgrade_that_a_kill_interrupts_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object) -> None:
        raise OSError("killed")

    for name in ("build", "sync_directory"):
        directory = tmp_path / name
        make_format_1(directory / "metadata")
        with monkeypatch.context() as patch:
            patch.setattr(database, name, killed)
            with pytest.raises(MetadataError):
                await EmbeddedStore(directory / "metadata").open()
        found = await read(directory)
        assert found["/a"].value == b"value"


@coroutine_test
async def test_one_bit_of_the_format_number_is_damage_and_another_format_is_not(
    tmp_path: Path,
) -> None:
    expected = await crashed(tmp_path)
    path = tmp_path / "live" / "metadata" / "metadata.db"
    for version, is_flip in ((0, True), (6, True), (3, True), (9, False), (5, False)):
        with sqlite3.connect(path) as changed:
            changed.execute(f"PRAGMA user_version={version}")
        changed.close()
        if is_flip:
            assert await read(tmp_path / "live") == expected
            continue
        with pytest.raises(
            MetadataError, match=rf"newer pyxbroker \(format {version}; this one reads up to 2\)"
        ):
            await EmbeddedStore(tmp_path / "live" / "metadata").open()


@coroutine_test
async def test_a_swap_that_a_kill_interrupts_is_finished(tmp_path: Path) -> None:
    """The new database has its place only when the old log has gone from beside it."""
    expected = await crashed(tmp_path)
    path = tmp_path / "killed" / "metadata" / "metadata.db"
    (path.with_name("metadata.db.new")).write_bytes(
        (tmp_path / "live" / "metadata" / "metadata.db").read_bytes()
    )
    path.unlink()
    assert await read(tmp_path / "killed") == expected
    assert not path.with_name("metadata.db.new").exists()


@coroutine_test
async def test_a_disk_that_fails_for_a_moment_delays_the_start_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await crashed(tmp_path)
    directory = tmp_path / "killed" / "metadata"
    attempts = 0
    connect = database.connect

    def failing(path: Path) -> sqlite3.Connection:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise OSError(5, "Input/output error", str(path))
        return connect(path)

    with monkeypatch.context() as patch:
        patch.setattr(database, "connect", failing)
        assert await read(tmp_path / "killed") == expected
    assert attempts == 4
    assert not list(directory.glob("*damaged*"))
    monkeypatch.setattr(embedded_files, "OPEN_RETRY_S", 0.2)
    attempts = -1000
    monkeypatch.setattr(database, "connect", failing)
    with pytest.raises(Unavailable, match=r"metadata.*Input/output error"):
        await EmbeddedStore(directory).open()
    monkeypatch.undo()
    assert await read(tmp_path / "killed") == expected


@coroutine_test
async def test_damage_of_both_sources_is_refused_again_and_again(tmp_path: Path) -> None:
    """SQLite forgets a log whose header is damaged; the next start must not take that for all."""
    await crashed(tmp_path)
    killed = tmp_path / "killed"
    shutil.rmtree(killed / "metadata.copies")
    data = bytearray(wal(killed).read_bytes())
    data[20] ^= 1
    wal(killed).write_bytes(data)
    for _ in range(3):
        with pytest.raises(CorruptStore, match="is damaged or missing, and its copies"):
            await EmbeddedStore(killed / "metadata").open()


@coroutine_test
async def test_a_value_of_zeros_at_the_end_of_the_change_log_is_no_torn_end(
    tmp_path: Path,
) -> None:
    """The file is allocated ahead, so it ends in zeros in any case."""
    live = tmp_path / "live"
    store = EmbeddedStore(live / "metadata")
    await store.open()
    await store.put("/zeros", bytes(300_000))
    shutil.copytree(live, tmp_path / "killed")
    await store.close()
    wal(tmp_path / "killed").unlink()
    found = await read(tmp_path / "killed")
    assert found["/zeros"].value == bytes(300_000)


@coroutine_test
async def test_a_first_start_that_is_cut_short_leaves_no_database_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(embedded_files, "OPEN_RETRY_S", 0.0)
    for name in ("write_fully", "connect"):
        directory = tmp_path / name / "metadata"
        with monkeypatch.context() as patch:
            patch.setattr(database, name, failing)
            with pytest.raises(Unavailable):
                await EmbeddedStore(directory).open()
        is_made = name == "connect"
        assert [each.name for each in directory.iterdir()] == ["metadata.db"] * is_made
        store = EmbeddedStore(directory)
        await store.open()
        await store.put("/n", b"1")
        assert store.findings == []
        await store.close()
        checked = sqlite3.connect(directory / "metadata.db")
        assert checked.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert checked.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        checked.close()

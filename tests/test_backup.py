"""Backups: they have the state of one moment, their damage is named, and a restore continues."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from one_bookie import BOOKIE_ID, MIB, NAME, Node, Runs, ledgers_of, until
from pyxbroker import _native
from pyxbroker.admin.resources import backup as backup_resource
from pyxbroker.backup import create as creation
from pyxbroker.backup.create import Created, Moment, create
from pyxbroker.backup.manifest import LOGS, METADATA, BackupError, read_manifest
from pyxbroker.backup.manifest import NAME as MANIFEST
from pyxbroker.backup.progress import Progress
from pyxbroker.backup.restore import restore
from pyxbroker.backup.verify import verify
from pyxbroker.bookie.entry_logs import entry_log_ids, listed_logs
from pyxbroker.bookie.garbage_collection import GarbageCollector
from pyxbroker.bookie.layout import Layout
from pyxbroker.broker.backup import BackupRefused
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.metadata import maintenance, paths
from pyxbroker.metadata.copies import read_copy
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.store import MetadataError
from pyxbroker.roles import backup_source
from pyxbroker.roles.backup_source import StandaloneBackup
from pyxbroker.web.errors import HttpError

INSTANCE = "00000000-0000-4000-8000-000000000001"
STORAGE: dict[str, Any] = {
    "journal_file_bytes": 4 * MIB,
    "dirty_bytes_max": 2 * MIB,
    "cache_bytes_max": 8 * MIB,
    "entry_bytes_max": 1 * MIB,
}


class Standalone:
    """What a standalone has of its data, and the source of its backups."""

    def __init__(self, node: Node) -> None:
        data = node.directory.parent
        self.node = node
        self.runs: Any = Runs()
        self.store: EmbeddedStore = node.store  # type: ignore[assignment]
        self.layout = Layout(
            node.directory,
            node.directory / "journal",
            node.directory / "ledgers",
            data / "metadata",
        )
        self.source = StandaloneBackup("standalone", self.layout, node.bookie, self.store)

    async def ledger(self, entries: int = 1, size: int = 10) -> LedgerHandle:
        handle = await self.node.client.create(self.runs, NAME)
        await self.append(handle, entries, size)
        return handle

    async def append(self, handle: LedgerHandle, entries: int, size: int = 10) -> None:
        for _ in range(entries):
            handle.append(self.runs.run(b"x" * size))
        await handle.drain()

    async def back_up(self, target: Path, base: Path | None = None) -> Created:
        answer = await self.source.begin()
        created = await asyncio.to_thread(copy_moment, answer, target, base)
        self.source.end(answer["id"])
        return created


def copy_moment(answer: dict[str, Any], target: Path, base: Path | None = None) -> Created:
    """Create a backup of what the source has answered."""
    write = partial(maintenance.export, Path(answer["copies"]), answer["transaction"])
    moment = Moment(
        *(answer["timeMs"], answer["cluster"], answer["instanceId"], answer["bookieId"]),
        *(answer["logEnd"], Path(answer["ledgers"]), write),
    )
    return create(moment, target, base, Progress(), lambda: None)


def run(tmp_path: Path, scenario: Callable[[Standalone], Awaitable[None]]) -> None:
    async def main() -> None:
        node = Node(tmp_path / "data" / "bookie")
        node.make_store = lambda _: EmbeddedStore(tmp_path / "data" / "metadata")  # type: ignore
        async with node:
            await node.store.put(paths.INSTANCE_ID, INSTANCE.encode())
            await scenario(Standalone(node))

    asyncio.run(main())


def restored_storage(data: Path) -> _native.Storage:
    return _native.Storage(data / "bookie" / "journal", data / "bookie" / "ledgers", **STORAGE)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of a ledger with 20 entries."""

    async def scenario(standalone: Standalone) -> None:
        await standalone.ledger(20, 500)
        await standalone.back_up(tmp_path / "backup")

    run(tmp_path, scenario)
    return tmp_path / "backup"


# --- the moment -------------------------------------------------------------------------------


def test_a_backup_has_the_state_of_its_moment(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        store, client = standalone.store, standalone.node.client
        first, second = await standalone.ledger(10), await standalone.ledger(20)
        await store.put("/value", b"before")
        await store.put("/gone", b"")
        answer = await standalone.source.begin()
        await standalone.append(first, 5)
        await store.put("/value", b"after")
        await store.delete("/gone")
        await client.delete(second.ledger_id)
        late = await standalone.ledger(3)
        await standalone.node.flush()
        await asyncio.to_thread(copy_moment, answer, tmp_path / "backup")
        standalone.source.end(answer["id"])
        restore(tmp_path / "backup", tmp_path / "restored", Progress())
        storage = restored_storage(tmp_path / "restored")
        try:
            assert storage.last_entry(first.ledger_id) == 9
            assert storage.last_entry(second.ledger_id) == 19
            assert sorted(ledgers_of(storage)) == [first.ledger_id, second.ledger_id]
        finally:
            storage.close()
        restored = EmbeddedStore(tmp_path / "restored" / "metadata")
        await restored.open()
        value = await restored.get("/value")
        assert value is not None and value.value == b"before"
        assert await restored.exists("/gone")
        assert await restored.exists(paths.ledger(second.ledger_id))
        assert not await restored.exists(paths.ledger(late.ledger_id))
        await restored.close()

    run(tmp_path, scenario)


def test_operations_issued_after_the_mark_are_in_later_transactions(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        store = standalone.store
        marks = []
        for number in range(20):
            store.put(f"/before-{number}", b"")
            marks.append(store.mark())
            store.put(f"/after-{number}", b"")
        await store.put("/last", b"")
        for number, mark in enumerate(marks):
            file = tmp_path / f"{number}.copy"
            maintenance.export(tmp_path / "data" / "metadata.copies", await mark, file)
            _, state = read_copy(file)
            assert f"/before-{number}" in state.nodes
            assert f"/after-{number}" not in state.nodes

    run(tmp_path, scenario)


def test_deletions_wait_until_the_backup_ends(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        node = standalone.node
        ledger, garbage = await standalone.ledger(), await standalone.ledger()
        answer = await standalone.source.begin()
        await node.client.delete(ledger.ledger_id)
        await node.store.delete(paths.ledger(garbage.ledger_id))
        collector = GarbageCollector(node.storage, node.store, node.bookie.delete_ledger)
        await collector.collect()
        assert sorted(ledgers_of(node.storage)) == [ledger.ledger_id, garbage.ledger_id]
        standalone.source.end(answer["id"])
        assert ledgers_of(node.storage) == []

    run(tmp_path, scenario)


def test_a_moment_waits_for_the_flush_under_way(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        ledger = await standalone.ledger(10, 100_000)
        standalone.node.storage.flush()
        with pytest.raises(BlockingIOError):
            standalone.node.storage.begin_copy()
        beginning = asyncio.ensure_future(standalone.source.begin())
        await standalone.append(ledger, 1)
        answer = await beginning
        copy_moment(answer, tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "restored", Progress())
        storage = restored_storage(tmp_path / "restored")
        assert storage.last_entry(ledger.ledger_id) in (9, 10)
        storage.close()

    run(tmp_path, scenario)


def test_there_is_one_backup_at_a_time(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        source = standalone.source
        results = await asyncio.gather(source.begin(), source.begin(), return_exceptions=True)
        assert [type(each) for each in results] == [dict, BackupRefused]
        assert "Another backup" in str(results[1])
        with pytest.raises(BackupRefused, match="is not known"):
            source.renew("0" * 16)

    run(tmp_path, scenario)


def test_a_backup_that_is_not_renewed_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_source, "HOLD_S", 0.05)

    async def scenario(standalone: Standalone) -> None:
        ledger = await standalone.ledger()
        answer = await standalone.source.begin()
        await standalone.node.client.delete(ledger.ledger_id)
        await until(lambda: ledgers_of(standalone.node.storage) == [])
        with pytest.raises(BackupRefused, match="has abandoned this backup"):
            standalone.source.end(answer["id"])
        again = await standalone.source.begin()
        standalone.source.end(again["id"])

    run(tmp_path, scenario)


def test_no_moment_is_chosen_while_the_disk_is_full(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        node = standalone.node
        ledger = await standalone.ledger()
        node.faults.rule("open", ".log.tmp", errno=errno.ENOSPC)
        with pytest.raises(BackupRefused, match="No space left"):
            await standalone.source.begin()
        node.faults.clear()
        await until(lambda: not node.storage.trouble())
        await node.client.delete(ledger.ledger_id)
        assert ledgers_of(node.storage) == [], "deletions are executed again"
        answer = await standalone.source.begin()
        assert answer["logEnd"] > 1

    run(tmp_path, scenario)


# --- the files --------------------------------------------------------------------------------


def test_an_incremental_backup_links_what_its_base_has(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        await standalone.ledger(10, 10_000)
        first = await standalone.back_up(tmp_path / "first")
        await standalone.ledger(10, 10_000)
        second = await standalone.back_up(tmp_path / "second", tmp_path / "first")
        assert first.linked_bytes == 0
        assert second.linked_bytes > 100_000
        [old] = entry_log_ids(tmp_path / "first" / LOGS)
        assert old in entry_log_ids(tmp_path / "second" / LOGS)
        names = [tmp_path / each / LOGS / f"{old:016x}.log" for each in ("first", "second")]
        assert names[0].samefile(names[1])
        for each in ("first", "second"):
            assert verify(tmp_path / each, Progress()).findings == []

    run(tmp_path, scenario)


def test_a_backup_of_other_data_is_no_base(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        await standalone.ledger()
        await standalone.back_up(tmp_path / "first")
        second = await standalone.back_up(tmp_path / "second")
        foreign = second.manifest._replace(instance_id="other", cluster="blue")
        (tmp_path / "foreign").mkdir()
        foreign.write(tmp_path / "foreign")
        fork = second.manifest._replace(store_id="00" * 16)
        (tmp_path / "fork").mkdir()
        fork.write(tmp_path / "fork")
        newer = second.manifest._replace(transaction=second.manifest.transaction + 1000)
        (tmp_path / "newer").mkdir()
        newer.write(tmp_path / "newer")
        for name, sentence in (
            ("foreign", "backup of another cluster \\(blue, other\\)"),
            ("fork", "not an earlier backup of this data directory"),
            ("newer", "not an earlier backup of this data directory"),
            ("missing", "does not exist"),
        ):
            answer = await standalone.source.begin()
            with pytest.raises(BackupError, match=sentence):
                copy_moment(answer, tmp_path / "third", tmp_path / name)
            standalone.source.end(answer["id"])
            assert not (tmp_path / "third").exists()

    run(tmp_path, scenario)


def test_each_flipped_bit_of_the_manifest_is_found(backup: Path) -> None:
    text = (backup / MANIFEST).read_bytes()
    for at in range(len(text) * 8):
        data = bytearray(text)
        data[at // 8] ^= 1 << at % 8
        (backup / MANIFEST).write_bytes(data)
        with pytest.raises(BackupError, match=r"backup\.json is damaged"):
            read_manifest(backup)


@pytest.mark.parametrize("text", ["", "[]", "5", "{}"])
def test_a_manifest_of_another_form_is_found(backup: Path, text: str) -> None:
    (backup / MANIFEST).write_text(text)
    with pytest.raises(BackupError, match=r"backup\.json is damaged"):
        read_manifest(backup)


@pytest.mark.parametrize("part", [LOGS, METADATA])
def test_a_flipped_bit_is_named(backup: Path, part: str) -> None:
    file = backup / part
    if file.is_dir():
        [file] = file.iterdir()
    content = file.read_bytes()
    named = 0
    for at in range(0, len(content), 97):
        data = bytearray(content)
        data[at] ^= 1 << at % 8
        file.write_bytes(data)
        findings = verify(backup, Progress()).findings
        assert findings, at
        assert all(each.file == file and str(file) in each.sentence for each in findings)
        named += findings[0].entry_id >= 0
    if part == LOGS:
        assert named > 50, "most bytes are those of entries"
        assert NAME in findings[0].sentence or named
    file.write_bytes(content)
    assert verify(backup, Progress()).findings == []


def test_a_damaged_entry_is_named_with_its_ledger_and_topic(backup: Path) -> None:
    [file] = (backup / LOGS).iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(b"x" * 100)] ^= 1
    file.write_bytes(data)
    [finding] = verify(backup, Progress()).findings
    assert (finding.ledger_id, finding.entry_id) == (0, 0)
    assert f"entry 0 of ledger 0 ({NAME})" in finding.sentence
    with pytest.raises(BackupError, match=f"{file} is damaged"):
        restore(backup, backup.parent / "restored", Progress())
    assert not (backup.parent / "restored").exists()


def test_damage_from_before_the_backup_is_found(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        await standalone.ledger(10, 1000)
        await standalone.node.flush()
        [file] = standalone.layout.ledgers.glob("*.log")
        data = bytearray(file.read_bytes())
        data[data.index(b"x" * 100)] ^= 1
        file.write_bytes(data)
        await standalone.back_up(tmp_path / "backup")
        [finding] = verify(tmp_path / "backup", Progress()).findings
        assert "since before the backup was created" in finding.sentence

    run(tmp_path, scenario)


def test_a_missing_file_is_named(backup: Path) -> None:
    [file] = (backup / LOGS).iterdir()
    file.unlink()
    [finding] = verify(backup, Progress()).findings
    assert finding.sentence == f"{file} is missing"


def test_a_missing_entry_log_of_the_broker_is_not_left_out(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        await standalone.ledger()
        answer = await standalone.source.begin()
        [file] = standalone.layout.ledgers.glob("*.log")
        file.unlink()
        with pytest.raises(BackupError, match=f"The entry log {file} is missing"):
            copy_moment(answer, tmp_path / "backup")

    run(tmp_path, scenario)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes, offset: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario(standalone: Standalone) -> None:
        await standalone.ledger()
        answer = await standalone.source.begin()
        monkeypatch.setattr(creation, "write_fully", full)
        with pytest.raises(BackupError, match=r"The disk is full: .*\.log cannot be written"):
            copy_moment(answer, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()

    run(tmp_path, scenario)


def test_a_killed_creation_is_named(backup: Path) -> None:
    (backup / MANIFEST).unlink()
    with pytest.raises(BackupError, match="is not a complete backup"):
        verify(backup, Progress())
    with pytest.raises(BackupError, match="contains an incomplete backup"):
        creation.check_target(backup)
    (backup.parent / "other").mkdir()
    (backup.parent / "other" / "file").touch()
    with pytest.raises(BackupError, match="is not empty"):
        creation.check_target(backup.parent / "other")


# --- restores ---------------------------------------------------------------------------------


def test_what_is_written_after_a_restore_survives_a_kill(backup: Path, tmp_path: Path) -> None:
    data = tmp_path / "restored"
    restore(backup, data, Progress())
    assert listed_logs(data / "bookie" / "ledgers") == entry_log_ids(data / "bookie" / "ledgers")
    storage = restored_storage(data)
    header = (7).to_bytes(8, "big") + bytes(8) + bytes(20)
    storage.add(header, b"data")
    storage.commit()
    until_durable(storage)
    storage.close(flush=False)
    storage = restored_storage(data)
    assert storage.last_entry(7) == 0
    assert storage.last_entry(0) == 19
    storage.close()


def until_durable(storage: _native.Storage) -> None:
    while not storage.durable_sequence:
        time.sleep(0.001)


def test_numbers_and_deletions_continue_after_a_restore(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        store = standalone.store
        await store.put("/numbers/n-", b"", sequential=True)
        number = await store.put("/numbers/n-", b"", sequential=True)
        await store.delete(number.path)
        ledger = await standalone.ledger()
        await standalone.node.client.delete(ledger.ledger_id)
        created = await standalone.back_up(tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "restored", Progress())
        restored = EmbeddedStore(tmp_path / "restored" / "metadata")
        await restored.open()
        assert restored.findings == []
        assert await restored.mark() > created.manifest.transaction
        again = await restored.put("/numbers/n-", b"", sequential=True)
        assert again.path > number.path
        assert await restored.was_deleted([paths.ledger(ledger.ledger_id)]) == [True]
        cookie = await restored.get(paths.cookie(BOOKIE_ID))
        version = tmp_path / "restored" / "bookie" / "current" / "VERSION"
        assert cookie is not None and cookie.value == version.read_bytes()
        await restored.close()
        assert maintenance.check(tmp_path / "restored" / "metadata") == []

    run(tmp_path, scenario)


def test_a_directory_with_files_is_no_target_of_a_restore(backup: Path) -> None:
    with pytest.raises(BackupError, match="is not an empty directory"):
        restore(backup, backup, Progress())


def test_metadata_with_a_gap_is_not_backed_up(tmp_path: Path) -> None:
    async def scenario(standalone: Standalone) -> None:
        await standalone.ledger()
        answer = await standalone.source.begin()
        for file in standalone.layout.copies.iterdir():  # type: ignore[union-attr]
            file.unlink()
        with pytest.raises(BackupError, match="The metadata cannot be backed up"):
            copy_moment(answer, tmp_path / "backup")
        with pytest.raises(MetadataError, match="incomplete"):
            maintenance.export(standalone.layout.copies, 1, tmp_path / "x")  # type: ignore

    run(tmp_path, scenario)


def test_a_broker_of_a_cluster_refuses() -> None:
    request: Any = SimpleNamespace(app=SimpleNamespace(broker=SimpleNamespace(backup=None)))
    with pytest.raises(HttpError, match="one of a cluster and has no data of its own"):
        asyncio.run(backup_resource.begin(request))

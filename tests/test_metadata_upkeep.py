"""What the thread of the embedded store does besides operations: its failures cost nobody else."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from metadata_backends import coroutine_test
from one_bookie import until
from pyxbroker.metadata import copies, upkeep
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.embedded_tree import Tree
from pyxbroker.metadata.store import MetadataError, Unavailable
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
    assert [each for each in caplog.records if "what was written of a copy" in each.getMessage()]
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
    assert [each for each in caplog.records if "cannot be looked at" in each.getMessage()]
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

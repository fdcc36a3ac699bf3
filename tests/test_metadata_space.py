"""The embedded metadata store on a full disk: a write that found no space gets a second chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.metadata import database
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.embedded_tree import Operation, Tree
from pyxbroker.metadata.store import NoSpace


class FullDisk:
    """Refuses transactions until there is space."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        transact = Tree.transact

        def refuse(tree: Tree, batch: list[Operation]) -> tuple[list[Any], list[Any]]:
            if self.is_full:
                return [NoSpace("the disk is full") for _ in batch], []
            return transact(tree, batch)

        monkeypatch.setattr(Tree, "transact", refuse)


@coroutine_test
async def test_a_write_that_found_no_space_is_tried_again_when_some_was_made(
    tmp_path: Path,
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = FullDisk(monkeypatch)
        asked: list[bool] = []
        store = EmbeddedStore(tmp_path / "m")
        await store.open()

        def make_space() -> bool:
            asked.append(True)
            disk.is_full = False
            return True

        store.on_no_space = make_space
        disk.is_full = True
        await store.put("/a", b"1")
        assert asked == [True]
        assert store.refused is None
        found = await store.get("/a")
        assert found is not None and (found.value, found.version) == (b"1", 0)
        await store.close()


@coroutine_test
async def test_a_write_fails_when_no_space_could_be_made(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = FullDisk(monkeypatch)
        store = EmbeddedStore(tmp_path / "m")
        await store.open()
        store.on_no_space = lambda: False
        disk.is_full = True
        with pytest.raises(NoSpace):
            await store.put("/a", b"1")
        assert store.refused is not None
        assert str(store.refused[1]) == "the disk is full"
        disk.is_full = False
        assert await store.get("/a") is None
        await store.put("/a", b"2")
        await store.close()


@coroutine_test
async def test_the_log_of_the_next_session_has_the_blocks_of_the_reserve(tmp_path: Path) -> None:
    path = tmp_path / "m" / "metadata.db"
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    await store.put("/a", b"0")
    await store.close()
    reserved = database.reserve_of(path).stat()
    assert reserved.st_blocks > 0 and not database.log_of(path).exists()
    store = EmbeddedStore(tmp_path / "m")
    await store.open()
    assert database.log_of(path).stat().st_ino == reserved.st_ino
    assert not database.reserve_of(path).exists()
    found = await store.get("/a")
    assert found is not None and found.value == b"0"
    await store.close()

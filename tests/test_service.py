"""A standalone broker as a whole: what ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.broker.service import ProducerNames, start_standalone
from pyxbroker.config import Config
from pyxbroker.metadata.embedded_tree import Tree
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataError, Unavailable


def test_a_metadata_store_that_cannot_go_on_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tree: Tree, *arguments: object) -> None:
        raise ZeroDivisionError("broken")

    async def main() -> None:
        config = Config(bindAddress="127.0.0.1", brokerServicePort=0, webServicePort=None)
        service = await start_standalone(config, tmp_path)
        assert not service._failed.done()
        with monkeypatch.context() as patch:
            patch.setattr(Tree, "get", broken)
            patch.setattr(Tree, "_undo_since", broken)
            with pytest.raises(MetadataError):
                await asyncio.wait_for(service.metadata.get("/"), 10)
        reason = await asyncio.wait_for(service.wait_failed(), 10)
        assert "the metadata store failed" in reason
        assert "broken" in reason
        await asyncio.wait_for(service.stop(), 10)

    asyncio.run(main())


def test_producers_get_names_when_a_store_that_was_away_is_back() -> None:
    async def main() -> None:
        store = MemoryStore("producer-names")
        await store.open()
        put = store.put

        def refuse(*_: Any, **__: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(Unavailable("the store is away"))
            return future

        store.put = refuse  # type: ignore[method-assign]
        names = ProducerNames("c", store)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await names.next()
        store.put = put  # type: ignore[method-assign]
        found = [await names.next() for _ in range(3)]
        number = found[0].split("-")[1]
        assert found == [f"c-{number}-{n}" for n in range(3)]
        await names.close()
        await store.close()

    asyncio.run(main())

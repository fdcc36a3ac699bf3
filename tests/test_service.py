"""A standalone broker as a whole: what ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyxbroker.broker.service import start_standalone
from pyxbroker.config import Config
from pyxbroker.metadata.embedded_tree import Tree
from pyxbroker.metadata.store import MetadataError


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

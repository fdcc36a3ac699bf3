"""The three kinds of metadata store for tests, and a way to write a test as a coroutine."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyxbroker.metadata.routed import Route, RoutedStore
from pyxbroker.metadata.store import MetadataStore, open_store
from zookeeper_server import ZooKeeperServer

_numbers = itertools.count()


def coroutine_test(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test on an event loop of its own; pytest sees the same fixtures."""

    @functools.wraps(function)
    def run(*arguments: Any, **fixtures: Any) -> None:
        async def limited() -> None:
            await asyncio.wait_for(function(*arguments, **fixtures), 60)

        asyncio.run(limited())

    return run


def routes(store: MetadataStore) -> list[Route]:
    """Return routes that lead some nodes of the tests elsewhere in the same store."""
    elsewhere = [Route(path, store, f"/there{path}") for path in ("/a", "/n", "/e", "/x", "/seq")]
    return [Route("", store, ""), *elsewhere]


class Backend:
    """Makes stores on one tree: a name in memory, the same with routes, a directory, or a chroot of
    a ZooKeeper.
    """

    def __init__(self, kind: str, directory: Path, server: ZooKeeperServer | None = None) -> None:
        self.kind = kind
        self.directory = directory
        self.server = server
        self._name = f"test-{next(_numbers)}"

    @property
    def url(self) -> str:
        if self.kind in ("memory", "routed"):
            return f"memory:{self._name}"
        if self.kind == "embedded":
            return "embedded:metadata"
        assert self.server is not None
        return f"zk:{self.server.address}/{self._name}"

    @asynccontextmanager
    async def store(self, **options: Any) -> AsyncIterator[MetadataStore]:
        store = open_store(self.url, data_directory=self.directory, **options)
        if self.kind == "routed":
            store = RoutedStore(store, routes(store))
        await store.open()
        try:
            yield store
        finally:
            await store.close()

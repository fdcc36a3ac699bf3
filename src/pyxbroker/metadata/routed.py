"""One metadata store whose subtrees are in several others.

bookkeeperMetadataServiceUri and configurationMetadataStoreUrl may name other places of ZooKeeper
for the metadata of the bookies, and for that which clusters share.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    GetResult,
    MetadataError,
    MetadataStore,
    Notification,
    NotificationCallback,
    Put,
    PutResult,
    SessionCallback,
    Unsubscribe,
    check_puts,
)


class Route(NamedTuple):
    """The nodes from `path` on are those from `there` on in another store; "" is the root."""

    path: str
    store: MetadataStore
    there: str

    def to(self, path: str) -> str:
        """Return the path of a node in the other store, which refuses an invalid one."""
        if not path.startswith("/"):
            return path
        return f"{self.there}{path[len(self.path) :] if path != '/' else ''}" or "/"

    def back(self, path: str) -> str:
        """Return the path of a node of the other store here."""
        return f"{self.path}{path[len(self.there) :]}" or "/"


class RoutedStore(MetadataStore):
    """Several stores as one. The route with the longest path that is above a node counts; one has
    the path "". Only writes within one store are atomic.

    Session events are those of `main`.
    """

    def __init__(self, main: MetadataStore, routes: Sequence[Route]) -> None:
        super().__init__()
        self._main = main
        self._routes = sorted(routes, key=lambda route: len(route.path), reverse=True)
        self._stores = list(dict.fromkeys([main, *(route.store for route in routes)]))
        self.operation_timeout_s = main.operation_timeout_s

    def _route(self, path: str) -> Route:
        found = (each for each in self._routes if _is_at_or_below(path, each.path))
        return next(found, self._routes[-1])

    async def open(self) -> None:
        try:
            for each in self._stores:
                await each.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for each in self._stores:
            await each.close()

    def get(self, path: str) -> asyncio.Future[GetResult | None]:
        route = self._route(path)
        return route.store.get(route.to(path))

    def _issue_put(
        self, path: str, value: bytes, expected: int | None, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        route = self._route(path)
        put = route.store.put(route.to(path), value, expected, ephemeral=ephemeral)
        return asyncio.ensure_future(_named_here(route, put))

    def _issue_sequential(
        self, path: str, value: bytes, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        route = self._route(path)
        put = route.store.put(route.to(path), value, ephemeral=ephemeral, sequential=True)
        return asyncio.ensure_future(_named_here(route, put))

    def put_all(self, puts: Sequence[Put]) -> asyncio.Future[list[PutResult]]:
        check_puts(puts)
        return asyncio.ensure_future(self._put_all(list(puts)))

    async def _put_all(self, puts: list[Put]) -> list[PutResult]:
        """Write the puts store by store, in reverse: what names a node is written after it. Nodes
        that were created are deleted again if a later store refuses.
        """
        groups: dict[MetadataStore, list[Put]] = {}
        for put in puts:
            groups.setdefault(self._route(put.path).store, []).append(put)
        found: dict[str, PutResult] = {}
        for store, group in reversed(groups.items()):
            by_path = {self._route(put.path).to(put.path): put for put in group}
            there = [put._replace(path=path) for path, put in by_path.items()]
            try:
                results = await store.put_all(there)
            except MetadataError as error:
                refused = by_path.get(error.path)
                error.path = "" if refused is None else refused.path
                await self._take_back([put for put in puts if put.path in found])
                raise
            found |= {
                put.path: result._replace(path=put.path)
                for put, result in zip(group, results, strict=True)
            }
        return [found[put.path] for put in puts]

    async def _take_back(self, puts: list[Put]) -> None:
        for put in puts:
            if put.expected_version == MUST_NOT_EXIST:
                with contextlib.suppress(MetadataError):
                    await self.delete(put.path)

    def delete(self, path: str, expected_version: int | None = None) -> asyncio.Future[None]:
        route = self._route(path)
        return route.store.delete(route.to(path), expected_version)

    def children(self, path: str) -> asyncio.Future[list[str]]:
        route = self._route(path)
        return route.store.children(route.to(path))

    def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
        route = self._route(path)
        return route.store.exists(route.to(path), watch=watch)

    def watch(
        self,
        callback: NotificationCallback,
        *,
        prefix: str = "/",
        lists_down_to: int | None = None,
        above: bool = False,
    ) -> Unsubscribe:
        unsubscribe = [
            route.store.watch(
                _Translated(self, route, callback),
                prefix=there,
                # Elsewhere the paths may have more or fewer slashes.
                lists_down_to=lists_down_to if route.path == route.there else None,
                above=above,
            )
            for route, there in self._watched(prefix)
        ]

        def end() -> None:
            for each in unsubscribe:
                each()

        return end

    def _watched(self, prefix: str) -> Iterator[tuple[Route, str]]:
        """Yield the routes with nodes below a prefix, with the prefix in their store."""
        root = prefix.rstrip("/")
        here = self._route(root or "/")
        yield here, here.to(prefix)
        for route in self._routes:
            if route is not here and _is_at_or_below(route.path, root):
                yield route, route.there or "/"

    def is_of(self, path: str, route: Route) -> bool:
        """Return True if a node is where the route leads."""
        return self._route(path) is route

    def on_session(self, callback: SessionCallback) -> Unsubscribe:
        return self._main.on_session(callback)


class _Translated:
    """A callback that gets the paths as they are here."""

    def __init__(self, store: RoutedStore, route: Route, callback: NotificationCallback) -> None:
        self._store = store
        self._route = route
        self._callback = callback

    def __call__(self, notification: Notification) -> None:
        if not _is_at_or_below(notification.path, self._route.there):
            return
        path = self._route.back(notification.path)
        if self._store.is_of(path, self._route):
            self._callback(notification._replace(path=path))


def _is_at_or_below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


async def _named_here(route: Route, put: asyncio.Future[PutResult]) -> PutResult:
    result = await put
    return result._replace(path=route.back(result.path))

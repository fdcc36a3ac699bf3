"""A metadata store in memory, for tests and simulation: ZooKeeper's rules, no disk, no threads.

`memory:NAME` is one tree per name for the life of the process, so several brokers can share it, and
a broker can be restarted on it. Each store opened on it is one session. `memory:` without a name is
a private tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pyxbroker.base.clock import wall_s
from pyxbroker.metadata.store import (
    ANY_VERSION,
    GetResult,
    InvalidPath,
    MetadataError,
    MetadataStore,
    NoChildrenForEphemerals,
    NotEmpty,
    NotFound,
    Notification,
    NotificationKind,
    Put,
    PutResult,
    SessionEvent,
    StoreClosed,
    check_expected,
    check_path,
    check_puts,
    parent_of,
    resolve,
)


class _Node:
    __slots__ = (
        *("children", "created_ms", "modified_ms", "next_sequence", "owner", "value", "version"),
    )

    def __init__(self, value: bytes, owner: MemoryStore | None, now_ms: int) -> None:
        self.value = value
        self.version = 0
        self.owner = owner
        self.created_ms = self.modified_ms = now_ms
        self.next_sequence = 0
        self.children: set[str] = set()


class _Tree:
    """The nodes that all stores of one name share, and those stores."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {"/": _Node(b"", None, 0)}
        self.stores: list[MemoryStore] = []


_trees: dict[str, _Tree] = {}


class MemoryStore(MetadataStore):
    """One session on a tree in memory. `clock` gives seconds since 1970."""

    def __init__(self, name: str = "", *, clock: Callable[[], float] = wall_s) -> None:
        super().__init__()
        self._tree = _trees.setdefault(name, _Tree()) if name else _Tree()
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owned: set[str] = set()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tree.stores.append(self)

    async def close(self) -> None:
        if self._loop is None:
            return
        self._drop_ephemerals()
        self._tree.stores.remove(self)
        self._loop = None

    def expire_session(self) -> None:
        """End this session like a ZooKeeper that lost the client, and begin a new one."""
        self._drop_ephemerals()
        self._later(self._notify_session, SessionEvent.SESSION_LOST)
        self._later(self._notify_session, SessionEvent.SESSION_REESTABLISHED)

    def get(self, path: str) -> asyncio.Future[GetResult | None]:
        return self._apply(check_path, self._get, path)

    def _issue_put(
        self, path: str, value: bytes, expected: int | None, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        return self._apply(check_path, self._put, path, value, expected, ephemeral)

    def _issue_sequential(
        self, path: str, value: bytes, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        return self._apply(check_path, self._put_sequential, path, value, ephemeral)

    def put_all(self, puts: Sequence[Put]) -> asyncio.Future[list[PutResult]]:
        return self._apply(check_puts, self._put_all, tuple(puts))

    def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> asyncio.Future[None]:
        return self._apply(check_path, self._delete, path, expected_version)

    def children(self, path: str) -> asyncio.Future[list[str]]:
        return self._apply(check_path, self._children, path)

    def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
        return self._apply(check_path, self._exists, path)

    def _apply(
        self, check: Callable[[Any], None], operation: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Apply an operation immediately; its future resolves in the next loop iteration."""
        loop = self._loop
        if loop is None:
            raise StoreClosed("the metadata store is closed")
        future: asyncio.Future[Any] = loop.create_future()
        result: object
        try:
            check(arguments[0])
            result = operation(*arguments)
        except MetadataError as error:
            result = error
        self._later(resolve, future, result)
        return future

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            self._loop.call_soon(call, *arguments)

    def _get(self, path: str) -> GetResult | None:
        node = self._tree.nodes.get(path)
        if node is None:
            return None
        return GetResult(
            *(node.value, node.version, node.owner is not None),
            *(node.created_ms, node.modified_ms, node.owner is self),
        )

    def _exists(self, path: str) -> bool:
        return path in self._tree.nodes

    def _children(self, path: str) -> list[str]:
        node = self._tree.nodes.get(path)
        return sorted(node.children) if node else []

    def _put(self, path: str, value: bytes, expected: int | None, ephemeral: bool) -> PutResult:
        node = self._tree.nodes.get(path)
        check_expected(path, None if node is None else node.version, expected)
        if node is None:
            return self._create(path, value, ephemeral)
        node.value = bytes(value)
        node.version += 1
        node.modified_ms = self._now_ms()
        self._notify_all(NotificationKind.MODIFIED, path)
        return PutResult(path, node.version)

    def _put_all(self, puts: Sequence[Put]) -> list[PutResult]:
        for put in puts:
            node = self._tree.nodes.get(put.path)
            try:
                check_expected(
                    put.path, None if node is None else node.version, put.expected_version
                )
                self._check_parents(put.path)
            except MetadataError as error:
                error.path = put.path
                raise
        return [self._put(put.path, put.value, ANY_VERSION, False) for put in puts]

    def _put_sequential(self, path: str, value: bytes, ephemeral: bool) -> PutResult:
        parent = self._make_parents(path)
        numbered = f"{path}{parent.next_sequence:010d}"
        while numbered in self._tree.nodes:
            parent.next_sequence += 1
            numbered = f"{path}{parent.next_sequence:010d}"
        parent.next_sequence += 1
        return self._create(numbered, value, ephemeral)

    def _create(self, path: str, value: bytes, ephemeral: bool) -> PutResult:
        parent = self._make_parents(path)
        self._tree.nodes[path] = _Node(bytes(value), self if ephemeral else None, self._now_ms())
        parent.children.add(path[path.rfind("/") + 1 :])
        if ephemeral:
            self._owned.add(path)
        self._notify_all(NotificationKind.CREATED, path)
        self._notify_all(NotificationKind.CHILDREN_CHANGED, parent_of(path))
        return PutResult(path, 0)

    def _make_parents(self, path: str) -> _Node:
        self._check_parents(path)
        above = parent_of(path)
        if above not in self._tree.nodes:
            self._create(above, b"", ephemeral=False)
        return self._tree.nodes[above]

    def _check_parents(self, path: str) -> None:
        above = parent_of(path)
        while above not in self._tree.nodes:
            above = parent_of(above)
        if self._tree.nodes[above].owner is not None:
            raise NoChildrenForEphemerals(f"{above} is ephemeral and cannot have children")

    def _delete(self, path: str, expected: int | None) -> None:
        if path == "/":
            raise InvalidPath("the root of the metadata cannot be deleted")
        node = self._tree.nodes.get(path)
        if node is None:
            raise NotFound(f"{path} does not exist")
        check_expected(path, node.version, expected)
        if node.children:
            raise NotEmpty(f"{path} has children")
        self._remove(path)

    def _remove(self, path: str) -> None:
        node = self._tree.nodes.pop(path)
        above = parent_of(path)
        self._tree.nodes[above].children.discard(path[path.rfind("/") + 1 :])
        if node.owner is not None:
            node.owner._owned.discard(path)
        self._notify_all(NotificationKind.DELETED, path)
        self._notify_all(NotificationKind.CHILDREN_CHANGED, above)

    def _drop_ephemerals(self) -> None:
        for path in sorted(self._owned, reverse=True):
            self._remove(path)

    def _notify_all(self, kind: NotificationKind, path: str) -> None:
        for store in self._tree.stores:
            store._later(store._notify, Notification(kind, path))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

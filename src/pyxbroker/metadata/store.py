"""The one interface to metadata: a tree of small versioned nodes, as ZooKeeper keeps it.

A path is `/a/b/c`. Each node has a value (possibly empty), a version that starts at 0 and grows by
one with each write, and children. A node is persistent, or ephemeral: then it lives as long as the
session of the process that created it. The names and rules are those of Apache Pulsar's
MetadataStore and of ZooKeeper, so that all stores hold the same bytes under the same paths.

Every operation is *issued when it is called* and returns a future at once. The operations of one
store are applied in the order in which they were issued, so a caller may issue a chain of dependent
writes without waiting in between; it only has to look at each result in the end, because a write
that is refused does not stop the ones after it. Writes that must not be done by halves go together
as one `put_all`. The future of a write resolves when the write is durable. Futures may be
cancelled: the operation is carried out all the same.

All of this belongs to one event loop: stores are opened, used and closed on it, and every callback
runs on it.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.watchers import Watchers

ANY_VERSION = None
MUST_NOT_EXIST = -1

SESSION_TIMEOUT_MS = 30_000  # metadataStoreSessionTimeoutMillis
OPERATION_TIMEOUT_MS = 30_000  # metadataStoreOperationTimeoutSeconds
CONNECT_TIMEOUT_MS = 30_000

log = get_logger(__name__)


class MetadataError(Exception):
    """What a metadata store refuses or fails to do; clients see ServerError MetadataError.

    `path` is the path of the put that was refused, where several were issued as one.
    """

    path = ""


class BadVersion(MetadataError):
    """The node has another version than expected, or exists although it must not."""


class NotFound(MetadataError):
    """There is no node at this path."""


class NotEmpty(MetadataError):
    """The node cannot be deleted because it has children."""


class NoChildrenForEphemerals(MetadataError):
    """A node cannot be created below an ephemeral one."""


class InvalidPath(MetadataError):
    """The path is not of the form `/a/b`, or the operation makes no sense for the root."""


class Unavailable(MetadataError):
    """The store cannot be reached or its disk refuses the write: the outcome is not known."""


class NoSpace(Unavailable):
    """The disk that the store writes to is full."""


class SessionLost(Unavailable):
    """The session ended before the operation was carried out; its ephemeral nodes are gone."""


class StoreClosed(MetadataError):
    """The store was closed, or not opened yet."""


class CorruptStore(MetadataError):
    """What the store keeps on disk cannot be read; the message names the file."""


class GetResult(NamedTuple):
    """A node as it was read. Times are milliseconds since 1970."""

    value: bytes
    version: int
    ephemeral: bool
    created_ms: int
    modified_ms: int


class PutResult(NamedTuple):
    """Where a value was written (a sequential node's path ends in its number) and its version."""

    path: str
    version: int


class Put(NamedTuple):
    """One of the writes of a `put_all`: MUST_NOT_EXIST creates, n >= 0 overwrites version n."""

    path: str
    value: bytes
    expected_version: int = MUST_NOT_EXIST


class NotificationKind(enum.Enum):
    """What happened to a node; the names are Pulsar's NotificationType."""

    CREATED = "Created"
    MODIFIED = "Modified"
    DELETED = "Deleted"
    CHILDREN_CHANGED = "ChildrenChanged"


class Notification(NamedTuple):
    """A change that this process or another one made."""

    kind: NotificationKind
    path: str


class SessionEvent(enum.Enum):
    """The life of the connection to the store; the names are Pulsar's SessionEvent."""

    CONNECTION_LOST = "ConnectionLost"
    RECONNECTED = "Reconnected"
    SESSION_LOST = "SessionLost"
    SESSION_REESTABLISHED = "SessionReestablished"


NotificationCallback = Callable[[Notification], None]
SessionCallback = Callable[[SessionEvent], None]
FailureCallback = Callable[[MetadataError], None]
Unsubscribe = Callable[[], None]


class MetadataStore(ABC):
    """One metadata store. See the module's text for what every operation promises.

    Refusals come through the future of an operation, `Unavailable` when the store cannot be reached
    in time. Only `StoreClosed`, before `open()` and after `close()`, is raised by the call itself.
    """

    directory: Path | None = None
    """Where the files of an embedded store are; such a store is of one bookie alone."""
    is_shared = True
    """Whether another process may change it."""
    on_no_space: Callable[[], bool] | None = None
    """Called when the disk is full, by any thread; True when it made space: the write is tried
    again."""
    operation_timeout_s = OPERATION_TIMEOUT_MS / 1000
    """How long an operation waits for a store outside of this process before it is unavailable."""
    refused: tuple[float, Unavailable] | None = None
    """When (time.monotonic) and why the disk refused something last."""

    def __init__(self) -> None:
        self._watchers = Watchers()
        self._session_callbacks: dict[object, SessionCallback] = {}
        self._failure_callbacks: dict[object, FailureCallback] = {}

    @abstractmethod
    async def open(self) -> None:
        """Connects, or opens the files. Raises a MetadataError whose message says what to do."""

    @abstractmethod
    async def close(self) -> None:
        """Finishes what was issued where that is quick, ends the session, frees everything.

        Safe to call twice. What could not be finished fails with StoreClosed.
        """

    @abstractmethod
    def get(self, path: str) -> asyncio.Future[GetResult | None]:
        """Reads a node; None when there is none."""

    def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> asyncio.Future[PutResult]:
        """Writes a node, with the parents that are missing (persistent and empty).

        `expected_version` None creates or overwrites, MUST_NOT_EXIST (-1) only creates, n >= 0 only
        overwrites version n; otherwise BadVersion. `ephemeral` counts when the node is created; an
        existing node keeps its kind. `sequential` always creates: it appends ten digits to the path
        (or more beyond 10^10), from a counter of the parent that never gives a number twice.
        """
        if sequential:
            return self._issue_sequential(path, bytes(value), ephemeral)
        return self._issue_put(path, bytes(value), expected_version, ephemeral)

    @abstractmethod
    def _issue_put(
        self, path: str, value: bytes, expected: int | None, ephemeral: bool
    ) -> asyncio.Future[PutResult]: ...

    @abstractmethod
    def _issue_sequential(
        self, path: str, value: bytes, ephemeral: bool
    ) -> asyncio.Future[PutResult]: ...

    @abstractmethod
    def put_all(self, puts: Sequence[Put]) -> asyncio.Future[list[PutResult]]:
        """Writes several nodes, all of them or, when one is refused, none.

        The error is that of the first one that is refused, and names its path. Parents that are
        missing are made as `put` makes them, and may stay when the rest is refused. InvalidPath
        when a path comes twice or is above another one.
        """

    @abstractmethod
    def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> asyncio.Future[None]:
        """Deletes a node without children. Raises NotFound, BadVersion, NotEmpty."""

    @abstractmethod
    def children(self, path: str) -> asyncio.Future[list[str]]:
        """The names (not paths) of a node's children, sorted; empty when there is no such node."""

    @abstractmethod
    def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
        """Whether there is a node at this path. `watch`: watchers hear of its next change, also
        when it is not there; only for paths of which there are few, whatever clients ask for.
        """

    def get_all(
        self, paths: Sequence[str]
    ) -> asyncio.Future[list[GetResult | BaseException | None]]:
        """Reads several nodes as one operation, which may cost much less than one for each. An
        error stands in the place of the node that it concerns.
        """
        return asyncio.gather(*map(self.get, paths), return_exceptions=True)

    def children_all(self, paths: Sequence[str]) -> asyncio.Future[list[list[str] | BaseException]]:
        """The same of the names of nodes' children."""
        return asyncio.gather(*map(self.children, paths), return_exceptions=True)

    def was_deleted(self, paths: Sequence[str]) -> asyncio.Future[list[bool]]:
        """Whether nodes that are not there were deleted, rather than lost with damaged files.

        A store that cannot lose any by itself says that they were.
        """
        future: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        future.set_result([True] * len(paths))
        return future

    def old_deletions(self, prefix: str) -> asyncio.Future[list[str]]:
        """What `was_deleted` remembers below `prefix` of earlier processes of this store."""
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        future.set_result([])
        return future

    def forget_deletions(self, paths: Sequence[str]) -> asyncio.Future[None]:
        """Nobody will ask `was_deleted` for these any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def unknown(self) -> asyncio.Future[list[str]]:
        """The paths that `set_unknown` was told last, also by an earlier process."""
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        future.set_result([])
        return future

    def set_unknown(self, paths: Sequence[str]) -> asyncio.Future[None]:
        """Remembers the paths of what is stored although no metadata of it is known."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def watch(
        self,
        callback: NotificationCallback,
        *,
        prefix: str = "/",
        lists_down_to: int | None = None,
        above: bool = False,
    ) -> Unsubscribe:
        """Calls back for changes of the node `prefix` and of those below it, on the loop; with a
        slash at its end, only of those below; with `above` also of the nodes above that.
        `lists_down_to`: all that has to be told is ChildrenChanged, of paths with at most so many
        slashes.

        The embedded and the memory store tell every change. A ZooKeeper store tells the next change
        of each path that this process has read since it subscribed (get: the node; children:
        ChildrenChanged); reading it again asks for the next one. After a reconnection it tells
        Modified or ChildrenChanged for all such paths, since changes may have been missed. What was
        not there when it was read is not told when it comes to be, so that names that are made up
        cost nothing: as many paths are watched as nodes are there, and those of `exists` that ask
        for it.
        """
        return self._watchers.add(callback, prefix, lists_down_to, above)

    def on_session(self, callback: SessionCallback) -> Unsubscribe:
        """Calls back for each SessionEvent. Stores inside the process never send any."""
        key = object()
        self._session_callbacks[key] = callback
        return lambda: self._forget(self._session_callbacks, key)

    def on_failure(self, callback: FailureCallback) -> Unsubscribe:
        """Calls back once when the store can do nothing any more: the process has to start again.

        From then on every operation fails. Only a store inside the process ever sends it.
        """
        key = object()
        self._failure_callbacks[key] = callback
        return lambda: self._forget(self._failure_callbacks, key)

    @staticmethod
    def _forget(table: dict[Any, Any], key: object) -> None:
        table.pop(key, None)

    def _notify(self, notification: Notification) -> None:
        for each in self._watchers.of(notification.path):
            _call(each.callback, notification)

    def _notify_session(self, event: SessionEvent) -> None:
        for callback in list(self._session_callbacks.values()):
            _call(callback, event)

    def _notify_failure(self, error: MetadataError) -> None:
        for callback in list(self._failure_callbacks.values()):
            _call(callback, error)


async def followed_children(store: MetadataStore, path: str) -> list[str]:
    """The names of a node's children. Watchers of it, and of the nodes above, hear of the next
    change; when it is not there, of the next one of what could make it be: no watch is left of a
    path that is made up.
    """
    names = await store.children(path)
    if names:
        return names
    # From above, as each list that is read is watched then and tells when what is below it comes.
    above, *below = path[1:].split("/")
    at = f"/{above}"
    if not await store.exists(at, watch=True):
        return []
    for name in below:
        if name not in await store.children(at):
            return []
        at = f"{at}/{name}"
    return await store.children(path)


def _call(callback: Callable[[Any], None], argument: object) -> None:
    """One subscriber's mistake is logged and does not keep the news from the others."""
    try:
        callback(argument)
    except Exception as error:
        log.failure("a subscriber failed to handle news", error, news=argument)


def resolve(future: asyncio.Future[Any], result: object) -> None:
    """Answers a future, with an error when `result` is one, unless its caller has given it up."""
    if future.done():
        return
    if isinstance(result, MetadataError):
        # Its frames may hold the future, or the error itself: that would be a ring.
        future.set_exception(result.with_traceback(None))
    elif isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def check_path(path: str) -> None:
    """Raises InvalidPath unless the path is `/` or `/a/b/c` by ZooKeeper's rules."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise InvalidPath(f"{path!r} is not a metadata path such as /admin/clusters")
    if "/./" in path or "/../" in path or path.endswith(("/.", "/..")):
        raise InvalidPath(f"the metadata path {path!r} must not contain . or .. as a part")


def check_paths(paths: Sequence[str]) -> None:
    """Raises InvalidPath."""
    for path in paths:
        check_path(path)


def check_puts(puts: Sequence[Put]) -> None:
    """Raises InvalidPath unless the puts are of different nodes, none of them above another."""
    paths = {put.path for put in puts}
    for path in paths:
        check_path(path)
        end = len(path) if path != "/" else 0
        while end > 0:
            end = path.rfind("/", 0, end)
            above = path[:end] or "/"
            if above in paths:
                raise InvalidPath(f"{above} cannot be written together with {path} below it")
    if len(paths) < len(puts):
        raise InvalidPath("a node cannot be written twice in one go")


def check_expected(path: str, version: int | None, expected: int | None) -> None:
    """Raises BadVersion unless a node of this version (None: there is none) may be written."""
    if version is None:
        if expected is not ANY_VERSION and expected != MUST_NOT_EXIST:
            raise BadVersion(f"{path} does not exist, version {expected} was expected")
    elif expected == MUST_NOT_EXIST:
        raise BadVersion(f"{path} exists already")
    elif expected is not ANY_VERSION and expected != version:
        raise BadVersion(f"{path} has version {version}, {expected} was expected")


def parent_of(path: str) -> str:
    """The path of the node above; the root is its own parent."""
    return path[: path.rfind("/")] or "/"


def open_store(
    url: str,
    *,
    data_directory: Path | str = ".",
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    operation_timeout_ms: int = OPERATION_TIMEOUT_MS,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    copies: CopySettings | None = None,
) -> MetadataStore:
    """Makes the store that a metadata URL in one of Pulsar's forms names; `open()` is still to do.

    `embedded:PATH` and `rocksdb:PATH` are the embedded store (a path that is not absolute is below
    `data_directory`, an empty one means `metadata`), `zk:HOST:PORT[,HOST:PORT][/CHROOT]` and the
    older form without a scheme are ZooKeeper, `memory:NAME` lives in this process and is shared by
    all who open the same name. `copies` is for the embedded store alone. Raises MetadataError for
    any other form.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme in ("embedded", "rocksdb"):
        from pyxbroker.metadata.embedded import EmbeddedStore

        relative = rest.removeprefix("//") or "metadata"
        return EmbeddedStore(Path(data_directory) / relative, copies)
    if colon and scheme == "memory":
        from pyxbroker.metadata.memory import MemoryStore

        return MemoryStore(rest)
    if colon and (scheme == "zk" or rest.split(",")[0].split("/")[0].isdecimal()):
        from pyxbroker.metadata.zookeeper import ZooKeeperStore

        return ZooKeeperStore(
            rest if scheme == "zk" else url,
            session_timeout_ms=session_timeout_ms,
            operation_timeout_ms=operation_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
    raise MetadataError(
        f"unknown metadata store {url!r}; known are embedded:PATH, rocksdb:PATH (the same),"
        " zk:HOST:PORT[,HOST:PORT][/CHROOT] and memory:NAME"
    )

"""The interface to metadata: a tree of small versioned nodes, modelled on ZooKeeper.

A path is `/a/b/c`. Each node has a value (possibly empty), a version that starts at 0 and grows by
one with each write, and children. A node is persistent or ephemeral; an ephemeral node lives as
long as the session of the process that created it. The names and rules are those of Apache Pulsar's
MetadataStore and of ZooKeeper, so that all stores hold the same bytes under the same paths.

Every operation is *issued when it is called* and returns a future immediately. A store applies its
operations in the order of issue. A caller may therefore issue a chain of dependent writes without
waiting, and check each result at the end: a refused write does not stop later ones. Writes that
must be atomic are issued together as one `put_all`. The future of a write resolves when the write
is durable. Cancelling a future does not cancel the operation.

A store belongs to one event loop: it is opened, used and closed there, and every callback runs
there.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyxbroker.base.extras import require
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.watchers import Watchers

ANY_VERSION = None
MUST_NOT_EXIST = -1

SESSION_TIMEOUT_MS = 30_000  # metadataStoreSessionTimeoutMillis
OPERATION_TIMEOUT_MS = 30_000  # metadataStoreOperationTimeoutSeconds
CONNECT_TIMEOUT_MS = 30_000
ADDRESS = "the address of the metadata store"
"""The name of that setting where the caller gives none."""

log = get_logger(__name__)


class MetadataError(Exception):
    """A metadata store refused or failed an operation; clients see ServerError MetadataError.

    `path` is the path of the refused put, if several were issued as one.
    """

    path = ""


class BadVersion(MetadataError):
    """The node has an unexpected version, or exists although it must not."""


class NotFound(MetadataError):
    """No node exists at this path."""


class NotEmpty(MetadataError):
    """The node cannot be deleted because it has children."""


class NoChildrenForEphemerals(MetadataError):
    """A node cannot be created below an ephemeral one."""


class InvalidPath(MetadataError):
    """The path is not of the form `/a/b`, or the operation is not possible for the root."""


class Unavailable(MetadataError):
    """The store is unreachable, or its disk refuses the write: the outcome is unknown."""


class NoSpace(Unavailable):
    """The disk that the store writes to is full."""


class StoreClosed(MetadataError):
    """The store is closed, or not open yet."""


class CorruptStore(MetadataError):
    """The store's files are damaged; the message names the file."""


class GetResult(NamedTuple):
    """A node's value and properties. Times are milliseconds since 1970."""

    value: bytes
    version: int
    ephemeral: bool
    created_ms: int
    modified_ms: int
    is_own: bool = False
    """The node is ephemeral and belongs to this session."""


class PutResult(NamedTuple):
    """The path of a written node (with its number, if sequential) and its new version."""

    path: str
    version: int


class Put(NamedTuple):
    """One write of a `put_all`: MUST_NOT_EXIST creates, n >= 0 overwrites version n."""

    path: str
    value: bytes
    expected_version: int = MUST_NOT_EXIST


class NotificationKind(enum.Enum):
    """The kind of a change; the names are Pulsar's NotificationType."""

    CREATED = "Created"
    MODIFIED = "Modified"
    DELETED = "Deleted"
    CHILDREN_CHANGED = "ChildrenChanged"


class Notification(NamedTuple):
    """A change by this process or another one."""

    kind: NotificationKind
    path: str


class SessionEvent(enum.Enum):
    """A change of the connection to the store; the names are Pulsar's SessionEvent."""

    CONNECTION_LOST = "ConnectionLost"
    RECONNECTED = "Reconnected"
    SESSION_LOST = "SessionLost"
    SESSION_REESTABLISHED = "SessionReestablished"


NotificationCallback = Callable[[Notification], None]
SessionCallback = Callable[[SessionEvent], None]
FailureCallback = Callable[[MetadataError], None]
Unsubscribe = Callable[[], None]


class MetadataStore(ABC):
    """One metadata store. The module's docstring describes the guarantees of all operations.

    An operation fails through its future, with `Unavailable` if the store cannot be reached in
    time. Only `StoreClosed`, before `open()` and after `close()`, is raised by the call itself.
    """

    directory: Path | None = None
    """The directory of an embedded store's files; such a store serves a single bookie."""
    is_shared = True
    """True if other processes may change the store."""
    on_no_space: Callable[[], bool] | None = None
    """Called by any thread when the disk is full. It returns True if it freed space, and the write
    is retried."""
    operation_timeout_s = OPERATION_TIMEOUT_MS / 1000
    """The time after which an operation on an external store fails with Unavailable."""
    refused: tuple[float, Unavailable] | None = None
    """The time (time.monotonic) and reason of the disk's last refusal of an operation."""

    def __init__(self) -> None:
        self._watchers = Watchers()
        self._session_callbacks: dict[object, SessionCallback] = {}
        self._failure_callbacks: dict[object, FailureCallback] = {}

    @abstractmethod
    async def open(self) -> None:
        """Connect, or open the files. Raises a MetadataError whose message tells what to do."""

    @abstractmethod
    async def close(self) -> None:
        """Finish issued operations if that is quick, end the session, and release all resources.

        May be called twice. Unfinished operations fail with StoreClosed.
        """

    @abstractmethod
    def get(self, path: str) -> asyncio.Future[GetResult | None]:
        """Return a node, or None if it does not exist."""

    def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> asyncio.Future[PutResult]:
        """Write a node, and create its missing parents (persistent and empty).

        `expected_version` None creates or overwrites, MUST_NOT_EXIST (-1) only creates, n >= 0 only
        overwrites version n; otherwise BadVersion. `ephemeral` applies when the node is created; an
        existing node keeps its kind. `sequential` always creates: it appends ten digits to the path
        (more beyond 10^10), from a counter of the parent that never returns a number twice.
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
        """Write several nodes atomically.

        The error is that of the first refused put, and names its path. Missing parents are created
        as by `put`, and may remain if the puts are refused. Raises InvalidPath if a path occurs
        twice or is above another one.
        """

    @abstractmethod
    def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> asyncio.Future[None]:
        """Delete a node without children. Raises NotFound, BadVersion, NotEmpty."""

    @abstractmethod
    def children(self, path: str) -> asyncio.Future[list[str]]:
        """Return the sorted names (not paths) of a node's children; empty for a missing node."""

    @abstractmethod
    def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
        """Return True if a node exists at this path.

        `watch`: watchers are notified of its next change, including its creation. Use it only for
        few paths whose number does not depend on clients.
        """

    def get_all(
        self, paths: Sequence[str]
    ) -> asyncio.Future[list[GetResult | BaseException | None]]:
        """Read several nodes as one operation, which may cost much less than separate ones.

        The result has an error in the place of each node that failed.
        """
        return asyncio.gather(*map(self.get, paths), return_exceptions=True)

    def children_all(self, paths: Sequence[str]) -> asyncio.Future[list[list[str] | BaseException]]:
        """Return the names of the children of several nodes, as one operation."""
        return asyncio.gather(*map(self.children, paths), return_exceptions=True)

    def was_deleted(self, paths: Sequence[str]) -> asyncio.Future[list[bool]]:
        """Return which missing nodes were deleted, as opposed to lost with damaged files.

        A store that cannot lose nodes itself returns True for all.
        """
        future: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        future.set_result([True] * len(paths))
        return future

    def old_deletions(self, prefix: str) -> asyncio.Future[list[str]]:
        """Return deletions below `prefix` by earlier processes that `was_deleted` remembers."""
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        future.set_result([])
        return future

    def forget_deletions(self, paths: Sequence[str]) -> asyncio.Future[None]:
        """Forget deletions that `was_deleted` no longer has to remember."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def unknown(self) -> asyncio.Future[list[str]]:
        """Return the paths of the last `set_unknown`, also by an earlier process."""
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        future.set_result([])
        return future

    def set_unknown(self, paths: Sequence[str]) -> asyncio.Future[None]:
        """Store the paths of data that exists in the storage without known metadata."""
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
        """Call back on the loop for changes of node `prefix` and the nodes below it.

        A slash at the end of `prefix` excludes the node itself; `above` includes the nodes above
        it. `lists_down_to`: only ChildrenChanged is needed, for paths with at most that many
        slashes.

        The embedded and the memory store report every change. A ZooKeeper store reports the next
        change of each path that this process has read since it subscribed (get: the node; children:
        ChildrenChanged); reading the path again requests the next one. After a reconnection it
        reports Modified or ChildrenChanged for all such paths, since changes may have been missed.
        The creation of a node that was read while missing is not reported, unless `exists` asked
        for it. So invented names cost nothing: the number of watches is bounded by the number of
        existing nodes.
        """
        return self._watchers.add(callback, prefix, lists_down_to, above)

    def on_session(self, callback: SessionCallback) -> Unsubscribe:
        """Call back for each SessionEvent. In-process stores never send any."""
        key = object()
        self._session_callbacks[key] = callback
        return lambda: self._forget(self._session_callbacks, key)

    def on_failure(self, callback: FailureCallback) -> Unsubscribe:
        """Call back once if the store fails for good, so that the process has to be restarted.

        From then on every operation fails. Only an in-process store sends it.
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
    """Return the names of a node's children, and watch for the next change.

    Watchers of the node, and of the nodes above it, are notified of that change. If the node does
    not exist, only the nodes above that could lead to its creation are watched, so that an invented
    path leaves no watch.
    """
    names = await store.children(path)
    if names:
        return names
    # From the top down: each list that is read is watched, and reports new children.
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
    """Call one subscriber; its errors are logged, and do not affect other subscribers."""
    try:
        callback(argument)
    except Exception as error:
        log.failure("a subscriber failed to handle a notification", error, news=argument)


def resolve(future: asyncio.Future[Any], result: object) -> None:
    """Resolve a future with a result or error, unless its caller has cancelled it."""
    if future.done():
        return
    if isinstance(result, MetadataError):
        # Its frames may refer to the future or to the error itself, which would be a cycle.
        future.set_exception(result.with_traceback(None))
    elif isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def check_path(path: str) -> None:
    """Raise InvalidPath unless the path is `/` or `/a/b/c` by ZooKeeper's rules."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise InvalidPath(f"{path!r} is not a metadata path such as /admin/clusters")
    if "/./" in path or "/../" in path or path.endswith(("/.", "/..")):
        raise InvalidPath(f"the metadata path {path!r} must not contain . or .. as a part")


def check_paths(paths: Sequence[str]) -> None:
    """Raise InvalidPath if any path is invalid."""
    for path in paths:
        check_path(path)


def check_puts(puts: Sequence[Put]) -> None:
    """Raise InvalidPath unless the puts are of different nodes, none of them above another."""
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
        raise InvalidPath("a node cannot be written twice in one operation")


def check_expected(path: str, version: int | None, expected: int | None) -> None:
    """Raise BadVersion unless a node of this version (None: it is missing) may be written."""
    if version is None:
        if expected is not ANY_VERSION and expected != MUST_NOT_EXIST:
            raise BadVersion(f"{path} does not exist, version {expected} was expected")
    elif expected == MUST_NOT_EXIST:
        raise BadVersion(f"{path} exists already")
    elif expected is not ANY_VERSION and expected != version:
        raise BadVersion(f"{path} has version {version}, {expected} was expected")


def parent_of(path: str) -> str:
    """Return the path of the parent; the root is its own parent."""
    return path[: path.rfind("/")] or "/"


def open_store(
    url: str,
    *,
    data_directory: Path | str = ".",
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    operation_timeout_ms: int = OPERATION_TIMEOUT_MS,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    copies: CopySettings | None = None,
    makes_chroot: bool = True,
    setting: str = ADDRESS,
) -> MetadataStore:
    """Create the store for a metadata URL in one of Pulsar's forms; the caller then opens it.

    `embedded:PATH` and `rocksdb:PATH` are the embedded store (a relative path is below
    `data_directory`, an empty one means `metadata`). `zk:HOST:PORT[,HOST:PORT][/CHROOT]` and the
    older form without a scheme are ZooKeeper. `memory:NAME` is in this process and shared by all
    stores of that name. `copies` applies only to the embedded store. Without `makes_chroot`, a
    chroot that is missing is created by the first write. Messages say that the address comes from
    `setting`. Raises MetadataError for any other form.
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
        require(f"The metadata store {url!r}", "kazoo", error=MetadataError)
        from pyxbroker.metadata.zookeeper import ZooKeeperStore

        return ZooKeeperStore(
            rest if scheme == "zk" else url,
            session_timeout_ms=session_timeout_ms,
            operation_timeout_ms=operation_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            makes_chroot=makes_chroot,
            setting=setting,
        )
    raise MetadataError(
        f"unknown metadata store {url!r}; known are embedded:PATH, rocksdb:PATH (the same),"
        " zk:HOST:PORT[,HOST:PORT][/CHROOT] and memory:NAME"
    )

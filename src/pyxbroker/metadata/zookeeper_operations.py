"""The requests of each operation of the ZooKeeper store, and the interpretation of the answers.

Each operation is a generator of steps: it yields the requests of a step, which are sent together,
and gets their outcomes (values or exceptions). `repeated`: an earlier attempt may have succeeded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.protocol.states import ZnodeStat

from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    GetResult,
    InvalidPath,
    MetadataError,
    NoChildrenForEphemerals,
    NotEmpty,
    NotFound,
    Put,
    PutResult,
    parent_of,
)
from pyxbroker.metadata.watchers import Watchers
from pyxbroker.metadata.zookeeper_client import GatedClient, WatchedPaths

KNOWN_PARENTS_MAX = 10_000

Request = Callable[[], Any]
Steps = Generator[list[Request], list[Any], Any]


class Operations:
    """The operations on one session's connection. They raise what the store's operations raise."""

    def __init__(self, client: GatedClient, watched: WatchedPaths, watchers: Watchers) -> None:
        self._client = client
        self._watched = watched
        self._watchers = watchers
        self._known_parents: set[str] = {"/"}

    def forget_parents(self) -> None:
        """Forget known parents, which may have been deleted since."""
        self._known_parents = {"/"}

    def get(self, path: str) -> Steps:
        watch = self._watched.on_event if self._watchers.is_watched(path) else None
        (outcome,) = yield [self._request("get", path, watch=watch)]
        if isinstance(outcome, NoNodeError):
            return None
        value, stat = _checked(outcome, path)
        if watch is not None:
            self._watched.note_node(path)
        return _to_result(value, stat, self._client.session_id)

    def exists(self, path: str, is_watched: bool) -> Steps:
        # ZooKeeper watches for the creation of a node only after `exists`.
        watch = self._watched.on_event if is_watched else None
        (outcome,) = yield [self._request("exists", path, watch=watch)]
        found = _checked(outcome, path) is not None
        if watch is not None:
            self._watched.note_node(path)
        return found

    def children(self, path: str) -> Steps:
        watch = self._watched.on_event if self._watchers.is_list_watched(path) else None
        (outcome,) = yield [self._request("get_children", path, watch=watch)]
        if isinstance(outcome, NoNodeError):
            return []
        names = sorted(_checked(outcome, path))
        if watch is not None:
            self._watched.note_children(path)
        return names

    def put_new(
        self, path: str, value: bytes, ephemeral: bool, sequential: bool, repeated: bool = False
    ) -> Steps:
        create = self._request("create", path, value, ephemeral=ephemeral, sequence=sequential)
        while True:
            *parents, outcome = yield [*self._parents(path), create]
            if isinstance(outcome, NoNodeError):
                self._check_parents(parents, path)
                continue
            if isinstance(outcome, NodeExistsError):
                if repeated and (yield from self._holds(path, value, 0)):
                    return PutResult(path, 0)
                raise _refusal(outcome, path, MUST_NOT_EXIST)
            return PutResult(_checked(outcome, path), 0)

    def put_next(self, path: str, value: bytes, version: int, repeated: bool) -> Steps:
        (outcome,) = yield [self._request("set", path, value, version=version)]
        was_refused = isinstance(outcome, BadVersionError)
        if was_refused and repeated and (yield from self._holds(path, value, version + 1)):
            return PutResult(path, version + 1)
        if isinstance(outcome, BaseException):
            raise _refusal(outcome, path, version)
        return PutResult(path, outcome.version)

    def put_any(self, path: str, value: bytes, ephemeral: bool) -> Steps:
        overwrite = self._request("set", path, value)
        create = self._request("create", path, value, ephemeral=ephemeral)
        while True:
            *parents, overwritten, created = yield [*self._parents(path), overwrite, create]
            if not isinstance(overwritten, KazooException):
                return PutResult(path, overwritten.version)
            if not isinstance(created, (NodeExistsError, NoNodeError)):
                return PutResult(_checked(created, path), 0)
            # The node appeared, or its parent disappeared, between the two requests.
            self._check_parents(parents, path)

    def put_all(self, puts: Sequence[Put], repeated: bool) -> Steps:
        while True:
            above = [request for put in puts for request in self._parents(put.path)]
            *parents, outcomes = yield [*above, functools.partial(self._commit, puts)]
            refused = _first_refused(puts, _checked(outcomes, puts[0].path))
            if refused is None:
                break
            put, outcome = refused
            if isinstance(outcome, NoNodeError) and put.expected_version == MUST_NOT_EXIST:
                self._check_parents(parents, put.path)
                continue
            # They are written atomically, so checking one suffices.
            if repeated and (yield from self._holds(put.path, put.value, put.expected_version + 1)):
                break
            error = _refusal(outcome, put.path, put.expected_version)
            error.path = put.path
            raise error
        return [PutResult(put.path, put.expected_version + 1) for put in puts]

    def _commit(self, puts: Sequence[Put]) -> Any:
        """Send several writes as one request (ZooKeeper's multi)."""
        transaction = self._client.transaction()
        for put in puts:
            if put.expected_version == MUST_NOT_EXIST:
                transaction.create(put.path, put.value)
            else:
                transaction.set_data(put.path, put.value, put.expected_version)
        return transaction.commit_async()

    def delete(self, path: str, version: int, repeated: bool) -> Steps:
        if path == "/":
            raise InvalidPath("the root of the metadata cannot be deleted")
        self._known_parents.discard(path)
        (outcome,) = yield [self._request("delete", path, version=version)]
        if not (repeated and isinstance(outcome, NoNodeError)):
            _checked(outcome, path)

    def _holds(self, path: str, value: bytes, version: int) -> Steps:
        """Return True if a repeated write was refused because its first attempt succeeded."""
        (outcome,) = yield [self._request("get", path)]
        if isinstance(outcome, NoNodeError):
            return False
        found, stat = _checked(outcome, path)
        return found == value and stat.version == version

    def make_chroot(self) -> Steps:
        """Create the chroot, which every path of the store is below."""
        parts = self._client.chroot.strip("/").split("/")
        paths = ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]
        outcomes = yield [
            functools.partial(self._client.create_outside_async, each) for each in paths
        ]
        self._check_parents(outcomes, self._client.chroot)

    def _parents(self, path: str) -> list[Request]:
        """Return requests that create parents not known to exist; existing ones are refused."""
        unknown: list[str] = []
        above = parent_of(path)
        while above not in self._known_parents:
            unknown.append(above)
            above = parent_of(above)
        if len(self._known_parents) + len(unknown) > KNOWN_PARENTS_MAX:
            self._known_parents = {"/"}
        self._known_parents.update(unknown)
        return [self._request("create", each, b"") for each in reversed(unknown)]

    def _check_parents(self, outcomes: list[Any], path: str) -> None:
        """Prepare another attempt. Raises the error that prevents the creation of the parents."""
        self.forget_parents()
        for outcome in outcomes:
            if not isinstance(outcome, (NodeExistsError, NoNodeError)):
                _checked(outcome, path)

    def _request(self, name: str, path: str, *arguments: Any, **options: Any) -> Request:
        return functools.partial(
            getattr(self._client, f"{name}_async"), path, *arguments, **options
        )


def _first_refused(puts: Sequence[Put], outcomes: Sequence[Any]) -> tuple[Put, Any] | None:
    """Return the put that made ZooKeeper refuse all, and its error; None if all were written."""
    for put, outcome in zip(puts, outcomes, strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, RolledBackError):
            return put, outcome
    return None


def _refusal(outcome: BaseException, path: str, expected: int) -> MetadataError:
    """Return the error for a refused write. `expected`: the version that the node had to have."""
    if isinstance(outcome, NodeExistsError):
        return BadVersion(f"{path} exists already")
    if isinstance(outcome, NoNodeError):
        return BadVersion(f"{path} does not exist, version {expected} was expected")
    return _error(outcome, path)


def _error(outcome: BaseException, path: str) -> MetadataError:
    if isinstance(outcome, NoNodeError):
        return NotFound(f"{path} does not exist")
    if isinstance(outcome, BadVersionError):
        return BadVersion(f"{path} has another version than expected")
    if isinstance(outcome, NotEmptyError):
        return NotEmpty(f"{path} has children")
    if isinstance(outcome, NoChildrenForEphemeralsError):
        return NoChildrenForEphemerals(f"a node above {path} is ephemeral")
    error = MetadataError(f"ZooKeeper refused an operation on {path}: {outcome!r}")
    error.__cause__ = outcome
    return error


def _checked(outcome: Any, path: str) -> Any:
    """Return the value of a request. Raises the MetadataError for ZooKeeper's answer."""
    if isinstance(outcome, BaseException):
        raise _error(outcome, path)
    return outcome


def _to_result(value: bytes, stat: ZnodeStat, session_id: int) -> GetResult:
    owner = stat.ephemeralOwner
    is_own = owner != 0 and owner == session_id
    return GetResult(value, stat.version, owner != 0, stat.ctime, stat.mtime, is_own)

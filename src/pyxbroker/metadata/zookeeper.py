"""The metadata store of a cluster: Apache ZooKeeper, through kazoo.

kazoo runs a thread for the connection, which never touches this module's state. It passes answers,
fired watches and changes of the connection to the loop with call_soon_threadsafe. Everything else
in this file runs on the loop.

Order. ZooKeeper applies the requests of one connection in the order in which they are sent. An
operation that takes several requests (parents that may be missing, create-or-overwrite) therefore
sends them all without waiting: `put` without an expected version is a set followed by a create, of
which exactly one succeeds. A second step is needed only if another process interferes in between.
Only then may an operation be applied after a later one.

Connection loss. An operation whose answer was lost is sent again over the next connection, before
all later ones, until its timeout. Its first attempt may have succeeded: then the second one is
refused, and the node is read to see whether it holds exactly what was to be written. Operations
issued while ZooKeeper is away wait for it, at most `operation_timeout_ms`, and then fail with
Unavailable. Nothing else in the process waits.
"""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError

from pyxbroker.base.log import get_logger
from pyxbroker.metadata.store import (
    ADDRESS,
    ANY_VERSION,
    MUST_NOT_EXIST,
    GetResult,
    InvalidPath,
    MetadataError,
    MetadataStore,
    Put,
    PutResult,
    SessionEvent,
    StoreClosed,
    Unavailable,
    check_path,
    check_puts,
    resolve,
)
from pyxbroker.metadata.zookeeper_client import GatedClient, WatchedPaths
from pyxbroker.metadata.zookeeper_operations import Operations, Request, Steps

REQUESTS_IN_FLIGHT_MAX = 128
"""Further operations wait here, where those that time out were certainly not carried out."""
ATTEMPTS_MAX = 5
"""Limits the retries of a request that makes the server close the connection."""
CLOSE_DRAIN_S = 0.8
CLOSE_SESSION_S = 1.0
DEFAULT_PORT = 2181
PORT_MAX = 65535
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^][:/\s]+)(:(?P<port>[0-9]{1,5}))?")

_LOST = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)

log = get_logger(__name__)


class _Operation:
    """One operation of the store: its steps, and the requests of the current step."""

    __slots__ = (
        *("attempts", "deadline", "future", "make_steps", "outcomes", "remaining", "steps"),
        "written_paths",
    )

    def __init__(
        self,
        make_steps: Callable[[bool], Steps],
        written_paths: tuple[str, ...],
        future: asyncio.Future[Any],
        deadline: float,
    ) -> None:
        self.make_steps = make_steps
        self.written_paths = written_paths
        self.future = future
        self.deadline = deadline
        self.attempts = 0
        self.steps: Steps | None = None
        self.outcomes: list[Any] = []
        self.remaining = 0


class ZooKeeperStore(MetadataStore):
    """The tree of a ZooKeeper ensemble. `hosts` is `HOST:PORT[,HOST:PORT...][/CHROOT]`.

    Times are in milliseconds: ZooKeeper's timeout of a silent session, the timeout of an operation,
    and how long open() waits for the first connection. `setting` is the name that messages give to
    what `hosts` came from. Raises MetadataError for wrong hosts.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int,
        operation_timeout_ms: int,
        connect_timeout_ms: int,
        makes_chroot: bool = True,
        setting: str = ADDRESS,
    ) -> None:
        super().__init__()
        _check_hosts(hosts)
        self.hosts = hosts
        self._setting = setting
        self._makes_chroot = makes_chroot
        self._session_timeout_s = session_timeout_ms / 1000
        self.operation_timeout_s = operation_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: GatedClient | None = None
        self._connected: asyncio.Future[None] | None = None
        self._is_closing = False
        self._is_lost = False
        self._has_missed = False  # changes may have been missed without a connection
        self._lost_timer: asyncio.TimerHandle | None = None
        # In the order of issue: operations to be sent, and all unanswered ones.
        self._waiting: deque[_Operation] = deque()
        self._unanswered: dict[_Operation, None] = {}
        self._lost: list[_Operation] = []
        self._in_flight = 0
        self._paths_in_flight: set[str] = set()
        self._timeout_timer: asyncio.TimerHandle | None = None
        # Calls from kazoo's thread, and whether the loop has been woken for them.
        self._arrived: deque[Callable[[], None]] = deque()
        self._is_wake_up_due = False
        self._operations: Operations
        self._watched = WatchedPaths(self._hand_over, self._notify)

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connected = self._loop.create_future()
        self._is_closing = self._is_lost = self._is_wake_up_due = self._has_missed = False
        self._in_flight = 0
        self._paths_in_flight.clear()
        self._arrived.clear()
        client = self._client = GatedClient(self.hosts, self._session_timeout_s)
        self._operations = Operations(client, self._watched, self._watchers)
        client.add_listener(lambda state: self._hand_over(self._on_state, client, state))
        client.start_async()
        try:
            await asyncio.wait_for(self._connected, self._connect_timeout_s)
            if client.chroot and self._makes_chroot:
                await self._issue_read("/", lambda repeated: self._operations.make_chroot())
        except BaseException as error:
            await self.close()
            if isinstance(error, asyncio.TimeoutError):
                unknown = await unknown_name(self.hosts)
                raise Unavailable(
                    f"no ZooKeeper answers at {self.hosts} (waited"
                    f" {self._connect_timeout_s:g} s{unknown and f'; {unknown}'}). Start it,"
                    f" or correct {self._setting}"
                ) from None
            raise

    async def close(self) -> None:
        client, loop = self._client, self._loop
        if client is None or loop is None or self._is_closing:
            return
        self._is_closing = True
        pending = [operation.future for operation in self._unanswered]
        if pending and client.is_gate_open:
            await asyncio.wait(pending, timeout=CLOSE_DRAIN_S)
        for timer in (self._timeout_timer, self._lost_timer):
            if timer is not None:
                timer.cancel()
        for operation in list(self._unanswered):
            self._finish(operation, StoreClosed("the metadata store was closed"))
        self._waiting.clear()
        self._client = None
        self._watched.close()
        await self._end_session(loop, client)
        self._loop = None

    async def _end_session(self, loop: asyncio.AbstractEventLoop, client: GatedClient) -> None:
        """End the session without waiting long, as kazoo may do for a server that is gone."""
        ended: asyncio.Future[None] = loop.create_future()

        def stop() -> None:
            try:
                client.stop()
                client.close()
            finally:
                self._hand_over(resolve, ended, None)

        threading.Thread(target=stop, name="zookeeper-stop", daemon=True).start()
        done, _ = await asyncio.wait([ended], timeout=CLOSE_SESSION_S)
        if not done:
            log.warning(
                "ZooKeeper did not confirm the end of the session, which will expire there",
                hosts=self.hosts,
                within_s=self._session_timeout_s,
            )

    # The operations; zookeeper_operations.py has the requests of each.

    def get(self, path: str) -> asyncio.Future[GetResult | None]:
        return self._issue_read(path, lambda repeated: self._operations.get(path))

    def _issue_put(
        self, path: str, value: bytes, expected: int | None, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        if expected is ANY_VERSION:
            return self._issue_write(
                path, lambda repeated: self._operations.put_any(path, value, ephemeral)
            )
        if expected == MUST_NOT_EXIST:
            return self._issue_write(
                path,
                lambda repeated: self._operations.put_new(path, value, ephemeral, False, repeated),
            )
        return self._issue_write(
            path, lambda repeated: self._operations.put_next(path, value, expected, repeated)
        )

    def _issue_sequential(
        self, path: str, value: bytes, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        return self._issue_read(
            path, lambda repeated: self._operations.put_new(path, value, ephemeral, True)
        )

    def put_all(self, puts: Sequence[Put]) -> asyncio.Future[list[PutResult]]:
        puts = tuple(puts)
        return self._issue(
            check_puts,
            puts,
            tuple(put.path for put in puts),
            lambda repeated: self._operations.put_all(puts, repeated),
        )

    def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> asyncio.Future[None]:
        version = -1 if expected_version is ANY_VERSION else expected_version
        return self._issue_write(
            path, lambda repeated: self._operations.delete(path, version, repeated)
        )

    def children(self, path: str) -> asyncio.Future[list[str]]:
        return self._issue_read(path, lambda repeated: self._operations.children(path))

    def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
        return self._issue_read(path, lambda repeated: self._operations.exists(path, watch))

    # Sending and answering.

    def _issue_read(self, path: str, make_steps: Callable[[bool], Steps]) -> asyncio.Future[Any]:
        """Issue an operation that may be repeated: a read, or creating a sequential node."""
        return self._issue(check_path, path, (), make_steps)

    def _issue_write(self, path: str, make_steps: Callable[[bool], Steps]) -> asyncio.Future[Any]:
        return self._issue(check_path, path, (path,), make_steps)

    def _issue(
        self,
        check: Callable[[Any], None],
        what: str | tuple[Put, ...],
        written_paths: tuple[str, ...],
        make_steps: Callable[[bool], Steps],
    ) -> asyncio.Future[Any]:
        if self._client is None or self._loop is None or self._is_closing:
            raise StoreClosed("the metadata store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        try:
            check(what)
        except InvalidPath as error:
            future.set_exception(error)
            return future
        deadline = self._loop.time() + self.operation_timeout_s
        operation = _Operation(make_steps, written_paths, future, deadline)
        self._unanswered[operation] = None
        self._waiting.append(operation)
        if self._timeout_timer is None:
            self._timeout_timer = self._loop.call_at(deadline, self._on_timeout)
        self._pump()
        return future

    def _pump(self) -> None:
        """Send queued operations in order, as far as the connection allows.

        Two writes of one node are never in flight together: if both answers were lost, the node
        would show only the second write, and the outcome of the first would be unknown.
        """
        while self._waiting and self._in_flight < REQUESTS_IN_FLIGHT_MAX:
            client = self._client
            if client is None or not client.is_gate_open:
                return
            if not self._paths_in_flight.isdisjoint(self._waiting[0].written_paths):
                return
            operation = self._waiting.popleft()
            if operation in self._unanswered:
                self._paths_in_flight.update(operation.written_paths)
                operation.steps = operation.make_steps(operation.attempts > 0)
                operation.attempts += 1
                self._advance(operation, None)

    def _advance(self, operation: _Operation, outcomes: list[Any] | None) -> None:
        """Advance an operation to its next step, or to its end."""
        assert operation.steps is not None, "an operation must begin before it is advanced"
        try:
            requests = operation.steps.send(outcomes)  # type: ignore[arg-type]
        except StopIteration as end:
            self._finish(operation, end.value)
        except MetadataError as error:
            self._finish(operation, error)
        else:
            self._send(operation, requests)
            return
        self._leave_path(operation)

    def _leave_path(self, operation: _Operation) -> None:
        """Release the paths of an operation without requests in flight."""
        self._paths_in_flight.difference_update(operation.written_paths)

    def _send(self, operation: _Operation, requests: list[Request]) -> None:
        client = self._client
        if client is None:
            return
        operation.outcomes = [None] * len(requests)
        operation.remaining = len(requests)
        with client.gate:
            if not client.is_gate_open:
                self._leave_path(operation)
                self._lost.append(operation)
                return
            self._in_flight += len(requests)
            answers = [request() for request in requests]
        for index, answer in enumerate(answers):
            answer.rawlink(functools.partial(self._on_answer, client, operation, index))

    def _on_answer(
        self, client: GatedClient, operation: _Operation, index: int, answer: Any
    ) -> None:
        """Pass an answer to the loop; called on kazoo's thread."""
        outcome = answer.value if answer.successful() else answer.exception
        self._hand_over(self._on_outcome, client, operation, index, outcome)

    def _on_outcome(
        self, client: GatedClient, operation: _Operation, index: int, outcome: Any
    ) -> None:
        if client is not self._client:
            return  # The store was closed meanwhile, and all operations were answered.
        self._in_flight -= 1
        operation.outcomes[index] = outcome
        operation.remaining -= 1
        if operation.remaining == 0:
            if operation not in self._unanswered:
                self._leave_path(operation)
            elif any(isinstance(each, _LOST) for each in operation.outcomes):
                self._on_operation_lost(operation)
            else:
                self._advance(operation, operation.outcomes)
        self._resume()

    def _on_operation_lost(self, operation: _Operation) -> None:
        self._leave_path(operation)
        if operation.attempts < ATTEMPTS_MAX:
            self._lost.append(operation)
            return
        error = Unavailable(
            f"the connection to ZooKeeper at {self.hosts} broke {ATTEMPTS_MAX} times during this"
            " operation; whether it was carried out is not known"
        )
        self._finish(operation, error)

    def _resume(self) -> None:
        """Continue after a connection loss: once all lost operations are known, send them first."""
        client = self._client
        if client is None:
            return
        if not client.is_gate_open and self._in_flight == 0 and client.open_gate():
            order = {operation: index for index, operation in enumerate(self._unanswered)}
            lost = sorted((each for each in self._lost if each in order), key=order.__getitem__)
            self._lost = []
            self._operations.forget_parents()
            self._waiting.extendleft(reversed(lost))
        if self._has_missed and client.is_gate_open:
            # By now the answers of the lost connection have been processed.
            self._has_missed = False
            self._watched.notify_all()
        self._pump()

    def _finish(self, operation: _Operation, result: object) -> None:
        self._unanswered.pop(operation, None)
        resolve(operation.future, result)

    def _on_timeout(self) -> None:
        """Fail operations that have waited too long; the oldest ones come first in the dict."""
        loop = self._loop
        if loop is None:
            return
        self._timeout_timer = None
        now = loop.time()
        for operation in list(self._unanswered):
            if operation.deadline > now:
                self._timeout_timer = loop.call_at(operation.deadline, self._on_timeout)
                return
            sent = "whether it was carried out is not known" if operation.attempts else "not sent"
            error = Unavailable(
                f"ZooKeeper at {self.hosts} did not answer within"
                f" {self.operation_timeout_s:g} s ({sent})"
            )
            self._finish(operation, error)

    # Calls from kazoo's thread.

    def _hand_over(self, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call on the loop, with one wake-up for all pending calls. Thread-safe."""
        self._arrived.append(functools.partial(call, *arguments))
        if self._is_wake_up_due:
            return
        self._is_wake_up_due = True
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._on_arrived)

    def _on_arrived(self) -> None:
        self._is_wake_up_due = False
        while self._arrived:
            # An error in one call must not prevent the other calls.
            try:
                self._arrived.popleft()()
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "handling an event of ZooKeeper failed", "exception": error}
                )

    def _on_state(self, client: GatedClient, state: str) -> None:
        loop = self._loop
        if loop is None or client is not self._client:
            return
        if state == KazooState.CONNECTED:
            self._on_connected()
        elif state == KazooState.SUSPENDED:
            log.warning("the connection to ZooKeeper is lost", hosts=self.hosts)
            self._notify_session(SessionEvent.CONNECTION_LOST)
            # A client cannot learn that its session has expired while the server is away. Like
            # Pulsar's ZKSessionWatcher, assume it after 5/6 of the session's timeout.
            patience_s = self._session_timeout_s * 5 / 6
            self._lost_timer = loop.call_later(patience_s, self._on_session_lost)
        else:
            self._on_session_lost()

    def _on_connected(self) -> None:
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(None)
        else:
            log.warning("connected to ZooKeeper again", hosts=self.hosts)
            self._notify_session(SessionEvent.RECONNECTED)
            if self._is_lost:
                self._is_lost = False
                self._notify_session(SessionEvent.SESSION_REESTABLISHED)
            self._has_missed = True
        self._resume()

    def _on_session_lost(self) -> None:
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None
        if not self._is_lost:
            self._is_lost = True
            log.warning("the session with ZooKeeper is lost", hosts=self.hosts)
            self._notify_session(SessionEvent.SESSION_LOST)


async def unknown_name(hosts: str) -> str:
    """Return a sentence about a host whose name cannot be resolved; empty if all names can be."""
    loop = asyncio.get_running_loop()
    for each in hosts.partition("/")[0].split(","):
        found = _HOST.fullmatch(each.strip())
        name = "" if found is None else found[1].strip("[]")
        try:
            await loop.getaddrinfo(name, None)
        except OSError as error:
            return f"the host name {name} cannot be resolved: {error.strerror}"
    return ""


def _check_hosts(hosts: str) -> None:
    """Raise MetadataError for an address of ZooKeeper that is not HOST[:PORT][,HOST[:PORT]]."""
    for each in hosts.partition("/")[0].split(","):
        found = _HOST.fullmatch(each.strip())
        if found is None or not 0 < int(found["port"] or DEFAULT_PORT) <= PORT_MAX:
            whole = "" if each == hosts else f" in {hosts!r}"
            raise MetadataError(
                f"{each!r}{whole} is no address of ZooKeeper: expected"
                " zk:HOST:PORT[,HOST:PORT][/CHROOT],"
                f" with ports of 1 to {PORT_MAX} and IPv6 addresses in brackets"
            )

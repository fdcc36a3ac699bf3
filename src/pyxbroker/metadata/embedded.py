"""The metadata store of a single process: SQLite in a directory of its own.

Files in the directory (docs/metadata.md explains the choice of SQLite, with figures):

  metadata.db       table `node`, one row per persistent node; table `sequence`, one row per parent
                    that numbers children; table `deleted`, deleted nodes. Every row has the number
                    of the transaction that wrote it, and a CRC-32 of its contents.
  metadata.db-wal   SQLite's write-ahead log: 32-byte header, then frames of one 24-byte header and
                    one page each, all big-endian, chained by checksums.
  metadata.reserve  the blocks of that log while the store is closed.

A sibling directory named `.copies` holds copies and change logs: a second record of all contents,
from which the database is repaired (metadata/copies.py).

One private thread owns the database. It runs all queued operations as one transaction, so
operations that arrive while a commit is synced share the next commit, without a timer. A refused
operation (BadVersion, ...) writes nothing and fails alone. A commit is one fdatasync of the
write-ahead log (synchronous=FULL), followed by a write to the change log. Then the results go to
the event loop, in one callback per transaction. Maintenance runs when no operation is queued
(metadata/upkeep.py).

Ephemeral nodes live as long as the process, so they are never written to disk. The same thread
stores them in a dict, under the same transactions.

After a power cut SQLite removes an incomplete last transaction. Damage must not be mistaken for
that, since acknowledged data would be lost silently. metadata/opening.py tells them apart.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.database import explain
from pyxbroker.metadata.embedded_files import COMMITS_PER_CHECKPOINT_MAX
from pyxbroker.metadata.embedded_tree import Operation, Tree, copy_of
from pyxbroker.metadata.findings import Finding
from pyxbroker.metadata.store import (
    ANY_VERSION,
    GetResult,
    InvalidPath,
    MetadataError,
    MetadataStore,
    NoSpace,
    Notification,
    Put,
    PutResult,
    StoreClosed,
    Unavailable,
    check_path,
    check_paths,
    check_puts,
    resolve,
)
from pyxbroker.metadata.upkeep import OVERDUE_S, Upkeep

DATABASE_NAME = "metadata.db"
OPERATIONS_PER_COMMIT_MAX = 1024
BYTES_PER_COMMIT = 1 << 20  # of values; the last one may exceed it
NOTIFICATIONS_PER_STEP_MAX = 256  # in one loop iteration; some 2 us each

log = get_logger(__name__)


class Answered(NamedTuple):
    """A completed transaction."""

    batch: list[Operation]
    results: list[object]  # of the operations
    notifications: list[Notification]

    def resolve(self) -> None:
        for operation, result in zip(self.batch, self.results, strict=True):
            resolve(operation.future, result)


class EmbeddedStore(MetadataStore):
    """The tree in `directory`, which is created if missing. Only one process may open it."""

    is_shared = False

    def __init__(self, directory: Path, copies: CopySettings | None = None) -> None:
        super().__init__()
        self.directory: Path = directory
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._tree = Tree(directory / DATABASE_NAME)
        self._mark = self._tree.mark  # one object, with which the operation is recognized
        self._upkeep = Upkeep(self._tree, copies or CopySettings())
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._answered: deque[Answered] = deque()  # not empty while delivery is incremental
        self._delivering: asyncio.Task[None] | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._ended = loop.create_future()
        self._queue = SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(loop, opened, self._ended), name="metadata", daemon=True
        )
        self._thread.start()
        try:
            await opened
        except BaseException:
            self._queue.put(None)
            await self._join()
            raise
        self._loop = loop

    async def close(self) -> None:
        if self._loop is not None:
            self._loop = None
            self._queue.put(None)
        await self._join()

    async def _join(self) -> None:
        """Wait for the thread to end, which the None in its queue requests, and for the delivery
        of all its results.
        """
        if self._ended is not None and self._thread is not None:
            try:
                await asyncio.shield(self._ended)
            finally:
                self._thread.join()
                if self._delivering is not None:
                    await asyncio.shield(self._delivering)

    def get(self, path: str) -> asyncio.Future[GetResult | None]:
        return self._issue(check_path, self._tree.get, path)

    def _issue_put(
        self, path: str, value: bytes, expected: int | None, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        return self._issue(check_path, self._tree.put, path, value, expected, ephemeral)

    def _issue_sequential(
        self, path: str, value: bytes, ephemeral: bool
    ) -> asyncio.Future[PutResult]:
        return self._issue(check_path, self._tree.put_sequential, path, value, ephemeral)

    def put_all(self, puts: Sequence[Put]) -> asyncio.Future[list[PutResult]]:
        return self._issue(check_puts, self._tree.put_all, tuple(puts))

    def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> asyncio.Future[None]:
        return self._issue(check_path, self._tree.delete, path, expected_version)

    def children(self, path: str) -> asyncio.Future[list[str]]:
        return self._issue(check_path, self._tree.children, path)

    def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
        return self._issue(check_path, self._tree.exists, path)

    def get_all(
        self, paths: Sequence[str]
    ) -> asyncio.Future[list[GetResult | BaseException | None]]:
        return self._issue(check_paths, self._tree.get_all, tuple(paths))

    def children_all(self, paths: Sequence[str]) -> asyncio.Future[list[list[str] | BaseException]]:
        return self._issue(check_paths, self._tree.children_all, tuple(paths))

    def was_deleted(self, paths: Sequence[str]) -> asyncio.Future[list[bool]]:
        return self._issue(_no_check, self._tree.was_deleted, tuple(paths))

    def old_deletions(self, prefix: str) -> asyncio.Future[list[str]]:
        return self._issue(_no_check, self._tree.old_deletions, prefix)

    def forget_deletions(self, paths: Sequence[str]) -> asyncio.Future[None]:
        return self._issue(_no_check, self._tree.forget_deletions_of, tuple(paths))

    def unknown(self) -> asyncio.Future[list[str]]:
        return self._issue(_no_check, lambda _: self._tree.unknown(), None)

    def set_unknown(self, paths: Sequence[str]) -> asyncio.Future[None]:
        return self._issue(_no_check, self._tree.set_unknown, tuple(paths))

    def mark(self) -> asyncio.Future[int]:
        """Return the number of a transaction: it and the earlier ones are exactly the operations
        that were issued before this call.
        """
        return self._issue(_no_check, self._mark, None)

    def has_change_log(self) -> asyncio.Future[bool]:
        """Return True if the change log has every transaction that was answered."""
        return self._issue(_no_check, lambda _: self._tree.log is not None, None)

    @property
    def findings(self) -> list[Finding]:
        """Damage found since the store was opened, and the action taken for each."""
        return list(self._tree.findings)

    async def make_copy(self) -> Path:
        """Make a copy in the folder of copies and return its path. Raises MetadataError."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Path] = loop.create_future()

        def report(result: Path | MetadataError) -> None:
            loop.call_soon_threadsafe(resolve, made, result)

        await self._issue(_no_check, self._upkeep.request_copy, report)
        return await made

    def _issue(
        self, check: Callable[[Any], None], apply: Callable[..., object], *arguments: Any
    ) -> Any:
        """Hand an operation to the thread; `check` validates its first argument."""
        loop = self._loop
        if loop is None:
            raise StoreClosed("the metadata store is closed")
        future: asyncio.Future[Any] = loop.create_future()
        try:
            check(arguments[0])
        except InvalidPath as error:
            future.set_exception(error)
            return future
        self._queue.put(Operation(apply, arguments, future))
        return future

    # Methods of the thread.

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        opened: asyncio.Future[None],
        ended: asyncio.Future[None],
    ) -> None:
        failure: MetadataError | None = None
        try:
            self._tree.open()
            try:
                self._upkeep.start()
                loop.call_soon_threadsafe(resolve, opened, None)
                self._serve(loop)
                self._upkeep.stop()
            finally:
                self._tree.close()
        except Exception as error:
            failure = explain(self._tree.path, error)
            loop.call_soon_threadsafe(resolve, opened, failure)
        finally:
            loop.call_soon_threadsafe(resolve, ended, failure)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Apply operations in batches, until close() queues None.

        Each operation is answered, even after an internal error.
        """
        is_open = True
        is_failure_reported = False
        while is_open:
            batch: list[Operation] = []
            notifications: list[Notification] = []
            try:
                batch, is_open = self._collect()
                results, notifications = self._apply(batch)
            except Exception as error:
                log.failure("the metadata store has failed and refuses all operations", error)
                failure = self._tree.failure = explain(self._tree.path, error)
                results = [copy_of(failure) for _ in batch]
            if batch:
                answered = Answered(batch, results, notifications)
                loop.call_soon_threadsafe(self._deliver, answered)
            if self._tree.failure is not None and not is_failure_reported:
                is_failure_reported = True
                loop.call_soon_threadsafe(self._notify_failure, self._tree.failure)

    def _apply(self, batch: list[Operation]) -> tuple[list[object], list[Notification]]:
        if not batch:
            return [], []
        results, notifications = self._tree.transact(batch)
        if isinstance(results[0], NoSpace) and self.on_no_space and self.on_no_space():
            results, notifications = self._tree.transact(batch)
        if isinstance(results[0], Unavailable):
            self.refused = (time.monotonic(), results[0])
        if self._tree.has_changed:
            self._upkeep.on_commit()
        return results, notifications

    def _collect(self) -> tuple[list[Operation], bool]:
        """Wait for an operation and return all that are queued; False if the store is closing."""
        operation = self._next()
        batch: list[Operation] = []
        size = 0
        while operation is not None:
            batch.append(operation)
            size += sum(len(each) for each in operation.arguments if isinstance(each, bytes))
            if len(batch) == OPERATIONS_PER_COMMIT_MAX or size >= BYTES_PER_COMMIT:
                return batch, True
            if operation.apply is self._mark:
                return batch, True
            try:
                operation = self._queue.get_nowait()
            except Empty:
                return batch, True
        return batch, False

    def _next(self) -> Operation | None:
        """Return the next operation. Maintenance runs while the queue is empty, or if overdue."""
        if self._tree.failure is not None:
            return self._queue.get()
        if self._tree.commits_in_log >= COMMITS_PER_CHECKPOINT_MAX:
            self._tree.checkpoint()
        while True:
            due = self._upkeep.due
            if due is None:
                return self._queue.get()
            delay_s = due - time.monotonic()
            if delay_s < -OVERDUE_S:
                self._upkeep.run()
            try:
                return self._queue.get(timeout=max(delay_s, 0))
            except Empty:
                self._upkeep.run()

    # Methods of the event loop.

    def _deliver(self, answered: Answered) -> None:
        """Deliver a transaction's notifications, then its results, so that callers that resume
        find the notifications delivered.

        A transaction may have changed a hundred thousand nodes, so delivery may be incremental.
        """
        if self._delivering is None and len(answered.notifications) <= NOTIFICATIONS_PER_STEP_MAX:
            for notification in answered.notifications:
                self._notify(notification)
            answered.resolve()
            return
        self._answered.append(answered)
        if self._delivering is None:
            self._delivering = asyncio.ensure_future(self._deliver_in_steps())

    async def _deliver_in_steps(self) -> None:
        """Deliver this transaction, and those that complete meanwhile, in order.

        One batch is delivered in each loop iteration. It does not share the slices for long work
        (base/slices.py), since all callers of the metadata store wait for it.
        """
        while self._answered:
            answered = self._answered.popleft()
            for number, notification in enumerate(answered.notifications, 1):
                self._notify(notification)
                if number % NOTIFICATIONS_PER_STEP_MAX == 0:
                    await asyncio.sleep(0)
            answered.resolve()
            await asyncio.sleep(0)
        self._delivering = None


def _no_check(argument: object) -> None:
    """Accept an argument that is not a caller's path."""

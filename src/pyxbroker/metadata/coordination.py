"""Coordination through the metadata store: locks bound to a session, and unique numbers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from pyxbroker.base.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    MetadataError,
    MetadataStore,
    NotFound,
    PutResult,
    SessionEvent,
    Unavailable,
    Unsubscribe,
    resolve,
)

REVALIDATE_DELAY_S = 1.0
IDS_AHEAD_MIN = 4
IDS_AHEAD_MAX = 32
IDS_PER_FETCH_MAX = 256

log = get_logger(__name__)


class LockBusy(MetadataError):
    """Another process holds the lock; the message names the path."""


class ResourceLock:
    """An ephemeral node that is held from acquire() to release(), across sessions.

    It is created again after a new session began or after it was deleted. If another process has
    taken the path by then, the lock is lost for good and `on_lost` is called once. Mirrors Pulsar's
    ResourceLock.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        value: bytes,
        on_lost: Callable[[], None] | None = None,
        is_ours: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.path = path
        self.value = value
        self.is_held = False
        self._store = store
        self._on_lost = on_lost
        self._is_ours = is_ours or (lambda value: value == self.value)
        self._version = 0
        self._unsubscribe: Unsubscribe | None = None
        self._revalidation: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def acquire(self) -> None:
        """Create the node. Raises LockBusy if another process holds it.

        A node with our value, or one that `is_ours` accepts, belongs to an earlier session of ours:
        the process was killed and restarted before that session ended. It is replaced by a node of
        this session.
        """
        self._unsubscribe = self._store.on_session(self._on_session_event)
        try:
            async with self._turn:
                await self._create()
        except BaseException:
            self._unsubscribe()
            self._unsubscribe = None
            raise
        self.is_held = True

    async def update(self, value: bytes) -> None:
        """Replace the value that other processes read, also for later sessions."""
        async with self._turn:
            self.value = value
            if self.is_held:
                self._version = (await self._store.put(self.path, value, self._version)).version

    def recreate(self) -> None:
        """Create the node again after it was deleted."""
        self._on_session_event(SessionEvent.SESSION_REESTABLISHED)

    async def release(self) -> None:
        """Delete the node. Raises Unavailable on failure; then the node ends with the session."""
        self.is_held = False
        if self._unsubscribe is None:
            return
        self._unsubscribe()
        self._unsubscribe = None
        if self._revalidation is not None:
            self._revalidation.cancel()
        async with self._turn:
            try:
                await self._store.delete(self.path, self._version)
            except (NotFound, BadVersion):
                log.info("a lock was no longer ours when it was released", path=self.path)

    async def _create(self) -> None:
        try:
            result = await self._store.put(self.path, self.value, MUST_NOT_EXIST, ephemeral=True)
        except BadVersion:
            found = await self._store.get(self.path)
            if found is not None and not self._is_ours(found.value):
                raise LockBusy(f"{self.path} is held by {found.value!r}") from None
            if found is not None and found.is_own and found.value == self.value:
                # Replacing it would report its deletion, which asks for a new node once more.
                self._version = found.version
                return
            result = await self._replace(0 if found is None else found.version)
        self._version = result.version

    async def _replace(self, version: int) -> PutResult:
        """Delete the node of an earlier session, unless that has just expired, and create ours."""
        # Issued together, so that a process that recreates its node comes too late.
        deleting = self._store.delete(self.path, version)
        creating = self._store.put(self.path, self.value, MUST_NOT_EXIST, ephemeral=True)
        await asyncio.gather(deleting, creating, return_exceptions=True)
        with contextlib.suppress(NotFound):
            deleting.result()
        return creating.result()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_REESTABLISHED and self.is_held:
            if self._revalidation is not None:
                self._revalidation.cancel()
            self._revalidation = asyncio.ensure_future(self._revalidate())

    async def _revalidate(self) -> None:
        while self.is_held:
            try:
                async with self._turn:
                    await self._create()
                return
            except Unavailable as error:
                log.warning(
                    "a lock of this process cannot be recreated yet, retrying",
                    path=self.path,
                    error=error,
                )
                await asyncio.sleep(REVALIDATE_DELAY_S)
            except MetadataError as error:
                log.warning(
                    "this process has lost a lock in the metadata store",
                    path=self.path,
                    error=error,
                )
                self._lose()

    def _lose(self) -> None:
        self.is_held = False
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._on_lost is not None:
            self._on_lost()


async def next_counter_value(store: MetadataStore, path: str) -> int:
    """Return a number that no other process gets: that of a sequential child, deleted again.

    Mirrors Pulsar's CoordinationService.getNextCounterValue, with the same nodes (`<path>/-<n>`).
    """
    prefix = f"{path}/-"
    created = await store.put(prefix, b"", ephemeral=True, sequential=True)
    _discard(store, created.path)
    return int(created.path[len(prefix) :])


async def pass_counter_value(store: MetadataStore, path: str, value: int) -> None:
    """Advance a counter of `next_counter_value`, so that its later numbers exceed `value`."""
    while await next_counter_value(store, path) < value:
        pass


class LedgerIdGenerator:
    """Allocates ledger ids like BookKeeper: numbers below /ledgers/idgen, then idgen-long.

    Ids are fetched ahead in batches, so that creating a ledger need not wait for the store. Ids
    that are unused when the process ends are lost: ids only have to be unique.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._ahead: deque[int] = deque()
        self._fetching: asyncio.Task[None] | None = None
        # Waiting callers in FIFO order; each is woken once.
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._is_long = False

    def prefetch(self) -> None:
        """Start fetching the next ids; without this the first next_id() does."""
        if self._fetching is None and len(self._ahead) < IDS_AHEAD_MIN:
            count = min(IDS_AHEAD_MAX - len(self._ahead) + len(self._waiting), IDS_PER_FETCH_MAX)
            self._fetching = asyncio.ensure_future(self._fetch(count))
            self._fetching.add_done_callback(self._on_fetched)

    @staticmethod
    def _on_fetched(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Waiting callers got the error; later callers start another attempt.
            log.debug("no ledger ids could be fetched", error=error)

    async def next_id(self) -> int:
        """Return a ledger id that is unique in the cluster. Raises a MetadataError."""
        if self._ahead:
            ledger_id = self._ahead.popleft()
            self.prefetch()
            return ledger_id
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self.prefetch()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give_back(place.result())
            raise

    async def pass_id(self, ledger_id: int) -> None:
        """Advance the generator, so that later ids, also those of other processes, exceed an id.

        A store numbers nodes one by one, so that each id up to that one costs a node.
        """
        if ledger_id > paths.SHORT_LEDGER_ID_MAX:
            await self._numbers(paths.long_ledger_id_prefix((ledger_id >> 32) + 1), 1)
            return
        count = 1
        while ids := await self._fetch_short(count):
            missing = ledger_id - max(ids)
            if missing <= 0:
                return
            count = min(missing, IDS_PER_FETCH_MAX)

    def give_back(self, ledger_id: int) -> None:
        """Return an unused id."""
        self._ahead.appendleft(ledger_id)
        self._assign()

    def _assign(self) -> None:
        """Assign available ids to waiting callers."""
        while self._ahead and self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # the caller may have been cancelled
                place.set_result(self._ahead.popleft())

    def _fail_waiting(self, error: Exception) -> None:
        """Fail all waiting callers."""
        while self._waiting:
            resolve(self._waiting.popleft(), error)

    async def close(self) -> None:
        """Stop fetching ids."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
            self._fetching = None
        while self._waiting:
            self._waiting.popleft().cancel()
        self._ahead.clear()

    async def _fetch(self, count: int) -> None:
        try:
            ledger_ids = [] if self._is_long else await self._fetch_short(count)
            if not ledger_ids:
                self._is_long = True
                ledger_ids = await self._fetch_long(count)
            self._ahead.extend(ledger_ids)
        except Exception as error:
            self._fail_waiting(error)
            raise
        finally:
            self._fetching = None
        if self._waiting:
            self._assign()
            self.prefetch()

    async def _fetch_short(self, count: int) -> list[int]:
        """Return short ids; empty once the cluster has used them up and idgen-long exists."""
        if await self._store.exists(paths.LONG_LEDGER_IDS):
            return []
        return await self._numbers(paths.LEDGER_ID_PREFIX, count)

    async def _fetch_long(self, count: int) -> list[int]:
        """Return long ids: the highest HOB-<n> is the high half; a full one has a successor."""
        names = await self._store.children(paths.LONG_LEDGER_IDS)
        high = max(filter(None, map(_high_of, names)), default=1)
        while not (numbers := await self._numbers(paths.long_ledger_id_prefix(high), count)):
            high += 1
        return [high << 32 | number for number in numbers]

    async def _numbers(self, prefix: str, count: int) -> list[int]:
        """Return numbers of sequential nodes, without those above 31 bits."""
        created = await asyncio.gather(
            *(self._store.put(prefix, b"", ephemeral=True, sequential=True) for _ in range(count))
        )
        for each in created:
            _discard(self._store, each.path)
        numbers = (int(each.path[len(prefix) :]) for each in created)
        return [number for number in numbers if 0 <= number <= paths.SHORT_LEDGER_ID_MAX]


def _high_of(name: str) -> int | None:
    """Return the high half of ids that a child of idgen-long stands for, or None if invalid."""
    found = paths.HIGH_OF_LONG_IDS.fullmatch(name)
    if found is not None and int(found[1]) <= paths.HIGH_OF_LONG_IDS_MAX:
        return int(found[1])
    log.warning("ignoring a node that counts no ledger ids", path=paths.LONG_LEDGER_IDS, name=name)
    return None


def _discard(store: MetadataStore, path: str) -> None:
    """Delete a sequential node after its number was taken; it would end with the session anyway."""

    def note(future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is not None:
            log.debug("a node remains until its session ends", path=path, error=future.exception())

    store.delete(path).add_done_callback(note)

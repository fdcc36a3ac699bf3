"""A cursor: the durable acknowledgements of one subscription of a managed ledger.

The state is in a metadata node per cursor and in a cursor ledger, whose last entries have the
newest state (ManagedCursorImpl, cursor_ledger.py). The state of a new cursor, and of one that was
closed cleanly, is in the node alone (cursorsLedgerId -1). The first write after that begins a
cursor ledger. The node changes to a new cursor ledger only once the state in it is durable, so a
crash at any moment leaves one of the two valid.

Acknowledgements are written lazily: at most mark_delete_per_s times a second, and at most
position_held_s after they arrived. persist() returns a future that resolves once they are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyxbroker.ackset import AckSet
from pyxbroker.base.clock import wall_s
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import paced
from pyxbroker.entry import AckRun, Position
from pyxbroker.ledger.errors import JournalFailed, LedgerError, NotEnoughBookies
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    MetadataError,
    NotFound,
    Unavailable,
)
from pyxbroker.mledger import positions
from pyxbroker.mledger.cursor_ledger import CursorLedger, recover_position
from pyxbroker.mledger.errors import ManagedLedgerError

if TYPE_CHECKING:
    from pyxbroker.base.pacing import StepQueue
    from pyxbroker.mledger.managed_ledger import ManagedLedger

log = get_logger("pyxbroker.mledger")

NO_LEDGER = -1
NODE_BYTES_MAX = 256 << 10
"""Larger batch acknowledgements are not stored in the cursor's node."""


class CursorError(Exception):
    """The state of a cursor could not be written."""


class CursorClosed(CursorError):
    """The managed ledger is closed, and its next owner has the cursor."""


class CursorDeleted(CursorError):
    """The cursor is deleted or being deleted."""


class Cursor:
    """The acknowledgements of one reader. durable=False lives in memory only (readers)."""

    # Entries after this position are retained if it is before the mark: the state that covers the
    # entries up to the mark is not durable yet.
    kept_after: Position | None = None
    _node_is_old = False  # it has former properties of the subscription
    _node_may_be_gone = False  # it was deleted with an unknown outcome
    _is_deleted = False  # or being deleted
    _deletion: asyncio.Future[None] | None = None  # resolves when the current deletion has ended

    def __init__(
        self, managed_ledger: ManagedLedger, name: str, mark_delete: Position, durable: bool = True
    ) -> None:
        self.managed_ledger = managed_ledger
        self.name = name
        self.durable = durable
        self.acks = AckSet(*mark_delete, tracked=durable)
        self.properties: dict[str, str] = {}  # of the subscription
        self.position_properties: dict[str, int] = {}
        self.last_active_ms = int(wall_s() * 1000)  # time of the last use
        self._ledger_since_s = wall_s()  # when its current ledger was begun
        self.version = MUST_NOT_EXIST
        self.node_hash = 0  # of the node's value
        self.ledger_id = NO_LEDGER  # in the node
        self._noted_active_ms = 0  # last_active_ms in the node
        self.closed = False
        self.failure: CursorError | None = None
        self._is_store_away = False  # store or bookies did not take the last write
        self._ledger: CursorLedger | None = None  # being written
        self._dirty = False
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._creating: asyncio.Future[None] | None = None

    # --- acknowledging ------------------------------------------------------------------------

    def acknowledge(self, run: AckRun) -> int:
        """Acknowledge single entries, and single messages of batches; unknown positions are
        ignored. Returns the number of entries and batches that changed.
        """
        if self.closed:
            return 0
        before = self.acks.mark_ledger_id
        changed: int = self.acks.add_run(run, self.managed_ledger.last_entry)
        if changed:
            self._acknowledged(before)
        return changed

    def acknowledge_positions(self, positions: Iterable[tuple[int, int]]) -> int:
        """Acknowledge (ledger_id, entry_id) pairs."""
        return self.acknowledge(AckRun.of(positions))

    def acknowledge_up_to(self, position: tuple[int, int], ack_set: Sequence[int] = ()) -> int:
        """Acknowledge cumulatively. Returns the number of newly acknowledged entries, which is 0
        for a position before the mark or beyond the last entry.

        With an ack set (words, bit 1: not acknowledged) the entry itself is not acknowledged, only
        those messages of its batch that the set excludes.
        """
        mark = self.acks.mark_delete
        if self.closed or position <= mark or position > self.managed_ledger.last_confirmed:
            return 0
        ledger_id, entry_id = position
        last = self.managed_ledger.last_entry(ledger_id)
        if last is None or entry_id > last:
            return 0
        # In the mark's ledger, and without acknowledgements after it, entry ids suffice to count.
        is_plain = ledger_id == mark.ledger_id and self.acks.holes == 0
        before = -mark.entry_id if is_plain else self.backlog
        if ack_set:
            # For the first entry of a ledger, this acknowledges all earlier ledgers.
            if (ledger_id, entry_id - 1) > mark:
                self.acks.mark_delete_to(ledger_id, entry_id - 1)
            self.acks.acknowledge_batch(ledger_id, entry_id, ack_set)
        else:
            self.acks.mark_delete_to(ledger_id, entry_id)
        acked: int = before + self.acks.mark_entry_id if is_plain else before - self.backlog
        self._acknowledged(mark.ledger_id)
        return acked

    def _acknowledged(self, before: int) -> None:
        """Update the cursor; `before` is the ledger that the mark was in."""
        after = self.managed_ledger.ledger_after
        self.acks.advance(after)
        if self.acks.has_passed_batches:
            self._drop_passed(self.acks)
        if not self.durable:
            return
        self._dirty = True
        mark = self.acks.mark_delete
        if mark.ledger_id != before or after(*mark) is not None:
            # The mark has passed a ledger, or has reached the end of a closed one.
            self.managed_ledger.trim()
        self._schedule_write()

    def _drop_passed(self, acks: AckSet) -> None:
        """Release the batches that the mark has passed, in steps of one loop iteration each."""
        if not acks.drop_passed():
            asyncio.get_running_loop().call_soon(self._drop_passed, acks)

    def _drop_batches(self, acks: AckSet) -> None:
        """Release all batches of a set that the cursor no longer uses, in the same steps."""
        if not acks.drop_batches():
            asyncio.get_running_loop().call_soon(self._drop_batches, acks)

    @property
    def last_entry_id(self) -> int:
        """The last entry of the current cursor ledger; -1: there is no such ledger."""
        return -1 if self._ledger is None else self._ledger.last_entry_id

    @property
    def ledger_since_s(self) -> float:
        """The time in s since 1970 when the cursor ledger was begun, or the cursor opened."""
        return self._ledger_since_s

    @property
    def backlog(self) -> int:
        """The number of unacknowledged entries."""
        between = self.managed_ledger.entries_between(
            self.acks.mark_delete, self.managed_ledger.last_confirmed
        )
        return between - int(self.acks.holes)

    def reset(self, mark_delete: Position, ack_set: Sequence[int] = ()) -> None:
        """Move the cursor (seek): everything after mark_delete becomes unacknowledged, except for
        the messages that an ack set excludes from the batch that follows.

        Raises CursorClosed, CursorDeleted.
        """
        if self.closed:
            raise self._refusal()
        former, self.acks = self.acks, AckSet(*mark_delete, tracked=self.durable)
        self._drop_batches(former)
        if ack_set:
            following = self.managed_ledger.normalize(
                self.managed_ledger.next_position(mark_delete)
            )
            if following is not None:
                self.acks.acknowledge_batch(*following, ack_set)
        if self.durable:
            self._dirty = True

    @property
    def needs_after(self) -> Position:
        """The position after which entries are retained for this cursor."""
        return self.acks.mark_delete if self.kept_after is None else self.kept_after

    def put_state(self, mark: Position, properties: dict[str, int]) -> None:
        """Store numbers with the position. They represent all entries up to the mark."""
        self.position_properties = properties
        if not self.acknowledge_up_to(mark):
            self._note_change()
            self._schedule_write()

    def put_property(self, key: str, value: int) -> asyncio.Future[None]:
        """Store a number with the position; the future resolves when it is durable."""
        self.position_properties[key] = value
        self._note_change()
        return self.persist()

    def drop_property(self, key: str) -> asyncio.Future[None]:
        """Remove a number; the future resolves when that is durable."""
        self.position_properties.pop(key, None)
        self._note_change()
        return self.persist()

    def set_properties(self, properties: dict[str, str]) -> asyncio.Future[None]:
        """Replace the subscription's properties; the future resolves when they are durable."""
        self.properties = properties
        self._node_is_old = self.durable
        self._note_change()
        return self.persist()

    def _note_change(self) -> None:
        if not self.closed:
            self._dirty = self.durable

    # --- writing the state --------------------------------------------------------------------

    def fail_writes(self, error: Exception) -> None:
        """Stop writing after a journal failure. Acknowledgements stay in memory, and go to the
        node when the cursor is closed.
        """
        if self.failure is None:
            self.failure = CursorError(f"the position of {self.name} is in memory only: {error}")
        self._stop_timer()

    def _schedule_write(self) -> None:
        if self.managed_ledger.write_failure is not None:
            self._check_writable()
        is_idle = self._timer is None and self._writer is None
        if is_idle and self.failure is None and not self.closed:
            limits = self.managed_ledger.limits
            rate = limits.mark_delete_per_s
            delay = min(1.0 / rate, limits.position_held_s) if rate > 0 else 0.0
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def on_limits(self) -> None:
        """Apply a changed rate of writes."""
        if self._timer is not None:
            self._stop_timer()
            self._schedule_write()

    def _on_timer(self) -> None:
        # Thousands of cursors may be due together, so they are paced.
        queue = self.managed_ledger.cursor_queue
        queue.run(partial(self._on_turn, queue))

    def _on_turn(self, queue: StepQueue) -> None:
        """Write, unless the timer was stopped meanwhile."""
        if self._timer is not None:
            self._stop_timer()
            if self._has_to_write and not self.closed:
                self._start_writer(queue)

    @property
    def _has_to_write(self) -> bool:
        return self._dirty or (self._ledger is not None and self._ledger.wants_whole)

    def persist(self) -> asyncio.Future[None]:
        """Return a future that resolves when all acknowledgements until now are durable.

        It fails once the cursor is closed or deleted, since another cursor may own the node then.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._check_writable()
        if self.failure is not None:
            future.set_exception(self.failure)
        elif self.closed:
            future.set_exception(self._refusal())
        elif not self.durable or (not self._dirty and self._writer is None):
            future.set_result(None)
        else:
            self._dirty = True
            self._waiters.append(future)
            self._start_writer()
        return future

    def _refusal(self) -> CursorError:
        """Return the reason why the cursor is no longer written."""
        if self._is_deleted:
            return CursorDeleted(f"Subscription {self.name} was deleted meanwhile.")
        return self._closed_error()

    def _closed_error(self) -> CursorClosed:
        return CursorClosed(
            f"The topic of subscription {self.name} was closed meanwhile, or is being closed; try"
            " again."
        )

    def _check_writable(self) -> None:
        """Apply a journal failure that happened before the cursor was created."""
        if self.durable and self.managed_ledger.write_failure is not None:
            self.fail_writes(self.managed_ledger.write_failure)

    def _start_writer(self, queue: StepQueue | None = None) -> None:
        """Start the writer task; `queue` is the queue in which its steps are paced."""
        if self._writer is None:
            writing = self._write_all()
            self._writer = asyncio.get_running_loop().create_task(
                writing if queue is None else paced(writing, queue)
            )
            self._writer.add_done_callback(self._on_writer_done)

    def _on_writer_done(self, task: asyncio.Task[None]) -> None:
        self._writer = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_write_failed(error)
        elif self._waiters:
            # They arrived after the writer's last check and before it ended.
            self._start_writer()
        elif self._has_to_write and not self.closed:
            self._schedule_write()

    def _on_write_failed(self, error: BaseException) -> None:
        self._dirty = True
        if isinstance(error, JournalFailed):
            # The broker logs this once. The managed ledger fails with all its cursors.
            self.managed_ledger.fail_writes(error)
            self.fail_writes(error)
        elif isinstance(error, CursorClosed):
            # The failure of the managed ledger is logged elsewhere.
            self.failure = error
        elif not isinstance(error, (CursorError, LedgerError, MetadataError, ManagedLedgerError)):
            # The last written position is valid after the topic is loaded again.
            failed = self.managed_ledger.on_defect("a cursor cannot be written", error)
            self.failure = self._write_error(failed)
        elif not isinstance(error, (Unavailable, NotEnoughBookies)):
            self._log_failure(error)
            self.failure = self._write_error(error)
        else:
            if not self._is_store_away:
                # Logged once: writes are retried at the usual rate.
                self._is_store_away = True
                self._log_failure(error)
            if not self.closed:
                # Store or bookies may return; then the write includes later acknowledgements.
                self._schedule_write()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self.failure or self._write_error(error))

    def _write_error(self, error: BaseException) -> CursorError:
        # The store's message may name files, which only the log should contain.
        why = "the metadata store cannot take it" if isinstance(error, MetadataError) else error
        return CursorError(f"the position of {self.name} could not be written: {why}")

    def _log_failure(self, error: BaseException) -> None:
        log.error(
            "a cursor cannot be written",
            managed_ledger=self.managed_ledger.name,
            cursor=self.name,
            error=error,
        )

    async def _write_all(self) -> None:
        """Write the state, repeatedly while callers wait for later changes."""
        while True:
            if self._ledger is not None:
                await self._ledger.rest()
            self._dirty = False
            waiters, self._waiters = self._waiters, []
            try:
                await self._write_once(urgent=bool(waiters))
            except BaseException:
                self._waiters = waiters + self._waiters
                raise
            if self._is_store_away:
                self._is_store_away = False
                log.info(
                    "a cursor can be written again",
                    managed_ledger=self.managed_ledger.name,
                    cursor=self.name,
                )
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            if not self._waiters:
                return

    async def _write_once(self, urgent: bool) -> None:
        self._check_alive()
        if self._ledger is None or self._ledger.is_full:
            await self._write_to_new_ledger()
            return
        await self._ledger.write(self.acks, self.position_properties, urgent)
        if self._node_is_old:
            await self._write_node(self.ledger_id)

    def _check_alive(self) -> None:
        """Raise CursorClosed if the managed ledger may have another owner."""
        if self.managed_ledger.is_dead:
            raise self._closed_error()

    async def _write_to_new_ledger(self) -> None:
        client = self.managed_ledger.client
        limits = self.managed_ledger.limits
        is_shared = self.managed_ledger.store.is_shared
        unused = [self.ledger_id]
        while True:
            ledger = await CursorLedger.create(
                *(client, self.managed_ledger.name, self.name, limits, is_shared)
            )
            try:
                await ledger.write(self.acks, self.position_properties, urgent=True)
                await self._write_node(ledger.ledger_id)
            except (CursorError, LedgerError):
                # Nothing refers to the ledger, so it would never be deleted.
                await self._delete_ledger(ledger.ledger_id)
                raise
            if not is_shared or await client.is_open(ledger.ledger_id):
                break
            # This process had paused before it wrote the node, and the ledger was taken for garbage
            # (broker/garbage_ledgers.py).
            log.warning("a cursor's ledger was taken over before it was in use", cursor=self.name)
            unused.append(ledger.ledger_id)
        self._ledger = ledger
        self._ledger_since_s = wall_s()
        for each in unused:
            await self._delete_ledger(each)

    async def _delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger that the node does not name. An error costs only its space."""
        if ledger_id == NO_LEDGER:
            return
        try:
            await self.managed_ledger.client.delete(ledger_id)
        except MetadataError as error:
            log.warning(
                "a cursor's ledger was not deleted",
                cursor=self.name,
                ledger=ledger_id,
                error=error,
            )

    async def _write_node(self, ledger_id: int) -> None:
        """Point the cursor's node at a cursor ledger, or (NO_LEDGER) store the state in it."""
        self._check_alive()
        path = paths.cursor(self.managed_ledger.name, self.name)
        last_active_ms, properties = self.last_active_ms, self.properties
        value = positions.encode_cursor(
            self.acks, ledger_id, self.position_properties, properties, last_active_ms
        )
        try:
            await self._check_node(path)
            result = await self.managed_ledger.store.put(path, value, self.version)
        except BadVersion as error:
            if self._node_may_be_gone and self.version != MUST_NOT_EXIST:
                # Our deletion succeeded although it returned an error: recreate the node.
                self.version = MUST_NOT_EXIST
                await self._write_node(ledger_id)
                return
            changed = f"cursor {self.name} was changed by another broker"
            self.managed_ledger.fence(changed)
            raise CursorError(changed) from error
        self.version = result.version
        self.node_hash = hash(value)
        self.ledger_id = ledger_id
        self._node_may_be_gone = False
        self._noted_active_ms = last_active_ms
        if self.properties is properties:
            self._node_is_old = False

    async def _check_node(self, path: str) -> None:
        """Raise BadVersion if another broker may have deleted and recreated the node.

        Versions restart then, so the value is compared, which contains times.
        """
        store = self.managed_ledger.store
        if self.version == MUST_NOT_EXIST or not store.is_shared:
            return
        found = await store.get(path)
        if found is None or hash(found.value) != self.node_hash:
            raise BadVersion(f"{path} is not what was last written to it")

    async def create_node(self) -> None:
        """Create the node of a new durable cursor, with its state."""
        self._creating = asyncio.ensure_future(self._write_node(NO_LEDGER))
        await asyncio.shield(self._creating)

    async def created(self) -> None:
        """Wait until the node of a new cursor is durable. Raises the error of its creation."""
        if self._creating is not None:
            await asyncio.shield(self._creating)

    # --- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Store the state in the node and delete the cursor ledger. Acknowledgements after this
        are ignored.
        """
        await self._finish_deletion()
        if self.closed:
            return
        self.abandon()
        await self._finish_writing()
        if not self.durable or (self.failure is not None and not self._may_write_node):
            return
        if not positions.is_short(
            self.acks, self.managed_ledger.limits.ranges_as_list_max, NODE_BYTES_MAX
        ):
            if self.failure is None:
                await self._close_in_ledger()
                if self._node_is_old or self._noted_active_ms != self.last_active_ms:
                    await self._write_node(self.ledger_id)
            return
        is_noted = self._noted_active_ms == self.last_active_ms
        if self.ledger_id != NO_LEDGER or self._dirty or not is_noted:
            previous = self.ledger_id
            await self._write_node(NO_LEDGER)
            self._ledger = None
            await self._delete_ledger(previous)

    @property
    def _may_write_node(self) -> bool:
        """True if only the journal failed, so that the node can store the acknowledgements."""
        managed_ledger = self.managed_ledger
        return managed_ledger.write_failure is not None and not managed_ledger.is_dead

    async def _close_in_ledger(self) -> None:
        """Store a state that is too large for the node in the cursor ledger, for Pulsar to read."""
        if self._ledger is None:
            if self._dirty:
                await self._write_once(urgent=False)
        elif self._dirty or not self._ledger.is_whole:
            await self._ledger.write_for_pulsar(self.acks, self.position_properties)

    def abandon(self) -> None:
        """Begin no further writes: the managed ledger failed, and may have another owner."""
        self.closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def settle(self) -> None:
        """Wait for a write or deletion in progress."""
        await self._finish_deletion()
        await self._finish_writing()

    async def _finish_deletion(self) -> None:
        # The next owner of the node must not lose it.
        while self._deletion is not None:
            await asyncio.wait([self._deletion])

    async def _finish_writing(self) -> None:
        # During the creation of the node, another write would not know its version, and would take
        # the node for another broker's.
        if self._creating is not None and not self._creating.done():
            await asyncio.wait([self._creating])
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def delete(self) -> None:
        """Delete the cursor. After a MetadataError it is unchanged, and the caller may retry.

        No state is written once the deletion of the node begins. Raises CursorClosed if the managed
        ledger fails meanwhile.
        """
        was_closed = self.closed  # True while its managed ledger is being deleted
        over = self._deletion = asyncio.get_running_loop().create_future()
        self._is_deleted = True
        self.abandon()
        try:
            await self._finish_writing()
            if self.durable:
                if not was_closed:
                    self._check_alive()
                await self._delete_node()
        except BaseException:
            self._is_deleted = False
            self.closed = was_closed or self.managed_ledger.is_dead
            if self._has_to_write:
                self._schedule_write()
            raise
        finally:
            over.set_result(None)
            if self._deletion is over:
                self._deletion = None
        if self.managed_ledger.cursors.get(self.name) is self:
            del self.managed_ledger.cursors[self.name]
        self.managed_ledger.trim()

    async def _delete_node(self) -> None:
        path = paths.cursor(self.managed_ledger.name, self.name)
        self._node_may_be_gone = True
        try:
            await self.managed_ledger.store.delete(path)
        except NotFound:
            log.warning("a cursor's node did not exist when it was deleted", cursor=self.name)
        await self._delete_ledger(self.ledger_id)


async def recover_cursor(
    managed_ledger: ManagedLedger,
    name: str,
    value: bytes,
    version: int,
    retries: Retries | None = None,
) -> Cursor:
    """Open a cursor from its node, with the state in the node or in the cursor ledger.

    place_cursor() adjusts it to the managed ledger once that is recovered.
    """
    ends = {each: _end(managed_ledger, each) for each in managed_ledger.ledgers}
    record = positions.decode_cursor(value, ends)
    cursor = Cursor(managed_ledger, name, record.acks.mark_delete)
    cursor.acks = record.acks
    cursor.version = version
    cursor.node_hash = hash(value)
    cursor.ledger_id = record.cursors_ledger_id
    cursor.properties = record.cursor_properties
    cursor.last_active_ms = cursor._noted_active_ms = record.last_active_ms
    if not managed_ledger.was_closed or not record.last_active_ms:
        # The cursor may have been in use until the broker ended.
        cursor.last_active_ms = max(record.last_active_ms, managed_ledger.client.started_ms)
    cursor.position_properties = record.properties
    if record.cursors_ledger_id != NO_LEDGER:
        found = await recover_position(
            managed_ledger.client, record.cursors_ledger_id, ends, retries
        )
        if found is not None:
            cursor.acks, cursor.position_properties = found
    return cursor


def _end(managed_ledger: ManagedLedger, ledger_id: int) -> int:
    last = managed_ledger.last_entry(ledger_id)
    return -1 if last is None else last


def place_cursor(managed_ledger: ManagedLedger, cursor: Cursor) -> None:
    """Adjust a recovered cursor. A mark beyond the last entry (entries that were never confirmed)
    is moved back to it.
    """
    if cursor.acks.mark_delete > managed_ledger.last_confirmed:
        cursor.acks.mark_delete_to(*managed_ledger.last_confirmed)
    cursor.acks.advance(managed_ledger.ledger_after)

"""Cursor ledgers: the entries in which a cursor stores its state, and their recovery.

Every entry is a PositionInfo, so any Pulsar broker can read its mark-delete position. For the
acknowledgements after the mark, an entry has one of these:

- A whole state in Pulsar's format, while there are few ranges and batches: ranges, or bits where
  these are shorter than too many ranges.
- Changes since earlier entries: `changes.since` names the first of them, and the state is the union
  of those and this one. Acknowledgements only accumulate (a seek begins with a whole state), so the
  order does not matter and a lost entry loses only its own.
- A part of a whole state that is too long for one entry. `changes.before` names the entry whose
  state is valid until an entry after the last part names the first part as `since`.

A whole state with a million holes takes a quarter of a megabyte. It is written again only after
changes of the same size, so that the bytes written stay proportional to the acknowledgements.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from pyxbroker.ackset import AckSet
from pyxbroker.base.log import get_logger
from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import (
    EntryDamaged,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
)
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.reader import ReadHandle
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.mledger import positions, records
from pyxbroker.mledger.limits import ManagedLedgerLimits

log = get_logger("pyxbroker.mledger")

ENTRY_BYTES_MAX = 256 << 10
"""Longer states are written in parts, so that no other write waits long for one of them."""
PULSAR_ENTRY_BYTES_MAX = 512 << 10
"""Larger states are not written in Pulsar's format."""
WHOLE_BYTES_PER_S = 16 << 20
"""Limit of what a cursor whose states are all whole writes for clients that wait."""
SMALL_BYTES = 4096
"""States up to this size are always written whole, since changes take a journal block, too."""
CHANGES_BYTES_MIN = 64 << 10
CHANGES_MAX = 10_000
"""Entries that may follow a whole state; recovery reads all of them."""
ENTRY_OVERHEAD = 128
"""Approximate cost of an entry in addition to its data."""
LEDGER_BYTES_MAX = 64 << 20
"""Larger ledgers are replaced, so that their space is freed."""

_NONE = -1
_NOTHING = positions.Piece([], b"")


class CursorLedger:
    """The cursor ledger being written, by one writer that waits for each of its writes."""

    def __init__(self, limits: ManagedLedgerLimits, is_shared: bool) -> None:
        self.handle: LedgerHandle
        self.is_whole = False
        """True if the last entry is a whole state in Pulsar's format."""
        self.wants_whole = False
        """True if a whole state is possible, but an urgent write wrote changes instead."""
        self._entries_max = limits.cursor_entries_per_ledger_max
        self._is_shared = is_shared  # an Apache broker may take the cursor over
        self._ranges_max = None if is_shared else limits.ranges_whole_max
        self._bytes_max = limits.entry_bytes_max if is_shared else PULSAR_ENTRY_BYTES_MAX
        self._rollover_at = time.monotonic() + limits.cursor_rollover_s
        self._acks: AckSet | None = None  # the set whose state begins at entry _since
        self._since = _NONE
        self._last = _NONE  # the newest entry with a complete state
        self._whole_bytes = 0
        self._changes_bytes = 0
        self._changes = 0
        self._rests_until = 0.0
        self._confirmed: asyncio.Future[None] | None = None

    @classmethod
    async def create(
        cls,
        client: LedgerClient,
        managed_ledger: str,
        cursor: str,
        limits: ManagedLedgerLimits,
        is_shared: bool,
    ) -> CursorLedger:
        """Create the next ledger of a cursor. If `is_shared`, Apache's brokers can read each state
        in it that fits into an entry.
        """
        ledger = cls(limits, is_shared)
        ledger.handle = await client.create(ledger, managed_ledger, cursor, limits.affinity)
        return ledger

    @property
    def ledger_id(self) -> int:
        return self.handle.ledger_id

    @property
    def is_full(self) -> bool:
        """True if the next state belongs in a new ledger."""
        return isinstance(self.handle.failure, NotEnoughBookies) or (
            self.handle.pending.next >= self._entries_max
            or self.handle.length >= max(LEDGER_BYTES_MAX, 16 * self._whole_bytes)
            or time.monotonic() >= self._rollover_at
        )

    # --- writing ------------------------------------------------------------------------------

    @property
    def last_entry_id(self) -> int:
        """The last confirmed entry; -1: none yet."""
        return int(self.handle.pending.last_add_confirmed)

    async def rest(self) -> None:
        """Wait until the bytes written per second permit another state."""
        delay = self._rests_until - time.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)

    async def write(self, acks: AckSet, properties: Mapping[str, int], urgent: bool) -> None:
        """Make the state durable. If `urgent` (a caller waits), write as few bytes as possible."""
        encode = positions.whole_encoder(acks, self._ranges_max, self._bytes_max)
        prefers_changes = encode is None or (urgent and not self._is_shared)
        if prefers_changes and self._may_write_changes(acks):
            await self._write_changes(acks, properties)
        elif encode is not None:
            await self._write_whole(acks, encode(acks, properties))
        else:
            await self._write_parts(acks, properties)
        self.wants_whole = encode is not None and not self.is_whole

    async def write_for_pulsar(self, acks: AckSet, properties: Mapping[str, int]) -> None:
        """Make the state of a closing cursor durable, in Pulsar's format if it has room."""
        encode = positions.whole_encoder(acks, None, self._bytes_max)
        if encode is not None:
            await self._write_whole(acks, encode(acks, properties))
        else:
            await self.write(acks, properties, urgent=False)

    def _may_write_changes(self, acks: AckSet) -> bool:
        return (
            acks is self._acks
            and self._whole_bytes > SMALL_BYTES
            and self._changes_bytes < max(self._whole_bytes, CHANGES_BYTES_MIN)
            and self._changes < CHANGES_MAX
        )

    async def _write_whole(self, acks: AckSet, state: bytes) -> None:
        acks.forget_changes()
        if self._is_shared:
            self._rests_until = time.monotonic() + len(state) / WHOLE_BYTES_PER_S
        self._last = await self._append(state)
        self._restart(acks, self._last, len(state))
        self.is_whole = True

    async def _write_parts(self, acks: AckSet, properties: Mapping[str, int]) -> None:
        first = self.handle.pending.next
        size = 0
        for piece in positions.pieces(acks, ENTRY_BYTES_MAX, only_changed=False):
            part = positions.encode_changes(acks, {}, piece, before=self._last)
            await self._append(part)
            size += len(part)
        end = positions.encode_changes(acks, properties, _NOTHING, since=first)
        self._last = await self._append(end)
        self._restart(acks, first, size)
        self.is_whole = False

    def _restart(self, acks: AckSet, since: int, size: int) -> None:
        self._acks = acks
        self._since = since
        self._whole_bytes = size
        self._changes_bytes = self._changes = 0

    async def _write_changes(self, acks: AckSet, properties: Mapping[str, int]) -> None:
        found = False
        for piece in positions.pieces(acks, ENTRY_BYTES_MAX, only_changed=True):
            found = True
            await self._append_changes(acks, properties, piece)
        if not found:
            # Only the mark has moved.
            await self._append_changes(acks, properties, _NOTHING)

    async def _append_changes(
        self, acks: AckSet, properties: Mapping[str, int], piece: positions.Piece
    ) -> None:
        changes = positions.encode_changes(acks, properties, piece, since=self._since)
        self.is_whole = False
        self._changes += 1
        self._changes_bytes += len(changes) + ENTRY_OVERHEAD
        self._last = await self._append(changes)

    async def _append(self, data: bytes) -> int:
        """Append an entry, wait until it is durable, and return its id."""
        if self.handle.failure is not None:
            raise self.handle.failure
        entry_id: int = self.handle.pending.next
        self._confirmed = asyncio.get_running_loop().create_future()
        self.handle.append(EntryRun.of(data, self))  # on failure it calls on_ledger_failed
        await self._confirmed
        return entry_id

    def on_run_confirmed(self, run: EntryRun) -> None:
        """An entry has reached its ack quorum."""
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(None)

    def on_run_taken_back(self, run: EntryRun) -> None:
        """Never called: the entries of cursors have priority, and wait for space."""
        raise AssertionError("an entry of a cursor was taken back")

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        """No further entry can be written."""
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_exception(error)


# --- reading ------------------------------------------------------------------------------------


async def recover_position(
    client: LedgerClient, ledger_id: int, ends: positions.Ends, retries: Retries | None = None
) -> tuple[AckSet, dict[str, int]] | None:
    """Take over a cursor ledger and return (acknowledgements, properties) of its newest state.

    Returns None if the ledger has no state or does not exist. Damaged entries are logged and
    skipped: acknowledgements that only they have are lost. Raises MalformedRecord, and LedgerError
    or MetadataError for a temporary failure, rather than return an older state.
    """
    retries = retries or Retries(f"reading cursor ledger {ledger_id}")
    find_end = client.recover if client.journal_failure is None else client.end_of
    try:
        last, _ = await retries.call(partial(find_end, ledger_id))
    except NoSuchLedger:
        log.warning("a cursor's ledger does not exist, using the node's position", ledger=ledger_id)
        return None
    reader = _CursorLedgerReader(await retries.call(partial(client.open_read, ledger_id)), retries)
    try:
        return await _newest_state(reader, last, ends)
    finally:
        reader.report()


async def properties_of(client: LedgerClient, ledger_id: int) -> dict[str, int]:
    """Return the properties of the newest state in a cursor ledger that another broker may write.

    Raises MalformedRecord, LedgerError and MetadataError.
    """
    handle, last = await client.open_unowned(ledger_id)
    found = await _CursorLedgerReader(handle, Retries(f"cursor ledger {ledger_id}")).newest(last)
    return {} if found is None else positions.restore_position(found[1])[1]


async def _newest_state(
    reader: _CursorLedgerReader, last: int, ends: positions.Ends
) -> tuple[AckSet, dict[str, int]] | None:
    found = await reader.newest(last)
    if found is None:
        return None
    entry_id, info = found
    acks, properties = positions.restore_position(info)
    if info.HasField("changes"):
        since = info.changes.since
        if not 0 <= since <= entry_id:
            raise MalformedRecord(f"entry {entry_id} refers to later entry {since}")
        async for batch in reader.all(since, entry_id - 1):
            for i in range(len(batch)):
                earlier = records.decode_position_info(batch.data(i))
                await _merge(acks, earlier, ends)
    await _merge(acks, info, ends)
    acks.drop_acknowledged_batches()
    return acks, properties


async def _merge(acks: AckSet, info: Any, ends: positions.Ends) -> None:
    for _ in positions.merge_position(acks, info, ends):
        await asyncio.sleep(0)


class _CursorLedgerReader:
    """Reads the existing entries of a cursor ledger, and counts lost ones."""

    def __init__(self, handle: ReadHandle, retries: Retries) -> None:
        self._handle = handle
        self._retries = retries
        self._lost: list[int] = []
        self._error: LedgerError | None = None

    async def newest(self, last: int) -> tuple[int, Any] | None:
        """Return (entry id, decoded entry) of the newest entry that completes a state."""
        entry_id = last
        while entry_id >= 0:
            batch = await self._read(entry_id, entry_id)
            if batch is None:
                entry_id -= 1
                continue
            info = records.decode_position_info(batch.data(0))
            before = info.changes.before
            if not info.HasField("changes") or not info.changes.HasField("before"):
                return entry_id, info
            if before >= entry_id:
                raise MalformedRecord(f"entry {entry_id} refers to a later entry")
            if before == _NONE:
                # A ledger is used once its first state is complete, so that state's end was lost.
                info.changes.since = 0
                return entry_id, info
            entry_id = before
        return None

    async def all(self, first: int, last: int) -> AsyncIterator[EntryBatch]:
        """Yield every entry from first to last that is not lost."""
        while first <= last:
            batch = await self._read(first, last)
            if batch is None:
                first += 1
                continue
            yield batch
            first = batch.entry_id(len(batch) - 1) + 1

    async def _read(self, first: int, last: int) -> EntryBatch | None:
        """Return entries from `first` on, or None if that entry is lost."""
        try:
            return await self._retries.call(partial(self._handle.read_future, first, last))
        except (EntryDamaged, NoSuchEntry) as error:
            self._lost.append(first)
            self._error = error
            return None

    def report(self) -> None:
        """Log one line for all lost entries."""
        if self._lost:
            log.error(
                "entries of a cursor ledger are lost, with acknowledgements that only they had",
                ledger=self._handle.ledger_id,
                entries=len(self._lost),
                first=min(self._lost),
                last=max(self._lost),
                error=self._error,
            )

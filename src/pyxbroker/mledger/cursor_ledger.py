"""The ledger that a cursor keeps its state in: what its entries are, and how they are read again.

Every entry is a PositionInfo, so its mark-delete position can be read by any Pulsar broker. Of what
is acknowledged after the mark, an entry has

- everything, in Pulsar's format: a whole state. So it is while there are few ranges and batches.
- what has changed since earlier entries: `changes.since` names the first of them, and the state is
  what they and this one have together. Acknowledgements are only ever added to each other (a seek
  begins with a whole state), so that the order does not matter and a lost entry costs only its own.
- a part of a whole state that is too long for one entry. `changes.before` names the entry whose
  state counts until the last part is followed by an entry that says `since` the first one.

A million holes are a whole state of a quarter of a megabyte. It is written again only when the
changes after it take more than it does, so that what is written stays in proportion to what is
acknowledged.
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
from pyxbroker.ledger.errors import EntryDamaged, LedgerError, NoSuchEntry, NoSuchLedger
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.reader import ReadHandle
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.mledger import positions, records
from pyxbroker.mledger.limits import ManagedLedgerLimits

log = get_logger("pyxbroker.mledger")

ENTRY_BYTES_MAX = 256 << 10
"""What is longer is written in parts, so that no client waits for long behind one of them."""
PULSAR_ENTRY_BYTES_MAX = 512 << 10
"""A longer state is not written in Pulsar's format."""
SMALL_BYTES = 4096
"""A state up to this size is always written whole: changes take a block of the journal, too."""
CHANGES_BYTES_MIN = 64 << 10
CHANGES_MAX = 10_000
"""Entries that may follow a whole state: recovery reads all of them."""
ENTRY_OVERHEAD = 128
"""Bytes that an entry costs besides its own, about."""
LEDGER_BYTES_MAX = 64 << 20
"""A longer ledger is replaced by a new one, so that its space comes free."""

_NONE = -1
_NOTHING = positions.Piece([], b"")


class CursorLedger:
    """A cursor ledger that is being written, by one writer that waits for each of its writes."""

    def __init__(self, limits: ManagedLedgerLimits) -> None:
        self.handle: LedgerHandle
        self.is_whole = False
        """Whether the last entry is a whole state in Pulsar's format."""
        self.wants_whole = False
        """Whether it could be, and is not because a write was urgent."""
        self._entries_max = limits.cursor_entries_per_ledger_max
        self._ranges_max = limits.ranges_whole_max
        self._rollover_at = time.monotonic() + limits.cursor_rollover_s
        self._acks: AckSet | None = None  # whose state the entries since _since have
        self._since = _NONE
        self._last = _NONE  # the newest entry that has a state
        self._whole_bytes = 0
        self._changes_bytes = 0
        self._changes = 0
        self._confirmed: asyncio.Future[None] | None = None

    @classmethod
    async def create(
        cls,
        client: LedgerClient,
        managed_ledger: str,
        cursor: str,
        limits: ManagedLedgerLimits,
    ) -> CursorLedger:
        """Creates the next ledger of a cursor."""
        ledger = cls(limits)
        ledger.handle = await client.create(ledger, managed_ledger, cursor)
        return ledger

    @property
    def ledger_id(self) -> int:
        return self.handle.ledger_id

    @property
    def is_full(self) -> bool:
        """Whether the next state belongs into a new ledger."""
        return (
            self.handle.pending.next >= self._entries_max
            or self.handle.length >= max(LEDGER_BYTES_MAX, 16 * self._whole_bytes)
            or time.monotonic() >= self._rollover_at
        )

    # --- writing ------------------------------------------------------------------------------

    @property
    def last_entry_id(self) -> int:
        """The last entry that was confirmed; -1: none yet."""
        return int(self.handle.pending.last_add_confirmed)

    async def write(self, acks: AckSet, properties: Mapping[str, int], urgent: bool) -> None:
        """Makes the state durable; urgently (somebody waits) with as few bytes as possible."""
        is_short = self._is_short(acks)
        if self._may_write_changes(acks) and (urgent or not is_short):
            await self._write_changes(acks, properties)
        elif is_short:
            await self._write_whole(acks, positions.encode_position(acks, properties))
        else:
            await self._write_parts(acks, properties)
        self.wants_whole = is_short and not self.is_whole

    def _is_short(self, acks: AckSet) -> bool:
        return positions.is_short(acks, self._ranges_max, PULSAR_ENTRY_BYTES_MAX)

    async def write_for_pulsar(self, acks: AckSet, properties: Mapping[str, int]) -> None:
        """Makes the state durable in Pulsar's format where that has room for it (a clean close)."""
        state = None
        if not self._is_short(acks):
            state = positions.encode_position_as_longs(acks, properties, PULSAR_ENTRY_BYTES_MAX)
        if state is None:
            await self.write(acks, properties, urgent=False)
        else:
            await self._write_whole(acks, state)

    def _may_write_changes(self, acks: AckSet) -> bool:
        return (
            acks is self._acks
            and self._whole_bytes > SMALL_BYTES
            and self._changes_bytes < max(self._whole_bytes, CHANGES_BYTES_MIN)
            and self._changes < CHANGES_MAX
        )

    async def _write_whole(self, acks: AckSet, state: bytes) -> None:
        acks.forget_changes()
        self._last = await self._append(state)
        self._begin_anew(acks, self._last, len(state))
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
        self._begin_anew(acks, first, size)
        self.is_whole = False

    def _begin_anew(self, acks: AckSet, since: int, size: int) -> None:
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
            # The mark has moved, and nothing behind it.
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
        """Appends an entry and waits until it is durable; its id."""
        if self.handle.failure is not None:
            raise self.handle.failure
        entry_id: int = self.handle.pending.next
        self._confirmed = asyncio.get_running_loop().create_future()
        self.handle.append(EntryRun.of(data, self))  # a failure within it is told as any other
        await self._confirmed
        return entry_id

    def on_run_confirmed(self, run: EntryRun) -> None:
        """An entry is on its ack quorum."""
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(None)

    def on_run_taken_back(self, run: EntryRun) -> None:
        """Never called: what a cursor writes has a high priority, and waits."""
        raise AssertionError("an entry of a cursor was taken back")

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        """No further entry can be written."""
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_exception(error)


# --- reading ------------------------------------------------------------------------------------


async def recover_position(
    client: LedgerClient, ledger_id: int, ends: positions.Ends, retries: Retries | None = None
) -> tuple[AckSet, dict[str, int]] | None:
    """Takes a cursor ledger over; (acknowledgements, properties) of its newest state.

    None when it has none, or is gone. What is damaged is reported and passed over: it costs the
    acknowledgements that only it had. Raises MalformedRecord, and LedgerError or MetadataError when
    it cannot be read now: what is older is not taken for the newest because of that.
    """
    retries = retries or Retries(f"reading cursor ledger {ledger_id}")
    find_end = client.recover if client.journal_failure is None else client.end_of
    try:
        last, _ = await retries.call(partial(find_end, ledger_id))
    except NoSuchLedger:
        log.warning("a cursor's ledger is gone; its node's position counts", ledger=ledger_id)
        return None
    reader = _CursorLedgerReader(await retries.call(partial(client.open_read, ledger_id)), retries)
    try:
        return await _newest_state(reader, last, ends)
    finally:
        reader.report()


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
            raise MalformedRecord(f"entry {entry_id} adds to entry {since}, behind it")
        async for batch in reader.all(since, entry_id - 1):
            for i in range(len(batch)):
                earlier = records.decode_position_info(batch.data(i))
                positions.merge_position(acks, earlier, ends)
    positions.merge_position(acks, info, ends)
    acks.drop_acknowledged_batches()
    return acks, properties


class _CursorLedgerReader:
    """Reads the entries of a cursor ledger that there are, and counts those that are lost."""

    def __init__(self, handle: ReadHandle, retries: Retries) -> None:
        self._handle = handle
        self._retries = retries
        self._lost: list[int] = []
        self._error: LedgerError | None = None

    async def newest(self, last: int) -> tuple[int, Any] | None:
        """(entry id, decoded entry) of the newest entry that has a state and is whole."""
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
                raise MalformedRecord(f"entry {entry_id} points behind itself")
            if before == _NONE:
                # A ledger counts when its first state is complete, so the end of that was lost.
                info.changes.since = 0
                return entry_id, info
            entry_id = before
        return None

    async def all(self, first: int, last: int) -> AsyncIterator[EntryBatch]:
        """Every entry from first to last that is not lost."""
        while first <= last:
            batch = await self._read(first, last)
            if batch is None:
                first += 1
                continue
            yield batch
            first = batch.entry_id(len(batch) - 1) + 1

    async def _read(self, first: int, last: int) -> EntryBatch | None:
        """Entries from first on; None: that one is lost."""
        try:
            return await self._retries.call(partial(self._handle.read_future, first, last))
        except (EntryDamaged, NoSuchEntry) as error:
            self._lost.append(first)
            self._error = error
            return None

    def report(self) -> None:
        """One line for what is lost."""
        if self._lost:
            log.error(
                "entries of a cursor ledger are lost, and acknowledgements that only they had",
                ledger=self._handle.ledger_id,
                entries=len(self._lost),
                first=min(self._lost),
                last=max(self._lost),
                error=self._error,
            )

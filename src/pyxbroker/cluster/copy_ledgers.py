"""Copies of ledgers in another cluster, with the same ids and entries.

The metadata of a copy names the standalone that it comes from (COPIED_FROM), and is closed when all
entries have been read back. Each state that a kill leaves behind is therefore visible there: an
open copy is unfinished and is written anew, a closed one is complete.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from pyxbroker._native import crc32c
from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.errors import EntryDamaged, LedgerError, NoSuchEntry
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.metadata import (
    LedgerMetadata,
    LedgerMetadataStore,
    MalformedLedgerMetadata,
    decode,
)
from pyxbroker.ledger.reader import READ_ENTRIES_MAX, ReadHandle
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, GetResult, MetadataStore, resolve

COPIED_FROM = "pyxbroker/copied-from"
"""The custom metadata of a copy: the instance id of the standalone."""
LEDGERS_PER_READ = 64
BATCH_BYTES_MAX = 1 << 20


class CopyState(enum.Enum):
    """The state of a ledger's copy."""

    MISSING = enum.auto()
    UNFINISHED = enum.auto()
    COMPLETE = enum.auto()
    COLLIDES = enum.auto()
    """The id belongs to another ledger."""


class SourceLedger(NamedTuple):
    """A ledger of the standalone, and the state of its copy."""

    ledger_id: int
    metadata: LedgerMetadata  # closed
    reader: ReadHandle
    copy: LedgerMetadata | None
    version: int  # of the copy's node, or MUST_NOT_EXIST
    state: CopyState


class CopyDiffers(LedgerError):
    """The entries of a copy are not those of the original."""


class _Listener:
    """The owner of a copy: `drain` raises the failure."""

    def on_run_confirmed(self, run: EntryRun) -> None: ...

    def on_run_taken_back(self, run: EntryRun) -> None: ...

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None: ...


class LedgerCopier:
    """Copies the ledgers of a standalone, whose instance id is `mark`."""

    def __init__(
        self, store: MetadataStore, source: LedgerClient, target: LedgerClient, mark: str
    ) -> None:
        self._metadata = LedgerMetadataStore(store)
        self._source = source
        self._target = target
        self._mark = mark.encode()

    async def ledgers(self, target: MetadataStore) -> AsyncIterator[list[SourceLedger]]:
        """Yield all ledgers of the standalone, in batches. Raises LedgerError, MetadataError."""
        batch: list[int] = []
        async for ledger_id in self._metadata.ledger_ids():
            batch.append(ledger_id)
            if len(batch) == LEDGERS_PER_READ:
                yield await self._read(batch, target)
                batch = []
        if batch:
            yield await self._read(batch, target)

    async def _read(self, batch: list[int], target: MetadataStore) -> list[SourceLedger]:
        opened = await asyncio.gather(*map(self._source.open_any, batch))
        nodes = await target.get_all([paths.ledger(each) for each in batch])
        ledgers = []
        for ledger_id, (metadata, reader), node in zip(batch, opened, nodes, strict=True):
            if isinstance(node, BaseException):
                raise node
            copy, state = self._compare(metadata, node)
            version = MUST_NOT_EXIST if node is None else node.version
            ledgers.append(SourceLedger(ledger_id, metadata, reader, copy, version, state))
        return ledgers

    def _compare(
        self, original: LedgerMetadata, node: GetResult | None
    ) -> tuple[LedgerMetadata | None, CopyState]:
        if node is None:
            return None, CopyState.MISSING
        try:
            copy = decode(node.value)
        except MalformedLedgerMetadata:
            return None, CopyState.COLLIDES
        if copy.custom_metadata.get(COPIED_FROM) != self._mark:
            return copy, CopyState.COLLIDES
        is_complete = copy.is_closed and copy.last_entry_id == original.last_entry_id
        return copy, CopyState.COMPLETE if is_complete else CopyState.UNFINISHED

    async def copy(self, ledger: SourceLedger) -> None:
        """Copy a ledger whose copy is missing or unfinished, and read all entries back. Raises
        LedgerError and MetadataError.
        """
        original = ledger.metadata
        custom = {**original.custom_metadata, COPIED_FROM: self._mark}
        handle = await self._target.create_copy(
            *(_Listener(), ledger.ledger_id, original, custom, ledger.version)
        )
        assert isinstance(handle, EnsembleHandle), "the bookies of a cluster are other processes"
        try:
            await self._write(ledger, handle)
        except BaseException:
            # The connections to the bookies end next, which is no failure of theirs.
            handle.give_up(LedgerError("the copy has ended"))
            raise

    async def _write(self, ledger: SourceLedger, handle: EnsembleHandle) -> None:
        written = 0
        async for data in _originals(ledger):
            handle.append(EntryRun.of_all(data))
            written = checksum(data, written)
            await handle.drain()
        if await checksum_of(handle, ledger.metadata.last_entry_id) != written:
            raise CopyDiffers(
                f"the entries of ledger {ledger.ledger_id} were written, but the cluster's bookies"
                " return others"
            )
        await self._target.close(handle)

    async def verify(self, ledger: SourceLedger) -> None:
        """Compare a complete copy with its original. Raises CopyDiffers, LedgerError,
        MetadataError.
        """
        last = ledger.metadata.last_entry_id
        _, copy = await self._target.open_any(ledger.ledger_id)
        if await checksum_of(copy, last) != await checksum_of(ledger.reader, last):
            raise CopyDiffers(f"the copy of ledger {ledger.ledger_id} has other entries")


async def _originals(ledger: SourceLedger) -> AsyncIterator[list[bytes]]:
    """Yield the data of the entries of the standalone. Raises LedgerError."""
    try:
        async for data in batches(ledger.reader, ledger.metadata.last_entry_id):
            yield data
    except (EntryDamaged, NoSuchEntry) as error:
        name = ledger.metadata.custom_metadata.get("pulsar/managed-ledger", b"unknown").decode()
        raise LedgerError(
            f"the standalone has lost messages of {name}, and BookKeeper has no gaps: {error}."
            " Start the standalone and delete that topic or subscription"
        ) from error


def checksum(data: list[bytes], before: int) -> int:
    """Return the CRC32C of entries and their sizes, continued from that of earlier entries."""
    for each in data:
        before = crc32c(each, crc32c(len(each).to_bytes(4, "big"), before))
    return before


async def checksum_of(reader: ReadHandle, last: int) -> int:
    """Return the checksum of the entries of a ledger up to the last one. Raises LedgerError."""
    found = 0
    async for data in batches(reader, last):
        found = checksum(data, found)
    return found


async def batches(reader: ReadHandle, last: int) -> AsyncIterator[list[bytes]]:
    """Yield the data of a ledger's entries, in order. Raises LedgerError."""
    first = 0
    while first <= last:
        future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
        count = min(last - first + 1, READ_ENTRIES_MAX)
        reader.read(first, last, count, BATCH_BYTES_MAX, partial(resolve, future))
        batch = await future
        yield [batch.data(index) for index in range(len(batch))]
        first += len(batch)

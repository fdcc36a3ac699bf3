"""Opening managed ledgers, which takes them over from the previous owner, and deleting them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from pyxbroker.base.clock import wall_s
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.base.url_encoding import decode
from pyxbroker.entry import Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import JournalFailed, LedgerError, NoSuchLedger, NotEnoughBookies
from pyxbroker.ledger.metadata import MalformedLedgerMetadata
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata import paths
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.metadata.store import CorruptStore, GetResult, MetadataStore, NotFound
from pyxbroker.mledger import compacted_ledger, positions
from pyxbroker.mledger.cursor import NO_LEDGER, place_cursor, recover_cursor
from pyxbroker.mledger.entry_cache import EntryCache
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.positions import LedgerInfo
from pyxbroker.mledger.state import State

log = get_logger("pyxbroker.mledger")

CURSORS_PER_READ = 64  # cursors that are read together

NONE: Mapping[str, str] = MappingProxyType({})


async def open_managed_ledger(
    name: str,
    store: MetadataStore,
    ledgers: LedgerClient,
    limits: ManagedLedgerLimits,
    create: bool = True,
    properties: Mapping[str, str] = NONE,
    cache: EntryCache | None = None,
) -> ManagedLedger | None:
    """Open a managed ledger, or create it; None if it does not exist and `create` is False.

    `properties` are those of a new managed ledger; `cache` is for bookies in other processes. Reads
    that fail are retried, for RETRY_FOR_S in total. Then the managed ledger is not opened, rather
    than opened with an older state. Raises LedgerError and MetadataError. After a failure of the
    journal it is opened read-only, and likewise while there are too few bookies for its next
    ledger.
    """
    managed_ledger = ManagedLedger(name, store, ledgers, limits)
    managed_ledger.properties = dict(properties)
    if cache is not None:
        managed_ledger.cache = cache.ledger_cache()
    retries = Retries(f"opening {name}")
    failure = ledgers.journal_failure
    refusal: LedgerError | None = failure
    found = None
    if create and store.is_shared:
        # A refused write costs ZooKeeper and this process much more than a read.
        found = await retries.call(partial(store.get, paths.managed_ledger(name)))
    while found is None:
        # Creating a new one takes a single write, which also detects an existing one.
        try:
            if create and refusal is None and await managed_ledger.create():
                return managed_ledger
        except NotEnoughBookies as error:
            refusal = error
        found = await retries.call(partial(store.get, paths.managed_ledger(name)))
        if found is None and not create:
            return None
        if found is None and refusal is not None:
            try:
                # The journal's failure is raised repeatedly: its traceback must not grow.
                raise refusal.with_traceback(None)
            finally:
                del refusal, failure  # leave no cycle of the error and this frame
    try:
        await _open(managed_ledger, found, retries)
    except JournalFailed:
        if failure is not None:
            raise
        # The journal failed meanwhile.
        return await open_managed_ledger(name, store, ledgers, limits, create, properties, cache)
    return managed_ledger


async def _open(managed_ledger: ManagedLedger, found: GetResult, retries: Retries) -> None:
    """Read everything before a new ledger makes the state that was read the newest."""
    managed_ledger.version = found.version
    ledgers_found, kept, terminated = positions.decode_ledger_list(found.value)
    managed_ledger.ledgers = {record.ledger_id: LedgerInfo(*record) for record in ledgers_found}
    managed_ledger.highest_ledger_id = max(managed_ledger.ledgers, default=-1)
    managed_ledger.properties = kept
    managed_ledger.terminated_position = managed_ledger.stored_end = terminated
    # The list of a terminated one has no open ledger, whether it was closed or not.
    managed_ledger.was_closed = terminated is None and all(
        each.timestamp_ms for each in ledgers_found
    )
    failure = managed_ledger.client.journal_failure
    closed = _closed_last_ledger(managed_ledger)
    if closed is None:
        await _recover_last_ledger(managed_ledger, failure is None, retries)
    managed_ledger.index_ledgers()
    managed_ledger.size = sum(ledger.size for ledger in managed_ledger.ledgers.values())
    if closed is not None:
        # Nothing else reads its metadata before the first read of its entries. Entries published
        # until then would have another password, and no password could read all of the topic.
        await retries.call(partial(managed_ledger.client.check_password, closed))
    await _read_cursors(managed_ledger, retries)
    last = _last_position(managed_ledger)
    if terminated is not None:
        managed_ledger.state = State.TERMINATED
        last = terminated
    elif failure is not None:
        managed_ledger.refuse_writes(failure)
    else:
        try:
            await managed_ledger.begin_ledger()
        except NotEnoughBookies as error:
            managed_ledger.refuse_for_bookies(error)
    managed_ledger.last_confirmed = last or managed_ledger.first_position()
    slices = Slices()
    for cursor in list(managed_ledger.cursors.values()):
        place_cursor(managed_ledger, cursor)
        await slices.pause()


def _closed_last_ledger(managed_ledger: ManagedLedger) -> int | None:
    """Return the last ledger if its end is known."""
    last_id = max(managed_ledger.ledgers, default=None)
    if last_id is None:
        return None
    info = managed_ledger.ledgers[last_id]
    return last_id if info.timestamp_ms and info.entries else None


async def _recover_last_ledger(
    managed_ledger: ManagedLedger, may_write: bool, retries: Retries
) -> None:
    """Fence the ledger that was being written and determine its end; drop it if it is empty.

    Without `may_write` it is not fenced: no broker can write it.
    """
    if not managed_ledger.ledgers:
        return
    last_id = max(managed_ledger.ledgers)
    info = managed_ledger.ledgers[last_id]
    client = managed_ledger.client
    find_end = client.recover if may_write else client.end_of
    try:
        last_entry, length = await retries.call(partial(find_end, last_id))
    except NoSuchLedger as error:
        entries = await client.stored_entries(last_id)
        if entries:
            log.error(
                "the last ledger is not in metadata, and its entries are not served",
                managed_ledger=managed_ledger.name,
                ledger=last_id,
                entries=entries,
                error=error,
            )
        del managed_ledger.ledgers[last_id]
        return
    info.entries = last_entry + 1
    info.size = length
    if may_write:
        info.timestamp_ms = int(wall_s() * 1000)
    if info.entries == 0:
        del managed_ledger.ledgers[last_id]
        if may_write:
            await client.delete(last_id)


def _last_position(managed_ledger: ManagedLedger) -> Position | None:
    """Return the position of the last entry in the closed ledgers."""
    if not managed_ledger.ledgers:
        return None
    last = managed_ledger.ledgers[max(managed_ledger.ledgers)]
    return Position(last.ledger_id, last.entries - 1)


async def _read_cursors(managed_ledger: ManagedLedger, retries: Retries) -> None:
    """Recover all cursors. From then on the managed ledger notifies them of failures."""
    store = managed_ledger.store
    path = paths.managed_ledger(managed_ledger.name)
    names = await retries.call(partial(store.children, path))
    slices = Slices()
    found: list[GetResult | BaseException | None] = []
    for at in range(0, len(names), CURSORS_PER_READ):
        some = names[at : at + CURSORS_PER_READ]
        found += await asyncio.gather(
            *(retries.call(partial(store.get, f"{path}/{name}")) for name in some),
            return_exceptions=True,
        )
        await slices.pause()
    for encoded, node in zip(names, found, strict=True):
        await slices.pause()
        if node is None:
            continue
        name = decode(encoded)
        try:
            if isinstance(node, BaseException):
                raise node
            cursor = await recover_cursor(managed_ledger, name, node.value, node.version, retries)
        except (MalformedRecord, MalformedLedgerMetadata, CorruptStore) as error:
            # The topic serves all other subscriptions, and requests for this one are refused.
            managed_ledger.unreadable.add(name)
            log.error(
                "a cursor cannot be read; nothing is trimmed until it is repaired or deleted",
                managed_ledger=managed_ledger.name,
                cursor=name,
                error=error,
            )
            continue
        managed_ledger.cursors[name] = cursor


async def delete_managed_ledger(managed_ledger: ManagedLedger, topic: str = "") -> None:
    """Delete an unused managed ledger with its cursors and ledgers, and compacted ledgers.

    After an error, the remaining parts can be opened again and deleted. Raises ManagedLedgerError
    if it has failed before, since it may have another owner.
    """
    await managed_ledger.close()
    if managed_ledger.state is not State.CLOSED:
        raise ManagedLedgerError(f"{managed_ledger.name} is {managed_ledger.state.value}")
    compacted = compacted_ledger.known(managed_ledger)
    for cursor in list(managed_ledger.cursors.values()):
        await cursor.delete()
    if compacted:
        await compacted_ledger.delete(managed_ledger, topic, compacted)
    for name in list(managed_ledger.unreadable):
        await delete_unreadable_cursor(managed_ledger, name)
    ledger_ids = list(managed_ledger.ledgers)
    with contextlib.suppress(NotFound):
        await managed_ledger.store.delete(
            paths.managed_ledger(managed_ledger.name), managed_ledger.version
        )
    for ledger_id in ledger_ids:
        await managed_ledger.client.delete(ledger_id)


async def delete_unreadable_cursor(managed_ledger: ManagedLedger, name: str) -> None:
    """Delete a cursor that cannot be read, and its ledger if the node still names it.

    Afterwards ledgers retained for it may be trimmed. After a MetadataError the caller may retry.
    """
    path = paths.cursor(managed_ledger.name, name)
    ledger_id = await _ledger_of_unreadable(managed_ledger, path)
    with contextlib.suppress(NotFound):
        await managed_ledger.store.delete(path)
    managed_ledger.unreadable.discard(name)
    if ledger_id != NO_LEDGER:
        await managed_ledger.client.delete(ledger_id)
    managed_ledger.trim()


async def _ledger_of_unreadable(managed_ledger: ManagedLedger, path: str) -> int:
    try:
        node = await managed_ledger.store.get(path)
        return (
            NO_LEDGER if node is None else positions.decode_cursor(node.value, {}).cursors_ledger_id
        )
    except (MalformedRecord, CorruptStore):
        # At most a file of the bookie still names the ledger, which has a few kilobytes.
        return NO_LEDGER

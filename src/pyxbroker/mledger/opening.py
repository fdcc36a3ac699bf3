"""Opening and deleting managed ledgers: taking a topic over from whoever wrote it before."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from types import MappingProxyType

from pyxbroker.entry import Position
from pyxbroker.ledger.client import LedgerClient, NoSuchLedger
from pyxbroker.ledger.metadata import MalformedLedgerMetadata
from pyxbroker.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore, NotFound
from pyxbroker.mledger import positions
from pyxbroker.mledger.cursor import recover_cursor
from pyxbroker.mledger.managed_ledger import (
    LedgerInfo,
    ManagedLedger,
    ManagedLedgerError,
    ManagedLedgerLimits,
    State,
)
from pyxbroker.mledger.records import MalformedRecord

log = get_logger("pyxbroker.mledger")

NONE: Mapping[str, str] = MappingProxyType({})


async def open_managed_ledger(
    name: str,
    store: MetadataStore,
    ledgers: LedgerClient,
    limits: ManagedLedgerLimits,
    create: bool = True,
    properties: Mapping[str, str] = NONE,
) -> ManagedLedger | None:
    """Opens a managed ledger, or makes it; None when it does not exist and create is False.

    properties are those of a new one.
    """
    managed_ledger = ManagedLedger(name, store, ledgers, limits)
    managed_ledger.properties = dict(properties)
    found = None
    while found is None:
        # A new one costs a single write: it is not asked for first, creating it tells as well.
        if create and await managed_ledger.create():
            return managed_ledger
        found = await store.get(paths.managed_ledger(name))
        if found is None and not create:
            return None
    managed_ledger.version = found.version
    ledgers_found, kept, terminated = positions.decode_ledger_list(found.value)
    managed_ledger.ledgers = {record.ledger_id: LedgerInfo(*record) for record in ledgers_found}
    managed_ledger.properties = kept
    managed_ledger.terminated_position = terminated
    await _recover_last_ledger(managed_ledger)
    managed_ledger.index_ledgers()
    managed_ledger.size = sum(ledger.size for ledger in managed_ledger.ledgers.values())
    last = _last_position(managed_ledger)
    if terminated is None:
        await managed_ledger.begin_ledger()
    else:
        managed_ledger.state = State.TERMINATED
        last = terminated
    managed_ledger.last_confirmed = last or managed_ledger.first_position()
    await _open_cursors(managed_ledger)
    return managed_ledger


async def _recover_last_ledger(managed_ledger: ManagedLedger) -> None:
    """Fences the ledger that was being written and learns what it holds; an empty one is
    dropped.
    """
    if not managed_ledger.ledgers:
        return
    last_id = max(managed_ledger.ledgers)
    info = managed_ledger.ledgers[last_id]
    if info.timestamp_ms and info.entries:
        return
    try:
        last_entry, length = await managed_ledger.client.recover(last_id)
    except NoSuchLedger:
        del managed_ledger.ledgers[last_id]
        return
    info.entries = last_entry + 1
    info.size = length
    info.timestamp_ms = int(time.time() * 1000)
    if info.entries == 0:
        del managed_ledger.ledgers[last_id]
        await managed_ledger.client.delete(last_id)


def _last_position(managed_ledger: ManagedLedger) -> Position | None:
    """The last entry that the closed ledgers hold."""
    if not managed_ledger.ledgers:
        return None
    last = managed_ledger.ledgers[max(managed_ledger.ledgers)]
    return Position(last.ledger_id, last.entries - 1)


async def _open_cursors(managed_ledger: ManagedLedger) -> None:
    names = await managed_ledger.store.children(paths.managed_ledger(managed_ledger.name))
    found = await asyncio.gather(
        *(
            managed_ledger.store.get(f"{paths.managed_ledger(managed_ledger.name)}/{name}")
            for name in names
        )
    )
    for encoded, node in zip(names, found, strict=True):
        if node is None:
            continue
        name = paths.decode(encoded)
        try:
            cursor = await recover_cursor(managed_ledger, name, node.value, node.version)
        except (MalformedRecord, MalformedLedgerMetadata) as error:
            # The topic serves everybody else; who asks for this subscription is refused.
            managed_ledger.unreadable.add(name)
            log.error(
                "a cursor cannot be read; nothing is trimmed until it is repaired or deleted",
                managed_ledger=managed_ledger.name,
                cursor=name,
                error=error,
            )
            continue
        managed_ledger.cursors[name] = cursor


async def delete_managed_ledger(managed_ledger: ManagedLedger) -> None:
    """Deletes a managed ledger with its cursors and ledgers; it must have no user any more.

    What an error leaves behind can be opened again, and deleted. Raises ManagedLedgerError when it
    failed before, since then it may have another owner.
    """
    await managed_ledger.close()
    if managed_ledger.state is not State.CLOSED:
        raise ManagedLedgerError(f"{managed_ledger.name} is {managed_ledger.state.value}")
    for cursor in list(managed_ledger.cursors.values()):
        await cursor.delete()
    for name in managed_ledger.unreadable:
        with contextlib.suppress(NotFound):
            await managed_ledger.store.delete(paths.cursor(managed_ledger.name, name))
    ledger_ids = list(managed_ledger.ledgers)
    with contextlib.suppress(NotFound):
        await managed_ledger.store.delete(
            paths.managed_ledger(managed_ledger.name), managed_ledger.version
        )
    for ledger_id in ledger_ids:
        await managed_ledger.client.delete(ledger_id)

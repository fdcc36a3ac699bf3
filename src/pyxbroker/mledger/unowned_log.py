"""Reading a managed ledger that another broker writes, without taking it over.

The ledger that is being written has no end yet. It is read up to the last entry that its bookies
store, which may be one that its writer has not confirmed. The reader asks nothing of the writer, so
that it does not wait for a broker that is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pyxbroker.entry import Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import EntryDamaged, NoSuchEntry
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.mledger import positions


async def first_unowned(name: str, store: MetadataStore) -> Position:
    """Return the position of the first entry of a managed ledger. Raises MetadataError."""
    found = await store.get(paths.managed_ledger(name))
    ledgers = [] if found is None else positions.decode_ledger_list(found.value)[0]
    return Position(min((each.ledger_id for each in ledgers), default=0), 0)


async def read_unowned(
    name: str, store: MetadataStore, client: LedgerClient, start: Position
) -> AsyncIterator[tuple[Position, bytes]]:
    """Yield the position and the bytes of each entry from a position on. Entries that are lost are
    left out.

    Raises LedgerError and MetadataError.
    """
    found = await store.get(paths.managed_ledger(name))
    if found is None:
        return
    ledgers, _, _ = positions.decode_ledger_list(found.value)
    retries = Retries(f"reading {name}")
    for ledger_id in sorted(each.ledger_id for each in ledgers):
        if ledger_id < start.ledger_id:
            continue
        try:
            reader, last = await client.open_unowned(ledger_id)
        except NoSuchEntry:  # trimmed since the list was read
            continue
        at = start.entry_id if ledger_id == start.ledger_id else 0
        while at <= last:
            try:
                batch = await retries.call(lambda: reader.read_future(at, last))  # noqa: B023
            except (EntryDamaged, NoSuchEntry):
                at += 1
                continue
            for index in range(len(batch)):
                yield Position(ledger_id, batch.entry_id(index)), batch.data(index)
            at = batch.entry_id(len(batch) - 1) + 1

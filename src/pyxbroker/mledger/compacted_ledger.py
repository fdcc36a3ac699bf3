"""The compacted ledger of a topic: the current one, others that may be left, and their deletion.

The cursor `__compaction` stores the id of the compacted ledger with its mark (CompactedTopicLedger)
in one write. Nothing else would find the previous ledger, or a new one whose compaction did not
finish. Therefore a property of the list of ledgers names all that may exist. It is written together
with each new ledger. Opening the topic deletes those that the cursor does not name.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyxbroker.base.log import get_logger
from pyxbroker.base.system_cursors import COMPACTION
from pyxbroker.entry import Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.handle import LedgerHandle, LedgerListener
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError, MetadataStore
from pyxbroker.mledger import positions
from pyxbroker.mledger.cursor_ledger import properties_of
from pyxbroker.mledger.managed_ledger import ManagedLedger

log = get_logger("pyxbroker.mledger")

LEDGER_PROPERTY = "CompactedTopicLedger"  # of the cursor; Pulsar's name
NAMES_PROPERTY = "pyxbroker.compactedLedgers"  # of the list of ledgers: ids, separated by commas
NAMES_MAX = 64


def current(managed_ledger: ManagedLedger) -> int | None:
    """Return the current compacted ledger, or None."""
    cursor = managed_ledger.cursors.get(COMPACTION)
    return None if cursor is None else cursor.position_properties.get(LEDGER_PROPERTY)


async def current_unowned(store: MetadataStore, client: LedgerClient, name: str) -> int | None:
    """Return the current compacted ledger, or None, of a topic that another broker has open.

    Raises MalformedRecord, LedgerError and MetadataError.
    """
    found = await store.get(paths.cursor(name, COMPACTION))
    if found is None:
        return None
    cursor = positions.decode_cursor(found.value, {})
    properties = cursor.properties
    if cursor.cursors_ledger_id >= 0:
        properties = await properties_of(client, cursor.cursors_ledger_id) or properties
    return properties.get(LEDGER_PROPERTY)


def known(managed_ledger: ManagedLedger) -> set[int]:
    """Return all compacted ledgers of a topic that may exist."""
    found = set()
    for each in managed_ledger.properties.get(NAMES_PROPERTY, "").split(",")[:NAMES_MAX]:
        if each.isascii() and each.isdecimal() and len(each) <= 18:
            found.add(int(each))
    now = current(managed_ledger)
    return found if now is None else found | {now}


async def create(
    managed_ledger: ManagedLedger, listener: LedgerListener, topic: str, last: bytes
) -> LedgerHandle:
    """Create a compacted ledger. `last` is the id of its last message, a MessageIdData.

    Raises LedgerError, MetadataError, ManagedLedgerError.
    """
    others = known(managed_ledger)
    return await managed_ledger.create_with_property(
        lambda naming: managed_ledger.client.create_compacted(listener, topic, last, naming),
        NAMES_PROPERTY,
        lambda ledger_id: _names({*others, ledger_id}),
    )


async def delete(managed_ledger: ManagedLedger, topic: str, ledger_ids: Iterable[int]) -> None:
    """Delete compacted ledgers without readers. An error costs only their space.

    Clients may give a topic any properties, so the metadata of a ledger must confirm that it is a
    compacted ledger of the topic.
    """
    gone = set()
    client = managed_ledger.client
    for ledger_id in sorted(ledger_ids):
        try:
            if await client.compacted_topic(ledger_id) == topic:
                await client.delete(ledger_id)
        except MetadataError as error:
            log.warning("a compacted ledger was not deleted", ledger=ledger_id, error=error)
        else:
            gone.add(ledger_id)
    left = known(managed_ledger) - gone
    properties = {**managed_ledger.properties, NAMES_PROPERTY: _names(left)}
    if not left:
        del properties[NAMES_PROPERTY]
    managed_ledger.properties = properties  # stored with the next write of the list


async def delete_orphans(managed_ledger: ManagedLedger, topic: str) -> None:
    """Delete all compacted ledgers but the current one, including incomplete ones."""
    now = current(managed_ledger)
    orphans = {each for each in known(managed_ledger) if each != now}
    if orphans:
        await delete(managed_ledger, topic, orphans)


def _names(ledger_ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ledger_ids)[-NAMES_MAX:]))


def message_id(position: Position, partition: int) -> bytes:
    """Encode a MessageIdData like Pulsar's client, with a batch size of 0."""
    from pyxbroker.proto import PulsarApi as pb

    found = pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id, batch_size=0)
    if partition >= 0:
        found.partition = partition
    written: bytes = found.SerializeToString()
    return written

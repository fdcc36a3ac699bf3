"""Internal statistics of a topic for REST: Pulsar's PersistentTopicInternalStats and
PersistentOfflineTopicStats.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pyxbroker.base.slices import Slices
from pyxbroker.base.times import iso_ms
from pyxbroker.broker.client_memory import texts_bytes
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import Position
from pyxbroker.ledger.metadata import LedgerMetadata, LedgerMetadataStore
from pyxbroker.metadata.store import MetadataError, MetadataStore, NotFound
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.state import State
from pyxbroker.schemas.registry import SchemaRegistry

RANGES_MAX = 1_000  # listed per cursor
LEDGERS_CONCURRENT = 16  # of schemas, whose metadata is read concurrently

# Memory for the statistics and their text.
LEDGER_BYTES = 2 << 10
CURSOR_BYTES = 4 << 10
RANGE_BYTES = 120
NO_LEDGER = {
    "ledgerId": -1,
    "entries": -1,
    "size": -1,
    "offloaded": False,
    "underReplicated": False,
}
STATES = {
    State.OPENING: "None",
    State.OPEN: "LedgerOpened",
    State.CREATING_LEDGER: "CreatingLedger",
    State.WRITE_FAILED: "WriteFailed",
    State.TOO_FEW_BOOKIES: "WriteFailed",
    State.FAILED: "Closed",
    State.FENCED: "Fenced",
    State.TERMINATED: "Terminated",
    State.CLOSED: "Closed",
}

Json = dict[str, Any]


async def weigh(topic: Topic) -> int:
    """Estimate the memory for the internal statistics of a topic, in bytes."""
    slices = Slices()
    size = 0
    if isinstance(topic, PersistentTopic):
        managed_ledger = topic.managed_ledger
        size += LEDGER_BYTES * len(managed_ledger.ledgers)
        size += 2 * texts_bytes(managed_ledger.properties)
    for subscription in topic.all_subscriptions():
        size += CURSOR_BYTES + RANGE_BYTES * min(subscription.acks.holes, RANGES_MAX)
        await slices.pause()
    return size


async def internal_stats(
    topic: Topic, with_metadata: bool, store: MetadataStore, schemas: SchemaRegistry
) -> Json:
    """Return the internal statistics. with_metadata: include the metadata of each ledger. The
    caller releases them with forget(). Raises MetadataError.
    """
    if not isinstance(topic, PersistentTopic):
        return _of_nothing(topic)
    answer: Json = {"ledgers": [], "cursors": {}}
    try:
        return await _fill(answer, topic, with_metadata, store, schemas)
    except BaseException:
        await forget(answer)
        raise


async def forget(answer: Json) -> None:
    """Free statistics in steps: thousands of ledgers or cursors take long."""
    slices = Slices()
    ledgers, cursors = answer.get("ledgers", []), answer["cursors"]
    while ledgers:
        ledgers.pop()
        await slices.pause()
    while cursors:
        cursors.popitem()
        await slices.pause()


async def _fill(
    answer: Json,
    topic: PersistentTopic,
    with_metadata: bool,
    store: MetadataStore,
    schemas: SchemaRegistry,
) -> Json:
    """Fill the ledgers and cursors, and add the other fields."""
    slices = Slices()
    in_metadata = LedgerMetadataStore(store) if with_metadata else None
    await _add_ledgers(answer["ledgers"], topic.managed_ledger, in_metadata, slices)
    for subscription in topic.all_subscriptions():
        answer["cursors"][subscription.name] = _cursor(topic, subscription)
        await slices.pause()
    return _of_managed_ledger(topic.managed_ledger, answer) | {
        "schemaLedgers": await _schema_ledgers(topic, store, schemas),
        "compactedLedger": _compacted(topic),
    }


async def log_stats(
    managed_ledger: ManagedLedger, with_metadata: bool, store: MetadataStore
) -> Json:
    """Return Pulsar's ManagedLedgerInternalStats of a log that has no subscriptions.

    with_metadata: include the metadata of each ledger. The caller releases them with forget().
    Raises MetadataError.
    """
    answer: Json = {"ledgers": [], "cursors": {}}
    slices = Slices()
    in_metadata = LedgerMetadataStore(store) if with_metadata else None
    try:
        await _add_ledgers(answer["ledgers"], managed_ledger, in_metadata, slices)
    except BaseException:
        await forget(answer)
        raise
    for name, cursor in managed_ledger.cursors.items():
        # The log was read when it was opened; only the acknowledgements are in use since then.
        next_position = managed_ledger.next_position(cursor.acks.mark_delete)
        answer["cursors"][name] = _cursor_fields(cursor, next_position, is_used=True, waits=False)
    return _of_managed_ledger(managed_ledger, answer)


def weigh_log(managed_ledger: ManagedLedger) -> int:
    """Estimate the memory for log_stats, in bytes."""
    ledgers, cursors = len(managed_ledger.ledgers), len(managed_ledger.cursors)
    return LEDGER_BYTES * ledgers + (CURSOR_BYTES + RANGE_BYTES * RANGES_MAX) * cursors


async def _add_ledgers(
    ledgers: list[Json],
    managed_ledger: ManagedLedger,
    in_metadata: LedgerMetadataStore | None,
    slices: Slices,
) -> None:
    for ledger_id in list(managed_ledger.ledger_ids):
        # Ledgers may be trimmed meanwhile.
        if ledger_id in managed_ledger.ledgers:
            ledgers.append(await _ledger(managed_ledger, ledger_id, in_metadata))
            await slices.pause()


def _of_managed_ledger(managed_ledger: ManagedLedger, answer: Json) -> Json:
    """Return the fields of ManagedLedgerInternalStats, with the ledgers and cursors of `answer`."""
    current = managed_ledger.current
    return {
        "entriesAddedCounter": managed_ledger.entries_added,
        "numberOfEntries": managed_ledger.entries,
        "totalSize": managed_ledger.size,
        "currentLedgerEntries": 0 if current is None else current.last_add_confirmed + 1,
        "currentLedgerSize": 0 if current is None else current.length,
        "lastLedgerCreatedTimestamp": iso_ms(int(managed_ledger.current_since_s * 1000)),
        "waitingCursorsCount": managed_ledger.watcher_count,
        "pendingAddEntriesCount": 0 if current is None else current.pending.pending,
        "lastConfirmedEntry": _text(managed_ledger.last_confirmed),
        "state": STATES[managed_ledger.state],
        "ledgers": answer["ledgers"],
        "cursors": answer["cursors"],
        "properties": dict(managed_ledger.properties),
    }


def parts_of_offline_stats(topic: PersistentTopic) -> int:
    """Return the number of ledgers and subscriptions in the offline statistics."""
    return len(topic.subscriptions) + len(topic.managed_ledger.ledgers)


async def offline_stats(topic: PersistentTopic, broker_id: str) -> Json:
    """Return the size of each ledger and the backlog of each subscription: Pulsar's
    PersistentOfflineTopicStats.
    """
    slices = Slices()
    cursors: dict[str, Json] = {}
    backlog = 0
    for subscription in list(topic.subscriptions.values()):
        cursor = subscription.cursor
        assert isinstance(cursor, Cursor)
        left = cursor.backlog
        cursors[subscription.name] = {"cursorBacklog": left, "cursorLedgerId": cursor.ledger_id}
        backlog += left
        await slices.pause()
    ledgers: list[Json] = []
    managed_ledger = topic.managed_ledger
    for ledger_id in list(managed_ledger.ledger_ids):
        # Ledgers may be trimmed meanwhile.
        if ledger_id in managed_ledger.ledgers:
            ledgers.append(_ledger_size(managed_ledger, ledger_id))
        await slices.pause()
    return {
        "storageSize": topic.storage_size,
        "totalMessages": topic.entries,
        "messageBacklog": backlog,
        "brokerName": broker_id,
        "topicName": topic.name.managed_ledger_name,
        "dataLedgerDetails": ledgers,
        "cursorDetails": cursors,
    }


def _compacted(topic: PersistentTopic) -> Json:
    """Return the statistics of the compacted ledger."""
    found = topic.compacted
    if found is None:
        return NO_LEDGER
    entries = found.last_index + 1
    return NO_LEDGER | {"ledgerId": found.ledger_id, "entries": entries, "size": found.size}


def _of_nothing(topic: Topic) -> Json:
    """Return the statistics of a topic that stores nothing."""
    cursor = {
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": 0,
        "cursorLedger": 0,
        "cursorLedgerLastEntry": 0,
        "active": False,
        "numberOfEntriesSinceFirstNotAckedMessage": 0,
        "totalNonContiguousDeletedMessagesRange": 0,
        "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
    }
    return {
        "entriesAddedCounter": topic.received()[0],
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "cursors": {each.name: cursor for each in topic.all_subscriptions()},
    }


# --- ledgers ----------------------------------------------------------------------------------


def _ledger_size(managed_ledger: ManagedLedger, ledger_id: int) -> Json:
    """Return the size of a ledger. The ledger being written counts as empty, as in Pulsar."""
    info = managed_ledger.ledgers[ledger_id]
    current = managed_ledger.current
    is_open = current is not None and current.ledger_id == ledger_id
    return {
        "ledgerId": ledger_id,
        "entries": 0 if is_open else info.entries,
        "size": 0 if is_open else info.size,
    }


async def _ledger(
    managed_ledger: ManagedLedger, ledger_id: int, in_metadata: LedgerMetadataStore | None
) -> Json:
    """Return the statistics of a ledger."""
    answer = _ledger_size(managed_ledger, ledger_id) | {"offloaded": False}
    if in_metadata is not None:
        try:
            found = await in_metadata.read(ledger_id)
        except MetadataError as error:
            answer["metadata"] = f"It cannot be read: {type(error).__name__}"
        else:
            answer["metadata"] = _described(found.metadata)
    return answer | {"underReplicated": False}


def _described(metadata: LedgerMetadata) -> str:
    """Return ledger metadata as BookKeeper prints it, without the password."""
    parts = [
        f"ensembleSize={metadata.ensemble_size}",
        f"writeQuorumSize={metadata.write_quorum_size}",
        f"ackQuorumSize={metadata.ack_quorum_size}",
        f"state={metadata.state.name}",
    ]
    if metadata.is_closed:
        parts += [f"length={metadata.length}", f"lastEntryId={metadata.last_entry_id}"]
    if metadata.digest_type is not None:
        parts.append(f"digestType={metadata.digest_type.name}")
    ensembles = ", ".join(
        f"{first}=[{', '.join(bookies)}]" for first, bookies in metadata.ensembles.items()
    )
    parts += ["password=OMITTED", f"ensembles={{{ensembles}}}"]
    return f"LedgerMetadata{{{', '.join(parts)}}}"


async def _schema_ledgers(
    topic: Topic, store: MetadataStore, schemas: SchemaRegistry
) -> list[Json]:
    """Return the ledgers with the schemas of a topic: each version may have its own."""
    ledgers = sorted({each.ledger_id for each in await schemas.index(topic.name.schema_name)})
    ledgers_of_schemas: list[Json] = []
    slices = Slices()
    for at in range(0, len(ledgers), LEDGERS_CONCURRENT):
        some = (_schema_ledger(store, each) for each in ledgers[at : at + LEDGERS_CONCURRENT])
        ledgers_of_schemas += [each for each in await asyncio.gather(*some) if each is not None]
        await slices.pause()
    return ledgers_of_schemas


async def _schema_ledger(store: MetadataStore, ledger_id: int) -> Json | None:
    """Return the statistics of a schema's ledger, or None if the schema was deleted meanwhile."""
    try:
        found = (await LedgerMetadataStore(store).read(ledger_id)).metadata
    except NotFound:
        return None
    return {
        "ledgerId": ledger_id,
        "entries": found.last_entry_id + 1,
        "size": found.length,
        "offloaded": False,
        "underReplicated": False,
    }


# --- cursors ----------------------------------------------------------------------------------


def pending_adds(topic: PersistentTopic) -> int:
    """Return the number of entries being written."""
    current = topic.managed_ledger.current
    return 0 if current is None else current.pending.pending


def is_creating_ledger(topic: PersistentTopic) -> bool:
    """Return True if entries wait for a new ledger."""
    return topic.managed_ledger.state is State.CREATING_LEDGER


def entries_since(topic: PersistentTopic, subscription: Subscription) -> int:
    """Return the number of entries between the mark-delete and the read position, plus one."""
    read_position = subscription.dispatcher.read_position
    return _entries_before(topic.managed_ledger, subscription.acks.mark_delete, read_position)


def _entries_before(
    managed_ledger: ManagedLedger, mark_delete: Position, read_position: Position
) -> int:
    before = Position(read_position.ledger_id, read_position.entry_id - 1)
    return managed_ledger.entries_between(mark_delete, before) + 1


def _cursor(topic: PersistentTopic, subscription: Subscription) -> Json:
    managed_ledger = topic.managed_ledger
    cursor = subscription.cursor
    assert isinstance(cursor, Cursor)
    read_position = subscription.dispatcher.read_position
    is_used = bool(subscription.consumers)
    waits = is_used and managed_ledger.normalize(read_position) is None
    return _cursor_fields(cursor, read_position, is_used=is_used, waits=waits)


def _cursor_fields(cursor: Cursor, read_position: Position, *, is_used: bool, waits: bool) -> Json:
    managed_ledger, acks = cursor.managed_ledger, cursor.acks
    has_ledger = not cursor.durable or cursor.ledger_id >= 0
    return {
        "markDeletePosition": _text(acks.mark_delete),
        "readPosition": _text(read_position),
        "waitingReadOp": waits,
        "pendingReadOps": 0,
        "messagesConsumedCounter": managed_ledger.entries_added - cursor.backlog,
        "cursorLedger": cursor.ledger_id,
        "cursorLedgerLastEntry": cursor.last_entry_id,
        "individuallyDeletedMessages": _ranges(cursor),
        "lastLedgerSwitchTimestamp": iso_ms(int(cursor.ledger_since_s * 1000)),
        "state": "Closed" if cursor.closed else "Open" if has_ledger else "NoLedger",
        "active": is_used,
        "numberOfEntriesSinceFirstNotAckedMessage": _entries_before(
            managed_ledger, acks.mark_delete, read_position
        ),
        "totalNonContiguousDeletedMessagesRange": acks.count_ranges() if acks.holes else 0,
        "subscriptionHavePendingRead": waits,
        "subscriptionHavePendingReplayRead": False,
        "properties": cursor.position_properties,
    }


def _ranges(cursor: Cursor) -> str:
    """Return the individually acknowledged entries; of many ranges the first ones."""
    found: list[str] = []
    for ledger_id in cursor.acks.ledger_ids() if cursor.acks.holes else ():
        for lower, upper in cursor.acks.ranges(ledger_id, RANGES_MAX - len(found)):
            found.append(f"({ledger_id}:{lower}..{ledger_id}:{upper}]")
        if len(found) == RANGES_MAX:
            break
    return f"[{','.join(found)}]"


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"

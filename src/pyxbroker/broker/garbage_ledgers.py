"""Garbage ledgers on bookies: ledgers that a crash has left behind and that no node names.

A broker writes most names in one transaction with the ledger or its end. A crash leaves garbage

- between a ledger's removal from the list of a topic, from the node of a cursor, or from that of a
  schema, and its deletion;
- between the creation of the ledger of a cursor or a schema and the write of the node;
- between the creation of any ledger and its name, by Apache Pulsar's brokers.

A ledger is deleted when these hold:

1. Its custom metadata identify the node that would name it. With NAMED_IN_STORE, no other store has
   names for it. Apache's brokers do not write that: the operator decides whether their ledgers are
   judged, and only those of topics and cursors, since others are closed before they are named.
2. Two scans in a row have found that the node does not name it.
3. It is closed. A scan closes an open one first, by recovery, which fences its bookies.
4. Afterwards, no node of any topic, cursor or schema names it.
5. Its metadata has not changed since they were read as closed.

Time decides nothing, so a creator may pause anywhere between the creation and the name. Ledgers of
topics and compacted ledgers of this broker are named from their beginning. A schema's node is
written together with the end of its ledger, which a recovery prevents. The creator of a cursor's
ledger writes the node, then reads whether the ledger is still open; this scan closes the ledger,
then reads the nodes. So one of both sees the other. Apache's brokers may name a ledger that was
deleted, but no bookie confirms an entry of it any more. They create another one then, and a
cursor's node has the position, too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Mapping
from typing import NamedTuple

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices, run_in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.metadata import (
    NAMED_IN_STORE,
    LedgerMetadataStore,
    MalformedLedgerMetadata,
    decode,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.metadata.store import (
    BadVersion,
    GetResult,
    InvalidPath,
    MetadataError,
    MetadataStore,
    NotFound,
    SessionEvent,
    check_path,
)
from pyxbroker.mledger import records
from pyxbroker.schemas import records as schema_records

log = get_logger("pyxbroker.ledger")

NODES_PER_READ = 64
PAUSE_S = 0.02  # between two reads of so many nodes
_NUMBER = re.compile(r"[0-9]{1,19}")


class Owner(NamedTuple):
    """The node that would name a ledger. `is_enough`: its existence does, whatever it contains."""

    path: str
    is_enough: bool = False


class GarbageLedgers:
    """The garbage of one cluster. `all_brokers`: also of brokers other than pyxbroker."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        all_brokers: bool = False,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.deleted = 0  # ledgers, since the start
        self._store = store
        self._metadata = LedgerMetadataStore(store)
        self._ledgers = ledgers
        self._all_brokers = all_brokers
        self._pause_s = pause_s
        self._found: dict[int, Owner] = {}  # by the last scan
        self._sessions = 0  # that were lost
        store.on_session(self._on_session_event)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._sessions += 1

    async def collect(self) -> None:
        """Do one scan, and delete what the scan before has found, too. Raises MetadataError."""
        if await self._is_copy_unfinished():
            self._found = {}
            return
        before, self._found = self._found, {}
        found: dict[int, Owner] = {}
        async for ledger_id, owner in self._unnamed():
            found[ledger_id] = owner
        self._found = found
        repeated = [each for each in found if each in before]
        if repeated:
            await self._delete(repeated)

    async def _is_copy_unfinished(self) -> bool:
        """Return True if `pyxbroker ledgers copy` may still write nodes that name ledgers."""
        node = await self._store.get(paths.COPY)
        if node is None:
            return False
        try:
            phase: object = json.loads(node.value)["phase"]
        except (ValueError, TypeError, KeyError):
            return True
        return phase != "complete"

    # --- scanning -----------------------------------------------------------------------------

    async def _unnamed(self) -> AsyncIterator[tuple[int, Owner]]:
        """Yield the ledgers that their owner's node does not name."""
        batch: list[int] = []
        async for ledger_id in self._metadata.ledger_ids():
            batch.append(ledger_id)
            if len(batch) == NODES_PER_READ:
                for each in await self._unnamed_of(batch):
                    yield each
                batch = []
                await asyncio.sleep(self._pause_s)
        for each in await self._unnamed_of(batch):
            yield each

    async def _unnamed_of(self, batch: list[int]) -> list[tuple[int, Owner]]:
        nodes = await self._store.get_all([paths.ledger(each) for each in batch])
        owners: dict[int, Owner] = {}
        async for ledger_id, node in in_slices(list(zip(batch, nodes, strict=True))):
            owner = self._owner(node)
            if owner is not None:
                owners[ledger_id] = owner
        # These are read after the ledgers: a name is never older than its ledger.
        names = sorted({each.path for each in owners.values()})
        read = dict(zip(names, await self._store.get_all(names), strict=True))
        unnamed = []
        async for ledger_id, owner in in_slices(list(owners.items())):
            if not await _names(read[owner.path], ledger_id, owner):
                unnamed.append((ledger_id, owner))
        return unnamed

    def _owner(self, node: GetResult | BaseException | None) -> Owner | None:
        """Return the owner of a ledger; None for one that must not be judged."""
        if not isinstance(node, GetResult):
            return None
        try:
            owner = owner_of(decode(node.value).custom_metadata, self._all_brokers)
            if owner is not None:
                check_path(owner.path)
        except (MalformedLedgerMetadata, InvalidPath):
            return None
        return owner

    # --- deleting -----------------------------------------------------------------------------

    async def _delete(self, ledger_ids: list[int]) -> None:
        sessions = self._sessions
        closed = await self._close(ledger_ids)
        if not closed:
            return
        try:
            # A session reads nothing older than its own writes, so these nodes are at least as new
            # as the end of the recoveries.
            named = await self._named(closed)
        except MalformedRecord as error:
            log.warning("no ledger is deleted, since a node cannot be read", error=error)
            return
        for ledger_id in closed.keys() - named:
            if self._sessions != sessions:
                return
            try:
                await self._metadata.delete(ledger_id, closed[ledger_id])
            except (BadVersion, NotFound):
                continue
            self.deleted += 1
            owner = self._found.pop(ledger_id)
            log.info("a ledger is deleted that no node names", ledger=ledger_id, owner=owner.path)

    async def _close(self, ledger_ids: list[int]) -> dict[int, int]:
        """Close ledgers; return the versions of their metadata. One that cannot be closed is left
        out.
        """
        closed: dict[int, int] = {}
        for ledger_id in ledger_ids:
            try:
                await self._ledgers.recover(ledger_id)
                metadata, version = await self._metadata.read(ledger_id)
            except (LedgerError, MetadataError) as error:
                log.warning(
                    "a ledger that no node names cannot be closed", ledger=ledger_id, error=error
                )
                continue
            if metadata.is_closed:
                closed[ledger_id] = version
        return closed

    async def _named(self, ledger_ids: Collection[int]) -> set[int]:
        """Return the ledgers that any topic, cursor or schema names. Raises MalformedRecord."""
        named: set[int] = set()
        async for path, value in self._values(paths.MANAGED_LEDGERS):
            named.update(_named_by(path, value).intersection(ledger_ids))
        async for path, value in self._values(paths.SCHEMAS):
            named.update((await _named_by_schema(path, value)).intersection(ledger_ids))
        return named

    async def _values(self, root: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield all nodes below a path that have a value."""
        parents = [root]
        while parents:
            some, parents = parents[-NODES_PER_READ:], parents[:-NODES_PER_READ]
            below = []
            for parent, children in zip(some, await self._store.children_all(some), strict=True):
                if isinstance(children, BaseException):
                    raise children
                below += [f"{parent}/{each}" for each in children]
            for at in range(0, len(below), NODES_PER_READ):
                asked = below[at : at + NODES_PER_READ]
                nodes = await self._store.get_all(asked)
                async for path, node in in_slices(list(zip(asked, nodes, strict=True))):
                    if isinstance(node, BaseException):
                        raise node
                    if node is not None and node.value:
                        yield path, node.value
                await asyncio.sleep(self._pause_s)
            parents += below


def owner_of(custom: Mapping[str, bytes], all_brokers: bool) -> Owner | None:
    """Return the owner that the custom metadata of a ledger name; None for one that must not be
    judged.
    """
    is_certain = NAMED_IN_STORE in custom
    if custom.get("application") != b"pulsar" or not (is_certain or all_brokers):
        return None
    component = custom.get("component")
    try:
        if component == b"managed-ledger":
            name = custom["pulsar/managed-ledger"].decode()
            if "pulsar/cursor" in custom:
                return Owner(paths.cursor(name, custom["pulsar/cursor"].decode()))
            return Owner(paths.managed_ledger(name))
        if component == b"schema" and is_certain:
            return Owner(paths.schema(custom["pulsar/schemaId"].decode()))
        if component == b"compacted-ledger" and is_certain:
            # A topic that exists finds its own compacted ledgers (mledger/compacted_ledger.py).
            topic = TopicName.get(custom["pulsar/compactedTopic"].decode())
            return Owner(paths.managed_ledger(topic.managed_ledger_name), is_enough=True)
    except (KeyError, ValueError, InvalidTopicName):
        return None
    return None


async def _names(node: GetResult | BaseException | None, ledger_id: int, owner: Owner) -> bool:
    """Return True if the owner's node names a ledger, or if that cannot be known."""
    if node is None:
        return False
    if isinstance(node, BaseException) or owner.is_enough:
        return True
    try:
        if owner.path.startswith(f"{paths.SCHEMAS}/"):
            return ledger_id in await _named_by_schema(owner.path, node.value)
        return ledger_id in _named_by(owner.path, node.value)
    except MalformedRecord:
        return True


def _named_by(path: str, value: bytes) -> set[int]:
    """Return the ledgers that the node of a topic or a cursor names. Numbers in properties count as
    names: those of compacted ledgers and of buckets of delayed messages are there. Raises
    MalformedRecord.
    """
    if not value:
        return set()
    try:
        cursor = records.decode_managed_cursor_info(value)
    except MalformedRecord:
        pass
    else:
        found = {cursor.cursorsLedgerId, *(each.value for each in cursor.properties)}
        return found | _numbers(cursor.cursorProperties)
    try:
        topic = records.decode_managed_ledger_info(value)
    except MalformedRecord as error:
        raise MalformedRecord(f"{path} is neither a topic nor a cursor: {error}") from error
    return {each.ledgerId for each in topic.ledgerInfo} | _numbers(topic.properties)


def _numbers(properties: Collection[object]) -> set[int]:
    return {
        int(number)
        for each in properties
        for number in _NUMBER.findall(str(each.value))  # type: ignore[attr-defined]
    }


async def _named_by_schema(path: str, value: bytes) -> set[int]:
    """Return the ledgers that the node of a schema names. Raises MalformedRecord."""
    try:
        entries = await run_in_slices(schema_records.decode_locator(value))
    except MalformedRecord as error:
        raise MalformedRecord(f"{path}: {error}") from error
    return {each.ledger_id for each in entries}

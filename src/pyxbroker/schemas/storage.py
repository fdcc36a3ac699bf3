"""Storage of schema versions: each in a ledger of its own, named by one node per schema.

The node /schemas/<schema id> is Pulsar's SchemaLocator and names all versions; each ledger has one
entry. The entry is durable before the node names it. The node is changed by compare-and-set, in one
transaction with the closing of the ledger. An interruption before leaves the schema unchanged, and
an unused ledger. Numbers continue after a deletion, which is a version itself. They start again
when all versions are deleted from storage.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial

from pyxbroker.base.errors import IncompatibleSchema
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import run_in_slices
from pyxbroker.entry import EntryRun
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata import paths
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, NotFound, Put
from pyxbroker.schemas import records
from pyxbroker.schemas.values import VERSIONS_MAX, IndexEntry, SchemaType, StoredSchema

log = get_logger("pyxbroker.schemas")

KNOWN_VERSIONS_MAX = 50_000
"""Cached versions of all schemas together: 10 MB. Evicted schemas are read again when needed."""


class Versions:
    """The content of a schema's node, and what was read of its versions since.

    `live` are the versions after the last deletion. Both lists only grow at their ends.
    """

    def __init__(self, node_version: int, index: bytes, entries: list[IndexEntry]) -> None:
        self.node_version = node_version
        self.index = index
        self.entries = entries
        first = len(entries)
        while first and not entries[first - 1].is_deletion:
            first -= 1
        self.live = entries[first:]
        self.of_hash: dict[bytes, list[IndexEntry]] = {}
        for each in self.live:
            self._add_hash(each)
        self.types: dict[int, SchemaType] = {}  # of versions that were read
        self.fingerprints: dict[bytes, int] | None = None  # of all live versions; None: not read

    def add(self, entry: IndexEntry, node_version: int, index: bytes) -> None:
        """Append a version."""
        self.node_version = node_version
        self.index = index
        self.entries.append(entry)
        self.live.append(entry)
        self._add_hash(entry)

    def _add_hash(self, entry: IndexEntry) -> None:
        self.of_hash.setdefault(entry.hash, []).append(entry)

    @property
    def newest(self) -> IndexEntry:
        """The last version, which may be a deletion."""
        return self.entries[-1]

    def at(self, version: int) -> IndexEntry | None:
        """Return a live version, or None."""
        if not self.live:
            return None
        place = version - self.live[0].version
        return self.live[place] if 0 <= place < len(self.live) else None


class SchemaStorage:
    """The schemas of all topics."""

    def __init__(self, store: MetadataStore, ledgers: LedgerClient) -> None:
        self._store = store
        self._ledgers = ledgers
        self._known: OrderedDict[str, Versions] = OrderedDict()
        self._counts: dict[str, int] = {}  # versions of each schema, as counted when it was added
        self._known_versions = 0

    # --- reading ------------------------------------------------------------------------------

    async def versions(self, schema_id: str) -> Versions | None:
        """Return the versions of a schema, or None. Raises MetadataError."""
        found = await self._store.get(paths.schema(schema_id))
        if found is None:
            self.forget(schema_id)
            return None
        known = self._known.get(schema_id)
        if known is not None and known.node_version == found.version:
            self._known.move_to_end(schema_id)
            return known
        entries = await run_in_slices(records.decode_locator(found.value))
        versions = Versions(found.version, records.index_of(found.value), entries)
        self._cache(schema_id, versions)
        return versions

    async def read(self, entry: IndexEntry) -> StoredSchema:
        """Read one version. Raises LedgerError, MetadataError."""
        retries = Retries(f"reading version {entry.version} of a schema")
        handle = await retries.call(partial(self._ledgers.open_read, entry.ledger_id))
        batch = await retries.call(partial(handle.read_future, entry.entry_id, entry.entry_id))
        return records.decode_schema(records.decode_entry(batch.data(0)), entry.version)

    def _cache(self, schema_id: str, versions: Versions) -> None:
        self.forget(schema_id)
        self._known[schema_id] = versions
        self._counts[schema_id] = len(versions.entries)
        self._known_versions += len(versions.entries)
        while self._known_versions > KNOWN_VERSIONS_MAX and len(self._known) > 1:
            self.forget(next(iter(self._known)))

    def forget(self, schema_id: str) -> None:
        """Drop a schema from the cache."""
        if self._known.pop(schema_id, None) is not None:
            self._known_versions -= self._counts.pop(schema_id)

    # --- writing ------------------------------------------------------------------------------

    async def append(
        self, schema_id: str, before: Versions | None, stored: StoredSchema
    ) -> IndexEntry | None:
        """Store one more version; return None if another broker has stored one meanwhile.

        Callers in this process must serialize writes of one schema. Raises IncompatibleSchema if
        there are too many versions, LedgerError, MetadataError.
        """
        entries = [] if before is None else before.entries
        if len(entries) >= VERSIONS_MAX:
            raise IncompatibleSchema(
                f"The schema has {len(entries)} versions, which is the limit of this broker; delete"
                " it with force=true, or use another topic."
            )
        if entries:
            # Like Pulsar: add no version if existing ones are unreadable.
            await self.read(entries[0])
        version = entries[-1].version + 1 if entries else 0
        data = records.encode_schema(schema_id, stored)
        handle = await self._write(schema_id, records.encode_entry(data, entries))
        digest = b"" if stored.deleted else stored.schema.hash
        entry = IndexEntry(version, handle.ledger_id, 0, digest)
        value = records.encode_locator(entry, b"" if before is None else before.index)
        expected = MUST_NOT_EXIST if before is None else before.node_version
        naming = Put(paths.schema(schema_id), value, expected)
        try:
            node_version = await self._ledgers.close_named(handle, naming)
        except (BadVersion, NotFound):
            log.info("another broker has changed the schema meanwhile", schema=schema_id)
            await self._ledgers.delete(handle.ledger_id)
            return None
        except LedgerError:
            await self._ledgers.delete(handle.ledger_id)
            raise
        index = records.index_of(value)
        if before is None or stored.deleted:
            self._cache(schema_id, Versions(node_version, index, [*entries, entry]))
        else:
            before.add(entry, node_version, index)
            before.types[version] = stored.schema.type
            self._cache(schema_id, before)
        return entry

    async def _write(self, schema_id: str, data: bytes) -> LedgerHandle:
        """Write a durable entry in a ledger of its own, and return the ledger, which is open."""
        writer = _Writer()
        handle = await self._ledgers.create_for_schema(writer, schema_id)
        try:
            await writer.write(handle, data)
        except BaseException:
            # No node names the ledger yet.
            await self._ledgers.delete(handle.ledger_id)
            raise
        return handle

    async def delete(self, schema_id: str) -> None:
        """Delete a schema with all of its versions. Raises MetadataError.

        The node is deleted first: an interruption leaves unused ledgers.
        """
        path = paths.schema(schema_id)
        while True:
            found = await self._store.get(path)
            if found is None:
                return
            try:
                entries = await run_in_slices(records.decode_locator(found.value))
            except MalformedRecord as error:
                log.warning("a schema's node cannot be read; its ledgers remain", error=error)
                entries = []
            try:
                await self._store.delete(path, found.version)
            except NotFound:
                return
            except BadVersion:
                continue
            break
        self.forget(schema_id)
        for each in entries:
            await self._ledgers.delete(each.ledger_id)


class _Writer:
    """Writes the only entry of a ledger, and waits for it."""

    def __init__(self) -> None:
        self._confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write(self, handle: LedgerHandle, data: bytes) -> None:
        handle.append(EntryRun.of(data, self))  # on failure it calls on_ledger_failed
        await self._confirmed

    def on_run_confirmed(self, run: EntryRun) -> None:
        """The entry has reached its ack quorum."""
        if not self._confirmed.done():
            self._confirmed.set_result(None)

    def on_run_taken_back(self, run: EntryRun) -> None:
        """Never called: the broker's own entries have priority, and wait for space."""
        raise AssertionError("the entry of a schema was taken back")

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        """The entry cannot be written."""
        if not self._confirmed.done():
            self._confirmed.set_exception(error)

"""The schema registry: the schemas of topics, and which schemas they may get (Pulsar's
SchemaRegistryServiceImpl).

A registered schema is found by its hash without reading a ledger. Registrations of new schemas to
the same topic are serialized. A check of every version reads the versions one by one, in slices,
and keeps none of them in memory.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from pyxbroker.base.errors import IncompatibleSchema
from pyxbroker.base.slices import in_slices, run_in_slices
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.metadata.turns import Turns
from pyxbroker.schemas import compatibility
from pyxbroker.schemas.schema_counts import SchemaCounts
from pyxbroker.schemas.storage import SchemaStorage, Versions
from pyxbroker.schemas.values import IndexEntry, Schema, SchemaType, StoredSchema

NOT_FOUND = -1
"""The version of a missing schema."""


def _is_open() -> None:
    """Accept: the topic is not being deleted."""


class Rules(NamedTuple):
    """The rules for registering a schema to a topic."""

    strategy: str
    may_update: bool = True  # clients may register further schemas
    user: str = ""  # the role that registers it
    check_open: Callable[[], None] = _is_open
    """A function that raises an error if the topic is being deleted with its schema."""


class SchemaRegistry:
    """The schemas of all topics; each is named by `tenant/namespace/<encoded topic>`.

    `check_space` raises an error while storage refuses writes. Methods raise LedgerError and
    MetadataError.
    """

    def __init__(
        self, store: MetadataStore, ledgers: LedgerClient, check_space: Callable[[], None]
    ) -> None:
        self._storage = SchemaStorage(store, ledgers)
        self._check_space = check_space
        self._changing = Turns[str](store)
        self.counts = SchemaCounts()

    # --- lookup -------------------------------------------------------------------------------

    async def has_schema(self, schema_id: str) -> bool:
        """Return True if a topic has a schema."""
        versions = await self._storage.versions(schema_id)
        return versions is not None and bool(versions.live)

    async def latest(self, schema_id: str) -> StoredSchema | None:
        """Return the newest version, which may be a deletion, or None if there never was one."""
        with self.counts.counting("get", schema_id):
            versions = await self._storage.versions(schema_id)
            return None if versions is None else await self._storage.read(versions.newest)

    async def get(self, schema_id: str, version: int) -> StoredSchema | None:
        """Return one version, or None if it does not exist or was deleted."""
        with self.counts.counting("get", schema_id):
            versions = await self._storage.versions(schema_id)
            if versions is None:
                return None
            entry = versions.at(version)
            if entry is None and version == versions.newest.version:
                entry = versions.newest
            return None if entry is None else await self._storage.read(entry)

    async def every(self, schema_id: str) -> AsyncIterator[StoredSchema]:
        """Yield the versions since the last deletion, oldest first."""
        versions = await self._storage.versions(schema_id)
        async for each in self._every(versions):
            yield each

    async def index(self, schema_id: str) -> list[IndexEntry]:
        """Return the locations of all versions, including deletions, oldest first."""
        versions = await self._storage.versions(schema_id)
        return [] if versions is None else list(versions.entries)

    async def find(self, schema_id: str, schema: Schema) -> int:
        """Return the version with the same type and an identical definition, or NOT_FOUND. Raises
        InvalidSchema for a definition that is too long.
        """
        compatibility.check_size(schema)
        versions = await self._storage.versions(schema_id)
        return NOT_FOUND if versions is None else await self._find_same(versions, schema)

    # --- registration -------------------------------------------------------------------------

    async def find_or_create(self, schema_id: str, schema: Schema, rules: Rules) -> int:
        """Return the version of a schema, registering it if needed. Raises IncompatibleSchema."""
        with self.counts.counting("put", schema_id):
            return await self._put(schema_id, schema, rules)

    async def _put(self, schema_id: str, schema: Schema, rules: Rules) -> int:
        compatibility.check_size(schema)
        versions = await self._storage.versions(schema_id)
        if versions is not None:
            version = await self._find_same(versions, schema)
            if version != NOT_FOUND:
                return version
        await run_in_slices(compatibility.validate(schema))
        async with self._changing.turn(schema_id):
            while True:
                version = await self._find_or_create(schema_id, schema, rules)
                if version != NOT_FOUND:
                    return version

    async def _find_or_create(self, schema_id: str, schema: Schema, rules: Rules) -> int:
        versions = await self._storage.versions(schema_id)
        own = await run_in_slices(compatibility.fingerprint(schema))
        if versions is not None:
            fingerprints = await self._fingerprints(versions)
            version = fingerprints.get(own)
            if version is not None:
                return version
        if not rules.may_update:
            raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
        if versions is not None:
            with self.counts.checking(schema_id):
                await self._check(versions, schema, rules.strategy)
        self._check_space()
        rules.check_open()
        now_ms = int(time.time() * 1000)
        stored = StoredSchema(schema, rules.user, now_ms, deleted=False)
        entry = await self._storage.append(schema_id, versions, stored)
        if entry is None:
            return NOT_FOUND
        if versions is not None and versions.fingerprints is not None:
            versions.fingerprints.setdefault(own, entry.version)
        return entry.version

    async def check(self, schema_id: str, schema: Schema, strategy: str) -> None:
        """Raise IncompatibleSchema for a schema that the topic may not get."""
        await run_in_slices(compatibility.validate(schema))
        versions = await self._storage.versions(schema_id)
        if versions is not None:
            with self.counts.checking(schema_id):
                await self._check(versions, schema, strategy)

    async def check_consumer(self, schema_id: str, schema: Schema, strategy: str) -> None:
        """Raise IncompatibleSchema for a consumer that cannot read the topic's schemas."""
        if strategy == compatibility.ALWAYS_COMPATIBLE:
            return
        versions = await self._storage.versions(schema_id)
        if versions is None or not versions.live:
            raise IncompatibleSchema(
                "Failed to add schema to an active topic with empty(BYTES) schema: new schema type"
                f" {schema.type}"
            )
        await run_in_slices(compatibility.validate(schema))
        if strategy in _CONSUMER_READS_LATEST:
            await self._check_latest(versions, schema, compatibility.BACKWARD[0])
        else:
            await self._check_every(versions, schema, strategy)

    async def _check(self, versions: Versions, schema: Schema, strategy: str) -> None:
        if strategy == compatibility.ALWAYS_COMPATIBLE or not versions.live:
            return
        if compatibility.is_transitive(strategy):
            await self._check_every(versions, schema, strategy)
        else:
            await self._check_latest(versions, schema, strategy)

    async def _check_latest(self, versions: Versions, schema: Schema, strategy: str) -> None:
        newest = versions.live[-1]
        old = (await self._storage.read(newest)).schema
        if old.type is schema.type and old.data == schema.data:
            return
        await run_in_slices(compatibility.check(old, newest.version, schema, strategy))

    async def _check_every(self, versions: Versions, schema: Schema, strategy: str) -> None:
        # The newest first, which is the most likely to be incompatible.
        known: compatibility.ParsedSchemas = {}
        for each in reversed(versions.live[:]):
            old = (await self._storage.read(each)).schema
            await run_in_slices(compatibility.check(old, each.version, schema, strategy, known))

    async def _find_same(self, versions: Versions, schema: Schema) -> int:
        for each in versions.of_hash.get(schema.hash, ()):
            kind = versions.types.get(each.version)
            if kind is None:
                kind = (await self._storage.read(each)).schema.type
                versions.types[each.version] = kind
            if kind is schema.type:
                return each.version
        return NOT_FOUND

    async def _fingerprints(self, versions: Versions) -> dict[bytes, int]:
        """Return fingerprint -> first version with it, for all live versions; cached."""
        if versions.fingerprints is None:
            found: dict[bytes, int] = {}
            async for each in self._every(versions):
                own = await run_in_slices(compatibility.fingerprint(each.schema))
                found.setdefault(own, each.version)
            versions.fingerprints = found
        return versions.fingerprints

    async def _every(self, versions: Versions | None) -> AsyncIterator[StoredSchema]:
        async for each in in_slices([] if versions is None else versions.live[:]):
            yield await self._storage.read(each)

    # --- deletion -----------------------------------------------------------------------------

    async def delete(self, schema_id: str, user: str = "") -> int:
        """Delete a schema by adding a deletion as its newest version; return that version."""
        with self.counts.counting("del", schema_id):
            return await self._delete(schema_id, user)

    async def _delete(self, schema_id: str, user: str) -> int:
        async with self._changing.turn(schema_id):
            while True:
                versions = await self._storage.versions(schema_id)
                now_ms = int(time.time() * 1000)
                deletion = StoredSchema(Schema(SchemaType.NONE), user, now_ms, deleted=True)
                entry = await self._storage.append(schema_id, versions, deletion)
                if entry is not None:
                    return entry.version

    async def delete_storage(self, schema_id: str) -> None:
        """Delete a schema with all stored versions; their numbers start again."""
        async with self._changing.turn(schema_id):
            await self._storage.delete(schema_id)


_CONSUMER_READS_LATEST = ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL")
"""Strategies under which a consumer must only be able to read the newest version."""

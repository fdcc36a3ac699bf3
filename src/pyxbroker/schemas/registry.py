"""The schema registry: which schema a topic has, and which one it may get (Pulsar's
SchemaRegistryServiceImpl).

A schema that was registered before is found by its hash, without reading anything; whoever brings
another one waits for those who brought one to the same topic before. What looks at every version
reads them one by one, in slices, and keeps none of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from pyxbroker.base.errors import IncompatibleSchema
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.metadata.turns import Turns
from pyxbroker.schemas import compatibility
from pyxbroker.schemas.schema_counts import SchemaCounts
from pyxbroker.schemas.storage import SchemaStorage, Versions
from pyxbroker.schemas.values import IndexEntry, Schema, SchemaType, StoredSchema

NOT_FOUND = -1
"""The version of a schema that is not there."""


def _is_open() -> None:
    """Nobody deletes the topic."""


class Rules(NamedTuple):
    """What holds for the schemas of a topic."""

    strategy: str
    may_update: bool = True  # whether clients may register further schemas
    user: str = ""  # who registers it
    check_open: Callable[[], None] = _is_open
    """Raises the error of who comes too late: the topic is being deleted with its schema."""


class SchemaRegistry:
    """The schemas of all topics; each is named by `tenant/namespace/<encoded topic>`.

    `check_space` raises the error of who cannot store anything now. Methods raise LedgerError and
    MetadataError.
    """

    def __init__(
        self, store: MetadataStore, ledgers: LedgerClient, check_space: Callable[[], None]
    ) -> None:
        self._storage = SchemaStorage(store, ledgers)
        self._check_space = check_space
        self._changing = Turns[str](store)
        self.counts = SchemaCounts()

    # --- what there is ------------------------------------------------------------------------

    async def has_schema(self, schema_id: str) -> bool:
        """Whether a topic has one."""
        versions = await self._storage.versions(schema_id)
        return versions is not None and bool(versions.live)

    async def latest(self, schema_id: str) -> StoredSchema | None:
        """The newest version, be it a deletion; None: there never was one."""
        with self.counts.counting("get", schema_id):
            versions = await self._storage.versions(schema_id)
            return None if versions is None else await self._storage.read(versions.newest)

    async def get(self, schema_id: str, version: int) -> StoredSchema | None:
        """One version; None: there is none, or the schema was deleted since."""
        with self.counts.counting("get", schema_id):
            versions = await self._storage.versions(schema_id)
            if versions is None:
                return None
            entry = versions.at(version)
            if entry is None and version == versions.newest.version:
                entry = versions.newest
            return None if entry is None else await self._storage.read(entry)

    async def every(self, schema_id: str) -> AsyncIterator[StoredSchema]:
        """The versions since the last deletion, the oldest first."""
        versions = await self._storage.versions(schema_id)
        async for each in self._every(versions):
            yield each

    async def index(self, schema_id: str) -> list[IndexEntry]:
        """Where all versions are, deletions among them, the oldest first."""
        versions = await self._storage.versions(schema_id)
        return [] if versions is None else list(versions.entries)

    async def find(self, schema_id: str, schema: Schema) -> int:
        """The version with the same type and the very same definition, or NOT_FOUND. Raises
        InvalidSchema for one that is too long.
        """
        compatibility.check_size(schema)
        versions = await self._storage.versions(schema_id)
        return NOT_FOUND if versions is None else await self._find_same(versions, schema)

    # --- what it may get ----------------------------------------------------------------------

    async def find_or_create(self, schema_id: str, schema: Schema, rules: Rules) -> int:
        """The version of a schema that a topic has, or gets. Raises IncompatibleSchema."""
        with self.counts.counting("put", schema_id):
            return await self._put(schema_id, schema, rules)

    async def _put(self, schema_id: str, schema: Schema, rules: Rules) -> int:
        compatibility.check_size(schema)
        versions = await self._storage.versions(schema_id)
        if versions is not None:
            version = await self._find_same(versions, schema)
            if version != NOT_FOUND:
                return version
        await in_slices(compatibility.validate(schema))
        async with self._changing.turn(schema_id):
            while True:
                version = await self._find_or_create(schema_id, schema, rules)
                if version != NOT_FOUND:
                    return version

    async def _find_or_create(self, schema_id: str, schema: Schema, rules: Rules) -> int:
        versions = await self._storage.versions(schema_id)
        own = await in_slices(compatibility.fingerprint(schema))
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
        """Raises IncompatibleSchema for a schema that the topic may not get."""
        await in_slices(compatibility.validate(schema))
        versions = await self._storage.versions(schema_id)
        if versions is not None:
            with self.counts.checking(schema_id):
                await self._check(versions, schema, strategy)

    async def check_consumer(self, schema_id: str, schema: Schema, strategy: str) -> None:
        """Raises IncompatibleSchema for a consumer that cannot read what the topic has."""
        if strategy == compatibility.ALWAYS_COMPATIBLE:
            return
        versions = await self._storage.versions(schema_id)
        if versions is None or not versions.live:
            raise IncompatibleSchema(
                "Failed to add schema to an active topic with empty(BYTES) schema: new schema type"
                f" {schema.type}"
            )
        await in_slices(compatibility.validate(schema))
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
        await in_slices(compatibility.check(old, newest.version, schema, strategy))

    async def _check_every(self, versions: Versions, schema: Schema, strategy: str) -> None:
        # The newest first: it is the one that most likely does not fit.
        known: compatibility.Known = {}
        for each in reversed(versions.live[:]):
            old = (await self._storage.read(each)).schema
            await in_slices(compatibility.check(old, each.version, schema, strategy, known))

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
        """What each version means -> the first one that means it. They are read once."""
        if versions.fingerprints is None:
            found: dict[bytes, int] = {}
            async for each in self._every(versions):
                own = await in_slices(compatibility.fingerprint(each.schema))
                found.setdefault(own, each.version)
            versions.fingerprints = found
        return versions.fingerprints

    async def _every(self, versions: Versions | None) -> AsyncIterator[StoredSchema]:
        slices = Slices()
        for each in [] if versions is None else versions.live[:]:
            yield await self._storage.read(each)
            await slices.pause()

    # --- deleting -----------------------------------------------------------------------------

    async def delete(self, schema_id: str, user: str = "") -> int:
        """Deletes a schema: its newest version says so from now on. That version."""
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
        """Deletes a schema with all that was stored of it; numbers begin anew."""
        async with self._changing.turn(schema_id):
            await self._storage.delete(schema_id)


_CONSUMER_READS_LATEST = ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL")
"""Strategies under which a consumer only has to read the newest version."""

"""The records that say who may do what, as metadata has them now."""

from __future__ import annotations

from pyxbroker.broker.revoked_rights import NOTHING, Granted, granted_by
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.policies.records import Fields, read_cached


class GrantRecords:
    """Those of tenants and of namespaces, each read again after it has changed."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self.granted: dict[str, Granted] = {}
        """What each record granted when it was first asked for, or looked at anew."""

    async def tenant(self, name: str) -> Fields | None:
        """None when there is none. Raises MetadataStoreError for one that cannot be read."""
        return self._noted(name, await self._read(paths.tenant(name)))

    async def namespace(self, name: str) -> Fields | None:
        """The same of a namespace."""
        return self._noted(name, await self._read(paths.namespace_policies(name)))

    async def look_anew(self, name: str) -> Granted:
        """What a record grants now."""
        record = await self._read(f"{paths.POLICIES}/{name}")
        if record is None:
            self.granted.pop(name, None)
            return NOTHING
        self.granted[name] = granted_by(record)
        return self.granted[name]

    def _noted(self, name: str, record: Fields | None) -> Fields | None:
        if record is not None and name not in self.granted:
            self.granted[name] = granted_by(record)
        return record

    async def _read(self, path: str) -> Fields | None:
        return await read_cached(self._cache, path)

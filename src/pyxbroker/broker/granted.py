"""The records that say who may do what, as metadata has them now."""

from __future__ import annotations

from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.policies.records import Fields, fields_of


class GrantRecords:
    """Those of tenants and of namespaces, each read again after it has changed."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    async def tenant(self, name: str) -> Fields | None:
        """None when there is none. Raises MetadataStoreError for one that cannot be read."""
        return await self._read(paths.tenant(name))

    async def namespace(self, name: str) -> Fields | None:
        """The same of a namespace."""
        return await self._read(paths.namespace_policies(name))

    async def _read(self, path: str) -> Fields | None:
        value = await self._cache.get(path)
        return None if value is None else fields_of(path, value)

"""The records that grant rights, cached from metadata."""

from __future__ import annotations

from pyxbroker.broker.revoked_rights import NOTHING, Granted, granted_by
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.policies.records import Fields, read_cached


class GrantRecords:
    """The records of tenants and namespaces; a changed record is read again."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self.granted: dict[str, list[Granted]] = {}
        """The grants by which rights were checked since the last refresh() of each record."""

    async def tenant(self, name: str) -> Fields | None:
        """Return a tenant's record, or None. Raises MetadataStoreError if it is unreadable."""
        return self._noted(name, await self._read(paths.tenant(name)))

    async def namespace(self, name: str) -> Fields | None:
        """Return a namespace's record, or None. Raises MetadataStoreError if it is unreadable."""
        return self._noted(name, await self._read(paths.namespace_policies(name)))

    async def refresh(self, name: str) -> Granted:
        """Read a record again, and return its grants."""
        record = await self._read(f"{paths.POLICIES}/{name}")
        if record is None:
            self.granted.pop(name, None)
            return NOTHING
        grants = granted_by(record)
        self.granted[name] = [grants]
        return grants

    def _noted(self, name: str, record: Fields | None) -> Fields | None:
        if record is not None:
            # A check may read a changed record before refresh() does.
            grants, noted = granted_by(record), self.granted.setdefault(name, [])
            if not noted or grants != noted[-1]:
                noted.append(grants)
        return record

    async def _read(self, path: str) -> Fields | None:
        return await read_cached(self._cache, path)

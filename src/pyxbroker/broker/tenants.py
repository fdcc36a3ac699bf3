"""Tenants: each is a record, Pulsar's TenantInfo at /admin/policies/<tenant>, above its
namespaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.errors import (
    ClusterInUse,
    NamespaceNotFound,
    TenantExists,
    TenantNotEmpty,
    TenantNotFound,
    TenantsLimitReached,
)
from pyxbroker.base.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MetadataStore,
    NotEmpty,
)
from pyxbroker.policies.records import (
    Fields,
    change_record,
    create_record,
    delete_record,
    fields_of,
)
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.broker.namespaces import Namespaces
    from pyxbroker.metadata.cache import MetadataCache

log = get_logger("pyxbroker.namespaces")

CLUSTERS = "allowedClusters"  # field of the record


class Tenants:
    """The tenants of this instance. Mirrors TenantsBase."""

    def __init__(
        self, config: Config, store: MetadataStore, cache: MetadataCache, namespaces: Namespaces
    ) -> None:
        self._config = config
        self._store = store
        self._cache = cache
        self._namespaces = namespaces

    async def names(self) -> list[str]:
        return await self._store.children(paths.POLICIES)

    async def record(self, name: str) -> Fields:
        """Return the fields of a tenant's record. Raises TenantNotFound."""
        path = paths.tenant(name)
        found = await self._store.get(path)
        if found is None:
            raise TenantNotFound("Tenant does not exist")
        return fields_of(path, found.value)

    async def create(self, name: str, fields: Fields) -> None:
        """Create a tenant. Raises TenantExists, TenantsLimitReached."""
        async with self._namespaces.creation_lock:
            path = paths.tenant(name)
            limit = self._config.maxTenants
            if await self._store.exists(path):
                raise TenantExists("Tenant already exist")
            if limit > 0 and len(await self.names()) >= limit:
                raise TenantsLimitReached("Exceed the maximum number of tenants")
            if not await create_record(self._store, self._cache, path, fields):
                raise TenantExists("Tenant already exist")
        log.info("a tenant was created", tenant=name)

    async def update(self, name: str, fields: Fields) -> None:
        """Change fields of a tenant. A cluster with namespaces of the tenant cannot be removed.

        Raises TenantNotFound, ClusterInUse, ConcurrentModification.
        """
        async with self._namespaces.creation_lock:
            found = await self._store.get(paths.tenant(name))
            if found is None:
                raise TenantNotFound(f"Tenant {name} not found")
            before = fields_of(paths.tenant(name), found.value).get(CLUSTERS) or []
            if going := set(before) - set(fields[CLUSTERS]):
                await self._check_unused(name, going)

            def change(record: Fields) -> None:
                record.update(fields)

            path = paths.tenant(name)
            if await change_record(self._store, self._cache, path, change) is None:
                raise TenantNotFound(f"Tenant {name} not found")

    async def _check_unused(self, name: str, clusters: set[str]) -> None:
        """Raise ClusterInUse if a namespace is in one of the clusters."""
        for namespace in await self._namespaces.names(name):
            try:
                record = await self._namespaces.record(namespace)
            except NamespaceNotFound:
                continue
            for cluster in record.get("replication_clusters") or []:
                if cluster in clusters:
                    raise ClusterInUse(
                        f"Cannot remove cluster {cluster} from tenant {name}: namespace"
                        f" {namespace} still has it as a replication cluster"
                    )

    async def delete(self, name: str, force: bool) -> None:
        """Delete a tenant, with force together with its namespaces.

        Raises TenantNotFound, TenantNotEmpty, and the errors that prevent the deletion of a
        namespace.
        """
        if not await self._store.exists(paths.tenant(name)):
            raise TenantNotFound("Tenant doesn't exist")
        if force:
            for each in await self._namespaces.names(name):
                await self._namespaces.delete(each, force=True)
        async with self._namespaces.creation_lock:
            if await self._namespaces.names(name):
                raise TenantNotEmpty("The tenant still has active namespaces")
            # Nodes that deleted namespaces have left.
            for above in (
                paths.topics_of(name),
                paths.partitioned_topics_of(name),
                paths.schemas(name),
                paths.local_policies(name),
                paths.resource_quotas(name),
            ):
                await self._delete_unused(above)
            try:
                was_there = await delete_record(self._store, self._cache, paths.tenant(name))
            except NotEmpty as error:
                raise TenantNotEmpty("The tenant still has active namespaces") from error
            if not was_there:
                raise TenantNotFound("Tenant doesn't exist")
        log.info("a tenant was deleted", tenant=name)

    async def _delete_unused(self, path: str) -> None:
        try:
            await delete_record(self._store, self._cache, path)
        except NotEmpty as error:
            # Another tenant of the name has it then.
            log.warning("a node of a deleted tenant remains in metadata", path=path, error=error)

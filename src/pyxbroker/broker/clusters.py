"""Clusters: each is a record, Pulsar's ClusterData at /admin/clusters/<cluster>, above its failure
domains and isolation policies. This broker serves one of them and replicates to none. It stores the
other records for brokers that do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import (
    BrokerInOtherDomain,
    ClusterExists,
    ClusterNotEmpty,
    ClusterNotFound,
    ClustersLimitReached,
    FailureDomainNotFound,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, NotEmpty
from pyxbroker.metadata.turns import Turns
from pyxbroker.policies.records import (
    Fields,
    change_record,
    create_record,
    delete_record,
    fields_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyxbroker.broker.tenants import Tenants
    from pyxbroker.metadata.cache import MetadataCache

log = get_logger("pyxbroker.clusters")

CLUSTERS_MAX = 1_000  # per instance: each reference to a cluster is compared with all
DOMAINS_MAX = 100  # per cluster: setting one reads the others
POLICIES_MAX = 100  # isolation policies per cluster: one record has all
BROKERS = "brokers"  # a field of a failure domain


class Clusters:
    """The clusters of this instance. Mirrors ClustersBase and ClusterResources."""

    def __init__(
        self, store: MetadataStore, cache: MetadataCache, tenants: Callable[[], Tenants]
    ) -> None:
        self._store = store
        self._cache = cache
        self._tenants = tenants
        self._turns = Turns[None](store)  # makes limits exact, and a broker's domain unique

    async def names(self) -> list[str]:
        return await self._store.children(paths.CLUSTERS)

    async def record(self, name: str) -> Fields:
        """Return the fields of a cluster's record. Raises ClusterNotFound."""
        path = paths.cluster(name)
        # A name may have slashes or dots, and so name another path.
        found = await self._store.get(path) if name in await self.names() else None
        if found is None:
            raise ClusterNotFound("Cluster does not exist")
        return fields_of(path, found.value)

    async def migration(self, name: str) -> Fields:
        """Return the record of a cluster's migration, which only Apache Pulsar writes. Raises
        ClusterNotFound, also without a record.
        """
        path = paths.cluster_policies(name)
        found = await self._store.get(path) if name in await self.names() else None
        if found is None:
            raise ClusterNotFound("Cluster does not exist")
        return fields_of(path, found.value)

    async def create(self, name: str, fields: Fields) -> None:
        """Create a cluster. Raises ClusterExists, ClustersLimitReached."""
        path = paths.cluster(name)
        async with self._turns.turn(None):
            names = await self.names()
            if name not in names and len(names) >= CLUSTERS_MAX:
                raise ClustersLimitReached(f"There are {CLUSTERS_MAX} clusters already.")
            try:
                await self._store.put(path, to_json(fields), MUST_NOT_EXIST)
            except BadVersion as error:
                raise ClusterExists("Cluster already exists") from error
            finally:
                self._cache.forget(path)
        log.info("a cluster was created", cluster=name)

    async def replace(self, name: str, fields: Fields) -> None:
        """Replace all fields of a cluster. Raises ClusterNotFound, ConcurrentModification."""

        def change(record: Fields) -> None:
            record.clear()
            record.update(fields)

        await self.record(name)
        path = paths.cluster(name)
        if await change_record(self._store, self._cache, path, change) is None:
            raise ClusterNotFound("Cluster does not exist")

    async def set_field(self, name: str, field: str, value: object) -> None:
        """Set one field of a cluster. Raises ClusterNotFound, ConcurrentModification."""
        await self.record(name)

        def change(record: Fields) -> None:
            record[field] = value

        path = paths.cluster(name)
        if await change_record(self._store, self._cache, path, change) is None:
            raise ClusterNotFound("Cluster does not exist")

    async def delete(self, name: str) -> None:
        """Delete a cluster and its failure domains, if no tenant and no isolation policy uses it.
        An interrupted deletion can be repeated. Raises ClusterNotFound, ClusterNotEmpty.

        Apache Pulsar looks for namespaces where versions before 2.0 stored them, so it deletes
        clusters that are in use.
        """
        async with self._turns.turn(None):
            await self.record(name)
            tenants = self._tenants()
            async for tenant in in_slices(await tenants.names()):
                if name in ((await tenants.record(tenant)).get("allowedClusters") or []):
                    raise ClusterNotEmpty("Cluster not empty")
            if await self.isolation_policies(name):
                raise ClusterNotEmpty("Cluster not empty")
            await delete_record(self._store, self._cache, paths.isolation_policies(name))
            above = paths.failure_domains(name)
            for each in await self._store.children(above):
                await delete_record(self._store, self._cache, paths.failure_domain(name, each))
            await delete_record(self._store, self._cache, above)
            try:
                await delete_record(self._store, self._cache, paths.cluster(name))
            except NotEmpty as error:
                raise ClusterNotEmpty("Cluster not empty") from error
        log.info("a cluster was deleted", cluster=name)

    # --- failure domains ----------------------------------------------------------------------

    async def failure_domains(self, name: str) -> dict[str, Fields]:
        """Return the failure domains of a cluster, none for an unknown cluster."""
        if name not in await self.names():
            return {}
        domains = {}
        async for each in in_slices(await self._store.children(paths.failure_domains(name))):
            path = paths.failure_domain(name, each)
            found = await self._store.get(path)
            if found is not None:
                domains[each] = fields_of(path, found.value)
        return domains

    async def set_failure_domain(self, name: str, domain: str, fields: Fields) -> None:
        """Create or replace a failure domain. A broker belongs to at most one.

        Raises ClusterNotFound, BrokerInOtherDomain, ClustersLimitReached.
        """
        path = paths.failure_domain(name, domain)
        async with self._turns.turn(None):
            if name not in await self.names():
                raise ClusterNotFound("Cluster does not exist")
            others = await self.failure_domains(name)
            others.pop(domain, None)
            if len(others) >= DOMAINS_MAX:
                raise ClustersLimitReached(f"A cluster has at most {DOMAINS_MAX} failure domains.")
            wanted = fields.get(BROKERS) or []
            slices = Slices()
            async for other, record in in_slices(others.items(), slices):
                known = set(record.get(BROKERS) or [])
                twice = [each for each in wanted if each in known]
                if twice:
                    raise BrokerInOtherDomain(f"[{', '.join(twice)}] already exists in {other}")
            await slices.pause()
            try:
                await self._store.put(path, to_json(fields))
            finally:
                self._cache.forget(path)

    async def delete_failure_domain(self, name: str, domain: str) -> None:
        """Delete a failure domain. Raises FailureDomainNotFound."""
        path = paths.failure_domain(name, domain)
        is_known = domain in await self._store.children(paths.failure_domains(name))
        if not (is_known and await delete_record(self._store, self._cache, path)):
            raise FailureDomainNotFound(f"Domain-name {domain} or cluster {name} does not exist")

    # --- isolation policies -------------------------------------------------------------------

    async def isolation_policies(self, name: str) -> dict[str, Fields] | None:
        """Return the isolation policies of a cluster by name, or None if it never had one.

        Raises ClusterNotFound.
        """
        if name not in await self.names():
            raise ClusterNotFound(f"Cluster {name} does not exist.")
        path = paths.isolation_policies(name)
        found = await self._store.get(path)
        return None if found is None else fields_of(path, found.value)

    async def set_isolation_policy(self, name: str, policy: str, fields: Fields | None) -> None:
        """Set an isolation policy, or delete it (None). Deleting a policy that does not exist
        succeeds.

        Raises ClusterNotFound, ClustersLimitReached, ConcurrentModification.
        """

        def change(policies: Fields) -> None:
            policies.pop(policy, None)
            if fields is None:
                return
            if len(policies) >= POLICIES_MAX:
                raise ClustersLimitReached(
                    f"A cluster has at most {POLICIES_MAX} isolation policies."
                )
            policies[policy] = fields

        path = paths.isolation_policies(name)
        async with self._turns.turn(None):
            if await self.isolation_policies(name) is None:
                await create_record(self._store, self._cache, path, {})
            await change_record(self._store, self._cache, path, change)

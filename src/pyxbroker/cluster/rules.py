"""The policies that decide where a bundle may go, read from the metadata of the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pyxbroker.base.slices import in_slices
from pyxbroker.cluster.addresses import read_fields
from pyxbroker.cluster.isolation import Isolation
from pyxbroker.cluster.placement import Rules
from pyxbroker.metadata import paths

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker

GROUP = "namespaceAntiAffinityGroup"
"""The field of a namespace's local record with the name of its anti-affinity group."""


class RulesReader:
    """Reads isolation policies, anti-affinity groups and failure domains."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._read: bytes | None = None  # from which _isolation is made
        self._isolation = Isolation()

    async def of_namespace(self, namespace: str, served: Iterable[str]) -> Rules:
        """Return the rules for the bundles of a namespace. `served` names the namespaces that have
        bundles at brokers. Raises MetadataError.
        """
        if not await self._group(namespace):
            return Rules(await self._isolation_policies())
        return await self.of_all({namespace, *served})

    async def of_all(self, namespaces: Iterable[str]) -> Rules:
        """Return the rules for the bundles of several namespaces. Raises MetadataError."""
        groups = {}
        async for each in in_slices(sorted(namespaces)):
            group = await self._group(each)
            if group:
                groups[each] = group
        domains: dict[str, str] = {}
        if groups and self._broker.config.failureDomainsEnabled:
            domains = await self._domains()
        return Rules(await self._isolation_policies(), groups, domains)

    async def isolation_reason(self, namespace: str, broker_ids: Collection[str]) -> str:
        """Return why isolation policies allow none of the brokers, or "" if they allow one. Raises
        MetadataError.
        """
        return (await self._isolation_policies()).reason(namespace, broker_ids)

    async def _isolation_policies(self) -> Isolation:
        path = paths.isolation_policies(self._broker.config.clusterName)
        value = await self._broker.metadata_cache.get(path)
        if value != self._read:
            self._isolation = Isolation(read_fields(value or b""))
            self._read = value
        return self._isolation

    async def _group(self, namespace: str) -> str:
        value = await self._broker.metadata_cache.get(paths.local_policies(namespace))
        group = read_fields(value or b"").get(GROUP)
        return group.strip() if isinstance(group, str) else ""

    async def _domains(self) -> dict[str, str]:
        found = await self._broker.clusters.failure_domains(self._broker.config.clusterName)
        return {
            str(broker_id): domain
            for domain, fields in found.items()
            for broker_id in fields.get("brokers") or ()
        }

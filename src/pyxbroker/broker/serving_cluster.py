"""The cluster that serves a namespace, where several clusters share the records of namespaces.

Mirrors checkLocalOrGetPeerReplicationCluster of Apache Pulsar's PulsarWebResource.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyxbroker.base.errors import NamespaceOfOtherClusters
from pyxbroker.broker.listeners import Addresses
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.policies.records import Fields, read_cached

# The fields of Addresses in a cluster's record.
URLS = ("brokerServiceUrl", "serviceUrl", "brokerServiceUrlTls", "serviceUrlTls")
PEERS = "peerClusterNames"


class ServingCluster:
    """The namespaces that the cluster `local` serves, and the peer clusters that serve others."""

    def __init__(self, local: str, cache: MetadataCache) -> None:
        self._local = local
        self._cache = cache

    async def peer_of(self, namespace: str) -> Addresses | None:
        """Return the addresses of the peer cluster that serves a namespace, None if this cluster
        does or the namespace does not exist.

        Raises NamespaceOfOtherClusters without such a peer.
        """
        record = await self._record(paths.namespace_policies(namespace))
        found = [*_names(record, "replication_clusters"), *_names(record, "allowed_clusters")]
        if not found or self._local in found:
            return None
        for peer in _names(await self._record(paths.cluster(self._local)), PEERS):
            if peer in found:
                return addresses_of_cluster(await self._record(paths.cluster(peer)))
        raise NamespaceOfOtherClusters(
            "Namespace missing local cluster name in clusters list:"
            f" local_cluster={self._local} ns={namespace} clusters=[{', '.join(found)}]"
        )

    async def _record(self, path: str) -> Fields:
        return await read_cached(self._cache, path) or {}


def _names(record: Mapping[str, Any], field: str) -> list[str]:
    found = record.get(field)
    return found if isinstance(found, list) else []


def addresses_of_cluster(record: Mapping[str, Any]) -> Addresses:
    """Return the first address of each URL in a cluster's record, which may name several hosts."""
    found = (str(record.get(name) or "") for name in URLS)
    return Addresses(*(each.partition(",")[0].rstrip("/") for each in found))

"""The metadata nodes that a copy of a standalone moves to a cluster, and their new values.

A value is copied as it is: both stores hold Pulsar's bytes. Only the policies of tenants and
namespaces name the cluster, and get the name of the new one.
"""

from __future__ import annotations

import enum
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS
from pyxbroker.cluster.initialize import DEFAULT_NAMESPACE, PUBLIC_TENANT, SYSTEM_TENANT
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import GetResult, MetadataError, MetadataStore

NODES_PER_READ = 256
NODE_BYTES_MAX = 1_000_000
"""ZooKeeper refuses requests above jute.maxbuffer, which is 0xfffff by default."""
ROOTS = {
    paths.POLICIES: "tenants and namespaces",
    paths.LOCAL_POLICIES: "bundles of namespaces",
    paths.RESOURCE_GROUPS: "resource groups",
    paths.RESOURCE_QUOTAS: "bundle quotas",
    paths.PARTITIONED_TOPICS: "partitioned topics",
    paths.SCHEMAS: "schemas",
    paths.MANAGED_LEDGERS: "topics and subscriptions",
}
"""The paths whose nodes are copied, in this order: a topic comes after its policies."""
LEFT_OUT = {
    paths.CONFIGURATION: "dynamic settings of the broker",
    paths.CLUSTERS: "clusters, with their failure domains and isolation policies",
    paths.BOOKIE_RACKS: "racks of bookies",
}
_BY_CLUSTER = (
    *("topicDispatchRate", "subscriptionDispatchRate", "replicatorDispatchRate"),
    *("clusterDispatchRate", "clusterSubscribeRate", "publishMaxMessageRate"),
    "latency_stats_sample_rate",
)
"""Maps of a namespace's policies whose keys are names of clusters."""
_LISTS = ("replication_clusters", "allowed_clusters", "allowedClusters")


class NodeState(enum.Enum):
    """The state of a node in the cluster, compared with the standalone's."""

    MISSING = enum.auto()
    EQUAL = enum.auto()
    REPLACEABLE = enum.auto()
    """A default of a new cluster, or a node that an earlier attempt has written."""
    COLLIDES = enum.auto()


class Node(NamedTuple):
    """A node of the standalone with its value for the cluster, and the cluster's present one."""

    path: str
    value: bytes
    found: GetResult | None
    state: NodeState


class Names(NamedTuple):
    """The names of the standalone's cluster and of the new one."""

    old: str
    new: str

    def value(self, path: str, value: bytes) -> bytes:
        """Return the value of a node for the new cluster. Raises MetadataError."""
        if self.old == self.new or not value or not path.startswith(f"{paths.POLICIES}/"):
            return value
        try:
            record = json.loads(value)
            self._rename(record)
        except (ValueError, TypeError, AttributeError) as error:
            raise MetadataError(f"the policies at {path} cannot be read: {error}") from error
        return to_short_json(record)

    def _rename(self, record: dict[str, Any]) -> None:
        for name in _LISTS:
            if record.get(name):
                record[name] = [self.new if each == self.old else each for each in record[name]]
        for name in _BY_CLUSTER:
            if record.get(name):
                record[name] = {self._key(key): each for key, each in record[name].items()}

    def _key(self, key: str) -> str:
        name, arrow, remote = key.partition("->")  # a rate of replication to another cluster
        return f"{self.new}{arrow}{remote}" if name == self.old else key


async def walk(store: MetadataStore, root: str) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Yield the paths and values of all nodes below a root, in batches, parents first. Raises
    MetadataError.
    """
    pending = [f"{root}/{name}" for name in await store.children(root)][::-1]
    while pending:
        batch = pending[-NODES_PER_READ:][::-1]
        del pending[-NODES_PER_READ:]
        nodes, children = await store.get_all(batch), await store.children_all(batch)
        found: list[tuple[str, bytes]] = []
        for path, node, names in zip(batch, nodes, children, strict=True):
            for each in (node, names):
                if isinstance(each, BaseException):
                    raise each
            if isinstance(node, GetResult):
                found.append((path, node.value))
            if not isinstance(names, BaseException):
                pending += [f"{path}/{name}" for name in names]
        yield found


class NodeComparison:
    """The nodes of a standalone, compared with those of a cluster. `is_continued`: an earlier
    attempt has written the nodes of the cluster that have the same paths.
    """

    def __init__(
        self, source: MetadataStore, target: MetadataStore, names: Names, is_continued: bool
    ) -> None:
        self._source = source
        self._target = target
        self._names = names
        self._is_continued = is_continued
        self._has_others: dict[str, bool] = {}

    async def nodes(self, root: str) -> AsyncIterator[list[Node]]:
        """Yield all nodes below a root, in batches, parents first. Raises MetadataError."""
        async for batch in walk(self._source, root):
            present = await self._target.get_all([path for path, _ in batch])
            nodes = []
            for (path, value), found in zip(batch, present, strict=True):
                if isinstance(found, BaseException):
                    raise found
                value = self._names.value(path, value)
                nodes.append(Node(path, value, found, await self._state(path, value, found)))
            yield nodes

    async def _state(self, path: str, value: bytes, found: GetResult | None) -> NodeState:
        if found is None:
            return NodeState.MISSING
        if found.value == value:
            return NodeState.EQUAL
        if self._is_continued:
            return NodeState.REPLACEABLE
        namespaces = _DEFAULTS.get(path)
        if namespaces is not None and not await self._is_used(namespaces):
            return NodeState.REPLACEABLE
        return NodeState.COLLIDES

    async def _is_used(self, namespaces: Sequence[str]) -> bool:
        """Return True if a namespace has topics in the cluster that the standalone lacks."""
        for namespace in namespaces:
            if namespace not in self._has_others:
                path = paths.managed_ledgers(namespace)
                there = set(await self._target.children(path))
                own = set(await self._source.children(path))
                self._has_others[namespace] = not there <= own
        return any(self._has_others[each] for each in namespaces)


_DEFAULTS = {
    paths.tenant(PUBLIC_TENANT): (DEFAULT_NAMESPACE,),
    paths.tenant(SYSTEM_TENANT): (SYSTEM_NAMESPACE,),
    paths.namespace_policies(DEFAULT_NAMESPACE): (DEFAULT_NAMESPACE,),
    paths.namespace_policies(SYSTEM_NAMESPACE): (SYSTEM_NAMESPACE,),
    paths.local_policies(DEFAULT_NAMESPACE): (DEFAULT_NAMESPACE,),
    paths.local_policies(SYSTEM_NAMESPACE): (SYSTEM_NAMESPACE,),
    paths.partitioned_topic(SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS): (SYSTEM_NAMESPACE,),
}
"""The nodes that a new cluster has, and the namespaces that must be unused to replace them."""

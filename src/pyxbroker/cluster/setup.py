"""The commands `initialize-cluster-metadata` and `initialize-transaction-coordinator-metadata`: the
nodes of a new cluster, and of transactions, as Pulsar's commands of the same names create them.

Existing nodes stay as they are. If a tenant or namespace exists, the cluster is added to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS
from pyxbroker.cluster.checks import NAMES_SHOWN_MAX
from pyxbroker.cluster.initialize import (
    DEFAULT_NAMESPACE,
    PUBLIC_TENANT,
    SYSTEM_TENANT,
    ClusterSettings,
    cluster_data,
    namespace_policies,
    new_id,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore

SYSTEM_BUNDLES = 16


class Setup(NamedTuple):
    """The values of the command's options."""

    cluster: ClusterSettings
    has_bookies: bool = False  # BookKeeper has its nodes elsewhere
    more_data: dict[str, str] = {}  # noqa: RUF012 (not changed)
    """Further fields of the cluster's record."""


async def set_up(store: MetadataStore, configuration: MetadataStore, setup: Setup) -> list[str]:
    """Create the missing nodes; return the paths that were written.

    Raises ConfigError, with nothing written, for a local store of another cluster; MetadataError.
    """
    await _check_free(store, setup.cluster.cluster)
    written: list[str] = []

    settings, name = setup.cluster, setup.cluster.cluster
    if not setup.has_bookies and not await store.exists(paths.LEDGERS):
        # Without LAYOUT, which BookKeeper's own driver writes when the first bookie starts.
        await _create(store, paths.READONLY_BOOKIES, b"", written)
        await _create(store, paths.INSTANCE_ID, new_id().encode(), written)
    await _create(store, paths.BOOKIE_RACKS, b"{}", written)
    data = cluster_data(settings) | setup.more_data
    await _create(configuration, paths.cluster(name), to_short_json(data), written)
    namespace = DEFAULT_NAMESPACE, settings.namespace_bundles
    await _add_namespace(configuration, name, PUBLIC_TENANT, *namespace, written)
    return written + await set_up_transactions(
        configuration, name, settings.transaction_coordinators
    )


async def set_up_transactions(
    configuration: MetadataStore, cluster: str, coordinators: int
) -> list[str]:
    """Create the missing nodes that transactions need; return the paths that were written. A lower
    number of coordinators than there are changes nothing.

    Raises MetadataError.
    """
    written: list[str] = []
    namespace = SYSTEM_NAMESPACE, SYSTEM_BUNDLES
    await _add_namespace(configuration, cluster, SYSTEM_TENANT, *namespace, written)
    if coordinators > 0:
        path = paths.partitioned_topic(SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS)
        record = to_short_json({"partitions": coordinators, "deleted": False})
        if not await _create(configuration, path, record, written):
            await _change(configuration, path, _growing(coordinators), written)
    return written


async def _add_namespace(
    store: MetadataStore,
    cluster: str,
    tenant: str,
    namespace: str,
    bundles: int,
    written: list[str],
) -> None:
    """Create a tenant and a namespace, or add the cluster to those that exist."""
    path = paths.tenant(tenant)
    value = to_short_json({"allowedClusters": [cluster], "adminRoles": []})
    if not await _create(store, path, value, written):
        await _change(store, path, _adding("allowedClusters", cluster), written)
    path = paths.namespace_policies(namespace)
    value = to_short_json(namespace_policies(cluster, bundles))
    if not await _create(store, path, value, written):
        await _change(store, path, _adding("replication_clusters", cluster), written)


async def _create(store: MetadataStore, path: str, value: bytes, written: list[str]) -> bool:
    try:
        await store.put(path, value, MUST_NOT_EXIST)
    except BadVersion:
        return False
    written.append(path)
    return True


async def _check_free(store: MetadataStore, name: str) -> None:
    """Raise ConfigError if another cluster has its ledgers and brokers in this local store.

    Several clusters may be registered here as in their configuration store. Only the local store of
    one of them has BOOKIE_RACKS.
    """
    names = await store.children(paths.CLUSTERS)
    if names and name not in names and await store.exists(paths.BOOKIE_RACKS):
        known = ", ".join(names[:NAMES_SHOWN_MAX])
        raise ConfigError(
            f"--metadata-store has the metadata of cluster {known}, and each cluster needs a store"
            " of its own: name another path, as in zk:host:2181/PATH. Clusters may share"
            " --configuration-metadata-store. Nothing was written."
        )


def _adding(field: str, cluster: str) -> Callable[[dict[str, Any]], bool]:
    """Return a change that adds a cluster to a list, and returns False if it has it."""

    def change(record: dict[str, Any]) -> bool:
        clusters = record.get(field) or []
        if cluster in clusters:
            return False
        record[field] = [*clusters, cluster]
        return True

    return change


def _growing(count: int) -> Callable[[dict[str, Any]], bool]:
    """Return a change that adds partitions, and returns False if there are as many."""

    def change(record: dict[str, Any]) -> bool:
        if record.get("partitions", 0) >= count:
            return False
        record["partitions"] = count
        return True

    return change


async def _change(
    store: MetadataStore, path: str, change: Callable[[dict[str, Any]], bool], written: list[str]
) -> None:
    while True:
        found = await store.get(path)
        record = json.loads(found.value) if found is not None else {}
        if found is None or not change(record):
            return
        try:
            await store.put(path, to_short_json(record), found.version)
        except BadVersion:
            continue
        written.append(path)
        return

"""Checks of the metadata of a cluster before a broker uses it. They only read."""

from __future__ import annotations

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

MANAGER = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
LAYOUT = ("2", f"{MANAGER}:1")
"""The lines of <root>/LAYOUT: the version of the file, and the class that places ledgers with its
version. Pulsar's bookies write no such node, and place ledgers in the same way."""
NAMES_SHOWN_MAX = 5


class StartRefused(Exception):
    """Raised when a broker must not start; the message is the reason."""


class UnusableCluster(StartRefused):
    """Raised for metadata that a broker must not use."""


class Places(NamedTuple):
    """The stores of the clusters' names and of the ledgers, and the settings that name them and the
    cluster, for messages.
    """

    clusters: str
    ledgers: str
    clusters_setting: str = "metadataStoreUrl"
    ledgers_setting: str = "bookkeeperMetadataServiceUri"
    cluster_setting: str = "clusterName"


async def check_cluster(store: MetadataStore, name: str, places: Places) -> None:
    """Raise UnusableCluster if the cluster was not initialized, or its ledgers have another
    layout. Raises MetadataError.
    """
    if await store.get(paths.cluster(name)) is None:
        await _refuse_name(store, name, places)
    if await store.get(paths.INSTANCE_ID) is None:
        raise UnusableCluster(
            f"there is no BookKeeper cluster at {places.ledgers}: it has no INSTANCEID. Check"
            f" {places.ledgers_setting}, or run pyxbroker initialize-cluster-metadata"
        )
    layout = await store.get(paths.LEDGER_LAYOUT)
    if layout is not None:
        lines = tuple(layout.value.decode("utf-8", "replace").split())
        if lines != LAYOUT:
            raise UnusableCluster(
                f"the ledgers at {places.ledgers} have the layout {' '.join(lines)[:200]!r}, but"
                f" this broker only knows {' '.join(LAYOUT)!r}: use BookKeeper 4.6 or later with"
                " the hierarchical ledger manager"
            )


async def _refuse_name(store: MetadataStore, name: str, places: Places) -> None:
    names = await store.children(paths.CLUSTERS)
    if not names:
        raise UnusableCluster(
            f"{places.clusters} has no cluster: run pyxbroker initialize-cluster-metadata, or"
            f" correct {places.clusters_setting}"
        )
    more = ", ..." if len(names) > NAMES_SHOWN_MAX else ""
    known = ", ".join(names[:NAMES_SHOWN_MAX]) + more
    raise UnusableCluster(
        f"{places.clusters} has no cluster {name!r}: {places.cluster_setting} must be one of"
        f" {known}"
    )

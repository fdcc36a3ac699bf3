"""The metadata that must exist before the first broker starts.

The nodes and their JSON are those that Pulsar's `initialize-cluster-metadata` writes, without the
DistributedLog namespaces of its stream storage and functions. Apache Pulsar's brokers and
BookKeeper's bookies can therefore start on a cluster that pyxbroker initialized, and vice versa.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pyxbroker.base.bundles import bundles_data
from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    MetadataError,
    MetadataStore,
    PutResult,
)

PUBLIC_TENANT = "public"
DEFAULT_NAMESPACE = "public/default"
SYSTEM_TENANT = "pulsar"


class ClusterSettings(NamedTuple):
    """The settings of a new cluster. The URLs are those for clients and other clusters."""

    cluster: str
    web_service_url: str
    broker_service_url: str
    web_service_url_tls: str = ""
    broker_service_url_tls: str = ""
    namespace_bundles: int = 16
    transaction_coordinators: int = 16


class ClusterIdentity(NamedTuple):
    """The cluster's identity, and whether `initialize` created it."""

    instance_id: str
    created: bool


async def initialize(store: MetadataStore, settings: ClusterSettings) -> ClusterIdentity:
    """Create missing nodes, and leave existing ones unchanged. Several brokers may run it together.

    It takes one round of reads, and one of writes if a node is missing.
    """
    nodes = _nodes(settings)
    found = await asyncio.gather(*[store.get(path) for path in nodes])
    missing = [path for path, node in zip(nodes, found, strict=True) if node is None]
    writes = [store.put(path, nodes[path], MUST_NOT_EXIST) for path in missing]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    for outcome in outcomes:
        # BadVersion: another broker has created the same node meanwhile.
        if isinstance(outcome, BaseException) and not isinstance(outcome, BadVersion):
            raise outcome
    outcome_of = dict(zip(missing, outcomes, strict=True))
    if isinstance(outcome_of.get(paths.INSTANCE_ID), PutResult):
        return ClusterIdentity(nodes[paths.INSTANCE_ID].decode(), created=True)
    identity = found[list(nodes).index(paths.INSTANCE_ID)] or await store.get(paths.INSTANCE_ID)
    if identity is None:
        raise MetadataError(f"{paths.INSTANCE_ID} was deleted while the cluster was initialized")
    return ClusterIdentity(identity.value.decode(), created=paths.INSTANCE_ID in missing)


def new_id() -> str:
    """Return a random UUID (RFC 9562, version 4). Importing `uuid` would add 2 ms to the start."""
    number = int.from_bytes(os.urandom(16), "big")
    number = number & ~(0xF000 << 64) | 0x4000 << 64
    number = number & ~(0xC000 << 48) | 0x8000 << 48
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _nodes(settings: ClusterSettings) -> dict[str, bytes]:
    """Return path -> value, parents first."""
    tenant = to_short_json({"allowedClusters": [settings.cluster], "adminRoles": []})
    policies = to_short_json(namespace_policies(settings.cluster, settings.namespace_bundles))
    nodes = {
        paths.INSTANCE_ID: new_id().encode(),
        paths.READONLY_BOOKIES: b"",
        paths.BOOKIE_RACKS: b"{}",
        paths.cluster(settings.cluster): to_short_json(cluster_data(settings)),
        paths.tenant(PUBLIC_TENANT): tenant,
        paths.namespace_policies(DEFAULT_NAMESPACE): policies,
        paths.tenant(SYSTEM_TENANT): tenant,
        paths.namespace_policies(SYSTEM_NAMESPACE): policies,
    }
    if settings.transaction_coordinators > 0:
        topic = paths.partitioned_topic(SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS)
        nodes[topic] = to_short_json(
            {"partitions": settings.transaction_coordinators, "deleted": False}
        )
    return nodes


def cluster_data(settings: ClusterSettings) -> dict[str, Any]:
    """Return Pulsar's ClusterData; URLs that are not set are omitted, as Pulsar omits null."""
    urls = {
        "serviceUrl": settings.web_service_url,
        "serviceUrlTls": settings.web_service_url_tls,
        "brokerServiceUrl": settings.broker_service_url,
        "brokerServiceUrlTls": settings.broker_service_url_tls,
    }
    return {
        **{name: url for name, url in urls.items() if url},
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
        "brokerClientTlsTrustStoreType": "JKS",
        "brokerClientTlsKeyStoreType": "JKS",
        "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    }


def namespace_policies(cluster: str, bundle_count: int) -> dict[str, Any]:
    """Return Pulsar's Policies of a new namespace, with the fields in Pulsar's order."""
    return {
        "auth_policies": {
            "namespace_auth": {},
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "bundles": bundles_data(bundle_count),
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }


def local_policies(bundle_count: int) -> dict[str, Any]:
    """Return Pulsar's LocalPolicies, which a broker writes when it first loads a namespace."""
    return {"bundles": bundles_data(bundle_count), "migrated": False}

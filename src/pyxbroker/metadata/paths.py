"""All metadata paths that are used, which are those of Apache Pulsar and Apache BookKeeper.

Names with arbitrary characters (local topic names, subscriptions) are encoded like Java's
URLEncoder does; tenants, namespaces and broker ids are not encoded. A *namespace* argument is
`tenant/namespace`, and a *managed ledger name* is `tenant/namespace/persistent/<encoded topic>`.
"""

from __future__ import annotations

import re

from pyxbroker.base.url_encoding import encode

SHORT_LEDGER_ID_MAX = 2**31 - 1
HIGH_OF_LONG_IDS = re.compile(r"HOB-([0-9]{10})")  # a child of LONG_LEDGER_IDS
HIGH_OF_LONG_IDS_MAX = 2**31 - 1  # an id has 63 bits
LEDGER_ID_MAX = 2**63 - 1

# BookKeeper.
CONFIGURATION = "/admin/configuration"
BOOKIE_RACKS = "/bookies"
BROKERS = "/loadbalance/brokers"
BROKER_AVERAGES = "/loadbalance/broker-time-average"
LEADER = "/loadbalance/leader"
OWNERS = "/namespace"
MIGRATION_PARTICIPANT_PREFIX = "/pulsar/migration-coordinator/participants/id-"
RESOURCE_QUOTAS = "/loadbalance/resource-quota"
LEDGERS = "/ledgers"
INSTANCE_ID = "/ledgers/INSTANCEID"
LEDGER_LAYOUT = "/ledgers/LAYOUT"
READONLY_BOOKIES = "/ledgers/available/readonly"
COOKIES = "/ledgers/cookies"
LEDGER_ID_PREFIX = "/ledgers/idgen/ID-"
LONG_LEDGER_IDS = "/ledgers/idgen-long"

# Pulsar.
MANAGED_LEDGERS = "/managed-ledgers"
SCHEMAS = "/schemas"
ADMINISTRATION = "/admin"
LOCAL_ADMINISTRATION = ("/admin/local-policies", "/admin/configuration")
"""Nodes of it that a cluster does not share with others."""
CLUSTERS = "/admin/clusters"
POLICIES = "/admin/policies"
LOCAL_POLICIES = "/admin/local-policies"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
RESOURCE_GROUPS = "/admin/resourcegroups"
PRODUCER_NAME_COUNTER = "/counters/producer-name"
# pyxbroker's own.
COPY = "/pyxbroker/copy"
COPY_LOCK = "/pyxbroker/copy-lock"
TOPIC_LIST_SLASHES = 4  # in the path whose children are a namespace's topics

# Compiled on first use, to keep the start short.
_SHORT_LEDGER = r"/ledgers/(\d{2})/(\d{4})/L(\d{4})"
_LONG_LEDGER = r"/ledgers/(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})"


# BookKeeper.


def ledger(ledger_id: int) -> str:
    """Return the path of a ledger: ten digits as 2-4-4 up to 2^31-1, else 19 as 3-4-4-4-4."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ValueError(f"{ledger_id} is not a ledger id")
    if ledger_id <= SHORT_LEDGER_ID_MAX:
        digits = f"{ledger_id:010d}"
        return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    parts = (digits[:3], digits[3:7], digits[7:11], digits[11:15])
    return f"/ledgers/{'/'.join(parts)}/L{digits[15:]}"


def ledger_id(path: str) -> int | None:
    """Return the id in a path of `ledger`, or None for any other path."""
    match = re.fullmatch(_SHORT_LEDGER, path) or re.fullmatch(_LONG_LEDGER, path)
    return int("".join(match.groups())) if match else None


def cookie(bookie_id: str) -> str:
    return f"{COOKIES}/{bookie_id}"


def long_ledger_id_prefix(high: int) -> str:
    """Return the prefix of the nodes that number the low halves of 63-bit ledger ids."""
    return f"{LONG_LEDGER_IDS}/HOB-{high:010d}/ID-"


# Managed ledgers and schemas.


def managed_ledger(name: str) -> str:
    return f"{MANAGED_LEDGERS}/{name}"


def managed_ledgers(namespace: str, domain: str = "persistent") -> str:
    """Return the parent of the encoded topics of a namespace."""
    return f"{MANAGED_LEDGERS}/{namespace}/{domain}"


def topics_of(tenant_or_namespace: str) -> str:
    """Return the path above the topic lists of a tenant or namespace."""
    return f"{MANAGED_LEDGERS}/{tenant_or_namespace}"


def schemas(tenant_or_namespace: str) -> str:
    """Return the path above the schemas of a tenant's or namespace's topics."""
    return f"{SCHEMAS}/{tenant_or_namespace}"


def schema(schema_id: str) -> str:
    """Return the path of a schema; `schema_id` is tenant/namespace/<encoded topic>."""
    return f"{SCHEMAS}/{schema_id}"


def cursor(name: str, cursor_name: str) -> str:
    """Return the path of a subscription of managed ledger `name`; `cursor_name` is not encoded."""
    return f"{MANAGED_LEDGERS}/{name}/{encode(cursor_name)}"


# Administration.


def cluster(name: str) -> str:
    return f"{CLUSTERS}/{name}"


def broker(broker_id: str) -> str:
    """Return the path of a broker's registration."""
    return f"{BROKERS}/{broker_id}"


def bundle_owners(namespace: str) -> str:
    """Return the parent of the nodes by which brokers own the bundles of a namespace."""
    return f"{OWNERS}/{namespace}"


def broker_averages(broker_id: str) -> str:
    """Return the path of the average load of a broker."""
    return f"{BROKER_AVERAGES}/{broker_id}"


def bundle_data(bundle: str) -> str:
    """Return the path of the average load of a bundle, `tenant/namespace/range`."""
    return f"/loadbalance/bundle-data/{bundle}"


def bundle_owner(namespace: str, bundle: str) -> str:
    """Return the path of the node by which a broker owns a bundle."""
    return f"{bundle_owners(namespace)}/{bundle}"


def failure_domains(cluster_name: str) -> str:
    """Return the parent of a cluster's failure domains."""
    return f"{CLUSTERS}/{cluster_name}/failureDomain"


def failure_domain(cluster_name: str, name: str) -> str:
    return f"{failure_domains(cluster_name)}/{name}"


def cluster_policies(cluster_name: str) -> str:
    """The migration of a cluster."""
    return f"{CLUSTERS}/{cluster_name}/policies"


def isolation_policies(cluster_name: str) -> str:
    """Return the path of the record with all isolation policies of a cluster."""
    return f"{CLUSTERS}/{cluster_name}/namespaceIsolationPolicies"


def resource_group(name: str) -> str:
    return f"{RESOURCE_GROUPS}/{name}"


def tenant(name: str) -> str:
    return f"{POLICIES}/{name}"


def namespace_policies(namespace: str) -> str:
    return f"{POLICIES}/{namespace}"


def local_policies(namespace: str) -> str:
    return f"{LOCAL_POLICIES}/{namespace}"


def resource_quotas(tenant_or_namespace: str) -> str:
    """Return the path above bundle quotas; a namespace's path has a child for each bundle."""
    return f"{RESOURCE_QUOTAS}/{tenant_or_namespace}"


def partitioned_topic(namespace: str, local_name: str, domain: str = "persistent") -> str:
    return f"{PARTITIONED_TOPICS}/{namespace}/{domain}/{encode(local_name)}"


def partitioned_topics_of(tenant_or_namespace: str) -> str:
    """Return the path above the lists of partitioned topics of a tenant or namespace."""
    return f"{PARTITIONED_TOPICS}/{tenant_or_namespace}"


def partitioned_topics(namespace: str, domain: str = "persistent") -> str:
    """Return the parent of the encoded partitioned topics of a namespace."""
    return f"{PARTITIONED_TOPICS}/{namespace}/{domain}"

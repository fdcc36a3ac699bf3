"""Every metadata path that Apache Pulsar and Apache BookKeeper use, in one place.

Names that may hold any character (local topic names, subscriptions) are URL-encoded as Java's
URLEncoder does; tenants, namespaces and broker ids stand as they are. A *namespace* argument is
`tenant/namespace` and a *managed ledger name* is `tenant/namespace/persistent/<encoded topic>`.
"""

from __future__ import annotations

import re

from pyxbroker.base.url_encoding import encode

SHORT_LEDGER_ID_MAX = 2**31 - 1
LEDGER_ID_MAX = 2**63 - 1

# BookKeeper.
LEDGERS = "/ledgers"
LEDGERS_LAYOUT = "/ledgers/LAYOUT"
INSTANCE_ID = "/ledgers/INSTANCEID"
AVAILABLE_BOOKIES = "/ledgers/available"
READONLY_BOOKIES = "/ledgers/available/readonly"
COOKIES = "/ledgers/cookies"
LEDGER_IDS = "/ledgers/idgen"
LEDGER_ID_PREFIX = "/ledgers/idgen/ID-"
LONG_LEDGER_IDS = "/ledgers/idgen-long"
UNDERREPLICATION = "/ledgers/underreplication"
UNDERREPLICATED_LEDGERS = "/ledgers/underreplication/ledgers"
UNDERREPLICATION_LOCKS = "/ledgers/underreplication/locks"
UNDERREPLICATION_LAYOUT = "/ledgers/underreplication/LAYOUT"
UNDERREPLICATION_DISABLED = "/ledgers/underreplication/disable"
LOST_BOOKIE_RECOVERY_DELAY = "/ledgers/underreplication/lostBookieRecoveryDelay"
CHECK_ALL_LEDGERS_TIME = "/ledgers/underreplication/checkallledgersctime"
PLACEMENT_POLICY_CHECK_TIME = "/ledgers/underreplication/placementpolicycheckctime"
REPLICAS_CHECK_TIME = "/ledgers/underreplication/replicascheckctime"
AUDITOR_ELECTION = "/ledgers/underreplication/auditorelection"
BOOKIE_RACKS = "/bookies"

# Pulsar.
MANAGED_LEDGERS = "/managed-ledgers"
SCHEMAS = "/schemas"
CLUSTERS = "/admin/clusters"
POLICIES = "/admin/policies"
LOCAL_POLICIES = "/admin/local-policies"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
DYNAMIC_CONFIGURATION = "/admin/configuration"
RESOURCE_GROUPS = "/admin/resourcegroups"
POLICIES_READONLY = "/admin/flags/policies-readonly"
BUNDLE_OWNERSHIP = "/namespace"
BROKERS = "/loadbalance/brokers"
LOAD_BALANCE_LEADER = "/loadbalance/leader"
EXTENSIBLE_LOAD_BALANCE_LEADER = "/loadbalance/extension/leader"
BUNDLE_DATA = "/loadbalance/bundle-data"
BROKER_TIME_AVERAGE = "/loadbalance/broker-time-average"
RESOURCE_QUOTAS = "/loadbalance/resource-quota/namespace"
LOAD_BALANCE_SETTINGS = "/loadbalance/settings"
SERVICE_UNIT_STATE = "/service_unit_state"
PRODUCER_NAME_COUNTER = "/counters/producer-name"

# Compiled, by the first use, where ledgers are listed: a start need not wait for it.
_SHORT_LEDGER = r"/ledgers/(\d{2})/(\d{4})/L(\d{4})"
_LONG_LEDGER = r"/ledgers/(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})"


def child(path: str, name: str) -> str:
    """The path of a child."""
    return f"/{name}" if path == "/" else f"{path}/{name}"


# BookKeeper.


def ledger(ledger_id: int) -> str:
    """Where a ledger's metadata is: ten digits as 2-4-4 up to 2^31-1, else 19 as 3-4-4-4-4."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ValueError(f"{ledger_id} is not a ledger id")
    if ledger_id <= SHORT_LEDGER_ID_MAX:
        digits = f"{ledger_id:010d}"
        return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    parts = (digits[:3], digits[3:7], digits[7:11], digits[11:15])
    return f"/ledgers/{'/'.join(parts)}/L{digits[15:]}"


def ledger_id(path: str) -> int | None:
    """The inverse of `ledger`; None for a path that is not a ledger's."""
    match = re.fullmatch(_SHORT_LEDGER, path) or re.fullmatch(_LONG_LEDGER, path)
    return int("".join(match.groups())) if match else None


def available_bookie(bookie_id: str) -> str:
    return f"{AVAILABLE_BOOKIES}/{bookie_id}"


def readonly_bookie(bookie_id: str) -> str:
    return f"{READONLY_BOOKIES}/{bookie_id}"


def cookie(bookie_id: str) -> str:
    return f"{COOKIES}/{bookie_id}"


def long_ledger_id_prefix(high: int) -> str:
    """Below which the low halves of 63-bit ledger ids are numbered; `high` is the upper half."""
    return f"{LONG_LEDGER_IDS}/HOB-{high:010d}/ID-"


def underreplicated_ledger(ledger_id: int) -> str:
    digits = f"{ledger_id:016x}"
    parts = (digits[:4], digits[4:8], digits[8:12], digits[12:])
    return f"{UNDERREPLICATED_LEDGERS}/{'/'.join(parts)}/urL{ledger_id:010d}"


def underreplication_lock(ledger_id: int) -> str:
    return f"{UNDERREPLICATION_LOCKS}/urL{ledger_id:010d}"


# Managed ledgers and schemas.


def managed_ledger_name(namespace: str, local_name: str, domain: str = "persistent") -> str:
    """The managed ledger of a topic; `local_name` is the topic's last part, not encoded."""
    return f"{namespace}/{domain}/{encode(local_name)}"


def managed_ledger(name: str) -> str:
    return f"{MANAGED_LEDGERS}/{name}"


def managed_ledgers(namespace: str, domain: str = "persistent") -> str:
    """Whose children are the encoded topics of a namespace."""
    return f"{MANAGED_LEDGERS}/{namespace}/{domain}"


def cursor(name: str, cursor_name: str) -> str:
    """A subscription of the managed ledger `name`; `cursor_name` is not encoded."""
    return f"{MANAGED_LEDGERS}/{name}/{encode(cursor_name)}"


def schema(namespace: str, local_name: str) -> str:
    return f"{SCHEMAS}/{namespace}/{encode(local_name)}"


# Administration.


def cluster(name: str) -> str:
    return f"{CLUSTERS}/{name}"


def namespace_isolation_policies(cluster_name: str) -> str:
    return f"{CLUSTERS}/{cluster_name}/namespaceIsolationPolicies"


def failure_domain(cluster_name: str, domain: str) -> str:
    return f"{CLUSTERS}/{cluster_name}/failureDomain/{domain}"


def cluster_policies(cluster_name: str) -> str:
    return f"{CLUSTERS}/{cluster_name}/policies"


def tenant(name: str) -> str:
    return f"{POLICIES}/{name}"


def namespace_policies(namespace: str) -> str:
    return f"{POLICIES}/{namespace}"


def local_policies(namespace: str) -> str:
    return f"{LOCAL_POLICIES}/{namespace}"


def partitioned_topic(namespace: str, local_name: str, domain: str = "persistent") -> str:
    return f"{PARTITIONED_TOPICS}/{namespace}/{domain}/{encode(local_name)}"


def partitioned_topics(namespace: str, domain: str = "persistent") -> str:
    """Whose children are the encoded partitioned topics of a namespace."""
    return f"{PARTITIONED_TOPICS}/{namespace}/{domain}"


def resource_group(name: str) -> str:
    return f"{RESOURCE_GROUPS}/{name}"


# Brokers.


def bundle_ownership(namespace: str, bundle: str) -> str:
    """Who owns a bundle; `bundle` is `0x00000000_0x40000000`."""
    return f"{BUNDLE_OWNERSHIP}/{namespace}/{bundle}"


def broker(broker_id: str) -> str:
    """The registration of a live broker; `broker_id` is `host:port` of its web service."""
    return f"{BROKERS}/{broker_id}"


def broker_time_average(broker_id: str) -> str:
    return f"{BROKER_TIME_AVERAGE}/{broker_id}"


def bundle_data(namespace: str, bundle: str) -> str:
    return f"{BUNDLE_DATA}/{namespace}/{bundle}"


def resource_quota(namespace: str, bundle: str) -> str:
    return f"{RESOURCE_QUOTAS}/{namespace}/{bundle}"

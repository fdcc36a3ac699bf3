"""Authorization: rights, named as in Pulsar's authorization, and their check.

Each operation names the `Right` that it needs in the table that defines it; for REST that is the
table of endpoints. No other place checks rights.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pyxbroker.auth.principal import Principal
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.topic_name import NamespaceName, TenantName, TopicName

if TYPE_CHECKING:
    from pyxbroker.auth.permissions import Permissions


class BrokerId(str):
    """A broker, by its host and web port."""

    __slots__ = ()


class ClusterName(str):
    """A cluster, as a path names it."""

    __slots__ = ()


Resource = BrokerId | ClusterName | TenantName | NamespaceName | TopicName | None

SUPERUSER = "superuser"
TENANT_ADMIN = "tenant administrator"
# Actions that are granted on a namespace or a topic.
PRODUCE = "produce"
CONSUME = "consume"


class Scope(Enum):
    """The kind of resource that a right concerns."""

    OPEN = "open to all clients"
    AUTHENTICATED = "any authenticated role"
    BROKER = "broker operation"
    CLUSTER = "cluster operation"
    TENANT = "tenant operation"
    ADMINISTRATION = "administration of the tenant"
    NAMESPACE = "namespace operation"
    NAMESPACE_POLICY = "namespace policy"
    TOPIC = "topic operation"
    TOPIC_POLICY = "topic policy"


# The resources on which a right can be checked. A topic also stands for its namespace.
_RESOURCES: dict[Scope, tuple[type, ...]] = {
    Scope.OPEN: (type(None),),
    Scope.AUTHENTICATED: (type(None), TopicName),
    # None: Pulsar has no name for the operation, and requires a superuser.
    Scope.BROKER: (type(None), BrokerId),
    Scope.CLUSTER: (ClusterName,),
    # None stands for all tenants; a namespace stands for its tenant.
    Scope.TENANT: (type(None), TenantName, NamespaceName),
    Scope.ADMINISTRATION: (NamespaceName, TopicName),
    Scope.NAMESPACE: (NamespaceName, TopicName),
    Scope.NAMESPACE_POLICY: (NamespaceName, TopicName),
    Scope.TOPIC: (TopicName,),
    Scope.TOPIC_POLICY: (TopicName,),
}


class Right(NamedTuple):
    """The right to an operation: Pulsar's name, and its holders. A superuser has every right."""

    scope: Scope
    operation: str = ""
    holders: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.operation:
            return self.scope.value
        return f"{self.scope.value} {self.operation}: {', '.join(self.holders)}"


OPEN = Right(Scope.OPEN)
AUTHENTICATED = Right(Scope.AUTHENTICATED)
HEALTH_CHECK = Right(Scope.BROKER, "HEALTH_CHECK", (SUPERUSER,))
LIST_BROKERS = Right(Scope.BROKER, "LIST_BROKERS", (SUPERUSER,))
GET_LEADER = Right(Scope.BROKER, "GET_LEADER_BROKER", (SUPERUSER,))
LIST_OWNED = Right(Scope.BROKER, "LIST_OWNED_NAMESPACES", (SUPERUSER,))
GET_INTERNAL_CONFIGURATION = Right(Scope.BROKER, "GET_INTERNAL_CONFIGURATION_DATA", (SUPERUSER,))
BACKLOG_QUOTA_CHECK = Right(Scope.BROKER, "CHECK_BACKLOG_QUOTA", (SUPERUSER,))
READ_SETTINGS = Right(Scope.BROKER, "LIST_DYNAMIC_CONFIGURATIONS", (SUPERUSER,))
READ_RUNTIME_SETTINGS = Right(Scope.BROKER, "LIST_RUNTIME_CONFIGURATIONS", (SUPERUSER,))
UPDATE_SETTING = Right(Scope.BROKER, "UPDATE_DYNAMIC_CONFIGURATION", (SUPERUSER,))
DELETE_SETTING = Right(Scope.BROKER, "DELETE_DYNAMIC_CONFIGURATION", (SUPERUSER,))
# Pulsar has no operation names for these, and requires a superuser.
READ_BOOKIES = Right(Scope.BROKER, "READ_BOOKIES", (SUPERUSER,))
WRITE_BOOKIES = Right(Scope.BROKER, "WRITE_BOOKIES", (SUPERUSER,))
READ_BROKER_STATS = Right(Scope.BROKER, "READ_BROKER_STATS", (SUPERUSER,))
READ_QUOTAS = Right(Scope.BROKER, "READ_RESOURCE_QUOTAS", (SUPERUSER,))
WRITE_QUOTAS = Right(Scope.BROKER, "WRITE_RESOURCE_QUOTAS", (SUPERUSER,))
READ_QUOTA = Right(Scope.NAMESPACE, "READ_RESOURCE_QUOTAS", (SUPERUSER,))
WRITE_QUOTA = Right(Scope.NAMESPACE, "WRITE_RESOURCE_QUOTAS", (SUPERUSER,))
UNLOAD_NAMESPACE = Right(Scope.NAMESPACE, "UNLOAD", (SUPERUSER,))
GET_CLUSTER = Right(Scope.CLUSTER, "GET_CLUSTER", (SUPERUSER,))
GET_PEER_CLUSTERS = Right(Scope.CLUSTER, "GET_PEER_CLUSTER", (SUPERUSER,))
CREATE_CLUSTER = Right(Scope.CLUSTER, "CREATE_CLUSTER", (SUPERUSER,))
UPDATE_CLUSTER = Right(Scope.CLUSTER, "UPDATE_CLUSTER", (SUPERUSER,))
UPDATE_PEER_CLUSTERS = Right(Scope.CLUSTER, "UPDATE_PEER_CLUSTER", (SUPERUSER,))
DELETE_CLUSTER = Right(Scope.CLUSTER, "DELETE_CLUSTER", (SUPERUSER,))
GET_FAILURE_DOMAIN = Right(Scope.CLUSTER, "GET_FAILURE_DOMAIN", (SUPERUSER,))
UPDATE_FAILURE_DOMAIN = Right(Scope.CLUSTER, "UPDATE_FAILURE_DOMAIN", (SUPERUSER,))
DELETE_FAILURE_DOMAIN = Right(Scope.CLUSTER, "DELETE_FAILURE_DOMAIN", (SUPERUSER,))
BACKUP = Right(Scope.BROKER, "BACKUP", (SUPERUSER,))
END_TRANSACTION = Right(Scope.BROKER, "END_TRANSACTION", (SUPERUSER,))  # of another role
SCALE_COORDINATORS = Right(Scope.BROKER, "SCALE_TRANSACTION_COORDINATORS", (SUPERUSER,))
MIGRATE_METADATA = Right(Scope.BROKER, "MIGRATE_METADATA", (SUPERUSER,))
READ_METRIC_LABELS = Right(
    Scope.NAMESPACE_POLICY, "READ ALLOW_CUSTOM_METRIC_LABELS", (TENANT_ADMIN,)
)
WRITE_METRIC_LABELS = Right(
    Scope.NAMESPACE_POLICY, "WRITE ALLOW_CUSTOM_METRIC_LABELS", (TENANT_ADMIN,)
)
READ_MIGRATION = Right(Scope.CLUSTER, "READ CLUSTER_MIGRATION", (SUPERUSER,))
READ_ISOLATION_POLICIES = Right(Scope.CLUSTER, "READ NAMESPACE_ISOLATION", (SUPERUSER,))
WRITE_ISOLATION_POLICIES = Right(Scope.CLUSTER, "WRITE NAMESPACE_ISOLATION", (SUPERUSER,))
READ_RESOURCE_GROUPS = Right(Scope.BROKER, "READ_RESOURCE_GROUPS", (SUPERUSER,))
WRITE_RESOURCE_GROUPS = Right(Scope.BROKER, "WRITE_RESOURCE_GROUPS", (SUPERUSER,))
SPLIT_BUNDLE = Right(Scope.NAMESPACE, "SPLIT_BUNDLE", (SUPERUSER,))
DELETE_BUNDLE = Right(Scope.NAMESPACE, "DELETE_BUNDLE", (TENANT_ADMIN,))
READ_RESOURCE_GROUP = Right(Scope.NAMESPACE_POLICY, "READ RESOURCEGROUP", (TENANT_ADMIN,))
WRITE_RESOURCE_GROUP = Right(Scope.NAMESPACE_POLICY, "WRITE RESOURCEGROUP", (TENANT_ADMIN,))
READ_HASH_POSITIONS = Right(Scope.NAMESPACE_POLICY, "READ PERSISTENCE", (TENANT_ADMIN,))
READ_ANTI_AFFINITY = Right(Scope.NAMESPACE_POLICY, "READ ANTI_AFFINITY", (TENANT_ADMIN,))
WRITE_ANTI_AFFINITY = Right(Scope.NAMESPACE_POLICY, "WRITE ANTI_AFFINITY", (TENANT_ADMIN,))
# Pulsar has no operation names for these.
LIST_ANTI_AFFINITY = Right(Scope.TENANT, "LIST_ANTI_AFFINITY", (TENANT_ADMIN,))
READ_BOOKIE_AFFINITY = Right(Scope.NAMESPACE, "READ_BOOKIE_AFFINITY", (SUPERUSER,))
WRITE_BOOKIE_AFFINITY = Right(Scope.NAMESPACE, "WRITE_BOOKIE_AFFINITY", (SUPERUSER,))
LIST_TENANTS = Right(Scope.TENANT, "LIST_TENANTS", (SUPERUSER,))
GET_TENANT = Right(Scope.TENANT, "GET_TENANT", (TENANT_ADMIN,))
CREATE_TENANT = Right(Scope.TENANT, "CREATE_TENANT", (SUPERUSER,))
UPDATE_TENANT = Right(Scope.TENANT, "UPDATE_TENANT", (TENANT_ADMIN,))
DELETE_TENANT = Right(Scope.TENANT, "DELETE_TENANT", (TENANT_ADMIN,))
LIST_NAMESPACES = Right(Scope.TENANT, "LIST_NAMESPACES", (TENANT_ADMIN,))
CREATE_NAMESPACE = Right(Scope.TENANT, "CREATE_NAMESPACE", (TENANT_ADMIN,))
DELETE_NAMESPACE = Right(Scope.TENANT, "DELETE_NAMESPACE", (TENANT_ADMIN,))
ADMINISTRATE = Right(Scope.ADMINISTRATION, "", (TENANT_ADMIN,))
GET_BUNDLE = Right(Scope.NAMESPACE, "GET_BUNDLE", (TENANT_ADMIN, PRODUCE, CONSUME))
CLEAR_BACKLOG = Right(Scope.NAMESPACE, "CLEAR_BACKLOG", (TENANT_ADMIN, CONSUME))
UNSUBSCRIBE_NAMESPACE = Right(Scope.NAMESPACE, "UNSUBSCRIBE", (TENANT_ADMIN, CONSUME))
GET_PERMISSION = Right(Scope.NAMESPACE, "GET_PERMISSION", (TENANT_ADMIN,))
GRANT_PERMISSION = Right(Scope.NAMESPACE, "GRANT_PERMISSION", (TENANT_ADMIN,))
REVOKE_PERMISSION = Right(Scope.NAMESPACE, "REVOKE_PERMISSION", (TENANT_ADMIN,))
# For topics named in a request body; Pulsar requires the administrator of their tenant.
GRANT_PERMISSIONS_ON_TOPICS = Right(Scope.BROKER, "GRANT_PERMISSIONS_ON_TOPICS", (SUPERUSER,))
READ_POLICIES = Right(Scope.NAMESPACE_POLICY, "READ ALL", (TENANT_ADMIN,))
READ_OFFLOAD_POLICIES = Right(Scope.NAMESPACE_POLICY, "READ OFFLOAD", (TENANT_ADMIN,))
WRITE_OFFLOAD_POLICIES = Right(Scope.NAMESPACE_POLICY, "WRITE OFFLOAD", (TENANT_ADMIN,))
READ_REPLICATION = Right(Scope.NAMESPACE_POLICY, "READ REPLICATION", (TENANT_ADMIN,))
WRITE_REPLICATION = Right(Scope.NAMESPACE_POLICY, "WRITE REPLICATION", (TENANT_ADMIN,))
READ_ALLOW_CLUSTERS = Right(Scope.NAMESPACE_POLICY, "READ ALLOW_CLUSTERS", (TENANT_ADMIN,))
WRITE_ALLOW_CLUSTERS = Right(Scope.NAMESPACE_POLICY, "WRITE ALLOW_CLUSTERS", (TENANT_ADMIN,))
GET_TOPICS = Right(Scope.NAMESPACE, "GET_TOPICS", (TENANT_ADMIN, PRODUCE, CONSUME))
CREATE_TOPIC = Right(Scope.NAMESPACE, "CREATE_TOPIC", (TENANT_ADMIN,))
DELETE_TOPIC = Right(Scope.NAMESPACE, "DELETE_TOPIC", (TENANT_ADMIN,))
WRITE_PARTITION = Right(Scope.TOPIC_POLICY, "WRITE PARTITION", (TENANT_ADMIN,))
# Pulsar's name, although it concerns all policies of a topic.
DELETE_POLICIES = Right(Scope.TOPIC_POLICY, "WRITE MAX_PRODUCERS", (TENANT_ADMIN,))
LOOKUP = Right(Scope.TOPIC, "LOOKUP", (TENANT_ADMIN, PRODUCE, CONSUME))
GET_METADATA = Right(Scope.TOPIC, "GET_METADATA", (TENANT_ADMIN, PRODUCE, CONSUME))
PRODUCE_TO_TOPIC = Right(Scope.TOPIC, "PRODUCE", (TENANT_ADMIN, PRODUCE))
CONSUME_TOPIC = Right(Scope.TOPIC, "CONSUME", (TENANT_ADMIN, CONSUME))
UNSUBSCRIBE = Right(Scope.TOPIC, "UNSUBSCRIBE", (TENANT_ADMIN, CONSUME))
SUBSCRIBE = Right(Scope.TOPIC, "SUBSCRIBE", (TENANT_ADMIN, CONSUME))
GET_SUBSCRIPTIONS = Right(Scope.TOPIC, "GET_SUBSCRIPTIONS", (TENANT_ADMIN, CONSUME))
PEEK_MESSAGES = Right(Scope.TOPIC, "PEEK_MESSAGES", (TENANT_ADMIN, CONSUME))
RESET_CURSOR = Right(Scope.TOPIC, "RESET_CURSOR", (TENANT_ADMIN, CONSUME))
GET_REPLICATED_STATUS = Right(
    Scope.TOPIC, "GET_REPLICATED_SUBSCRIPTION_STATUS", (TENANT_ADMIN, CONSUME)
)
SET_REPLICATED_STATUS = Right(
    Scope.TOPIC, "SET_REPLICATED_SUBSCRIPTION_STATUS", (TENANT_ADMIN, CONSUME)
)
GET_BACKLOG_SIZE = Right(Scope.TOPIC, "GET_BACKLOG_SIZE", (TENANT_ADMIN, CONSUME))
GET_STATS = Right(Scope.TOPIC, "GET_STATS", (TENANT_ADMIN, PRODUCE, CONSUME))
UPDATE_METADATA = Right(Scope.TOPIC, "UPDATE_METADATA", (TENANT_ADMIN,))
DELETE_METADATA = Right(Scope.TOPIC, "DELETE_METADATA", (TENANT_ADMIN,))
SKIP = Right(Scope.TOPIC, "SKIP", (TENANT_ADMIN, CONSUME))
EXPIRE_MESSAGES = Right(Scope.TOPIC, "EXPIRE_MESSAGES", (TENANT_ADMIN, CONSUME))
UNLOAD = Right(Scope.TOPIC, "UNLOAD", (TENANT_ADMIN,))
TRIM_TOPIC = Right(Scope.TOPIC, "TRIM_TOPIC", (TENANT_ADMIN,))
COMPACT = Right(Scope.TOPIC, "COMPACT", (TENANT_ADMIN,))
# Pulsar has no name for the right to migrate.
OFFLOAD = Right(Scope.TOPIC, "OFFLOAD", (TENANT_ADMIN,))
MIGRATE_NAMESPACE = Right(Scope.NAMESPACE, "MIGRATE", (SUPERUSER,))
TERMINATE = Right(Scope.TOPIC, "TERMINATE", (TENANT_ADMIN,))


async def authorize(
    permissions: Permissions | None,
    principal: Principal,
    right: Right,
    resource: Resource,
    subscription: str = "",
) -> None:
    """Raise AuthorizationError if a principal does not have a right on a resource. A right to
    consume may concern a subscription of the resource.

    Without permissions authorization is off, and every principal has every right. A resource of the
    wrong type is a programming error in both cases.
    """
    assert isinstance(resource, _RESOURCES[right.scope]), f"{right} on {resource!r}"
    if permissions is not None:
        await permissions.check(principal, right, resource, subscription)

"""Resources of Apache Pulsar as its Terraform provider manages them, without Terraform.

Each resource makes the calls of the Go package ``pulsaradmin`` that the provider makes, in the
provider's order. A configuration is a dictionary with the provider's attributes; ``apply`` creates
the resource or changes it, and ``read`` returns what a plan compares with the configuration.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

from harness.go_admin import GoAdmin, Refused

Config = dict[str, Any]
SECONDS_MAX = 60.0  # the provider's wait until a policy of a topic is in force


class Resource:
    """One resource. `config` is the configuration that was applied last; {}: it does not exist."""

    def __init__(self, admin: GoAdmin, name: str) -> None:
        self.admin = admin
        self.name = name
        self.config: Config = {}

    def apply(self, wanted: Config) -> None:
        """Create the resource, or change it to what is wanted."""
        if self.config:
            self._update(wanted)
        else:
            self._create(wanted)
        self.config = wanted

    def destroy(self) -> None:
        """Delete the resource."""
        self._delete()
        self.config = {}

    def read(self) -> Config:
        """The attributes that are configured, as the broker tells them; {}: it does not exist."""
        raise NotImplementedError

    def _create(self, wanted: Config) -> None:
        raise NotImplementedError

    def _update(self, wanted: Config) -> None:
        raise NotImplementedError

    def _delete(self) -> None:
        raise NotImplementedError


class Tenant(Resource):
    """``pulsar_tenant``."""

    def read(self) -> Config:
        """The roles and clusters of the tenant."""
        found = self.admin.call("Tenants", "Get", self.name)
        return {"admin_roles": found["adminRoles"], "allowed_clusters": found["allowedClusters"]}

    def _create(self, wanted: Config) -> None:
        self.admin.call("Tenants", "Create", self._data(wanted))

    def _update(self, wanted: Config) -> None:
        self.admin.call("Tenants", "Update", self._data(wanted))

    def _data(self, wanted: Config) -> Config:
        return {
            "Name": self.name,
            "adminRoles": wanted["admin_roles"],
            "allowedClusters": wanted["allowed_clusters"],
        }

    def _delete(self) -> None:
        assert self.admin.call("Namespaces", "GetNamespaces", self.name) == []
        self.admin.call("Tenants", "Delete", self.name)


# Attributes of `namespace_config`: how each is set, and how it is removed where that is possible.
# A number below 0 stands for one that is not set.
NAMESPACE_CONFIG = {
    "anti_affinity": ("SetNamespaceAntiAffinityGroup", ""),
    "is_allow_auto_update_schema": ("SetIsAllowAutoUpdateSchema", ""),
    "max_consumers_per_topic": ("SetMaxConsumersPerTopic", "RemoveMaxConsumersPerTopic"),
    "max_consumers_per_subscription": (
        "SetMaxConsumersPerSubscription",
        "RemoveMaxConsumersPerSubscription",
    ),
    "max_producers_per_topic": ("SetMaxProducersPerTopic", "RemoveMaxProducersPerTopic"),
    "message_ttl_seconds": ("SetNamespaceMessageTTL", "RemoveNamespaceMessageTTL"),
    "offload_threshold_size_in_mb": ("SetOffloadThreshold", ""),
    "replication_clusters": ("SetNamespaceReplicationClusters", ""),
    "schema_compatibility_strategy": ("SetSchemaCompatibilityStrategy", ""),
    "schema_auto_update_compatibility_strategy": ("SetSchemaAutoUpdateCompatibilityStrategy", ""),
    "schema_validation_enforce": ("SetSchemaValidationEnforced", ""),
    "subscription_expiration_time_minutes": (
        "SetSubscriptionExpirationTime",
        "RemoveSubscriptionExpirationTime",
    ),
}
# What reads one of them; a field of GetPolicies where the name is in lower case.
READ_CONFIG = {
    "anti_affinity": "GetNamespaceAntiAffinityGroup",
    "is_allow_auto_update_schema": "GetIsAllowAutoUpdateSchema",
    "max_consumers_per_subscription": "max_consumers_per_subscription",
    "max_consumers_per_topic": "max_consumers_per_topic",
    "max_producers_per_topic": "max_producers_per_topic",
    "message_ttl_seconds": "message_ttl_in_seconds",
    "offload_threshold_size_in_mb": "GetOffloadThreshold",
    "replication_clusters": "GetNamespaceReplicationClusters",
    "schema_validation_enforce": "GetSchemaValidationEnforced",
    "schema_auto_update_compatibility_strategy": "GetSchemaAutoUpdateCompatibilityStrategy",
    "schema_compatibility_strategy": "GetSchemaCompatibilityStrategy",
    "subscription_expiration_time_minutes": "GetSubscriptionExpirationTime",
}
# Blocks with one value each: what sets, reads and removes it.
NAMESPACE_BLOCKS = {
    "retention_policies": ("Retention", "RemoveRetention"),
    "inactive_topic": ("InactiveTopicPolicies", "RemoveInactiveTopicPolicies"),
    "dispatch_rate": ("DispatchRate", ""),
    "subscription_dispatch_rate": ("SubscriptionDispatchRate", ""),
    "persistence_policies": ("Persistence", ""),
    "topic_auto_creation": ("TopicAutoCreation", "RemoveTopicAutoCreation"),
}


class Namespace(Resource):
    """``pulsar_namespace``."""

    def call(self, method: str, *arguments: Any) -> Any:
        """A call of the group for namespaces, about this one."""
        return self.admin.call("Namespaces", method, self.name, *arguments)

    def read(self) -> Config:
        """The blocks that are configured."""
        tenant = self.name.partition("/")[0]
        if self.name not in self.admin.call("Namespaces", "GetNamespaces", tenant):
            return {}
        found: Config = {}
        for block in self.config:
            if block == "namespace_config":
                found[block] = self._read_config()
            elif block in NAMESPACE_BLOCKS:
                found[block] = self.call("Get" + NAMESPACE_BLOCKS[block][0])
            elif block == "backlog_quota":
                quotas = self.call("GetBacklogQuotaMap")
                found[block] = {kind: quotas.get(kind) for kind in self.config[block]}
            elif block == "permission_grant":
                found[block] = granted(self.call("GetNamespacePermissions"), self.config[block])
            else:
                # The provider never reads this one back.
                assert block == "enable_deduplication"
                found[block] = self.call("GetPolicies")["deduplicationEnabled"]
        return found

    def _read_config(self) -> Config:
        policies = self.call("GetPolicies")
        found = {}
        for name in self.config["namespace_config"]:
            source = READ_CONFIG[name]
            if source[0].islower():
                value = policies.get(source)
                found[name] = -1 if value is None else value
            else:
                found[name] = self.call(source)
        if "anti_affinity" in found:
            # The package sends JSON and reads text; the provider takes the quotes off.
            found["anti_affinity"] = found["anti_affinity"].strip().strip('"')
        return found

    def _create(self, wanted: Config) -> None:
        self.call("CreateNamespace")
        self._update(wanted)

    def _update(self, wanted: Config) -> None:
        for name, (setter, remover) in NAMESPACE_CONFIG.items():
            value = wanted.get("namespace_config", {}).get(name)
            is_removed = type(value) is int and value < 0
            if value is not None and not is_removed:
                self.call(setter, value)
            elif is_removed and remover:
                self.call(remover)
        for block, (method, remover) in NAMESPACE_BLOCKS.items():
            if block in wanted:
                self.call(f"Set{method}", wanted[block])
            elif remover:
                # Older versions of the provider remove also what was never set.
                self.call(remover)
        quotas = wanted.get("backlog_quota", {})
        for kind, quota in quotas.items():
            self.call("SetBacklogQuota", quota, kind)
        if self.config.get("backlog_quota", {}).keys() - quotas.keys() == {"destination_storage"}:
            self.call("RemoveBacklogQuota")
        if "enable_deduplication" in wanted:
            self.call("SetDeduplicationStatus", wanted["enable_deduplication"])
        grants = wanted.get("permission_grant", {})
        for role, actions in grants.items():
            self.call("GrantNamespacePermission", role, actions)
        for role in self.config.get("permission_grant", {}).keys() - grants.keys():
            self.call("RevokeNamespacePermission", role)

    def import_all(self) -> None:
        """Read all blocks, as ``terraform import`` does, whether anything is set or not."""
        self.call("GetPolicies")
        for name, source in READ_CONFIG.items():
            # The package cannot read a strategy that is not set, and the provider does not ask.
            if source[0].isupper() and not name.endswith("_strategy"):
                self._call_or_404(source)
        for method, _ in NAMESPACE_BLOCKS.values():
            self._call_or_404(f"Get{method}")
        self.call("GetBacklogQuotaMap")

    def _call_or_404(self, method: str) -> None:
        try:
            self.call(method)
        except Refused as refused:
            assert refused.code == 404, refused

    def _delete(self) -> None:
        self.call("DeleteNamespace")


def granted(found: Config, roles: Config) -> Config:
    """The actions of the roles that are configured, in the order of their names."""
    return {role: sorted(found[role]) for role in roles if role in found}


class Grant(Resource):
    """``pulsar_permission_grant``: the name is that of a namespace and of a role."""

    def read(self) -> Config:
        """The actions of the role."""
        namespace, _, role = self.name.rpartition("/")
        found = self.admin.call("Namespaces", "GetNamespacePermissions", namespace)
        return {"actions": sorted(found[role])} if role in found else {}

    def _create(self, wanted: Config) -> None:
        namespace, _, role = self.name.rpartition("/")
        self.admin.call(
            "Namespaces", "GrantNamespacePermission", namespace, role, wanted["actions"]
        )

    def _update(self, wanted: Config) -> None:
        self._delete()
        self._create(wanted)

    def _delete(self) -> None:
        namespace, _, role = self.name.rpartition("/")
        self.admin.call("Namespaces", "RevokeNamespacePermission", namespace, role)


# Attributes of `topic_config`: the method that sets and reads each; True: the reading asks for what
# applies, whichever level says it.
TOPIC_CONFIG = {
    "compaction_threshold": ("CompactionThreshold", True),
    "delayed_delivery": ("DelayedDelivery", False),
    "inactive_topic": ("InactiveTopicPolicies", True),
    "max_consumers": ("MaxConsumers", False),
    "max_producers": ("MaxProducers", False),
    "message_ttl_seconds": ("MessageTTL", False),
    "max_unacked_messages_per_consumer": ("MaxUnackMessagesPerConsumer", False),
    "max_unacked_messages_per_subscription": ("MaxUnackMessagesPerSubscription", False),
    "publish_rate": ("PublishRate", False),
}
TOPIC_BLOCKS = {
    "retention_policies": ("Retention", True),
    "enable_deduplication": ("DeduplicationStatus", False),
    "dispatch_rate": ("DispatchRate", False),
    "persistence_policies": ("Persistence", False),
}


class Topic(Resource):
    """``pulsar_topic``; `partitions` is 0 for a topic that is not partitioned."""

    def call(self, method: str, *arguments: Any) -> Any:
        """A call of the group for topics, about this one."""
        return self.admin.call("Topics", method, self.name, *arguments)

    def read(self) -> Config:
        """The blocks that are configured; of `topic_config` all attributes are read."""
        if not exists(self.admin, self.name):
            return {}
        found: Config = {"partitions": self.call("GetMetadata")["partitions"]}
        for block in self.config:
            if block == "permission_grant":
                found[block] = granted(self.call("GetPermissions"), self.config[block])
            elif block == "backlog_quota":
                quotas = self.call("GetBacklogQuotaMap", True)
                found[block] = {kind: quotas.get(kind) for kind in self.config[block]}
            elif block in TOPIC_BLOCKS:
                found[block] = self._get(*TOPIC_BLOCKS[block])
        of_config = {name: self._get(*TOPIC_CONFIG[name]) for name in TOPIC_CONFIG}
        wanted = self.config.get("topic_config", {})
        if wanted:
            found["topic_config"] = {name: of_config[name] for name in wanted}
        properties = self.call("GetProperties") or {}
        if "topic_properties" in self.config:
            found["topic_properties"] = properties
        return found

    def _get(self, method: str, is_applied: bool) -> Any:
        return self.call(f"Get{method}", *((True,) if is_applied else ()))

    def _create(self, wanted: Config) -> None:
        self.call("Create", wanted["partitions"])
        self._set(wanted)

    def _update(self, wanted: Config) -> None:
        if wanted["partitions"] != self.config["partitions"]:
            assert exists(self.admin, self.name)
            self.call("Update", wanted["partitions"])
        self._set(wanted)

    def _set(self, wanted: Config) -> None:
        grants = wanted.get("permission_grant", {})
        for role, actions in grants.items():
            self.call("GrantPermission", role, actions)
        for role in self.config.get("permission_grant", {}).keys() - grants.keys():
            self.call("RevokePermission", role)
        for block, (method, is_applied) in TOPIC_BLOCKS.items():
            if block in wanted:
                self._set_one(method, wanted[block], is_applied)
        for kind, quota in wanted.get("backlog_quota", {}).items():
            self.call("SetBacklogQuota", quota, kind)
        for name, value in wanted.get("topic_config", {}).items():
            self._set_one(TOPIC_CONFIG[name][0], value, TOPIC_CONFIG[name][1])
        properties = wanted.get("topic_properties", {})
        for key in self.config.get("topic_properties", {}).keys() - properties.keys():
            self.call("RemoveProperty", key)
        if properties or self.config.get("topic_properties"):
            self.call("UpdateProperties", properties)

    def _set_one(self, method: str, value: Any, is_applied: bool) -> None:
        """Set a policy, and wait until the broker tells it."""
        self.call(f"Set{method}", value)
        until(lambda: self._get(method, is_applied) == value, f"{method} of {self.name}")

    def _delete(self) -> None:
        self.call("Delete", True, self.config["partitions"] == 0)


POSITIONS = {
    "earliest": {"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
    "latest": {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1},
}


class Subscription(Resource):
    """``pulsar_subscription``: the name is that of a topic and of a subscription."""

    def read(self) -> Config:
        """The configured position: no broker tells it."""
        topic, _, name = self.name.rpartition(":")
        if not exists(self.admin, topic):
            return {}
        return self.config if name in self.admin.call("Subscriptions", "List", topic) else {}

    def _create(self, wanted: Config) -> None:
        topic, _, name = self.name.rpartition(":")
        assert exists(self.admin, topic)
        assert name not in self.admin.call("Subscriptions", "List", topic)
        position = POSITIONS[wanted["position"]]
        self.admin.call("Subscriptions", "Create", topic, name, position)

    def _update(self, wanted: Config) -> None:
        self._delete()
        self._create(wanted)

    def _delete(self) -> None:
        topic, _, name = self.name.rpartition(":")
        self.admin.call("Subscriptions", "Delete", topic, name)


class Schema(Resource):
    """``pulsar_schema`` of a topic."""

    def read(self) -> Config:
        """The newest schema."""
        try:
            found = self.admin.call("Schemas", "GetSchemaInfoWithVersion", self.name)
        except Refused as refused:
            assert refused.code == 404, refused
            return {}
        info = found["schemaInfo"]
        return {
            "type": info["type"],
            "schema": base64.b64decode(info["schema"]).decode(),
            "properties": info["properties"],
            "version": found["version"],
        }

    def _create(self, wanted: Config) -> None:
        payload = {name: wanted[name] for name in ("type", "schema", "properties")}
        self.admin.call("Schemas", "CreateSchemaByPayload", self.name, payload)

    _update = _create

    def _delete(self) -> None:
        self.admin.call("Schemas", "DeleteSchema", self.name)


def exists(admin: GoAdmin, topic: str) -> bool:
    """Return True if a topic is in one of the two lists of its namespace."""
    namespace = topic.partition("://")[2].rpartition("/")[0]
    lists = admin.call("Topics", "List", namespace)
    return any(topic in (each or ()) for each in lists)


def until(holds: Callable[[], bool], what: str) -> None:
    """Ask again until it holds, as long as the provider would."""
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)

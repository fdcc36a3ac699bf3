"""The policies of namespaces and topics in REST: their paths, bodies and answers.

A row is a policy as Pulsar's REST has it, which can differ from policies/table.py: three of its
policies are one object here, and two share one map. The endpoints of both levels are created from
the rows (resources/namespace_policies.py, resources/topic_policies.py). policies/table.py defines
the meaning of values and their types in records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyxbroker.admin.policy_bodies import BOOLEAN, INTEGER, Body, Field, Json
from pyxbroker.admin.policy_checks import (
    QUOTA_TYPES,
    Check,
    at_least_zero,
    check_auto_topic_creation,
    check_message_size,
    check_persistence,
    check_quota,
    check_retention,
    check_subscribe_period,
    unchecked,
)
from pyxbroker.policies.shapes import CLUSTER, LONG_MAX, Path
from pyxbroker.policies.values import (
    BACKLOG_QUOTA_POLICIES,
    INACTIVE_TOPIC_DELETE_MODES,
    OLDER_SCHEMA_STRATEGIES,
    SUBSCRIPTION_TYPES,
    BacklogQuota,
    DispatchRate,
    Policies,
)
from pyxbroker.settings.config import Config
from pyxbroker.settings.sections.topics import SCHEMA_STRATEGIES
from pyxbroker.web.errors import HttpError

# --- applied values -------------------------------------------------------------------------------


def _number(name: str) -> Callable[[Policies], Json]:
    return lambda policies: getattr(policies, name)


def _applied_retention(policies: Policies) -> Json:
    seconds, size = policies.retention
    return {
        "retentionTimeInMinutes": int(seconds // 60),
        "retentionSizeInMB": size >> 20,
    }


def quota_json(quota: BacklogQuota, quota_type: str) -> dict[str, Json]:
    """Return a quota as Pulsar's REST shows it."""
    if quota_type == QUOTA_TYPES[0]:
        size, seconds = quota.limit, -1
    else:
        # A quota of age has no size; it is shown as 0.
        size, seconds = (0 if quota.limit > 0 else -1), quota.limit
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": quota.policy}


def _applied_quotas(policies: Policies) -> Json:
    quotas = (policies.backlog_size, policies.backlog_age)
    return {each: quota_json(quota, each) for each, quota in zip(QUOTA_TYPES, quotas, strict=True)}


def _applied_persistence(policies: Policies) -> Json:
    ensemble, write, ack, rate, _ = policies.persistence
    return {
        "bookkeeperEnsemble": ensemble,
        "bookkeeperWriteQuorum": write,
        "bookkeeperAckQuorum": ack,
        "managedLedgerMaxMarkDeleteRate": rate,
    }


def _applied_inactive_topics(policies: Policies) -> Json:
    found = policies.inactive_topics
    return {
        "inactiveTopicDeleteMode": found.mode,
        "maxInactiveDurationSeconds": int(found.max_inactive_s),
        "deleteWhileInactive": found.delete,
    }


def _applied_delayed_delivery(policies: Policies) -> Json:
    return {
        "tickTime": policies.delay_tick_ms,
        "active": policies.delayed_delivery,
        "maxDeliveryDelayInMillis": policies.delay_max_ms,
    }


def _dispatch_rate_json(rate: DispatchRate) -> Json:
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.bytes,
        "relativeToPublishRate": rate.relative,
        "ratePeriodInSecond": rate.period_s,
    }


def _applied_dispatch_rate(name: str) -> Callable[[Policies], Json]:
    return lambda policies: _dispatch_rate_json(getattr(policies, name))


def _applied_subscribe_rate(policies: Policies) -> Json:
    per_consumer, period_s = policies.subscribe_rate
    return {"subscribeThrottlingRatePerConsumer": per_consumer, "ratePeriodInSecond": period_s}


def _applied_auto_subscription(policies: Policies) -> Json:
    return {"allowAutoSubscriptionCreation": policies.auto_subscription_creation}


# --- the rows -------------------------------------------------------------------------------------


class PolicyEndpoint(NamedTuple):
    """A policy at one level: the last part of its path, and its place in the record."""

    segment: str
    path: Path
    method: str = "POST"
    query: str = ""
    """The query field that carries the value if the request has no body."""
    removes: bool = True
    null_removes: bool = False
    """True if setting it without a value removes it, as in Pulsar. pulsar-admin removes the
    snapshot interval of a namespace in this way.
    """


class Row(NamedTuple):
    """A policy in REST."""

    # Pulsar's PolicyName, which names the rights to read and to write it. Without one, the right is
    # that of the tenant's administrators.
    right: str | None
    about: str
    body: Body | None  # None: setting it enables it
    namespace: PolicyEndpoint | None = None
    topic: PolicyEndpoint | None = None
    check: Check = unchecked
    applied: Callable[[Policies], Json] | None = None
    """The applied value for a topic, if REST shows it."""
    unset: Callable[[Config], Json] = lambda config: None
    """The answer if nothing is set; None: 204."""


def _limit(
    right: str,
    about: str,
    namespace: tuple[str, str],
    topic: tuple[str, str],
    texts: tuple[str, str],
    applied: str = "",
    unset: Callable[[Config], Json] = lambda config: None,
    null_removes: tuple[bool, bool] = (False, False),
) -> Row:
    """A limit of 0 or more; pairs are for namespaces and topics: path and field, texts
    of refusals.
    """
    of_namespace, of_topic = null_removes
    return Row(
        right,
        about,
        INTEGER,
        PolicyEndpoint(namespace[0], (namespace[1],), null_removes=of_namespace)
        if namespace[0]
        else None,
        PolicyEndpoint(topic[0], (topic[1],), null_removes=of_topic) if topic[0] else None,
        at_least_zero(*texts),
        _number(applied) if applied else None,
        unset=unset,
    )


_DISPATCH_RATE = Body(
    fields={
        "dispatchThrottlingRateInMsg": Field("integer", 0),
        "dispatchThrottlingRateInByte": Field("integer", 0, maximum=LONG_MAX),
        "relativeToPublishRate": Field("boolean", False),
        "ratePeriodInSecond": Field("integer", 0),
    }
)


def _dispatch_rate(segment: str, namespace: str, topic: str, about: str, applied: str) -> Row:
    return Row(
        "REPLICATION_RATE" if segment == "replicatorDispatchRate" else "RATE",
        about,
        _DISPATCH_RATE,
        PolicyEndpoint(segment, (namespace, CLUSTER), null_removes=True),
        PolicyEndpoint(segment, (topic,), null_removes=segment == "replicatorDispatchRate"),
        applied=_applied_dispatch_rate(applied) if applied else None,
    )


ROWS: tuple[Row, ...] = (
    Row(
        "RETENTION",
        "how long and how much of acknowledged messages is retained",
        Body(
            fields={
                "retentionTimeInMinutes": Field("integer", 0),
                "retentionSizeInMB": Field("integer", 0, maximum=LONG_MAX >> 20),
            }
        ),
        PolicyEndpoint("retention", ("retention_policies",), null_removes=True),
        PolicyEndpoint("retention", ("retentionPolicies",)),
        check_retention,
        _applied_retention,
    ),
    Row(
        "TTL",
        "after how many seconds messages count as acknowledged",
        INTEGER,
        PolicyEndpoint("messageTTL", ("message_ttl_in_seconds",)),
        PolicyEndpoint(
            "messageTTL", ("messageTTLInSeconds",), query="messageTTL", null_removes=True
        ),
        at_least_zero(
            "Invalid value for message TTL, message TTL must >= 0", "Invalid value for message TTL"
        ),
        _number("message_ttl_s"),
    ),
    Row(
        "SUBSCRIPTION_EXPIRATION_TIME",
        "after how many minutes subscriptions without consumers are deleted",
        INTEGER,
        PolicyEndpoint("subscriptionExpirationTime", ("subscription_expiration_time_minutes",)),
        PolicyEndpoint(
            "subscriptionExpirationTime",
            ("subscriptionExpirationTimeInMinutes",),
            query="subscriptionExpirationTime",
            null_removes=True,
        ),
        at_least_zero("Invalid value for subscription expiration time"),
        lambda policies: policies.subscription_expiry_s // 60,
    ),
    Row(
        "PERSISTENCE",
        "how many bookies store an entry, and how often cursors are stored",
        Body(
            fields={
                "bookkeeperEnsemble": Field("integer", 2),
                "bookkeeperWriteQuorum": Field("integer", 2),
                "bookkeeperAckQuorum": Field("integer", 2),
                "managedLedgerMaxMarkDeleteRate": Field("number", -1.0),
                "managedLedgerStorageClassName": Field("string"),
            }
        ),
        PolicyEndpoint("persistence", ("persistence",)),
        PolicyEndpoint("persistence", ("persistence",)),
        check_persistence,
        _applied_persistence,
    ),
    Row(
        "INACTIVE_TOPIC",
        "when unused topics are deleted",
        Body(
            fields={
                "inactiveTopicDeleteMode": Field("string", choices=INACTIVE_TOPIC_DELETE_MODES),
                "maxInactiveDurationSeconds": Field("integer", 0),
                "deleteWhileInactive": Field("boolean", False),
            }
        ),
        PolicyEndpoint("inactiveTopicPolicies", ("inactive_topic_policies",), null_removes=True),
        PolicyEndpoint("inactiveTopicPolicies", ("inactiveTopicPolicies",), null_removes=True),
        applied=_applied_inactive_topics,
    ),
    Row(
        "RATE",
        "how much producers may publish per second",
        Body(
            fields={
                "publishThrottlingRateInMsg": Field("integer", -1),
                "publishThrottlingRateInByte": Field("integer", -1, maximum=LONG_MAX),
            }
        ),
        PolicyEndpoint("publishRate", ("publishMaxMessageRate", CLUSTER), null_removes=True),
        PolicyEndpoint("publishRate", ("publishRate",)),
    ),
    _dispatch_rate(
        "dispatchRate",
        "topicDispatchRate",
        "dispatchRate",
        "how much the consumers of a topic may receive in each period",
        "dispatch_rate",
    ),
    _dispatch_rate(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        "how much the consumers of a subscription may receive in each period",
        "subscription_dispatch_rate",
    ),
    _dispatch_rate(
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        "how much replicators (not built yet) may send in each period",
        "",
    ),
    Row(
        "RATE",
        "how often a consumer may subscribe in each period",
        Body(
            fields={
                "subscribeThrottlingRatePerConsumer": Field("integer", -1),
                "ratePeriodInSecond": Field("integer", 30),
            }
        ),
        PolicyEndpoint("subscribeRate", ("clusterSubscribeRate", CLUSTER), null_removes=True),
        PolicyEndpoint("subscribeRate", ("subscribeRate",)),
        check_subscribe_period,
        applied=_applied_subscribe_rate,
    ),
    _limit(
        "MAX_PRODUCERS",
        "how many producers a topic may have",
        ("maxProducersPerTopic", "max_producers_per_topic"),
        ("maxProducers", "maxProducerPerTopic"),
        ("maxProducersPerTopic must be 0 or more", "maxProducers must be 0 or more"),
        "producers_max",
    ),
    _limit(
        "MAX_CONSUMERS",
        "how many consumers a topic may have",
        ("maxConsumersPerTopic", "max_consumers_per_topic"),
        ("maxConsumers", "maxConsumerPerTopic"),
        ("maxConsumersPerTopic must be 0 or more", "maxConsumers must be 0 or more"),
        "consumers_max",
    ),
    _limit(
        "MAX_CONSUMERS",
        "how many consumers a subscription may have",
        ("maxConsumersPerSubscription", "max_consumers_per_subscription"),
        ("maxConsumersPerSubscription", "maxConsumersPerSubscription"),
        (
            "maxConsumersPerSubscription must be 0 or more",
            "Invalid value for maxConsumersPerSubscription",
        ),
    ),
    _limit(
        "MAX_SUBSCRIPTIONS",
        "how many subscriptions a topic may have",
        ("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
        ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic"),
        ("maxSubscriptionsPerTopic must be 0 or more", ""),
    ),
    _limit(
        "MAX_UNACKED",
        "how many messages a consumer may hold unacknowledged",
        ("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
        ("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnConsumer"),
        ("maxUnackedMessagesPerConsumer must be 0 or more", "maxUnackedNum must be 0 or more"),
        "unacked_per_consumer_max",
        null_removes=(False, True),
    ),
    _limit(
        "MAX_UNACKED",
        "how many messages the consumers of a subscription may hold unacknowledged",
        ("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
        ("maxUnackedMessagesOnSubscription", "maxUnackedMessagesOnSubscription"),
        ("maxUnackedMessagesPerSubscription must be 0 or more", "maxUnackedNum must be 0 or more"),
        "unacked_per_subscription_max",
        null_removes=(False, True),
    ),
    _limit(
        "MAX_TOPICS",
        "how many topics a namespace may have",
        ("maxTopicsPerNamespace", "max_topics_per_namespace"),
        ("", ""),
        ("maxTopicsPerNamespace must be 0 or more", ""),
        unset=lambda config: config.maxTopicsPerNamespace,
    ),
    Row(
        None,
        "how many bytes a message may have",
        INTEGER,
        None,
        PolicyEndpoint("maxMessageSize", ("maxMessageSize",)),
        check_message_size,
    ),
    Row(
        # Pulsar has no PolicyName for subscription types and uses this one.
        "SUBSCRIPTION_AUTH_MODE",
        "which subscription types consumers may use",
        Body(names=SUBSCRIPTION_TYPES),
        PolicyEndpoint("subscriptionTypesEnabled", ("subscription_types_enabled",)),
        PolicyEndpoint("subscriptionTypesEnabled", ("subscriptionTypesEnabled",)),
    ),
    Row(
        "SUBSCRIPTION_AUTH_MODE",
        "whether a subscription's name has to begin with the role of the client",
        Body(Field("string", choices=("None", "Prefix"))),
        PolicyEndpoint("subscriptionAuthMode", ("subscription_auth_mode",), removes=False),
        unset=lambda config: "None",
    ),
    Row(
        "AUTO_TOPIC_CREATION",
        "whether clients create topics by using them",
        Body(
            fields={
                "allowAutoTopicCreation": Field("boolean", False),
                "topicType": Field("string"),
                "defaultNumPartitions": Field("integer"),
            }
        ),
        PolicyEndpoint("autoTopicCreation", ("autoTopicCreationOverride",), null_removes=True),
        None,
        check_auto_topic_creation,
    ),
    Row(
        "AUTO_SUBSCRIPTION_CREATION",
        "whether consumers create subscriptions by using them",
        Body(fields={"allowAutoSubscriptionCreation": Field("boolean", False)}),
        PolicyEndpoint(
            "autoSubscriptionCreation", ("autoSubscriptionCreationOverride",), null_removes=True
        ),
        PolicyEndpoint(
            "autoSubscriptionCreation", ("autoSubscriptionCreationOverride",), null_removes=True
        ),
        applied=_applied_auto_subscription,
    ),
    Row(
        "DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT",
        "whether dispatch pauses while there are too many gaps between acknowledged messages",
        None,
        PolicyEndpoint(
            "dispatcherPauseOnAckStatePersistent", ("dispatcherPauseOnAckStatePersistentEnabled",)
        ),
        PolicyEndpoint(
            "dispatcherPauseOnAckStatePersistent", ("dispatcherPauseOnAckStatePersistentEnabled",)
        ),
        applied=lambda policies: policies.pause_on_ack_state,
        unset=lambda config: False,
    ),
    Row(
        "DEDUPLICATION",
        "whether duplicates that a producer sends are dropped",
        BOOLEAN,
        PolicyEndpoint("deduplication", ("deduplicationEnabled",)),
        PolicyEndpoint("deduplicationEnabled", ("deduplicationEnabled",), null_removes=True),
        applied=lambda policies: policies.deduplication,
    ),
    _limit(
        "DEDUPLICATION_SNAPSHOT",
        "after how many seconds the sequence ids of producers are stored",
        ("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
        ("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
        ("interval must be greater than or equal to 0", "interval must be 0 or more"),
        "deduplication_snapshot_s",
        null_removes=(True, True),
    ),
    Row(
        "COMPACTION",
        "after how many bytes a topic is compacted",
        Body(Field("integer", maximum=LONG_MAX)),
        PolicyEndpoint("compactionThreshold", ("compaction_threshold",), method="PUT"),
        PolicyEndpoint("compactionThreshold", ("compactionThreshold",)),
        at_least_zero(
            "compactionThreshold must be 0 or more", "Invalid value for compactionThreshold"
        ),
        _number("compaction_threshold"),
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "which new schemas are compatible with those of a topic",
        Body(Field("string", choices=SCHEMA_STRATEGIES)),
        PolicyEndpoint(
            "schemaCompatibilityStrategy",
            ("schema_compatibility_strategy",),
            method="PUT",
            removes=False,
            null_removes=True,
        ),
        PolicyEndpoint(
            "schemaCompatibilityStrategy",
            ("schemaCompatibilityStrategy",),
            method="PUT",
            null_removes=True,
        ),
        applied=lambda policies: policies.schema_strategy,
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "which new schemas are compatible with those of a topic, by its older names,",
        Body(Field("string", choices=tuple(OLDER_SCHEMA_STRATEGIES))),
        PolicyEndpoint(
            "schemaAutoUpdateCompatibilityStrategy",
            ("schema_auto_update_compatibility_strategy",),
            method="PUT",
            removes=False,
            null_removes=True,
        ),
        None,
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "whether clients may register further schemas",
        BOOLEAN,
        PolicyEndpoint("isAllowAutoUpdateSchema", ("is_allow_auto_update_schema",), removes=False),
        None,
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "whether producers of a topic with a schema have to send one",
        BOOLEAN,
        PolicyEndpoint("schemaValidationEnforced", ("schema_validation_enforced",), removes=False),
        PolicyEndpoint("schemaValidationEnforced", ("schemaValidationEnforced",), removes=False),
        applied=lambda policies: policies.schema_validation,
        unset=lambda config: False,
    ),
    Row(
        "ENCRYPTION",
        "whether producers have to encrypt",
        BOOLEAN,
        PolicyEndpoint("encryptionRequired", ("encryption_required",), removes=False),
        unset=lambda config: False,
    ),
)
"""The policies that are plain values in a record. Quotas and delays have rows of their own."""

BACKLOG_QUOTA = Row(
    "BACKLOG",
    "how large the backlog may grow",
    Body(
        fields={
            "limit": Field("integer", maximum=LONG_MAX),
            "limitSize": Field("integer", maximum=LONG_MAX),
            "limitTime": Field("integer", 0),
            "policy": Field("string", choices=BACKLOG_QUOTA_POLICIES),
        }
    ),
    PolicyEndpoint("backlogQuota", ("backlog_quota_map",)),
    PolicyEndpoint("backlogQuota", ("backLogQuotaMap",), null_removes=True),
    check_quota,
    _applied_quotas,
)


def complete_quota(value: dict[str, Json]) -> dict[str, Json]:
    """Return a quota as records store it, with its size under both names."""
    if "policy" not in value:
        raise HttpError(400, "The policy of a backlog quota cannot be null.")
    size = sized_quota(value)["limitSize"]
    return value | {"limit": size, "limitSize": size}


def sized_quota(value: dict[str, Json]) -> dict[str, Json]:
    """Return a quota with limitSize; a record may leave it out if it equals `limit`."""
    return {"limitSize": value.get("limit", 0)} | value


OF_SUBSCRIPTION = Row(
    "RATE",
    "how much the consumers of one subscription may receive in each period",
    _DISPATCH_RATE,
    topic=PolicyEndpoint("{subName}/dispatchRate", ("subscriptionPolicies",)),
)


def applied_to_subscription(policies: Policies, subscription: str) -> Json:
    """Return the dispatch rate of one subscription."""
    return _dispatch_rate_json(policies.dispatch_rate_of(subscription))


DELAYED_DELIVERY = Row(
    "DELAYED_DELIVERY",
    "how messages are delayed",
    Body(
        fields={
            "tickTime": Field("integer", 0, maximum=LONG_MAX),
            "active": Field("boolean", False),
            "maxDeliveryDelayInMillis": Field("integer", 0, maximum=LONG_MAX),
        }
    ),
    PolicyEndpoint("delayedDelivery", ("delayed_delivery_policies",), null_removes=True),
    PolicyEndpoint("delayedDelivery", (), null_removes=True),
    applied=_applied_delayed_delivery,
)
DELAYED_DELIVERY_FIELDS = {
    "tickTime": "delayedDeliveryTickTimeMillis",
    "active": "delayedDeliveryEnabled",
    "maxDeliveryDelayInMillis": "delayedDeliveryMaxDelayInMillis",
}
"""The parts of delayed delivery, and their fields in a topic's record."""

"""Every policy: its description, its fields at each level, and the setting that is its default.

A policy is one row of TABLE and one attribute of Policies. At a level above the broker, its value
is a JSON value in that level's record. If it is absent or null, the next level decides
(policies/resolver.py). docs/policies.md is generated from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyxbroker.policies.shapes import CLUSTER, LONG_MAX, Level, Part, Path, Policy
from pyxbroker.policies.values import (
    BACKLOG_QUOTA_POLICIES,
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    INACTIVE_TOPIC_DELETE_MODES,
    OLDER_SCHEMA_STRATEGIES,
    SUBSCRIBE_PERIOD_MAX_S,
    SUBSCRIPTION_TYPES,
    AutoTopicCreation,
    BacklogQuota,
    DispatchRate,
    InactiveTopics,
    Persistence,
    Policies,
    Rate,
    Retention,
    SubscribeRate,
)
from pyxbroker.settings.config import Config
from pyxbroker.settings.sections.topics import SCHEMA_STRATEGIES

PARTITIONED = "partitioned"


def _paths(namespace: str = "", topic: str = "") -> dict[Level, tuple[Path, ...]]:
    """Return the paths of a policy, given with dots; an empty one means "not at this level"."""
    levels = {Level.TOPIC: topic, Level.NAMESPACE: namespace}
    return {level: (tuple(path.split(".")),) for level, path in levels.items() if path}


def _is_negative(value: object) -> bool:
    return type(value) is int and value < 0


def _limit(
    name: str, namespace: str, topic: str, about: str, broker: Callable[[Config], int]
) -> Policy:
    """Return a limit that 0 switches off; records written by Pulsar have -1 for "not set"."""
    parts = (Part(int, minimum=0),)
    return Policy(name, about, broker, _paths(namespace, topic), parts, is_unset=_is_negative)


def _auto_topic_creation(allowed: bool, kind: str, partitions: int) -> AutoTopicCreation:
    return AutoTopicCreation(allowed, partitions if kind == PARTITIONED else 0)


def _broker_inactive_topics(config: Config) -> InactiveTopics:
    max_inactive_s = config.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
    if max_inactive_s is None:
        max_inactive_s = config.brokerDeleteInactiveTopicsFrequencySeconds
    return InactiveTopics(
        config.brokerDeleteInactiveTopicsEnabled,
        config.brokerDeleteInactiveTopicsMode,
        max_inactive_s,
    )


def _inactive_topics(delete: bool, mode: str, seconds: int) -> InactiveTopics:
    return InactiveTopics(delete, mode, float(seconds))


def _retention(minutes: int, megabytes: int) -> Retention:
    return Retention(minutes * 60.0, megabytes << 20)


def _subscription_expiry(minutes: int) -> int:
    return minutes * 60


def _backlog_size(limit: int | None, size: int | None, policy: str) -> BacklogQuota:
    """`limit` is the older name of `limitSize`."""
    value = limit if size is None else size
    return BacklogQuota(-1 if value is None else value, policy)


def _broker_backlog_size(config: Config) -> BacklogQuota:
    gigabytes = config.backlogQuotaDefaultLimitGB
    limit = config.backlogQuotaDefaultLimitBytes if gigabytes <= 0 else int(gigabytes * (1 << 30))
    return BacklogQuota(limit, config.backlogQuotaDefaultRetentionPolicy)


def _backlog_age(seconds: int, policy: str) -> BacklogQuota:
    return BacklogQuota(seconds if seconds > 0 else -1, policy)


def _persistence(ensemble: int, write: int, ack: int, rate: float) -> Persistence:
    return Persistence(ensemble, write, ack, rate, is_policy=True)


def _broker_persistence(config: Config) -> Persistence:
    return Persistence(
        config.managedLedgerDefaultEnsembleSize,
        config.managedLedgerDefaultWriteQuorum,
        config.managedLedgerDefaultAckQuorum,
        config.managedLedgerDefaultMarkDeleteRateLimit,
    )


def _rate(messages: int, size: int) -> Rate:
    return Rate(max(messages, 0), max(size, 0))


def _dispatch_rate(messages: int, size: int, relative: bool, period_s: int) -> DispatchRate:
    return DispatchRate(max(messages, 0), max(size, 0), max(period_s, 1), relative)


def _is_no_rate(*names: str) -> Callable[[Any], bool]:
    """Return a test for a rate without limits. A topic can therefore not switch a rate off."""

    def is_no_rate(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        found = [value.get(name) for name in names]
        return all(each is None or (type(each) is int and each <= 0) for each in found)

    return is_no_rate


def _is_no_subscribe_rate(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    found = (value.get("subscribeThrottlingRatePerConsumer"), value.get("ratePeriodInSecond", 30))
    return any(each is None or (type(each) is int and each <= 0) for each in found)


_DISPATCH_RATE = (
    Part(int, "dispatchThrottlingRateInMsg", default=-1, is_optional=True),
    Part(int, "dispatchThrottlingRateInByte", maximum=LONG_MAX, default=-1, is_optional=True),
    Part(bool, "relativeToPublishRate", default=False, is_optional=True),
    Part(int, "ratePeriodInSecond", default=1, is_optional=True),
)
_is_no_dispatch_rate = _is_no_rate("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")


def _dispatch_rates_of(subscriptions: dict[str, Any]) -> tuple[tuple[str, DispatchRate], ...]:
    """Return the rates of single subscriptions, sorted by name."""
    found = []
    for name, policies in sorted(subscriptions.items()):
        rate = policies.get("dispatchRate") if isinstance(policies, dict) else policies
        if rate is None or _is_no_dispatch_rate(rate):
            continue
        if not isinstance(rate, dict):
            raise ValueError(f"{name}: {rate!r:.100}: expected an object")
        values = (part.read(rate.get(part.name)) for part in _DISPATCH_RATE)
        found.append((name, _dispatch_rate(*values)))
    return tuple(found)


def _dispatch_rate_policy(
    name: str,
    namespaces: tuple[str, ...],
    topic: str,
    about: str,
    broker: Callable[[Config], DispatchRate],
) -> Policy:
    return Policy(
        name,
        about,
        broker,
        {
            Level.TOPIC: ((topic,),),
            Level.NAMESPACE: tuple((namespace, CLUSTER) for namespace in namespaces),
        },
        _DISPATCH_RATE,
        _dispatch_rate,
        _is_no_dispatch_rate,
    )


def _subscription_types(names: list[str]) -> frozenset[str]:
    return frozenset(names)


def _broker_subscription_types(config: Config) -> frozenset[str]:
    types = frozenset(each.strip() for each in config.subscriptionTypesEnabled.split(",")) - {""}
    return types if config.subscriptionKeySharedEnable else types - {"Key_Shared"}


def _schema_strategy(name: str) -> str:
    return OLDER_SCHEMA_STRATEGIES.get(name, name)


TABLE: tuple[Policy, ...] = (
    Policy(
        "auto_topic_creation",
        "If true, a client that names a topic which does not exist creates it, with this number of"
        " partitions. A record sets the whole policy; absent parts do not come from other levels.",
        lambda config: _auto_topic_creation(
            config.allowAutoTopicCreation,
            config.allowAutoTopicCreationType,
            config.defaultNumPartitions,
        ),
        _paths("autoTopicCreationOverride"),
        (
            Part(bool, "allowAutoTopicCreation"),
            Part(str, "topicType", default="", is_optional=True),
            Part(int, "defaultNumPartitions", minimum=0, default=0, is_optional=True),
        ),
        _auto_topic_creation,
    ),
    Policy(
        "auto_subscription_creation",
        "If true, a consumer that names a subscription which does not exist creates it.",
        lambda config: config.allowAutoSubscriptionCreation,
        _paths("autoSubscriptionCreationOverride", "autoSubscriptionCreationOverride"),
        (Part(bool, "allowAutoSubscriptionCreation"),),
    ),
    Policy(
        "inactive_topics",
        "If true, inactive topics are deleted, after which time, and when a topic is inactive. A"
        " change takes effect at the next scan for such topics.",
        _broker_inactive_topics,
        _paths("inactive_topic_policies", "inactiveTopicPolicies"),
        (
            Part(bool, "deleteWhileInactive"),
            Part(
                str,
                "inactiveTopicDeleteMode",
                choices=INACTIVE_TOPIC_DELETE_MODES,
                default=DELETE_WHEN_NO_SUBSCRIPTIONS,
                is_optional=True,
            ),
            Part(int, "maxInactiveDurationSeconds"),
        ),
        _inactive_topics,
    ),
    Policy(
        "retention",
        "How long, and how much of, acknowledged messages are retained; -1 is without limit. All"
        " others are deleted immediately.",
        lambda config: _retention(
            config.defaultRetentionTimeInMinutes, config.defaultRetentionSizeInMB
        ),
        _paths("retention_policies", "retentionPolicies"),
        (
            Part(int, "retentionTimeInMinutes"),
            Part(int, "retentionSizeInMB", maximum=LONG_MAX >> 20, default=0, is_optional=True),
        ),
        _retention,
    ),
    Policy(
        "backlog_size",
        "Bytes of unacknowledged messages that a topic may store for its subscriptions, and what"
        " happens above this limit.",
        _broker_backlog_size,
        _paths("backlog_quota_map.destination_storage", "backLogQuotaMap.destination_storage"),
        (
            Part(int, "limit", maximum=LONG_MAX, is_optional=True),
            Part(int, "limitSize", maximum=LONG_MAX, is_optional=True),
            Part(str, "policy", choices=BACKLOG_QUOTA_POLICIES),
        ),
        _backlog_size,
    ),
    Policy(
        "backlog_age",
        "Seconds for which a topic may store a message with a missing acknowledgement, and what"
        " happens after that; 0 or less is no limit.",
        lambda config: _backlog_age(
            config.backlogQuotaDefaultLimitSecond, config.backlogQuotaDefaultRetentionPolicy
        ),
        _paths("backlog_quota_map.message_age", "backLogQuotaMap.message_age"),
        (Part(int, "limitTime"), Part(str, "policy", choices=BACKLOG_QUOTA_POLICIES)),
        _backlog_age,
    ),
    Policy(
        "precise_backlog_age",
        "If true, the age of a backlog is that of its oldest message, which the broker reads for"
        " this. If false, it is the time since the ledger with that message was closed.",
        lambda config: config.preciseTimeBasedBacklogQuotaCheck,
    ),
    _limit(
        "message_ttl_s",
        "message_ttl_in_seconds",
        "messageTTLInSeconds",
        "Seconds after which a message is acknowledged for all subscriptions.",
        lambda config: config.ttlDurationDefaultInSeconds,
    ),
    Policy(
        "subscription_expiry_s",
        "Minutes without a consumer after which a subscription is deleted.",
        lambda config: _subscription_expiry(config.subscriptionExpirationTimeMinutes),
        _paths("subscription_expiration_time_minutes", "subscriptionExpirationTimeInMinutes"),
        (Part(int, minimum=0),),
        _subscription_expiry,
        _is_negative,
    ),
    Policy(
        "persistence",
        "Number of bookies that store an entry, from the next ledger of a topic on, and how often"
        " per second each cursor stores its position.",
        _broker_persistence,
        _paths("persistence", "persistence"),
        (
            Part(int, "bookkeeperEnsemble", minimum=1),
            Part(int, "bookkeeperWriteQuorum", minimum=1),
            Part(int, "bookkeeperAckQuorum", minimum=1),
            Part(float, "managedLedgerMaxMarkDeleteRate", maximum=LONG_MAX),
        ),
        _persistence,
    ),
    Policy(
        "delayed_delivery",
        "If true, Shared and Key_Shared subscriptions delay messages until their delivery time."
        " Switching it off sends the messages that wait.",
        lambda config: config.delayedDeliveryEnabled,
        _paths("delayed_delivery_policies.active", "delayedDeliveryEnabled"),
        (Part(bool),),
    ),
    Policy(
        "delay_tick_ms",
        "Milliseconds by which a delayed message may be early if delivery times are not strict.",
        lambda config: config.delayedDeliveryTickTimeMillis,
        _paths("delayed_delivery_policies.tickTime", "delayedDeliveryTickTimeMillis"),
        (Part(int, minimum=0, maximum=LONG_MAX),),
    ),
    Policy(
        "delay_max_ms",
        "Longest delay of a message in milliseconds; one with a later delivery time is refused.",
        lambda config: config.delayedDeliveryMaxDelayInMillis,
        _paths(
            "delayed_delivery_policies.maxDeliveryDelayInMillis",
            "delayedDeliveryMaxDelayInMillis",
        ),
        (Part(int, minimum=0, maximum=LONG_MAX),),
        is_unset=_is_negative,
    ),
    Policy(
        "publish_rate",
        "Messages and bytes per second that producers may publish to a topic.",
        lambda config: _rate(
            config.maxPublishRatePerTopicInMessages, config.maxPublishRatePerTopicInBytes
        ),
        _paths("publishMaxMessageRate." + CLUSTER, "publishRate"),
        (
            Part(int, "publishThrottlingRateInMsg", default=-1, is_optional=True),
            Part(
                int, "publishThrottlingRateInByte", maximum=LONG_MAX, default=-1, is_optional=True
            ),
        ),
        _rate,
        _is_no_rate("publishThrottlingRateInMsg", "publishThrottlingRateInByte"),
    ),
    _dispatch_rate_policy(
        "dispatch_rate",
        ("topicDispatchRate", "clusterDispatchRate"),
        "dispatchRate",
        "Messages and bytes per period that all subscriptions of a topic may receive together.",
        lambda config: DispatchRate(
            config.dispatchThrottlingRatePerTopicInMsg, config.dispatchThrottlingRatePerTopicInByte
        ),
    ),
    _dispatch_rate_policy(
        "subscription_dispatch_rate",
        ("subscriptionDispatchRate",),
        "subscriptionDispatchRate",
        "Messages and bytes per period that each subscription may receive.",
        lambda config: DispatchRate(
            config.dispatchThrottlingRatePerSubscriptionInMsg,
            config.dispatchThrottlingRatePerSubscriptionInByte,
        ),
    ),
    Policy(
        "dispatch_rates_of",
        "Messages and bytes per period that single subscriptions may receive, by name.",
        lambda config: (),
        _paths("", "subscriptionPolicies"),
        (Part(dict),),
        _dispatch_rates_of,
        lambda value: value == {},
    ),
    Policy(
        "subscribe_rate",
        "How often a consumer, identified by address, name and id, may subscribe in each period of"
        " up to a day.",
        lambda config: SubscribeRate(
            config.subscribeThrottlingRatePerConsumer,
            config.subscribeRatePeriodPerConsumerInSecond,
        ),
        _paths("clusterSubscribeRate." + CLUSTER, "subscribeRate"),
        (
            Part(int, "subscribeThrottlingRatePerConsumer", default=0, is_optional=True),
            Part(
                int,
                "ratePeriodInSecond",
                maximum=SUBSCRIBE_PERIOD_MAX_S,
                default=30,
                is_optional=True,
            ),
        ),
        SubscribeRate,
        _is_no_subscribe_rate,
    ),
    Policy(
        "subscription_types",
        "Subscription types that consumers may use; an empty list sets nothing.",
        _broker_subscription_types,
        _paths("subscription_types_enabled", "subscriptionTypesEnabled"),
        (Part(list, choices=SUBSCRIPTION_TYPES),),
        _subscription_types,
        lambda value: value == [],
    ),
    _limit(
        "message_bytes_max",
        "",
        "maxMessageSize",
        "Bytes of a message without chunks; 0 is the limit of the broker.",
        lambda config: config.maxMessageSize,
    ),
    _limit(
        "topics_max",
        "max_topics_per_namespace",
        "",
        "Topics of a namespace. Each partition counts; system topics do not.",
        lambda config: config.maxTopicsPerNamespace,
    ),
    _limit(
        "producers_max",
        "max_producers_per_topic",
        "maxProducerPerTopic",
        "Producers of one topic; existing ones stay connected.",
        lambda config: config.maxProducersPerTopic,
    ),
    _limit(
        "consumers_max",
        "max_consumers_per_topic",
        "maxConsumerPerTopic",
        "Consumers of one topic; existing ones stay connected.",
        lambda config: config.maxConsumersPerTopic,
    ),
    _limit(
        "consumers_per_subscription_max",
        "max_consumers_per_subscription",
        "maxConsumersPerSubscription",
        "Consumers of one subscription; existing ones stay connected.",
        lambda config: config.maxConsumersPerSubscription,
    ),
    _limit(
        "subscriptions_max",
        "max_subscriptions_per_topic",
        "maxSubscriptionsPerTopic",
        "Subscriptions of one topic; existing ones stay.",
        lambda config: config.maxSubscriptionsPerTopic,
    ),
    Policy(
        "same_address_producers_max",
        "Producers of one topic from one client address; existing ones stay connected.",
        lambda config: config.maxSameAddressProducersPerTopic,
    ),
    Policy(
        "same_address_consumers_max",
        "Consumers of one topic from one client address; existing ones stay connected.",
        lambda config: config.maxSameAddressConsumersPerTopic,
    ),
    _limit(
        "unacked_per_consumer_max",
        "max_unacked_messages_per_consumer",
        "maxUnackedMessagesOnConsumer",
        "Unacknowledged messages that a consumer of a shared subscription may hold.",
        lambda config: config.maxUnackedMessagesPerConsumer,
    ),
    _limit(
        "unacked_per_subscription_max",
        "max_unacked_messages_per_subscription",
        "maxUnackedMessagesOnSubscription",
        "Unacknowledged messages that the consumers of a shared subscription may hold together.",
        lambda config: config.maxUnackedMessagesPerSubscription,
    ),
    Policy(
        "pause_on_ack_state",
        "If true, a shared subscription receives no new messages while its acknowledgement state is"
        " too large to be stored (managedLedgerMaxUnackedRangesToPersist).",
        lambda config: config.dispatcherPauseOnAckStatePersistentEnabled,
        _paths(
            "dispatcherPauseOnAckStatePersistentEnabled",
            "dispatcherPauseOnAckStatePersistentEnabled",
        ),
        (Part(bool),),
    ),
    Policy(
        "encryption_required",
        "If true, producers must encrypt their messages. If the broker's setting is true,"
        " the namespace's field has no effect.",
        lambda config: config.encryptionRequireOnProducer,
        _paths("encryption_required"),
        (Part(bool),),
        is_unset=lambda value: value is False,
    ),
    Policy(
        "deduplication",
        "If true, messages that a producer sends again are acknowledged, but not stored twice.",
        lambda config: config.brokerDeduplicationEnabled,
        _paths("deduplicationEnabled", "deduplicationEnabled"),
        (Part(bool),),
    ),
    _limit(
        "deduplication_snapshot_s",
        "deduplicationSnapshotIntervalSeconds",
        "deduplicationSnapshotIntervalSeconds",
        "Seconds after which the sequence ids of a topic's producers are stored, if the topic has"
        " new entries.",
        lambda config: config.brokerDeduplicationSnapshotIntervalSeconds,
    ),
    Policy(
        "compaction_threshold",
        "Uncompacted bytes of a topic above which it is compacted.",
        lambda config: config.brokerServiceCompactionThresholdInBytes,
        _paths("compaction_threshold", "compactionThreshold"),
        (Part(int, minimum=0, maximum=LONG_MAX),),
        is_unset=_is_negative,
    ),
    Policy(
        "schema_strategy",
        "Compatibility that a new schema must have with the schemas of its topic. In a namespace,"
        " the older field counts if the newer one is not set.",
        lambda config: config.schemaCompatibilityStrategy,
        {
            Level.TOPIC: (("schemaCompatibilityStrategy",),),
            Level.NAMESPACE: (
                ("schema_compatibility_strategy",),
                ("schema_auto_update_compatibility_strategy",),
            ),
        },
        (Part(str, choices=(*SCHEMA_STRATEGIES, *OLDER_SCHEMA_STRATEGIES)),),
        _schema_strategy,
        lambda value: value == "UNDEFINED",
    ),
    Policy(
        "schema_auto_update",
        "If true, clients may register new schemas for a topic. REST may do so in any case.",
        lambda config: config.isAllowAutoUpdateSchemaEnabled,
        _paths("is_allow_auto_update_schema"),
        (Part(bool),),
    ),
    Policy(
        "schema_validation",
        "If true, producers of a topic with a schema must have a schema. If the broker's setting is"
        " true, other levels do not matter.",
        lambda config: config.isSchemaValidationEnforced,
        _paths("schema_validation_enforced", "schemaValidationEnforced"),
        (Part(bool),),
    ),
    Policy(
        "schema_strategy_of_system_topics",
        "Compatibility that a new schema of a system topic must have with the earlier ones.",
        lambda config: config.systemTopicSchemaCompatibilityStrategy,
    ),
    Policy(
        "unacked_in_broker_max",
        "Unacknowledged messages that the consumers of all shared subscriptions may hold together.",
        lambda config: config.maxUnackedMessagesPerBroker,
    ),
    Policy(
        "unacked_share",
        "Unacknowledged messages that one subscription may hold while the broker has too many.",
        lambda config: int(
            config.maxUnackedMessagesPerBroker
            * config.maxUnackedMessagesPerSubscriptionOnBrokerBlocked
        ),
    ),
    Policy(
        "read_batch_max",
        "Entries that a dispatcher reads in one round.",
        lambda config: config.dispatcherMaxReadBatchSize,
    ),
    Policy(
        "read_bytes_max",
        "Bytes that a dispatcher reads in one round.",
        lambda config: config.dispatcherMaxReadSizeBytes,
    ),
    Policy(
        "read_batch_min",
        "Entries that a dispatcher reads in one round after a failed read.",
        lambda config: config.dispatcherMinReadBatchSize,
    ),
    Policy(
        "round_robin_max",
        "Entries that one consumer of a shared subscription receives before the next consumer.",
        lambda config: config.dispatcherMaxRoundRobinBatchSize,
    ),
    Policy(
        "failover_delay_s",
        "Wait before a failover subscription continues with its new active consumer.",
        lambda config: config.activeConsumerFailoverDelayTimeMillis / 1000,
    ),
    Policy(
        "failover_by_hash",
        "If true, the active consumer on a partition is chosen by hashes of the consumer names.",
        lambda config: config.activeConsumerFailoverConsistentHashing,
    ),
    Policy(
        "key_shared_by_ring",
        "If true, the keys of a Key_Shared subscription are distributed by points on a hash ring.",
        lambda config: config.subscriptionKeySharedUseConsistentHashing,
    ),
    Policy(
        "key_shared_points",
        "Points on the ring for each consumer.",
        lambda config: config.subscriptionKeySharedConsistentHashingReplicaPoints,
    ),
    Policy(
        "look_ahead_per_consumer_max",
        "Entries of a Key_Shared subscription that may wait for their consumer, for each consumer.",
        lambda config: config.keySharedLookAheadMsgInReplayThresholdPerConsumer,
    ),
    Policy(
        "look_ahead_per_subscription_max",
        "The same limit for the whole subscription.",
        lambda config: config.keySharedLookAheadMsgInReplayThresholdPerSubscription,
    ),
    Policy(
        "read_retry_min_s",
        "First wait of a dispatcher after a failed read.",
        lambda config: config.dispatcherReadFailureBackoffInitialTimeInMs / 1000,
    ),
    Policy(
        "read_retry_max_s",
        "Longest wait of a dispatcher after failed reads.",
        lambda config: config.dispatcherReadFailureBackoffMaxTimeInMs / 1000,
    ),
    Policy(
        "skips_lost_data",
        "If true, a subscription acknowledges all lost entries, however many they are.",
        lambda config: config.autoSkipNonRecoverableData,
    ),
    Policy(
        "dispatch_rate_when_caught_up",
        "If true, dispatch rates also limit subscriptions that have caught up (1,000 entries).",
        lambda config: config.dispatchThrottlingOnNonBacklogConsumerEnabled,
    ),
    Policy(
        "dispatch_rate_by_entries",
        "If true, dispatch rates count a batch as one message.",
        lambda config: config.dispatchThrottlingOnBatchMessageEnabled,
    ),
    Policy(
        "delay_strict",
        "If true, a delayed message is never delivered early.",
        lambda config: config.isDelayedDeliveryDeliverAtTimeStrict,
    ),
)

NAMES = frozenset(row.name for row in TABLE)


SYSTEM_TOPIC_COMPACTION_BYTES = 100 << 20  # as in Pulsar
# Policies that do not apply to system topics. Their owner deletes their messages itself.
_WITHOUT = Policies()
_NOT_OF_SYSTEM_TOPICS: dict[str, Any] = {
    "auto_topic_creation": AutoTopicCreation(),
    "auto_subscription_creation": True,
    "inactive_topics": InactiveTopics(delete=False),
    "retention": Retention(-1.0, -1),
    **{
        name: getattr(_WITHOUT, name)
        for name in (
            *("backlog_size", "backlog_age", "message_ttl_s", "subscription_expiry_s"),
            *("publish_rate", "dispatch_rate", "subscription_dispatch_rate", "dispatch_rates_of"),
            "subscribe_rate",
            *("subscription_types", "message_bytes_max", "topics_max", "producers_max"),
            *("consumers_max", "consumers_per_subscription_max", "subscriptions_max"),
            *("same_address_producers_max", "same_address_consumers_max", "encryption_required"),
            *("deduplication", "compaction_threshold"),
            *("schema_auto_update", "schema_validation"),
        )
    },
}


def of_system_topic(policies: Policies, broker: Policies, is_compacted: bool = False) -> Policies:
    """Return the policies of a system topic in a namespace with these policies.

    is_compacted: only the newest value of each key is needed, and messages are many.

    Its persistence is that of the broker: if a namespace has policies with which nothing can be
    stored, its system topic must still load so that they can be repaired.
    """
    found = policies._replace(
        **_NOT_OF_SYSTEM_TOPICS,
        persistence=broker.persistence,
        schema_strategy=broker.schema_strategy_of_system_topics,
    )
    if is_compacted:
        threshold = SYSTEM_TOPIC_COMPACTION_BYTES
        return found._replace(compaction_threshold=threshold, retention=Retention(0.0, 0))
    return found


def of_broker(config: Config) -> Policies:
    """Return the policies that apply where no other level sets one."""
    return Policies(**{row.name: row.broker(config) for row in TABLE})

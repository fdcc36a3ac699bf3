"""How topics and subscriptions come, what they keep, and how they go."""

from __future__ import annotations

from pyxbroker.settings.schema import LONG_MAX, Section, limit, setting

SCHEMA_STRATEGIES = (
    *("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE"),
    *("BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)


class Topics(Section, title="Topics and subscriptions"):
    allowAutoTopicCreation: bool = setting(
        True,
        "Whether a client that names a topic which does not exist creates it.",
        dynamic=True,
    )
    allowAutoTopicCreationType: str = setting(
        "non-partitioned",
        "Kind of a topic that is created automatically.",
        choices=("non-partitioned", "partitioned"),
        dynamic=True,
    )
    defaultNumPartitions: int = setting(
        1,
        "Partitions of a partitioned topic that is created automatically.",
        minimum=1,
        dynamic=True,
    )
    enableBrokerSideSubscriptionPatternEvaluation: bool = setting(
        True,
        "Whether a client that subscribes by pattern gets the topics that match it, or all of the"
        " namespace.",
    )
    enableBrokerTopicListWatcher: bool = setting(
        True, "Whether clients that subscribe by pattern are told of topics that come and go."
    )
    subscriptionPatternMaxLength: int = setting(
        50, "Characters of a topics pattern; with a longer one the client matches by itself."
    )
    allowAutoSubscriptionCreation: bool = setting(
        True,
        "Whether a consumer that names a subscription which does not exist creates it.",
        dynamic=True,
    )
    brokerDeleteInactiveTopicsEnabled: bool = setting(
        True,
        "Whether a topic that nobody has used for a while is deleted, with its messages.",
        dynamic=True,
    )
    brokerDeleteInactiveTopicsMode: str = setting(
        "delete_when_no_subscriptions",
        "Which topics nobody uses: those without producers and without subscriptions, or those"
        " without producers and consumers whose subscriptions have acknowledged everything.",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
        dynamic=True,
    )
    brokerDeleteInactiveTopicsFrequencySeconds: int = setting(
        60, "Time between two looks for inactive topics.", unit="s", minimum=1, dynamic=True
    )
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int | None = setting(
        None,
        "How long nobody has to use a topic before it is deleted; empty is the time between two"
        " looks. A topic is kept for its retention time in any case.",
        unit="s",
        dynamic=True,
    )
    brokerDeleteInactivePartitionedTopicMetadataEnabled: bool = setting(
        False,
        "Whether the number of partitions of a partitioned topic is forgotten when all of its"
        " partitions were deleted as inactive.",
        dynamic=True,
    )
    schemaCompatibilityStrategy: str = setting(
        "FULL",
        "Which schema may follow those that a topic has, unless its namespace or itself says so.",
        choices=SCHEMA_STRATEGIES,
    )
    systemTopicSchemaCompatibilityStrategy: str = setting(
        "ALWAYS_COMPATIBLE",
        "Which schema may follow those of a topic of the broker itself.",
        choices=SCHEMA_STRATEGIES,
    )
    isAllowAutoUpdateSchemaEnabled: bool = setting(
        True,
        "Whether clients may register schemas that a topic does not have yet.",
        dynamic=True,
    )
    isSchemaValidationEnforced: bool = setting(
        False,
        "Whether producers of a topic that has a schema need one, whatever its namespace and itself"
        " say.",
    )
    brokerDeduplicationEnabled: bool = setting(
        False, "Whether messages that a producer sends again are recognised and not stored twice."
    )
    brokerDeduplicationMaxNumberOfProducers: int = setting(
        10_000,
        "Names of producers whose sequence ids a topic remembers; those that are connected stay.",
        minimum=1,
    )
    brokerDeduplicationEntriesInterval: int = setting(
        1000, "Entries of a topic after which the sequence ids are stored.", minimum=1
    )
    brokerDeduplicationSnapshotFrequencyInSeconds: int = limit(
        120,
        "Time between two looks for sequence ids that are to be stored; 0 is off.",
        unit="s",
    )
    brokerDeduplicationSnapshotIntervalSeconds: int = limit(
        120,
        "Time after which the sequence ids of a topic with new entries are stored; 0 is off.",
        unit="s",
    )
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = setting(
        360,
        "Time without a connection after which the sequence id of a producer is forgotten.",
        unit="min",
        minimum=1,
    )
    brokerServiceCompactionThresholdInBytes: int = limit(
        0,
        "Bytes of a topic that were not compacted yet, from which on it is; 0 is off.",
        unit="bytes",
        maximum=LONG_MAX,
    )
    brokerServiceCompactionMonitorIntervalInSeconds: int = limit(
        60,
        "Time between two looks for topics that are to be compacted; 0 is off.",
        unit="s",
    )
    topicCompactionRetainNullKey: bool = setting(
        False, "Whether compaction keeps messages that have no key."
    )
    brokerEntryMetadataInterceptors: str = setting(
        "",
        "What is stored in front of each entry, by the names of Pulsar's classes, with commas:"
        " org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor (when it was"
        " appended), org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor (the index"
        " of its last message).",
    )
    exposingBrokerEntryMetadataToClientEnabled: bool = setting(
        False, "Whether consumers get that, too, if their client knows it."
    )
    defaultNumberOfNamespaceBundles: int = setting(
        4,
        "Bundles of a namespace that is created without saying how many.",
        minimum=1,
        dynamic=True,
    )
    forceDeleteTenantAllowed: bool = setting(
        False,
        "Whether a tenant may be deleted together with its namespaces.",
        dynamic=True,
    )
    forceDeleteNamespaceAllowed: bool = setting(
        False,
        "Whether a namespace may be deleted together with its topics.",
        dynamic=True,
    )
    defaultRetentionTimeInMinutes: int = limit(
        0,
        "How long acknowledged messages are kept; 0 deletes them, -1 keeps them for ever.",
        unit="min",
        minimum=-1,
    )
    defaultRetentionSizeInMB: int = limit(
        0,
        "How much of acknowledged messages is kept for each topic; 0 none, -1 without limit.",
        unit="MiB",
        minimum=-1,
    )
    ttlDurationDefaultInSeconds: int = limit(
        0,
        "Age at which messages count as acknowledged by all subscriptions; 0 is no limit.",
        unit="s",
    )
    messageExpiryCheckIntervalInMinutes: int = setting(
        5, "Time between two looks for expired messages.", unit="min", minimum=1
    )
    subscriptionExpirationTimeMinutes: int = limit(
        0,
        "Time without a consumer after which a subscription is deleted; 0 is no limit.",
        unit="min",
    )
    subscriptionExpiryCheckIntervalInMinutes: int = limit(
        5, "Time between two looks for expired subscriptions; 0 is off.", unit="min"
    )
    topicLevelPoliciesEnabled: bool = setting(
        True, "Whether topics may have policies of their own; systemTopicEnabled is needed, too."
    )
    systemTopicEnabled: bool = setting(
        True, "Whether the broker keeps such things in topics of its own."
    )
    backlogQuotaCheckEnabled: bool = setting(
        True, "Whether the quotas of what is not acknowledged are looked after."
    )
    backlogQuotaCheckIntervalInSeconds: int = setting(
        60, "Time between two looks for topics over their quota.", unit="s", minimum=1
    )
    backlogQuotaDefaultLimitBytes: int = limit(
        -1,
        "Bytes that a topic may keep for subscriptions that have not acknowledged them; -1 is no"
        " limit.",
        unit="bytes",
        minimum=-1,
        maximum=LONG_MAX,
    )
    backlogQuotaDefaultLimitGB: float = limit(
        -1.0,
        "As before, in GiB: counts when it is more than 0.",
        unit="GiB",
        minimum=-1,
    )
    backlogQuotaDefaultLimitSecond: int = limit(
        -1,
        "Age of the oldest message that some subscription has not acknowledged; from 0 down there"
        " is no limit.",
        unit="s",
        minimum=-1,
    )
    backlogQuotaDefaultRetentionPolicy: str = setting(
        "producer_request_hold",
        "What happens over such a quota: producers wait, producers get an error, or the oldest"
        " messages count as acknowledged.",
        choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    )
    preciseTimeBasedBacklogQuotaCheck: bool = setting(
        False,
        "Whether the age of a backlog is that of its oldest message, which is read for it, or of"
        " the ledger it is in.",
    )
    delayedDeliveryTickTimeMillis: int = setting(
        1000,
        "Time by which a delayed message may come early where"
        " isDelayedDeliveryDeliverAtTimeStrict is false.",
        unit="ms",
    )
    delayedDeliveryMaxDelayInMillis: int = limit(
        0,
        "How long a message may be delayed for; one with a later time is refused. 0 is no limit.",
        unit="ms",
        maximum=LONG_MAX,
    )
    isDelayedDeliveryDeliverAtTimeStrict: bool = setting(
        True,
        "Whether a delayed message never comes before its time; otherwise it may come early by"
        " delayedDeliveryTickTimeMillis. Pulsar's own default is false.",
    )
    subscriptionTypesEnabled: str = setting(
        "Exclusive,Shared,Failover,Key_Shared",
        "The types of subscriptions that consumers may ask for.",
        dynamic=True,
    )
    subscriptionKeySharedEnable: bool = setting(
        True,
        "Whether Key_Shared is one of them; an older setting than subscriptionTypesEnabled.",
        dynamic=True,
    )
    dispatcherPauseOnAckStatePersistentEnabled: bool = setting(
        False,
        "Whether a shared subscription gets nothing new while its state of acknowledgements is too"
        " large to be stored.",
        dynamic=True,
    )
    encryptionRequireOnProducer: bool = setting(
        False, "Whether producers have to encrypt what they publish."
    )
    activeConsumerFailoverDelayTimeMillis: int = limit(
        1000, "Wait before a failover subscription goes on with its new consumer.", unit="ms"
    )
    delayedDeliveryEnabled: bool = setting(
        True, "Whether Shared and Key_Shared subscriptions wait for a message's time."
    )
    activeConsumerFailoverConsistentHashing: bool = setting(
        False,
        "Whether the active consumer of a failover subscription on a partition is chosen by hashes"
        " of the names, as on other topics, and not by the number of the partition.",
    )
    subscriptionKeySharedUseConsistentHashing: bool = setting(
        True,
        "Whether keys of a Key_Shared subscription are spread by points on a ring; otherwise each"
        " consumer has one range of hashes.",
    )
    subscriptionKeySharedConsistentHashingReplicaPoints: int = setting(
        100, "Points on the ring for each consumer of a Key_Shared subscription.", minimum=1
    )
    keySharedLookAheadMsgInReplayThresholdPerConsumer: int = limit(
        2000,
        "Entries of a Key_Shared subscription that may wait for their consumer, for each consumer,"
        " before no new ones are read; 0 is no limit.",
        dynamic=True,
    )
    keySharedLookAheadMsgInReplayThresholdPerSubscription: int = limit(
        20_000,
        "The same for the whole subscription; 0 is no limit.",
        dynamic=True,
    )

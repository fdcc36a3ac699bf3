"""Settings of topics, subscriptions and transactions: creation, retention, quotas, deletion."""

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
        "If true, a client that names a topic which does not exist creates it.",
        dynamic=True,
    )
    allowAutoTopicCreationType: str = setting(
        "non-partitioned",
        "Kind of the topics that are created automatically.",
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
        "If true, a client that subscribes by pattern receives the topics that match the pattern."
        " If false, it receives all topics of the namespace.",
    )
    enableBrokerTopicListWatcher: bool = setting(
        True,
        "If true, clients that subscribe by pattern are notified of new and deleted topics.",
    )
    subscriptionPatternMaxLength: int = setting(
        50, "Longest topics pattern, in characters; the client evaluates a longer one itself."
    )
    allowAutoSubscriptionCreation: bool = setting(
        True,
        "If true, a consumer that names a subscription which does not exist creates it.",
        dynamic=True,
    )
    brokerDeleteInactiveTopicsEnabled: bool = setting(
        True,
        "If true, inactive topics are deleted with their messages.",
        dynamic=True,
    )
    brokerDeleteInactiveTopicsMode: str = setting(
        "delete_when_no_subscriptions",
        "Definition of an inactive topic: one without producers and subscriptions, or one without"
        " producers and consumers whose subscriptions have acknowledged everything.",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
        dynamic=True,
    )
    brokerDeleteInactiveTopicsFrequencySeconds: int = setting(
        60, "Time between two scans for inactive topics.", unit="s", minimum=1, dynamic=True
    )
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int | None = setting(
        None,
        "How long a topic must be inactive before it is deleted. Empty is the time between two"
        " scans. A topic is retained for its retention time in any case.",
        unit="s",
        dynamic=True,
    )
    brokerDeleteInactivePartitionedTopicMetadataEnabled: bool = setting(
        False,
        "If true, the metadata of a partitioned topic (its number of partitions) is deleted when"
        " all of its partitions have been deleted as inactive.",
        dynamic=True,
    )
    schemaCompatibilityStrategy: str = setting(
        "FULL",
        "Compatibility that a new schema must have with the schemas of its topic, unless the"
        " namespace or the topic sets another one.",
        choices=SCHEMA_STRATEGIES,
    )
    systemTopicSchemaCompatibilityStrategy: str = setting(
        "ALWAYS_COMPATIBLE",
        "Compatibility that a new schema of a system topic must have with the earlier ones.",
        choices=SCHEMA_STRATEGIES,
    )
    isAllowAutoUpdateSchemaEnabled: bool = setting(
        True,
        "If true, clients may register new schemas for a topic.",
        dynamic=True,
    )
    isSchemaValidationEnforced: bool = setting(
        False,
        "If true, producers of a topic with a schema must have a schema, whatever the policies of"
        " the namespace and the topic are.",
    )
    brokerDeduplicationEnabled: bool = setting(
        False, "If true, messages that a producer sends again are detected and not stored twice."
    )
    brokerDeduplicationMaxNumberOfProducers: int = setting(
        10_000,
        "Producers whose sequence ids a topic remembers. Those of connected producers stay.",
        minimum=1,
    )
    brokerDeduplicationEntriesInterval: int = setting(
        1000, "Entries of a topic after which the sequence ids are stored.", minimum=1
    )
    brokerDeduplicationSnapshotFrequencyInSeconds: int = limit(
        120,
        "Time between two scans for sequence ids that must be stored; 0 disables them.",
        unit="s",
    )
    brokerDeduplicationSnapshotIntervalSeconds: int = limit(
        120,
        "Time after which the sequence ids of a topic with new entries are stored; 0 disables it.",
        unit="s",
    )
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = setting(
        360,
        "Time without a connection after which the sequence id of a producer is discarded.",
        unit="min",
        minimum=1,
    )
    brokerServiceCompactionThresholdInBytes: int = limit(
        0,
        "Uncompacted bytes of a topic above which it is compacted; 0 disables it.",
        unit="bytes",
        maximum=LONG_MAX,
    )
    brokerServiceCompactionMonitorIntervalInSeconds: int = limit(
        60,
        "Time between two scans for topics to compact; 0 disables them.",
        unit="s",
    )
    topicCompactionRetainNullKey: bool = setting(
        False, "If true, compaction retains messages without a key."
    )
    brokerEntryMetadataInterceptors: str = setting(
        "",
        "Broker metadata that is stored with each entry, as Pulsar's class names separated by"
        " commas: org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor (time"
        " of the append), org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor (index"
        " of the last message of the entry).",
    )
    exposingBrokerEntryMetadataToClientEnabled: bool = setting(
        False, "If true, consumers receive this broker metadata, too, if their client supports it."
    )
    defaultNumberOfNamespaceBundles: int = setting(
        4,
        "Bundles of a namespace that is created without a number of bundles.",
        minimum=1,
        dynamic=True,
    )
    forceDeleteTenantAllowed: bool = setting(
        False,
        "If true, a tenant may be deleted together with its namespaces.",
        dynamic=True,
    )
    forceDeleteNamespaceAllowed: bool = setting(
        False,
        "If true, a namespace may be deleted together with its topics.",
        dynamic=True,
    )
    defaultRetentionTimeInMinutes: int = limit(
        0,
        "How long acknowledged messages are retained; 0 deletes them, -1 retains them forever.",
        unit="min",
        minimum=-1,
    )
    defaultRetentionSizeInMB: int = limit(
        0,
        "Size of the acknowledged messages that each topic retains; 0 none, -1 without limit.",
        unit="MiB",
        minimum=-1,
    )
    ttlDurationDefaultInSeconds: int = limit(
        0,
        "Age at which messages are acknowledged for all subscriptions; 0 is no limit.",
        unit="s",
    )
    messageExpiryCheckIntervalInMinutes: int = setting(
        5, "Time between two scans for expired messages.", unit="min", minimum=1
    )
    subscriptionExpirationTimeMinutes: int = limit(
        0,
        "Time without a consumer after which a subscription is deleted; 0 is no limit.",
        unit="min",
    )
    subscriptionExpiryCheckIntervalInMinutes: int = limit(
        5, "Time between two scans for expired subscriptions; 0 disables them.", unit="min"
    )
    topicLevelPoliciesEnabled: bool = setting(
        True, "If true, topics may have policies of their own. Requires systemTopicEnabled."
    )
    systemTopicEnabled: bool = setting(
        True,
        "If true, the broker stores topic policies, and snapshots for transactions, in system"
        " topics.",
    )
    backlogQuotaCheckEnabled: bool = setting(True, "If true, backlog quotas are enforced.")
    backlogQuotaCheckIntervalInSeconds: int = setting(
        60, "Time between two scans for topics over their backlog quota.", unit="s", minimum=1
    )
    backlogQuotaDefaultLimitBytes: int = limit(
        -1,
        "Bytes of unacknowledged messages that a topic may store for its subscriptions; -1 is no"
        " limit.",
        unit="bytes",
        minimum=-1,
        maximum=LONG_MAX,
    )
    backlogQuotaDefaultLimitGB: float = limit(
        -1.0,
        "Like backlogQuotaDefaultLimitBytes, in GiB. Overrides it if greater than 0.",
        unit="GiB",
        minimum=-1,
    )
    backlogQuotaDefaultLimitSecond: int = limit(
        -1,
        "Age that the oldest message with a missing acknowledgement may have; 0 or less is no"
        " limit.",
        unit="s",
        minimum=-1,
    )
    backlogQuotaDefaultRetentionPolicy: str = setting(
        "producer_request_hold",
        "What happens above a backlog quota: sends wait, producers receive an error, or the oldest"
        " messages are acknowledged.",
        choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    )
    preciseTimeBasedBacklogQuotaCheck: bool = setting(
        False,
        "If true, the age of a backlog is that of its oldest message, which the broker reads for"
        " this. If false, it is the age of the ledger with that message.",
    )
    delayedDeliveryTickTimeMillis: int = setting(
        1000,
        "How early a delayed message may be delivered while isDelayedDeliveryDeliverAtTimeStrict is"
        " false.",
        unit="ms",
    )
    delayedDeliveryMaxDelayInMillis: int = limit(
        0,
        "Longest delay of a message. One with a later delivery time is refused. 0 is no limit.",
        unit="ms",
        maximum=LONG_MAX,
    )
    isDelayedDeliveryDeliverAtTimeStrict: bool = setting(
        True,
        "If true, a delayed message is never delivered early. If false, it may be delivered early"
        " by delayedDeliveryTickTimeMillis. Pulsar's own default is false.",
    )
    subscriptionTypesEnabled: str = setting(
        "Exclusive,Shared,Failover,Key_Shared",
        "Subscription types that consumers may use.",
        choices=("Exclusive", "Shared", "Failover", "Key_Shared"),
        dynamic=True,
        is_list=True,
    )
    subscriptionKeySharedEnable: bool = setting(
        True,
        "If false, Key_Shared is disabled. An older setting than subscriptionTypesEnabled.",
        dynamic=True,
    )
    dispatcherPauseOnAckStatePersistentEnabled: bool = setting(
        False,
        "If true, a shared subscription receives no new messages while its acknowledgement state is"
        " too large to be stored.",
        dynamic=True,
    )
    encryptionRequireOnProducer: bool = setting(
        False, "If true, producers must encrypt their messages."
    )
    activeConsumerFailoverDelayTimeMillis: int = limit(
        1000,
        "Wait before a failover subscription continues with its new active consumer.",
        unit="ms",
    )
    delayedDeliveryEnabled: bool = setting(
        True,
        "If true, Shared and Key_Shared subscriptions delay messages until their delivery time.",
    )
    activeConsumerFailoverConsistentHashing: bool = setting(
        False,
        "If true, the active consumer of a failover subscription on a partition is chosen by hashes"
        " of the consumer names, as on topics without partitions. If false, it is chosen by the"
        " partition's number.",
    )
    subscriptionKeySharedUseConsistentHashing: bool = setting(
        True,
        "If true, the keys of a Key_Shared subscription are distributed by points on a hash ring."
        " If false, each consumer has one range of hashes.",
    )
    subscriptionKeySharedConsistentHashingReplicaPoints: int = setting(
        100, "Points on the ring for each consumer of a Key_Shared subscription.", minimum=1
    )
    keySharedLookAheadMsgInReplayThresholdPerConsumer: int = limit(
        2000,
        "Entries of a Key_Shared subscription that may wait for their consumer, per consumer,"
        " before the broker stops reading new ones; 0 is no limit.",
        dynamic=True,
    )
    keySharedLookAheadMsgInReplayThresholdPerSubscription: int = limit(
        20_000,
        "The same limit for the whole subscription; 0 is no limit.",
        dynamic=True,
    )


class Transactions(Section, title="Transactions"):
    transactionCoordinatorEnabled: bool = setting(
        False,
        "If true, clients can use transactions. Needs systemTopicEnabled=true.",
    )
    maxActiveTransactionsPerCoordinator: int = setting(
        0,
        "Most open transactions of a coordinator, which refuses further ones; 0: no limit of"
        " this setting.",
    )
    transactionBufferSnapshotMaxTransactionCount: int = setting(
        1000,
        "A topic stores a snapshot of its aborted transactions after so many ends of transactions.",
        minimum=1,
    )
    transactionBufferSnapshotMinTimeInMillis: int = setting(
        5000,
        "Time after which a topic stores a snapshot if messages were published or transactions"
        " ended.",
        unit="ms",
        minimum=1,
    )
    transactionBufferSegmentedSnapshotEnabled: bool = setting(
        False,
        "If true, the snapshot of a topic has several segments, so that only what is new is"
        " written.",
    )
    transactionBufferSnapshotSegmentSize: int = setting(
        262144,
        "Size of a segment of a snapshot.",
        unit="bytes",
        minimum=1024,
    )
    transactionBufferClientMaxConcurrentRequests: int = setting(
        1000,
        "Most requests to one other broker to end a transaction that are in progress; fewer than"
        " 100 count as 100.",
        minimum=1,
    )
    transactionBufferClientOperationTimeoutInMills: int = setting(
        3000,
        "Time after which a request to another broker to end a transaction is repeated.",
        unit="ms",
        minimum=1,
    )
    transactionPendingAckLogIndexMinLag: int = setting(
        500,
        "The log of a subscription's pending acknowledgements can be trimmed at each so many"
        " records.",
        minimum=1,
    )

"""The settings: one documented schema, and where their values come from.

The keys are Apache Pulsar's (`broker.conf`, `standalone.conf`) and Apache BookKeeper's
(`bookkeeper.conf`), and so are their meanings; they are attributes of `Config` under the same name.
Later sources win: the default, the configuration file, the environment (`PULSAR_PREFIX_<key>`), the
command line. The sample configuration file and the reference page are written from this schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyxbroker.base.properties import ConfigError, read_properties
from pyxbroker.settings.names import (
    ALIASES,
    NOT_YET,
    PROTECTION,
    WITHOUT_EFFECT,
    ZOOKEEPER_ALIASES,
)
from pyxbroker.settings.schema import Setting, Value, setting

ENVIRONMENT_PREFIX = "PULSAR_PREFIX_"
PORT_MAX = 65535
DEFAULT_METADATA_URL = "embedded:metadata"

# What a journal file holds beside the largest payload: the rest of its frame, the packaging of an
# entry, the headers of record, group and file, and the padding to blocks (storage.c, journal.h).
FRAME_PADDING_BYTES = 10240
ENTRY_HEADER_BYTES = 36
RECORD_HEADER_BYTES = 32
GROUP_HEADER_BYTES = 64
BLOCK_BYTES = 4096


class Config:
    """All settings of one process, as attributes with Pulsar's names.

    `Config(brokerServicePort=0)` sets some and takes the default of the others; `Config.load` reads
    the usual sources. `unknown` lists the keys that were given and that do nothing here.
    """

    # General

    clusterName: str = setting("standalone", "Name of the cluster that this broker belongs to.")
    brokerServicePort: int | None = setting(
        6650,
        "Port of the binary protocol; 0 takes any free port.",
        maximum=PORT_MAX,
    )
    webServicePort: int | None = setting(
        8080,
        "Port of the admin REST interface and /metrics; 0 takes any free port, empty serves none.",
        maximum=PORT_MAX,
    )
    bindAddress: str = setting("0.0.0.0", "Address that the ports are bound to.")
    advertisedAddress: str = setting(
        "localhost", "Host name or address that lookups send clients to."
    )
    brokerShutdownTimeoutMs: int = setting(
        60_000, "Longest time that a clean stop may take before the process ends.", unit="ms"
    )
    maxMessageSize: int = setting(
        5 * 1024 * 1024,
        "Largest payload of one SEND; clients learn it when they connect.",
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
    )
    keepAliveIntervalSeconds: int = setting(
        30,
        "A connection without traffic is asked with PING after this time and is closed after"
        " another one without an answer; 0 never asks.",
        unit="s",
    )
    connectionLivenessCheckTimeoutMillis: int = setting(
        5000,
        "Wait for the answer of a client whose place (a producer's name, an exclusive subscription)"
        " another one asks for; without an answer it is closed. 0 never asks.",
        unit="ms",
    )
    enablePersistentTopics: bool = setting(True, "Whether persistent topics are served.")
    enableNonPersistentTopics: bool = setting(True, "Whether non-persistent topics are served.")

    # Metadata

    metadataStoreUrl: str = setting(
        "",
        "Where metadata lives: zk:host:port[,host:port][/chroot], embedded:PATH, memory:NAME. Empty"
        " is the embedded store in the data directory; host:port alone is ZooKeeper.",
    )
    metadataStoreSessionTimeoutMillis: int = setting(
        30_000, "Session timeout asked of the metadata store.", unit="ms", minimum=1
    )
    metadataStoreOperationTimeoutSeconds: int = setting(
        30,
        "Longest wait for one metadata operation, for example while ZooKeeper is away.",
        unit="s",
        minimum=1,
    )

    metadataCopyIntervalSeconds: int = setting(
        3600,
        "Longest time between two copies of the embedded metadata store, if anything changed; 0"
        " makes them only by the length of the change log. Pulsar has no such setting.",
        unit="s",
    )
    metadataCopiesKept: int = setting(
        3,
        "Copies of the embedded metadata store that are kept, with all changes since the oldest.",
        minimum=2,
    )
    metadataCopiesKeptHours: int = setting(
        0, "Age below which copies are kept in addition, whatever their number.", unit="h"
    )

    # Limits

    maxMessagePublishBufferSizeInMB: int = setting(
        64,
        "Bytes of published messages that may wait for the disk, over all connections; beyond it"
        " the broker stops reading from producers until half of them are done. Pulsar's own default"
        " is half of the JVM's direct memory.",
        unit="MiB",
        minimum=1,
    )
    maxPendingPublishRequestsPerConnection: int = setting(
        1000,
        "Publishes of one connection that may wait for the disk; beyond it the broker stops reading"
        " from that connection.",
        minimum=1,
    )
    maxConcurrentLookupRequest: int = setting(
        50_000, "Lookups in progress; further ones are refused with TooManyRequests.", minimum=1
    )
    maxConcurrentTopicLoadRequest: int = setting(
        5_000, "Topics that are opened at the same time; further ones wait.", minimum=1
    )
    brokerMaxConnections: int = setting(0, "Connections of this broker; 0 is no limit.")
    brokerMaxConnectionsPerIp: int = setting(0, "Connections of one client address; 0 is no limit.")
    maxHttpServerConnections: int = setting(2048, "Connections of the web port; 0 is no limit.")
    maxTopicsPerNamespace: int = setting(0, "Topics of one namespace; 0 is no limit.")
    maxProducersPerTopic: int = setting(0, "Producers of one topic; 0 is no limit.")
    maxConsumersPerTopic: int = setting(0, "Consumers of one topic; 0 is no limit.")
    maxConsumersPerSubscription: int = setting(0, "Consumers of one subscription; 0 is no limit.")
    maxSubscriptionsPerTopic: int = setting(0, "Subscriptions of one topic; 0 is no limit.")
    maxNumPartitionsPerPartitionedTopic: int = setting(
        0, "Partitions of one partitioned topic; 0 is no limit."
    )
    maxUnackedMessagesPerConsumer: int = setting(
        50_000,
        "Messages that a consumer of a shared subscription may hold unacknowledged; 0 is no limit.",
    )
    maxUnackedMessagesPerSubscription: int = setting(
        200_000,
        "Messages that all consumers of a shared subscription may hold unacknowledged; 0 is no"
        " limit.",
    )
    maxUnackedMessagesPerBroker: int = setting(
        0,
        "Messages that all consumers of shared subscriptions may hold unacknowledged; 0 is no"
        " limit. At the limit only subscriptions that hold little go on, until half of it is left.",
    )
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked: float = setting(
        0.16,
        "The part of maxUnackedMessagesPerBroker that one subscription may hold while the broker"
        " is at that limit.",
        minimum=0,
        maximum=1,
    )

    # Topics and subscriptions

    allowAutoTopicCreation: bool = setting(
        True, "Whether a client that names a topic which does not exist creates it."
    )
    allowAutoTopicCreationType: str = setting(
        "non-partitioned",
        "Kind of a topic that is created automatically.",
        choices=("non-partitioned", "partitioned"),
    )
    defaultNumPartitions: int = setting(
        1, "Partitions of a partitioned topic that is created automatically.", minimum=1
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
        True, "Whether a consumer that names a subscription which does not exist creates it."
    )
    brokerDeleteInactiveTopicsEnabled: bool = setting(
        True, "Whether a topic that nobody has used for a while is deleted, with its messages."
    )
    brokerDeleteInactiveTopicsMode: str = setting(
        "delete_when_no_subscriptions",
        "Which topics nobody uses: those without producers and without subscriptions, or those"
        " without producers and consumers whose subscriptions have acknowledged everything.",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
    )
    brokerDeleteInactiveTopicsFrequencySeconds: int = setting(
        60, "Time between two looks for inactive topics.", unit="s", minimum=1
    )
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int | None = setting(
        None,
        "How long nobody has to use a topic before it is deleted; empty is the time between two"
        " looks. A topic is kept for its retention time in any case.",
        unit="s",
    )
    brokerDeleteInactivePartitionedTopicMetadataEnabled: bool = setting(
        False,
        "Whether the number of partitions of a partitioned topic is forgotten when all of its"
        " partitions were deleted as inactive.",
    )
    brokerDeduplicationEnabled: bool = setting(
        False, "Whether messages that a producer sends again are recognised and not stored twice."
    )
    defaultNumberOfNamespaceBundles: int = setting(
        4, "Bundles of a namespace that is created without saying how many.", minimum=1
    )
    defaultRetentionTimeInMinutes: int = setting(
        0,
        "How long acknowledged messages are kept; 0 deletes them, -1 keeps them for ever.",
        unit="min",
        minimum=-1,
    )
    defaultRetentionSizeInMB: int = setting(
        0,
        "How much of acknowledged messages is kept for each topic; 0 none, -1 without limit.",
        unit="MiB",
        minimum=-1,
    )
    ttlDurationDefaultInSeconds: int = setting(
        0, "Unacknowledged messages of this age are acknowledged for all; 0 never.", unit="s"
    )
    messageExpiryCheckIntervalInMinutes: int = setting(
        5, "Time between two looks for expired messages.", unit="min", minimum=1
    )
    subscriptionExpirationTimeMinutes: int = setting(
        0, "Subscriptions without a consumer for this time are deleted; 0 never.", unit="min"
    )
    subscriptionExpiryCheckIntervalInMinutes: int = setting(
        5, "Time between two looks for expired subscriptions.", unit="min", minimum=1
    )
    activeConsumerFailoverDelayTimeMillis: int = setting(
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
    keySharedLookAheadMsgInReplayThresholdPerConsumer: int = setting(
        2000,
        "Entries of a Key_Shared subscription that may wait for their consumer, for each consumer,"
        " before no new ones are read; 0 is no limit.",
    )
    keySharedLookAheadMsgInReplayThresholdPerSubscription: int = setting(
        20_000, "The same for the whole subscription; 0 is no limit."
    )

    # Dispatch

    dispatcherMaxReadBatchSize: int = setting(
        100, "Entries that a dispatcher reads in one round.", minimum=1
    )
    dispatcherMaxReadSizeBytes: int = setting(
        5 * 1024 * 1024, "Bytes that a dispatcher reads in one round.", unit="bytes", minimum=1
    )
    dispatcherMinReadBatchSize: int = setting(
        1, "Entries that a dispatcher reads in one round after a read failed.", minimum=1
    )
    dispatcherMaxRoundRobinBatchSize: int = setting(
        20, "Entries that one consumer of a shared subscription gets in one turn.", minimum=1
    )
    dispatcherReadFailureBackoffInitialTimeInMs: int = setting(
        50,
        "First wait of a dispatcher after a failed read; it doubles with each further one. Pulsar's"
        " own default is 15000.",
        unit="ms",
        minimum=1,
    )
    dispatcherReadFailureBackoffMaxTimeInMs: int = setting(
        1_000,
        "Longest wait of a dispatcher after failed reads. Pulsar's own default is 60000.",
        unit="ms",
        minimum=1,
    )

    # Managed ledger

    managedLedgerDefaultEnsembleSize: int = setting(
        1, "Bookies that the entries of a ledger are spread over.", minimum=1
    )
    managedLedgerDefaultWriteQuorum: int = setting(1, "Copies of each entry.", minimum=1)
    managedLedgerDefaultAckQuorum: int = setting(
        1, "Copies that must be on disk before an entry is acknowledged.", minimum=1
    )
    managedLedgerDigestType: str = setting(
        "CRC32C",
        "Checksum of an entry between broker and bookie.",
        choices=("CRC32C", "CRC32", "MAC", "DUMMY"),
    )
    managedLedgerPassword: str = setting("", "Password of the ledgers that this broker creates.")
    managedLedgerMaxEntriesPerLedger: int = setting(
        50_000, "Entries after which a topic goes on in a new ledger.", minimum=1
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = setting(
        10, "Age below which a ledger is not left for its number of entries.", unit="min"
    )
    managedLedgerMaxLedgerRolloverTimeMinutes: int = setting(
        240, "Age after which a topic goes on in a new ledger.", unit="min", minimum=1
    )
    managedLedgerMaxSizePerLedgerMbytes: int = setting(
        2048, "Size after which a topic goes on in a new ledger.", unit="MiB", minimum=1
    )
    managedLedgerCursorMaxEntriesPerLedger: int = setting(
        50_000, "Positions after which a cursor goes on in a new ledger.", minimum=1
    )
    managedLedgerCursorRolloverTimeInSeconds: int = setting(
        14_400, "Age after which a cursor goes on in a new ledger.", unit="s", minimum=1
    )
    managedLedgerDefaultMarkDeleteRateLimit: float = setting(
        1.0, "Times per second that a cursor stores its position; 0 is no limit.", unit="1/s"
    )
    managedLedgerMaxUnackedRangesToPersist: int = setting(
        10_000,
        "Acknowledged ranges up to which a cursor's state is stored in Pulsar's format. With more,"
        " it is stored in a format of our own; none is ever dropped.",
    )
    managedLedgerMaxUnackedRangesToPersistInMetadataStore: int = setting(
        1000, "Acknowledged ranges up to which a closed cursor is kept in the metadata store."
    )
    managedLedgerCacheSizeMB: int = setting(
        64,
        "Memory for entries that consumers are about to read. Pulsar's own default is a fifth of"
        " the JVM's direct memory.",
        unit="MiB",
    )
    managedLedgerCacheEvictionTimeThresholdMillis: int = setting(
        1000, "Age after which an entry leaves the cache.", unit="ms"
    )
    managedLedgerCursorBackloggedThreshold: int = setting(
        1000, "Entries behind the end at which a cursor no longer holds entries in the cache."
    )
    managedLedgerCursorPositionFlushSeconds: int = setting(
        60, "Time between two stores of positions that the rate limit held back.", unit="s"
    )
    autoSkipNonRecoverableData: bool = setting(
        False,
        "Whether a subscription acknowledges what is lost, entries and whole ledgers, and goes on,"
        " however much it is. Otherwise it passes over at most 64 entries in a row, and stops at a"
        " longer run until it is moved or the entries can be read again.",
    )

    # Storage

    journalDirectories: str = setting(
        "", "Directory of the journal; empty is `bookie/journal` in the data directory."
    )
    ledgerDirectories: str = setting(
        "", "Directory of the entry logs; empty is `bookie/ledgers` in the data directory."
    )
    journalMaxSizeMB: int = setting(
        64,
        "Size of one journal file. Files are written once in full and then used again, so that a"
        " sync has no file system metadata to write (BookKeeper's own default is 2048).",
        unit="MiB",
        minimum=1,
        maximum=65536,
    )
    journalSyncData: bool = setting(
        True,
        "Whether an entry is on disk before it is acknowledged. With false, a power cut or a crash"
        " of the operating system loses acknowledged messages.",
    )
    shutdownOnJournalFailure: bool = setting(
        False,
        "Whether the process ends, with exit status 1, when the journal failed, so that its"
        " supervisor starts it again. Otherwise it goes on serving what was acknowledged to readers"
        " and refuses every write, and health answers 503.",
    )
    dbStorage_writeCacheMaxSizeMb: int = setting(
        32,
        "Memory for entries that are in the journal and not yet in an entry log, for one"
        " generation; while one is flushed the next one fills (BookKeeper's own default is a"
        " quarter of the JVM's direct memory).",
        unit="MiB",
        minimum=1,
    )
    dbStorage_readAheadCacheMaxSizeMb: int = setting(
        32, "Memory for entries that were flushed and are still at hand for readers.", unit="MiB"
    )
    flushInterval: int = setting(
        60_000,
        "Longest time that an entry waits to be moved to an entry log.",
        unit="ms",
        minimum=1,
    )
    gcWaitTime: int = setting(
        900_000,
        "Time between two looks for ledgers that are in the storage and not in the metadata.",
        unit="ms",
        minimum=1,
    )
    diskCheckInterval: int = setting(
        1000,
        "Time between two looks at the free space of the disks (BookKeeper's own default is 10 s).",
        unit="ms",
        minimum=10,
    )
    diskUsageThreshold: float = setting(
        1.0,
        "Part of a disk in use above which nothing is published. With 1 only the bytes count that"
        " are needed for what is in memory: both generations of the write cache, a journal file and"
        " 8 MiB (Pulsar's own default is 0.99, which is a hundred megabytes of a small disk and a"
        " hundred gigabytes of a large one).",
        minimum=0.01,
        maximum=1,
    )
    diskReserveSizeMB: int = setting(
        48,
        "Space of each disk that is kept for deleting, acknowledging and starting when others have"
        " filled it; at most an eighth of the disk. 0 keeps none.",
        unit="MiB",
    )
    storageUnavailableTimeoutMs: int = setting(
        5000,
        "How long sends wait while nothing can be stored; then they fail, and producers are refused"
        " with ProducerBlockedQuotaExceededException until it works again.",
        unit="ms",
    )

    # Metrics

    exposeTopicLevelMetricsInPrometheus: bool = setting(
        True, "Whether /metrics has series for each topic, or sums for each namespace only."
    )
    exposeConsumerLevelMetricsInPrometheus: bool = setting(
        False, "Whether /metrics has series for each consumer, where each topic has some."
    )
    exposeProducerLevelMetricsInPrometheus: bool = setting(
        False, "Whether /metrics has series for each producer, where each topic has some."
    )
    splitTopicAndPartitionLabelInPrometheus: bool = setting(
        False, "Whether the partition of a topic is a label of its own in /metrics."
    )

    def __init__(self, **values: Value) -> None:
        self.unknown: list[str] = []
        for key, row in SCHEMA.items():
            setattr(self, key, row.default)
        for key, value in values.items():
            if key not in SCHEMA:
                raise ConfigError(f"There is no setting {key!r}.")
            setattr(self, key, value)

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Config:
        """Reads the file, then the environment's `PULSAR_PREFIX_*`, then the command line's values.

        Raises ConfigError for a file that cannot be read and for a value that cannot be used.
        """
        config = cls()
        # Which place set a key last, by the key that it stands for: Pulsar's current key wins over
        # its older names whatever their order in a file.
        named_by: dict[str, str] = {}
        if path is not None:
            for line, key, text in read_properties(path):
                config._set(key, text, f"{path}, line {line}", named_by)
        named_by.clear()
        for name, text in sorted((environment or {}).items()):
            if name.startswith(ENVIRONMENT_PREFIX):
                key = name.removeprefix(ENVIRONMENT_PREFIX)
                config._set(key, text, f"environment variable {name}", named_by)
        named_by.clear()
        for key, text in (overrides or {}).items():
            config._set(key, text, "command line", named_by)
        config._check_journal_size()
        return config

    def _check_journal_size(self) -> None:
        least = journal_size_min(self.maxMessageSize)
        if self.journalMaxSizeMB < least:
            raise ConfigError(
                f"journalMaxSizeMB={self.journalMaxSizeMB} is too small: a journal file has to hold"
                f" the largest entry (maxMessageSize={self.maxMessageSize}); set at least {least}."
            )

    def _set(self, key: str, text: str, place: str, named_by: dict[str, str]) -> None:
        if key in PROTECTION and text.strip().lower() == "true":
            raise ConfigError(
                f"{place}: {key} is true, and there is none yet: anybody would be served."
            )
        target = ALIASES.get(key, key)
        row = SCHEMA.get(target)
        ignored = row is None or target in NOT_YET
        if ignored and key not in WITHOUT_EFFECT | PROTECTION and key not in self.unknown:
            self.unknown.append(key)
        if row is None:
            return
        if key != target and (not text.strip() or named_by.get(target) == target):
            return
        try:
            value = row.parse(text)
        except (ValueError, KeyError):
            raise ConfigError(
                f"{place}: {key} is {text.strip()!r}; expected {row.expected()}."
            ) from None
        if key in ZOOKEEPER_ALIASES:
            value = f"zk:{value}"
        setattr(self, target, value)
        named_by[target] = key

    def changed(self) -> dict[str, Value]:
        """The settings that are not at their default, without the secret ones."""
        values = {key: getattr(self, key) for key in SCHEMA if key not in SECRET}
        return {key: value for key, value in values.items() if value != SCHEMA[key].default}


def journal_size_min(payload_bytes_max: int) -> int:
    """The least size of a journal file in MiB with which payloads of this size can be stored."""
    entry = payload_bytes_max + FRAME_PADDING_BYTES + ENTRY_HEADER_BYTES
    record = _round_up(RECORD_HEADER_BYTES + entry, 8)
    group = _round_up(GROUP_HEADER_BYTES + record, BLOCK_BYTES)
    return _round_up(BLOCK_BYTES + group, 1 << 20) >> 20


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _collect_schema() -> dict[str, Setting]:
    """The rows in the order of the class body, with their key and the annotated type."""
    schema: dict[str, Setting] = {}
    for key, kind in Config.__annotations__.items():
        row = Config.__dict__[key]
        row.key, row.kind = key, str(kind)
        schema[key] = row
        delattr(Config, key)
    return schema


SCHEMA: dict[str, Setting] = _collect_schema()

# The parts of the sample file and of the reference page, each by its first key.
SECTIONS = {
    "clusterName": "General",
    "metadataStoreUrl": "Metadata",
    "maxMessagePublishBufferSizeInMB": "Limits",
    "allowAutoTopicCreation": "Topics and subscriptions",
    "dispatcherMaxReadBatchSize": "Dispatch",
    "managedLedgerDefaultEnsembleSize": "Managed ledger",
    "journalDirectories": "Storage",
    "exposeTopicLevelMetricsInPrometheus": "Metrics",
}

# Never shown, not even as a changed setting.
SECRET = frozenset({"managedLedgerPassword"})

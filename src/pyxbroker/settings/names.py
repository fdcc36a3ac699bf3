"""Names of settings outside the schema: older names, and names that are accepted silently."""

from __future__ import annotations

# Older names of Pulsar, and BookKeeper's names for the same thing.
ZOOKEEPER_ALIASES = frozenset({"zookeeperServers", "zkServers"})
ALIASES = {
    "zookeeperServers": "metadataStoreUrl",
    "zkServers": "metadataStoreUrl",
    "metadataServiceUri": "metadataStoreUrl",
    "zooKeeperSessionTimeoutMillis": "metadataStoreSessionTimeoutMillis",
    "zkTimeout": "metadataStoreSessionTimeoutMillis",
    "zooKeeperOperationTimeoutSeconds": "metadataStoreOperationTimeoutSeconds",
    "brokerServicePurgeInactiveFrequencyInSeconds": "brokerDeleteInactiveTopicsFrequencySeconds",
    "journalDirectory": "journalDirectories",
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper": (
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore"
    ),
}

# Older names whose positive value overrides the current name in Pulsar. Pulsar's own files set them
# to -1. For all other older names, the current name wins.
OLDER_WINS = frozenset(
    {
        "zooKeeperSessionTimeoutMillis",
        "zooKeeperOperationTimeoutSeconds",
        "managedLedgerMaxUnackedRangesToPersistInZooKeeper",
    }
)

# Names that Pulsar has deprecated, each with the newer name and the value in Pulsar's own files.
# That value, an empty one and a negative number ask for nothing.
OLDER = {
    "backlogQuotaDefaultLimitGB": ("backlogQuotaDefaultLimitBytes", "-1"),
    "brokerServicePurgeInactiveFrequencyInSeconds": (
        "brokerDeleteInactiveTopicsFrequencySeconds",
        "60",
    ),
    "loadBalancerBandwithInResourceWeight": ("loadBalancerBandwidthInResourceWeight", "1.0"),
    "loadBalancerBandwithOutResourceWeight": ("loadBalancerBandwidthOutResourceWeight", "1.0"),
    "managedLedgerCacheEvictionFrequency": ("managedLedgerCacheEvictionIntervalMs", "0.0"),
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper": (
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore",
        "0",
    ),
    "numWorkerThreadsForNonPersistentTopic": ("topicOrderedExecutorThreadNum", ""),
    "replicationTlsEnabled": ("brokerClientTlsEnabled", "false"),
    "subscriptionKeySharedEnable": ("subscriptionTypesEnabled", "true"),
    "tlsEnabled": ("brokerServicePortTls and webServicePortTls", "false"),
    "zooKeeperAllowReadOnlyOperations": ("metadataStoreAllowReadOnlyOperations", "false"),
    "zooKeeperCacheExpirySeconds": ("metadataStoreCacheExpirySeconds", "0"),
    "zooKeeperOperationTimeoutSeconds": ("metadataStoreOperationTimeoutSeconds", "0"),
    "zooKeeperSessionTimeoutMillis": ("metadataStoreSessionTimeoutMillis", "0"),
}

# Names that standalone maps to its own setting, because its bookie's cache is the broker's cache.
STANDALONE_ALIASES = {"managedLedgerCacheSizeMB": "dbStorage_readAheadCacheMaxSizeMb"}

# Pulsar's store for metadata that clusters share, and its older names. In standalone such metadata
# is in the one metadata store.
CONFIGURATION_STORE = "configurationMetadataStoreUrl"
CONFIGURATION_STORES = frozenset(
    {CONFIGURATION_STORE, "configurationStoreServers", "globalZookeeperServers"}
)

# A URL of one of these stores counts in every source of standalone. Any other store counts only on
# its command line: like Pulsar's standalone, ours ignores the store that a file names and uses its
# own.
OWN_STORES = ("embedded:", "rocksdb:", "memory:")

# Keys of mechanisms that work differently here, with the reason why they have no effect.
OTHERWISE = {
    "flushInterval": (
        "An entry log is written and sealed when one generation of the write cache is full"
        " (`dbStorage_writeCacheMaxSizeMb`). In BookKeeper the interval limits how much journal a"
        " start replays. Here the write cache sets that limit, and flushing at intervals would only"
        " leave many small files."
    ),
    "managedLedgerCursorBackloggedThreshold": (
        "The position of a cursor does not affect the cache: all published entries pass through it."
    ),
}

# Keys about internals of Pulsar's and BookKeeper's Java programs: accepted silently.
WITHOUT_EFFECT = frozenset(OTHERWISE) | frozenset(
    """
    acknowledgmentAtBatchIndexLevelEnabled allowLoopback bookkeeperClientNumIoThreads
    bookkeeperClientNumWorkerThreads bookkeeperClientSeparatedIoThreadsEnabled
    bookkeeperClientUseV2Protocol bookkeeperNumberOfChannelsPerBookie
    bookkeeperUseV2WireProtocol dbStorage_rocksDB_blockCacheSize dbStorage_rocksDB_blockSize
    dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_logLevel dbStorage_rocksDB_logPath
    dbStorage_rocksDB_maxSizeInLevel1MB dbStorage_rocksDB_numBackgroundThreads
    dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_numLevels dbStorage_rocksDB_sstSizeInMB
    dbStorage_rocksDB_writeBufferSizeMB delayedDeliveryTrackerFactoryClassName
    diskUsageWarnThreshold enableBusyWait httpServerAcceptQueueSize
    httpServerThreadPoolQueueSize isRunningStandalone journalAdaptiveGroupWrites
    journalBufferedWritesThreshold journalMaxBackups journalMaxGroupWaitMSec
    journalPreAllocSizeMB journalRemoveFromPageCache journalWriteBufferSizeKB
    jvmGCMetricsLoggerClassName ledgerStorageClass managedLedgerCacheCopyEntries
    managedLedgerCacheEvictionFrequency managedLedgerCacheEvictionIntervalMs
    managedLedgerMaxBatchDeletedIndexToPersist
    managedLedgerNumSchedulerThreads managedLedgerNumWorkerThreads
    managedLedgerOffloadMaxThreads managedLedgerOffloadReadThreads
    managedLedgerPersistIndividualAckAsLongArray
    managedLedgerPrometheusStatsLatencyRolloverSeconds managedLedgerTraceTaskExecution
    managedLedgerUnackedRangesOpenCacheSetEnabled maxConcurrentHttpRequests
    maxConcurrentNonPersistentMessagePerConnection maxSecondsToClearTopicNameCache
    messagePublishBufferCheckIntervalInMillis metadataStoreBatchingEnabled
    metadataStoreBatchingMaxDelayMillis metadataStoreBatchingMaxOperations
    metadataStoreBatchingMaxSizeKb metadataStoreCacheExpirySeconds metadataStoreConfigPath
    metadataStoreSerDesThreads narExtractionDirectory nettyMaxFrameSizeBytes numAcceptorThreads
    numAddWorkerThreads numCacheExecutorThreadPoolSize numExecutorThreadPoolSize
    numHighPriorityWorkerThreads numHttpServerThreads numIOThreads numJournalCallbackThreads
    numOrderedExecutorThreads numReadWorkerThreads numTransactionReplayThreadPoolSize
    numWorkerThreadsForNonPersistentTopic persistentUnackedRangesWithMultipleEntriesEnabled
    pulsarChannelWriteBufferHighWaterMark pulsarChannelWriteBufferLowWaterMark
    serverNumIOThreads skipBrokerShutdownOnOOM topicNameCacheMaxCapacity
    topicOrderedExecutorThreadNum useHostNameAsBookieID useSeparateThreadPoolForProtocolHandlers
    webSocketConnectionsPerBroker webSocketNumIoThreads webSocketNumServiceThreads
    zooKeeperCacheExpirySeconds
    """.split()
)

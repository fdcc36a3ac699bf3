"""Names of settings besides those of the schema: older ones, and those that are taken silently."""

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
    "managedLedgerCacheSizeMB": "dbStorage_readAheadCacheMaxSizeMb",
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper": (
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore"
    ),
}

# Older names that Pulsar goes by when they have a positive value, whatever the current name has;
# its own files have them with -1. Of the other older names the current one wins.
OLDER_WINS = frozenset(
    {
        "zooKeeperSessionTimeoutMillis",
        "zooKeeperOperationTimeoutSeconds",
        "managedLedgerMaxUnackedRangesToPersistInZooKeeper",
    }
)

# Names that Pulsar calls deprecated: the newer names, and the value of a file that nobody has
# changed. A negative number is no value either.
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

# Where Pulsar has the metadata that several clusters share. Here it is with all other metadata.
CONFIGURATION_STORES = frozenset(
    {"configurationMetadataStoreUrl", "configurationStoreServers", "globalZookeeperServers"}
)

# URLs of these stores count wherever they are given. Of others only the command line's does: as
# Pulsar's standalone, ours passes over the store that a file names, and has one of its own.
OWN_STORES = ("embedded:", "rocksdb:", "memory:")

# Keys about what is done another way here, and why they have nothing to govern: taken silently.
OTHERWISE = {
    "flushInterval": (
        "An entry log is written and sealed when the write cache has a generation full"
        " (`dbStorage_writeCacheMaxSizeMb`). In BookKeeper the interval bounds the journal that a"
        " start replays; here the write cache does, and a flush by the clock would only leave many"
        " small files."
    ),
    "managedLedgerCacheEvictionTimeThresholdMillis": (
        "Entries leave the cache a generation at a time, the oldest first, when new ones need the"
        " memory. It is the bookie's write cache, so letting go of them earlier frees nothing."
    ),
    "managedLedgerCursorBackloggedThreshold": (
        "Cursors hold nothing in the cache, wherever they are: everything that was published passes"
        " through it."
    ),
}

# Keys that are about the insides of Pulsar's and BookKeeper's Java programs: taken silently.
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
    managedLedgerCacheEvictionWatermark managedLedgerMaxBatchDeletedIndexToPersist
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

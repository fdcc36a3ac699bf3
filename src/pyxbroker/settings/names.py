"""Names of settings besides those of the schema: older ones, and silent ones."""

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

# Keys that ask for a protection that is not there: who sets one to true is refused, as others would
# be let in whom it is to keep out.
PROTECTION = frozenset({"authenticationEnabled", "authorizationEnabled"})

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
    acknowledgmentAtBatchIndexLevelEnabled allowLoopback bookkeeperClientNumWorkerThreads
    bookkeeperNumberOfChannelsPerBookie
    bookkeeperClientUseV2Protocol bookkeeperUseV2WireProtocol
    dbStorage_rocksDB_blockCacheSize dbStorage_rocksDB_blockSize
    dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_logLevel
    dbStorage_rocksDB_logPath dbStorage_rocksDB_numFilesInLevel0
    dbStorage_rocksDB_numLevels dbStorage_rocksDB_maxSizeInLevel1MB
    dbStorage_rocksDB_numBackgroundThreads dbStorage_rocksDB_sstSizeInMB
    dbStorage_rocksDB_writeBufferSizeMB
    delayedDeliveryTrackerFactoryClassName
    diskUsageWarnThreshold journalMaxGroupWaitMSec
    journalAdaptiveGroupWrites journalBufferedWritesThreshold journalMaxBackups
    journalPreAllocSizeMB journalRemoveFromPageCache journalWriteBufferSizeKB
    jvmGCMetricsLoggerClassName ledgerStorageClass managedLedgerCacheCopyEntries
    managedLedgerCacheEvictionFrequency managedLedgerNumSchedulerThreads
    managedLedgerMaxBatchDeletedIndexToPersist managedLedgerNumWorkerThreads
    managedLedgerPersistIndividualAckAsLongArray
    managedLedgerPrometheusStatsLatencyRolloverSeconds
    managedLedgerTraceTaskExecution managedLedgerUnackedRangesOpenCacheSetEnabled
    maxConcurrentHttpRequests maxConcurrentNonPersistentMessagePerConnection
    messagePublishBufferCheckIntervalInMillis
    metadataStoreBatchingEnabled metadataStoreBatchingMaxDelayMillis
    metadataStoreBatchingMaxOperations metadataStoreBatchingMaxSizeKb metadataStoreConfigPath
    metadataStoreCacheExpirySeconds narExtractionDirectory nettyMaxFrameSizeBytes
    numAddWorkerThreads numCacheExecutorThreadPoolSize numExecutorThreadPoolSize
    numHighPriorityWorkerThreads numHttpServerThreads numIOThreads numJournalCallbackThreads
    numOrderedExecutorThreads numReadWorkerThreads numWorkerThreadsForNonPersistentTopic
    persistentUnackedRangesWithMultipleEntriesEnabled
    serverNumIOThreads skipBrokerShutdownOnOOM useHostNameAsBookieID zooKeeperCacheExpirySeconds
    """.split()
)

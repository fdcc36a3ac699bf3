"""The endpoints of Apache Pulsar 4.2's web port: every method and path, by group.

This table is for comparison; endpoints.py has the served ones. `{domain}` stands for persistent and
non-persistent. tests/test_pulsar_endpoints.py requests each row from the router, and
docs/compatibility.md shows the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyxbroker.base.named_tuple import NamedTuple

ABBREVIATIONS = {
    "TOPIC": "/admin/v2/{domain}/{tenant}/{namespace}/{topic}",
    "NAMESPACE": "/admin/v2/namespaces/{tenant}/{namespace}",
}

# A line with # begins a group; the others are methods and a path.
TABLE = """
# clusters
GET /admin/v2/clusters
GET,PUT,POST,DELETE /admin/v2/clusters/{cluster}
GET /admin/v2/clusters/{cluster}/failureDomains
GET,POST,DELETE /admin/v2/clusters/{cluster}/failureDomains/{domainName}
GET,POST /admin/v2/clusters/{cluster}/migrate
GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies
GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers
GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers/{broker}
GET,POST,DELETE /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policyName}
GET,POST /admin/v2/clusters/{cluster}/peers
# tenants
GET /admin/v2/tenants
GET,PUT,POST,DELETE /admin/v2/tenants/{tenant}
# namespaces
POST /admin/v2/namespaces/grantPermissionsOnTopics
POST /admin/v2/namespaces/revokePermissionsOnTopics
GET /admin/v2/namespaces/{cluster}/antiAffinity/{group}
GET /admin/v2/namespaces/{tenant}
GET,PUT,DELETE NAMESPACE
GET,POST NAMESPACE/allowedClusters
GET,POST,DELETE NAMESPACE/allowedTopicPropertyKeysForMetrics
GET,POST,DELETE NAMESPACE/antiAffinity
GET,POST,DELETE NAMESPACE/autoSubscriptionCreation
GET,POST,DELETE NAMESPACE/autoTopicCreation
POST,DELETE NAMESPACE/backlogQuota
GET NAMESPACE/backlogQuotaMap
GET NAMESPACE/bundles
POST NAMESPACE/clearBacklog
POST NAMESPACE/clearBacklog/{subscription}
GET,PUT,DELETE NAMESPACE/compactionThreshold
GET,POST,DELETE NAMESPACE/deduplication
GET,POST NAMESPACE/deduplicationSnapshotInterval
GET,POST,DELETE NAMESPACE/delayedDelivery
GET,POST,DELETE NAMESPACE/dispatchRate
GET,POST,DELETE NAMESPACE/dispatcherPauseOnAckStatePersistent
GET,POST NAMESPACE/encryptionRequired
GET,POST,DELETE NAMESPACE/entryFilters
GET,POST,DELETE NAMESPACE/inactiveTopicPolicies
GET,POST NAMESPACE/isAllowAutoUpdateSchema
GET,POST,DELETE NAMESPACE/maxConsumersPerSubscription
GET,POST,DELETE NAMESPACE/maxConsumersPerTopic
GET,POST,DELETE NAMESPACE/maxProducersPerTopic
GET,POST,DELETE NAMESPACE/maxSubscriptionsPerTopic
GET,POST,DELETE NAMESPACE/maxTopicsPerNamespace
GET,POST,DELETE NAMESPACE/maxUnackedMessagesPerConsumer
GET,POST,DELETE NAMESPACE/maxUnackedMessagesPerSubscription
GET,POST,DELETE NAMESPACE/messageTTL
POST NAMESPACE/migration
GET,PUT,DELETE NAMESPACE/offloadDeletionLagMs
GET,POST NAMESPACE/offloadPolicies
GET,PUT NAMESPACE/offloadThreshold
GET,PUT NAMESPACE/offloadThresholdInSeconds
GET NAMESPACE/permissions
GET NAMESPACE/permissions/subscription
POST NAMESPACE/permissions/subscription/{subscription}
POST,DELETE NAMESPACE/permissions/{role}
DELETE NAMESPACE/permissions/{subscription}/{role}
GET,POST,DELETE NAMESPACE/persistence
GET,POST,DELETE NAMESPACE/persistence/bookieAffinity
GET,PUT,DELETE NAMESPACE/properties
GET,DELETE NAMESPACE/property/{key}
PUT NAMESPACE/property/{key}/{value}
GET,POST,DELETE NAMESPACE/publishRate
DELETE NAMESPACE/removeOffloadPolicies
GET,POST NAMESPACE/replication
GET,POST,DELETE NAMESPACE/replicatorDispatchRate
GET,DELETE NAMESPACE/resourcegroup
POST NAMESPACE/resourcegroup/{resourcegroup}
GET,POST,DELETE NAMESPACE/retention
GET NAMESPACE/scanOffloadedLedgers
GET,PUT NAMESPACE/schemaAutoUpdateCompatibilityStrategy
GET,PUT NAMESPACE/schemaCompatibilityStrategy
GET,POST NAMESPACE/schemaValidationEnforced
GET,POST,DELETE NAMESPACE/subscribeRate
GET,POST NAMESPACE/subscriptionAuthMode
GET,POST,DELETE NAMESPACE/subscriptionDispatchRate
GET,POST,DELETE NAMESPACE/subscriptionExpirationTime
GET,POST,DELETE NAMESPACE/subscriptionTypesEnabled
GET NAMESPACE/topics
PUT NAMESPACE/unload
POST NAMESPACE/unsubscribe/{subscription}
DELETE NAMESPACE/{bundle}
POST NAMESPACE/{bundle}/clearBacklog
POST NAMESPACE/{bundle}/clearBacklog/{subscription}
PUT NAMESPACE/{bundle}/split
GET NAMESPACE/{bundle}/topicHashPositions
PUT NAMESPACE/{bundle}/unload
POST NAMESPACE/{bundle}/unsubscribe/{subscription}
# topics
GET /admin/v2/{domain}/{tenant}/{namespace}
GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned
PUT,DELETE TOPIC
POST TOPIC/all_subscription/expireMessages/{seconds}
GET,POST,DELETE TOPIC/autoSubscriptionCreation
GET TOPIC/backlog
POST,DELETE TOPIC/backlogQuota
GET TOPIC/backlogQuotaMap
PUT TOPIC/backlogSize
GET,PUT TOPIC/compaction
GET,POST,DELETE TOPIC/compactionThreshold
POST TOPIC/createMissedPartitions
GET,POST,DELETE TOPIC/deduplicationEnabled
GET,POST,DELETE TOPIC/deduplicationSnapshotInterval
GET,POST,DELETE TOPIC/delayedDelivery
GET,POST,DELETE TOPIC/dispatchRate
GET,POST,DELETE TOPIC/dispatcherPauseOnAckStatePersistent
GET,POST,DELETE TOPIC/entryFilters
GET TOPIC/examinemessage
GET TOPIC/getMessageIdByIndex
GET,POST,DELETE TOPIC/inactiveTopicPolicies
GET TOPIC/internal-info
GET TOPIC/internalStats
GET TOPIC/lastMessageId
GET TOPIC/ledger/{ledgerId}/entry/{entryId}
GET,POST,DELETE TOPIC/maxConsumers
GET,POST,DELETE TOPIC/maxConsumersPerSubscription
GET,POST,DELETE TOPIC/maxMessageSize
GET,POST,DELETE TOPIC/maxProducers
GET,POST,DELETE TOPIC/maxSubscriptionsPerTopic
GET,POST,DELETE TOPIC/maxUnackedMessagesOnConsumer
GET,POST,DELETE TOPIC/maxUnackedMessagesOnSubscription
GET,POST,DELETE TOPIC/messageTTL
GET TOPIC/messageid/{timestamp}
GET,PUT TOPIC/offload
GET,POST,DELETE TOPIC/offloadPolicies
GET TOPIC/partitioned-internalStats
GET TOPIC/partitioned-stats
GET,PUT,POST,DELETE TOPIC/partitions
GET TOPIC/permissions
POST,DELETE TOPIC/permissions/{role}
GET,POST,DELETE TOPIC/persistence
DELETE TOPIC/policies
GET,PUT,DELETE TOPIC/properties
GET,POST,DELETE TOPIC/publishRate
GET,POST,DELETE TOPIC/replication
GET,POST,DELETE TOPIC/replicatorDispatchRate
GET,POST,DELETE TOPIC/retention
GET,PUT,DELETE TOPIC/schemaCompatibilityStrategy
GET,POST TOPIC/schemaValidationEnforced
GET,PUT,DELETE TOPIC/shadowTopics
GET TOPIC/stats
GET,POST,DELETE TOPIC/subscribeRate
PUT,DELETE TOPIC/subscription/{subName}
POST TOPIC/subscription/{subName}/analyzeBacklog
POST TOPIC/subscription/{subName}/expireMessages
POST TOPIC/subscription/{subName}/expireMessages/{seconds}
GET TOPIC/subscription/{subName}/position/{position}
GET,PUT TOPIC/subscription/{subName}/properties
GET,POST TOPIC/subscription/{subName}/replicatedSubscriptionStatus
POST TOPIC/subscription/{subName}/resetcursor
POST TOPIC/subscription/{subName}/resetcursor/{timestamp}
POST TOPIC/subscription/{subName}/skip/{numMessages}
POST TOPIC/subscription/{subName}/skip_all
GET,POST,DELETE TOPIC/subscriptionDispatchRate
GET,POST,DELETE TOPIC/subscriptionExpirationTime
GET,POST,DELETE TOPIC/subscriptionTypesEnabled
GET TOPIC/subscriptions
POST TOPIC/terminate
POST TOPIC/terminate/partitions
POST TOPIC/trim
DELETE TOPIC/truncate
PUT TOPIC/unload
GET,POST,DELETE TOPIC/{subName}/dispatchRate
# non-persistent topics
GET /admin/v2/{domain}/{tenant}/{namespace}/{bundle}
# schemas
POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility
GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/metadata
GET,POST,DELETE /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema
GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}
GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schemas
POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/version
# brokers
GET /admin/v2/brokers
GET /admin/v2/brokers/backlog-quota-check
GET /admin/v2/brokers/configuration
GET /admin/v2/brokers/configuration/runtime
GET /admin/v2/brokers/configuration/values
DELETE /admin/v2/brokers/configuration/{name}
POST /admin/v2/brokers/configuration/{name}/{value}
GET /admin/v2/brokers/health
GET /admin/v2/brokers/internal-configuration
GET /admin/v2/brokers/leaderBroker
GET /admin/v2/brokers/ready
POST /admin/v2/brokers/shutdown
GET /admin/v2/brokers/version
GET /admin/v2/brokers/{cluster}
GET /admin/v2/brokers/{cluster}/{brokerId}/ownedNamespaces
# broker-stats
GET /admin/v2/broker-stats/allocator-stats/{allocator}
GET /admin/v2/broker-stats/bookieops
GET /admin/v2/broker-stats/broker-resource-availability/{tenant}/{namespace}
GET /admin/v2/broker-stats/load-report
GET /admin/v2/broker-stats/mbeans
GET /admin/v2/broker-stats/metrics
GET /admin/v2/broker-stats/topics
# bookies
GET /admin/v2/bookies/all
GET /admin/v2/bookies/racks-info
GET,POST,DELETE /admin/v2/bookies/racks-info/{bookie}
# resource-quotas
GET,POST /admin/v2/resource-quotas
GET,POST,DELETE /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}
# resourcegroups
GET /admin/v2/resourcegroups
GET,PUT,DELETE /admin/v2/resourcegroups/{resourcegroup}
# lookup
GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}
GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle
# REST topics
POST /topics/{domain}/{tenant}/{namespace}/{topic}
POST /topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition}
# metrics and status
GET /metrics
GET /status.html
# metadata migration
POST /admin/v2/metadata/migration/start
GET /admin/v2/metadata/migration/status
# transactions
POST /admin/v3/transactions/abortTransaction/{most}/{least}
GET /admin/v3/transactions/coordinatorInternalStats/{coordinatorId}
GET /admin/v3/transactions/coordinatorStats
GET /admin/v3/transactions/coordinators
GET /admin/v3/transactions/pendingAckInternalStats/{tenant}/{namespace}/{topic}/{sub}
GET /admin/v3/transactions/pendingAckStats/{tenant}/{namespace}/{topic}/{sub}
GET /admin/v3/transactions/positionStatsInPendingAck/{tenant}/{namespace}/{topic}/{sub}/{l}/{e}
GET /admin/v3/transactions/slowTransactions/{timeout}
GET /admin/v3/transactions/transactionBufferInternalStats/{tenant}/{namespace}/{topic}
GET /admin/v3/transactions/transactionBufferStats/{tenant}/{namespace}/{topic}
POST /admin/v3/transactions/transactionCoordinator/replicas
GET /admin/v3/transactions/transactionInBufferStats/{tenant}/{namespace}/{topic}/{most}/{least}
GET /admin/v3/transactions/transactionInPendingAckStats/{tenant}/{namespace}/{topic}/{sub}/{m}/{l}
GET /admin/v3/transactions/transactionMetadata/{most}/{least}
# packages
GET /admin/v3/packages/{type}/{tenant}/{namespace}
GET /admin/v3/packages/{type}/{tenant}/{namespace}/{package}
GET,POST,DELETE /admin/v3/packages/{type}/{tenant}/{namespace}/{package}/{version}
GET,PUT /admin/v3/packages/{type}/{tenant}/{namespace}/{package}/{version}/metadata
# functions
GET /admin/v2/functions/connectors
GET /admin/v2/functions/download
POST /admin/v2/functions/upload
GET /admin/v2/functions/{tenant}/{namespace}
GET,PUT,POST,DELETE /admin/v2/functions/{tenant}/{namespace}/{function}
POST /admin/v2/functions/{tenant}/{namespace}/{function}/restart
GET /admin/v2/functions/{tenant}/{namespace}/{function}/state/{key}
GET /admin/v2/functions/{tenant}/{namespace}/{function}/status
POST /admin/v2/functions/{tenant}/{namespace}/{function}/stop
POST /admin/v2/functions/{tenant}/{namespace}/{function}/trigger
POST /admin/v2/functions/{tenant}/{namespace}/{function}/{instanceId}/restart
GET /admin/v2/functions/{tenant}/{namespace}/{function}/{instanceId}/status
POST /admin/v2/functions/{tenant}/{namespace}/{function}/{instanceId}/stop
GET /admin/v2/worker-stats/functionsmetrics
GET /admin/v2/worker-stats/metrics
GET /admin/v2/worker/assignments
GET /admin/v2/worker/cluster
GET /admin/v2/worker/cluster/leader
GET /admin/v2/worker/cluster/leader/ready
GET /admin/v2/worker/connectors
GET,PUT /admin/v2/worker/drain
GET,PUT /admin/v2/worker/leader/drain
PUT /admin/v2/worker/rebalance
GET /admin/v3/functions/builtins
POST /admin/v3/functions/builtins/reload
GET /admin/v3/functions/connectors
GET /admin/v3/functions/download
PUT /admin/v3/functions/leader/{tenant}/{namespace}/{function}
POST /admin/v3/functions/upload
GET /admin/v3/functions/{tenant}/{namespace}
GET,PUT,POST,DELETE /admin/v3/functions/{tenant}/{namespace}/{function}
GET /admin/v3/functions/{tenant}/{namespace}/{function}/download
POST /admin/v3/functions/{tenant}/{namespace}/{function}/restart
POST /admin/v3/functions/{tenant}/{namespace}/{function}/start
GET,POST /admin/v3/functions/{tenant}/{namespace}/{function}/state/{key}
GET /admin/v3/functions/{tenant}/{namespace}/{function}/stats
GET /admin/v3/functions/{tenant}/{namespace}/{function}/status
POST /admin/v3/functions/{tenant}/{namespace}/{function}/stop
POST /admin/v3/functions/{tenant}/{namespace}/{function}/trigger
POST /admin/v3/functions/{tenant}/{namespace}/{function}/{instanceId}/restart
POST /admin/v3/functions/{tenant}/{namespace}/{function}/{instanceId}/start
GET /admin/v3/functions/{tenant}/{namespace}/{function}/{instanceId}/stats
GET /admin/v3/functions/{tenant}/{namespace}/{function}/{instanceId}/status
POST /admin/v3/functions/{tenant}/{namespace}/{function}/{instanceId}/stop
GET /admin/v3/sink/builtinsinks
GET /admin/v3/sink/builtinsinks/{name}/configdefinition
POST /admin/v3/sink/reloadBuiltInSinks
GET /admin/v3/sink/{tenant}/{namespace}
GET,PUT,POST,DELETE /admin/v3/sink/{tenant}/{namespace}/{sink}
POST /admin/v3/sink/{tenant}/{namespace}/{sink}/restart
POST /admin/v3/sink/{tenant}/{namespace}/{sink}/start
GET /admin/v3/sink/{tenant}/{namespace}/{sink}/status
POST /admin/v3/sink/{tenant}/{namespace}/{sink}/stop
POST /admin/v3/sink/{tenant}/{namespace}/{sink}/{instanceId}/restart
POST /admin/v3/sink/{tenant}/{namespace}/{sink}/{instanceId}/start
GET /admin/v3/sink/{tenant}/{namespace}/{sink}/{instanceId}/status
POST /admin/v3/sink/{tenant}/{namespace}/{sink}/{instanceId}/stop
GET /admin/v3/sinks/builtinsinks
GET /admin/v3/sinks/builtinsinks/{name}/configdefinition
POST /admin/v3/sinks/reloadBuiltInSinks
GET /admin/v3/sinks/{tenant}/{namespace}
GET,PUT,POST,DELETE /admin/v3/sinks/{tenant}/{namespace}/{sink}
POST /admin/v3/sinks/{tenant}/{namespace}/{sink}/restart
POST /admin/v3/sinks/{tenant}/{namespace}/{sink}/start
GET /admin/v3/sinks/{tenant}/{namespace}/{sink}/status
POST /admin/v3/sinks/{tenant}/{namespace}/{sink}/stop
POST /admin/v3/sinks/{tenant}/{namespace}/{sink}/{instanceId}/restart
POST /admin/v3/sinks/{tenant}/{namespace}/{sink}/{instanceId}/start
GET /admin/v3/sinks/{tenant}/{namespace}/{sink}/{instanceId}/status
POST /admin/v3/sinks/{tenant}/{namespace}/{sink}/{instanceId}/stop
GET /admin/v3/source/builtinsources
GET /admin/v3/source/builtinsources/{name}/configdefinition
POST /admin/v3/source/reloadBuiltInSources
GET /admin/v3/source/{tenant}/{namespace}
GET,PUT,POST,DELETE /admin/v3/source/{tenant}/{namespace}/{source}
POST /admin/v3/source/{tenant}/{namespace}/{source}/restart
POST /admin/v3/source/{tenant}/{namespace}/{source}/start
GET /admin/v3/source/{tenant}/{namespace}/{source}/status
POST /admin/v3/source/{tenant}/{namespace}/{source}/stop
POST /admin/v3/source/{tenant}/{namespace}/{source}/{instanceId}/restart
POST /admin/v3/source/{tenant}/{namespace}/{source}/{instanceId}/start
GET /admin/v3/source/{tenant}/{namespace}/{source}/{instanceId}/status
POST /admin/v3/source/{tenant}/{namespace}/{source}/{instanceId}/stop
GET /admin/v3/sources/builtinsources
GET /admin/v3/sources/builtinsources/{name}/configdefinition
POST /admin/v3/sources/reloadBuiltInSources
GET /admin/v3/sources/{tenant}/{namespace}
GET,PUT,POST,DELETE /admin/v3/sources/{tenant}/{namespace}/{source}
POST /admin/v3/sources/{tenant}/{namespace}/{source}/restart
POST /admin/v3/sources/{tenant}/{namespace}/{source}/start
GET /admin/v3/sources/{tenant}/{namespace}/{source}/status
POST /admin/v3/sources/{tenant}/{namespace}/{source}/stop
POST /admin/v3/sources/{tenant}/{namespace}/{source}/{instanceId}/restart
POST /admin/v3/sources/{tenant}/{namespace}/{source}/{instanceId}/start
GET /admin/v3/sources/{tenant}/{namespace}/{source}/{instanceId}/status
POST /admin/v3/sources/{tenant}/{namespace}/{source}/{instanceId}/stop
# WebSocket
GET /admin/v2/proxy-stats/metrics
GET /admin/v2/proxy-stats/stats
GET /admin/v2/proxy-stats/{domain}/{tenant}/{namespace}/{topic}/stats
GET /ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}
GET /ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}
GET /ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}
GET /ws/v3/consumer/{subscription}
# proxy
GET /proxy-stats/connections
GET /proxy-stats/logging
POST /proxy-stats/logging/{logLevel}
GET /proxy-stats/topics
GET /static/{file}
"""


class PulsarEndpoint(NamedTuple):
    """One method of one path. Parameter names can differ from those in endpoints.py."""

    group: str
    method: str
    path: str

    @property
    def weight(self) -> int:
        """The number of Pulsar's endpoints for the row: one per domain of topics.

        The endpoint that only non-persistent topics have counts once.
        """
        if self.group == "non-persistent topics":
            return 1
        return 2 if self.path.startswith(("/admin/v2/{domain}", "/topics/{domain}")) else 1


def endpoints(groups: Collection[str] | None = None) -> Iterator[PulsarEndpoint]:
    """Yield all rows, or those of some groups, in the order of the table."""
    group = ""
    for line in TABLE.split("\n"):
        first, _, rest = line.partition(" ")
        if first == "#":
            group = rest
        elif first and (groups is None or group in groups):
            for method, path in rows_of(line):
                yield PulsarEndpoint(group, method, path)


def rows_of(line: str) -> Iterator[tuple[str, str]]:
    """Yield each method with the path of a line such as "GET,POST TOPIC/retention"."""
    methods, _, path = line.partition(" ")
    for short, long in ABBREVIATIONS.items():
        if path.startswith(short):
            path = long + path.removeprefix(short)
    for method in methods.split(","):
        yield method, path

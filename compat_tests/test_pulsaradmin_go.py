"""Apache Pulsar's Go package ``pulsaradmin`` drives a broker: each of its groups of commands.

What a call gives is what the package's types made of the broker's answer, so a field of another
type, or an answer that is no JSON, is an error here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.go_admin import GoAdmin, Refused

from compat_tests.conftest import broker_kind

NAMESPACE = "public/go-admin"
RATE = {
    "dispatchThrottlingRateInMsg": 100,
    "dispatchThrottlingRateInByte": 1 << 20,
    "ratePeriodInSecond": 2,
}
TOPIC_RATE = {**RATE, "relativeToPublishRate": False}
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}
PERSISTENCE = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 2.5,
}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 600,
    "deleteWhileInactive": True,
}
SUBSCRIBE_RATE = {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 30}
PUBLISH_RATE = {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1 << 20}
QUOTA = {"limitTime": 60, "limitSize": 1 << 20, "policy": "producer_exception"}

# What Set<name>, Get<name> and Remove<name> are about, and a value.
OF_NAMESPACE: dict[str, Any] = {
    "NamespaceMessageTTL": 60,
    "Retention": RETENTION,
    "Persistence": PERSISTENCE,
    "TopicAutoCreation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "SchemaValidationEnforced": True,
    "SchemaCompatibilityStrategy": "FORWARD",
    "IsAllowAutoUpdateSchema": False,
    "MaxConsumersPerSubscription": 5,
    "MaxConsumersPerTopic": 6,
    "MaxProducersPerTopic": 7,
    "MaxTopicsPerNamespace": 80,
    "SubscriptionDispatchRate": RATE,
    "DispatchRate": RATE,
    "PublishRate": PUBLISH_RATE,
    "SubscribeRate": SUBSCRIBE_RATE,
    "InactiveTopicPolicies": INACTIVE,
    "SubscriptionExpirationTime": 90,
}
OF_TOPIC: dict[str, Any] = {
    "MessageTTL": 60,
    "MaxProducers": 3,
    "MaxConsumers": 4,
    "MaxUnackMessagesPerConsumer": 50,
    "MaxUnackMessagesPerSubscription": 60,
    "Persistence": PERSISTENCE,
    "DispatchRate": TOPIC_RATE,
    "PublishRate": PUBLISH_RATE,
    "DeduplicationStatus": True,
    "Retention": RETENTION,
    "InactiveTopicPolicies": INACTIVE,
    "SubscribeRate": SUBSCRIBE_RATE,
    "SubscriptionDispatchRate": TOPIC_RATE,
    "MaxConsumersPerSubscription": 2,
    "MaxMessageSize": 100_000,
    "MaxSubscriptionsPerTopic": 9,
    "DeduplicationSnapshotInterval": 30,
    "SchemaCompatibilityStrategy": "FULL",
}
# Their Get asks, in the group Topics too, whether what applies is wanted.
ASKS_APPLIED = {"Retention", "InactiveTopicPolicies"}

SCHEMA = {
    "type": "AVRO",
    "schema": '{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}',
    "properties": {},
}


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[GoAdmin]:
    made = GoAdmin(broker.web_url)
    made.call("Namespaces", "CreateNamespace", NAMESPACE)
    yield made
    made.close()


@pytest.fixture
def topic(admin: GoAdmin, request: pytest.FixtureRequest) -> str:
    """A new one."""
    name = f"persistent://{NAMESPACE}/{request.node.name.replace('[', '-').replace(']', '')}"
    admin.call("Topics", "Create", name, 0)
    return name


def refusal(admin: GoAdmin, *call: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        admin.call(*call)
    assert refused.value.reason
    return refused.value


def until(admin: GoAdmin, wanted: Any, *call: Any) -> None:
    """Policies of topics are in force a little later."""
    deadline = time.monotonic() + 30
    while (told := admin.call(*call)) != wanted:
        assert time.monotonic() < deadline, (call, told, wanted)
        time.sleep(0.05)


def test_tenants(admin: GoAdmin) -> None:
    tenant = {"Name": "go-tenant", "adminRoles": ["r"], "allowedClusters": ["standalone"]}
    admin.call("Tenants", "Create", tenant)
    assert refusal(admin, "Tenants", "Create", tenant).code == 409
    assert "go-tenant" in admin.call("Tenants", "List")
    admin.call("Tenants", "Update", {**tenant, "adminRoles": ["r", "s"]})
    assert sorted(admin.call("Tenants", "Get", "go-tenant")["adminRoles"]) == ["r", "s"]
    admin.call("Tenants", "Delete", "go-tenant")
    assert refusal(admin, "Tenants", "Get", "go-tenant").code == 404


def test_clusters(admin: GoAdmin) -> None:
    cluster = {
        "Name": "go-cluster",
        "serviceUrl": "http://127.0.0.1:1",
        "brokerServiceUrl": "pulsar://127.0.0.1:2",
    }
    admin.call("Clusters", "Create", cluster)
    assert {"standalone", "go-cluster"} <= set(admin.call("Clusters", "List"))
    admin.call("Clusters", "Update", {**cluster, "brokerServiceUrl": "pulsar://127.0.0.1:3"})
    told = admin.call("Clusters", "Get", "go-cluster")
    assert told["brokerServiceUrl"] == "pulsar://127.0.0.1:3"
    admin.call("Clusters", "UpdatePeerClusters", "go-cluster", ["standalone"])
    assert admin.call("Clusters", "GetPeerClusters", "go-cluster") == ["standalone"]
    domain = {"ClusterName": "go-cluster", "DomainName": "d", "brokers": ["b:1"]}
    admin.call("Clusters", "CreateFailureDomain", domain)
    admin.call("Clusters", "UpdateFailureDomain", {**domain, "brokers": ["b:1", "b:2"]})
    told = admin.call("Clusters", "GetFailureDomain", "go-cluster", "d")
    assert sorted(told["brokers"]) == ["b:1", "b:2"]
    assert list(admin.call("Clusters", "ListFailureDomains", "go-cluster")) == ["d"]
    admin.call("Clusters", "DeleteFailureDomain", domain)
    admin.call("Clusters", "UpdatePeerClusters", "go-cluster", [])
    admin.call("Clusters", "Delete", "go-cluster")
    assert refusal(admin, "Clusters", "Get", "go-cluster").code == 404


def test_namespaces_come_and_go(admin: GoAdmin) -> None:
    policies = {"message_ttl_in_seconds": 7, "replication_clusters": ["standalone"]}
    names = ["public/go-1", "public/go-3"]
    admin.call("Namespaces", "CreateNamespace", "public/go-1")
    admin.call("Namespaces", "CreateNsWithPolices", "public/go-3", policies)
    bundles = ("Namespaces", "CreateNsWithNumBundles", "public/go-2", 8)
    if broker_kind() == "apache":
        # It wants to be told the clusters, and fails over their absence.
        assert refusal(admin, *bundles).code == 500
    else:
        admin.call(*bundles)
        names.append("public/go-2")
        assert admin.call("Namespaces", "GetPolicies", "public/go-2")["bundles"]["numBundles"] == 8
    assert set(names) <= set(admin.call("Namespaces", "GetNamespaces", "public"))
    assert admin.call("Namespaces", "GetNamespaceMessageTTL", "public/go-3") == 7
    assert admin.call("Namespaces", "GetTopics", "public/go-1") == []
    for name in names:
        admin.call("Namespaces", "DeleteNamespace", name)
    assert refusal(admin, "Namespaces", "GetTopics", "public/go-1").code == 404


@pytest.mark.parametrize("policy", OF_NAMESPACE)
def test_policies_of_namespaces(admin: GoAdmin, policy: str) -> None:
    value, methods = OF_NAMESPACE[policy], admin.methods()["Namespaces"]
    admin.call("Namespaces", f"Set{policy}", NAMESPACE, value)
    assert admin.call("Namespaces", f"Get{policy}", NAMESPACE) == value
    if f"Remove{policy}" in methods:
        admin.call("Namespaces", f"Remove{policy}", NAMESPACE)
        assert admin.call("Namespaces", f"Get{policy}", NAMESPACE) != value


def test_what_namespaces_have_besides(admin: GoAdmin) -> None:
    of = "Namespaces"
    admin.call(of, "SetBacklogQuota", NAMESPACE, QUOTA, "destination_storage")
    assert admin.call(of, "GetBacklogQuotaMap", NAMESPACE)["destination_storage"] == QUOTA
    admin.call(of, "RemoveBacklogQuota", NAMESPACE)
    admin.call(of, "SetDeduplicationStatus", NAMESPACE, True)
    assert admin.call(of, "GetPolicies", NAMESPACE)["deduplicationEnabled"] is True
    admin.call(of, "SetDeduplicationStatus", NAMESPACE, False)
    admin.call(of, "SetEncryptionRequiredStatus", NAMESPACE, False)
    admin.call(of, "UpdateProperties", NAMESPACE, {"k": "v"})
    assert admin.call(of, "GetProperties", NAMESPACE) == {"k": "v"}
    admin.call(of, "RemoveProperties", NAMESPACE)
    assert admin.call(of, "GetProperties", NAMESPACE) == {}
    admin.call(of, "GrantNamespacePermission", NAMESPACE, "role", ["produce", "consume"])
    granted = admin.call(of, "GetNamespacePermissions", NAMESPACE)
    assert sorted(granted["role"]) == ["consume", "produce"]
    admin.call(of, "RevokeNamespacePermission", NAMESPACE, "role")
    assert admin.call(of, "GetNamespacePermissions", NAMESPACE) == {}


def test_bundles(admin: GoAdmin, topic: str, python_client: pulsar.Client) -> None:
    bundle = admin.call("Topics", "GetBundleRange", topic)
    python_client.subscribe(topic, "s").close()
    for method, *more in (
        ("UnloadNamespaceBundle", bundle),
        ("ClearNamespaceBundleBacklog", bundle),
        ("ClearNamespaceBundleBacklogForSubscription", bundle, "s"),
        ("ClearNamespaceBacklog",),
        ("ClearNamespaceBacklogForSubscription", "s"),
        ("UnsubscribeNamespaceBundle", bundle, "s"),
        ("Unload",),
    ):
        admin.call("Namespaces", method, NAMESPACE, *more)
    admin.call("Namespaces", "SplitNamespaceBundle", NAMESPACE, bundle, True)
    bundles = admin.call("Namespaces", "GetPolicies", NAMESPACE)["bundles"]["boundaries"]
    assert not {bundle} & {f"{low}_{high}" for low, high in pairwise(bundles)}


@pytest.mark.parametrize("policy", OF_TOPIC)
def test_policies_of_topics(admin: GoAdmin, topic: str, policy: str) -> None:
    """By the methods of the group Topics, and by those that take a context."""
    value = OF_TOPIC[policy]
    asked = (topic, False) if policy in ASKS_APPLIED else (topic,)
    admin.call("Topics", f"Set{policy}", topic, value)
    until(admin, value, "Topics", f"Get{policy}", *asked)
    assert admin.call("TopicPolicies", f"Get{policy}", topic, True) == value
    admin.call("Topics", f"Remove{policy}", topic)
    until(admin, None, "TopicPolicies", f"Get{policy}", topic, False)
    admin.call("TopicPolicies", f"Set{policy}", topic, value)
    until(admin, value, "TopicPolicies", f"Get{policy}", topic, False)
    admin.call("TopicPolicies", f"Remove{policy}", topic)
    until(admin, None, "TopicPolicies", f"Get{policy}", topic, False)


def test_whether_a_topic_wants_schemas_is_set_and_never_removed(admin: GoAdmin, topic: str) -> None:
    """Apache Pulsar has no way to remove it, either."""
    admin.call("Topics", "SetSchemaValidationEnforced", topic, True)
    until(admin, True, "Topics", "GetSchemaValidationEnforced", topic)
    assert refusal(admin, "Topics", "RemoveSchemaValidationEnforced", topic).code == 405


def test_topics(admin: GoAdmin, topic: str, broker: Broker) -> None:
    of = "Topics"
    partitioned = f"{topic}-partitioned"
    admin.call(of, "Create", partitioned, 2)
    admin.call(of, "Update", partitioned, 4)
    assert admin.call(of, "GetMetadata", partitioned)["partitions"] == 4
    listed, plain = admin.call(of, "List", NAMESPACE)
    assert partitioned in listed
    assert topic in plain
    named = f"{topic}-named"
    admin.call(of, "CreateWithProperties", named, 0, {"a": "1"})
    admin.call(of, "UpdateProperties", named, {"b": "2"})
    assert admin.call(of, "GetProperties", named) == {"a": "1", "b": "2"}
    admin.call(of, "RemoveProperty", named, "a")
    assert admin.call(of, "GetProperties", named) == {"b": "2"}
    assert str(broker.port) in admin.call(of, "Lookup", topic)["brokerUrl"]
    admin.call(of, "Unload", topic)
    for name in (partitioned, named):
        admin.call(of, "Delete", name, True, name == named)
    assert refusal(admin, of, "GetStats", named).code == 404


def test_what_a_topic_has(admin: GoAdmin, topic: str, python_client: pulsar.Client) -> None:
    of = "Topics"
    consumer = python_client.subscribe(topic, "s")
    producer = python_client.create_producer(topic, producer_name="p")
    sent = [producer.send(b"%d" % number) for number in range(5)]
    stats = admin.call(of, "GetStats", topic)
    assert stats["msgInCounter"] == 5
    assert [each["producerName"] for each in stats["publishers"]] == ["p"]
    assert stats["subscriptions"]["s"]["msgBacklog"] == 5
    last = admin.call(of, "GetLastMessageID", topic)
    assert (last["ledgerId"], last["entryId"]) == (sent[-1].ledger_id(), sent[-1].entry_id())
    assert admin.call("Subscriptions", "List", topic) == ["s"]
    consumer.close()
    ended = admin.call(of, "Terminate", topic)
    assert ended["entryId"] == sent[-1].entry_id()


def test_subscriptions(admin: GoAdmin, topic: str, python_client: pulsar.Client) -> None:
    of = "Subscriptions"
    earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    admin.call(of, "Create", topic, "s", earliest)
    assert refusal(admin, of, "Create", topic, "s", earliest).code == 409
    producer = python_client.create_producer(topic)
    sent = [producer.send(b"%d" % number) for number in range(6)]

    def backlog() -> int:
        told: int = admin.call("Topics", "GetStats", topic)["subscriptions"]["s"]["msgBacklog"]
        return told

    assert backlog() == 6
    admin.call(of, "SkipMessages", topic, "s", 2)
    assert backlog() == 4
    start = {"ledgerId": sent[1].ledger_id(), "entryId": sent[1].entry_id(), "partitionIndex": -1}
    admin.call(of, "ResetCursorToMessageID", topic, "s", start)
    assert backlog() == 5
    admin.call(of, "ResetCursorToTimestamp", topic, "s", 1)
    assert backlog() == 6
    admin.call(of, "ClearBacklog", topic, "s")
    assert backlog() == 0
    admin.call(of, "Delete", topic, "s")
    assert admin.call(of, "List", topic) == []
    assert refusal(admin, of, "Delete", topic, "s").code == 404


def test_offload_policies(admin: GoAdmin, topic: str) -> None:
    of = "Namespaces"
    for policy, value in (
        ("OffloadThreshold", 5_000_000_000),
        ("OffloadThresholdInSeconds", 60),
        ("OffloadDeleteLag", 70),
    ):
        assert admin.call(of, f"Get{policy}", NAMESPACE) == -1
        admin.call(of, f"Set{policy}", NAMESPACE, value)
        assert admin.call(of, f"Get{policy}", NAMESPACE) == value
        admin.call(of, f"Set{policy}", NAMESPACE, -1)
    admin.call(of, "ClearOffloadDeleteLag", NAMESPACE)
    assert admin.call(of, "GetOffloadDeleteLag", NAMESPACE) == -1
    of = "Topics"
    assert admin.call(of, "GetOffloadPolicies", topic) is None
    driver = {"managedLedgerOffloadDriver": "filesystem"}
    admin.call(of, "SetOffloadPolicies", topic, driver)
    expected = {
        **driver,
        "offloadersDirectory": "./offloaders",
        "managedLedgerOffloadMaxThreads": 2,
        "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
    }
    until(admin, expected, of, "GetOffloadPolicies", topic)
    admin.call(of, "RemoveOffloadPolicies", topic)
    until(admin, None, of, "GetOffloadPolicies", topic)
    assert admin.call(of, "OffloadStatus", topic)["status"] == "NOT_RUN"


def test_schemas(admin: GoAdmin, topic: str) -> None:
    of = "Schemas"
    name = topic.removeprefix("persistent://")
    assert refusal(admin, of, "GetSchemaInfo", name).code == 404
    admin.call(of, "CreateSchemaByPayload", name, SCHEMA)
    assert admin.call(of, "GetSchemaInfo", name)["type"] == "AVRO"
    assert admin.call(of, "GetSchemaInfoWithVersion", name)["version"] == 0
    assert admin.call(of, "GetSchemaInfoByVersion", name, 0)["type"] == "AVRO"
    assert [each["version"] for each in admin.call(of, "GetAllSchemas", name)] == [0]
    assert admin.call(of, "GetVersionByPayload", name, SCHEMA) == 0
    fits = admin.call(of, "TestCompatibilityWithPostSchemaPayload", name, SCHEMA)
    assert fits["compatibility"] is True
    admin.call(of, "DeleteSchema", name)
    assert refusal(admin, of, "GetSchemaInfo", name).code == 404


def test_the_broker_is_well(admin: GoAdmin) -> None:
    admin.call("Brokers", "HealthCheck")
    for version in ("V1", "V2"):
        admin.call("Brokers", "HealthCheckWithTopicVersion", version)


def test_the_broker_tells_its_statistics(admin: GoAdmin) -> None:
    report = admin.call("BrokerStats", "GetLoadReport")
    assert report["loadReportType"] == "LocalBrokerData"
    for method in ("GetMetrics", "GetMBeans"):
        admin.call("BrokerStats", method)
    admin.call("BrokerStats", "GetAllocatorStats", "default")


def test_an_anti_affinity_group(admin: GoAdmin) -> None:
    namespace = "public/default"
    admin.call("Namespaces", "SetNamespaceAntiAffinityGroup", namespace, "g")
    # The package sends JSON and reads text.
    assert admin.call("Namespaces", "GetNamespaceAntiAffinityGroup", namespace) == '"g"'
    admin.call("Namespaces", "DeleteNamespaceAntiAffinityGroup", namespace)


@pytest.mark.pyxbroker
@pytest.mark.parametrize(
    ("group", "method", "arguments"),
    [
        ("Functions", "GetFunctions", ("public", "default")),
        ("FunctionsWorker", "GetCluster", ()),
        ("Packages", "List", ("function", "public/default")),
        ("Sinks", "ListSinks", ("public", "default")),
        ("Sources", "ListSources", ("public", "default")),
    ],
)
def test_what_there_is_not_is_refused(
    admin: GoAdmin, group: str, method: str, arguments: tuple[str, ...]
) -> None:
    # As a Pulsar without functions (409), or as what is not built.
    assert refusal(admin, group, method, *arguments).code in (404, 409, 501, 503)


def test_the_groups_are_those_that_are_driven_here(admin: GoAdmin) -> None:
    """A new version of the package with another group, or another policy, is noticed."""
    methods = admin.methods()
    assert len(methods) == 16
    for group, policies in (("Namespaces", OF_NAMESPACE), ("TopicPolicies", OF_TOPIC)):
        set_by = {each.removeprefix("Set") for each in methods[group] if each.startswith("Set")}
        assert set_by >= set(policies)
        assert set_by - set(policies) == ELSEWHERE[group]


# Policies that are set in another way than the others, whose Get differs, or that ask for
# something that this broker does not have: replication, groups of bookies.
ELSEWHERE = {
    "Namespaces": set(
        """BacklogQuota BookieAffinityGroup CompactionThreshold DeduplicationStatus
        EncryptionRequiredStatus NamespaceAntiAffinityGroup NamespaceReplicationClusters
        OffloadDeleteLag OffloadThreshold OffloadThresholdInSeconds ReplicatorDispatchRate
        SchemaAutoUpdateCompatibilityStrategy SubscriptionAuthMode""".split()
    ),
    "TopicPolicies": set(
        """AutoSubscriptionCreation BacklogQuota CompactionThreshold DelayedDelivery
        OffloadPolicies ReplicationClusters ReplicatorDispatchRate
        SchemaValidationEnforced""".split()
    ),
}

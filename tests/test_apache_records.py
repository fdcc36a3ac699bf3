"""Records that this broker writes are read by Apache Pulsar's own classes, and the other way round.

REST sets everything that it can; what then stands in metadata and in `__change_events` is decoded
in Java, and its Java fields have to have the values that were set. Back, Java makes objects with a
value in every field that their classes have.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.apache_records import ApacheRecords

from pyxbroker.admin.offload_policies import BODY as OFFLOAD
from pyxbroker.admin.policy_table import (
    DELAYED_DELIVERY,
    DELAYED_DELIVERY_FIELDS,
    OF_SUBSCRIPTION,
    ROWS,
    PolicyEndpoint,
    Row,
)
from pyxbroker.admin.resources.clusters import FIELDS as CLUSTER_DATA
from pyxbroker.admin.resources.clusters import URLS
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.log_reader import read_log
from pyxbroker.broker.topics.messages import read_message
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.policies.change_events import TopicRecord, decode, record_of_key
from pyxbroker.policies.resolver import Record, resolve
from pyxbroker.policies.shapes import CLUSTER, Level
from pyxbroker.policies.table import of_broker
from pyxbroker.policies.values import Policies
from pyxbroker.settings.config import Config
from test_admin_policies import VALUES
from test_admin_topics import DONE, Rest, run
from test_tenants import N, T, begin

pytestmark = pytest.mark.interop

NS = f"{N}/a/x"
DOMAINS = ("persistent", "non-persistent")
QUOTAS = {
    "destination_storage": {"limitSize": 5_001, "limitTime": -1, "policy": "producer_exception"},
    "message_age": {"limitSize": -1, "limitTime": 77, "policy": "consumer_backlog_eviction"},
}
EVERY_ROW = (*ROWS, DELAYED_DELIVERY, OF_SUBSCRIPTION)


def some_value(row: Row, segment: str, numbers: Iterator[int]) -> Any:
    """A value that may be set; no two numbers alike, where any may be."""
    if row.body is None:
        return True
    if segment in VALUES:
        return VALUES[segment]
    if row.body.value is not None:
        return next(numbers)
    return {
        name: True if field.kind == "boolean" else next(numbers)
        for name, field in row.body.fields.items()
    }


def of_java(value: Any) -> Any:
    """Without what is not set; the order of names means nothing."""
    if isinstance(value, dict):
        return {name: of_java(each) for name, each in value.items() if each is not None}
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return sorted(value)
    return value


def at(fields: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = fields
    for name in path:
        found = found["standalone" if name == CLUSTER else name]
    return found


async def put(
    rest: Rest, path: str, endpoint: PolicyEndpoint, row: Row, value: Any, query: str = ""
) -> None:
    """Sets a policy of what a path names."""
    target = f"{path}/{endpoint.segment}?{query}".replace("{subName}", "s1")
    body = json.dumps(value) if row.body is not None else ""
    if endpoint.query:
        target, body = f"{target}&{endpoint.query}={value}", ""
    assert await rest(endpoint.method, target, body) == DONE


async def set_quotas(rest: Rest, path: str, query: str = "") -> None:
    for kind, quota in QUOTAS.items():
        target = f"{path}/backlogQuota?backlogQuotaType={kind}{query}"
        assert await rest("POST", target, json.dumps(quota)) == DONE


async def begin_here(rest: Rest) -> None:
    """Tenant a with namespace a/x."""
    await begin(rest, "other")
    info = {"adminRoles": ["r1", "r2"], "allowedClusters": ["other", "standalone"]}
    assert await rest("PUT", f"{T}/a", json.dumps(info)) == DONE
    assert await rest("PUT", NS) == DONE


async def stored(rest: Rest, path: str) -> bytes:
    found = await rest.broker.node.store.get(path)
    assert found is not None, path
    return found.value


# --- what we write --------------------------------------------------------------------------------


def test_apache_reads_the_policies_of_a_namespace(tmp_path: Path, apache: ApacheRecords) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_here(rest)
        numbers = itertools.count(1_001)
        await set_quotas(rest, NS)
        wanted: dict[tuple[str, ...], Any] = {}
        for row in EVERY_ROW:
            if (endpoint := row.namespace) is not None:
                value = some_value(row, endpoint.segment, numbers)
                await put(rest, NS, endpoint, row, value)
                wanted[endpoint.path] = value
        assert len(wanted) >= 20
        for method, target, body in (
            ("PUT", "properties", {"k": "v"}),
            ("POST", "permissions/r1", ["consume", "produce"]),
            ("POST", "permissions/subscription/s", ["r2"]),
            ("POST", "allowedTopicPropertyKeysForMetrics", ["label"]),
            ("POST", "allowedClusters", ["standalone"]),
        ):
            assert (await rest(method, f"{NS}/{target}", json.dumps(body)))[0] in (200, 204)
        topic = f"{NS.replace('namespaces', 'persistent')}/t"
        assert await rest("PUT", topic) == DONE
        assert await rest("POST", f"{topic}/permissions/r3", '["sinks"]') == DONE
        told = of_java(apache.read("Policies", await stored(rest, paths.namespace_policies("a/x"))))
        for path, value in wanted.items():
            assert at(told, path) == of_java(value), path
        for kind, quota in QUOTAS.items():
            assert told["backlog_quota_map"][kind] == {"limit": quota["limitSize"]} | quota
        assert told["properties"] == {"k": "v"}
        assert told["auth_policies"] == {
            "namespaceAuthentication": {"r1": ["consume", "produce"]},
            "topicAuthentication": {"persistent://a/x/t": {"r3": ["sinks"]}},
            "subscriptionAuthentication": {"s": ["r2"]},
        }
        assert told["allowed_topic_property_keys_for_metrics"] == ["label"]
        assert (told["replication_clusters"], told["allowed_clusters"]) == (["standalone"],) * 2
        assert told["bundles"] == (await rest("GET", f"{NS}/bundles"))[1]
        assert told["deleted"] is False

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_global", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_apache_reads_the_policies_of_a_topic(
    tmp_path: Path, apache: ApacheRecords, domain: str, is_global: bool
) -> None:
    query = f"isGlobal={str(is_global).lower()}"

    async def scenario(rest: Rest) -> None:
        await begin_here(rest)
        topic = f"/admin/v2/{domain}/a/x/t"
        assert await rest("PUT", f"{topic}/partitions", "2") == DONE
        numbers = itertools.count(1_001)
        await set_quotas(rest, topic, f"&{query}")
        wanted: dict[str, Any] = {}
        for row in EVERY_ROW:
            if (endpoint := row.topic) is None:
                continue
            value = some_value(row, endpoint.segment, numbers)
            await put(rest, topic, endpoint, row, value, query)
            if row is OF_SUBSCRIPTION:
                value = {"s1": {"dispatchRate": value}}
            if row is DELAYED_DELIVERY:
                wanted |= {DELAYED_DELIVERY_FIELDS[name]: each for name, each in value.items()}
            else:
                wanted[endpoint.path[0]] = value
        assert len(wanted) >= 20
        value, key = await last_event(rest)
        event = of_java(apache.read("PulsarEvent", value))
        assert record_of_key(key) == (TopicName.get(f"{domain}://a/x/t"), is_global)
        assert (event["eventType"], event["actionType"]) == ("TOPIC_POLICY", "UPDATE")
        assert event.get("replicateTo") == (None if is_global else ["standalone"])
        policies = event["topicPoliciesEvent"].pop("policies")
        assert event["topicPoliciesEvent"] == {
            "domain": domain,
            "tenant": "a",
            "namespace": "x",
            "topic": "t",
        }
        assert policies.pop("backLogQuotaMap") == {
            kind: {"limit": quota["limitSize"]} | quota for kind, quota in QUOTAS.items()
        }
        assert policies == of_java(wanted) | {"isGlobal": is_global}

    run(tmp_path, scenario)


def test_apache_reads_offload_policies(tmp_path: Path, apache: ApacheRecords) -> None:
    numbers = itertools.count(1_001)
    wanted: dict[str, Any] = {
        name: field.choices[-1]
        if field.choices
        else name
        if field.kind == "string"
        else next(numbers)
        for name, field in OFFLOAD.fields.items()
    }
    wanted |= {"managedLedgerOffloadDriver": "aws-s3"}
    wanted |= {"managedLedgerExtraConfigurations": {"k": "v"}}

    async def scenario(rest: Rest) -> None:
        await begin_here(rest)
        topic = f"{NS.replace('namespaces', 'persistent')}/t"
        assert await rest("PUT", topic) == DONE
        for base in (NS, topic):
            assert await rest("POST", f"{base}/offloadPolicies", json.dumps(wanted)) == DONE
        told = of_java(apache.read("Policies", await stored(rest, paths.namespace_policies("a/x"))))
        assert told["offload_policies"] == wanted
        value, _ = await last_event(rest)
        event = of_java(apache.read("PulsarEvent", value))
        assert event["topicPoliciesEvent"]["policies"]["offloadPolicies"] == wanted

    run(tmp_path, scenario)


async def last_event(rest: Rest) -> tuple[bytes, str]:
    """The newest message in `__change_events` of a/x: its value, its key."""
    name = TopicName.get("persistent://a/x/__change_events")
    events = await rest.broker.topics.loader.get(name, create=False)
    assert isinstance(events, PersistentTopic)
    entries = [data async for _, data in read_log(events.managed_ledger, Position(-1, -1), "it")]
    metadata, value = read_message(entries[-1])
    return value, metadata.partition_key


def test_apache_reads_tenants_clusters_and_partitioned_topics(
    tmp_path: Path, apache: ApacheRecords
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_here(rest)
        told = of_java(apache.read("TenantInfo", await stored(rest, paths.tenant("a"))))
        wanted = {"adminRoles": ["r1", "r2"], "allowedClusters": ["other", "standalone"]}
        assert told == wanted
        told = of_java(apache.read("ClusterData", await stored(rest, paths.cluster("standalone"))))
        assert (told["serviceUrl"], told["brokerServiceUrl"]) == (
            "http://here:2",
            "pulsar://here:1",
        )
        assert told["brokerClientTlsTrustStoreType"] == "JKS"
        await clusters_and_groups(rest, apache)
        for domain in DOMAINS:
            target = f"/admin/v2/{domain}/a/x/t/partitions"
            body = json.dumps({"partitions": 3, "properties": {"k": "v"}})
            kind = "application/vnd.partitioned-topic-metadata+json"
            assert await rest("PUT", target, body, kind=kind) == DONE
            node = await stored(rest, paths.partitioned_topic("a/x", "t", domain))
            told = apache.read("PartitionedTopicMetadata", node)
            assert told == {"partitions": 3, "deleted": False, "properties": {"k": "v"}}
            # One that more partitions than a write takes are being made for.
            whole = json.loads(node) | {"beingMade": True, "growingTo": 4}
            assert apache.read("PartitionedTopicMetadata", json.dumps(whole).encode()) == told

    run(tmp_path, scenario)


async def clusters_and_groups(rest: Rest, apache: ApacheRecords) -> None:
    """What REST makes of clusters, failure domains, resource groups and split bundles."""
    of_cluster: dict[str, Any] = {
        name: {str: name, bool: True, list: ["other"]}[kind] for name, kind in CLUSTER_DATA.items()
    }
    of_cluster |= {name: beginnings[0] + name for name, (beginnings, _) in URLS.items()}
    of_cluster["proxyProtocol"] = "SNI"
    assert await rest("PUT", "/admin/v2/clusters/c", json.dumps(of_cluster)) == (200, None)
    assert apache.read("ClusterData", await stored(rest, paths.cluster("c"))) == of_cluster
    domain = {"brokers": ["b1", "b2"]}
    assert await rest("POST", "/admin/v2/clusters/c/failureDomains/d", json.dumps(domain)) == DONE
    assert (
        apache.read("FailureDomain", await stored(rest, paths.failure_domain("c", "d"))) == domain
    )
    group = {
        "publishRateInMsgs": 1,
        "publishRateInBytes": 1 << 40,
        "dispatchRateInMsgs": 3,
        "dispatchRateInBytes": -1,
    }
    assert await rest("PUT", "/admin/v2/resourcegroups/g", json.dumps(group)) == DONE
    assert apache.read("ResourceGroup", await stored(rest, paths.resource_group("g"))) == group
    assert await rest("POST", f"{NS}/resourcegroup/g") == DONE
    told = apache.read("Policies", await stored(rest, paths.namespace_policies("a/x")))
    assert told["resource_group_name"] == "g"
    assert await rest("PUT", f"{NS}/0x00000000_0x40000000/split") == DONE
    assert await rest("POST", f"{NS}/antiAffinity", "g") == DONE
    bookies = {
        "bookkeeperAffinityGroupPrimary": "p",
        "bookkeeperAffinityGroupSecondary": "s",
    }
    affinity = f"{NS}/persistence/bookieAffinity"
    assert await rest("POST", affinity, json.dumps(bookies)) == DONE
    local = apache.read("LocalPolicies", await stored(rest, paths.local_policies("a/x")))
    assert local == {
        "bundles": (await rest("GET", f"{NS}/bundles"))[1],
        "bookieAffinityGroup": bookies,
        "namespaceAntiAffinityGroup": "g",
        "migrated": False,
    }
    assert local["bundles"]["numBundles"] == 5


# --- what Apache writes ---------------------------------------------------------------------------


def test_every_field_of_a_topic_that_apache_writes_is_read(apache: ApacheRecords) -> None:
    for is_global in (False, True):
        written = apache.write(
            "PulsarEvent",
            {
                "eventType": "TOPIC_POLICY",
                "actionType": "INSERT",
                "topicPoliciesEvent.domain": "persistent",
                "topicPoliciesEvent.tenant": "a",
                "topicPoliciesEvent.namespace": "x",
                "topicPoliciesEvent.topic": "t\N{SNOWMAN}",
                "topicPoliciesEvent.policies.isGlobal": is_global,
            },
        )
        fields = written.fields["topicPoliciesEvent"]["policies"]
        del fields["isGlobal"]
        name = TopicName.get("persistent://a/x/t\N{SNOWMAN}")
        assert decode(written.value) == TopicRecord(name, is_global, fields)


NAMESPACE = {
    "auth_policies.namespaceAuthentication": {"r1": ["produce", "consume"]},
    "auth_policies.subscriptionAuthentication": {"s": ["r2"]},
    "autoTopicCreationOverride.topicType": "partitioned",
    "backlog_quota_map": QUOTAS,
    "bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
    "deleted": False,
    "properties": {"k": "v"},
    "replication_clusters": ["standalone"],
    "subscription_types_enabled": ["Shared", "Failover"],
    **{
        rates: {"standalone": {f"{kind}ThrottlingRateInMsg": n, f"{kind}ThrottlingRateInByte": 5}}
        for n, (rates, kind) in enumerate(
            (
                ("publishMaxMessageRate", "publish"),
                ("topicDispatchRate", "dispatch"),
                ("subscriptionDispatchRate", "dispatch"),
                ("replicatorDispatchRate", "dispatch"),
            ),
            start=31,
        )
    },
    "clusterSubscribeRate": {
        "standalone": {"subscribeThrottlingRatePerConsumer": 41, "ratePeriodInSecond": 42}
    },
}


def test_the_policies_of_a_namespace_that_apache_writes_are_read(
    tmp_path: Path, apache: ApacheRecords
) -> None:
    written = apache.write("Policies", NAMESPACE)
    fields = of_java(written.fields)

    async def scenario(rest: Rest) -> None:
        await begin_here(rest)
        await rest.broker.node.store.put(paths.namespace_policies("a/x"), written.value)
        for row in EVERY_ROW:
            if (endpoint := row.namespace) is not None:
                status, told = await rest("GET", f"{NS}/{endpoint.segment}")
                assert (status, of_java(told)) == (200, at(fields, endpoint.path)), endpoint.segment
        quotas = (await rest("GET", f"{NS}/backlogQuotaMap"))[1]
        assert quotas == fields["backlog_quota_map"]
        grants = fields["auth_policies"]["namespaceAuthentication"]
        told = (await rest("GET", f"{NS}/permissions"))[1]
        assert of_java(told) == grants == {"r1": ["consume", "produce"]}
        assert await rest("GET", f"{NS}/permissions/subscription") == (200, {"s": ["r2"]})
        assert await rest("GET", f"{NS}/properties") == (200, {"k": "v"})
        assert await rest("GET", f"{NS}/bundles") == (200, fields["bundles"])
        # And all that the broker keeps of it is taken over.
        record = Record(Level.NAMESPACE, "a/x", json.loads(written.value))
        policies, refusals = resolve([record], of_broker(Config()), Policies(), "standalone")
        assert refusals == []
        held = policies.message_ttl_s, policies.producers_max, policies.retention.time_s
        assert held == (
            fields["message_ttl_in_seconds"],
            fields["max_producers_per_topic"],
            fields["retention_policies"]["retentionTimeInMinutes"] * 60,
        )
        # A change by REST leaves every other field as Apache wrote it.
        assert await rest("POST", f"{NS}/messageTTL", "5") == DONE
        node = await stored(rest, paths.namespace_policies("a/x"))
        assert of_java(apache.read("Policies", node)) == fields | {"message_ttl_in_seconds": 5}

    run(tmp_path, scenario)


def test_tenants_clusters_and_partitioned_topics_that_apache_writes_are_read(
    tmp_path: Path, apache: ApacheRecords
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_here(rest)
        store = rest.broker.node.store
        for kind, path, target in (
            ("TenantInfo", paths.tenant("b"), f"{T}/b"),
            ("ClusterData", paths.cluster("c"), "/admin/v2/clusters/c"),
            (
                "FailureDomain",
                paths.failure_domain("c", "d"),
                "/admin/v2/clusters/c/failureDomains/d",
            ),
            ("ResourceGroup", paths.resource_group("g"), "/admin/v2/resourcegroups/g"),
            (
                "PartitionedTopicMetadata",
                paths.partitioned_topic("a/x", "p"),
                "/admin/v2/persistent/a/x/p/partitions",
            ),
        ):
            written = apache.write(kind, {"deleted": False} if "Topic" in kind else {})
            await store.put(path, written.value)
            assert await rest("GET", target) == (200, written.fields)
        bundles = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
        local = apache.write("LocalPolicies", {"bundles": bundles})
        await store.put(paths.local_policies("a/x"), local.value)
        assert await rest("GET", f"{NS}/bundles") == (200, bundles)

    run(tmp_path, scenario)

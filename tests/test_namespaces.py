"""REST of namespaces, in Pulsar's words; statuses and texts are Apache Pulsar 4.2.4's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.admin import grant_checks
from pyxbroker.admin.grant_checks import ENTRIES_MAX
from pyxbroker.admin.resources.namespaces import CLUSTERS_MAX, check_allowed
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import topic_counts
from pyxbroker.metadata import paths
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MUST_NOT_EXIST, MetadataError, Put
from pyxbroker.policies.grants import AUTH, ROLES, SUBSCRIPTIONS
from pyxbroker.policies.grants import TOPICS as OF_TOPICS
from pyxbroker.proto import PulsarApi as pb
from test_admin_topics import DONE, Rest, run
from test_tenants import HERE, N, T, begin

A = f"{N}/a/x"
TOPICS = "/admin/v2/persistent/a/x"
NON_PERSISTENT = "/admin/v2/non-persistent/a/x"
BUNDLES = {
    "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
    "numBundles": 4,
}
NOT_EMPTY = (409, "Cannot delete non empty namespace")
FORCED = {"forceDeleteNamespaceAllowed": True}
THREE_BOOKIES = json.dumps(
    {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 3}
)


async def begin_with(rest: Rest, *names: str) -> None:
    """Tenant a, with namespaces in it."""
    await begin(rest)
    assert await rest("PUT", f"{T}/a", HERE) == DONE
    for each in names or ("x",):
        assert await rest("PUT", f"{N}/a/{each}") == DONE


async def below(rest: Rest, path: str = "/") -> list[str]:
    """All paths in metadata that have the namespace a/x in them."""
    store = rest.broker.node.store
    found = [path] if "/a/x" in path else []
    for each in await store.children(path):
        found += await below(rest, path.rstrip("/") + "/" + each)
    return found


# --- made and told ----------------------------------------------------------------------------


def test_a_namespace_is_made_told_and_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest.reason("PUT", A) == (409, "Namespace already exists")
        assert await rest("GET", f"{N}/a") == (200, ["a/x"])
        status, policies = await rest("GET", A)
        assert (status, policies["bundles"]) == (200, BUNDLES)
        assert policies["replication_clusters"] == ["standalone"]
        assert policies["is_allow_auto_update_schema"] is True
        assert policies["deleted"] is False
        assert await rest("GET", f"{A}/bundles") == (200, BUNDLES)
        assert await rest("DELETE", A) == DONE
        assert await rest.reason("GET", A) == (404, "Namespace does not exist")
        assert await rest.reason("DELETE", A) == (404, "Namespace a/x does not exist.")
        assert await below(rest) == []

    run(tmp_path, scenario)


def test_policies_are_told_whole_and_in_pulsars_order(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        cluster = json.loads(
            Path(__file__).with_name("data").joinpath("pulsar_cluster.json").read_text()
        )
        pulsars = json.loads(cluster["/admin/policies/public/default"])
        pulsars |= {"bundles": BUNDLES, "is_allow_auto_update_schema": True}
        _, policies = await rest("GET", A)
        assert policies == pulsars
        assert list(policies) == [*(each for each in pulsars if each not in AFTER), *AFTER]
        # One of another broker's says little, and what nobody here knows.
        record = b'{"max_topics_per_namespace":3,"of_tomorrow":{"a":1},"persistence":null}'
        await rest.broker.node.store.put(paths.namespace_policies("a/x"), record)
        bundles = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
        local = json.dumps({"bundles": bundles}).encode()
        await rest.broker.node.store.put(paths.local_policies("a/x"), local)
        _, policies = await rest("GET", A)
        wanted = {"max_topics_per_namespace": 3, "of_tomorrow": {"a": 1}, "bundles": bundles}
        assert policies == pulsars | wanted
        assert await rest("GET", f"{A}/bundles") == (200, bundles)

    run(tmp_path, scenario)


AFTER = (
    "is_allow_auto_update_schema",
    "schema_validation_enforced",
    "subscription_types_enabled",
    "properties",
    "migrated",
)


@pytest.mark.parametrize(
    ("body", "boundaries"),
    [
        ("null", BUNDLES["boundaries"]),
        ('{"bundles":{"numBundles":0}}', BUNDLES["boundaries"]),
        ('{"bundles":{"numBundles":-1}}', BUNDLES["boundaries"]),
        (
            '{"bundles":{"numBundles":3,"boundaries":[]}}',
            ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"],
        ),
        # Boundaries say more than their number, but for none.
        ('{"bundles":{"boundaries":["0x00000000","0xffffffff"]}}', BUNDLES["boundaries"]),
        (
            '{"bundles":{"numBundles":5,"boundaries":["0xffffffff","0x40000000","0"]}}',
            ["0x00000000", "0x40000000", "0xffffffff"],
        ),
        # As older clients send it.
        ('{"boundaries":["0x00000000","0xffffffff"],"numBundles":1}', BUNDLES["boundaries"]),
    ],
)
def test_bundles_of_a_new_namespace(tmp_path: Path, body: str, boundaries: list[str]) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", f"{N}/a/y", body) == DONE
        bundles = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
        assert await rest("GET", f"{N}/a/y/bundles") == (200, bundles)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"bundles": {"numBundles": 2, "boundaries": ["0x00000000", "0x80000000"]}}, 400,
         "Input bundles do not cover the whole hash range. first:0x00000000, last:0x80000000"),
        ({"bundles": {"numBundles": 2, "boundaries": ["zz", "0xffffffff"]}}, 400, "0x40000000"),
        ({"bundles": {"numBundles": 4097}}, 400, "at most 4096"),
        ({"bundles": {"numBundles": 5000000000}}, 400, "numBundles must be a whole number"),
        ({"bundles": {"numBundles": "2x"}}, 400, "must be a whole number"),
        ({"message_ttl_in_seconds": -1}, 412, "Invalid value for message TTL"),
        ({"retention_policies": {"retentionTimeInMinutes": -2, "retentionSizeInMB": 7}}, 400,
         "Invalid retention policy: time limit must be >= -1"),
        ({"retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": -3}}, 400,
         "Invalid retention policy: size limit must be >= -1"),
        ({"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 7}}, 400,
         "Setting a single time or size limit to 0 is invalid"),
        ({"persistence": {"bookkeeperEnsemble": 0, "bookkeeperWriteQuorum": 1,
                          "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0}}, 400,
         "Bookkeeper-Ensemble must be <= 2 and > 0."),
        ({"persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2,
                          "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0}}, 400,
         "Bookkeeper Ensemble (1) >= WriteQuorum (2) >= AckQuorum (1)"),
        ({"persistence": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 1,
                          "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0}}, 400,
         "Bookkeeper-Ensemble must be <= 2 and > 0."),
        ({"retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1},
          "backlog_quota_map": {"destination_storage": {
              "limitSize": 2 << 20, "policy": "producer_exception"}}}, 412,
         "Retention Quota must exceed configured backlog quota for namespace."),
        ({"retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
          "backlog_quota_map": {"message_age": {
              "limitTime": 600, "policy": "producer_exception"}}}, 412,
         "Retention Quota must exceed configured backlog quota for namespace."),
        ({"autoTopicCreationOverride": {"allowAutoTopicCreation": True,
                                        "topicType": "partitioned"}}, 412,
         "[defaultNumPartitions] cannot be null when the type is partitioned."),
        ({"clusterSubscribeRate": {"standalone": {
            "subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 90_000}}}, 412,
         "ratePeriodInSecond must be <= 86400."),
        ({"replication_clusters": ["other"]}, 403,
         "Cluster [other] is not in the list of allowed clusters list for tenant [a]"),
        ({"replication_clusters": ["standalone"], "allowed_clusters": ["other"]}, 400,
         "[a/y] All replication clusters should be included in allowed clusters."
         " Repl clusters: [standalone], allowed clusters: [other]"),
        ({"max_topics_per_namespace": "a"}, 400, "max_topics_per_namespace must be a whole number"),
        ({"properties": []}, 400, "properties must be an object"),
        ({"replication_clusters": [[]]}, 400, "The list of clusters must be a list of strings"),
        ({"subscription_types_enabled": ["None"]}, 400, "A name must be one of Exclusive"),
        ([], 400, "must be a JSON object"),
    ],
)  # fmt: skip
def test_no_namespace(tmp_path: Path, body: Any, status: int, reason: str) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        found = await rest.reason("PUT", f"{N}/a/y", json.dumps(body))
        assert found[0] == status and reason in found[1]
        assert await rest("GET", f"{N}/a") == (200, ["a/x"])

    run(tmp_path, scenario, managedLedgerMaxEnsembleSize=2)


def test_a_new_namespace_has_the_policies_that_its_body_says(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        body = {
            "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7},
            "backlog_quota_map": {
                "destination_storage": {"limit": 5, "policy": "producer_exception"}
            },
            "auth_policies": {"namespace_auth": {"r": ["produce"]}},
            "properties": {"a": "b"},
            "deleted": True,
            "unknown": 1,
        }
        assert await rest("PUT", f"{N}/a/y", json.dumps(body)) == DONE
        policies = (await rest("GET", f"{N}/a/y"))[1]
        assert policies["retention_policies"] == body["retention_policies"]
        assert policies["properties"] == {"a": "b"}
        assert (policies["deleted"], "unknown" in policies) == (False, False)
        assert await rest("GET", f"{N}/a/y/permissions") == (200, {"r": ["produce"]})
        topic = await rest.broker.topic("persistent://a/y/t")
        assert topic.policies.retention == (300, 7 << 20)

    run(tmp_path, scenario)


MANY = ENTRIES_MAX + 1


@pytest.mark.parametrize(
    ("grants", "reason"),
    [
        ({ROLES: {"r": ["produce"] * MANY}}, "1001 actions are more than the 1000 allowed."),
        ({ROLES: {"r": ["fly"]}}, "An action must be one of produce,"),
        ({ROLES: {"r": "produce"}}, "actions must be a list, not 'produce'."),
        ({ROLES: {"r" * 1_025: []}}, "The name is too long: it has 1025 bytes"),
        ({ROLES: [1]}, "namespace_auth must be an object, not [1]."),
        (
            {ROLES: {str(n): [] for n in range(MANY)}},
            "namespace_auth has 1001 names; the maximum is 1000.",
        ),
        ({OF_TOPICS: {"t": {"r": ["produce"] * MANY}}}, "1001 actions are more"),
        ({OF_TOPICS: {"t": {str(n): [] for n in range(MANY)}}}, "destination_auth has 1001 names"),
        ({OF_TOPICS: {str(n): {} for n in range(MANY)}}, "destination_auth has 1001 names"),
        ({OF_TOPICS: {"t": []}}, "destination_auth must be an object, not []."),
        ({SUBSCRIPTIONS: {"s": [str(n) for n in range(MANY)]}}, "Roles has 1001 strings"),
        ({SUBSCRIPTIONS: {"s": [[]]}}, "Roles must be a list of strings, not [[]]."),
        ({SUBSCRIPTIONS: {str(n): [] for n in range(MANY)}}, "subscription_auth_roles has 1001"),
    ],
)
def test_a_new_namespace_grants_no_more_than_requests_that_grant_may(
    tmp_path: Path, grants: Any, reason: str
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        status, found = await rest.reason("PUT", f"{N}/a/y", json.dumps({AUTH: grants}))
        assert status == 400 and found.startswith(reason)
        assert await rest("GET", f"{N}/a") == (200, ["a/x"])

    run(tmp_path, scenario)


def test_grants_of_a_new_namespace_are_looked_at_in_slices_and_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        looks = 0

        class Counted(Slices):
            async def pause(self) -> None:
                nonlocal looks
                looks += 1

        monkeypatch.setattr(grant_checks, "Slices", Counted)
        roles = {str(n): ["produce", "consume", "produce"] for n in range(100)}
        body: dict[str, Any] = {
            ROLES: roles,
            OF_TOPICS: {f"persistent://a/y/t{n}": roles for n in range(10)},
            SUBSCRIPTIONS: {"s": ["r", "r"]},
            "unknown": [1],
        }
        assert await rest("PUT", f"{N}/a/y", json.dumps({AUTH: body})) == DONE
        assert looks == 1_101
        once = {role: ["produce", "consume"] for role in roles}
        assert (await rest("GET", f"{N}/a/y"))[1][AUTH] == {
            ROLES: once,
            SUBSCRIPTIONS: {"s": ["r"]},
            OF_TOPICS: dict.fromkeys(body[OF_TOPICS], once),
        }

    run(tmp_path, scenario)


def test_each_cluster_is_looked_for_once_among_those_of_its_tenant() -> None:
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    def names() -> list[str]:
        return [Name(f"c{n}") for n in range(CLUSTERS_MAX)]

    check_allowed(names(), {"allowedClusters": names()}, "a")
    assert compared < 2 * CLUSTERS_MAX


def test_no_more_namespaces_than_a_tenant_may_have(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        made = await asyncio.gather(*(rest("PUT", f"{N}/a/n{n}") for n in range(5)))
        full: Any = (412, {"reason": "Exceed the maximum number of namespace in tenant :a"})
        # The limit and one more, as in Pulsar.
        assert sorted(made, key=str) == [DONE] * 2 + [full] * 3

    run(tmp_path, scenario, maxNamespacesPerTenant=2)


def test_how_many_bundles_is_a_setting(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert (await rest("GET", f"{A}/bundles"))[1]["numBundles"] == 7

    run(tmp_path, scenario, defaultNumberOfNamespaceBundles=7)


# --- what is not there ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/none", "none/none"])
def test_nothing_comes_to_be_where_there_is_no_namespace(tmp_path: Path, name: str) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        store = rest.broker.node.store

        async def tree(path: str = "/") -> list[str]:
            found = [path]
            for each in await store.children(path):
                found += await tree(path.rstrip("/") + "/" + each)
            return found

        before = await tree()
        missing = (404, "Namespace not found")
        for domain in ("persistent", "non-persistent"):
            topics = f"/admin/v2/{domain}/{name}"
            for method, path, body in (
                ("GET", f"/lookup/v2/topic/{domain}/{name}/t", ""),
                ("GET", f"{topics}/t/partitions", ""),
                ("GET", f"{topics}/t/partitions?checkAllowAutoCreation=true", ""),
                ("PUT", f"{topics}/t", ""),
                ("PUT", f"{topics}/t/partitions", "2"),
                ("DELETE", f"{topics}/t/subscription/s", ""),
            ):
                assert await rest.reason(method, path, body) == missing
            assert (await rest("POST", f"{topics}/t/partitions", "2"))[0] == 409
            for path in (topics, f"{topics}/partitioned", f"{N}/{name}", f"{N}/{name}/topics"):
                assert await rest.reason("GET", path) == (404, "Namespace does not exist")
        client = await rest.broker.client()
        for domain in ("persistent", "non-persistent"):
            for local in ("t", "t-partition-0", "__change_events"):
                topic = f"{domain}://{name}/{local}"
                lookup = pb.CommandLookupTopic(topic=topic, request_id=0)
                answer = await client.request(lookup, "lookupTopicResponse")
                assert (answer.error, "Namespace not found" in answer.message) == (
                    pb.TopicNotFound,
                    True,
                )
                asked = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=0)
                asked.metadata_auto_creation_enabled = True
                answer = await client.request(asked, "partitionMetadataResponse")
                assert (answer.error, "Namespace not found" in answer.message) == (
                    pb.TopicNotFound,
                    True,
                )
                assert (await client.produce(topic=topic)).error == pb.TopicNotFound
                assert (await client.subscribe(topic=topic, permits=0)).error == pb.TopicNotFound
        asked = pb.CommandGetTopicsOfNamespace(namespace=name, request_id=0)
        assert not (await client.request(asked, "getTopicsOfNamespaceResponse")).topics
        watch = pb.CommandWatchTopicList(namespace=name, request_id=0, watcher_id=1)
        watch.topics_pattern = f"persistent://{name}/.*"
        assert not (await client.request(watch, "watchTopicListSuccess")).topic
        assert await tree() == before

    run(tmp_path, scenario)


# --- deleted ----------------------------------------------------------------------------------


def test_a_namespace_with_topics_stays(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        for path, body in (
            (f"{TOPICS}/t", ""),
            (f"{TOPICS}/p/partitions", "2"),
            (f"{NON_PERSISTENT}/p/partitions", "2"),
        ):
            assert await rest("PUT", path, body) == DONE
            assert await rest.reason("DELETE", A) == NOT_EMPTY
            assert (await rest("GET", A))[1]["deleted"] is False
            assert await rest("DELETE", path) == DONE
        client = await rest.broker.client()
        await client.produce(topic="non-persistent://a/x/used")
        assert await rest.reason("DELETE", A) == NOT_EMPTY
        forbidden = (405, "Broker doesn't allow forced deletion of namespaces")
        assert await rest.reason("DELETE", f"{A}?force=true") == forbidden
        assert await rest.reason("DELETE", f"{N}/a/none?force=true") == forbidden

    run(tmp_path, scenario)


def test_all_of_a_namespace_goes_with_it(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        store = rest.broker.node.store
        client = await rest.broker.client()
        await client.subscribe(topic="persistent://a/x/t")
        await client.produce(topic="non-persistent://a/x/np")
        for path, body in (
            (f"{TOPICS}/p/partitions", "3"),
            (f"{NON_PERSISTENT}/q/partitions", "2"),
        ):
            assert await rest("PUT", path, body) == DONE
        await rest.broker.topic("persistent://a/x/__change_events")
        await store.put(paths.local_policies("a/x"), b"{}")
        await store.put(paths.schemas("a/x") + "/t", b"locator")
        await store.put(paths.namespace_policies("a/xx"), b"{}")
        assert await rest("DELETE", f"{A}?force=true") == DONE
        assert [each for each in await below(rest) if "/a/xx" not in each] == []
        assert await store.exists(paths.namespace_policies("a/xx"))
        assert list(rest.broker.topics.registry) == []
        assert (await client.receive("close_consumer")).consumer_id == 1
        assert (await client.receive("close_producer")).producer_id == 1
        # It may come again, with nothing of it.
        assert await rest("PUT", A) == DONE
        assert await rest("GET", f"{A}/topics?mode=ALL&includeSystemTopic=true") == (200, [])
        assert (await client.produce(2, topic="persistent://a/x/t")).producer_name

    run(tmp_path, scenario, **FORCED)


@pytest.mark.parametrize("force", ["false", "true"])
def test_a_deletion_looks_at_no_topic_of_another_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: str
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", "/admin/v2/namespaces/a/empty") == DONE
        assert await rest("PUT", f"{TOPICS}/t") == DONE
        await rest.broker.topic("non-persistent://a/x/t")
        with monkeypatch.context() as patched:
            patched.delattr(type(rest.broker.topics.registry), "__iter__")
            assert await rest("DELETE", f"/admin/v2/namespaces/a/empty?force={force}") == DONE
            names = (await rest("GET", "/admin/v2/non-persistent/a/x"))[1]
            assert names == ["non-persistent://a/x/t"]
            assert await rest("PUT", f"{A}/unload") == DONE

    run(tmp_path, scenario, **FORCED)


def test_the_resource_quotas_of_its_bundles_go_with_a_namespace(tmp_path: Path) -> None:
    quotas = "/admin/v2/resource-quotas"
    lower, upper = f"{quotas}/a/x/0x00000000_0x40000000", f"{quotas}/a/x/0xc0000000_0xffffffff"
    other = f"{quotas}/a/other/0x00000000_0x40000000"
    low = json.dumps({"msgRateIn": 7})

    async def scenario(rest: Rest) -> None:
        await begin_with(rest, "x", "other")
        _, usual = await rest("GET", lower)
        for each in (lower, upper, other):
            assert await rest("POST", each, low) == DONE
        # The half of a bundle has none of its own; the one of the whole stays, and goes, too.
        assert await rest("PUT", f"{A}/0x00000000_0x40000000/split") == DONE
        assert await rest("DELETE", A) == DONE
        assert await below(rest) == []
        assert (await rest("GET", other))[1]["msgRateIn"] == 7
        assert await rest("PUT", A) == DONE
        assert await rest("GET", lower) == (200, usual)
        # Nor is anything left of a tenant.
        for each in ("x", "other"):
            assert await rest("DELETE", f"{N}/a/{each}") == DONE
        assert await rest("DELETE", f"{T}/a") == DONE
        assert not await rest.broker.node.store.exists(paths.resource_quotas("a"))

    run(tmp_path, scenario)


def test_topics_of_the_broker_itself_do_not_keep_a_namespace(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        await rest.broker.topic("persistent://a/x/__change_events")
        await rest.broker.topic("persistent://a/x/__transaction_buffer_snapshot")
        assert await rest("DELETE", A) == DONE
        assert await below(rest) == []

    run(tmp_path, scenario)


def test_a_namespace_that_is_being_deleted_refuses_everything(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", f"{TOPICS}/p/partitions", "2") == DONE
        await rest.broker.node.store.put(paths.namespace_policies("a/x"), b'{"deleted":true}')
        gone = (404, "Namespace is deleted")
        assert await rest.reason("PUT", f"{TOPICS}/t") == gone
        assert await rest.reason("PUT", f"{TOPICS}/u/partitions", "2") == gone
        status, reason = await rest.reason("POST", f"{TOPICS}/p/partitions", "3")
        assert (status, "Namespace is deleted" in reason) == (404, True)
        assert await rest.reason("PUT", A) == (409, "Namespace already exists")
        client = await rest.broker.client()
        for topic in (
            "persistent://a/x/t",
            "non-persistent://a/x/t",
            "persistent://a/x/p-partition-0",
        ):
            assert (await client.produce(topic=topic)).error == pb.TopicNotFound
            assert (await client.subscribe(topic=topic, permits=0)).error == pb.TopicNotFound
            lookup = pb.CommandLookupTopic(topic=topic, request_id=0)
            answer = await client.request(lookup, "lookupTopicResponse")
            assert answer.error == pb.TopicNotFound
        assert list(rest.broker.topics.registry) == []

    run(tmp_path, scenario)


def test_a_deletion_that_was_interrupted_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(MetadataError):
        """The broker ends here."""

    async def prepare(rest: Rest) -> None:
        assert await rest("PUT", A) == DONE
        for path, body in ((f"{TOPICS}/t", ""), (f"{TOPICS}/p/partitions", "2")):
            assert await rest("PUT", path, body) == DONE
        await rest.broker.topic("persistent://a/x/__change_events")
        store = rest.broker.node.store
        await store.put(paths.local_policies("a/x"), b"{}")
        await store.put(paths.schemas("a/x") + "/t", b"locator")

    async def scenario(rest: Rest) -> None:
        await begin_with(rest, "other")
        store = rest.broker.node.store
        real = {name: getattr(store, name) for name in ("put", "delete")}
        left = 0

        def dying(name: str) -> Any:
            def do(path: str, *rest_: Any, **more: Any) -> Any:
                nonlocal left
                if "/a/x" in path:
                    if left == 0:
                        raise Killed(path)
                    left -= 1
                return real[name](path, *rest_, **more)

            return do

        steps = 0
        while True:
            await prepare(rest)
            left = steps
            with monkeypatch.context() as patch:
                for name in real:
                    patch.setattr(store, name, dying(name))
                status, _ = await rest("DELETE", f"{A}?force=true")
            if status == 204:
                break
            steps += 1
            assert await store.exists(paths.namespace_policies("a/x")), "its record goes last"
            assert await rest("DELETE", f"{A}?force=true") == DONE
            assert await below(rest) == []
        # Mark, topics with their nodes, schemas, lists, record.
        assert steps > 10

    run(tmp_path, scenario, **FORCED)


def test_who_makes_a_topic_while_its_namespace_goes(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest, "other")
        client = await rest.broker.client()
        for delay in range(12):
            assert await rest("PUT", A) == DONE
            deleting = asyncio.ensure_future(rest("DELETE", A))
            for _ in range(delay):
                await asyncio.sleep(0)
            made = await client.produce(delay, topic="persistent://a/x/t")
            status, _ = await deleting
            if status == 204:
                assert made.error == pb.TopicNotFound
                assert await below(rest) == []
            else:
                # It was first: the namespace is as if nobody had wanted to delete it.
                assert (status, made.producer_name != "") == (409, True)
                assert (await rest("GET", A))[1]["deleted"] is False
                client.send(pb.CommandCloseProducer(producer_id=delay, request_id=10**6))
                assert await rest("DELETE", f"{TOPICS}/t?force=true") == DONE
                assert await rest("DELETE", A) == DONE

    run(tmp_path, scenario)


def test_what_stays_after_an_interrupted_deletion_without_force_is_open_again(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", f"{TOPICS}/t") == DONE
        # Somebody made the topic before the mark was set, and a kill came before it was taken back.
        namespaces = rest.broker.service.namespaces
        assert await rest("PUT", f"{A}/unload") == DONE
        await namespaces.change("a/x", lambda fields: fields.update(deleted=True))
        client = await rest.broker.client()
        assert (await client.produce(1, topic="persistent://a/x/t")).error == pb.TopicNotFound
        assert await rest.reason("DELETE", A) == NOT_EMPTY
        assert (await rest("GET", A))[1]["deleted"] is False
        assert (await client.produce(2, topic="persistent://a/x/t")).producer_name

    run(tmp_path, scenario)


@pytest.mark.parametrize("by_topic", [False, True])
def test_what_cannot_be_stored_as_its_policy_says_is_read_and_deleted(
    tmp_path: Path, by_topic: bool
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        for each in ("t", "u"):
            assert await rest("PUT", f"{TOPICS}/{each}") == DONE
        assert await rest("POST", f"{TOPICS}/t/messageTTL?messageTTL=1000") == DONE
        client = await rest.broker.client()
        await client.produce(topic="persistent://a/x/t")
        await client.subscribe(topic="persistent://a/x/t", permits=0)
        client.publish(0, b"stored")
        await client.receive("send_receipt")
        above = TOPICS + "/t" if by_topic else A
        assert await rest("POST", f"{above}/persistence", THREE_BOOKIES) == DONE
        topics = rest.broker.topics
        assert await rest("PUT", f"{A}/unload") == DONE
        assert not topics.registry.in_namespace("a/x")
        # What topics say is stored all the same: else nobody could take the policy back.
        assert await rest("POST", f"{TOPICS}/t/messageTTL?messageTTL=2000") == DONE
        other = await rest.broker.client()
        await other.subscribe(topic="persistent://a/x/t")
        (message,) = await other.messages(1)
        assert message.data == b"stored"
        assert not (await other.ack(message.position)).HasField("error")
        refused = await other.produce(2, topic="persistent://a/x/t")
        assert refused.error == pb.PersistenceError
        assert await rest("PUT", f"{A}/unload") == DONE
        if not by_topic:
            assert await rest("DELETE", f"{TOPICS}/u") == DONE
        assert await rest("DELETE", f"{A}?force=true") == DONE
        assert await below(rest) == []

    run(tmp_path, scenario, **FORCED)


def test_a_policy_is_taken_back_while_the_namespace_goes(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("POST", f"{A}/persistence", THREE_BOOKIES) == DONE
        namespaces = rest.broker.service.namespaces
        await namespaces.change("a/x", lambda fields: fields.update(deleted=True))
        gone = (404, "Namespace is deleted")
        assert await rest.reason("POST", f"{A}/persistence", THREE_BOOKIES) == gone
        assert await rest("DELETE", f"{A}/persistence") == DONE
        assert "persistence" not in await namespaces.record("a/x")
        assert await rest("DELETE", A) == DONE

    run(tmp_path, scenario)


def test_who_deletes_a_namespace_that_is_being_deleted_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "operation_timeout_s", 0.3)

    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        namespaces = rest.broker.service.namespaces
        delete, goes_on = namespaces._delete, asyncio.Event()

        async def later(name: str, force: bool) -> None:
            await goes_on.wait()
            await delete(name, force)

        monkeypatch.setattr(namespaces, "_delete", later)
        first = asyncio.ensure_future(namespaces.delete("a/x", False))
        await asyncio.sleep(0)
        status, reason = await asyncio.wait_for(rest.reason("DELETE", A), 5)
        assert status == 503
        assert reason.startswith("Other requests have been changing this for too long; try again")
        goes_on.set()
        await first
        assert (await rest("DELETE", A))[0] == 404

    run(tmp_path, scenario)


def test_nothing_is_remembered_of_a_namespace_that_is_gone(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", f"{TOPICS}/t") == DONE
        assert await rest("PUT", f"{TOPICS}/second") == DONE
        assert await rest("POST", f"{TOPICS}/t/messageTTL?messageTTL=1000") == DONE
        topics = rest.broker.topics
        assert await rest("PUT", f"{A}/unload") == DONE
        await topics.sweep.run()
        # An empty list of a store that others share is not kept, nor one that has changed.
        assert await topics.loader.counts.get("a/x") == 2
        kept: list[Any] = [
            topics.policies.records._namespaces,
            topics.loader.counts._namespaces,
            topics._policies._namespaces,
            topics.sweep._namespaces,
            topics.sweep._closed,
        ]

        def remembered() -> list[bool]:
            return [any("a/x" in name for name in names) for names in kept]

        # What was closed has been looked into.
        assert remembered() == [True] * 4 + [False]
        assert await rest("DELETE", f"{A}?force=true") == DONE
        assert remembered() == [False] * 5
        await topics.sweep.run()
        assert remembered() == [False] * 5
        # One of the same name begins with nothing.
        assert await rest("PUT", A) == DONE
        assert await rest("PUT", f"{TOPICS}/t") == DONE
        assert await rest("GET", f"{TOPICS}/t/messageTTL") == DONE
        assert await rest("POST", f"{TOPICS}/t/messageTTL?messageTTL=1000") == DONE
        assert await rest("GET", f"{TOPICS}/t/messageTTL") == (200, 1000)

    run(tmp_path, scenario, **FORCED, maxTopicsPerNamespace=10)


def test_a_sweep_says_nothing_of_a_namespace_that_is_being_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        await rest.broker.node.store.put(paths.managed_ledger("a/x/persistent/t"), b"")
        namespaces = rest.broker.service.namespaces
        await namespaces.change("a/x", lambda fields: fields.update(deleted=True))
        await rest.broker.topics.sweep.run()
        assert [each.message for each in caplog.records if each.levelname != "INFO"] == []
        # It may stay after all, and is looked into then.
        await namespaces.change("a/x", lambda fields: fields.update(deleted=False))
        await rest.broker.topics.sweep.run()
        assert "a/x" in rest.broker.topics.sweep._namespaces

    run(tmp_path, scenario)


def test_two_who_delete_a_namespace(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        await rest.broker.topic("persistent://a/x/t")
        answers = await asyncio.gather(*(rest("DELETE", f"{A}?force=true") for _ in range(3)))
        assert sorted(status for status, _ in answers) == [204, 404, 404]

    run(tmp_path, scenario, **FORCED)


# --- topics -----------------------------------------------------------------------------------


def test_topics_are_listed_by_kind_and_without_the_brokers_own(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", f"{TOPICS}/t") == DONE
        assert await rest("PUT", f"{TOPICS}/p/partitions", "2") == DONE
        await rest.broker.topic("persistent://a/x/__change_events")
        await rest.broker.topic("non-persistent://a/x/np")
        assert await rest("PUT", f"{NON_PERSISTENT}/q/partitions", "2") == DONE
        mine = [f"persistent://a/x/{each}" for each in ("p-partition-0", "p-partition-1", "t")]
        system, other = "persistent://a/x/__change_events", "non-persistent://a/x/np"
        for query, expected in (
            ("", mine),
            ("?mode=PERSISTENT", mine),
            ("?mode=NON_PERSISTENT", [other]),
            ("?mode=ALL", [other, *mine]),
            ("?includeSystemTopic=true", [system, *mine]),
            ("?mode=ALL&includeSystemTopic=true", [other, system, *mine]),
        ):
            assert await rest("GET", f"{A}/topics{query}") == (200, expected)
        assert (await rest("GET", f"{A}/topics?mode=all"))[0] == 404

    run(tmp_path, scenario)


def test_a_backlog_is_cleared(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        broker = rest.broker
        one, two = [await broker.topic(f"persistent://a/x/{each}") for each in ("one", "two")]
        client = await broker.client()
        await client.subscribe(1, topic=str(one.name), permits=2)
        await client.subscribe(2, topic=str(one.name), permits=0, subscription="other")
        await client.subscribe(3, topic=str(two.name), permits=0)
        for topic in (one, two):
            await broker.publish_to(topic, *(b"%d" % n for n in range(5)))
        await client.messages(2)
        assert await rest("POST", f"{A}/clearBacklog/s") == DONE
        assert [each.backlog for each in one.subscriptions.values()] == [0, 5]
        assert two.subscriptions["s"].backlog == 0
        # Consumers stay, and get what comes.
        client.flow(10, 1)
        await broker.publish_to(one, b"new")
        assert [each.data for each in await client.messages(1)] == [b"new"]
        # Of a topic that nobody has opened, too; what is cleared stays so.
        await broker.publish_to(two, b"more")
        await broker.topics.deletion.unload(two.name)
        assert await rest("POST", f"{A}/clearBacklog") == DONE
        assert one.subscriptions["other"].backlog == 0
        await broker.topics.deletion.unload(two.name)
        again = await broker.topic(str(two.name))
        assert again.subscriptions["s"].backlog == 0
        missing = (404, "Subscription none not found in a/x")
        assert await rest.reason("POST", f"{A}/clearBacklog/none") == missing
        for path in ("clearBacklog", "clearBacklog/s", "unsubscribe/s"):
            asked = await rest.reason("POST", f"{N}/a/none/{path}")
            assert asked == (404, "Namespace not found")

    run(tmp_path, scenario)


def test_a_subscription_is_deleted_from_every_topic(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        client = await rest.broker.client()
        for number, local in enumerate(("one", "two")):
            await client.subscribe(number, topic=f"persistent://a/x/{local}")
        await client.subscribe(7, topic="persistent://a/x/one", subscription="other")
        busy = (412, "Subscription has active connected consumers")
        assert await rest.reason("POST", f"{A}/unsubscribe/s") == busy
        for number in range(2):
            close = pb.CommandCloseConsumer(consumer_id=number, request_id=0)
            await client.request(close, "success")
        for _ in range(2):
            assert await rest("POST", f"{A}/unsubscribe/s") == DONE
        left = [list(each.subscriptions) for each in rest.broker.topics.registry]
        assert sorted(left) == [[], ["other"]]
        refused = (412, "Cannot unsubscribe a replication cursor")
        assert await rest.reason("POST", f"{A}/unsubscribe/pulsar.repl.x") == refused

    run(tmp_path, scenario)


def test_topics_are_unloaded(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        client = await rest.broker.client()
        await client.subscribe(topic="persistent://a/x/t")
        await client.produce(topic="non-persistent://a/x/np")
        elsewhere = await rest.broker.topic()
        assert await rest("PUT", f"{A}/unload") == DONE
        await client.receive("close_consumer")
        await client.receive("close_producer")
        assert list(rest.broker.topics.registry) == [elsewhere]
        await client.subscribe(2, topic="persistent://a/x/t")
        topic = await rest.broker.topic("persistent://a/x/t")
        assert len(topic.subscriptions["s"].consumers) == 1
        assert await rest.reason("PUT", f"{N}/a/none/unload") == (404, "Namespace not found")

    run(tmp_path, scenario)


# --- properties, clusters, permissions --------------------------------------------------------


def test_properties(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        whole = f"{A}/properties"
        assert await rest("GET", whole) == (200, {})
        assert await rest("PUT", whole, '{"a":"b","n":1}') == DONE
        assert await rest("PUT", whole, '{"z":"y"}') == DONE
        assert await rest("PUT", f"{A}/property/k%20/%C3%A4") == DONE
        properties = {"a": "b", "n": "1", "z": "y", "k ": "ä"}
        assert await rest("GET", whole) == (200, properties)
        answer = await rest.answer("GET", f"{A}/property/k%20")
        assert (answer.status, answer.body) == (200, "ä".encode())
        answer = await rest.answer("DELETE", f"{A}/property/k%20")
        assert (answer.status, answer.body) == (200, "ä".encode())
        for method in ("GET", "DELETE"):
            answer = await rest.answer(method, f"{A}/property/none")
            assert (answer.status, answer.body) == (200, b"")
        assert await rest("DELETE", whole) == DONE
        assert await rest("GET", whole) == (200, {})
        assert (await rest("PUT", whole, "[1]"))[0] == 400
        many = json.dumps({f"k{n}": "v" for n in range(1000)})
        assert await rest("PUT", whole, many) == DONE
        status, reason = await rest.reason("PUT", f"{A}/property/one/more")
        assert (status, "1001" in reason) == (400, True)
        for method, path in (("GET", "properties"), ("DELETE", "properties"), ("GET", "property/k"),
                             ("DELETE", "property/k"), ("PUT", "property/k/v")):  # fmt: skip
            missing = (404, "Namespace does not exist")
            assert await rest.reason(method, f"{N}/a/none/{path}") == missing

    run(tmp_path, scenario)


def test_a_namespace_is_in_this_cluster_alone(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        await rest.broker.node.store.put(paths.cluster("other"), b"{}")
        replication, allowed = f"{A}/replication", f"{A}/allowedClusters"
        here = '["standalone"]'
        assert await rest("GET", replication) == (200, ["standalone"])
        assert await rest("GET", allowed) == (200, [])
        for path, body, status, reason in (
            (replication, "", 412, "ClusterIds should not be null or empty"),
            (replication, "[]", 412, "ClusterIds should not be null or empty"),
            (replication, '["none"]', 403, "Invalid cluster id: none"),
            (replication, '["global"]', 403, "Invalid cluster id: global"),
            (replication, '["other"]', 403,
             "Cluster [other] is not in the list of allowed clusters list for tenant [a]"),
            (allowed, '["none"]', 403,
             "Cluster [none] is not in the list of allowed clusters list for tenant [a]"),
            (allowed, "[]", 400, "Allowed clusters do not contain the replication cluster"
             " [standalone]. Please remove the replication cluster if the cluster is not allowed"
             " for this namespace"),
        ):  # fmt: skip
            assert await rest.reason("POST", path, body) == (status, reason)
        for path in (replication, allowed):
            assert await rest("POST", path, here) == (200, None)
            assert await rest("GET", path) == (200, ["standalone"])
            for method in ("GET", "POST"):
                body = here if method == "POST" else ""
                elsewhere = path.replace("/x/", "/none/")
                missing = (404, "Namespace does not exist")
                assert await rest.reason(method, elsewhere, body) == missing
        both = '{"allowedClusters":["standalone","other"]}'
        assert await rest("POST", f"{T}/a", both) == DONE
        assert await rest("POST", allowed, '["standalone","other"]') == (
            412,
            {
                "reason": "A namespace is in cluster standalone alone: this broker does not"
                " replicate to 'other'."
            },
        )
        body = '{"replication_clusters":["standalone","other"]}'
        assert (await rest.reason("PUT", f"{N}/a/y", body))[0] == 412

    run(tmp_path, scenario)


def test_permissions_are_kept(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        roles, subscriptions = f"{A}/permissions", f"{A}/permissions/subscription"
        assert await rest("GET", roles) == (200, {})
        assert await rest("POST", f"{roles}/r", '["produce","consume","produce"]') == DONE
        assert await rest("POST", f"{roles}/q", '["functions"]') == DONE
        granted = {"r": ["produce", "consume"], "q": ["functions"]}
        assert await rest("GET", roles) == (200, granted)
        assert await rest("POST", f"{roles}/r", '["consume"]') == DONE
        assert await rest("DELETE", f"{roles}/q") == DONE
        assert await rest("DELETE", f"{roles}/q") == DONE
        assert await rest("GET", roles) == (200, {"r": ["consume"]})
        assert await rest("POST", f"{subscriptions}/s", '["r","q"]') == DONE
        assert await rest("GET", subscriptions) == (200, {"s": ["r", "q"]})
        assert await rest("DELETE", f"{roles}/s/r") == DONE
        assert await rest("GET", subscriptions) == (200, {"s": ["q"]})
        assert (await rest("DELETE", f"{roles}/none/r"))[0] == 404
        assert await rest.reason("POST", f"{roles}/r") == (400, "Actions should not be null")
        for body in ('["bad"]', '"produce"', "[9]", "[1.5]"):
            assert (await rest("POST", f"{roles}/r", body))[0] == 400
        found = await rest.broker.node.store.get(paths.namespace_policies("a/x"))
        assert found is not None
        assert json.loads(found.value)["auth_policies"] == {
            "namespace_auth": {"r": ["consume"]},
            "destination_auth": {},
            "subscription_auth_roles": {"s": ["q"]},
        }
        missing = (404, "Topic's namespace does not exist")
        assert await rest.reason("POST", f"{N}/a/none/permissions/r", '["produce"]') == missing
        for method, path in (("GET", "permissions"), ("DELETE", "permissions/r")):
            asked = await rest.reason(method, f"{N}/a/none/{path}")
            assert asked == (404, "Namespace does not exist")

    run(tmp_path, scenario)


def test_a_new_namespace_takes_values_in_other_forms(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        body = {
            "bundles": {"numBundles": "2"},
            "message_ttl_in_seconds": "60",
            "deduplicationEnabled": "true",
            "encryption_required": 1,
            "schema_compatibility_strategy": 5,
            "subscription_auth_mode": "",
            "compaction_threshold": 7.0,
            "retention_policies": {"retentionTimeInMinutes": "10", "retentionSizeInMB": 5.0},
            "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": "7"}},
            "backlog_quota_map": {
                "message_age": {"limitTime": "77", "policy": 0, "unknown": {"a": 1}}
            },
            "delayed_delivery_policies": {"tickTime": 0.5, "active": "TRUE"},
        }
        assert await rest("PUT", f"{N}/a/forms", json.dumps(body)) == DONE
        _, found = await rest("GET", f"{N}/a/forms")
        assert found["bundles"]["numBundles"] == 2
        assert found["message_ttl_in_seconds"] == 60
        assert found["deduplicationEnabled"] is True
        assert found["encryption_required"] is True
        assert found["schema_compatibility_strategy"] == "FULL"
        assert found["subscription_auth_mode"] == "None"
        assert found["compaction_threshold"] == 7
        retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5}
        assert found["retention_policies"] == retention
        rate = {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": -1}
        assert found["publishMaxMessageRate"] == {"standalone": rate}
        policy = "producer_request_hold"
        quota = {"limit": 0, "limitSize": 0, "limitTime": 77, "policy": policy}
        assert found["backlog_quota_map"] == {"message_age": quota}
        delay = {"tickTime": 0, "active": True, "maxDeliveryDelayInMillis": 0}
        assert found["delayed_delivery_policies"] == delay

    run(tmp_path, scenario)


# --- how many topics --------------------------------------------------------------------------


async def limit(rest: Rest, count: int) -> None:
    record = json.dumps({"max_topics_per_namespace": count}).encode()
    await rest.broker.node.store.put(paths.namespace_policies("a/x"), record)


def test_no_more_topics_than_a_namespace_may_have(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        await limit(rest, 3)
        full = "Exceed maximum number of topics in namespace."
        assert await rest("PUT", f"{TOPICS}/p/partitions", "2") == DONE
        assert await rest.reason("PUT", f"{TOPICS}/q/partitions", "2") == (412, full)
        assert await rest.reason("PUT", f"{NON_PERSISTENT}/q/partitions", "2") == (412, full)
        assert await rest("GET", f"{TOPICS}/partitioned") == (200, ["persistent://a/x/p"])
        assert await rest("PUT", f"{TOPICS}/t") == DONE
        # Of a single one Apache Pulsar answers so.
        assert await rest.reason("PUT", f"{TOPICS}/u") == (409, full)
        client = await rest.broker.client()
        for answer in (
            await client.produce(topic="persistent://a/x/u"),
            await client.subscribe(topic="persistent://a/x/u", permits=0),
        ):
            assert (answer.error, answer.message) == (pb.NotAllowedError, full)
        # What is there is opened, and what does not count is made.
        await rest.broker.topics.deletion.unload(TopicName.get("persistent://a/x/t"))
        for number, topic in enumerate(
            (
                *("persistent://a/x/t", "persistent://a/x/p-partition-1"),
                *("persistent://a/x/__change_events", "non-persistent://a/x/u"),
            )
        ):
            assert (await client.produce(number, topic=topic)).producer_name
        # One goes, another one comes.
        assert await rest("DELETE", f"{TOPICS}/t?force=true") == DONE
        assert (await client.produce(9, topic="persistent://a/x/u")).producer_name
        assert (await client.produce(10, topic="persistent://a/x/v")).error == pb.NotAllowedError

    run(tmp_path, scenario)


def test_the_limit_holds_for_those_who_come_together(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        await limit(rest, 10)
        clients = [await rest.broker.client() for _ in range(12)]
        answers = await asyncio.gather(
            *(each.produce(topic=f"persistent://a/x/t{n}") for n, each in enumerate(clients)),
            *(rest("PUT", f"{TOPICS}/u{n}") for n in range(12)),
            *(rest("PUT", f"{TOPICS}/p{n}/partitions", "3") for n in range(4)),
        )
        made = len(await rest.broker.service.namespaces.topic_names("a/x", "persistent"))
        assert 8 <= made <= 10
        refused = [each for each in answers if getattr(each, "error", None) == pb.NotAllowedError]
        refused += [each for each in answers if isinstance(each, tuple) and each[0] in (409, 412)]
        assert refused

    run(tmp_path, scenario)


def test_a_list_of_topics_is_not_read_for_each_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        await limit(rest, 100_000)
        store = rest.broker.node.store
        monkeypatch.setattr(store, "is_shared", False)
        names = [f"a/x/persistent/t{n}" for n in range(3000)]
        for at in range(0, len(names), 100):
            puts = [Put(paths.managed_ledger(each), b"") for each in names[at : at + 100]]
            await store.put_all(puts)
        listed: list[str] = []
        children = store.children

        def noted(path: str) -> asyncio.Future[list[str]]:
            listed.append(path)
            return children(path)

        monkeypatch.setattr(store, "children", noted)
        for number in range(20):
            assert await rest("PUT", f"{TOPICS}/new{number}") == DONE
        assert listed.count(paths.managed_ledgers("a/x")) == 1
        counts = rest.broker.topics.loader.counts
        assert await counts.get("a/x") == 3020
        await limit(rest, 3020)
        assert (await rest("PUT", f"{TOPICS}/one-more"))[0] == 409

    run(tmp_path, scenario)


def test_topics_are_counted_at_once_as_they_come_and_go(tmp_path: Path) -> None:
    async def main() -> None:
        store = EmbeddedStore(tmp_path)
        await store.open()
        counts = topic_counts.TopicCounts(store)
        assert await counts.get("a/x") == 0
        for number in range(50):
            path = paths.managed_ledger(f"a/x/persistent/t{number}")
            await store.put(path, b"", MUST_NOT_EXIST)
            assert await counts.get("a/x") == number + 1
            if number % 10 == 0:
                await store.put(paths.managed_ledger(f"a/x/persistent/t{number}/s"), b"")
                await store.put(paths.managed_ledger("a/x/persistent/__change_events"), b"")
        for number in range(1, 10):
            await store.delete(paths.managed_ledger(f"a/x/persistent/t{number}"))
            assert await counts.get("a/x") == 50 - number
        counts.close()
        await store.close()

    asyncio.run(main())


def test_topics_are_counted_in_slices_and_again_when_some_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = 0

    async def main() -> None:
        store = EmbeddedStore(tmp_path)
        await store.open()

        async def make(name: str) -> None:
            path = paths.managed_ledger(f"a/x/persistent/{name}")
            await store.put(path, b"", MUST_NOT_EXIST)

        class Pauses:
            def __init__(self, slice_s: float | None = None) -> None:
                assert slice_s is None

            async def pause(self) -> None:
                nonlocal pauses
                pauses += 1
                if pauses == 10:
                    await make("late")

        monkeypatch.setattr("pyxbroker.base.slices.Slices", Pauses)
        for number in range(20):
            await make(f"t{number}")
        counts = topic_counts.TopicCounts(store)
        assert await counts.get("a/x") == 21
        assert pauses == 20 + 21, "others may have a turn after each"
        counts.close()
        await store.close()

    asyncio.run(main())


def test_the_numbers_of_so_many_namespaces_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_counts, "NAMESPACES_MAX", 2)

    async def main() -> None:
        store = EmbeddedStore(tmp_path)
        await store.open()
        counts = topic_counts.TopicCounts(store)
        for number in range(5):
            path = paths.managed_ledger(f"a/n{number}/persistent/t")
            await store.put(path, b"", MUST_NOT_EXIST)
            assert await counts.get(f"a/n{number}") == 1
        newest = [paths.managed_ledgers(f"a/n{number}") for number in (3, 4)]
        assert list(counts._counts) == list(counts._namespaces) == newest
        assert await counts.get("a/n0") == 1, "it is counted again"
        counts.close()
        await store.close()

    asyncio.run(main())


def test_topics_of_other_brokers_count() -> None:
    async def main() -> None:
        store = MemoryStore("shared")
        other = MemoryStore("shared")
        await store.open()
        await other.open()
        counts = topic_counts.TopicCounts(store)
        assert await counts.get("a/x") == 0
        for number in range(3):
            path = paths.managed_ledger(f"a/x/persistent/t{number}")
            await other.put(path, b"", MUST_NOT_EXIST)
        await other.put(paths.managed_ledger("a/x/persistent/__change_events"), b"")
        for _ in range(5):
            await asyncio.sleep(0)
        assert await counts.get("a/x") == 3
        counts.close()
        await other.close()
        await store.close()

    asyncio.run(main())


def test_a_namespace_of_many_topics_is_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", f"{TOPICS}/p/partitions", "300") == DONE
        assert await rest("DELETE", f"{A}?force=true") == DONE
        assert await below(rest) == []

    run(tmp_path, scenario, **FORCED)

"""Whatever of tenants, namespaces and topics is changed in several steps: at every write of it the
store fails, or the process is killed. Then the request is repeated, and all is as if nothing had
been in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from interrupted import Answer, How, Interrupted
from pyxbroker.base.errors import PulsarError
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import partition_nodes
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.metadata import paths
from test_admin_topics import DONE, Rest
from test_tenants import HERE, N, T, begin

pytestmark = pytest.mark.slow

X = f"{N}/a/x"
C = "/admin/v2/clusters"
G = "/admin/v2/resourcegroups"
P = "/admin/v2/persistent/a/x"
NP = "/admin/v2/non-persistent/a/x"
KIND = "application/vnd.partitioned-topic-metadata+json"
TOPICS = "persistent://a/x"
SETTINGS = {
    "forceDeleteNamespaceAllowed": True,
    "forceDeleteTenantAllowed": True,
    "brokerDeleteInactiveTopicsEnabled": False,
}
MANY_WRITES = 12
WHAT_IS_SAID = ("messageTTL", "retention")  # by topics


class Operation(NamedTuple):
    """A request, and what has to be there before."""

    name: str
    begin: Callable[[Rest], Awaitable[None]]
    method: str
    target: str
    body: str = ""
    writes_min: int = 1

    async def ask(self, rest: Rest) -> Answer:
        return await rest(self.method, self.target, self.body)


async def ask(rest: Rest, *asked: str, **more: str) -> None:
    assert await rest(*asked, **more) == DONE


async def subscribe(rest: Rest, name: str, subscription: str) -> Topic:
    topic = await rest.broker.topic(name)
    await topic.subscription_for(subscription, topic.first_position(), {}, True, False)
    return topic


# --- what is there before -------------------------------------------------------------------------


async def nothing(rest: Rest) -> None:
    await begin(rest)


async def a_tenant(rest: Rest) -> None:
    await nothing(rest)
    await ask(rest, "PUT", f"{T}/a", HERE)


async def a_namespace(rest: Rest) -> None:
    await a_tenant(rest)
    await ask(rest, "PUT", X)


async def a_topic(rest: Rest) -> None:
    """Two subscriptions, one of which has read half of the messages in three ledgers."""
    await a_namespace(rest)
    await ask(rest, "PUT", f"{P}/t", '{"k":"v"}')
    for name in ("s1", "s2"):
        await subscribe(rest, f"{TOPICS}/t", name)
    for _ in range(3):
        topic = await rest.broker.topic(f"{TOPICS}/t")
        await rest.broker.publish_to(topic, b"a", b"b")
        await ask(rest, "PUT", f"{P}/t/unload")
    await ask(rest, "POST", f"{P}/t/subscription/s2/skip/3")


async def a_topic_that_says_something(rest: Rest) -> None:
    await a_topic(rest)
    await ask(rest, "POST", f"{P}/t/messageTTL?messageTTL=4000")


async def a_partitioned_topic(rest: Rest) -> None:
    await a_namespace(rest)
    body = json.dumps({"partitions": 3, "properties": {"k": "v"}})
    await ask(rest, "PUT", f"{P}/p/partitions", body, kind=KIND)
    await ask(rest, "POST", f"{P}/p/messageTTL?messageTTL=4000")
    for index in range(3):
        topic = await subscribe(rest, f"{TOPICS}/p-partition-{index}", "s")
        await rest.broker.publish_to(topic, b"a")


async def everything(rest: Rest) -> None:
    """A namespace with topics of all kinds, and a second one in its tenant."""
    await a_partitioned_topic(rest)
    await ask(rest, "PUT", f"{N}/a/y")
    await ask(rest, "PUT", f"{P}/t")
    await subscribe(rest, f"{TOPICS}/t", "s")
    await ask(rest, "PUT", f"{NP}/n/partitions", "2")
    store = rest.broker.node.store
    await store.put(paths.local_policies("a/x"), b"{}")
    await store.put(f"{paths.schemas('a/x')}/t", b"")


async def a_cluster(rest: Rest) -> None:
    await nothing(rest)
    assert await rest("PUT", f"{C}/a", "{}") == (200, None)
    for name in ("d", "e"):
        await ask(rest, "POST", f"{C}/a/failureDomains/{name}", json.dumps({"brokers": [name]}))


async def a_group(rest: Rest) -> None:
    await a_namespace(rest)
    await ask(rest, "PUT", f"{G}/a", '{"publishRateInMsgs":1}')


# --- the operations -------------------------------------------------------------------------------

RETENTION = '{"retentionTimeInMinutes":10,"retentionSizeInMB":20}'
INFO = json.dumps({"adminRoles": ["r"], "allowedClusters": ["standalone"]})
OPERATIONS = (
    Operation("create tenant", nothing, "PUT", f"{T}/a", HERE),
    Operation(
        "update tenant", a_tenant, "POST", f"{T}/a", HERE.replace("{", '{"adminRoles":["r"],')
    ),
    Operation("delete tenant", a_tenant, "DELETE", f"{T}/a"),
    Operation("delete tenant with all", everything, "DELETE", f"{T}/a?force=true", "", 30),
    Operation("create namespace", a_tenant, "PUT", X),
    Operation("delete namespace", a_namespace, "DELETE", X, "", 3),
    Operation("delete namespace with all", everything, "DELETE", f"{X}?force=true", "", 25),
    Operation("set a policy of a namespace", a_namespace, "POST", f"{X}/retention", RETENTION),
    Operation("grant", a_namespace, "POST", f"{X}/permissions/r", '["produce"]'),
    Operation("unload a namespace", a_topic, "PUT", f"{X}/unload"),
    Operation("clear a namespace", a_partitioned_topic, "POST", f"{X}/clearBacklog"),
    Operation("unsubscribe", a_partitioned_topic, "POST", f"{X}/unsubscribe/s", "", 3),
    Operation("create topic", a_namespace, "PUT", f"{P}/t", '{"k":"v"}'),
    Operation("delete topic", a_topic_that_says_something, "DELETE", f"{P}/t?force=true", "", 5),
    Operation("truncate", a_topic, "DELETE", f"{P}/t/truncate", "", 3),
    Operation("trim", a_topic, "POST", f"{P}/t/trim", "", 0),
    Operation("terminate", a_topic, "POST", f"{P}/t/terminate"),
    Operation("unload", a_topic, "PUT", f"{P}/t/unload", "", 0),
    Operation("delete subscription", a_topic, "DELETE", f"{P}/t/subscription/s1"),
    Operation("create subscription", a_topic, "PUT", f"{P}/t/subscription/s3", '"earliest"'),
    Operation(
        "reset a cursor",
        a_topic,
        *("POST", f"{P}/t/subscription/s2/resetcursor", '"latest"', 0),
    ),
    Operation(
        "describe a subscription",
        a_topic,
        *("PUT", f"{P}/t/subscription/s2/properties", '{"a":"b"}'),
    ),
    Operation("describe a topic", a_topic, "PUT", f"{P}/t/properties", '{"a":"b"}'),
    Operation("skip all", a_topic, "POST", f"{P}/t/subscription/s1/skip_all"),
    Operation("set a topic's first policy", a_topic, "POST", f"{P}/t/retention", RETENTION),
    Operation(
        "set a topic's next policy",
        a_topic_that_says_something,
        *("POST", f"{P}/t/retention", RETENTION, 0),
    ),
    Operation(
        "remove a topic's policy",
        a_topic_that_says_something,
        *("DELETE", f"{P}/t/messageTTL", "", 0),
    ),
    Operation("create cluster", nothing, "PUT", f"{C}/a", "{}"),
    Operation("update cluster", a_cluster, "POST", f"{C}/a", '{"serviceUrl":"http://a:8080"}'),
    Operation("delete cluster", a_cluster, "DELETE", f"{C}/a", "", 4),
    Operation("set peers", a_cluster, "POST", f"{C}/a/peers", '["standalone"]'),
    Operation(
        "set failure domain",
        a_cluster,
        *("POST", f"{C}/a/failureDomains/d", '{"brokers":["x"]}'),
    ),
    Operation("change group", a_group, "PUT", f"{G}/a", '{"dispatchRateInMsgs":1}'),
    Operation("delete group", a_group, "DELETE", f"{G}/a"),
    Operation("join group", a_group, "POST", f"{X}/resourcegroup/a"),
    Operation("split bundle", a_namespace, "PUT", f"{X}/0x00000000_0x40000000/split"),
    Operation("create partitioned", a_namespace, "PUT", f"{P}/p/partitions", "5", 3),
    Operation("grow", a_partitioned_topic, "POST", f"{P}/p/partitions", "8", 4),
    Operation("delete partitioned", a_partitioned_topic, "DELETE", f"{P}/p/partitions", "", 10),
    Operation(
        "subscribe to all partitions",
        a_partitioned_topic,
        *("PUT", f"{P}/p/subscription/s3", '{"ledgerId":-1,"entryId":-1}', 3),
    ),
    Operation("describe partitioned", a_partitioned_topic, "PUT", f"{P}/p/properties", "{}"),
    Operation(
        "unsubscribe from all partitions",
        a_partitioned_topic,
        *("DELETE", f"{P}/p/subscription/s", "", 3),
    ),
    Operation(
        "terminate all partitions",
        a_partitioned_topic,
        *("POST", f"{P}/p/terminate/partitions", "", 3),
    ),
)


# --- the state ------------------------------------------------------------------------------------


async def look(rest: Rest) -> dict[str, Any]:
    """All that anybody can see of tenant a and what is in it."""
    seen: dict[str, Any] = {"tenants": await rest("GET", T)}
    seen["tenant"] = await rest("GET", f"{T}/a")
    seen["cluster"] = await rest("GET", f"{C}/a"), await rest("GET", f"{C}/a/failureDomains")
    seen["group"] = await rest("GET", f"{G}/a")
    seen["namespaces"] = await rest("GET", f"{N}/a")
    seen["nodes"] = await nodes(rest, "/")
    status, names = seen["namespaces"]
    for name in names if status == 200 else ():
        seen[name] = await rest("GET", f"{N}/{name}")
        for domain in ("persistent", "non-persistent"):
            at = f"/admin/v2/{domain}/{name}"
            seen[domain, name] = await rest("GET", at)
            for topic in (await rest("GET", f"{at}/partitioned"))[1]:
                local = topic.rpartition("/")[2]
                seen[topic] = await rest("GET", f"{at}/{local}/partitions")
                seen |= await said(rest, f"{at}/{local}")
        for topic in seen["persistent", name][1]:
            seen |= await of_topic(rest, TopicName.get(topic))
    return seen


async def nodes(rest: Rest, path: str) -> list[str]:
    """All paths of tenant a."""
    found = [path] if "/a/" in f"{path}/" else []
    for each in await rest.broker.node.store.children(path):
        found += await nodes(rest, path.rstrip("/") + "/" + each)
    return found


async def said(rest: Rest, at: str) -> dict[str, Any]:
    return {f"{at}/{each}": await rest("GET", f"{at}/{each}") for each in WHAT_IS_SAID}


async def of_topic(rest: Rest, name: TopicName) -> dict[str, Any]:
    """What is in a topic. To ask opens it."""
    try:
        topic = await rest.broker.topics.loader.get(name, create=False)
    except PulsarError as error:
        return {str(name): str(error)}
    backlogs = {
        each: (sub.backlog, sub.properties) for each, sub in sorted(topic.subscriptions.items())
    }
    log = topic.managed_ledger
    at = f"/admin/v2/{name.domain}/{name.namespace}/{name.local_name}"
    return {
        str(name): (backlogs, log.is_terminated, log.properties),
    } | await said(rest, at)


def ways(count: int, number: int) -> tuple[How, ...]:
    """All of them; where there are many writes, two at each in turn, one of which ends all."""
    if count <= MANY_WRITES:
        return tuple(How)
    return (How.KILLED, How.REFUSED) if number % 2 else (How.AWAY, How.UNANSWERED)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions come in several writes."""
    monkeypatch.setattr(partition_nodes, "NODES_PER_BATCH_MAX", 2)


@pytest.mark.parametrize("operation", OPERATIONS, ids=[each.name for each in OPERATIONS])
def test_an_operation_that_is_interrupted_at_any_write_is_completed_by_repeating_it(
    operation: Operation, tmp_path: Path
) -> None:
    interrupted = Interrupted(tmp_path, operation.begin, operation.ask, look, **SETTINGS)
    _, after, count = asyncio.run(interrupted.whole())
    assert count >= operation.writes_min
    for number in range(1, count + 1):
        for how in ways(count, number):
            answers, found = asyncio.run(interrupted.at(how, number))
            where = f"{operation.name}, write {number} of {count} {how.name}: {answers}"
            assert answers[-1][0] < 500, where
            assert found == after, where

"""Topics that other brokers serve: lookups, commands and REST redirect their clients, or refuse."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker
from pyxbroker.admin.endpoints import every_endpoint
from pyxbroker.admin.owners import ANSWERED_BY_ALL
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.errors import MetadataStoreError, ServiceNotReady
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import INDEX_INTERCEPTOR
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import SERVE, SERVE_ALL, Decision, Redirect, Refuse
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.request import Body, Request
from pyxbroker.web.response import Response
from test_admin_topics import DONE, P, Rest, run
from test_endpoints import path_of

OTHER = Addresses("pulsar://other:1", "http://other:2", "pulsar+ssl://other:3", "https://other:4")
LOOKUP = "/lookup/v2/topic/persistent/public/default/t"
NOT_SERVED = (
    f"Namespace bundle (public/default/0x80000000_0xc0000000) for topic ({TOPIC}) not served by"
    " this instance:here:2. Please redo the lookup."
)
FULL = "0x00000000_0xffffffff"


class Rule:
    """An ownership with the same answer for everything, which notes what it was asked."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.asked: list[tuple[str, bool, str]] = []

    async def find(self, topic: TopicName, authoritative: bool, listener: str = "") -> Decision:
        self.asked.append((str(topic), authoritative, listener))
        return self.decision

    async def find_of_bundle(
        self, namespace: str, bundle: Bundle, authoritative: bool, acquires: bool
    ) -> Decision:
        self.asked.append((f"{namespace}/{bundle}", authoritative, ""))
        return self.decision

    async def release(
        self, namespace: str, bundle: Bundle, close: Callable[[], Awaitable[None]]
    ) -> None:
        raise AssertionError("another broker has the bundle")

    async def check(self, topic: TopicName, acquires: bool = False) -> Decision:
        return self.decision


def refusing() -> Rule:
    return Rule(Refuse(MetadataStoreError("Namespace bundle X is being unloaded")))


def commands(
    tmp_path: Path, rule: Rule, scenario: Callable[[Broker], Awaitable[None]], **settings: Any
) -> None:
    async def apart(rest: Rest) -> None:
        rest.broker.service.ownership = rule
        await scenario(rest.broker)

    run(tmp_path, apart, **settings)


async def answered(
    rest: Rest, target: str, method: str = "GET", *, is_tls: bool = False
) -> Response:
    path, _, query = target.partition("?")
    body = Body(0, lambda: None)
    body.end()
    return await rest.app.answer(Request(method, path, query, {}, body, is_tls=is_tls))


def location(response: Response) -> str:
    assert response.status == 307, response.body
    return dict(response.headers)["Location"]


# --- commands of clients ------------------------------------------------------------------------


@pytest.mark.parametrize("authoritative", [False, True])
def test_a_lookup_redirects_to_another_broker(tmp_path: Path, authoritative: bool) -> None:
    rule = Rule(Redirect(OTHER, authoritative))

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        asked = pb.CommandLookupTopic(topic=TOPIC, authoritative=not authoritative)
        answer = await client.request(asked, "lookupTopicResponse")
        assert answer.response == pb.CommandLookupTopicResponse.Redirect
        assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == OTHER[::2]
        assert answer.authoritative is authoritative
        assert rule.asked == [(TOPIC, not authoritative, "")]
        assert broker.service.lookups_redirected == 1
        assert not list(broker.topics.registry)

    commands(tmp_path, rule, scenario)


def test_a_lookup_connects_to_the_owner_of_the_topic(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        rest.broker.service.ownership = Rule(Redirect(OTHER, False, is_owner=True))
        client = await rest.broker.client()
        answer = await client.request(pb.CommandLookupTopic(topic=TOPIC), "lookupTopicResponse")
        assert answer.response == pb.CommandLookupTopicResponse.Connect
        assert answer.authoritative
        assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == OTHER[::2]
        assert (await rest("GET", LOOKUP))[1]["httpUrl"] == OTHER.web_url

    run(tmp_path, scenario)


def test_a_lookup_without_a_broker_fails(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.request(pb.CommandLookupTopic(topic=TOPIC), "lookupTopicResponse")
        assert answer.response == pb.CommandLookupTopicResponse.Failed
        assert answer.error == pb.MetadataError
        assert answer.message == "Namespace bundle X is being unloaded"
        assert broker.service.lookups_failed == 1

    commands(tmp_path, refusing(), scenario)


OPENING = {
    "producer": (pb.CommandProducer(topic=TOPIC, producer_id=1), "producer_success"),
    "consumer": (
        pb.CommandSubscribe(topic=TOPIC, subscription="s", consumer_id=1, subType=0),
        "success",
    ),
    "schema": (
        pb.CommandGetOrCreateSchema(
            topic=TOPIC, schema=pb.Schema(name="", schema_data=b"", type=1)
        ),
        "getOrCreateSchemaResponse",
    ),
}


@pytest.mark.parametrize("kind", OPENING)
def test_a_command_does_not_open_a_topic_that_another_broker_serves(
    tmp_path: Path, kind: str
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        message, field = OPENING[kind]
        for rule, code, reason in (
            (Rule(Redirect(OTHER, True)), ServiceNotReady.code, NOT_SERVED),
            (refusing(), MetadataStoreError.code, "Namespace bundle X is being unloaded"),
        ):
            broker.service.ownership = rule
            answer = await client.request(message, field)
            if kind == "schema":
                assert (answer.error_code, answer.error_message) == (code, reason)
            else:
                assert (answer.error, answer.message) == (code, reason)
            assert not list(broker.topics.registry)
        broker.service.ownership = SERVE_ALL
        assert type(await client.request(message, field)).__name__ != "CommandError"

    commands(tmp_path, refusing(), scenario)


# --- HTTP lookups -------------------------------------------------------------------------------


def test_an_http_lookup_redirects_to_another_broker(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        rule = rest.broker.service.ownership = Rule(Redirect(OTHER, False))
        found = await answered(rest, f"{LOOKUP}?authoritative=true&listenerName=")
        assert location(found) == f"http://other:2{LOOKUP}?authoritative=false"
        assert rule.asked == [(TOPIC, True, "")]
        found = await answered(rest, LOOKUP, is_tls=True)
        assert location(found) == f"https://other:4{LOOKUP}?authoritative=false"
        rest.broker.service.listeners.advertised["a b"] = OTHER
        found = await answered(rest, f"{LOOKUP}?listenerName=a%20b")
        there = f"http://other:2{LOOKUP}?listenerName=a%20b&authoritative=false"
        assert location(found) == there
        assert rule.asked[-1] == (TOPIC, False, "a b")

    run(tmp_path, scenario)


def test_an_http_lookup_without_a_broker_fails(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        rest.broker.service.ownership = refusing()
        status = MetadataStoreError.http_status
        assert await rest("GET", LOOKUP) == (
            status,
            {"reason": "Namespace bundle X is being unloaded"},
        )

    run(tmp_path, scenario)


# --- REST ---------------------------------------------------------------------------------------


def is_about_one(endpoint: Endpoint) -> bool:
    return "{topic}" in endpoint.path or "{bundle}" in endpoint.path


ABOUT_ONE = [each for name, each in every_endpoint() if name != "lookup" and is_about_one(each)]
VALUES = {"tenant": "public", "namespace": "default", "topic": "t", "bundle": FULL}


def test_every_endpoint_about_a_topic_or_a_bundle_redirects(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        rest.broker.service.ownership = Rule(Redirect(OTHER, True))
        anywhere = set()
        for endpoint in ABOUT_ONE:
            target = path_of(endpoint, **VALUES) + "?index=0"  # which one of them needs
            found = await answered(rest, target, endpoint.method)
            if found.status == 307:
                assert location(found) == f"http://other:2{target}&authoritative=true"
            else:
                anywhere.add((endpoint.method, endpoint.path))
        assert anywhere == {each for each in ANSWERED_BY_ALL if not each[1].startswith("/lookup")}
        assert not list(rest.broker.topics.registry)

    # Without indexes one of them is refused by every broker.
    run(tmp_path, scenario, brokerEntryMetadataInterceptors=INDEX_INTERCEPTOR)


class Silent:
    """Peers that do not answer, for a reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def silence(self, to: Redirect) -> str:
        assert to.urls == OTHER
        return self._reason


@pytest.mark.parametrize("target", [f"{P}/t/why", f"{P}/t/subscription/s/why"])
def test_why_says_that_the_owner_does_not_answer(tmp_path: Path, target: str) -> None:
    async def scenario(rest: Rest) -> None:
        service = rest.broker.service
        service.ownership = Rule(Redirect(OTHER, False, is_owner=True))
        service.peers = Silent("connection refused")  # type: ignore[assignment]
        status, reason = await rest.reason("GET", target)
        assert status == 503
        assert reason.startswith(
            "Broker other:2 serves the topic, and does not answer (connection refused). It is not"
            " registered any more. If its process has ended, its session ends within 7 s"
        )
        record = json.dumps({"startTimestamp": 1_700_000_000_000}).encode()
        await service.metadata.put(paths.broker("other:2"), record)
        _, reason = await rest.reason("GET", target)
        assert "It is still registered, since its start at 2023-11-14T22:13:20Z." in reason
        location(await answered(rest, f"{P}/t/stats"))
        service.peers = Silent("")  # type: ignore[assignment]
        location(await answered(rest, target))
        service.peers = None

    run(tmp_path, scenario, metadataStoreSessionTimeoutMillis=7000)


def test_a_redirect_keeps_the_request(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        rule = rest.broker.service.ownership = Rule(Redirect(OTHER, False))
        target = f"{P}/a%40b/stats?getPreciseBacklog=true"
        found = await answered(rest, f"{target}&authoritative=True&subscriptionBacklogSize=false")
        there = f"http://other:2{target}&subscriptionBacklogSize=false&authoritative=false"
        assert location(found) == there
        assert rule.asked == [("persistent://public/default/a@b", True, "")]
        found = await answered(rest, f"{target}", is_tls=True)
        assert location(found) == f"https://other:4{target}&authoritative=false"
        rule.decision = Redirect(OTHER._replace(web_url=""), False)
        assert await rest("GET", f"{P}/t/stats") == (
            412,
            {"reason": "Redirected cluster's service url is not configured."},
        )

    run(tmp_path, scenario)


def test_rest_without_a_broker_is_refused(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        rest.broker.service.ownership = refusing()
        refused = (MetadataStoreError.http_status, "Namespace bundle X is being unloaded")
        assert await rest.reason("GET", f"{P}/t/stats") == refused
        bundle = f"/admin/v2/namespaces/public/default/{FULL}/unload"
        assert await rest.reason("PUT", bundle) == refused
        # Whoever has no such name is told that, not where it would be.
        assert (await rest("PUT", "/admin/v2/namespaces/public/default/0x1/unload"))[0] == 412

    run(tmp_path, scenario)


def test_a_partitioned_topic_has_no_owner_but_its_partitions_have(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t/partitions", "2") == DONE
        rest.broker.service.ownership = Rule(Redirect(OTHER, False))
        assert (await rest("GET", f"{P}/t/partitioned-stats"))[0] == 200
        location(await answered(rest, f"{P}/t-partition-0/stats"))
        published = json.dumps({"messages": [{"payload": "x"}]})
        path = "/topics/persistent/public/default/t/partitions/1"
        found = await rest.answer("POST", path, published)
        assert location(found) == f"http://other:2{path}?authoritative=false"

    run(tmp_path, scenario)


def test_a_bundle_that_is_found_by_its_size_has_an_owner(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        rule = rest.broker.service.ownership = Rule(Redirect(OTHER, False))
        found = await answered(rest, "/admin/v2/namespaces/public/default/LARGEST/split", "PUT")
        location(found)
        assert rule.asked[-1][0].startswith("public/default/0x")

    run(tmp_path, scenario)


def test_a_broker_alone_serves_everything(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        service = rest.broker.service
        assert service.ownership is SERVE_ALL
        assert await service.ownership.check(TopicName.get(TOPIC)) is SERVE
        assert await service.lookup(TOPIC, authoritative=True) == service.listeners.own

    run(tmp_path, scenario)


def test_parts_that_are_switched_off_answer_on_every_broker(tmp_path: Path) -> None:
    path = "/admin/v3/transactions/transactionBufferStats/public/default/t"

    async def scenario(rest: Rest) -> None:
        rest.broker.service.ownership = refusing()
        assert (await answered(rest, path)).status == 503

    run(tmp_path, scenario)

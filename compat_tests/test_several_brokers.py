"""Several brokers of one cluster: each topic has one owner, which any of them names."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from harness.brokers import ClusterBroker

from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import official_client
from compat_tests.messages import payload, receive

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

SESSION_S = 4.0
SETTINGS = {"metadataStoreSessionTimeoutMillis": str(round(SESSION_S * 1000))}
TOPICS = [f"persistent://public/default/t{number}" for number in range(16)]
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    one = Cluster(tmp_path_factory.mktemp("cluster"), bookies=2)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> list[ClusterBroker]:
    """Two brokers on hosts of their own; a test that ends one starts it again."""
    brokers = []
    for name, host in (("a", "127.0.0.1"), ("b", "127.0.0.2")):
        one = cluster.broker(name, advertisedAddress=host, **SETTINGS)
        one.host = host
        brokers.append(one)
    for each in brokers:
        each.start()
    return brokers


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def get(
    broker: ClusterBroker, target: str, method: str = "GET", body: Any = None
) -> tuple[int, str]:
    """Return the answer to a request, which a broker may redirect to another one."""
    host, port = broker.host, broker.web_port
    for _ in range(4):
        connection = http.client.HTTPConnection(host, port, timeout=60)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            connection.request(method, target, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != 307:
            return answer.status, text
        there = urlsplit(answer.headers["Location"])
        assert there.hostname is not None and there.port is not None
        host, port, target = there.hostname, there.port, f"{there.path}?{there.query}"
    raise AssertionError(f"{target} is redirected without end")


def owner(broker: ClusterBroker, topic: str) -> str:
    """Return the URL of a topic's owner, which a broker names."""
    return str(lookup(broker, topic)["brokerUrl"])


def lookup(broker: ClusterBroker, topic: str) -> dict[str, Any]:
    status, text = get(broker, f"/lookup/v2/topic/{path_of(topic)}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def unload(broker: ClusterBroker, topic: str) -> None:
    """Unload the bundle of a topic, by a request to any broker."""
    bundle = get(broker, f"/lookup/v2/topic/{path_of(topic)}/bundle")[1]
    target = f"/admin/v2/namespaces/public/default/{bundle}/unload"
    assert get(broker, target, "PUT")[0] == 204


def split_pair(pair: list[ClusterBroker], topic: str) -> tuple[ClusterBroker, ClusterBroker]:
    """Return the owner of a topic, and the other broker."""
    first, second = pair
    return (first, second) if owner(first, topic) == first.url else (second, first)


class Sender:
    """Sends numbered messages until it is stopped; a failed send fails the test."""

    def __init__(self, url: str, topic: str) -> None:
        self._client = official_client(url)
        self._producer = self._client.create_producer(topic, batching_enabled=False)
        self.sent = 0
        self.longest_s = 0.0
        self._is_over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()
        assert self._failure is None, self._failure

    def _send(self) -> None:
        try:
            while not self._is_over.is_set():
                began = time.monotonic()
                self._producer.send(payload(self.sent))
                self.sent += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)
        except Exception as error:
            self._failure = error

    @property
    def bodies(self) -> list[bytes]:
        """The messages that were acknowledged."""
        return [payload(number) for number in range(self.sent)]

    def wait_for(self, more: int) -> None:
        """Wait until some more messages are acknowledged."""
        wanted = self.sent + more
        eventually(lambda: self.sent >= wanted or self._failure is not None)


class Stream:
    """Sends 1,000 messages per second without waiting for receipts, until it is stopped."""

    def __init__(self, url: str, topic: str) -> None:
        self._client = official_client(url)
        self._producer = self._client.create_producer(topic, batching_enabled=False)
        self._is_over = threading.Event()
        self._receipts_s: list[float] = []
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._send)
        self.sent = 0

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._producer.flush()
        self._client.close()
        assert self._failures == []

    def _send(self) -> None:
        while not self._is_over.is_set():
            self._producer.send_async(payload(self.sent), self._on_answer)
            self.sent += 1
            time.sleep(0.001)

    def _on_answer(self, result: Any, _: Any) -> None:
        if result == pulsar.Result.Ok:
            self._receipts_s.append(time.monotonic())
        else:
            self._failures.append(str(result))

    @property
    def longest_s(self) -> float:
        """The longest time without a receipt."""
        return max(later - earlier for earlier, later in pairwise(self._receipts_s))

    def wait(self) -> None:
        """Wait for some more receipts."""
        wanted = len(self._receipts_s) + 200
        eventually(lambda: len(self._receipts_s) >= wanted or self._failures)


def stored(broker: ClusterBroker, topic: str) -> list[bytes]:
    """Return the messages of a topic; one that was sent again without a receipt counts once."""
    return list(dict.fromkeys(all_stored(broker, topic)))


def all_stored(broker: ClusterBroker, topic: str) -> list[bytes]:
    """Return the messages of a topic."""
    with contextlib.closing(official_client(broker.url)) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        return found


def eventually(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_any_broker_names_the_owner_and_leads_clients_to_it(pair: list[ClusterBroker]) -> None:
    owners = {topic: owner(pair[0], topic) for topic in TOPICS}
    assert set(owners.values()) == {each.url for each in pair}
    assert {topic: owner(pair[1], topic) for topic in TOPICS} == owners
    clients = [official_client(each.url) for each in pair]
    for topic in TOPICS:
        consumer = clients[0].subscribe(topic, "s")
        clients[1].create_producer(topic).send(topic.encode())
        assert receive(consumer, 1) == [topic.encode()]
        counts = [get(each, f"/admin/v2/{path_of(topic)}/stats")[0] for each in pair]
        assert counts == [200, 200]
    for each in clients:
        each.close()


def test_nothing_is_lost_across_unloads(pair: list[ClusterBroker]) -> None:
    topic = "persistent://public/default/unloads"
    with Sender(pair[1].url, topic) as sender:
        for number in range(10):
            sender.wait_for(20)
            unload(pair[number % 2], topic)
        sender.wait_for(20)
    assert stored(pair[0], topic) == sender.bodies


def test_a_move_under_load_is_short_and_stores_nothing_twice(pair: list[ClusterBroker]) -> None:
    topic = "persistent://public/default/load"
    with contextlib.closing(official_client(pair[0].url)) as client:
        client.subscribe(topic, "retains").close()
    urls = ",".join(each.url.removeprefix("pulsar://") for each in pair)
    with Stream(f"pulsar://{urls}", topic) as stream:
        for number in range(6):
            stream.wait()
            unload(pair[number % 2], topic)
        stream.wait()
        leaving, other = split_pair(pair, topic)
        assert leaving.stop() in (0, -signal.SIGTERM)
        stream.wait()
    assert all_stored(other, topic) == [payload(number) for number in range(stream.sent)]
    # One wait of the client, which doubles with each refused lookup, is 0.1 s.
    assert stream.longest_s < 1.0
    leaving.start()


def test_the_survivor_takes_the_topics_of_a_killed_broker(pair: list[ClusterBroker]) -> None:
    topic = "persistent://public/default/killed"
    victim, survivor = split_pair(pair, topic)
    with Sender(survivor.url, topic) as sender:
        sender.wait_for(50)
        victim.kill()
        sender.wait_for(50)
    assert owner(survivor, topic) == survivor.url
    assert sender.longest_s < SESSION_S + 10
    assert stored(survivor, topic) == sender.bodies
    victim.start()
    assert owner(victim, topic) == survivor.url


def test_a_restarted_broker_takes_its_topics_back_before_its_session_ends(
    pair: list[ClusterBroker],
) -> None:
    topic = TOPICS[2]
    victim, other = split_pair(pair, topic)
    with contextlib.closing(official_client(other.url)) as client:
        producer = client.create_producer(topic)
        producer.send(b"before")
        victim.kill()
        victim.start()
        producer.send(b"after")
        assert owner(other, topic) == victim.url


def test_a_broker_that_stops_hands_its_topics_over(pair: list[ClusterBroker]) -> None:
    topic = "persistent://public/default/stopped"
    leaving, other = split_pair(pair, topic)
    with Sender(other.url, topic) as sender:
        sender.wait_for(50)
        began = time.monotonic()
        assert leaving.stop() in (0, -signal.SIGTERM)
        stopped_s = time.monotonic() - began
        sender.wait_for(50)
    assert stored(other, topic) == sender.bodies
    # The session had not to expire.
    assert stopped_s < SESSION_S
    assert sender.longest_s < SESSION_S
    assert owner(other, topic) == other.url
    leaving.start()


def test_a_bundle_moves_to_the_broker_that_a_request_names(pair: list[ClusterBroker]) -> None:
    topic = "persistent://public/default/moved"
    source, target = split_pair(pair, topic)
    bundle = get(source, f"/lookup/v2/topic/{path_of(topic)}/bundle")[1]
    path = f"/admin/v2/namespaces/public/default/{bundle}/unload?destinationBroker="
    assert get(source, f"{path}gone:1", "PUT")[0] == 409
    for asked, to in ((source, target), (source, source), (target, target)):
        assert get(asked, f"{path}{to.host}:{to.web_port}", "PUT")[0] == 204
        assert owner(source, topic) == to.url


def test_the_isolation_policy_of_a_namespace_decides_which_broker_serves_it(
    pair: list[ClusterBroker],
) -> None:
    for name in ("isolated", "shared"):
        target = f"/admin/v2/namespaces/public/{name}"
        assert get(pair[0], target, "PUT", {"bundles": {"numBundles": 8}})[0] == 204
    path = f"/admin/v2/clusters/{CLUSTER}/namespaceIsolationPolicies/policy"
    policy = {
        "namespaces": ["public/isolated"],
        "primary": [re.escape(pair[1].host)],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }
    assert get(pair[0], path, "POST", policy)[0] == 204
    try:
        for name, expected in (("isolated", pair[1]), ("shared", pair[0])):
            topics = [f"persistent://public/{name}/t{number}" for number in range(8)]
            found = {owner(pair[number % 2], topic) for number, topic in enumerate(topics)}
            assert found == {expected.url}
    finally:
        assert get(pair[0], path, "DELETE")[0] == 204


def test_a_second_broker_with_the_same_addresses_is_refused(
    cluster: Cluster, pair: list[ClusterBroker]
) -> None:
    twin = cluster.broker("twin", **SETTINGS)
    twin.settings |= {
        "advertisedListeners": f"internal:{pair[0].url}",
        "internalListenerName": "internal",
    }
    twin.spawn()
    assert twin.process is not None
    assert twin.process.wait(20) != 0
    assert "Give each broker its own advertisedAddress" in twin.output()
    cluster.brokers.remove(twin)


def test_brokers_of_both_kinds_share_a_cluster(cluster: Cluster, pair: list[ClusterBroker]) -> None:
    apache = cluster.broker("apache", kind="apache", **SETTINGS)
    apache.start()
    for broker, other in ((pair[0], apache), (apache, pair[0])):
        for topic in TOPICS:
            assert owner(broker, topic) == owner(other, topic)
    bodies = {topic: [topic.encode(), b"1"] for topic in TOPICS[:4]}
    with contextlib.closing(official_client(apache.url)) as client:
        for topic in bodies:
            client.subscribe(topic, "both").close()
            client.create_producer(topic).send(topic.encode())
        # The Apache broker takes all topics, and is the leader then.
        for each in pair:
            each.stop()
        for topic in bodies:
            assert owner(apache, topic) == apache.url
            client.create_producer(topic).send(b"1")
    for each in pair:
        each.start()
    new = [f"persistent://public/default/new-{number}" for number in range(16)]
    for topic in TOPICS:
        unload(pair[0], topic)
    found = {topic: owner(pair[number % 2], topic) for number, topic in enumerate(new)}
    assert {topic: owner(apache, topic) for topic in new} == found
    assert len(set(found.values())) > 1
    with contextlib.closing(official_client(pair[1].url)) as client:
        for topic, sent in bodies.items():
            consumer = client.subscribe(topic, "both")
            assert receive(consumer, 2) == sent
    apache.stop()
    for topic in TOPICS:
        assert owner(pair[0], topic) in [each.url for each in pair]

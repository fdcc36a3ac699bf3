"""Several brokers of one cluster: each topic has one owner, which any of them names."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker, ClusterBroker
from harness.go_client import Client as GoClient
from harness.raw import RawConnection
from harness.tokens import SECRET, TOKENS, data_url, token
from harness.transaction_commands import ABORT, COMMIT, COORDINATOR_TOPIC, TransactionConnection
from harness.transactions import wait_until
from pulsar.schema import Integer, JsonSchema, Record

from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import official_client
from compat_tests.messages import payload, receive

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

SESSION_S = 4.0
SETTINGS = {
    "metadataStoreSessionTimeoutMillis": str(round(SESSION_S * 1000)),
    "forceDeleteNamespaceAllowed": "true",
    "transactionCoordinatorEnabled": "true",
}
TOPICS = [f"persistent://public/default/t{number}" for number in range(16)]
PATIENCE_S = 30.0
SERVICE_NOT_READY = 6
COORDINATORS = 16  # of a cluster, as it is created
TRANSACTIONS = "/admin/v3/transactions"
SEEN_WITHIN_S = 3.0  # a second, and some for a busy machine


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
    broker: Broker, target: str, method: str = "GET", body: Any = None, login: str = ""
) -> tuple[int, str]:
    """Return the answer to a request, which a broker may redirect to another one."""
    headers = {"Authorization": f"Bearer {login}"} if login else {}
    status, _, data = broker.exchange(method, target, body, headers)
    return status, data.decode()


def ask(broker: Broker, target: str, method: str = "GET", body: Any = None) -> Any:
    """Return the JSON of the answer to a request, which must succeed."""
    status, text = get(broker, target, method, body)
    assert status < 300, f"{method} {target}: {status} {text}"
    return json.loads(text) if text else None


def owner(broker: Broker, topic: str) -> str:
    """Return the URL of a topic's owner, which a broker names."""
    return str(lookup(broker, topic)["brokerUrl"])


def lookup(broker: Broker, topic: str) -> dict[str, Any]:
    status, text = get(broker, f"/lookup/v2/topic/{path_of(topic)}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def unload(broker: Broker, topic: str, to: ClusterBroker | None = None) -> None:
    """Unload the bundle of a topic, by a request to any broker."""
    bundle = get(broker, f"/lookup/v2/topic/{path_of(topic)}/bundle")[1]
    target = f"/admin/v2/namespaces/public/default/{bundle}/unload"
    if to is not None:
        target += f"?destinationBroker={to.host}:{to.web_port}"
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

    def __init__(self, client: pulsar.Client | GoClient, topic: str) -> None:
        self._client = client
        self._producer = client.create_producer(topic, batching_enabled=False)
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


def all_stored(broker: Broker, topic: str) -> list[bytes]:
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


@pytest.fixture(scope="module")
def namespace(pair: list[ClusterBroker]) -> str:
    """A namespace that one broker creates in a tenant that the other one creates."""
    first, second = pair
    ask(first, "/admin/v2/tenants/seen", "PUT", {"allowedClusters": [CLUSTER]})
    ask(second, "/admin/v2/namespaces/seen/ns", "PUT", {"bundles": {"numBundles": 8}})
    return "seen/ns"


def named(broker: ClusterBroker, namespace: str, url: str, prefix: str) -> str:
    """Return the name of a topic that the broker with the given URL owns."""
    names = (f"persistent://{namespace}/{prefix}-{number}" for number in range(64))
    return next(name for name in names if owner(broker, name) == url)


def seen(check: Callable[[], Any]) -> None:
    """Wait until a change at another broker is seen: it may take about a second."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class ListWatcher:
    """A client at one broker that watches the topics of a namespace."""

    def __init__(self, broker: ClusterBroker, namespace: str) -> None:
        self._connection = RawConnection(broker.port)
        request = {1: 1, 2: 1, 3: namespace, 4: f"persistent://{namespace}/.*"}
        self._connection.command(wire.WATCH_TOPIC_LIST, request)
        answer = self._connection.expect(wire.WATCH_TOPIC_LIST_SUCCESS)
        self._names = {bytes(each).decode() for each in answer.fields.get(3, [])}

    def names(self) -> set[str]:
        """Return the names after the notifications that have arrived."""
        with contextlib.suppress(TimeoutError):
            update = self._connection.wait_for(wire.WATCH_TOPIC_UPDATE, 0.05)
            self._names |= {bytes(each).decode() for each in update.fields.get(2, [])}
            self._names -= {bytes(each).decode() for each in update.fields.get(3, [])}
        return self._names

    def close(self) -> None:
        self._connection.socket.close()


class Other(Record):  # type: ignore[misc]
    """A schema that is not compatible with a text."""

    number = Integer()


def admits_second_producer(client: pulsar.Client, topic: str) -> bool:
    producer = client.create_producer(topic)
    try:
        client.create_producer(topic).close()
    except pulsar.ProducerBusy:
        return False
    finally:
        producer.close()
    return True


def test_brokers_apply_the_policies_that_another_one_sets(
    pair: list[ClusterBroker], namespace: str
) -> None:
    policies = f"/admin/v2/namespaces/{namespace}"
    topics = [named(pair[0], namespace, each.url, "policies") for each in pair]
    with contextlib.closing(official_client(pair[0].url)) as client:
        for topic in topics:
            assert admits_second_producer(client, topic)
        for setting, changing in ((1, pair[0]), (0, pair[1])):
            ask(changing, f"{policies}/maxProducersPerTopic", "POST", setting)
            for topic in topics:
                wanted = setting == 0
                seen(lambda t=topic, w=wanted: admits_second_producer(client, t) is w)
        # One broker owns the system topic with the policies of topics.
        for topic in topics:
            for changing in pair:
                ask(changing, f"/admin/v2/{path_of(topic)}/maxProducers", "POST", 1)
                seen(lambda topic=topic: not admits_second_producer(client, topic))
                ask(changing, f"/admin/v2/{path_of(topic)}/maxProducers", "DELETE")
                seen(lambda topic=topic: admits_second_producer(client, topic))
    # The policies of a deleted topic are those of no new topic with its name.
    for topic in topics:
        ask(pair[0], f"/admin/v2/{path_of(topic)}/maxProducers", "POST", 1)
        ask(pair[1], f"/admin/v2/{path_of(topic)}?force=true", "DELETE")
        ask(pair[1], f"/admin/v2/{path_of(topic)}", "PUT")
        assert ask(pair[0], f"/admin/v2/{path_of(topic)}/maxProducers") is None


def test_brokers_see_what_another_one_changes(pair: list[ClusterBroker], namespace: str) -> None:
    first, second = pair
    ask(
        first, "/admin/v2/tenants/seen", "POST", {"adminRoles": ["x"], "allowedClusters": [CLUSTER]}
    )
    seen(lambda: ask(second, "/admin/v2/tenants/seen")["adminRoles"] == ["x"])

    permissions = f"/admin/v2/namespaces/{namespace}/permissions"
    ask(first, f"{permissions}/role", "POST", ["produce"])
    seen(lambda: ask(second, permissions) == {"role": ["produce"]})
    ask(second, f"{permissions}/role", "DELETE")
    seen(lambda: ask(first, permissions) == {})

    setting = "/admin/v2/brokers/configuration/maxPublishRatePerTopicInMessages"
    runtime = "/admin/v2/brokers/configuration/runtime"
    name = setting.rpartition("/")[2]
    ask(first, f"{setting}/17", "POST")
    seen(lambda: ask(second, runtime)[name] == "17")
    ask(second, setting, "DELETE")
    seen(lambda: ask(first, runtime)[name] == "0")

    whole = f"/admin/v2/persistent/{namespace}/grows"
    ask(first, f"{whole}/partitions", "PUT", 2)
    with contextlib.closing(official_client(second.url)) as client:
        topic = f"persistent://{namespace}/grows"
        assert len(client.get_topic_partitions(topic)) == 2
        client.subscribe(topic, "s").close()
        ask(first, f"{whole}/partitions", "POST", 8)
        seen(lambda: len(client.get_topic_partitions(topic)) == 8)
        stats = ask(second, f"{whole}/partitioned-stats")
        assert [list(each["subscriptions"]) for each in stats["partitions"].values()] == [["s"]] * 8

        # Partitions share the schema of their topic.
        schema = {"type": "STRING", "schema": "", "properties": {}}
        ask(first, f"/admin/v2/schemas/{namespace}/grows/schema", "POST", schema)
        assert ask(second, f"/admin/v2/schemas/{namespace}/grows/schema")["type"] == "STRING"
        for index in range(8):
            with pytest.raises(pulsar.IncompatibleSchema):
                client.create_producer(f"{topic}-partition-{index}", schema=JsonSchema(Other))

        topics = [named(first, namespace, each.url, "listed") for each in pair]
        watchers = [ListWatcher(each, namespace) for each in pair]
        for one in topics:
            client.create_producer(one).close()
            for each in watchers:
                seen(lambda each=each, one=one: one in each.names())
        for one in topics:
            ask(first, f"/admin/v2/{path_of(one)}", "DELETE")
            for each in watchers:
                seen(lambda each=each, one=one: one not in each.names())
            assert get(second, f"/admin/v2/{path_of(one)}/stats")[0] == 404
        for each in watchers:
            each.close()


def test_any_broker_works_on_partitions_and_bundles_of_all(
    pair: list[ClusterBroker], namespace: str
) -> None:
    whole, name = f"/admin/v2/persistent/{namespace}/spread", f"persistent://{namespace}/spread"
    first, second = pair
    ask(first, f"{whole}/partitions", "PUT", 8)
    partitions = [f"{name}-partition-{index}" for index in range(8)]
    assert {owner(first, each) for each in partitions} == {each.url for each in pair}
    ask(second, f"{whole}/subscription/s", "PUT", "earliest")
    assert get(first, f"{whole}/subscription/s", "PUT", "earliest")[0] == 409
    with contextlib.closing(official_client(second.url)) as client:
        producer = client.create_producer(name, batching_enabled=False)

        def send() -> None:
            for number in range(16):
                producer.send(payload(number))

        def backlog(broker: ClusterBroker) -> int:
            stats = ask(broker, f"{whole}/partitioned-stats")
            assert len(stats["partitions"]) == 8
            return int(stats["subscriptions"]["s"]["msgBacklog"])

        send()
        assert [backlog(each) for each in pair] == [16, 16]
        assert len(ask(first, f"{whole}/partitioned-internalStats")["partitions"]) == 8
        assert ask(first, f"{whole}/subscriptions") == ["s"]
        assert get(first, f"{whole}/subscription/none/skip_all", "POST")[0] == 404
        ask(first, f"{whole}/subscription/s/skip_all", "POST")
        assert [backlog(each) for each in pair] == [0, 0]
        ask(second, f"{whole}/subscription/s/resetcursor/0", "POST")
        assert [backlog(each) for each in pair] == [16, 16]
        time.sleep(1.1)
        ask(first, f"{whole}/subscription/s/expireMessages/1", "POST")
        assert [backlog(each) for each in pair] == [0, 0]
        send()
        ask(second, f"/admin/v2/namespaces/{namespace}/clearBacklog", "POST")
        assert [backlog(each) for each in pair] == [0, 0]
        ask(first, f"{whole}/unload", "PUT")
        ask(first, f"/admin/v2/namespaces/{namespace}/unload", "PUT")
        send()
        assert [backlog(each) for each in pair] == [16, 16]

        passing = [f"non-persistent://{namespace}/p-{number}" for number in range(16)]
        for each in passing:
            client.create_producer(each)
        assert len({owner(first, each) for each in passing}) == 2
        for broker in pair:
            listed = ask(broker, f"/admin/v2/non-persistent/{namespace}")
            assert sorted(listed) == sorted(passing)

        ask(second, f"{whole}/subscription/s", "DELETE")
        assert ask(first, f"{whole}/subscriptions") == []
        status, text = get(first, f"{whole}/partitions", "DELETE")
        assert status == 412, text  # the producer is connected
        producer.close()
        assert len(ask(first, f"{whole}/terminate/partitions", "POST")) == 8
    ask(first, f"{whole}/partitions", "DELETE")
    eventually(lambda: get(second, f"{whole}/partitioned-stats")[0] == 404)
    assert not [
        each for each in ask(second, f"/admin/v2/persistent/{namespace}") if "spread" in each
    ]
    ask(second, f"/admin/v2/namespaces/{namespace}?force=true", "DELETE")
    eventually(lambda: get(first, f"/admin/v2/namespaces/{namespace}")[0] == 404)


def test_any_broker_names_the_brokers_of_the_cluster(pair: list[ClusterBroker]) -> None:
    ids = {f"{each.host}:{each.web_port}" for each in pair}
    assert len({owner(pair[0], topic) for topic in TOPICS}) == 2
    leaders = set()
    owned = []
    for each in pair:
        assert set(ask(each, f"/admin/v2/brokers/{CLUSTER}")) == ids
        assert set(ask(each, "/admin/v2/brokers")) == ids
        leaders.add(ask(each, "/admin/v2/brokers/leaderBroker")["brokerId"])
        for one in ids:
            assert get(each, f"/admin/v2/brokers/health?brokerId={one}") == (200, "ok")
        found = [ask(each, f"/admin/v2/brokers/{CLUSTER}/{one}/ownedNamespaces") for one in ids]
        owned.append([set(bundles) for bundles in found])
        assert get(each, "/admin/v2/brokers/health?brokerId=none:1")[0] == 404
    assert len(leaders) == 1 and leaders < ids
    assert owned[0] == owned[1]
    assert owned[0][0] and owned[0][1] and not owned[0][0] & owned[0][1]
    assert [
        f"pulsar/{one}/0x00000000_0xffffffff" in of for one, of in zip(ids, owned[0], strict=True)
    ] == [
        True,
        True,
    ]


def test_nothing_is_lost_across_unloads(pair: list[ClusterBroker]) -> None:
    topic = "persistent://public/default/unloads"
    with Sender(pair[1].url, topic) as sender:
        for number in range(10):
            sender.wait_for(20)
            unload(pair[number % 2], topic)
        sender.wait_for(20)
    assert stored(pair[0], topic) == sender.bodies


def test_a_split_leaves_topics_open_unless_it_unloads_them(pair: list[ClusterBroker]) -> None:
    namespace = "public/split"
    ask(pair[1], f"/admin/v2/namespaces/{namespace}", "PUT", {"bundles": {"numBundles": 8}})
    topic = named(pair[0], namespace, pair[0].url, "split")
    local = f"/admin/v2/namespaces/{namespace}/bundles"
    with contextlib.closing(official_client(pair[1].url)) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)

        def split(query: str = "") -> None:
            bundle = get(pair[0], f"/lookup/v2/topic/{path_of(topic)}/bundle")[1]
            count = ask(pair[0], local)["numBundles"]
            ask(pair[1], f"/admin/v2/namespaces/{namespace}/{bundle}/split{query}", "PUT")
            seen(lambda: ask(pair[1], local)["numBundles"] == count + 1)

        producer.send(b"0")
        before = ask(pair[0], f"/admin/v2/{path_of(topic)}/stats")["publishers"][0]
        split()
        producer.send(b"1")
        after = ask(pair[0], f"/admin/v2/{path_of(topic)}/stats")["publishers"][0]
        assert after["connectedSince"] == before["connectedSince"]
        assert owner(pair[1], topic) == pair[0].url
        bundle = get(pair[0], f"/lookup/v2/topic/{path_of(topic)}/bundle")[1]
        owned = ask(
            pair[0],
            f"/admin/v2/brokers/{CLUSTER}/{pair[0].host}:{pair[0].web_port}/ownedNamespaces",
        )
        assert f"{namespace}/{bundle}" in owned
        split("?unload=true")
        producer.send(b"2")
        assert receive(consumer, 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("new_client", [official_client, GoClient])
def test_a_move_under_load_is_short_and_stores_nothing_twice(
    pair: list[ClusterBroker], new_client: Callable[[str], pulsar.Client | GoClient]
) -> None:
    topic = f"persistent://public/default/load-{new_client.__name__}"
    with contextlib.closing(official_client(pair[0].url)) as client:
        client.subscribe(topic, "retains").close()
    leaving, other = pair
    with Stream(new_client(leaving.url), topic) as stream:
        for number in range(7):
            stream.wait()
            unload(pair[number // 2 % 2], topic, to=pair[number % 2])
            seen(lambda number=number: owner(leaving, topic) == pair[number % 2].url)
        # The client knows no other broker for a lookup than the one that leaves.
        stream.wait()
        assert leaving.stop() in (0, -signal.SIGTERM)
        stream.wait()
    assert all_stored(other, topic) == [payload(number) for number in range(stream.sent)]
    assert stream.longest_s < 1.0
    leaving.start()


def removed_brokers(broker: ClusterBroker) -> int:
    """Return the number of failed brokers that a broker has removed."""
    status, text = get(broker, "/metrics")
    found = re.search(r"^pyxbroker_removed_brokers_total\{.*?\} (\d+)", text, re.MULTILINE)
    assert status == 200 and found is not None, text
    return int(found[1])


def test_the_survivor_takes_the_topics_of_a_killed_broker(pair: list[ClusterBroker]) -> None:
    topic = "persistent://public/default/killed"
    victim, survivor = split_pair(pair, topic)
    peers = ask(survivor, "/admin/v2/broker-stats/peers")
    assert [each["state"] for each in peers.values()] == ["reached"]
    removed = removed_brokers(survivor)
    with Sender(survivor.url, topic) as sender:
        sender.wait_for(50)
        victim.kill()
        sender.wait_for(50)
    assert owner(survivor, topic) == survivor.url
    assert sender.longest_s < SESSION_S - 1, "it waited for the end of the session"
    assert removed_brokers(survivor) == removed + 1
    assert stored(survivor, topic) == sender.bodies
    victim.start()
    assert owner(victim, topic) == survivor.url


def test_a_slow_owner_delays_the_end_of_its_transactions_alone(
    pair: list[ClusterBroker],
) -> None:
    """apache/pulsar#21505, #23551: the end is sent again, and no answer is taken for another."""
    coordinating, slow = split_pair(pair, f"{COORDINATOR_TOPIC}-partition-0")
    names = [f"persistent://public/default/slow-{number}" for number in range(100)]
    owned = {
        each: next(name for name in names if owner(coordinating, name) == each.url)
        for each in (coordinating, slow)
    }
    assert slow.process is not None
    with (
        TransactionConnection(coordinating.port) as coordinator,
        TransactionConnection(slow.port) as publisher,
    ):
        publisher.producer(owned[slow])
        coordinator.producer(owned[coordinating])
        waiting, other = coordinator.begin(), coordinator.begin()
        for txn, topic in ((waiting, owned[slow]), (other, owned[coordinating])):
            assert coordinator.add_partitions(txn, topic).code is None
        publisher.send_within(waiting, b"x", 0)
        coordinator.send_within(other, b"x", 0)
        # Longer than an end may take, and shorter than its session lasts.
        slow.process.send_signal(signal.SIGSTOP)
        try:
            request = coordinator.request_id()
            fields = {1: request, 2: waiting[1], 3: waiting[0], 4: COMMIT}
            coordinator.command(wire.END_TXN, fields)
            assert coordinator.end(other, COMMIT).code is None
            with pytest.raises(TimeoutError):
                coordinator.expect(wire.END_TXN + 1, 3.2)
        finally:
            slow.process.send_signal(signal.SIGCONT)
        answer = coordinator.expect(wire.END_TXN + 1)
        assert answer.number(1) == request and coordinator.outcome(answer).code is None
        assert publisher.subscribe(owned[slow], "s").type == wire.SUCCESS
        publisher.flow(1)
        assert wire.parse_payload(publisher.wait_for(wire.MESSAGE).rest).body == b"x"


def test_either_broker_answers_about_all_transactions_and_aborts_them(
    pair: list[ClusterBroker],
) -> None:
    coordinating, other = split_pair(pair, f"{COORDINATOR_TOPIC}-partition-0")
    names = (f"persistent://public/default/seen-{number}" for number in range(100))
    topic = next(each for each in names if owner(other, each) == other.url)
    of_topic = topic.removeprefix("persistent://")
    with (
        TransactionConnection(coordinating.port) as coordinator,
        TransactionConnection(other.port) as publisher,
    ):
        publisher.producer(topic)
        assert publisher.subscribe(topic, "s").type == wire.SUCCESS
        publisher.flow(1)
        txn = coordinator.begin()
        assert coordinator.add_partitions(txn, topic).code is None
        assert publisher.send_within(txn, b"x", 0).type == wire.SEND_RECEIPT
        of_txn = f"{txn[0]}/{txn[1]}"
        for each in pair:
            stats = ask(each, f"{TRANSACTIONS}/coordinatorStats")
            assert {found["state"] for found in stats.values()} == {"Ready"}
            assert stats[str(txn[0])]["ongoingTxnSize"] == 1
            metadata = ask(each, f"{TRANSACTIONS}/transactionMetadata/{of_txn}")
            assert metadata["producedPartitions"][topic]["startPosition"].endswith(":0")
            slow = ask(each, f"{TRANSACTIONS}/slowTransactions/0")
            assert slow == {metadata["txnId"]: metadata}
            found = ask(each, f"{TRANSACTIONS}/transactionBufferStats/{of_topic}")
            assert found["ongoingTxnSize"] == 1
            why = ask(each, f"/admin/v2/{path_of(topic)}/subscription/s/why")
            assert why["reason"] == "open_transaction"
            assert why["evidence"]["transactionTimeoutMs"] == metadata["timeoutAt"]
        ask(other, f"{TRANSACTIONS}/abortTransaction/{of_txn}", "POST")
        assert get(other, f"{TRANSACTIONS}/transactionMetadata/{of_txn}")[0] == 404
        found = ask(coordinating, f"{TRANSACTIONS}/transactionInBufferStats/{of_topic}/{of_txn}")
        assert found == {"aborted": True}


def test_a_coordinator_ends_transactions_at_other_brokers_and_survives_its_own(
    pair: list[ClusterBroker],
) -> None:
    victim, survivor = split_pair(pair, f"{COORDINATOR_TOPIC}-partition-0")
    names = (f"persistent://public/default/transactions-{number}" for number in range(100))
    topic = next(each for each in names if owner(survivor, each) == survivor.url)
    with (
        TransactionConnection(victim.port) as coordinator,
        TransactionConnection(survivor.port) as publisher,
    ):
        assert publisher.connect_coordinator().code == SERVICE_NOT_READY
        publisher.producer(topic)
        committed, opened = coordinator.begin(), coordinator.begin()
        for number, id in enumerate((committed, opened)):
            assert coordinator.add_partitions(id, topic).code is None
            assert publisher.send_within(id, b"%d" % number, number).type == wire.SEND_RECEIPT
        assert coordinator.end(committed, COMMIT).code is None
    victim.kill()
    with TransactionConnection(survivor.port) as coordinator:
        wait_until(lambda: coordinator.connect_coordinator().code is None)
        for number in range(1, COORDINATORS):
            lookup(survivor, f"{COORDINATOR_TOPIC}-partition-{number}")
            assert coordinator.connect_coordinator(number).code is None
        assert coordinator.end(opened, ABORT).code is None
        # The answer may have been lost with the broker.
        assert coordinator.end(committed, COMMIT).code is None
    with contextlib.closing(official_client(survivor.url)) as client:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert consumer.receive(10_000).data() == b"0"
        with pytest.raises(pulsar.Timeout):
            consumer.receive(500)
    victim.start()


def test_a_restarted_broker_takes_its_topics_back_before_its_session_ends(
    pair: list[ClusterBroker],
) -> None:
    topic = TOPICS[2]
    victim, other = split_pair(pair, topic)
    other.stop()  # it would take them immediately
    with contextlib.closing(official_client(victim.url)) as client:
        producer = client.create_producer(topic)
        producer.send(b"before")
        victim.kill()
        began = time.monotonic()
        victim.start()
        producer.send(b"after")
        assert time.monotonic() - began < SESSION_S
    other.start()
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


def test_brokers_ask_each_other_with_credentials(pair: list[ClusterBroker]) -> None:
    for each in pair:
        each.stop()
        each.settings |= {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": TOKENS,
            "tokenSecretKey": data_url(SECRET),
            "superUserRoles": "operator,broker",
            "brokerClientAuthenticationPlugin": "",
        }
        each.start()
    whole, name = "/admin/v2/persistent/public/default/login", "persistent://public/default/login"
    operator = token("operator")
    assert get(pair[0], f"{whole}/partitions", "PUT", 8, operator)[0] == 204
    paths = [path_of(f"{name}-partition-{index}") for index in range(8)]
    found = [get(pair[0], f"/lookup/v2/topic/{path}", login=operator)[1] for path in paths]
    assert len({json.loads(each)["brokerUrl"] for each in found}) == 2
    # Without a login of the brokers, those of the request count at the other brokers, too.
    for broker in pair:
        status, text = get(broker, f"{whole}/partitioned-stats", login=operator)
        assert status == 200 and len(json.loads(text)["partitions"]) == 8
    assert get(pair[0], f"{whole}/partitioned-stats", login=token("stranger"))[0] == 401
    for each in pair:
        each.stop()
        each.settings["brokerClientAuthenticationPlugin"] = "token"
        each.settings["brokerClientAuthenticationParameters"] = f"token:{token('broker')}"
        each.start()
    sights = "/admin/v2/broker-stats/peers"
    eventually(lambda: all("reached" in get(each, sights, login=operator)[1] for each in pair))
    for index, broker in enumerate(pair):
        for topic in ("login", *(f"other-{number}" for number in range(4))):
            target = f"/admin/v2/persistent/public/default/{topic}"
            get(broker, target, "PUT", {}, operator)
            changed = get(broker, f"{target}/maxConsumers", "POST", 5 + index, operator)
            assert changed[0] == 204, changed
            assert get(broker, f"{target}/maxConsumers", login=operator)[1] == str(5 + index)
    assert get(pair[0], f"{whole}/partitions", "DELETE", login=operator)[0] == 204
    assert token("broker") not in "".join(each.output() for each in pair)

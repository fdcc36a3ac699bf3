"""Two brokers of ours and one of Apache's share a cluster: clients and tools use any of them.

The short forms run in CI; `pytest -m minutes` has 200 moves and all command lines of pulsar-admin.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.go_client import Client as GoClient
from harness.java_admin import Done, JavaAdmin
from harness.java_client import Client as JavaClient
from harness.java_client import Java, JavaError

from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import AnyClient, official_client
from compat_tests.messages import payload, publish, receive
from compat_tests.pulsaradmin import (
    NAMES,
    OF_STATE,
    SCHEMA,
    Recorded,
    is_equal,
    lines,
    reason_of,
    text_of,
)
from compat_tests.test_several_brokers import (
    PATIENCE_S,
    all_stored,
    ask,
    eventually,
    get,
    owner,
    path_of,
)

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

SETTINGS = {
    "metadataStoreSessionTimeoutMillis": "6000",
    "forceDeleteNamespaceAllowed": "true",
    # Bundles move when these tests ask for it.
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "brokerDeleteInactiveTopicsFrequencySeconds": "3600",
}
SEEN_WITHIN_S = 5.0
IN_FLIGHT = 20  # messages of a topic that wait for receipts
PAUSE_S = 0.05
ATTEMPTS = 5
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Two brokers of ours, and one of Apache's."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), bookies=2)
    try:
        cluster.start()
        ours = [cluster.broker(name, **SETTINGS) for name in ("a", "b")]
        brokers = [*ours, cluster.apache_broker("apache", **SETTINGS)]
        # The first one leads: Apache's broker ignores the destination of a bundle that it has just
        # placed.
        for each in brokers:
            each.start()
        ask(brokers[0], "/admin/v2/tenants/both", "PUT", {"allowedClusters": [CLUSTER]})
        yield brokers
    finally:
        cluster.close()


class Python:
    """A client of Python or Go, with what these tests use."""

    def __init__(self, client: AnyClient) -> None:
        self._client = client
        self.close = client.close

    def subscribe(self, topic: str, name: str) -> Callable[[], bytes | None]:
        consumer = self._client.subscribe(topic, name, initial_position=EARLIEST)

        def receive() -> bytes | None:
            """Return a message, which is acknowledged; None if none comes for a second."""
            try:
                message = consumer.receive(timeout_millis=1_000)
            except pulsar.Timeout:
                return None
            consumer.acknowledge(message)
            return bytes(message.data())

        return receive

    def producer(self, topic: str) -> Callable[[list[bytes]], Any]:
        producer = self._client.create_producer(topic, batching_enabled=False)
        return lambda bodies: publish(producer, bodies)


class OfJava:
    """The Java client, with the methods of Python."""

    def __init__(self, client: JavaClient) -> None:
        self._client = client
        self.close = client.close

    def subscribe(self, topic: str, name: str) -> Callable[[], bytes | None]:
        consumer = self._client.subscribe(topic, name)

        def receive() -> bytes | None:
            try:
                message = consumer.receive(1_000)
            except JavaError as error:
                assert error.name == "TimeoutException", error
                return None
            consumer.acknowledge(message)
            return message.data

        return receive

    def producer(self, topic: str) -> Callable[[list[bytes]], Any]:
        return self._client.create_producer(topic, batchingEnabled=False).send_all


CLIENTS = {
    "python": lambda url, _: Python(official_client(url)),
    "go": lambda url, _: Python(GoClient(url)),
    "java": lambda url, java: OfJava(java.client(url)),
}


def make_namespace(broker: Broker, name: str, bundles: int) -> str:
    ask(broker, f"/admin/v2/namespaces/both/{name}", "PUT", {"bundles": {"numBundles": bundles}})
    return f"both/{name}"


def bundles_of(broker: Broker, namespace: str) -> list[str]:
    found = ask(broker, f"/admin/v2/namespaces/{namespace}/bundles")["boundaries"]
    return [f"{low}_{high}" for low, high in itertools.pairwise(found)]


def bundle_of(broker: Broker, topic: str) -> str:
    return get(broker, f"/lookup/v2/topic/{path_of(topic)}/bundle")[1]


def move(asked: Broker, topic: str, to: Broker) -> int:
    """Move the bundle of a topic to a broker, by a request to any.

    Return how often another broker took it: a lookup that was under way may let it do so.
    """
    namespace = "/".join(path_of(topic).split("/")[1:3])
    bundle = bundle_of(asked, topic)
    target = to.web_url.removeprefix("http://")
    path = f"/admin/v2/namespaces/{namespace}/{bundle}/unload?destinationBroker={target}"
    for attempt in range(ATTEMPTS):
        status, text = get(asked, path, "PUT")
        assert status == 204, text
        # The Apache broker may answer 500 while several clients make it take the bundle.
        eventually(lambda: get(asked, f"/lookup/v2/topic/{path_of(topic)}")[0] == 200)
        if owner(asked, topic) == to.url:
            return attempt
    raise AssertionError(f"the bundle of {topic} does not move to {to.url}")


def spread(brokers: list[Broker], namespace: str, topics: list[str]) -> None:
    """Give each broker bundles of a namespace."""
    names = {bundle_of(brokers[0], topic): topic for topic in topics}
    assert len(names) >= len(brokers)
    for number, topic in enumerate(names.values()):
        move(random.choice(brokers), topic, brokers[number % len(brokers)])
    found = {owner(random.choice(brokers), topic) for topic in topics}
    assert found == {each.url for each in brokers}


def test_each_client_reaches_every_topic_from_any_broker(three: list[Broker], java: Java) -> None:
    namespace = make_namespace(three[0], "reached", 6)
    topics = [f"persistent://{namespace}/t{number}" for number in range(12)]
    spread(three, namespace, topics)
    for broker in three:
        assert {owner(broker, each) for each in topics} == {each.url for each in three}
        for kind, make in CLIENTS.items():
            with contextlib.closing(make(broker.url, java)) as client:
                for topic in topics:
                    name = f"{kind}-{broker.port}"
                    body = f"{topic} {name}".encode()
                    client.producer(topic)([body])
                    receive_next, found = client.subscribe(topic, name), None
                    while found != body:
                        found = receive_next()
                        assert found is not None


# --- moves under load -------------------------------------------------------------------------


class Load:
    """Sends numbered messages to a topic and receives them, until it is stopped.

    Clients of one kind, at one broker, do both.
    """

    def __init__(self, kind: str, broker: Broker, topic: str, java: Java) -> None:
        self.topic = topic
        # Retains what is stored.
        ask(broker, f"/admin/v2/{path_of(topic)}/subscription/retains", "PUT")
        self._clients = [CLIENTS[kind](broker.url, java) for _ in range(2)]
        self._receive_next = self._clients[0].subscribe(topic, "load")
        self._publish = self._clients[1].producer(topic)
        self.sent = 0
        self.longest_s = 0.0
        self.received: list[bytes] = []
        self.failures: list[BaseException] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._send, self._take)
        ]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()
        for client in self._clients:
            client.close()
        assert self.failures == []

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)

    def _send(self) -> None:
        while not self._is_over.is_set():
            began = time.monotonic()
            self._publish([payload(self.sent + number) for number in range(IN_FLIGHT)])
            self.sent += IN_FLIGHT
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            time.sleep(PAUSE_S)

    def _take(self) -> None:
        seen: set[bytes] = set()
        began = time.monotonic()
        while not self._is_over.is_set() or self._threads[0].is_alive() or len(seen) < self.sent:
            body = self._receive_next()
            if body is not None:
                seen.add(body)
                self.received.append(body)
                began = time.monotonic()
            assert time.monotonic() < began + PATIENCE_S, f"{self.sent - len(seen)} do not come"

    def wait(self) -> None:
        """Wait until some more messages are acknowledged."""
        wanted = self.sent + IN_FLIGHT
        eventually(lambda: self.sent >= wanted or self.failures)


MOVES = [6, pytest.param(200, marks=[pytest.mark.minutes, pytest.mark.slow(600)])]


@pytest.mark.parametrize("moves", MOVES)
def test_moves_between_the_kinds_lose_reorder_and_repeat_nothing(
    three: list[Broker], java: Java, moves: int
) -> None:
    """The messages of each topic, once each and in order: stored, and as consumers get them.

    Deduplication is on, since a client sends again what has no receipt when a topic moves. A
    consumer may get messages again that it has not acknowledged, in order.
    """
    namespace = make_namespace(three[0], f"moves-{moves}", 1)
    ask(three[0], f"/admin/v2/namespaces/{namespace}/deduplication", "POST", True)
    *ours, apache = three
    places = itertools.cycle([ours[0], apache, ours[1], apache])
    with contextlib.ExitStack() as stack:
        loads = [
            stack.enter_context(
                Load(kind, broker, f"persistent://{namespace}/{kind}-{number}", java)
            )
            for (number, broker), kind in zip(enumerate(three), CLIENTS, strict=True)
        ]
        took_s, missed = [], 0
        for number in range(moves):
            for each in loads:
                each.wait()
            began = time.monotonic()
            missed += move(three[number % 3], loads[0].topic, next(places))
            took_s.append(time.monotonic() - began)
        for each in loads:
            each.wait()
    for each in loads:
        expected = [payload(number) for number in range(each.sent)]
        assert all_stored(random.choice(three), each.topic) == expected
        again = len(each.received) - len(expected)
        assert list(dict.fromkeys(each.received)) == expected
        print(
            f"{each.topic}: {each.sent} messages, {moves} moves, {again} received again,"
            f" longest send {each.longest_s:.2f} s"
        )
        subscription = ask(three[0], f"/admin/v2/{path_of(each.topic)}/stats")["subscriptions"]
        assert subscription["load"]["msgBacklog"] == 0
    took_s.sort()
    print(
        f"a move takes {took_s[len(took_s) // 2]:.2f} s (median), {took_s[-1]:.2f} s at most;"
        f" {missed} went to another broker first"
    )


def test_a_split_on_either_side_is_understood_by_the_other(three: list[Broker], java: Java) -> None:
    namespace = make_namespace(three[0], "split", 1)
    topics = [f"persistent://{namespace}/t{number}" for number in range(12)]
    with Load("python", three[0], topics[0], java) as load:
        for number, place in enumerate((three[0], three[2], three[1], three[2])):
            move(three[number % 3], topics[0], place)
            bundle = bundle_of(three[number % 3], topics[0])
            path = f"/admin/v2/namespaces/{namespace}/{bundle}/split?unload=true"
            status, text = get(three[number % 3], path, "PUT")
            assert status == 204, text
            for each in three:
                eventually(lambda each=each, n=number: len(bundles_of(each, namespace)) == n + 2)
            load.wait()
            found = [{topic: bundle_of(each, topic) for topic in topics} for each in three]
            assert found[0] == found[1] == found[2]
            owners = [{topic: owner(each, topic) for topic in topics} for each in three]
            assert owners[0] == owners[1] == owners[2]
    spread(three, namespace, topics)
    assert all_stored(three[2], topics[0]) == [payload(number) for number in range(load.sent)]


# --- pulsar-admin -----------------------------------------------------------------------------

READS = ("get", "list", "permissions", "policies", "bundles", "topics", "subscription", "stats")
IN_CI = 60  # command lines


@pytest.mark.parametrize(
    "count", [IN_CI, pytest.param(None, marks=[pytest.mark.minutes, pytest.mark.slow(300)])]
)
def test_pulsar_admin_gets_the_same_answers_from_any_broker(
    three: list[Broker], tmp_path: Path, count: int | None
) -> None:
    """Lines that change something go to one broker, those that read to all."""
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    brokers = ask(three[0], f"/admin/v2/brokers/{CLUSTER}")
    names = NAMES | {"SCHEMA": str(schema), "BROKER": brokers[0], "standalone": CLUSTER}
    chance = random.Random(4)
    admin = JavaAdmin()
    wrong = []
    compared = 0

    def run(broker: Broker, words: list[str]) -> Done:
        texts = [*admin.run(broker.web_url, *words)]
        for each in brokers:
            texts = [str(text).replace(each, "BROKER") for text in texts]
        return Done(int(texts[0]), texts[1], texts[2])

    try:
        for line in lines()[:count]:
            words = [names.get(each, each) for each in shlex.split(line)]
            if words[0] == "publish":
                path = "/topics/" + words[1].replace("://", "/")
                body = {"messages": [{"payload": "hello"}]}
                status, text = get(chance.choice(three), path, "POST", body)
                assert status == 200, text
            elif not words[1].startswith(READS):
                run(chance.choice(three), words)
            else:
                compared += 1
                deadline = time.monotonic() + SEEN_WITHIN_S
                while True:
                    *ours, apache = (run(each, words) for each in three)
                    text = None if OF_STATE.search(line) else text_of(apache)
                    there = Recorded(line, apache.status, text)
                    others = [
                        each
                        for each in ours
                        if not is_equal(there, each) and reason_of(there, each) is None
                    ]
                    if not others or time.monotonic() > deadline:
                        break
                    time.sleep(0.2)
                if others:
                    wrong.append((there, others))
    finally:
        admin.close()
    print(f"{compared} command lines are compared")
    assert not wrong, "\n".join(map(str, wrong))


def test_the_brokers_of_the_other_kind_take_over_and_return(three: list[Broker]) -> None:
    *ours, apache = three
    namespace = make_namespace(apache, "taken", 4)
    topics = [f"persistent://{namespace}/t{number}" for number in range(8)]
    with contextlib.closing(official_client(apache.url)) as client:
        for topic in topics:
            client.subscribe(topic, "both").close()
            client.create_producer(topic).send(topic.encode())
        # The Apache broker takes all topics, and is the leader then.
        for each in ours:
            each.stop()
        for topic in topics:
            assert owner(apache, topic) == apache.url
            client.create_producer(topic).send(b"1")
    for each in ours:
        each.start()
    spread(three, namespace, topics)
    with contextlib.closing(official_client(ours[1].url)) as client:
        for topic in topics:
            consumer = client.subscribe(topic, "both")
            assert receive(consumer, 2) == [topic.encode(), b"1"]

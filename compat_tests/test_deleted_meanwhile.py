"""Topics and namespaces that are deleted while clients are on them, and made again at once.

Clients meet clean errors or nothing at all, and then a topic that works: what is published to it
comes, in order, and nothing of the one before. Subscriptions that are deleted while a request for
all of them is under way cost nobody the topic.
"""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import ClientFactory

BROKER_SETTINGS = {"forceDeleteNamespaceAllowed": "true"}
EARLIEST = pulsar.InitialPosition.Earliest
NUMBERS = itertools.count(1)
PATIENCE_S = 60
STEPS = 50  # messages before it, and after it
SUBSCRIPTIONS = 150
ROUNDS = 6


class Clients:
    """A producer and a consumer that are opened again when they are refused, as a service does."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._producer: Any = None
        self._consumer: Any = None
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.errors: list[str] = []

    def step(self, body: bytes) -> None:
        """Publishes a message, and receives one if there is one."""
        try:
            if self._consumer is None:
                self._consumer = self._client.subscribe(self._topic, "s", initial_position=EARLIEST)
            if self._producer is None:
                self._producer = self._client.create_producer(
                    self._topic, send_timeout_millis=5_000, batching_enabled=False
                )
            self._producer.send(body)
            self.sent.append(body)
        except pulsar.PulsarException as error:
            self.errors.append(f"send: {error!r}")
            self._close()
        self._receive()

    def _receive(self, timeout_ms: int = 200) -> bool:
        if self._consumer is None:
            return False
        try:
            message = self._consumer.receive(timeout_millis=timeout_ms)
            self.received.append(message.data())
            self._consumer.acknowledge(message)
        except pulsar.Timeout:
            return False
        except pulsar.PulsarException as error:
            self.errors.append(f"receive: {error!r}")
            self._close()
        return True

    def drain(self) -> None:
        """Receives what there is."""
        while self._receive(2_000):
            pass

    def _close(self) -> None:
        for each in (self._producer, self._consumer):
            try:
                if each is not None:
                    each.close()
            except pulsar.PulsarException:
                pass  # It was refused, and that is told already.
        self._producer = self._consumer = None


def made(broker: Broker, path: str, partitions: int) -> None:
    """Makes a topic that there may be already: its clients come back, and may make it."""
    asked = ("/partitions", partitions) if partitions else ("", None)
    assert broker.rest("PUT", path + asked[0], asked[1])[0] in (204, 409)


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("what", ["topic", "namespace"])
def test_what_is_deleted_under_its_clients_and_made_again_works(
    broker: Broker, new_client: ClientFactory, what: str, partitions: int
) -> None:
    namespace = f"public/again-{os.getpid()}-{next(NUMBERS)}"
    path = f"/admin/v2/persistent/{namespace}/t"
    assert broker.rest("PUT", f"/admin/v2/namespaces/{namespace}", {})[0] == 204
    made(broker, path, partitions)
    clients = Clients(new_client(operation_timeout_seconds=10), f"persistent://{namespace}/t")
    numbers = itertools.count()
    for _ in range(STEPS):
        clients.step(b"%d" % next(numbers))
    assert clients.errors == []

    if what == "namespace":
        assert broker.rest("DELETE", f"/admin/v2/namespaces/{namespace}?force=true")[0] == 204
        assert broker.rest("PUT", f"/admin/v2/namespaces/{namespace}", {})[0] == 204
    else:
        suffix = "/partitions" if partitions else ""
        assert broker.rest("DELETE", f"{path}{suffix}?force=true")[0] == 204
    made(broker, path, partitions)

    first, deadline = next(numbers), time.monotonic() + PATIENCE_S
    while sum(int(each) >= first for each in clients.sent) < STEPS:
        assert time.monotonic() < deadline, (clients.errors, clients.sent[-3:])
        clients.step(b"%d" % next(numbers))
    clients.drain()
    sent = [each for each in clients.sent if int(each) >= first]
    received = [each for each in clients.received if int(each) >= first]
    if partitions:
        assert sorted(received, key=int) == sent, clients.errors
    else:
        assert received == sent, clients.errors
    assert len(set(clients.received)) == len(clients.received)
    topics = [f"persistent://{namespace}/t-partition-{n}" for n in range(partitions)]
    found = broker.rest("GET", f"/admin/v2/persistent/{namespace}")
    assert found == (200, topics or [f"persistent://{namespace}/t"])


@pytest.mark.pyxbroker  # of Apache Pulsar the truncation ends with 500
def test_a_subscription_that_is_deleted_while_a_topic_is_truncated_costs_nobody_the_topic(
    broker: Broker,
) -> None:
    name = f"truncated-{os.getpid()}-{next(NUMBERS)}"
    path = f"/admin/v2/persistent/public/default/{name}"
    names = [f"s{n:03}" for n in range(SUBSCRIPTIONS)]
    with RawConnection(broker.port) as producer, ThreadPoolExecutor(1) as other:
        producer.producer(f"persistent://public/default/{name}")
        for each in names:
            assert broker.rest("PUT", f"{path}/subscription/{each}", "earliest")[0] == 204
        for number in range(ROUNDS):
            # Nobody has acknowledged it, so the truncation has something to write for each.
            producer.send(b"x", number)
            assert producer.receive().type == wire.SEND_RECEIPT
            truncating = other.submit(broker.rest, "DELETE", f"{path}/truncate")
            time.sleep(0.01 * (number + 1))
            assert broker.rest("DELETE", f"{path}/subscription/{names.pop()}")[0] == 204
            assert truncating.result()[0] == 204
        # Whoever was sent away got CLOSE_PRODUCER before this.
        producer.send(b"x", ROUNDS)
        assert producer.receive().type == wire.SEND_RECEIPT
    found = broker.rest("GET", f"{path}/stats")[1]["subscriptions"]
    assert {each: found[each]["msgBacklog"] for each in found} == dict.fromkeys(names, 1)

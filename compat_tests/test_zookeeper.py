"""Standalone with its metadata in a real ZooKeeper, which goes away and comes back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest
from harness.brokers import Broker, BrokerFailed
from tests.zookeeper_server import ZooKeeperServer

from compat_tests.conftest import official_client
from compat_tests.messages import payload, publish, receive
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import open_store

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker, pytest.mark.standalone]

SESSION_TIMEOUT_MS = 2000


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def broker(own_broker: Callable[..., Broker], zookeeper: ZooKeeperServer) -> Broker:
    one = own_broker(
        settings={
            "metadataStoreUrl": f"zk:{zookeeper.address}",
            "metadataStoreSessionTimeoutMillis": str(SESSION_TIMEOUT_MS),
            "metadataStoreOperationTimeoutSeconds": "5",
        }
    )
    one.start()
    return one


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_topics_survive_a_restart(broker: Broker, topic: str, how: str) -> None:
    client = official_client(broker.url)
    client.subscribe(topic, "kept").close()
    bodies = [payload(number) for number in range(500)]
    publish(client.create_producer(topic), bodies)
    client.close()
    broker.stop() if how == "stop" else broker.kill()
    broker.start()
    client = official_client(broker.url)
    consumer = client.subscribe(topic, "kept")
    assert receive(consumer, 500) == bodies
    client.close()


def test_what_needs_no_metadata_goes_on_without_zookeeper(
    broker: Broker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    client = official_client(broker.url)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "busy")
    zookeeper.kill()
    deadline = time.monotonic() + 2 * SESSION_TIMEOUT_MS / 1000
    sent = 0
    while time.monotonic() < deadline:
        producer.send(payload(sent))
        message = consumer.receive(5000)
        assert message.data() == payload(sent)
        consumer.acknowledge(message)
        sent += 1
    assert sent > 100
    with pytest.raises(pulsar.PulsarException):
        official_client(broker.url, operation_timeout_seconds=3).create_producer(topic + "-new")
    producer.send(b"still here")
    assert consumer.receive(5000).data() == b"still here"
    zookeeper.start()
    _eventually(lambda: client.create_producer(topic + "-later").send(b"again"))
    client.close()


def test_a_lost_session_stops_nothing(
    broker: Broker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    client = official_client(broker.url)
    producer = client.create_producer(topic)
    producer.send(b"before")
    zookeeper.pause()
    time.sleep(3 * SESSION_TIMEOUT_MS / 1000)
    producer.send(b"meanwhile")
    zookeeper.resume()
    _eventually(lambda: client.create_producer(topic + "-later").send(b"again"))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(5000).data() for _ in range(2)] == [b"before", b"meanwhile"]
    client.close()


def test_a_policy_that_another_process_sets_is_in_force_within_a_second(
    broker: Broker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    client = official_client(broker.url)
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "s", consumer_type=shared, receiver_queue_size=100)
    _set_policies(zookeeper, {"max_unacked_messages_per_consumer": 10})
    time.sleep(1)
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, [payload(number) for number in range(50)])
    for number in range(10):
        assert consumer.receive(5000).data() == payload(number)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1000)
    _set_policies(zookeeper, {"max_unacked_messages_per_consumer": 20})
    began = time.monotonic()
    for number in range(10, 20):
        assert consumer.receive(1000).data() == payload(number)
    assert time.monotonic() - began < 1
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1000)
    client.close()


def _set_policies(zookeeper: ZooKeeperServer, changes: dict[str, int]) -> None:
    """Changes a namespace's record in this process; the broker is another one."""

    async def change() -> None:
        store = open_store(f"zk:{zookeeper.address}")
        await store.open()
        path = paths.namespace_policies("public/default")
        found = await store.get(path)
        assert found is not None
        value = json.dumps(json.loads(found.value) | changes).encode()
        await store.put(path, value, found.version)
        await store.close()

    asyncio.run(change())


def _eventually(action: Callable[[], object]) -> None:
    """Runs an action until it succeeds; its last error is the test's when it never does."""
    deadline = time.monotonic() + 30
    while True:
        try:
            action()
            return
        except pulsar.PulsarException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_data_of_a_zookeeper_that_only_a_file_names_is_not_served_without_it(
    broker: Broker, topic: str
) -> None:
    client = official_client(broker.url)
    publish(client.create_producer(topic), [payload(0)])
    client.close()
    broker.stop()
    store = broker.settings.pop("metadataStoreUrl")
    broker.settings["zookeeperServers"] = store.removeprefix("zk:")
    with pytest.raises(BrokerFailed, match=r"ended with 1:(.|\n)* --metadata(.|\n)*pyxbroker: "):
        broker.start()

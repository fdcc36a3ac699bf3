"""Topics by REST while clients use them: partitions that are added, termination, deletion."""

from __future__ import annotations

import time
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection

from compat_tests.conftest import AnyClient, BrokerFactory, ClientFactory
from compat_tests.messages import assert_nothing_more, publish, receive

pytestmark = pytest.mark.slow

EARLIEST = pulsar.InitialPosition.Earliest
ROUND_ROBIN = pulsar.PartitionsRoutingMode.RoundRobinDistribution
NAMESPACE = "/admin/v2/persistent/public/default"
# The Python client looks for new partitions once a minute, which it does not let one change.
DISCOVERY_S = 100
TERMINATED = 15
# The Go client closes a producer that is refused for good, and then says only that.
TOO_LATE = (pulsar.TopicTerminated, pulsar.AlreadyClosed)


def path(topic: str) -> str:
    """The REST path of a persistent topic of public/default."""
    return f"{NAMESPACE}/{topic.rpartition('/')[2]}"


def discovering(client_kind: str, of: str) -> dict[str, Any]:
    """The options of a producer or a consumer that looks for new partitions often."""
    if client_kind != "go":
        return {}
    return (
        {"partitions_update_interval_ms": 300}
        if of == "producer"
        else {"pattern_auto_discovery_period": 0.3}
    )


@pytest.mark.slow(65)
def test_partitions_are_added_while_clients_run(
    broker: Broker, new_client: ClientFactory, topic: str
) -> None:
    assert broker.rest("PUT", path(topic) + "/partitions", 2) == (204, None)
    client = new_client()
    consumer = client.subscribe(topic, "s", **discovering(new_client.kind, "consumer"))
    producer = client.create_producer(
        topic,
        batching_enabled=False,
        message_routing_mode=ROUND_ROBIN,
        **discovering(new_client.kind, "producer"),
    )
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(5)}
    received: dict[int, list[bytes]] = {partition: [] for partition in range(5)}

    def send() -> None:
        body = b"%d" % sum(map(len, sent.values()))
        sent[producer.send(body).partition()].append(body)

    def take(timeout_ms: int) -> None:
        message = consumer.receive(timeout_millis=timeout_ms)
        received[message.message_id().partition()].append(message.data())
        consumer.acknowledge(message)

    for _ in range(20):
        send()
        take(10_000)
    assert {partition for partition in sent if sent[partition]} == {0, 1}
    assert broker.rest("POST", path(topic) + "/partitions", 5) == (204, None)
    assert broker.rest("GET", path(topic) + "/partitions") == (
        200,
        {"partitions": 5, "deleted": False},
    )
    deadline = time.monotonic() + DISCOVERY_S
    while not all(sent.values()):
        assert time.monotonic() < deadline, f"only {[*map(len, sent.values())]} were sent"
        send()
        time.sleep(0.01)
    for _ in range(50):
        send()
    total = sum(map(len, sent.values()))
    while sum(map(len, received.values())) < total:
        take(DISCOVERY_S * 1000)
    assert received == sent, "nothing is lost, and each partition keeps its order"
    assert_nothing_more(consumer)


def test_a_new_partition_has_the_subscriptions_of_the_others(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    assert broker.rest("PUT", path(topic) + "/partitions", 1) == (204, None)
    any_client.subscribe(topic, "s").close()
    assert broker.rest("POST", path(topic) + "/partitions", 3) == (204, None)
    producer = any_client.create_producer(topic, message_routing_mode=ROUND_ROBIN)
    bodies = [b"%d" % number for number in range(30)]
    ids = [producer.send(body) for body in bodies]
    assert {one.partition() for one in ids} == {0, 1, 2}
    assert sorted(receive(any_client.subscribe(topic, "s"), 30)) == sorted(bodies)


def test_a_terminated_topic_is_read_to_its_end(
    broker: Broker, new_client: ClientFactory, topic: str
) -> None:
    client = new_client()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    bodies = [b"%d" % number for number in range(20)]
    ids = publish(producer, bodies)
    # With a connection of its own: neither client knows REACHED_END_OF_TOPIC, which Apache Pulsar
    # sends to both, and they close the connection that it comes on.
    reader = new_client().create_reader(topic, pulsar.MessageId.earliest)
    assert receive(consumer, 10) == bodies[:10]
    last = {
        "ledgerId": ids[-1].ledger_id(),
        "entryId": ids[-1].entry_id(),
        "partitionIndex": -1,
        "batchIndex": -1,
        "batchSize": 0,
    }
    for _ in range(2):
        assert broker.rest("POST", path(topic) + "/terminate") == (200, last)
    with pytest.raises(TOO_LATE):
        producer.send(b"late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert receive(consumer, 10) == bodies[10:]
    assert_nothing_more(consumer)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(timeout_millis=10_000).data())
    assert read == bodies
    # What is there can be read for ever, also by those who come later.
    late = client.subscribe(topic, "late", initial_position=EARLIEST)
    assert receive(late, 20) == bodies


def test_the_end_of_a_terminated_topic_is_told(broker: Broker, topic: str) -> None:
    """REACHED_END_OF_TOPIC, for which neither the Python nor the Go client has a listener."""
    with RawConnection(broker.port) as one, RawConnection(broker.port) as other:
        one.subscribe(topic, "s")
        one.flow(100)
        other.producer(topic)
        other.send(b"only", 0)
        other.wait_for(wire.SEND_RECEIPT)
        place = one.wait_for(wire.MESSAGE).data(2)
        assert broker.rest("POST", path(topic) + "/terminate")[0] == 200
        assert other.wait_for(wire.CLOSE_PRODUCER).number(1) == 1
        one.command(wire.ACK, {1: 1, 2: wire.INDIVIDUAL, 3: place})
        assert one.wait_for(wire.REACHED_END_OF_TOPIC).number(1) == 1
        request = other.request_id()
        other.command(wire.PRODUCER, {1: topic, 2: 2, 3: request})
        answer = other.wait_for(wire.ERROR)
        assert (answer.number(1), answer.number(2)) == (request, TERMINATED)


def test_all_partitions_are_terminated_at_once(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    assert broker.rest("PUT", path(topic) + "/partitions", 2) == (204, None)
    consumer = any_client.subscribe(topic, "s")
    producer = any_client.create_producer(topic, message_routing_mode=ROUND_ROBIN)
    bodies = [b"%d" % number for number in range(10)]
    for body in bodies:
        producer.send(body)
    assert broker.rest("POST", path(topic) + "/terminate") == (
        405,
        {"reason": "Termination of a partitioned topic is not allowed"},
    )
    status, last = broker.rest("POST", path(topic) + "/terminate/partitions")
    assert (status, sorted(last)) == (200, ["0", "1"])
    assert sum(each["entryId"] + 1 for each in last.values()) == 10
    with pytest.raises(TOO_LATE):
        producer.send(b"late")
    assert sorted(receive(consumer, 10)) == sorted(bodies)
    assert_nothing_more(consumer)


def in_use(clients: int, consumers: int, producers: int) -> tuple[int, dict[str, str]]:
    """The refusal to delete a topic."""
    return 412, {
        "reason": f"Topic has {clients} client{'s' if clients > 1 else ''} connected Including"
        f" {consumers} consumers, {producers} producers, and 0 replicators."
    }


def test_a_topic_in_use_is_not_deleted(broker: Broker, any_client: AnyClient, topic: str) -> None:
    consumer = any_client.subscribe(topic, "s")
    producer = any_client.create_producer(topic)
    producer.send(b"one")
    assert broker.rest("DELETE", path(topic)) == in_use(2, 1, 1)
    producer.close()
    assert broker.rest("DELETE", path(topic)) == in_use(1, 1, 0)
    assert receive(consumer, 1) == [b"one"]
    consumer.close()
    assert broker.rest("DELETE", path(topic)) == (204, None)
    assert topic not in broker.rest("GET", NAMESPACE)[1]
    missing = (404, {"reason": f"Topic {topic} not found"})
    assert broker.rest("DELETE", path(topic)) == missing
    # A topic of the same name is a new one.
    assert_nothing_more(any_client.subscribe(topic, "s", initial_position=EARLIEST))


def test_clients_are_told_of_a_deletion_by_force(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.subscribe(topic, "s", 7)
        one.producer(topic, 8)
        assert broker.rest("DELETE", path(topic) + "?force=true") == (204, None)
        told = {one.receive().type, one.receive().type}
        assert told == {wire.CLOSE_CONSUMER, wire.CLOSE_PRODUCER}
        assert topic not in broker.rest("GET", NAMESPACE)[1]


def test_clients_begin_anew_after_a_deletion_by_force(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    consumer = any_client.subscribe(topic, "s")
    producer = any_client.create_producer(topic)
    producer.send(b"before")
    assert receive(consumer, 1) == [b"before"]
    assert broker.rest("DELETE", path(topic) + "?force=true") == (204, None)
    # They come back by themselves, and a topic that they may make is made again.
    after = any_client.subscribe(topic, "new", initial_position=EARLIEST)
    producer.send(b"after")
    assert receive(after, 1) == [b"after"]
    assert topic in broker.rest("GET", NAMESPACE)[1]


def test_a_partitioned_topic_in_use_is_deleted_by_force_only(
    own_broker: BrokerFactory, new_client: ClientFactory, topic: str
) -> None:
    broker = own_broker(settings={"allowAutoTopicCreation": "false"})
    broker.start()
    client = new_client(broker.url, operation_timeout_seconds=5)
    assert broker.rest("PUT", path(topic) + "/partitions", 2) == (204, None)
    assert broker.rest("GET", NAMESPACE + "/partitioned") == (200, [topic])
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, send_timeout_millis=5000)
    assert broker.rest("DELETE", path(topic) + "/partitions") == in_use(2, 1, 1)
    assert broker.rest("DELETE", path(topic))[0] == 409
    producer.send(b"one")
    assert receive(consumer, 1) == [b"one"]
    assert broker.rest("DELETE", path(topic) + "/partitions?force=true") == (204, None)
    assert broker.rest("GET", NAMESPACE) == (200, [])
    assert broker.rest("GET", NAMESPACE + "/partitioned") == (200, [])
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"two")
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(topic)


def test_a_topic_made_by_rest_is_used(
    own_broker: BrokerFactory, new_client: ClientFactory, topic: str
) -> None:
    broker = own_broker(settings={"allowAutoTopicCreation": "false"})
    broker.start()
    client = new_client(broker.url, operation_timeout_seconds=5)
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(topic)
    assert broker.rest("PUT", path(topic), {"owner": "me"}) == (204, None)
    assert broker.rest("PUT", path(topic)) == (409, {"reason": "This topic already exists"})
    assert broker.rest("GET", NAMESPACE) == (200, [topic])
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"one")
    assert receive(consumer, 1) == [b"one"]


def test_a_force_deleted_topic_refuses_who_was_there(broker: Broker, topic: str) -> None:
    """What is sent to a producer that was sent away is not taken for another topic's."""
    with RawConnection(broker.port) as one:
        one.producer(topic)
        assert broker.rest("DELETE", path(topic) + "?force=true") == (204, None)
        one.wait_for(wire.CLOSE_PRODUCER)
        one.send(b"late", 0)
        try:
            one.assert_alive()
        except ConnectionClosed:
            return
        assert topic not in broker.rest("GET", NAMESPACE)[1]

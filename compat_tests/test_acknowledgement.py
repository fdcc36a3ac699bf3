"""Acknowledgements that leave something: single messages of batches, and many holes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests import holes
from compat_tests.conftest import AnyClient, ClientFactory, broker_kind
from compat_tests.messages import assert_nothing_more

BATCH = 20
SETTINGS = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}
KINDS = [pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive]


@pytest.fixture(scope="module")
def batch_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that takes acknowledgements of single messages; ours always does."""
    one = Broker(broker_kind(), tmp_path_factory.mktemp("broker"), settings=SETTINGS)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture
def client(batch_broker: Broker, new_client: ClientFactory) -> AnyClient:
    return new_client(batch_broker.url)


def publish_batches(client: AnyClient, topic: str, batches: int) -> list[bytes]:
    """Sends batches of BATCH messages."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_publish_delay_ms=10_000,
        block_if_queue_full=True,
    )
    bodies = [b"message %d" % number for number in range(batches * BATCH)]
    for body in bodies:
        producer.send_async(body, lambda result, message_id: None)
    producer.flush()
    producer.close()
    return bodies


def subscribe(client: AnyClient, topic: str, kind: Any = KINDS[0], **options: Any) -> Any:
    return client.subscribe(
        topic,
        "sub",
        consumer_type=kind,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
        **options,
    )


def receive_all(consumer: Any, count: int) -> list[Any]:
    messages = [consumer.receive(timeout_millis=20_000) for _ in range(count)]
    assert_nothing_more(consumer)
    return messages


@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_messages_of_a_batch_do_not_come_again(
    client: AnyClient, topic: str, kind: Any
) -> None:
    consumer = subscribe(client, topic, kind)
    bodies = publish_batches(client, topic, 5)
    chance = random.Random(1)
    left = []
    for message in receive_all(consumer, len(bodies)):
        if chance.random() < 0.5:
            consumer.acknowledge(message)
        else:
            left.append(message.data())
    consumer.close()
    consumer = subscribe(client, topic, kind)
    again = receive_all(consumer, len(left))
    assert [message.data() for message in again] == left
    for message in again:
        consumer.acknowledge(message)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, kind))


def test_a_negative_acknowledgement_brings_back_what_is_left_of_a_batch(
    client: AnyClient, topic: str
) -> None:
    # Behind the acknowledgements, which clients collect for a tenth of a second.
    consumer = subscribe(client, topic, negative_ack_redelivery_delay_ms=1000)
    bodies = publish_batches(client, topic, 1)
    messages = receive_all(consumer, BATCH)
    for message in messages[::2]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[1])
    again = [consumer.receive(timeout_millis=20_000).data() for _ in range(BATCH // 2)]
    assert again == bodies[1::2]


def test_a_cumulative_acknowledgement_within_a_batch(client: AnyClient, topic: str) -> None:
    consumer = subscribe(client, topic, pulsar.ConsumerType.Exclusive)
    bodies = publish_batches(client, topic, 3)
    messages = receive_all(consumer, len(bodies))
    consumer.acknowledge_cumulative(messages[BATCH + 6])
    consumer.close()
    consumer = subscribe(client, topic, pulsar.ConsumerType.Exclusive)
    again = receive_all(consumer, len(bodies) - BATCH - 7)
    assert [message.data() for message in again] == bodies[BATCH + 7 :]


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.pyxbroker)])
def test_single_messages_survive_the_end_of_the_broker(
    own_broker: Callable[..., Broker], new_client: ClientFactory, topic: str, how: str
) -> None:
    """Apache Pulsar 4.2.4 forgets them when it is stopped."""
    broker = own_broker(settings=SETTINGS)
    broker.start()
    client = new_client(broker.url)
    consumer = subscribe(client, topic)
    bodies = publish_batches(client, topic, 10)
    messages = receive_all(consumer, len(bodies))
    # Apache Pulsar stores single messages with the next whole entry, here the last one.
    acknowledged = {*range(0, len(bodies) - BATCH, 3), *range(len(bodies) - BATCH, len(bodies))}
    for number in sorted(acknowledged):
        consumer.acknowledge(messages[number])
    consumer.close()
    client.close()
    if how == "stop":
        broker.stop()
    else:
        with RawConnection(broker.port) as raw:
            # An acknowledgement with a receipt is durable, and so are all before it.
            holes.subscribe(raw, topic)
            last = messages[-1].message_id()
            holes.acknowledge_and_wait(raw, (last.ledger_id(), last.entry_id()))
        if broker.kind == "apache":
            time.sleep(3)  # It answers first and stores within a second or two.
        broker.kill()
    broker.start()
    client = new_client(broker.url)
    expected = [body for number, body in enumerate(bodies) if number not in acknowledged]
    again = receive_all(subscribe(client, topic), len(expected))
    assert [message.data() for message in again] == expected


@pytest.mark.pyxbroker
@pytest.mark.parametrize("count", [20_000, 2_000_000])
def test_holes_survive_a_kill(own_broker: Callable[..., Broker], topic: str, count: int) -> None:
    """However many: Apache Pulsar keeps 10,000 of them."""
    broker = own_broker()
    broker.start()
    with RawConnection(broker.port) as raw:
        positions = holes.positions_of(holes.publish(raw, topic, count))
    assert len(positions) == count
    odd = positions[1::2]
    random.Random(3).shuffle(odd)
    with RawConnection(broker.port) as raw:
        holes.subscribe(raw, topic)
        holes.acknowledge(raw, odd[:-50])
        for position in odd[-50:]:
            holes.acknowledge_and_wait(raw, position)
    broker.kill()
    broker.start()
    with RawConnection(broker.port) as raw:
        holes.subscribe(raw, topic)
        delivered = holes.deliver(raw, count // 2)
    assert len(delivered) == count // 2
    assert delivered.isdisjoint(odd)


@pytest.mark.pyxbroker
def test_positions_that_do_not_exist_are_ignored_and_cost_nothing(
    own_broker: Callable[..., Broker], topic: str
) -> None:
    broker = own_broker()
    broker.start()
    count = 300_000
    with RawConnection(broker.port) as raw:
        ends = holes.publish(raw, topic, 1_000)
        ledger, first = ends[0]
        assert len(ends) == 2
        holes.subscribe(raw, topic)
        memory = broker.memory_kib()
        # Positions that do not exist are ignored, whatever they cost somebody else.
        for far in (1 << 20, 1 << 40, (1 << 63) - 2):
            holes.acknowledge(raw, [(ledger, far), (ledger + far, 0)])
        holes.acknowledge(raw, [(ledger, first + 1 + n) for n in range(count)])
        holes.acknowledge_and_wait(raw, (ledger, first + 1))
        assert broker.memory_kib() - memory < 20_000
        raw.command(wire.FLOW, {1: 1, 2: 10})
        assert wire.position(raw.wait_for(wire.MESSAGE).data(2)) == (ledger, first)


def test_a_cumulative_acknowledgement_before_the_first_batch_of_a_ledger(
    client: AnyClient, topic: str, batch_broker: Broker
) -> None:
    """Clients that do not acknowledge parts of batches name the entry before the batch: -1."""
    subscribe(client, topic, pulsar.ConsumerType.Exclusive).close()
    publish_batches(client, topic, 2)
    path = "/admin/v2/" + topic.replace("://", "/")
    assert batch_broker.request("PUT", f"{path}/unload")[0] == 204
    bodies = publish_batches(client, topic, 1)
    code, stats = batch_broker.rest("GET", f"{path}/internalStats")
    assert code == 200
    with RawConnection(batch_broker.port) as raw:
        assert raw.subscribe(topic, "sub").type == wire.SUCCESS
        before = wire.message_id(stats["ledgers"][-1]["ledgerId"], wire.MAX_UINT64)
        raw.command(wire.ACK, {1: 1, 2: wire.CUMULATIVE, 3: before, 8: raw.request_id()})
        assert raw.wait_for(wire.ACK_RESPONSE).data(5) == b""
    again = receive_all(subscribe(client, topic, pulsar.ConsumerType.Exclusive), BATCH)
    assert [message.data() for message in again] == bodies

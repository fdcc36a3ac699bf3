"""Deduplication as clients meet it: resends, restarts, policies while producers are connected."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import Answer, RawConnection

from compat_tests.conftest import AnyClient, BrokerFactory
from compat_tests.messages import receive

LAST_SEQUENCE_ID = 3  # fields of PRODUCER_SUCCESS
NOWHERE = (-1, -1)
POLICY = "/admin/v2/namespaces/public/default/deduplication"


@pytest.fixture(autouse=True)
def deduplication(broker: Broker) -> Iterator[None]:
    """The namespace has it; a topic that is opened from now on does."""
    assert broker.rest("POST", POLICY, True)[0] == 204
    yield
    assert broker.rest("DELETE", POLICY)[0] == 204


def open_producer(connection: RawConnection, topic: str, producer_id: int, name: str) -> int:
    """The last sequence id that the broker knows."""
    connection.lookup(topic)
    fields = {1: topic, 2: producer_id, 3: connection.request_id(), 4: name}
    connection.command(wire.PRODUCER, fields)
    return signed(connection.wait_for(wire.PRODUCER_SUCCESS).number(LAST_SEQUENCE_ID))


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def position(answer: Answer) -> tuple[int, int]:
    ids = wire.decode(answer.data(3))
    return signed(ids[1][0]), signed(ids[2][0])


def is_stored(connection: RawConnection, sequence_id: int, name: str, producer_id: int = 1) -> bool:
    """Sends one message and waits for its receipt."""
    meta = wire.metadata(name, sequence_id, int(time.time() * 1000))
    connection.write(wire.send(producer_id, sequence_id, meta, b"%d" % sequence_id))
    answer = connection.wait_for(wire.SEND_RECEIPT)
    assert answer.number(2) == sequence_id
    return position(answer) != NOWHERE


def test_what_is_sent_again_has_a_receipt_and_is_stored_once(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    with RawConnection(broker.port) as one:
        assert open_producer(one, topic, 1, "p") == -1
        kept = [is_stored(one, each, "p") for each in (0, 1, 5, 5, 3, 6, 2, 7)]
        assert kept == [True, True, True, False, False, True, False, True]
        one.command(wire.CLOSE_PRODUCER, {1: 1, 2: one.request_id()})
        one.wait_for(wire.SUCCESS)
        assert open_producer(one, topic, 2, "p") == 7
        assert not is_stored(one, 7, "p", 2) and is_stored(one, 9, "p", 2)
        assert open_producer(one, topic, 3, "another") == -1
    consumer = any_client.subscribe(
        topic, "check", initial_position=pulsar.InitialPosition.Earliest
    )
    assert receive(consumer, 6) == [b"0", b"1", b"5", b"6", b"7", b"9"]


def test_a_client_that_is_started_again_goes_on_after_its_last_message(
    python_client: pulsar.Client, topic: str
) -> None:
    # The Go client has no initial sequence id.
    consumer = python_client.subscribe(topic, "check")
    first = python_client.create_producer(
        topic, producer_name="p", initial_sequence_id=10, batching_enabled=False
    )
    for number in range(3):
        first.send(b"%d" % number)
    assert first.last_sequence_id() == 13
    first.close()
    again = python_client.create_producer(topic, producer_name="p", batching_enabled=False)
    assert again.last_sequence_id() == 13
    again.send(b"3")
    assert receive(consumer, 4) == [b"0", b"1", b"2", b"3"]


def test_a_named_producer_goes_on_after_its_last_message(any_client: AnyClient, topic: str) -> None:
    consumer = any_client.subscribe(topic, "check")
    for start in (0, 5):
        producer = any_client.create_producer(topic, producer_name="p", batching_enabled=True)
        for number in range(start, start + 5):
            producer.send(b"%d" % number)
        producer.close()
    assert receive(consumer, 10) == [b"%d" % number for number in range(10)]


def test_it_begins_and_ends_while_a_producer_is_connected(broker: Broker, topic: str) -> None:
    path = "/admin/v2/" + topic.replace("://", "/") + "/deduplicationEnabled"
    with RawConnection(broker.port) as one:
        open_producer(one, topic, 1, "p")
        assert is_stored(one, 4, "p") and not is_stored(one, 4, "p")
        assert broker.rest("GET", path + "?applied=true") == (200, True)
        assert broker.rest("POST", path, False)[0] == 204
        wait_until_stored(one, 4, True)
        assert broker.rest("DELETE", path)[0] == 204
        wait_until_stored(one, 4, False)


def wait_until_stored(connection: RawConnection, sequence_id: int, wanted: bool) -> None:
    """A policy is in force soon after it was set."""
    until = time.monotonic() + 30
    while is_stored(connection, sequence_id, "p") is not wanted:
        assert time.monotonic() < until, "the policy is not in force"
        time.sleep(0.1)


def test_its_cursor_is_not_to_be_subscribed_to(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        for name in ("pulsar.dedup", "pulsar.repl.x"):
            refused = one.subscribe(topic, name)
            assert refused.type == wire.ERROR and refused.number(2) == 16
            assert b"Subscription with reserved subscription name attempted" in refused.data(3)


def test_ids_are_known_after_a_kill(own_broker: BrokerFactory, topic: str) -> None:
    one = own_broker(settings={"brokerDeduplicationEnabled": "true"})
    one.start()
    with RawConnection(one.port) as connection:
        open_producer(connection, topic, 1, "p")
        for each in range(5):
            assert is_stored(connection, each * 10, "p")
    one.kill()
    one.start()
    with RawConnection(one.port, timeout_s=90.0) as connection:
        assert open_producer(connection, topic, 1, "p") == 40
        assert not is_stored(connection, 40, "p") and is_stored(connection, 41, "p")

"""Subscriptions by pattern: topics that are there, that come later, and that go."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import AnyClient, BrokerFactory, ClientFactory

pytestmark = pytest.mark.slow

NAMESPACE = "public/default"


def collect(consumer: Any, wanted: set[bytes], timeout_s: float = 20.0) -> None:
    """Receive until everything wanted has come."""
    seen: set[bytes] = set()
    deadline = time.monotonic() + timeout_s
    while seen != wanted and time.monotonic() < deadline:
        try:
            message = consumer.receive(timeout_millis=500)
        except pulsar.Timeout:
            continue
        consumer.acknowledge(message)
        seen.add(message.data())
    assert seen == wanted


@pytest.mark.slow(65)
def test_a_pattern_finds_topics_that_are_there_and_that_come_later(
    any_client: AnyClient, topic: str
) -> None:
    client = any_client
    for number in range(3):
        client.create_producer(f"{topic}-yes-{number}").send(b"before")
    other = client.create_producer(f"{topic}-no")
    consumer = client.subscribe(
        re.compile(f"{topic}-yes.*"),
        "s",
        pattern_auto_discovery_period=1,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producers = [client.create_producer(f"{topic}-yes-{number}") for number in range(5)]
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    other.send(b"not this one")
    # The Python client looks once a minute, whatever pattern_auto_discovery_period says.
    collect(consumer, {b"before", *(b"%d" % number for number in range(5))}, 90)
    consumer.close()


def ask_topics(one: RawConnection, fields: dict[int, Any]) -> wire.Frame:
    one.command(wire.GET_TOPICS_OF_NAMESPACE, {1: 77, 2: NAMESPACE} | fields)
    answer = one.wait_for(wire.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    assert answer.number(1) == 77
    return answer


def names(frame: wire.Frame, field: int) -> list[bytes]:
    return [bytes(each) for each in frame.fields.get(field, [])]


def java_hash(topics: list[bytes]) -> bytes:
    """Guava's crc32c of the sorted, joined names, as text."""
    text = b",".join(sorted(topics))
    # The CRC of nothing is 0 there, as it is here.
    return wire.crc32c(text).to_bytes(4, "little").hex().encode()


@pytest.mark.parametrize("pattern", ["persistent://public/default/{}-.*", ".*/{}-.+"])
def test_topics_are_listed_with_a_hash(broker: Broker, topic: str, pattern: str) -> None:
    name = topic.rsplit("/", 1)[1]
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(RawConnection(broker.port))
        for number in range(3):
            maker = stack.enter_context(RawConnection(broker.port))
            maker.producer(f"{topic}-{number}", number)
        answer = ask_topics(one, {4: pattern.format(name)})
        topics = [f"{topic}-{number}".encode() for number in range(3)]
        assert sorted(names(answer, 2)) == topics
        assert (answer.number(3), answer.number(5, 1)) == (1, 1)
        assert answer.data(4) == java_hash(topics)
        same = ask_topics(one, {4: pattern.format(name), 5: answer.data(4)})
        assert (names(same, 2), same.number(5, 1)) == ([], 0)
        everything = ask_topics(one, {})
        assert set(topics) <= set(names(everything, 2))
        assert everything.number(3) == 0
        too_long = ask_topics(one, {4: pattern.format(name) + "|x" * 30})
        assert (too_long.number(3), names(too_long, 2)) == (0, names(everything, 2))


def test_a_watcher_is_told_what_comes_and_goes(own_broker: BrokerFactory) -> None:
    broker = own_broker(settings={"brokerDeleteInactiveTopicsFrequencySeconds": "1"})
    broker.start()
    prefix = "persistent://public/default/watched-"
    known: set[bytes] = set()

    def update(one: RawConnection) -> None:
        """The next word of the broker; it may be of several topics."""
        frame = one.wait_for(wire.WATCH_TOPIC_UPDATE, 20)
        assert frame.number(1) == 5
        known.update(names(frame, 2))
        known.difference_update(names(frame, 3))
        assert frame.data(4) == java_hash(list(known))

    with contextlib.ExitStack() as stack:
        one, *makers = (stack.enter_context(RawConnection(broker.port)) for _ in range(6))
        flags = wire.decode(one.connected.data(4))
        assert flags[4] == [1]
        request = {1: 30, 2: 5, 3: NAMESPACE, 4: prefix + ".*"}
        one.command(wire.WATCH_TOPIC_LIST, request)
        answer = one.expect(wire.WATCH_TOPIC_LIST_SUCCESS)
        assert (answer.number(1), answer.number(2), names(answer, 3)) == (30, 5, [])
        for number in range(3):
            makers[number].producer(f"{prefix}{number}", number)
        makers[3].producer("persistent://public/default/other", 9)
        while len(known) < 3:
            update(one)
        assert known == {f"{prefix}{number}".encode() for number in range(3)}
        one.command(wire.WATCH_TOPIC_LIST, request | {1: 31})
        assert len(names(one.expect(wire.WATCH_TOPIC_LIST_SUCCESS), 3)) == 3
        makers[1].command(wire.CLOSE_PRODUCER, {1: 1, 2: 40})
        makers[1].expect(wire.SUCCESS)
        update(one)
        assert known == {f"{prefix}{number}".encode() for number in (0, 2)}
        one.command(wire.WATCH_TOPIC_LIST_CLOSE, {1: 32, 2: 5})
        assert one.expect(wire.SUCCESS).number(1) == 32
        makers[4].producer(f"{prefix}late", 10)
        with pytest.raises(TimeoutError):
            one.receive(1.0)


def test_patterns_that_no_broker_watches(broker: Broker) -> None:
    with RawConnection(broker.port) as one:
        for pattern in ("x" * 51, "("):
            one.command(wire.WATCH_TOPIC_LIST, {1: 50, 2: 6, 3: NAMESPACE, 4: pattern})
            assert one.expect(wire.ERROR).number(1) == 50
        one.assert_alive()


def test_a_pattern_consumer_goes_on_when_the_client_reconnects(
    own_broker: BrokerFactory, new_client: ClientFactory, topic: str
) -> None:
    broker = own_broker()
    broker.start()
    client = new_client(broker.url)
    producer = client.create_producer(f"{topic}-a")
    producer.send(b"one")
    consumer = client.subscribe(
        re.compile(f"{topic}-.*"), "s", initial_position=pulsar.InitialPosition.Earliest
    )
    message = consumer.receive(timeout_millis=10_000)
    broker.kill()
    broker.start()
    producer.send(b"two")
    # The first one was not acknowledged.
    collect(consumer, {message.data(), b"two"}, 40)

"""Producers of the Java client that want a topic for themselves."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest
from harness.brokers import Broker
from harness.java_client import Client, Java, JavaError

EXCLUSIVE, WAIT, FENCING = "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"


def refusal(future: concurrent.futures.Future[Any]) -> JavaError:
    with pytest.raises(JavaError) as error:
        future.result(60)
    return error.value


def is_waiting(future: concurrent.futures.Future[Any]) -> bool:
    done, _ = concurrent.futures.wait([future], timeout=0.3)
    return not done


def unload(broker: Broker, topic: str) -> None:
    """Every client of the topic reconnects."""
    path = "/admin/v2/" + topic.replace("://", "/") + "/unload"
    assert broker.request("PUT", path)[0] == 204


def bodies(client: Client, topic: str) -> list[bytes]:
    return [each.data for each in client.create_reader(topic).read_all()]


def test_who_is_let_in_beside_whom(java_client: Client, topic: str) -> None:
    shared = [java_client.create_producer(topic) for _ in range(2)]
    error = refusal(java_client.start_producer(topic, accessMode=EXCLUSIVE))
    assert error.name == "ProducerFencedException"
    assert "Topic has existing shared producers" in error.text
    for each in shared:
        each.send(b"shared")
        each.close()
    mine = java_client.create_producer(topic, accessMode=EXCLUSIVE, producerName="mine")
    mine.send(b"mine")
    taken = "Topic has an existing exclusive producer: mine"
    error = refusal(java_client.start_producer(topic))
    assert error.name == "ProducerBusyException" and taken in error.text
    error = refusal(java_client.start_producer(topic, accessMode=EXCLUSIVE))
    assert error.name == "ProducerFencedException" and taken in error.text
    assert bodies(java_client, topic) == [b"shared", b"shared", b"mine"]


def test_epochs_go_up_with_each_that_has_the_topic_for_itself(
    java_client: Client, topic: str
) -> None:
    assert java_client.create_producer(topic).topic_epoch() is None
    found = []
    for mode in (WAIT, FENCING, EXCLUSIVE):
        one = java_client.start_producer(topic + "-one", accessMode=mode).result(60)
        found.append(one.topic_epoch())
        one.close()
    assert found == [0, 1, 2]
    assert java_client.create_producer(topic + "-one").topic_epoch() == 2


def test_those_that_wait_come_one_after_the_other(java_client: Client, topic: str) -> None:
    first = java_client.create_producer(topic, accessMode=EXCLUSIVE)
    second = java_client.start_producer(topic, accessMode=WAIT)
    assert is_waiting(second)
    third = java_client.start_producer(topic, accessMode=WAIT)
    first.send(b"first")
    assert is_waiting(second) and is_waiting(third)
    first.close()
    had = second.result(60)
    had.send(b"second")
    assert had.topic_epoch() == 1
    assert is_waiting(third)
    had.close()
    last = third.result(60)
    last.send(b"third")
    assert last.topic_epoch() == 2
    assert bodies(java_client, topic) == [b"first", b"second", b"third"]


def test_one_that_waits_may_be_where_others_share(java_client: Client, topic: str) -> None:
    shared = java_client.create_producer(topic)
    waiting = java_client.start_producer(topic, accessMode=WAIT)
    assert is_waiting(waiting)
    shared.close()
    waiting.result(60).send(b"mine")
    assert bodies(java_client, topic) == [b"mine"]


def test_one_that_fences_ends_the_others(
    java: Java, java_client: Client, broker: Broker, topic: str
) -> None:
    with java.client(broker.url) as other:
        fenced = other.create_producer(topic, accessMode=EXCLUSIVE)
        fenced.send(b"old")
        waiting = other.start_producer(topic, accessMode=WAIT)
        assert is_waiting(waiting)
        taker = java_client.create_producer(topic, accessMode=FENCING)
        taker.send(b"new")
        assert refusal(waiting).name == "ProducerFencedException"
        assert refusal(fenced.send_later(b"late")).name == "ProducerFencedException"
        taker.send(b"newer")
    assert bodies(java_client, topic) == [b"old", b"new", b"newer"]


def test_those_that_share_wait_until_one_that_fenced_them_is_gone(
    java: Java, java_client: Client, broker: Broker, topic: str
) -> None:
    """They are told that the topic is busy whenever they come back."""
    with java.client(broker.url) as other:
        shared = other.create_producer(topic)
        shared.send(b"old")
        taker = java_client.create_producer(topic, accessMode=FENCING)
        taker.send(b"new")
        late = shared.send_later(b"late")
        assert is_waiting(late)
        taker.send(b"newer")
        taker.close()
        late.result(60)
    assert bodies(java_client, topic) == [b"old", b"new", b"newer", b"late"]


def test_the_one_that_fenced_last_has_the_topic(java_client: Client, topic: str) -> None:
    first = java_client.create_producer(topic, accessMode=FENCING)
    first.send(b"1")
    second = java_client.create_producer(topic, accessMode=FENCING)
    second.send(b"2")
    assert refusal(first.send_later(b"late")).name == "ProducerFencedException"
    assert (first.topic_epoch(), second.topic_epoch()) == (0, 1)
    assert bodies(java_client, topic) == [b"1", b"2"]


def test_an_exclusive_producer_has_its_topic_again_after_an_unload(
    java_client: Client, broker: Broker, topic: str
) -> None:
    mine = java_client.create_producer(topic, accessMode=EXCLUSIVE)
    mine.send(b"before")
    unload(broker, topic)
    mine.send(b"after")
    assert mine.topic_epoch() == 0
    error = refusal(java_client.start_producer(topic, accessMode=EXCLUSIVE))
    assert error.name == "ProducerFencedException"
    assert bodies(java_client, topic) == [b"before", b"after"]


def test_one_that_waits_waits_on_after_an_unload(
    java_client: Client, broker: Broker, topic: str
) -> None:
    mine = java_client.create_producer(topic, accessMode=EXCLUSIVE)
    mine.send(b"before")
    waiting = java_client.start_producer(topic, accessMode=WAIT)
    assert is_waiting(waiting)
    unload(broker, topic)
    mine.close()
    waiting.result(60).send(b"after")
    assert bodies(java_client, topic) == [b"before", b"after"]


def test_partitions_are_had_each_by_one(java_client: Client, broker: Broker, topic: str) -> None:
    path = "/admin/v2/" + topic.replace("://", "/") + "/partitions"
    assert broker.request("PUT", path, 2)[0] == 204
    mine = java_client.create_producer(topic, accessMode=EXCLUSIVE)
    mine.send_all([b"%d" % number for number in range(4)])
    for name in (topic, f"{topic}-partition-1"):
        error = refusal(java_client.start_producer(name, accessMode=EXCLUSIVE))
        assert error.name == "ProducerFencedException"
    mine.close()
    java_client.create_producer(topic, accessMode=EXCLUSIVE).send(b"4")


def test_a_producer_with_the_name_of_another_one_is_refused(
    java_client: Client, topic: str
) -> None:
    java_client.create_producer(topic, producerName="p")
    error = refusal(java_client.start_producer(topic, producerName="p"))
    assert error.name == "ProducerBusyException"
    assert "is already connected" in error.text


def test_names_and_subscriptions_that_are_asked_for(java_client: Client, topic: str) -> None:
    """A producer may bring a subscription, so that nothing is lost before its first consumer."""
    named = java_client.create_producer(topic, producerName="mine", initialSubscriptionName="s")
    assert named.name == "mine"
    named.send(b"kept")
    consumer = java_client.subscribe(topic, "s", subscriptionInitialPosition="Latest")
    message = consumer.receive()
    assert (message.data, message.producer_name) == (b"kept", "mine")

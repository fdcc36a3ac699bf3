"""Producers that want a topic for themselves, as the official clients do, and by bare frames."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import Answer, RawConnection

from compat_tests.conftest import AnyClient, BrokerFactory, official_client
from compat_tests.messages import receive

Mode = pulsar.ProducerAccessMode


def test_an_exclusive_producer_keeps_others_out_until_it_is_closed(
    any_client: AnyClient, topic: str
) -> None:
    mine = any_client.create_producer(topic, access_mode=Mode.Exclusive)
    mine.send(b"mine")
    with pytest.raises(pulsar.ProducerBusy):
        any_client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        any_client.create_producer(topic, access_mode=Mode.Exclusive)
    mine.close()
    shared = any_client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        any_client.create_producer(topic, access_mode=Mode.Exclusive)
    shared.send(b"shared")
    consumer = any_client.subscribe(
        topic, "check", initial_position=pulsar.InitialPosition.Earliest
    )
    assert receive(consumer, 2) == [b"mine", b"shared"]


def test_a_producer_that_waits_is_open_when_the_other_one_is_closed(
    any_client: AnyClient, topic: str
) -> None:
    mine = any_client.create_producer(topic, access_mode=Mode.Exclusive)
    mine.send(b"first")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(any_client.create_producer, topic, access_mode=Mode.WaitForExclusive)
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting.result(timeout=1.0)
        mine.send(b"second")
        mine.close()
        waiting.result(timeout=60.0).send(b"third")
    consumer = any_client.subscribe(
        topic, "check", initial_position=pulsar.InitialPosition.Earliest
    )
    assert receive(consumer, 3) == [b"first", b"second", b"third"]


def test_a_producer_that_fences_sends_the_others_away(
    python_client: pulsar.Client, broker: Broker, topic: str
) -> None:
    # The Go client has no such mode.
    old, new = official_client(broker.url), python_client
    fenced = old.create_producer(topic, access_mode=Mode.Exclusive)
    fenced.send(b"old")
    taker = new.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    taker.send(b"new")
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        fenced.send(b"late")
    taker.send(b"newer")
    consumer = new.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest)
    assert receive(consumer, 3) == [b"old", b"new", b"newer"]
    old.close()


# --- by bare frames, so that every field of the answers is seen ----------------------------------

SHARED, EXCLUSIVE, WAIT, FENCING = range(4)
NOT_READY, PRODUCER_BUSY, PRODUCER_FENCED = 6, 16, 25
READY = 6  # fields of PRODUCER_SUCCESS
EPOCH = 5


def ask(
    connection: RawConnection, topic: str, producer_id: int, mode: int, **more: int | str
) -> Answer:
    """A PRODUCER command; its first answer."""
    connection.lookup(topic)
    fields: dict[int, Any] = {1: topic, 2: producer_id, 3: connection.request_id(), 10: mode}
    if "name" in more:
        fields[4] = more["name"]
    if "epoch" in more:
        fields[11] = more["epoch"]
    connection.command(wire.PRODUCER, fields)
    while True:
        answer = connection.receive()
        if answer.type in (wire.PRODUCER_SUCCESS, wire.ERROR):
            return answer


def close(connection: RawConnection, producer_id: int) -> None:
    connection.command(wire.CLOSE_PRODUCER, {1: producer_id, 2: connection.request_id()})
    connection.wait_for(wire.SUCCESS)


def refusal(answer: Answer) -> tuple[int, str]:
    assert answer.type == wire.ERROR, answer
    return answer.number(2), answer.data(3).decode()


@pytest.fixture
def two(broker: Broker) -> Iterator[tuple[RawConnection, RawConnection]]:
    with RawConnection(broker.port) as first, RawConnection(broker.port) as second:
        yield first, second


Two = tuple[RawConnection, RawConnection]


def test_epochs_count_the_exclusive_producers(two: Two, topic: str) -> None:
    first, _ = two
    assert EPOCH not in ask(first, topic, 0, SHARED).fields
    close(first, 0)
    for epoch, mode in enumerate([EXCLUSIVE, WAIT, FENCING, EXCLUSIVE]):
        answer = ask(first, topic, 1, mode)
        assert (answer.number(EPOCH, -1), answer.number(READY, 1)) == (epoch, 1)
        close(first, 1)
    assert ask(first, topic, 2, SHARED).number(EPOCH, -1) == 3


def test_what_those_are_told_that_come_too_late(two: Two, topic: str) -> None:
    first, second = two
    ask(first, topic, 1, EXCLUSIVE, name="mine")
    taken = "Topic has an existing exclusive producer: mine"
    for mode, code in ((SHARED, PRODUCER_BUSY), (EXCLUSIVE, PRODUCER_FENCED)):
        found, text = refusal(ask(second, topic, 1, mode))
        assert found == code and taken in text
    close(first, 1)
    ask(second, topic, 2, SHARED)
    found, text = refusal(ask(first, topic, 1, EXCLUSIVE))
    assert found == PRODUCER_FENCED and "Topic has existing shared producers" in text


def test_one_that_waits_is_answered_twice(two: Two, topic: str) -> None:
    first, second = two
    ask(first, topic, 1, EXCLUSIVE)
    waiting = ask(second, topic, 1, WAIT, name="next")
    assert waiting.number(READY, 1) == 0 and EPOCH not in waiting.fields
    assert waiting.data(2) == b"next"
    gone = ask(second, topic, 2, WAIT)
    assert gone.number(READY, 1) == 0
    close(second, 2)
    close(first, 1)
    ready = second.wait_for(wire.PRODUCER_SUCCESS)
    assert ready.number(1) == waiting.number(1)
    assert (ready.number(READY, 1), ready.number(EPOCH, -1)) == (1, 1)
    assert ready.data(2) == b"next"


def test_one_that_fences_sends_who_waits_away(two: Two, topic: str) -> None:
    first, second = two
    ask(first, topic, 1, EXCLUSIVE)
    waiting = ask(first, topic, 2, WAIT)
    assert ask(second, topic, 1, FENCING).number(EPOCH, -1) == 1
    told = first.wait_for(wire.ERROR)
    assert told.number(1) == waiting.number(1)
    code, text = refusal(told)
    assert code == PRODUCER_FENCED and "Fenced out" in text


def test_one_that_comes_back_says_which_epoch_it_had(two: Two, topic: str) -> None:
    first, _ = two
    for epoch in (0, 1):
        assert ask(first, topic, 1, EXCLUSIVE).number(EPOCH, -1) == epoch
        close(first, 1)
    code, text = refusal(ask(first, topic, 1, EXCLUSIVE, epoch=0))
    assert code == PRODUCER_FENCED
    assert "Topic epoch has already moved. Current epoch: 1, Producer epoch: 0" in text
    assert ask(first, topic, 1, EXCLUSIVE, epoch=1).number(EPOCH, -1) == 1


def test_epochs_go_on_after_a_kill(own_broker: BrokerFactory, topic: str) -> None:
    one = own_broker()
    one.start()
    with RawConnection(one.port) as first:
        assert ask(first, topic, 1, EXCLUSIVE).number(EPOCH, -1) == 0
    one.kill()
    one.start()
    with RawConnection(one.port, timeout_s=90.0) as first:
        assert ask(first, topic, 1, EXCLUSIVE).number(EPOCH, -1) == 1

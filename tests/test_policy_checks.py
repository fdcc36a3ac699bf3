"""What policies say of single messages and of who comes: what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, Client, run, section
from pyxbroker.base.errors import NotAllowed
from pyxbroker.broker.topics.subscribe_rate import (
    FORGOTTEN_PER_CHECK,
    KNOWN_MAX,
    SubscribeLimiter,
)
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import EntryRun
from pyxbroker.metadata import paths
from pyxbroker.policies.values import SubscribeRate
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.publish_checks import NOT_ENCRYPTED, TOO_LARGE, TOO_LATE, forbidden

NON_PERSISTENT = "non-persistent://public/default/t"
KEYS = [pb.EncryptionKeys(key="k", value=b"v")]
both_kinds = pytest.mark.parametrize("name", [TOPIC, NON_PERSISTENT])


def limited(topic: Topic, **policies: Any) -> None:
    topic.on_policies(topic.policies._replace(**policies))


async def answer(client: Client, sequence_id: int, payload: bytes) -> tuple[int, str] | None:
    """The error of a SEND of producer 1, or None."""
    client.send(pb.CommandSend(producer_id=1, sequence_id=sequence_id), payload)
    found = await client.either("send_receipt", "send_error")
    assert found.sequence_id == sequence_id
    return (found.error, found.message) if isinstance(found, pb.CommandSendError) else None


# --- single messages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "limits", "reason"),
    [
        ({}, (True, 0, 0), NOT_ENCRYPTED),
        ({"encryption_keys": KEYS}, (True, 0, 0), None),
        ({}, (False, 1 << 20, 0), None),
        ({"num_chunks_from_msg": 1}, (False, 10, 0), TOO_LARGE),
        ({"num_chunks_from_msg": 2, "uuid": "u"}, (False, 10, 0), None),
        ({"deliver_at_time": 101}, (False, 0, 100), None),
        ({"deliver_at_time": 102}, (False, 0, 100), TOO_LATE),
        ({"deliver_at_time": 2**63 - 1}, (False, 0, 2**63 - 1), None),
        ({"deliver_at_time": 2**63 - 1}, (False, 0, 2**63 - 3), TOO_LATE),
        ({"deliver_at_time": -1}, (False, 0, 1), None),
        ({"deliver_at_time": 102}, (True, 10, 100), NOT_ENCRYPTED),
        ({"deliver_at_time": 102}, (False, 10, 100), TOO_LARGE),
    ],
)
def test_what_is_forbidden(fields: Any, limits: tuple[bool, int, int], reason: int | None) -> None:
    run = EntryRun.of(section(b"data", **fields))  # which is published at 1
    assert forbidden(run, *limits) == ([] if reason is None else [(0, reason)])


def test_the_largest_message_is_as_large_as_the_policy_says() -> None:
    data = section(bytes(100))
    assert forbidden(EntryRun.of(data), False, len(data), 0) == []
    assert forbidden(EntryRun.of(data), False, len(data) - 1, 0) == [(0, TOO_LARGE)]


@both_kinds
def test_a_topic_has_a_largest_message(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(name)
        client = await broker.client()
        await client.produce(topic=name)
        assert topic.publish == topic._log.append
        limited(topic, message_bytes_max=1000)
        refused = (pb.NotAllowedError, "Exceed maximum message size")
        assert await answer(client, 0, section(bytes(1000))) == refused
        assert await answer(client, 1, section(bytes(900))) is None
        # What the broker takes at most is looked at before: nothing is checked twice.
        limited(topic, message_bytes_max=broker.config.maxMessageSize)
        assert topic.publish == topic._log.append
        assert await answer(client, 2, section(bytes(1000))) is None

    run(tmp_path, scenario)


@both_kinds
def test_where_nothing_is_delayed_no_delay_is_too_long(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(name)
        client = await broker.client()
        await client.produce(topic=name)
        limited(topic, delay_max_ms=100)
        got = await answer(client, 0, section(b"x", deliver_at_time=102))
        assert (got is None) == (name == NON_PERSISTENT)

    run(tmp_path, scenario)


@both_kinds
def test_what_is_refused_keeps_the_others_in_order(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(name)
        client = await broker.client()
        await client.produce(topic=name)
        limited(topic, encryption_required=True)
        for number in range(10):
            keys = {"encryption_keys": KEYS} if number % 2 else {}
            client.send(pb.CommandSend(producer_id=1, sequence_id=number), section(b"x", **keys))
        for number in range(10):
            found = await client.either("send_receipt", "send_error")
            assert found.sequence_id == number
            assert isinstance(found, pb.CommandSendError) == (number % 2 == 0)

    run(tmp_path, scenario)


def test_a_namespace_cannot_switch_off_the_encryption_that_its_broker_requires(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        path = paths.namespace_policies("public/default")
        await broker.node.store.put(path, b'{"encryption_required": false}')
        client = await broker.client()
        assert (await client.produce()).error == pb.MetadataError
        assert (await client.produce(encrypted=True)).producer_name

    run(tmp_path, scenario, encryptionRequireOnProducer=True)


# --- who comes ------------------------------------------------------------------------------------


@both_kinds
def test_producers_and_consumers_of_one_address_have_limits(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(name)
        here, there = await broker.client(), await broker.client()
        there.connection.session.address = "192.0.2.1"
        await here.produce(1, topic=name)
        await here.subscribe(1, topic=name, subscription="a")
        limited(topic, same_address_producers_max=1, same_address_consumers_max=1)
        refused = await here.produce(2, topic=name)
        text = f"Topic '{name}' reached max same address producers limit"
        assert (refused.error, refused.message) == (pb.ProducerBusy, text)
        refused = await here.subscribe(2, permits=0, topic=name, subscription="b")
        text = "Topic reached max same address consumers limit"
        assert (refused.error, refused.message) == (pb.ConsumerBusy, text)
        assert (await there.produce(1, topic=name)).producer_name
        assert not hasattr(await there.subscribe(1, topic=name, subscription="b"), "error")
        assert len(topic.producers) == 2, "who is there stays"
        limited(topic, same_address_producers_max=0, same_address_consumers_max=0)
        assert (await here.produce(2, topic=name)).producer_name
        assert not hasattr(await here.subscribe(2, topic=name, subscription="b"), "error")

    run(tmp_path, scenario)


@both_kinds
def test_types_and_rates_of_subscribing_hold_for_every_topic(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(name)
        client = await broker.client()
        limited(
            topic, subscription_types=frozenset({"Failover"}), subscribe_rate=SubscribeRate(1, 60)
        )
        refused = await client.subscribe(1, permits=0, topic=name)
        assert refused.message == f"Topic[{{{name}}}] doesn't support Shared sub type!"
        failover = {"topic": name, "permits": 0, "subType": pb.CommandSubscribe.Failover}
        assert not hasattr(await client.subscribe(1, **failover), "error"), "it was not counted"
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        refused = await client.subscribe(1, **failover)
        assert refused.message == "Subscribe limited by subscribe rate limit per consumer."
        assert not hasattr(await client.subscribe(2, **failover), "error"), "another id"

    run(tmp_path, scenario)


def test_a_consumer_may_subscribe_so_often_in_each_period() -> None:
    limiter = SubscribeLimiter(SubscribeRate(2, 10))

    def comes(now: float, name: str = "a") -> bool:
        try:
            limiter.check(("here", name, 1), now)
        except Exception as error:
            assert str(error) == "Subscribe limited by subscribe rate limit per consumer."
            return False
        return True

    assert [comes(0.0), comes(0.0), comes(0.1), comes(0.1, "b")] == [True, True, False, True]
    assert [comes(4.0), comes(5.0), comes(6.0)] == [False, True, False]
    assert [comes(30.0), comes(30.0), comes(30.0)] == [True, True, False]


def test_who_has_not_come_for_a_period_is_forgotten() -> None:
    limiter = SubscribeLimiter(SubscribeRate(1, 10))
    for number in range(1000):
        limiter.check(("here", "c", number), number / 100)
    assert len(limiter._left) == 1000
    for number in range(1000, 1500):
        before = len(limiter._left)
        limiter.check(("here", "c", number), 15.0)
        assert before - len(limiter._left) <= FORGOTTEN_PER_CHECK, "a bit of the work each time"
    assert len(limiter._left) == 999
    assert ("here", "c", 500) not in limiter._left and ("here", "c", 501) in limiter._left
    for number in range(1500, 3000):
        limiter.check(("here", "c", number), 100.0)
    assert len(limiter._left) == 1500, "only those of this period"


def test_of_who_subscribes_so_many_are_known_and_no_more() -> None:
    limiter = SubscribeLimiter(SubscribeRate(1, 60))
    for number in range(3 * KNOWN_MAX):
        limiter.check(("here", f"c{number}", 1), number / 1000)
        assert len(limiter._left) <= KNOWN_MAX
    last = 3 * KNOWN_MAX - 1
    with pytest.raises(NotAllowed):
        limiter.check(("here", f"c{last}", 1), last / 1000)
    limiter.check(("here", "c0", 1), last / 1000)

"""Backlog quotas: producers wait or are refused, or the oldest messages go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, until
from one_broker import Broker, Client, run
from pyxbroker.broker.topics import quotas
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.broker.topics.upkeep import Upkeep
from pyxbroker.metadata import paths
from pyxbroker.mledger.backlog import bytes_after, mark_before_bytes
from pyxbroker.proto import PulsarApi as pb
from test_expiry import NOW_S, message, subscription_of

SIZE, AGE = "destination_storage", "message_age"
REFUSED = "Cannot create producer on topic with backlog quota exceeded"


async def set_quota(broker: Broker, kind: str, limit: int, policy: str) -> None:
    field = "limitSize" if kind == SIZE else "limitTime"
    record = {"backlog_quota_map": {kind: {field: limit, "policy": policy}}}
    value = json.dumps(record).encode()
    await broker.node.store.put(paths.namespace_policies("public/default"), value)
    topic = await broker.topic()
    name = "backlog_size" if kind == SIZE else "backlog_age"
    await until(lambda: getattr(topic.policies, name) == (limit, policy))


async def topic_of(broker: Broker) -> PersistentTopic:
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    topic.wall_clock = lambda: NOW_S
    return topic


async def kilobytes(topic: PersistentTopic, count: int, age_s: float = 0) -> None:
    """Appends entries of about a kilobyte."""
    await append(topic.managed_ledger, *[message(age_s, b"x" * 1000)] * count)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("producer_request_hold", pb.ProducerBlockedQuotaExceededError),
        ("producer_exception", pb.ProducerBlockedQuotaExceededException),
    ],
)
def test_over_the_size_producers_are_sent_away_until_there_is_less(
    tmp_path: Path, policy: str, code: int
) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic = await broker.client(), await topic_of(broker)
        subscription = await subscription_of(topic, "s")
        await set_quota(broker, SIZE, 20_000, policy)
        await client.produce(1)
        await kilobytes(topic, 25)
        assert "close_producer" not in await client.quiet()
        # A SEND is never refused for it.
        client.publish(0, b"more")
        await client.receive("send_receipt")
        await broker.topics.upkeep.check_quotas()
        assert (await client.receive("close_producer")).producer_id == 1
        assert topic.producers == {}
        refused = await client.produce(2)
        assert refused.error == code
        assert REFUSED in refused.message
        subscription.cursor.acknowledge_up_to((topic.managed_ledger.ledger_ids[0], 20))
        assert (await client.produce(3)).producer_name
        await broker.topics.upkeep.check_quotas()
        assert len(topic.producers) == 1

    run(tmp_path, scenario)


def test_without_subscriptions_nothing_is_exceeded_but_a_limit_of_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic = await broker.client(), await topic_of(broker)
        await set_quota(broker, SIZE, 1, "producer_exception")
        await kilobytes(topic, 5)
        assert (await client.produce(1)).producer_name
        await set_quota(broker, SIZE, 0, "producer_exception")
        assert (await client.produce(2)).error == pb.ProducerBlockedQuotaExceededException

    run(tmp_path, scenario)


def test_eviction_leaves_nine_tenths_of_the_size_to_the_slowest(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic = await broker.client(), await topic_of(broker)
        slow, fast = await subscription_of(topic, "slow"), await subscription_of(topic, "fast")
        await client.subscribe(subscription="slow", permits=1000)
        await client.produce(1)
        await kilobytes(topic, 100)
        [size] = [topic.storage_size // 100]
        await client.messages(100)
        fast.cursor.acknowledge_up_to((topic.managed_ledger.ledger_ids[0], 89))
        await set_quota(broker, SIZE, 50 * size, "consumer_backlog_eviction")
        assert (await client.produce(2)).producer_name, "who evicts does not refuse"
        await broker.topics.upkeep.check_quotas()
        assert 43 <= slow.backlog <= 45
        assert fast.backlog == 10
        [consumer] = slow.consumers
        assert consumer.unacked_messages == slow.backlog
        assert len(topic.producers) == 2
        before = slow.backlog
        await broker.topics.upkeep.check_quotas()
        assert slow.backlog == before

    run(tmp_path, scenario)


def test_sizes_are_counted_over_ledgers(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_of(broker)
        await subscription_of(topic, "s")
        managed_ledger = topic.managed_ledger
        for _ in range(4):
            await kilobytes(topic, 10)
            managed_ledger.roll_over()
            await managed_ledger.finish_tasks()
        await kilobytes(topic, 5)
        each = managed_ledger.size // 45
        assert bytes_after(managed_ledger, managed_ledger.first_position()) == managed_ledger.size
        assert bytes_after(managed_ledger, managed_ledger.last_confirmed) == 0
        for count in (1, 5, 6, 14, 15, 16, 44):
            mark = mark_before_bytes(managed_ledger, count * each)
            left = managed_ledger.entries_between(mark, managed_ledger.last_confirmed)
            assert left == count
            assert abs(bytes_after(managed_ledger, mark) - count * each) <= 2 * count
        assert mark_before_bytes(managed_ledger, 1 << 40) == managed_ledger.first_position()
        assert mark_before_bytes(managed_ledger, 0) == managed_ledger.last_confirmed

    run(tmp_path, scenario)


async def refusal(client: Client, producer_id: int) -> Any:
    return getattr(await client.produce(producer_id), "error", None)


def test_the_age_of_a_backlog_is_that_of_closed_ledgers(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic = await broker.client(), await topic_of(broker)
        subscription = await subscription_of(topic, "s")
        managed_ledger = topic.managed_ledger
        await set_quota(broker, AGE, 100, "producer_exception")
        await kilobytes(topic, 2, age_s=500)
        assert (await client.produce(1)).producer_name, "the open ledger has no age"
        for _ in range(2):
            managed_ledger.roll_over()
            await managed_ledger.finish_tasks()
            await kilobytes(topic, 2)
        for ledger_id, age_s in zip(managed_ledger.ledger_ids, (300, 50), strict=False):
            managed_ledger.ledgers[ledger_id].timestamp_ms = int((NOW_S - age_s) * 1000)
        assert await refusal(client, 2) == pb.ProducerBlockedQuotaExceededException
        await broker.topics.upkeep.check_quotas()
        await client.receive("close_producer")
        await set_quota(broker, AGE, 100, "consumer_backlog_eviction")
        await broker.topics.upkeep.check_quotas()
        assert subscription.backlog == 4
        await set_quota(broker, AGE, 100, "producer_request_hold")
        assert (await client.produce(3)).producer_name

    run(tmp_path, scenario)


def test_the_precise_age_is_that_of_the_oldest_message(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic = await broker.client(), await topic_of(broker)
        subscription = await subscription_of(topic, "s")
        await append(topic.managed_ledger, *map(message, (101, 95, 91, 89, 1)))
        await set_quota(broker, AGE, 200, "producer_request_hold")
        assert (await client.produce(1)).producer_name
        await set_quota(broker, AGE, 100, "producer_request_hold")
        assert await refusal(client, 2) == pb.ProducerBlockedQuotaExceededError
        await set_quota(broker, AGE, 100, "consumer_backlog_eviction")
        await broker.topics.upkeep.check_quotas()
        assert subscription.backlog == 2, "what is older than nine tenths of it goes"

    run(tmp_path, scenario, preciseTimeBasedBacklogQuotaCheck=True)


def test_who_asks_for_a_look_at_quotas_while_one_is_under_way_shares_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand requests at once do not look at all topics a thousand times."""

    async def scenario(broker: Broker) -> None:
        await broker.topic()
        looks: list[asyncio.Event] = []

        async def look(topic: PersistentTopic) -> None:
            looks.append(asyncio.Event())
            await looks[-1].wait()

        monkeypatch.setattr(quotas, "check", look)
        upkeep = broker.topics.upkeep
        first = asyncio.ensure_future(upkeep.check_quotas())
        await until(lambda: len(looks) == 1)
        others = [asyncio.ensure_future(upkeep.check_quotas()) for _ in range(1_000)]
        await asyncio.sleep(0.01)
        assert len(looks) == 1
        others[0].cancel()  # It is not the others' concern.
        looks[0].set()
        await first
        await until(lambda: len(looks) == 2)
        last = asyncio.ensure_future(upkeep.check_quotas())
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in others[1:]), "what was under way may be old"
        looks[1].set()
        await asyncio.gather(*others[1:])
        await until(lambda: len(looks) == 3)
        looks[2].set()
        await last
        assert len(looks) == 3

    run(tmp_path, scenario)


def test_a_broker_that_stops_holds_up_nobody_who_asked_for_a_look_at_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[asyncio.Task[None]] = []

    async def scenario(broker: Broker) -> None:
        await broker.topic()
        began = asyncio.Event()

        async def look(topic: PersistentTopic) -> None:
            began.set()
            await asyncio.sleep(3600)

        monkeypatch.setattr(quotas, "check", look)
        upkeep = broker.topics.upkeep
        asked.append(asyncio.ensure_future(upkeep.check_quotas()))
        await began.wait()
        asked.append(asyncio.ensure_future(upkeep.check_quotas()))
        await asyncio.sleep(0)
        upkeep.close()
        await asyncio.wait_for(asyncio.gather(*asked), 5)

    run(tmp_path, scenario)


def test_who_asks_for_a_look_at_quotas_is_told_of_a_defect_in_it() -> None:
    def broken() -> Iterator[Topic]:
        raise ZeroDivisionError("broken")

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError, match="broken"):
            await Upkeep(broken).check_quotas()

    asyncio.run(scenario())


def test_without_a_limit_no_age_is_too_high(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_of(broker)
        await subscription_of(topic, "s")
        await kilobytes(topic, 2, age_s=1_000_000)
        age = topic.policies.backlog_age
        for limit, is_exceeded in ((-1, False), (0, False), (10, True)):
            topic.policies = topic.policies._replace(
                precise_backlog_age=True, backlog_age=age._replace(limit=limit)
            )
            assert await quotas.is_age_exceeded(topic) == is_exceeded

    run(tmp_path, scenario)

"""Numbers of topics and subscriptions in /metrics: ages, throttling, evictions, system topics."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from fake_service import FakeService, Subscription, Topic
from one_broker import Broker, run
from pyxbroker.base.errors import NamespaceNotFound, ServiceNotReady, TopicNotFound
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.statistics.stats import (
    CoordinatorStats,
    EvictionStats,
    ThrottledStats,
    TransactionStats,
)
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.stats import definitions
from pyxbroker.stats.broker_series import Recent
from test_metrics import LABELS, TOPIC, series, value

AGE_S = 100
PUBLISHED_S = 0.001  # what Broker.publish writes


@pytest.fixture
def service() -> FakeService:
    fake = FakeService(MemoryStore())
    fake.loaded = [Topic(TOPIC, "public/default", subscriptions=[Subscription("s")])]
    return fake


async def scrape(broker: Broker) -> dict[str, Any]:
    """The statistics of the only topic and its subscription "s", as a scrape reads them."""
    [stats] = [each for each in broker.service.topic_stats() if each is not None]
    [subscription] = [each for each in stats.subscriptions if each.name == "s"]
    return {"topic": stats, **subscription._asdict()}


def test_the_age_of_a_backlog_is_that_of_its_first_message(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=2, subscription="s", initialPosition=1)
        topic = await broker.topic()
        assert (await scrape(broker))["backlog_age_s"] == -1
        first, second = await broker.publish(b"1", b"2")
        topic.wall_clock = lambda: PUBLISHED_S + AGE_S
        await client.messages(2)
        numbers = await scrape(broker)
        assert numbers["backlog_age_s"] == AGE_S
        assert numbers["topic"].backlog_age_s == numbers["backlog_age_s"]
        await client.ack(first)
        await client.quiet()
        assert (await scrape(broker))["backlog_age_s"] == AGE_S
        await client.ack(second)
        await client.quiet()
        numbers = await scrape(broker)
        assert numbers["backlog_age_s"] == numbers["topic"].backlog_age_s == -1

    run(tmp_path, scenario)


def test_an_age_that_only_a_disk_knows_is_there_at_the_next_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0, subscription="s", initialPosition=1)
        await broker.publish(b"1")
        topic: Any = await broker.topic()
        topic.wall_clock = lambda: PUBLISHED_S + AGE_S
        monkeypatch.setattr(topic.managed_ledger, "peek_cached", lambda position: None)
        assert (await scrape(broker))["backlog_age_s"] == -1
        reading = broker.service._time_search
        assert reading is not None
        await reading
        assert (await scrape(broker))["backlog_age_s"] == AGE_S
        # It is known now, and nothing is read for it again.
        assert broker.service._time_search is reading

    run(tmp_path, scenario)


def test_a_subscription_tells_when_something_was_done_last(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        begin_ms = int(time.time() * 1000)
        client = await broker.client()
        await client.subscribe(1, permits=1, subscription="s", initialPosition=1, subType=1)
        await client.quiet()
        numbers = await scrape(broker)
        assert numbers["last_flow_ms"] >= begin_ms
        assert numbers["last_sent_ms"] == numbers["last_acked_ms"] == 0
        [position] = await broker.publish(b"1")
        await client.messages(1)
        await client.ack(position)
        await client.quiet()
        numbers = await scrape(broker)
        for name in ("last_sent_ms", "last_acked_ms", "last_advanced_ms"):
            assert begin_ms <= numbers[name] <= time.time() * 1000, name
        assert numbers["last_expired_ms"] == 0
        sent_ms = numbers["last_sent_ms"]
        (await broker.topic()).subscriptions["s"].disconnect()
        await asyncio.sleep(0)
        assert (await scrape(broker))["last_sent_ms"] == sent_ms

    run(tmp_path, scenario)


def test_a_subscription_that_is_blocked_and_entries_to_be_sent_again_are_told(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=4, subscription="s", initialPosition=1, subType=1)
        positions = await broker.publish(*(b"x",) * 8)
        await client.messages(4)
        numbers = await scrape(broker)
        assert numbers["is_blocked"] == 1
        assert numbers["in_replay"] == 0
        client.redeliver(*positions[:3])
        await client.quiet()
        numbers = await scrape(broker)
        assert numbers["in_replay"] == numbers["topic"].in_replay == 3

    run(tmp_path, scenario, maxUnackedMessagesPerSubscription=4)


def test_throttling_is_told_once_a_rate_held_a_subscription_back(service: FakeService) -> None:
    name = "pulsar_subscription_dispatch_throttled_msg_events"
    labels = {**LABELS, "subscription": "s"}
    del labels["cluster"]
    assert name not in {each for each, _ in series(service)}
    service.loaded[0].subscriptions[0].throttled = ThrottledStats(1, 2, 3, 4, 5, 6)
    numbers = series(service)
    reasons = ("subscription", "topic", "broker")
    assert [value(numbers, name, **labels, reason=each) for each in reasons] == [1, 2, 3]
    name = "pulsar_subscription_dispatch_throttled_bytes_events"
    assert [value(numbers, name, **labels, reason=each) for each in reasons] == [4, 5, 6]


def test_evictions_are_told_of_topics_namespaces_and_the_broker(service: FakeService) -> None:
    name = "pulsar_storage_backlog_quota_exceeded_evictions_total"
    whole = name.replace("pulsar", "pulsar_broker", 1)
    numbers = series(service)
    assert name not in {each for each, _ in numbers}
    assert value(numbers, whole, quota_type="size") == 0
    service.loaded.append(Topic(f"{TOPIC}2", "public/default"))
    service.loaded[0].evictions = EvictionStats(size=3, time=0)
    service.loaded[1].evictions = EvictionStats(size=1, time=2)
    namespace = {"namespace": "public/default"}
    numbers = series(service)
    assert value(numbers, name, **namespace, topic=TOPIC, quota_type="size") == 3
    assert value(numbers, name, **namespace, topic=f"{TOPIC}2", quota_type="time") == 2
    service.config = Config(exposeTopicLevelMetricsInPrometheus=False)
    numbers = series(service)
    for each in ({**namespace, "quota_type": "size"}, {**namespace, "quota_type": "time"}):
        assert value(numbers, name, **each) == (4 if each["quota_type"] == "size" else 2)
    assert value(numbers, whole, quota_type="size") == 4
    assert value(numbers, whole, quota_type="time") == 2


def test_transactions_are_told_of_topics_and_namespaces(service: FakeService) -> None:
    names = [f"pulsar_txn_tb_{each}_total" for each in ("active", "aborted", "committed")]
    assert not {*names} & {each for each, _ in series(service)}
    service.loaded.append(Topic(f"{TOPIC}2", "public/default"))
    service.loaded[0].transactions = TransactionStats(ongoing=1, aborted=2, committed=3)
    service.loaded[1].transactions = TransactionStats(ongoing=10, aborted=20, committed=30)
    namespace = {"namespace": "public/default"}
    numbers = series(service)
    assert [value(numbers, each, **namespace, topic=TOPIC) for each in names] == [1, 2, 3]
    service.config = Config(exposeTopicLevelMetricsInPrometheus=False)
    numbers = series(service)
    assert [value(numbers, each, **namespace) for each in names] == [11, 22, 33]


def test_each_transaction_coordinator_has_its_series(service: FakeService) -> None:
    assert not any("txn" in name for name, _ in series(service))
    buckets = tuple(range(len(definitions.COORDINATOR_LATENCIES)))
    service.running = [CoordinatorStats(each, 1, 2, 3, 4, 5, 6, buckets) for each in (0, 7)]
    numbers = series(service)
    for each in ("0", "7"):
        told = [
            value(numbers, stat.series, coordinator_id=each)
            for stat in (*definitions.COORDINATOR, *definitions.COORDINATOR_LATENCIES)
        ]
        assert told == [1, 2, 3, 4, 5, 6, *buckets]
    assert value(numbers, "pulsar_txn_execution_latency_le_overflow", coordinator_id="0") == 13


def test_bytes_of_system_topics_are_apart_from_those_of_others(service: FakeService) -> None:
    system = Topic("persistent://a/b/__change_events", "a/b", bytes_in=7, bytes_out=2)
    system.is_system = True
    service.loaded.append(system)
    service.loaded[0].bytes_in = 100
    service.loaded[0].bytes_out = 10
    numbers = series(service)
    for name, label, own, others in (
        ("pulsar_broker_in_bytes_total", "system_topic", 7, 100),
        ("pulsar_broker_out_bytes_total", "system_subscription", 2, 10),
    ):
        assert value(numbers, name, **{label: "true"}) == own
        assert value(numbers, name, **{label: "false"}) == others


def test_a_quota_that_evicts_is_counted(tmp_path: Path) -> None:
    from test_quotas import SIZE, set_quota

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0, subscription="s", initialPosition=1)
        await broker.publish(*(bytes(100),) * 10)
        topic = await broker.topic()
        assert (await scrape(broker))["topic"].evictions is None
        await set_quota(broker, SIZE, topic.storage_size // 2, "consumer_backlog_eviction")
        await broker.topics.upkeep.check_quotas()
        assert (await scrape(broker))["topic"].evictions == EvictionStats(size=1, time=0)

    run(tmp_path, scenario)


def test_rates_that_nothing_has_measured_take_no_memory(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, subscription="s")
        await scrape(broker)
        subscription = (await broker.topic()).subscriptions["s"]
        assert subscription.expired_rates is None
        assert subscription.drop_rates is None

    run(tmp_path, scenario)


def test_lookups_and_topics_that_are_opened_are_counted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        service, topics = broker.service, broker.topics
        await service.lookup(TOPIC)
        with pytest.raises(NamespaceNotFound):
            await service.lookup("persistent://public/nowhere/t")
        assert (sum(service.lookups_us.counts), service.lookups_failed) == (1, 1)
        assert service.lookups_pending == 0
        await broker.topic()
        with pytest.raises(TopicNotFound):
            await topics.loader.get(TopicName.get(f"{TOPIC}2"), create=False)
        assert sum(topics.loader.loads_us.counts) == 1
        assert topics.loader.loads_failed == 0, "it does not exist, which is no failure"

    run(tmp_path, scenario)


def test_a_topic_that_cannot_be_opened_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        async def fail(*_: object) -> None:
            raise ServiceNotReady("not now")

        monkeypatch.setattr(broker.topics.loader, "_open_managed_ledger", fail)
        with pytest.raises(ServiceNotReady):
            await broker.topic()
        assert broker.topics.loader.loads_failed == 1

    run(tmp_path, scenario, topicLevelPoliciesEnabled=False)


def test_errors_of_managed_ledgers_are_told_for_two_periods() -> None:
    recent = Recent(10.0)
    assert recent.grown(0.0, {}) == {}
    assert recent.grown(1.0, {"a": 2}) == {"a": 2}
    assert recent.grown(10.0, {"a": 2}) == {"a": 2}
    assert recent.grown(19.0, {"a": 2, "b": 1}) == {"a": 2, "b": 1}
    assert recent.grown(20.0, {"a": 2, "b": 1}) == {"b": 1}
    assert recent.grown(40.0, {"a": 2, "b": 1}) == {}


def test_a_read_that_fails_is_an_error_of_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        [position] = await broker.publish(b"1")
        topic: Any = await broker.topic()
        ledger_id, _ = position
        with pytest.raises(LedgerError):
            await topic.managed_ledger.read_some(Position(ledger_id, 5), 1, 1, 5)
        _, read = broker.service.ledger_errors
        assert read == {"public/default/persistent": 1}

    run(tmp_path, scenario)

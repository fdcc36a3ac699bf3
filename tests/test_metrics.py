"""/metrics: Pulsar's names and labels, right sums, and rates that survive a topic's reload."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import math
import threading
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from fake_service import STORAGE, FakeService, Subscription, Topic
from one_broker import Broker, run
from pyxbroker.ackset import AckSet
from pyxbroker.add_stats import BOUNDS_US, NO_ADDS
from pyxbroker.admin.app import Application
from pyxbroker.admin.resources import metrics
from pyxbroker.base import log
from pyxbroker.base.listening import listen
from pyxbroker.base.rates import RATE_WINDOW_S
from pyxbroker.broker.statistics.stats import (
    SUBSCRIPTIONS_PER_STEP,
    CompactionStats,
    ConsumerStats,
    CoordinatorStats,
    Detail,
    ProducerStats,
    SubscriptionStats,
    TopicStats,
    TransactionStats,
    read_stats,
)
from pyxbroker.broker.topics.shards import Shards
from pyxbroker.delayed_index import DelayedIndex
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.stats import definitions, exposition
from pyxbroker.stats.definitions import COUNTER
from pyxbroker.stats.latencies import WINDOW_S, Latency
from pyxbroker.stats.metrics import SLICE_S, TOPICS_PER_STEP, Collector
from pyxbroker.web.server import WebServer
from stored import storage

TOPIC = "persistent://public/default/t"
LABELS = {"cluster": "standalone", "namespace": "public/default", "topic": TOPIC}

# What Apache Pulsar's dashboards read and this broker has numbers for. (prometheus_client gives
# each counter an end of _total, also where the text has none, as BookKeeper's.)
DASHBOARD = """
pulsar_rate_in pulsar_rate_out pulsar_throughput_in pulsar_throughput_out pulsar_msg_backlog
pulsar_storage_size pulsar_storage_backlog_size pulsar_version_info pulsar_topics_count
pulsar_subscriptions_count pulsar_producers_count pulsar_consumers_count
pulsar_subscription_back_log pulsar_subscription_msg_rate_out
pulsar_subscription_msg_throughput_out process_cpu_seconds_total process_resident_memory_bytes
bookie_ledgers_count bookie_entries_count bookie_SERVER_STATUS bookie_WRITE_BYTES_total
bookie_READ_BYTES_total
bookie_journal_JOURNAL_SYNC bookie_journal_JOURNAL_SYNC_count bookie_journal_JOURNAL_ADD_ENTRY
bookie_journal_JOURNAL_QUEUE_SIZE bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE
bookkeeper_server_ADD_ENTRY_REQUEST bookkeeper_server_READ_ENTRY_REQUEST
pulsar_broker_publish_latency pulsar_storage_write_rate pulsar_storage_read_rate
pulsar_storage_backlog_quota_limit pulsar_subscription_delayed
pulsar_storage_write_latency_le_0_5 pulsar_storage_write_latency_le_1
pulsar_storage_write_latency_le_5 pulsar_storage_write_latency_le_10
pulsar_storage_write_latency_le_20 pulsar_storage_write_latency_le_50
pulsar_storage_write_latency_le_100 pulsar_storage_write_latency_le_200
pulsar_storage_write_latency_le_1000 pulsar_storage_write_latency_overflow
pulsar_storage_write_latency_count pulsar_storage_write_latency_sum
pulsar_entry_size_le_128 pulsar_entry_size_le_512 pulsar_entry_size_le_1_kb
pulsar_entry_size_le_2_kb pulsar_entry_size_le_4_kb pulsar_entry_size_le_16_kb
pulsar_entry_size_le_100_kb pulsar_entry_size_le_1_mb pulsar_entry_size_le_overflow
pulsar_entry_size_count pulsar_entry_size_sum
""".split()


NAMES = st.characters(exclude_categories=["Cs"])  # what UTF-8 has
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def service() -> FakeService:
    fake = FakeService(MemoryStore())
    subscription = Subscription("s", 2, backlog=7, unacked_messages=3, msg_out=50, bytes_out=500)
    fake.loaded = [
        Topic(TOPIC, "public/default", 1, 2, [subscription], 60, 600, 50, 500, 9000, 700),
        Topic(f"{TOPIC}2", "public/default", 1, msg_in=5, bytes_in=50, storage_size=100),
    ]
    fake.storage = {**STORAGE, "ledgers": 3}
    fake.took = {
        "publish": took(1, 2, 3, 4),
        "add": took(900),
        "sync": took(1500, 1500, 1500, 1500),
        "read": took(),
        "failed_read": took(),
    }
    return fake


def took(*times_us: int) -> Latency:
    """So long, and each of them counted."""
    counts = array("Q", bytes(8 * len(BOUNDS_US)))
    for time_us in times_us:
        counts[bisect_left(BOUNDS_US, time_us)] += 1
    return Latency(sum(times_us) * 1000, counts.tobytes())


async def written(service: FakeService) -> str:
    sample = await Collector().sample(service)
    return b"".join([piece async for piece in sample.pieces()]).decode()


def text_of(service: FakeService) -> str:
    """A scrape."""
    return asyncio.run(written(service))


def series_of(text: str) -> Series:
    """As prometheus_client reads a text."""
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def series(service: FakeService) -> Series:
    return series_of(text_of(service))


def value(sample: Series, name: str, **labels: str) -> float:
    return sample[name, frozenset({"cluster": "standalone", **labels}.items())]


def test_the_names_of_the_dashboards_are_there(service: FakeService) -> None:
    names = {name for name, _ in series(service)}
    assert [name for name in DASHBOARD if name not in names] == []


def test_topic_subscription_and_broker_numbers(service: FakeService) -> None:
    sample = series(service)
    topic = {"namespace": "public/default", "topic": TOPIC}
    assert value(sample, "pulsar_in_messages_total", **topic) == 60
    assert value(sample, "pulsar_storage_size", **topic) == 9000
    assert value(sample, "pulsar_msg_backlog", **topic) == 7
    assert value(sample, "pulsar_subscription_back_log", **topic, subscription="s") == 7
    assert value(sample, "pulsar_out_bytes_total", **topic, subscription="s") == 500
    assert value(sample, "pulsar_topics_count", namespace="public/default") == 2
    assert value(sample, "pulsar_broker_in_bytes_total", system_topic="false") == 650
    assert value(sample, "pulsar_broker_storage_size") == 9100
    assert value(sample, "bookie_ledgers_count") == 3


def test_rates_are_taken_over_the_window(service: FakeService) -> None:
    clock = Clock()
    service.clock = clock
    topic = {"namespace": "public/default", "topic": TOPIC}
    assert value(series(service), "pulsar_rate_in", **topic) == 0
    clock.now += RATE_WINDOW_S
    service.loaded[0].msg_in += 10
    service.loaded[0].bytes_in += 100
    first = series(service)
    assert value(first, "pulsar_rate_in", **topic) == pytest.approx(1.0)
    assert value(first, "pulsar_throughput_in", **topic) == pytest.approx(10.0)
    # A second reader shortly after sees the same.
    clock.now += 0.05
    assert value(series(service), "pulsar_rate_in", **topic) == pytest.approx(1.0)
    clock.now += RATE_WINDOW_S
    assert value(series(service), "pulsar_rate_in", **topic) == 0


def test_quantiles_are_those_of_the_last_window(service: FakeService) -> None:
    clock = Clock()
    collector = Collector(clock)

    async def quantile(text: str) -> float:
        sample = await collector.sample(service)
        written = b"".join([piece async for piece in sample.pieces()]).decode()
        return value(series_of(written), "pulsar_broker_publish_latency", quantile=text)

    async def scenario() -> None:
        before = (1, 2, 3, 4)
        assert await quantile("0.5") == 0.002
        assert await quantile("1.0") == 0.004
        # What comes is in it until the first window is over, and then only what that has brought.
        service.took = {"publish": took(*before, *[5000] * 96)}
        assert await quantile("0.0") == 0.001
        assert await quantile("0.5") == pytest.approx(5, rel=1 / 16)
        clock.now += WINDOW_S
        assert await quantile("0.0") == pytest.approx(5, rel=1 / 16)
        # Nothing came in the second one.
        clock.now += WINDOW_S / 2
        assert await quantile("0.0") == pytest.approx(5, rel=1 / 16)
        clock.now += WINDOW_S / 2
        assert math.isnan(await quantile("0.5"))

    asyncio.run(scenario())


def test_summaries_count_from_the_start(service: FakeService) -> None:
    sample = series(service)
    name = "bookie_journal_JOURNAL_SYNC"
    assert value(sample, f"{name}_count", success="true") == 4
    assert value(sample, f"{name}_sum", success="true") == 6.0
    read = "bookkeeper_server_READ_ENTRY_REQUEST"
    for success in ("true", "false"):
        assert value(sample, f"{read}_count", success=success) == 0
        assert math.isnan(value(sample, read, success=success, quantile="0.99"))


def test_a_reloaded_topic_has_no_negative_rate(service: FakeService) -> None:
    clock = Clock()
    service.clock = clock
    series(service)
    clock.now += RATE_WINDOW_S
    service.loaded[0].msg_in = 1
    service.loaded[0].bytes_in = 10
    sample = series(service)
    assert min(number for (name, _), number in sample.items() if "rate" in name) == 0


def test_namespaces_can_stand_for_their_topics(service: FakeService) -> None:
    service.config = Config(exposeTopicLevelMetricsInPrometheus=False)
    sample = series(service)
    assert value(sample, "pulsar_in_messages_total", namespace="public/default") == 65
    assert "topic" not in {label for _, labels in sample for label, _ in labels}


def test_the_sums_of_namespaces_have_the_names_that_pulsar_gives_them(service: FakeService) -> None:
    """As Apache Pulsar 4.2.4 with exposeTopicLevelMetricsInPrometheus=false."""
    service.loaded[0].last_adds = tuple(range(len(NO_ADDS)))
    service.loaded[1].last_adds = (1,) * len(NO_ADDS)
    service.loaded[0].subscriptions[0].delayed = 2
    service.config = Config(exposeTopicLevelMetricsInPrometheus=False)
    sample = series(service)
    label = {"namespace": "public/default"}
    assert value(sample, "pulsar_storage_write_latency_le_1", **label) == 2
    assert value(sample, "pulsar_entry_size_sum", **label) == len(NO_ADDS)
    assert value(sample, "pulsar_subscription_delayed", **label) == 2
    assert value(sample, "pulsar_out_bytes_total", **label) == 500
    assert value(sample, "pulsar_msg_backlog", **label, remote_cluster="local") == 7
    names = {name for name, _ in sample}
    absent = {"pulsar_publish_rate_limit_times", "pulsar_storage_backlog_quota_limit"}
    assert not absent & names


def test_without_storage_there_are_no_bookie_series(service: FakeService) -> None:
    service.storage = {}
    service.took = {"publish": took(1)}
    assert not [name for name, _ in series(service) if "bookie" in name]


def test_defects_stray_commands_and_connections_refused_or_closed_are_counted(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(log.defects, "some.part", 3)
    text = text_of(service)
    label = 'cluster="standalone",'
    assert f'pyxbroker_defects_total{{{label}kind="some.part"}} 3\n' in text
    assert f'pyxbroker_stray_commands_total{{{label}command="FLOW"}} 2\n' in text
    refused = f'pyxbroker_refused_connections_total{{{label}setting="brokerMaxConnections"}} 4'
    assert refused in text
    closed = f'pyxbroker_closed_connections_total{{{label}setting="maxHalfOpenConnections"}} 5'
    assert closed in text


def test_what_is_remembered_for_clients_is_there(service: FakeService) -> None:
    sample = series(service)
    assert value(sample, "pyxbroker_client_state_bytes") == 4096
    assert value(sample, "pyxbroker_client_state_refused_total") == 5
    assert value(sample, "pyxbroker_client_state_closed_total") == 1
    assert value(sample, "pyxbroker_batch_ack_state_refused_total") >= 0
    assert value(sample, "pyxbroker_rest_answer_bytes") == 0
    assert value(sample, "pyxbroker_rest_body_bytes") == 0
    assert value(sample, "pyxbroker_rest_bodies_refused_total") == 0
    assert value(sample, "pyxbroker_rest_answers_refused_total") == 0
    acks, delayed = AckSet(0, -1), DelayedIndex()
    acks.add(0, 100)
    delayed.put(10**12, 0, 0)
    after = series(service)
    for name in ("pyxbroker_entry_set_bytes", "pyxbroker_delayed_delivery_state_bytes"):
        assert value(after, name) > value(sample, name) >= 0


def test_free_space_and_refused_sends_are_there(service: FakeService) -> None:
    sample = series(service)
    assert value(sample, "bookie_disk_free_bytes", directory="/data/bookie-1") == 75
    assert value(sample, "bookie_ledger_dir__data_bookie_1_usage") == 25
    assert value(sample, "bookie_ledger_writable_dirs") == 1
    assert value(sample, "bookie_ADD_ENTRY_REJECTED_total") == 3
    assert value(sample, "pyxbroker_bookie_unknown_ledgers") == 2


def test_a_sick_storage_is_read_only(service: FakeService) -> None:
    assert value(series(service), "bookie_SERVER_STATUS") == 1
    service.broken = "the journal failed"
    assert value(series(service), "bookie_SERVER_STATUS") == 0


def test_a_subscription_that_has_stopped_is_told(service: FakeService) -> None:
    name = "pyxbroker_subscription_stopped_by_damage"
    assert name not in {each for each, _ in series(service)}
    service.loaded[0].subscriptions[0].stopped_by_damage = "The subscription has stopped."
    labels = {"namespace": "public/default", "topic": TOPIC, "subscription": "s"}
    assert value(series(service), name, **labels) == 1


def test_names_in_labels_are_escaped(service: FakeService) -> None:
    name = 'persistent://public/default/a"b\\c\nd'
    service.loaded = [Topic(name, "public/default")]
    sample = series(service)
    assert value(sample, "pulsar_producers_count", namespace="public/default", topic=name) == 0
    assert not [line for line in text_of(service).splitlines() if line.startswith("d")]


# --- the format -------------------------------------------------------------------------------


def test_each_family_stands_together_with_its_type(service: FakeService) -> None:
    service.loaded *= 100
    families = list(text_string_to_metric_families(text_of(service)))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    types = {family.name: family.type for family in families}
    stats = (*definitions.TOPIC, *definitions.SUBSCRIPTION, *definitions.BOOKIE)
    for stat in (*stats, *definitions.STORAGE, *definitions.PROCESS):
        name = stat.series.removesuffix("_total") if stat.kind == COUNTER else stat.series
        assert not stat.series or types[name] == stat.kind
    assert types["bookie_journal_JOURNAL_SYNC"] == "summary"


@given(st.lists(st.text(NAMES), min_size=3, max_size=3), st.integers(0, 2**63))
def test_odd_names_and_large_numbers_are_read_as_they_are(names: list[str], count: int) -> None:
    fake = FakeService(MemoryStore(), Config(clusterName=names[0]))
    subscription = Subscription(names[2], msg_out=count)
    fake.loaded = [Topic(names[1], "a/b", subscriptions=[subscription], msg_in=count)]
    text = text_of(fake)
    labels = {"cluster": names[0], "namespace": "a/b", "topic": names[1]}
    numbers = series_of(text)
    assert numbers["pulsar_in_messages_total", frozenset(labels.items())] == count
    labels["subscription"] = names[2]
    assert numbers["pulsar_out_messages_total", frozenset(labels.items())] == count
    assert f"}} {count}\n" in text


def test_numbers_that_differ_stand_in_their_own_rows(service: FakeService) -> None:
    service.loaded = [Topic(f"t{n}", "a/b", producers=n, storage_size=8) for n in range(100)]
    numbers = series(service)
    for number in range(100):
        labels = {"namespace": "a/b", "topic": f"t{number}"}
        assert value(numbers, "pulsar_producers_count", **labels) == number
        assert value(numbers, "pulsar_storage_size", **labels) == 8


# --- settings ---------------------------------------------------------------------------------


def test_a_partition_can_be_a_label_of_its_own(service: FakeService) -> None:
    service.config = Config(splitTopicAndPartitionLabelInPrometheus=True)
    service.loaded.append(Topic(f"{TOPIC}-partition-12", "public/default", producers=4))
    service.loaded.append(Topic(f"{TOPIC}-partition-x", "public/default", producers=5))
    numbers = series(service)
    name, topic = "pulsar_producers_count", {"namespace": "public/default", "topic": TOPIC}
    assert value(numbers, name, **topic, partition="-1") == 1
    assert value(numbers, name, **topic, partition="12") == 4
    odd = {"namespace": "public/default", "topic": f"{TOPIC}-partition-x"}
    assert value(numbers, name, **odd, partition="-1") == 5


def test_producers_and_consumers_have_series_when_asked_for(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        for sequence_id in range(20):
            client.publish(sequence_id, b"x")
        await client.quiet()
        await client.subscribe(1, permits=15, consumer_name="c", initialPosition=1)
        await client.messages(15)
        fake = FakeService(MemoryStore())
        topic = await broker.topic()
        for asked in (False, True):
            fake.config = Config(
                exposeProducerLevelMetricsInPrometheus=asked,
                exposeConsumerLevelMetricsInPrometheus=asked,
            )
            detail = Detail(producers=asked, consumers=asked)
            fake.topic_stats = partial(read_stats, [topic], detail)  # type: ignore[method-assign]
            text = await written(fake)
            assert ("consumer_name" in text) is asked
            assert ("pulsar_producer_" in text) is asked
        labels = {"namespace": "public/default", "topic": TOPIC}
        consumer = {**labels, "subscription": "s", "consumer_name": "c", "consumer_id": "1"}
        numbers = series_of(text)
        assert value(numbers, "pulsar_consumer_unacked_messages", **consumer) == 15
        assert value(numbers, "pulsar_consumer_available_permits", **consumer) == 0
        assert value(numbers, "pulsar_out_messages_total", **consumer) == 15
        assert value(numbers, "pulsar_out_messages_total", **labels, subscription="s") == 15
        assert value(numbers, "pulsar_subscription_back_log", **labels, subscription="s") == 20
        assert value(numbers, "pulsar_msg_backlog", **labels) == 20
        producer = {**labels, "producer_name": "p", "producer_id": "1"}
        assert value(numbers, "pulsar_producer_msg_rate_in", **producer) == 0
        assert value(numbers, "pulsar_in_messages_total", **labels) == 20

    run(tmp_path, scenario)


def test_every_counter_of_the_storage_is_told(tmp_path: Path) -> None:
    with storage(tmp_path) as opened:
        counted = set(opened.stats())
    told = {stat.field for stat in definitions.BOOKIE}
    summary = {"syncs", "sync_ns_total"}  # of the journal's syncs, in LATENCIES
    assert told | summary == counted
    assert set(STORAGE) == counted


def test_what_is_defined_is_what_a_broker_counts() -> None:
    counted = {
        definitions.TOPIC: TopicStats,
        definitions.SUBSCRIPTION: SubscriptionStats,
        definitions.CONSUMER: ConsumerStats,
        definitions.PRODUCER: ProducerStats,
        definitions.COMPACTION: CompactionStats,
        definitions.TRANSACTIONS: TransactionStats,
        definitions.COORDINATOR: CoordinatorStats,
    }
    assert len(definitions.ADDS) == len(NO_ADDS)
    for stats, kind in counted.items():
        assert {stat.field for stat in stats} <= set(kind._fields)


# --- turns ------------------------------------------------------------------------------------


class Ticking(Clock):
    """Whoever looks at it takes a step's time for what he did before."""

    STEP_S = SLICE_S / 5

    def __call__(self) -> float:
        self.now += self.STEP_S
        return self.now


def many_topics(service: FakeService) -> None:
    service.loaded = [Topic(f"t{n}", "a/b", msg_in=n) for n in range(1000)]


def many_subscriptions(service: FakeService) -> None:
    subscriptions = [Subscription(f"s{n}", msg_out=n) for n in range(1000)]
    service.loaded = [Topic("t", "a/b", subscriptions=subscriptions)]


def many_namespaces(service: FakeService) -> None:
    service.config = Config(exposeTopicLevelMetricsInPrometheus=False)
    service.loaded = [Topic(f"t{n}", f"a/{n}", msg_in=n) for n in range(1000)]


@pytest.mark.parametrize("fill", [many_topics, many_subscriptions, many_namespaces])
def test_the_loop_has_its_turns_during_a_scrape(
    service: FakeService, fill: Callable[[FakeService], None]
) -> None:
    fill(service)
    clock = Ticking()

    async def main() -> tuple[list[float], int]:
        turns: list[float] = []

        async def watch() -> None:
            while True:
                turns.append(clock.now)
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        sample = await Collector(clock).sample(service)
        read = len(set(turns))
        async for _ in sample.pieces():
            pass
        watching.cancel()
        return [*turns, clock.now], read

    turns, read = asyncio.run(main())
    # A step for some topics, then others for each block of each series, and for forgetting them.
    assert read >= 1000 / TOPICS_PER_STEP * Ticking.STEP_S / SLICE_S * 0.8
    assert len(set(turns)) > read + 10
    longest = max(after - before for before, after in pairwise(turns))
    assert longest <= SLICE_S + 3 * Ticking.STEP_S


def test_a_topic_with_many_subscriptions_is_read_in_parts(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        for number in range(3 * SUBSCRIPTIONS_PER_STEP):
            topic.reader_for(f"s{number}", topic.managed_ledger.last_confirmed)
        *parts, stats = read_stats([topic])
        assert parts == [None, None, None]
        assert stats is not None
        assert stats.subscription_count == 3 * SUBSCRIPTIONS_PER_STEP

    run(tmp_path, scenario)


def test_topics_come_and_go_while_they_are_walked() -> None:
    shards: Shards[int, int] = Shards()
    for number in range(1000):
        shards[number] = number
    walked = set()
    for number in shards.values():
        walked.add(number)
        shards.pop(number)
        shards[number + 1000] = -1
        shards.pop(number + 1000)
    assert walked == set(range(1000))
    assert (len(shards), shards.get(5), shards.pop(5)) == (0, None, None)


# --- over HTTP --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("*", True),
        ("identity", False),
        ("gzip;q=0, *", False),
        ("deflate;q=1, gzip; q=0.000", False),
    ],
)
def test_a_client_that_takes_gzip_gets_it(accepted: str, is_packed: bool) -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.open()
        service = FakeService(store)
        many_topics(service)
        sock = listen("127.0.0.1", 0)
        server = WebServer(Application(cast(Any, service), lambda: service).answer, 0)
        server.start(sock)

        def get() -> tuple[http.client.HTTPResponse, bytes]:
            connection = http.client.HTTPConnection(*sock.getsockname(), timeout=10)
            connection.request("GET", "/metrics", headers={"Accept-Encoding": accepted})
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer, body

        answer, body = await asyncio.get_running_loop().run_in_executor(None, get)
        assert answer.headers["Content-Type"] == exposition.CONTENT_TYPE
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert (answer.headers["Content-Encoding"] == "gzip") is is_packed
        text = (gzip.decompress(body) if is_packed else body).decode()
        labels = {"namespace": "a/b", "topic": "t999"}
        assert value(series_of(text), "pulsar_in_messages_total", **labels) == 999
        await server.stop()
        await store.close()

    asyncio.run(main())


def test_packing_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    class Packer:
        def compress(self, piece: bytes) -> bytes:
            threads.add(threading.get_ident())
            return piece

        def flush(self) -> bytes:
            threads.add(threading.get_ident())
            return b"."

    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            yield b"a"

    async def main() -> bytes:
        return b"".join([piece async for piece in metrics.compressed(pieces())])

    monkeypatch.setattr(metrics.zlib, "compressobj", lambda *_: Packer())
    assert asyncio.run(main()) == b"aaa."
    assert threads
    assert threading.get_ident() not in threads


def test_turns_are_a_histogram(service: FakeService) -> None:
    sample = series(service)
    name = "pyxbroker_loop_turn_seconds"
    assert value(sample, f"{name}_bucket", le="0.001") == 5
    assert value(sample, f"{name}_bucket", le="0.1") == 7
    assert value(sample, f"{name}_bucket", le="+Inf") == value(sample, f"{name}_count") == 8
    assert value(sample, f"{name}_sum") == 0.75
    assert f"# TYPE {name} histogram" in text_of(service)

"""/metrics: Pulsar's names and labels, right sums, and rates that survive a topic's reload."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fake_service import STORAGE, FakeService, Subscription, Topic
from pyxbroker.base.rates import RATE_WINDOW_S
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.stats.metrics import Collector

TOPIC = "persistent://public/default/t"
LABELS = {"cluster": "standalone", "namespace": "public/default", "topic": TOPIC}

# What Apache Pulsar's dashboards read and this broker has numbers for.
DASHBOARD = """
pulsar_rate_in pulsar_rate_out pulsar_throughput_in pulsar_throughput_out pulsar_msg_backlog
pulsar_storage_size pulsar_storage_backlog_size pulsar_version_info pulsar_topics_count
pulsar_subscriptions_count pulsar_producers_count pulsar_consumers_count
pulsar_subscription_back_log pulsar_subscription_msg_rate_out
pulsar_subscription_msg_throughput_out process_cpu_seconds_total process_resident_memory_bytes
bookie_ledgers_count bookie_entries_count bookie_SERVER_STATUS bookie_WRITE_BYTES_total
bookie_journal_JOURNAL_SYNC_count bookie_journal_JOURNAL_QUEUE_SIZE
""".split()


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
    fake.storage = {**STORAGE, "syncs": 4, "sync_ns_total": 6_000_000, "ledgers": 3}
    return fake


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
    assert value(sample, "pulsar_broker_in_bytes_total") == 650
    assert value(sample, "pulsar_broker_storage_size") == 9100
    assert value(sample, "bookie_ledgers_count") == 3
    assert value(sample, "bookie_journal_JOURNAL_SYNC_sum", success="true") == 6.0


def test_rates_are_taken_over_the_window(service: FakeService) -> None:
    clock = Clock()
    service.clock = clock
    topic = {"namespace": "public/default", "topic": TOPIC}
    assert value(series(service), "pulsar_rate_in", **topic) == 0
    clock.now += RATE_WINDOW_S / 2
    service.loaded[0].msg_in += 10
    service.loaded[0].bytes_in += 100
    first = series(service)
    assert value(first, "pulsar_rate_in", **topic) == pytest.approx(10 / (RATE_WINDOW_S / 2))
    assert value(first, "pulsar_throughput_in", **topic) == pytest.approx(20.0)
    # A second reader shortly after does not shorten the window of the first.
    clock.now += RATE_WINDOW_S / 2
    second = series(service)
    assert value(second, "pulsar_rate_in", **topic) == pytest.approx(1.0)
    clock.now += RATE_WINDOW_S
    assert value(series(service), "pulsar_rate_in", **topic) == 0


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


def test_without_storage_there_are_no_bookie_series(service: FakeService) -> None:
    service.storage = {}
    assert not [name for name, _ in series(service) if "bookie" in name]


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

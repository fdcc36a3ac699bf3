"""/metrics: Pulsar's names and labels, right sums, and rates that survive a topic's reload."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fake_service import STORAGE, FakeService, Subscription, Topic
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.stats.metrics import RATE_WINDOW_S, Collector, Sample

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


def series(sample: Sample) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    _, body = sample.exposition()
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(body.decode())
        for each in family.samples
    }


def value(sample: Sample, name: str, **labels: str) -> float:
    return series(sample)[name, frozenset({"cluster": "standalone", **labels}.items())]


def test_the_names_of_the_dashboards_are_there(service: FakeService) -> None:
    names = {name for name, _ in series(Collector().sample(service))}
    assert [name for name in DASHBOARD if name not in names] == []


def test_topic_subscription_and_broker_numbers(service: FakeService) -> None:
    sample = Collector().sample(service)
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
    collector = Collector(clock)
    topic = {"namespace": "public/default", "topic": TOPIC}
    assert value(collector.sample(service), "pulsar_rate_in", **topic) == 0
    clock.now += RATE_WINDOW_S / 2
    service.loaded[0].msg_in += 10
    service.loaded[0].bytes_in += 100
    first = collector.sample(service)
    assert value(first, "pulsar_rate_in", **topic) == pytest.approx(10 / (RATE_WINDOW_S / 2))
    assert value(first, "pulsar_throughput_in", **topic) == pytest.approx(20.0)
    # A second reader shortly after does not shorten the window of the first.
    clock.now += RATE_WINDOW_S / 2
    second = collector.sample(service)
    assert value(second, "pulsar_rate_in", **topic) == pytest.approx(1.0)
    clock.now += RATE_WINDOW_S
    assert value(collector.sample(service), "pulsar_rate_in", **topic) == 0


def test_a_reloaded_topic_has_no_negative_rate(service: FakeService) -> None:
    clock = Clock()
    collector = Collector(clock)
    collector.sample(service)
    clock.now += RATE_WINDOW_S
    service.loaded[0].msg_in = 1
    service.loaded[0].bytes_in = 10
    sample = collector.sample(service)
    assert min(number for (name, _), number in series(sample).items() if "rate" in name) == 0


def test_namespaces_can_stand_for_their_topics(service: FakeService) -> None:
    service.config = Config(exposeTopicLevelMetricsInPrometheus=False)
    sample = Collector().sample(service)
    assert value(sample, "pulsar_in_messages_total", namespace="public/default") == 65
    assert "topic" not in {label for _, labels in series(sample) for label, _ in labels}


def test_without_storage_there_are_no_bookie_series(service: FakeService) -> None:
    service.storage = {}
    assert not [name for name, _ in series(Collector().sample(service)) if "bookie" in name]


def test_free_space_and_refused_sends_are_there(service: FakeService) -> None:
    sample = Collector().sample(service)
    assert value(sample, "bookie_disk_free_bytes", directory="/data/bookie-1") == 75
    assert value(sample, "bookie_ledger_dir__data_bookie_1_usage") == 25
    assert value(sample, "bookie_ledger_writable_dirs") == 1
    assert value(sample, "bookie_ADD_ENTRY_REJECTED_total") == 3
    assert value(sample, "pyxbroker_bookie_unknown_ledgers") == 2


def test_a_sick_storage_is_read_only(service: FakeService) -> None:
    assert value(Collector().sample(service), "bookie_SERVER_STATUS") == 1
    service.broken = "the journal failed"
    assert value(Collector().sample(service), "bookie_SERVER_STATUS") == 0


def test_a_subscription_that_has_stopped_is_told(service: FakeService) -> None:
    name = "pyxbroker_subscription_stopped_by_damage"
    assert name not in {each for each, _ in series(Collector().sample(service))}
    service.loaded[0].subscriptions[0].stopped_by_damage = "The subscription has stopped."
    labels = {"namespace": "public/default", "topic": TOPIC, "subscription": "s"}
    assert value(Collector().sample(service), name, **labels) == 1


def test_names_in_labels_are_escaped(service: FakeService) -> None:
    name = 'persistent://public/default/a"b\\c\nd'
    service.loaded = [Topic(name, "public/default")]
    sample = Collector().sample(service)
    assert value(sample, "pulsar_producers_count", namespace="public/default", topic=name) == 0
    assert re.search(rb"^d", sample.exposition()[1], re.MULTILINE) is None

"""What a real process says of itself: /metrics as Prometheus reads it, its health, stats of topics.

Every series that is defined shows up, and moves as what it counts happens.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from compat_tests.conftest import AnyClient, BrokerFactory, ClientFactory
from compat_tests.messages import payload
from pyxbroker.stats import definitions
from pyxbroker.stats.definitions import COUNTER, Stat

pytestmark = pytest.mark.pyxbroker

SETTINGS = {
    "exposeConsumerLevelMetricsInPrometheus": "true",
    "exposeProducerLevelMetricsInPrometheus": "true",
    "exposeManagedCursorMetricsInPrometheus": "true",
    "exposeBundlesMetricsInPrometheus": "true",
    "journalMaxSizeMB": "8",
    "dbStorage_writeCacheMaxSizeMb": "2",
    "dbStorage_readAheadCacheMaxSizeMb": "2",
    "maxMessageSize": "100000",
}
# There are such series only when there is something to tell.
ONLY_THEN = {definitions.DEFECTS.series, definitions.STRAY_COMMANDS.series}


class Scrape:
    """One answer of /metrics, of each broker."""

    def __init__(self, broker: Broker) -> None:
        self.families: dict[str, Metric] = {}
        self.samples: list[Sample] = []
        for url in broker.web_urls():
            with urllib.request.urlopen(f"{url}/metrics/", timeout=10) as answer:
                assert answer.status == 200
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                text = answer.read().decode()
            for family in text_string_to_metric_families(text):
                self.families[family.name] = family
                self.samples += family.samples

    @property
    def names(self) -> set[str]:
        return {each.name for each in self.samples}

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels, of which there must be some."""
        found = [
            each.value
            for each in self.samples
            if each.name == name and labels.items() <= each.labels.items()
        ]
        assert found, f"no {name} with {labels}"
        return sum(found)


def scrapes_until(
    broker: Broker, condition: Callable[[Scrape], bool], timeout_s: float = 15.0
) -> Scrape:
    """Scrapes until the numbers are as they should be, which some become a little later."""
    deadline = time.monotonic() + timeout_s
    while True:
        scrape = Scrape(broker)
        if condition(scrape):
            return scrape
        assert time.monotonic() < deadline, f"{timeout_s} s are over: {scrape.samples}"
        time.sleep(0.1)


@pytest.fixture
def counted(own_broker: BrokerFactory) -> Iterator[Broker]:
    """A broker that nobody else uses, so that every number is the test's."""
    broker = own_broker(settings=SETTINGS)
    broker.start()
    yield broker
    assert broker.stop() == 0, broker.output()


def defined() -> list[Stat]:
    kinds = (
        definitions.TOPIC,
        definitions.ADDS,
        definitions.SUBSCRIPTION,
        definitions.CONSUMER,
        definitions.PRODUCER,
        definitions.BOOKIE,
        definitions.STORAGE,
        definitions.PROCESS,
        definitions.BROKER,
        definitions.BUNDLE,
        definitions.CACHE_RATES,
        definitions.CURSOR,
        definitions.LEDGERS,
        definitions.LEDGER_ERRORS,
        definitions.WEB,
        (definitions.TOPICS, definitions.WEB_RESPONSES),
    )
    return [stat for some in kinds for stat in some]


def parsed(stat: Stat) -> str:
    """The name of its series for prometheus_client, to which each counter is a _total."""
    return stat.series.removesuffix("_total") + "_total" if stat.kind == COUNTER else stat.series


@pytest.mark.standalone
def test_every_series_that_is_defined_is_told(counted: Broker, topic: str) -> None:
    with RawConnection(counted.port) as one:
        one.producer(topic, 1)
        assert one.subscribe(topic, "s", 2).type == wire.SUCCESS
        one.send(b"x", 0)
        one.expect(wire.SEND_RECEIPT)
        scrape = Scrape(counted)
    wanted = {parsed(stat) for stat in defined() if stat.series and not stat.only_set}
    wanted |= {stat.broker_series for stat in defined() if stat.broker_series}
    for each in definitions.LATENCIES:
        wanted |= {each.series, f"{each.series}_count", f"{each.series}_sum"}
    assert sorted(wanted - scrape.names) == []
    assert not ONLY_THEN & scrape.names
    for stat in defined():
        if stat.series and not stat.only_set:
            # The library's name of a counter's family has no _total.
            ends = "_total" if stat.kind == COUNTER else ""
            assert scrape.families[stat.series.removesuffix(ends)].type == stat.kind, stat.series
    names = {"pulsar_version_info", "bookie_journal_JOURNAL_SYNC_count", "bookie_disk_free_bytes"}
    assert names <= scrape.names


@pytest.mark.standalone
def test_counters_follow_messages(counted: Broker, new_client: ClientFactory, topic: str) -> None:
    client: AnyClient = new_client(counted.url)
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = client.create_producer(topic, batching_enabled=False)
    before = Scrape(counted)
    assert before("pulsar_in_messages_total", topic=topic) == 0
    for number in range(20):
        producer.send(payload(number, 1000))
    mine = {"topic": topic, "subscription": "s"}
    sent = scrapes_until(counted, lambda s: s("pulsar_out_messages_total", **mine) >= 20)
    assert sent("pulsar_in_messages_total", topic=topic) == 20
    assert sent("pulsar_broker_in_messages_total") == 20
    assert 20_000 <= sent("pulsar_in_bytes_total", topic=topic) < 24_000
    assert sent("pulsar_storage_size", topic=topic) >= 20_000
    assert sent("pulsar_subscription_back_log", **mine) == 20
    assert sent("pulsar_subscription_unacked_messages", **mine) == 20
    assert sent("pulsar_consumer_unacked_messages", **mine) == 20
    assert sent("pulsar_subscription_consumers_count", **mine) == 1
    assert sent("pulsar_producers_count", topic=topic) == 1
    assert sent("pulsar_topics_count", namespace="public/default") == 1
    for name, least in (
        ("bookie_WRITE_BYTES_total", 20_000),
        ("bookie_journal_JOURNAL_WRITE_BYTES_total", 20_000),
        ("bookie_journal_JOURNAL_SYNC_count", 1),
        ("bookie_journal_JOURNAL_SYNC_sum", 0.001),
        ("bookie_entries_count", 20),
        ("pyxbroker_bookie_adds_total", 20),
        ("pyxbroker_bookie_journal_groups_total", 1),
        ("bookie_write_cache_size", 20_000),
    ):
        assert sent(name) - before(name) >= least, name

    messages = [consumer.receive(5000) for _ in range(20)]
    for message in messages[:15]:
        consumer.acknowledge(message)
    acked = scrapes_until(counted, lambda s: s("pulsar_subscription_back_log", **mine) == 5)
    assert acked("pulsar_subscription_unacked_messages", **mine) == 5
    for message in messages[15:]:
        consumer.negative_acknowledge(message)
    again = [consumer.receive(5000) for _ in range(5)]
    redelivered = Scrape(counted)
    assert redelivered("pulsar_broker_out_messages_total") == 25
    assert redelivered("pulsar_in_messages_total", topic=topic) == 20
    for message in again:
        consumer.acknowledge(message)
    scrapes_until(counted, lambda s: s("pulsar_subscription_back_log", **mine) == 0)
    consumer.close()
    scrapes_until(counted, lambda s: s("pulsar_subscription_consumers_count", **mine) == 0)


def test_alert_rules_see_a_subscription_that_is_stuck(
    own_broker: BrokerFactory, new_client: ClientFactory, topic: str
) -> None:
    """Its consumer does not acknowledge: the limit blocks it, and its backlog grows old."""
    broker = own_broker(settings={**SETTINGS, "maxUnackedMessagesPerSubscription": "10"})
    broker.start()
    began_ms = int(time.time() * 1000)
    mine = {"topic": topic, "subscription": "s"}
    client: AnyClient = new_client(broker.url)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(20):
        producer.send(payload(number, 100))
    messages = [consumer.receive(5000) for _ in range(10)]
    blocked = "pulsar_subscription_blocked_on_unacked_messages"
    stuck = scrapes_until(broker, lambda s: s(blocked, **mine) == 1)
    assert began_ms <= stuck("pulsar_subscription_last_consumed_timestamp", **mine)
    assert stuck("pulsar_subscription_last_acked_timestamp", **mine) == 0
    age = "pulsar_subscription_storage_backlog_age_seconds"
    old = scrapes_until(broker, lambda s: s(age, **mine) >= 2)
    assert old(age, **mine) <= (time.time() * 1000 - began_ms) / 1000
    assert old("pulsar_storage_backlog_age_seconds", topic=topic) == old(age, **mine)
    for message in messages[1:]:
        consumer.acknowledge(message)
    acked = "pulsar_subscription_last_acked_timestamp"
    cursor = {"cursor_name": "s", "namespace": "public/default/persistent"}
    ranges = "pulsar_ml_cursor_nonContiguousDeletedMessagesRange"
    going = scrapes_until(broker, lambda s: s(ranges, **cursor) == 1)
    assert began_ms <= going(acked, **mine) <= time.time() * 1000
    consumer.acknowledge(messages[0])
    for _ in range(10):
        consumer.acknowledge(consumer.receive(5000))
    done = scrapes_until(broker, lambda s: s(age, **mine) == -1)
    assert done(blocked, **mine) == 0
    assert broker.stop() == 0, broker.output()


def test_the_age_of_a_backlog_is_known_after_a_restart(counted: Broker, topic: str) -> None:
    with RawConnection(counted.port) as one:
        assert one.subscribe(topic, "s", 2).type == wire.SUCCESS
        one.producer(topic, 1)
        published_ms = int(time.time() * 1000) - 100_000
        one.write(wire.send(1, 0, wire.metadata("raw", 0, published_ms), b"x"))
        one.expect(wire.SEND_RECEIPT)
    counted.kill()
    counted.start()
    with RawConnection(counted.port) as one:
        assert one.subscribe(topic, "s", 2).type == wire.SUCCESS
        age = "pulsar_storage_backlog_age_seconds"
        known = scrapes_until(counted, lambda s: s(age, topic=topic) >= 0)
        assert 100 <= known(age, topic=topic) <= 160


@pytest.mark.standalone
def test_connections_lookups_and_requests_are_counted(counted: Broker, topic: str) -> None:
    place = {"metric": "broker_connection"}
    before = Scrape(counted)
    with RawConnection(counted.port) as one:
        one.producer(topic, 1)
        during = Scrape(counted)
        for name, more in (
            ("pulsar_active_connections", 1),
            ("pulsar_connection_created_total_count", 1),
            ("pulsar_connection_create_success_count", 1),
            ("pulsar_connection_closed_total_count", 0),
        ):
            assert during(name, **place) - before(name, **place) == more, name
        for name in ("pulsar_broker_lookup_answers_total", "pulsar_topic_load_times_count"):
            assert during(name) - before(name) == 1, name
        assert during("pulsar_bundle_producer_count") == 1
        assert during("pulsar_ml_count") == 1
    scrapes_until(counted, lambda s: s("pulsar_active_connections") == 0)
    assert counted.http_status("/admin/v2/nothing") == 404
    after = Scrape(counted)
    refused = {"code": "4xx"}
    name = "jetty_responses_total"
    assert after(name, **refused) - during(name, **refused) == 1
    assert after("jetty_requests_total") > during("jetty_requests_total")
    assert after("pulsar_health") == 1
    assert after("pulsar_lb_memory_usage") > 0


@pytest.mark.standalone
def test_counters_follow_the_files_of_the_storage(counted: Broker, topic: str) -> None:
    """A write cache of 2 MiB is flushed; what is read again comes from entry logs."""
    before = Scrape(counted)
    with RawConnection(counted.port) as one:
        one.producer(topic, 1)
        for number in range(80):
            one.send(bytes(90_000), number)
            one.expect(wire.SEND_RECEIPT)
        flushed = scrapes_until(counted, lambda s: s("pyxbroker_bookie_flushes_total") > 0)
        assert flushed("pyxbroker_bookie_flush_bytes_total") >= 1 << 20
        assert flushed("pyxbroker_bookie_entry_logs") >= 1
        assert flushed("pyxbroker_bookie_entry_log_bytes") >= 1 << 20
        assert flushed("bookie_ledgers_count") > before("bookie_ledgers_count")
        assert one.subscribe(topic, "s", 2).type == wire.SUCCESS
        one.flow(80, 2)
        for _ in range(80):
            one.wait_for(wire.MESSAGE)
    read = Scrape(counted)
    for name in ("bookie_read_cache_hits_total", "bookie_read_cache_misses_total"):
        assert read(name) > before(name), name
    assert read("pyxbroker_bookie_damaged_entries_total") == 0
    assert read("pyxbroker_bookie_replayed_entries") == 0
    counted.kill()
    counted.start()
    assert Scrape(counted)("pyxbroker_bookie_replayed_entries") > 0


@pytest.mark.standalone
def test_latencies_and_sizes_are_those_of_what_was_sent(
    own_broker: BrokerFactory, topic: str
) -> None:
    broker = own_broker(settings={"managedLedgerStatsPeriodSeconds": "1"})
    broker.start()
    with RawConnection(broker.port) as one:
        one.producer(topic, 1)
        for number in range(10):
            one.send(bytes(3000), number)
            one.expect(wire.SEND_RECEIPT)
        sent = scrapes_until(
            broker, lambda s: s("pulsar_entry_size_le_4_kb", topic=topic) > 0, timeout_s=30.0
        )
        buckets = [
            sent(each.series, topic=topic)
            for each in definitions.ADDS
            if "latency_le" in each.series or each.series.endswith("latency_overflow")
        ]
        # Those of one period: the ten may have been sent in two of them.
        count = sent("pulsar_entry_size_count", topic=topic)
        assert 1 <= count == sum(buckets) <= 10
        assert 3000 * count <= sent("pulsar_entry_size_sum", topic=topic) <= 3200 * count
        assert sent("pulsar_storage_write_latency_sum", topic=topic) > 0
        name = "pulsar_broker_publish_latency"
        assert sent(f"{name}_count") >= 10
        assert 0 < sent(name, quantile="0.0") <= sent(name, quantile="0.5")
        assert sent(name, quantile="0.5") <= sent(name, quantile="1.0")
        for name in ("bookie_journal_JOURNAL_ADD_ENTRY", "bookkeeper_server_ADD_ENTRY_REQUEST"):
            assert sent(f"{name}_count", success="true") >= 10
            assert sent(name, success="true", quantile="0.5") > 0
        # The next period has nothing.
        scrapes_until(
            broker, lambda s: s("pulsar_entry_size_count", topic=topic) == 0, timeout_s=30.0
        )
    assert broker.stop() == 0, broker.output()


@pytest.mark.standalone  # the other brokers of a cluster are connected, too
def test_a_connection_too_many_is_refused_until_another_one_goes(own_broker: BrokerFactory) -> None:
    broker = own_broker(settings={"brokerMaxConnections": "2"})
    broker.spawn()
    until_answers = time.monotonic() + 20
    while broker.http_status("/admin/v2/brokers/ready") != 200:
        assert time.monotonic() < until_answers, broker.output()
        time.sleep(0.05)
    with RawConnection(broker.port) as first:
        with RawConnection(broker.port) as second:
            with (
                RawConnection(broker.port, handshake=False) as third,
                pytest.raises(ConnectionClosed),
            ):
                third.receive()
            assert (
                Scrape(broker)(
                    "pyxbroker_refused_connections_total", setting="brokerMaxConnections"
                )
                == 1
            )
            second.assert_alive()
        deadline = time.monotonic() + 10
        while True:
            try:
                with RawConnection(broker.port):
                    break
            except ConnectionClosed:
                assert time.monotonic() < deadline, "no place became free"
                time.sleep(0.05)
        first.assert_alive()
    assert broker.stop() == 0
    assert "refused by brokerMaxConnections" in broker.output()


@pytest.mark.standalone
def test_a_broker_says_that_it_is_well(counted: Broker) -> None:
    for name in ("health", "ready"):
        with urllib.request.urlopen(f"{counted.web_url}/admin/v2/brokers/{name}") as answer:
            assert (answer.status, answer.read()) == (200, b"ok")
    assert Scrape(counted)("bookie_SERVER_STATUS") == 1

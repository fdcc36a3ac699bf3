"""Each series that Apache Pulsar writes exists here, or docs/metrics.md says why it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fake_service import STORAGE, FakeService, Subscription, Topic
from pyxbroker.auth.login_counts import LoginCounts
from pyxbroker.base.histogram import Histogram
from pyxbroker.broker.statistics.stats import (
    CompactionStats,
    ConsumerStats,
    CoordinatorStats,
    EvictionStats,
    ProducerStats,
    ThrottledStats,
    TransactionStats,
)
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.schemas.schema_counts import NamespaceCounts
from pyxbroker.settings.config import Config
from pyxbroker.stats import definitions
from pyxbroker.stats.broker_series import BrokerStats, LedgerErrors
from pyxbroker.web.counts import WebCounts
from test_metrics import series, text_of, took, value

ROOT = Path(__file__).resolve().parent.parent
NAMES = ROOT / "tests" / "data" / "pulsar_series.txt"
PAGE = ROOT / "docs" / "metrics.md"
ENDINGS = ("", "_bucket", "_count", "_sum", "_created", "_total")
EVERYTHING: dict[str, Any] = {
    "exposeConsumerLevelMetricsInPrometheus": True,
    "exposeProducerLevelMetricsInPrometheus": True,
    "exposeManagedCursorMetricsInPrometheus": True,
    "exposeBundlesMetricsInPrometheus": True,
}
# Of a label that Apache Pulsar has as well, and this broker does not.
LACKS_LABEL = {"pulsar_version_info": "commit"}
# What published alert rules and dashboards ask for.
ASKED_FOR = """
pulsar_health pulsar_active_connections pulsar_broker_msg_backlog pulsar_storage_backlog_age_seconds
pulsar_subscription_storage_backlog_age_seconds pulsar_subscription_blocked_on_unacked_messages
pulsar_subscription_msg_rate_redeliver pulsar_subscription_msg_drop_rate
pulsar_subscription_msg_rate_expired pulsar_subscription_msg_ack_rate
pulsar_subscription_total_msg_expired pulsar_subscription_in_replay
pulsar_subscription_last_acked_timestamp pulsar_subscription_last_consumed_timestamp
pulsar_subscription_last_consumed_flow_timestamp pulsar_subscription_last_expire_timestamp
pulsar_subscription_last_mark_delete_advanced_timestamp pulsar_average_msg_size
pulsar_broker_lookup_failures_total pulsar_broker_lookup_pending_requests
pulsar_broker_topic_load_pending_requests pulsar_broker_pending_bytes_to_dispatch
pulsar_broker_throttled_connections pulsar_broker_storage_read_cache_misses_rate
pulsar_broker_storage_backlog_quota_exceeded_evictions_total pulsar_topic_load_failed_count
pulsar_ml_AddEntryErrors pulsar_ml_ReadEntriesErrors pulsar_ml_count pulsar_ml_cache_hits_rate
pulsar_ml_cache_misses_rate pulsar_ml_cache_used_size pulsar_lb_cpu_usage pulsar_lb_memory_usage
pulsar_authentication_failures_total pulsar_schema_get_ops_latency_count jetty_requests_total
""".split()


class Series(NamedTuple):
    """One name, as Apache Pulsar writes it."""

    kind: str  # empty: not known
    labels: set[frozenset[str]]


def pulsar_series() -> dict[str, Series]:
    found = {}
    for line in NAMES.read_text().splitlines():
        if line and not line.startswith("#"):
            name, *known = line.split()
            labels = {frozenset(each.split(",")) for each in known[1:]}
            found[name] = Series(known[0] if known else "", labels)
    return found


def own_series(text: str) -> dict[str, Series]:
    """The names in an answer of /metrics."""
    kinds: dict[str, str] = {}
    found: dict[str, Series] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("#"):
            parts = re.fullmatch(r"(\w+)\{(.*)\} \S+", line)
            assert parts, line
            name, labels = parts.groups()
            families = (name.removesuffix(each) for each in ENDINGS)
            kind = next(kinds[family] for family in families if family in kinds)
            each = found.setdefault(name, Series(kind, set()))
            each.labels.add(frozenset(re.findall(r'(\w+)="', labels)))
    return found


def reasons() -> list[str]:
    """The patterns in the table of what is not there."""
    section = PAGE.read_text().partition("## Missing series")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row)]


@pytest.fixture
def service() -> FakeService:
    """One that has something to say of everything."""
    fake = FakeService(MemoryStore(), Config(**EVERYTHING))
    subscription = Subscription("s", throttled=ThrottledStats(1, 2, 3, 4, 5, 6))
    subscription.consumer_stats = (ConsumerStats("c", 1, *(0,) * 9),)
    topic = Topic("persistent://a/b/t", "a/b", subscriptions=[subscription])
    topic.producer_stats = (ProducerStats("p", 1, 0.0, 0.0, 0.0),)
    topic.compaction = CompactionStats(*(0,) * 6)
    topic.evictions = EvictionStats(1, 0)
    topic.transactions = TransactionStats(1, 0, 0)
    topic.storage_size, subscription.backlog = 1000, 3
    topic.storage_write_rate, topic.storage_read_rate, topic.read_miss_rate = 2.0, 3.0, 1.0
    fake.loaded = [topic]
    buckets = (0,) * len(definitions.COORDINATOR_LATENCIES)
    fake.running = [CoordinatorStats(0, *(0,) * len(definitions.COORDINATOR), buckets)]
    fake.storage = dict(STORAGE)
    latencies = ("publish", "lookup", "load", "add", "sync", "read", "failed_read")
    fake.took = dict.fromkeys(latencies, took(5))
    logins = LoginCounts()
    logins.succeeded["Provider", "token"] += 3
    logins.failed["Provider", "token", "INVALID_TOKEN"] += 2
    schemas = NamespaceCounts()
    schemas.done["get"], schemas.seconds["get"], schemas.incompatible = 4, 0.5, 1
    numbers: Mapping[str, int] = {
        each.field: number for number, each in enumerate(definitions.BROKER)
    }
    fake.stats = BrokerStats(
        "here",
        numbers,
        Histogram((5.0, inf)),
        {"a/b": schemas},
        LedgerErrors({"a/b/persistent": 2}, {}),
        {"a/b/0x0_0x1": {each.field: 7 for each in definitions.BUNDLE}},
        logins,
        WebCounts(),
    )
    return fake


def test_each_series_of_pulsar_exists_or_has_a_reason(service: FakeService) -> None:
    own, patterns = own_series(text_of(service)), reasons()
    unknown = [
        name
        for name in pulsar_series()
        if name not in own and not any(fnmatchcase(name, each) for each in patterns)
    ]
    # A summary without quantiles has no series of its own name.
    assert [name for name in unknown if f"{name}_count" not in own] == []


def test_no_reason_is_about_a_series_that_exists(service: FakeService) -> None:
    known = [*pulsar_series(), *own_series(text_of(service))]
    own = own_series(text_of(service))
    for pattern in reasons():
        matching = [name for name in known if fnmatchcase(name, pattern)]
        assert matching, f"{pattern} is no series of Pulsar"
        assert not [name for name in matching if name in own], pattern


@pytest.mark.parametrize("per_topic", [True, False])
def test_series_have_the_types_and_labels_of_pulsar(service: FakeService, per_topic: bool) -> None:
    service.config = Config(**EVERYTHING, exposeTopicLevelMetricsInPrometheus=per_topic)
    pulsar = pulsar_series()
    own = own_series(text_of(service))
    for name in own.keys() & pulsar.keys():
        if not pulsar[name].kind:
            continue
        assert own[name].kind == pulsar[name].kind, name
        lacking = {LACKS_LABEL.get(name)} - {None}
        assert {each | lacking for each in own[name].labels} <= pulsar[name].labels, name


def test_what_alert_rules_ask_for_exists(service: FakeService) -> None:
    own = own_series(text_of(service))
    assert [name for name in ASKED_FOR if name not in own] == []


def test_the_numbers_of_a_broker_are_told(service: FakeService) -> None:
    numbers = series(service)
    place = {"broker": "here"}
    connections = value(numbers, "pulsar_active_connections", **place, metric="broker_connection")
    assert connections == service.stats.numbers["connections"]
    lookups = value(numbers, "pulsar_broker_lookup_failures_total")
    assert lookups == service.stats.numbers["lookups_failed"]
    provider = {"provider_name": "Provider", "auth_method": "token"}
    assert value(numbers, "pulsar_authentication_success_total", **provider) == 3
    failures = "pulsar_authentication_failures_total"
    assert value(numbers, failures, **provider, reason="INVALID_TOKEN") == 2
    namespace = {"namespace": "a/b"}
    assert value(numbers, "pulsar_schema_get_ops_latency_count", **namespace) == 4
    assert value(numbers, "pulsar_schema_get_ops_latency_sum", **namespace) == 500
    assert value(numbers, "pulsar_schema_incompatible_total", **namespace) == 1
    bundle = {"bundle": "a/b/0x0_0x1", "metric": "bundle"}
    assert value(numbers, "pulsar_bundle_topics_count", **place, **bundle) == 7
    errors = {"namespace": "a/b/persistent"}
    for stat in definitions.LEDGERS:
        told = value(numbers, stat.series, **errors)
        assert told == getattr(service.loaded[0], stat.field) != 0, stat.series
    assert value(numbers, "pulsar_ml_AddEntryErrors", **errors) == 2
    assert value(numbers, "pulsar_ml_ReadEntriesErrors", **errors) == 0

"""Load reports of brokers: their form, lenient reading, and when one is written; averages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyxbroker.base.compact_json import to_json
from pyxbroker.cluster.load_report import (
    BundleStats,
    LocalBrokerData,
    ResourceUsage,
    gains_and_losses,
    is_report_due,
    read_report,
)
from pyxbroker.cluster.time_averages import (
    UNSEEN,
    Average,
    broker_averages,
    of_quota,
    read_bundle_data,
)
from pyxbroker.settings.config import Config
from pyxbroker.settings.sections.cluster import MODULAR

A, B = "public/default/0x00000000_0x80000000", "public/default/0x80000000_0xffffffff"
STATS = BundleStats(10.0, 1_000.0, 20.0, 2_000.0, 3, 2, 4)
REPORT = LocalBrokerData(
    "http://h:8080",
    pulsar_service_url="pulsar://h:6650",
    cpu=ResourceUsage(30.0, 200.0),
    bandwidth_in=ResourceUsage(5.0, -1_000.0),
    last_update=1_000_000,
    last_stats={A: STATS},
    broker_version_string="4.2.4",
    start_timestamp=500,
)


def test_a_report_has_pulsars_fields_and_leaves_missing_urls_out() -> None:
    fields = json.loads(to_json(REPORT.fields()))
    assert "webServiceUrlTls" not in fields
    assert (fields["webServiceUrl"], fields["pulsarServiceUrl"]) == (
        "http://h:8080",
        "pulsar://h:6650",
    )
    assert fields["cpu"] == {"usage": 30.0, "limit": 200.0}
    assert (fields["msgRateIn"], fields["msgRateOut"], fields["numTopics"]) == (10.0, 20.0, 4)
    assert (fields["numBundles"], fields["bundles"]) == (1, [A])
    assert (fields["numConsumers"], fields["numProducers"]) == (3, 2)
    assert fields["lastStats"][A]["msgThroughputOut"] == 2_000.0
    assert fields["loadManagerClassName"] == MODULAR
    assert (fields["loadReportType"], fields["maxResourceUsage"]) == ("LocalBrokerData", 0.15)


def test_what_is_written_is_read() -> None:
    assert read_report(to_json(REPORT.fields())) == REPORT


@pytest.mark.parametrize(
    ("field", "value", "name", "expected"),
    [
        ("cpu", 5, "cpu", ResourceUsage()),
        ("cpu", {"usage": "x", "limit": 200}, "cpu", ResourceUsage(0.0, 200.0)),
        ("lastStats", [], "last_stats", {}),
        ("lastStats", {A: None, "x": {}}, "last_stats", {A: BundleStats()}),
        ("startTimestamp", "late", "start_timestamp", 0),
        ("startTimestamp", True, "start_timestamp", 0),
        ("persistentTopicsEnabled", 1, "persistent_topics_enabled", False),
        ("lastBundleGains", [A, 5], "last_bundle_gains", (A,)),
        ("ofTheFuture", {}, "last_update", 1_000_000),
    ],
)
def test_reading_is_lenient(field: str, value: object, name: str, expected: object) -> None:
    found = read_report(to_json(REPORT.fields() | {field: value}))
    assert found is not None
    assert getattr(found, name) == expected


def test_missing_fields_are_empty_as_in_java() -> None:
    found = read_report(b"{}")
    assert found is not None
    assert not found.persistent_topics_enabled
    assert found.load_manager_class_name == ""
    assert read_report(b"[]") is None
    assert read_report(b"\xff") is None


def with_load(factor: float, cpu: float = 30.0, at_ms: int = 1_000_000) -> LocalBrokerData:
    stats = BundleStats(*(factor * each for each in STATS[:4]), *STATS[4:])
    return REPORT._replace(last_stats={A: stats}, cpu=ResourceUsage(cpu, 200.0), last_update=at_ms)


@pytest.mark.parametrize(
    ("now", "after_ms", "is_due"),
    [
        (with_load(1.0), 5_000, False),
        (with_load(1.09), 5_000, False),
        (with_load(1.11), 5_000, True),
        (with_load(0.89), 5_000, True),
        (with_load(1.0, cpu=49.0), 5_000, False),  # 9.5 points
        (with_load(1.0, cpu=51.0), 5_000, True),
        (REPORT._replace(last_stats={A: STATS, B: BundleStats()}), 5_000, True),
        (with_load(1.0), 15 * 60_000, False),
        (with_load(1.0), 15 * 60_000 + 1, True),
    ],
)
def test_a_report_is_written_after_a_change_or_a_long_time(
    now: LocalBrokerData, after_ms: int, is_due: bool
) -> None:
    assert is_report_due(REPORT, now, REPORT.last_update + after_ms, Config()) is is_due


def test_an_idle_broker_writes_when_it_gets_messages() -> None:
    idle = REPORT._replace(last_stats={})
    assert not is_report_due(idle, idle, idle.last_update, Config())
    assert is_report_due(idle, REPORT, idle.last_update, Config())


def test_weights_and_thresholds_are_those_of_the_settings() -> None:
    now = with_load(1.0, cpu=51.0)
    assert not is_report_due(REPORT, now, 1_000_000, Config(loadBalancerCPUResourceWeight=0.5))
    config = Config(loadBalancerReportUpdateThresholdPercentage=11)
    assert not is_report_due(REPORT, now, 1_000_000, config)


def test_gains_and_losses_are_those_since_the_report_before() -> None:
    assert gains_and_losses(REPORT, REPORT._replace(last_stats={B: STATS})) == ((B,), (A,))


# --- averages ---------------------------------------------------------------------------------


def test_the_first_sample_replaces_the_default_and_later_ones_are_averaged() -> None:
    data = UNSEEN
    assert (data.long.rate, data.long.throughput) == (100.0, 100_000.0)
    data = data.updated(STATS)
    assert (data.long.rate, data.topics) == (30.0, 4)
    data = data.updated(BundleStats(msg_rate_in=90.0))
    assert data.short.rate == data.long.rate == 60.0
    for _ in range(20):
        data = data.updated(BundleStats())
    assert data.short.samples == 10
    assert data.short.rate < data.long.rate


def test_averages_are_stored_in_pulsars_form() -> None:
    data = UNSEEN.updated(STATS)
    fields: dict[str, Any] = json.loads(to_json(data.fields()))
    assert fields["shortTermData"] == {
        "maxSamples": 10,
        "numSamples": 1,
        "msgThroughputIn": 1_000.0,
        "msgThroughputOut": 2_000.0,
        "msgRateIn": 10.0,
        "msgRateOut": 20.0,
    }
    assert fields["longTermData"]["maxSamples"] == 1_000
    assert read_bundle_data(fields) == data
    assert read_bundle_data({"longTermData": 5}) == UNSEEN
    assert read_bundle_data(None) == UNSEEN


def test_a_quota_counts_as_ample_history() -> None:
    data = of_quota({"msgRateIn": 1, "msgRateOut": 2, "bandwidthIn": 3.0, "bandwidthOut": 4.0})
    assert data.long == Average(1_000, 1_000, 3.0, 4.0, 1.0, 2.0)
    assert data.short.samples == 10


def test_the_averages_of_a_broker_are_sums() -> None:
    data = UNSEEN.updated(STATS)
    fields = broker_averages([data, data])
    assert fields["shortTermMsgRateIn"] == fields["longTermMsgRateIn"] == 20.0
    assert fields["longTermMsgThroughputOut"] == 4_000.0
    assert len(fields) == 8

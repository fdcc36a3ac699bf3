"""Settings that select the series of /metrics."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, setting


class Metrics(Section, title="Metrics"):
    exposeTopicLevelMetricsInPrometheus: bool = setting(
        True, "If true, /metrics has series for each topic; if false, sums for each namespace."
    )
    exposeConsumerLevelMetricsInPrometheus: bool = setting(
        False, "If true, /metrics has series for each consumer, provided that topics have series."
    )
    exposeProducerLevelMetricsInPrometheus: bool = setting(
        False, "If true, /metrics has series for each producer, provided that topics have series."
    )
    exposeManagedLedgerMetricsInPrometheus: bool = setting(
        True, "If true, /metrics has series for the managed ledgers of each namespace."
    )
    exposeManagedCursorMetricsInPrometheus: bool = setting(
        False, "If true, /metrics has series for each cursor, provided that topics have series."
    )
    exposeBundlesMetricsInPrometheus: bool = setting(
        False, "If true, /metrics has series for each bundle of a namespace."
    )
    managedLedgerStatsPeriodSeconds: int = setting(
        60,
        "Period over which storage latencies and entry sizes are counted. /metrics shows the last"
        " complete period.",
        unit="s",
        minimum=1,
    )
    splitTopicAndPartitionLabelInPrometheus: bool = setting(
        False, "If true, the partition of a topic is a separate label in /metrics."
    )

"""What /metrics shows."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, setting


class Metrics(Section, title="Metrics"):
    exposeTopicLevelMetricsInPrometheus: bool = setting(
        True, "Whether /metrics has series for each topic, or sums for each namespace only."
    )
    exposeConsumerLevelMetricsInPrometheus: bool = setting(
        False, "Whether /metrics has series for each consumer, where each topic has some."
    )
    exposeProducerLevelMetricsInPrometheus: bool = setting(
        False, "Whether /metrics has series for each producer, where each topic has some."
    )
    exposeManagedLedgerMetricsInPrometheus: bool = setting(
        True, "Whether /metrics has series for the managed ledgers of each namespace."
    )
    exposeManagedCursorMetricsInPrometheus: bool = setting(
        False, "Whether /metrics has series for each cursor, where each topic has some."
    )
    exposeBundlesMetricsInPrometheus: bool = setting(
        False, "Whether /metrics has series for each bundle of a namespace."
    )
    managedLedgerStatsPeriodSeconds: int = setting(
        60,
        "How long what is counted of storage latencies and entry sizes is counted: /metrics has"
        " what the last whole period has brought.",
        unit="s",
        minimum=1,
    )
    splitTopicAndPartitionLabelInPrometheus: bool = setting(
        False, "Whether the partition of a topic is a label of its own in /metrics."
    )

"""What /metrics shows."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, setting


class Metrics(Section, title="Metrics"):
    exposeTopicLevelMetricsInPrometheus: bool = setting(
        True, "Whether /metrics has series for each topic, or sums for each namespace only."
    )
    splitTopicAndPartitionLabelInPrometheus: bool = setting(
        False, "Whether the partition of a topic is a label of its own in /metrics."
    )

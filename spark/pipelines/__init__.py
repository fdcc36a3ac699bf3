"""Ready-made jobs on topics, for `pyxbroker pipeline run NAME` or spark-submit.

    pyxbroker pipeline run archive --service-url pulsar://localhost:6650 --topic orders --to DIR
    spark-submit .../pyxbroker/spark/pipelines/archive.py --service-url ... --topic orders --to DIR

Each job is a module with a function `command`, which takes the arguments. A job imports PySpark
after it has checked its options and found its broker, so errors in them are reported immediately.
docs/spark-pipelines.md describes the jobs.
"""

from __future__ import annotations

PIPELINES = {
    "archive": "Archive topics as partitioned files (Parquet, Delta, Iceberg), each message once.",
    "replay": "Write an archive back to a topic, in the original order of each key.",
    "aggregate": "Aggregate a stream of events in windows, from topic to topic.",
    "analytics": "Report hot topics, key skew, backlogs, sizes and latencies as a page.",
    "audit": "Compare topics of two clusters, message by message, to prove a migration.",
}
"""The jobs and their description in the help. The module has the name of the job."""

"""Jobs on topics that run as they are: by `pyxbroker pipeline run NAME`, or by spark-submit.

    pyxbroker pipeline run archive --service-url pulsar://localhost:6650 --topic orders --to DIR
    spark-submit .../pyxbroker/spark/pipelines/archive.py --service-url ... --topic orders --to DIR

Each job is a module with a function `command`, which takes the arguments. PySpark is imported when
a job has read its options and found its broker, so what is wrong with those is told at once.
docs/spark-pipelines.md tells what each does.
"""

from __future__ import annotations

PIPELINES = {
    "archive": "Topics to partitioned files (Parquet, Delta, Iceberg), each message once.",
    "replay": "An archive back into a topic, each key in the order that it had.",
    "aggregate": "Windows over a stream of events, from topic to topic.",
    "analytics": "Hot topics, key skew, backlogs, sizes and latencies: a page of tables and plots.",
    "audit": "Topics of two clusters, message by message: the proof of a migration.",
}
"""Each job, and what the help says about it; its module has its name."""

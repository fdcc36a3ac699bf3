"""Archives as tables of Delta and Iceberg, whose libraries Spark fetches from Maven Central.

Each has a library for some versions of Spark: a test is for one of them. `make sparkversions` runs
it.
"""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.test_spark_pipelines import (
    BROKER_SETTINGS,
    Jobs,
    conf_of,
    environment,
    jobs,
    publish,
    read_all,
    said,
)

pytestmark = pytest.mark.spark
__all__ = ["BROKER_SETTINGS", "environment", "jobs"]  # fixtures, and what a broker is given

DELTA = {
    "spark.jars.packages": "io.delta:delta-spark_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Spark has them. Where Maven has fetched their descriptions alone, Ivy would give up.
    "spark.jars.excludes": "org.slf4j:slf4j-api,com.google.code.findbugs:jsr305",
}
ICEBERG = {
    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.local.type": "hadoop",
}


def archive_and_replay(
    jobs: Jobs, broker: Broker, client: pulsar.Client, topic: str, place: Path, *table: str
) -> None:
    """An archive in two runs, of which each has what came meanwhile, and all of it replayed."""
    source = ("--service-url", broker.url, "--topic", topic, "--until-now")
    archive = ("archive", *source, "--to", *table, "--checkpoint", str(place / "archived"))
    publish(client, topic, range(100))
    assert said(jobs.run(*archive)).endswith("is done: 100 messages archived")
    publish(client, topic, range(100, 150))
    assert said(jobs.run(*archive)).endswith("is done: 50 messages archived")
    again = f"{topic}-again"
    replay = ("replay", "--service-url", broker.url, "--from", *table, "--to", again)
    assert said(jobs.run(*replay, "--checkpoint", str(place / "sent"))).endswith(
        "150 messages sent"
    )
    found = sorted(int(each.properties()["number"]) for each in read_all(client, again))
    assert found == list(range(150))


@pytest.mark.only_spark("4.2")
def test_an_archive_in_delta_has_each_message_once_and_is_replayed(
    jobs: Jobs, broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    table = (str(tmp_path / "table"), "--format", "delta", *conf_of(DELTA))
    archive_and_replay(jobs, broker, client, topic, tmp_path, *table)


@pytest.mark.only_spark("4.0")
def test_an_archive_in_iceberg_has_each_message_once_and_is_replayed(
    jobs: Jobs, broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    conf = ICEBERG | {"spark.sql.catalog.local.warehouse": str(tmp_path / "tables")}
    table = ("local.db.archive", "--format", "iceberg", *conf_of(conf))
    archive_and_replay(jobs, broker, client, topic, tmp_path, *table)

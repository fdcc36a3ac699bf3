"""Archives as tables of Delta and Iceberg, whose libraries Spark fetches from Maven Central.

Each has a library for some versions of Spark: a test is for one of them. `make sparkversions` runs
it.
"""

from __future__ import annotations

import contextlib
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
from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.pipelines.formats import TOGETHER, check_delta

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
    assert said(jobs.run(*archive)).endswith("done up to the start: 100 messages archived")
    publish(client, topic, range(100, 150))
    assert said(jobs.run(*archive)).endswith("done up to the start: 50 messages archived")
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


@pytest.mark.only_spark("4.3")
def test_delta_for_an_older_spark_is_told_with_what_goes_together(
    jobs: Jobs, broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, range(1))
    source = ("--service-url", broker.url, "--topic", topic, "--until-now")
    table = (str(tmp_path / "table"), "--format", "delta", *conf_of(DELTA))
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    done = jobs.run("archive", *source, "--to", *table, *checkpoint)
    assert done.status == 2
    assert "Delta 4.4.0 is for Spark 4.2 at the newest, and this is Spark 4.3" in said(done)
    assert said(done).endswith(f"{TOGETHER}.")


@pytest.mark.parametrize(
    ("delta", "spark", "is_known_to_fail"),
    [
        *(("4.4.0", "4.2.1", False), ("4.4.1", "4.3.0", True), ("4.3.1", "4.1.4", False)),
        *(("4.3.1", "4.2.0", True), ("4.0.1", "4.0.5", False), ("4.0.1", "4.1.0", True)),
        *(("4.5.0", "4.3.0", False), ("4.10.0", "4.10.0", False), ("", "4.3.0", False)),
    ],
)
def test_versions_of_delta_and_spark(delta: str, spark: str, is_known_to_fail: bool) -> None:
    refused = pytest.raises(WrongOption, match=f"this is Spark {spark}")
    with refused if is_known_to_fail else contextlib.nullcontext():
        check_delta(delta, spark)


@pytest.mark.only_spark("4.0")
def test_an_archive_in_iceberg_has_each_message_once_and_is_replayed(
    jobs: Jobs, broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    conf = ICEBERG | {"spark.sql.catalog.local.warehouse": str(tmp_path / "tables")}
    table = ("local.db.archive", "--format", "iceberg", *conf_of(conf))
    archive_and_replay(jobs, broker, client, topic, tmp_path, *table)

"""A session of Spark for tests, and what they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import Broker


def spark_home(place: Path) -> Path:
    """PySpark's installation without its zip of modules, which each worker would compile anew: that
    takes a second and a half, and a worker that takes ten on a busy machine is given up.
    """
    import pyspark

    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "python":
            (place / each.name).symlink_to(each)
    return place


def make_session(directory: Path, **settings: str) -> Any:
    """A session with two cores that knows the format `pulsar`. Stop it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    home = directory / "home"
    home.mkdir()
    os.environ["SPARK_HOME"] = str(spark_home(home))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from pyxbroker.spark import register

    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **settings,
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session


def given(broker: Broker, options: dict[str, str]) -> dict[str, str]:
    """Options; `admin_url` is the option admin.url."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return {"service.url": broker.url} | named


def error_of(do: Callable[[], Any]) -> str:
    """The text of the error that Spark shows."""
    with pytest.raises(Exception) as caught:
        do()
    return str(caught.value)


def rows_of(broker: Broker, **options: str) -> list[dict[str, Any]]:
    """What the source reads, without Spark."""
    from pyxbroker.spark.source import PulsarDataSource

    source = PulsarDataSource(given(broker, options))
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]

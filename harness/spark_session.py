"""A session of Spark with the connector, for tests and torture."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def spark_home(place: Path) -> Path:
    """PySpark's installation without its zip of modules, which each worker would compile anew: that
    takes a second and a half, and a worker that takes ten on a busy machine is given up.
    """
    import pyspark

    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "python":
            (place / each.name).symlink_to(each)
    return place


def settings_of(directory: Path) -> dict[str, str]:
    """What a session that lives for seconds wants: all its temporary files are in the directory, so
    that one that is killed leaves nothing behind.
    """
    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    return {
        "spark.local.dir": str(temporary),
        "spark.driver.memory": "512m",
        # What would make it fast later makes its start slow.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        f" -XX:-UsePerfData -Djava.io.tmpdir={temporary}",
    }


def make_session(directory: Path, **settings: str) -> Any:
    """A session with two cores that knows the format `pulsar`; `spark_master` is spark.master.

    Stop it.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    home = directory / "home"
    home.mkdir()
    os.environ["SPARK_HOME"] = str(spark_home(home))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from pyxbroker.spark import register

    builder = SparkSession.builder
    for name, value in {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **settings_of(directory),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session

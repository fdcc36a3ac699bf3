"""PySpark reads and writes Pulsar's topics: a Python Data Source, installed by pip, without a jar.

    from pyxbroker.spark import register

    register(spark)
    spark.read.format("pulsar").option("service.url", "pulsar://localhost:6650")...

It needs no broker of ours: any that speaks Pulsar's protocol will do. docs/spark.md tells
what options there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes the format `pulsar` known to a session, and lets filters through to it."""
    from pyspark.sql.datasource import DataSourceReader

    from pyxbroker.spark.source import PulsarDataSource

    if hasattr(DataSourceReader, "pushFilters"):  # from Spark 4.1 on
        # Where this is off, Spark refuses a source that takes filters. Others do not notice.
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PulsarDataSource)

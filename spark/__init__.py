"""A Python Data Source by which PySpark reads and writes Pulsar's topics. It needs no jar.

    from pyxbroker.spark import register

    register(spark)
    spark.read.format("pulsar").option("service.url", "pulsar://localhost:6650")...

It works with any broker that speaks Pulsar's protocol. docs/spark.md lists the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `pulsar` in a session, and enable filter pushdown for it.

    With a local master, workers run this interpreter unless the user chose another one.
    Raises WrongInstallation if this Python or the workers' lacks what the connector needs.
    """
    from pyxbroker.spark.installation import check_libraries, use_this_python

    check_libraries()
    from pyspark.sql.datasource import DataSourceReader

    from pyxbroker.spark.source import PulsarDataSource

    if hasattr(spark, "_sc"):  # a session of Spark Connect has no context
        use_this_python(spark.sparkContext)
    if hasattr(DataSourceReader, "pushFilters"):  # from Spark 4.1 on
        # Without this setting Spark refuses a source that accepts filters.
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PulsarDataSource)

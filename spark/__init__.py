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
    """Make the format `pulsar` known to a session, and let filters through to it.

    Where workers are on this machine and nothing says which Python they run, they run this one.
    Raises WrongInstallation if this Python or the workers' lacks what the connector needs.
    """
    from pyxbroker.spark.installation import check_libraries, use_this_python

    check_libraries()
    from pyspark.sql.datasource import DataSourceReader

    from pyxbroker.spark.source import PulsarDataSource

    if hasattr(spark, "_sc"):  # a session of Spark Connect has no context
        use_this_python(spark.sparkContext)
    if hasattr(DataSourceReader, "pushFilters"):  # from Spark 4.1 on
        # Where this is off, Spark refuses a source that takes filters. Others do not notice.
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PulsarDataSource)

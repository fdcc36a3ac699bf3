"""The formats of archives. Delta and Iceberg are libraries that Spark has to be started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.spark.errors import WrongOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET = "parquet"
ICEBERG = "iceberg"
_PACKAGES = {
    "delta": "io.delta:delta-spark_2.13",
    ICEBERG: "org.apache.iceberg:iceberg-spark-runtime",
}
FORMATS = (PARQUET, *_PACKAGES)


def need_format(spark: SparkSession, name: str) -> None:
    """Raises WrongOption where this Spark does not have the format."""
    if name == PARQUET:
        return
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        # Whether the class is there, and nothing of any table.
        jvm = spark._jvm
        assert jvm is not None
        conf = spark._jsparkSession.sessionState().conf()
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, conf)
    except (Py4JJavaError, PySparkException) as error:
        raise WrongOption(
            f"--format {name}: this Spark does not have it; name its package for your version of"
            f" Spark, as in --conf spark.jars.packages={_PACKAGES[name]}:VERSION, and the"
            " extensions that its documentation asks for"
        ) from error


def read_archive(spark: SparkSession, name: str, place: str) -> DataFrame:
    """The rows of an archive. Raises WrongOption."""
    from pyspark.errors import AnalysisException

    need_format(spark, name)
    try:
        rows = spark.table(place) if name == ICEBERG else spark.read.format(name).load(place)
    except AnalysisException as error:
        first = str(error).splitlines()[0]
        raise WrongOption(f"there is no archive {place}: {first}") from error
    missing = {"value", "__topic", "__ledgerId", "__entryId"} - set(rows.columns)
    if missing:
        raise WrongOption(f"{place} is no archive of `archive`: it has no {', '.join(missing)}")
    return rows

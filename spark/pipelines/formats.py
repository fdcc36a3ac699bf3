"""The formats of archives. Delta and Iceberg are libraries that Spark has to be started with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.pipelines.reasons import plain_reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET = "parquet"
DELTA = "delta"
ICEBERG = "iceberg"
_PACKAGES = {
    DELTA: "io.delta:delta-spark_2.13",
    ICEBERG: "org.apache.iceberg:iceberg-spark-runtime",
}
FORMATS = (PARQUET, *_PACKAGES)

_NEWEST_SPARK = {"4.0": "4.0", "4.2": "4.1", "4.3": "4.1", "4.4": "4.2"}
"""Of versions of Delta, as its releases and the package delta-spark say. A newer Spark lacks what
these call, which shows in the midst of a query. What is not here is let pass."""
TOGETHER = (
    "io.delta:delta-spark_2.13:4.4.0 goes with PySpark 4.2, 4.3.1 with PySpark 4.1 and 4.0.1 with"
    " PySpark 4.0"
)


def need_format(spark: SparkSession, name: str) -> None:
    """Raises WrongOption where this Spark does not have the format."""
    if name == PARQUET:
        return
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    try:
        # Whether the class is there, and nothing of any table.
        conf = spark._jsparkSession.sessionState().conf()
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, conf)
    except (Py4JJavaError, PySparkException) as error:
        together = f". {TOGETHER}" if name == DELTA else ""
        raise WrongOption(
            f"--format {name}: this Spark does not have it; name its package for your version of"
            f" Spark, as in --conf spark.jars.packages={_PACKAGES[name]}:VERSION, and the"
            f" extensions that its documentation asks for{together}"
        ) from error
    if name == DELTA:
        check_delta(_version_of_delta(jvm), spark.version)


def _version_of_delta(jvm: Any) -> str:
    """As its library says; empty where it does not."""
    from py4j.protocol import Py4JError

    try:
        return str(getattr(getattr(jvm.io.delta, "package$"), "MODULE$").VERSION())
    except (Py4JError, TypeError):  # a name that is none is a package to py4j
        return ""


def check_delta(delta: str, spark: str) -> None:
    """Whether versions of both go together. Raises WrongOption."""
    newest = _NEWEST_SPARK.get(_minor(delta))
    if newest is not None and _numbers(_minor(spark)) > _numbers(newest):
        raise WrongOption(
            f"--format {DELTA}: Delta {delta} is for Spark {newest} at the newest, and this is"
            f" Spark {spark}: {TOGETHER}"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")]


def read_archive(spark: SparkSession, name: str, place: str) -> DataFrame:
    """The rows of an archive. Raises WrongOption."""
    from pyspark.errors import AnalysisException

    need_format(spark, name)
    try:
        rows = spark.table(place) if name == ICEBERG else spark.read.format(name).load(place)
    except AnalysisException as error:
        raise WrongOption(f"there is no archive {place}: {plain_reason(error)}") from error
    missing = {"value", "__topic", "__ledgerId", "__entryId"} - set(rows.columns)
    if missing:
        raise WrongOption(f"{place} is no archive of `archive`: it has no {', '.join(missing)}")
    return rows

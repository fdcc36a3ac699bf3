"""The formats of archives. Delta and Iceberg are libraries that have to be given to Spark."""

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
"""The newest Spark for each version of Delta, from its releases and the package delta-spark. A
newer
Spark lacks functions that Delta calls, and queries fail midway. Other versions are not checked."""
TOGETHER = (
    "io.delta:delta-spark_2.13:4.4.0 goes with PySpark 4.2, 4.3.1 with PySpark 4.1 and 4.0.1 with"
    " PySpark 4.0"
)


def need_format(spark: SparkSession, name: str) -> None:
    """Raise WrongOption if this Spark does not have the format."""
    if name == PARQUET:
        return
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    try:
        # This only loads the class, and touches no table.
        conf = spark._jsparkSession.sessionState().conf()
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, conf)
    except (Py4JJavaError, PySparkException) as error:
        together = f". {TOGETHER}" if name == DELTA else ""
        raise WrongOption(
            f"--format {name}: this Spark does not have it; give its package for your version of"
            f" Spark, as in --conf spark.jars.packages={_PACKAGES[name]}:VERSION, and the"
            f" extensions that its documentation asks for{together}"
        ) from error
    if name == DELTA:
        check_delta(_version_of_delta(jvm), spark.version)


def _version_of_delta(jvm: Any) -> str:
    """Return the version that the library reports, or an empty string."""
    from py4j.protocol import Py4JError

    try:
        return str(getattr(getattr(jvm.io.delta, "package$"), "MODULE$").VERSION())
    except (Py4JError, TypeError):  # py4j returns a package for an unknown name
        return ""


def check_delta(delta: str, spark: str) -> None:
    """Raise WrongOption if this Delta does not support this Spark."""
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
    """Return the rows of an archive. Raises WrongOption."""
    from pyspark.errors import AnalysisException

    need_format(spark, name)
    try:
        rows = spark.table(place) if name == ICEBERG else spark.read.format(name).load(place)
    except AnalysisException as error:
        raise WrongOption(f"there is no archive {place}: {plain_reason(error)}") from error
    missing = {"value", "__topic", "__ledgerId", "__entryId"} - set(rows.columns)
    if missing:
        raise WrongOption(f"{place} was not written by `archive`: it has no {', '.join(missing)}")
    return rows

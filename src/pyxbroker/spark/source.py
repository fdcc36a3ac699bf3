"""Spark's Python Data Source `pulsar`: what Spark asks of a source, batch and streaming.

Everything here pickles and is made again in each of Spark's Python workers: plain values only, and
connections where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyxbroker.spark import sink
from pyxbroker.spark.columns import schema_of
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.options import BATCH, SINK, STREAM, Options, check_names
from pyxbroker.spark.plan import (
    ends_of,
    ranges_of,
    starts_of,
    stops_of,
    values_of_topics,
    without_lost,
)
from pyxbroker.spark.sink import PulsarWriter
from pyxbroker.spark.stream import PulsarStreamReader
from pyxbroker.spark.tasks import RangePartition, read_partition
from pyxbroker.spark.values import Values

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType


class PulsarDataSource(DataSource):
    """Topics of a Pulsar cluster as rows; see docs/spark.md for options and columns."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        check_names(self.options)
        return schema_of(self._values)

    def reader(self, schema: StructType) -> PulsarReader:
        return PulsarReader(Options(BATCH, self.options), self._values_for(schema))

    def streamReader(self, schema: StructType) -> PulsarStreamReader:
        return PulsarStreamReader(Options(STREAM, self.options), self._values_for(schema))

    def writer(self, schema: StructType, overwrite: bool) -> PulsarWriter:
        _refuse_overwriting(overwrite)
        return PulsarWriter(Options(SINK, self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _refuse_overwriting(overwrite)
        if sink.StreamArrowWriter is None:
            raise PulsarSparkError("writing a stream needs Spark 4.1 or newer.")
        return sink.PulsarStreamWriter(Options(SINK, self.options), schema)

    @cached_property
    def _values(self) -> Values:
        # Which one it will be, a batch or a stream, is not known yet: ends are told later.
        ends = ("endingoffsets", "endingtime")
        named = {name: each for name, each in self.options.items() if name.lower() not in ends}
        return values_of_topics(Options(STREAM, named))

    def _values_for(self, schema: StructType) -> Values:
        """The values of topics, if these are the columns that are asked for."""
        found = schema_of(self._values).simpleString()
        if schema.simpleString() != found:
            raise PulsarSparkError(
                f"the columns are {found}; to read others (a schema of your own, or one that the"
                " topic had before) is not built yet."
            )
        return self._values


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise PulsarSparkError("a topic cannot be overwritten; write with mode append.")


class PulsarReader(DataSourceReader):
    """Reads what is there when the query starts."""

    def __init__(self, options: Options, values: Values) -> None:
        self._options = options
        self._values = values

    def partitions(self) -> Sequence[InputPartition]:
        ends = ends_of(self._options)
        begins = without_lost(self._options, starts_of(self._options, ends), ends)
        ranges = ranges_of(self._options, begins, stops_of(self._options, ends))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._values, partition)

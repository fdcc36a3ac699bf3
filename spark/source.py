"""Spark's Python Data Source `pulsar`, batch and streaming.

Spark pickles these objects for its Python workers. So they contain plain values, and connections
are opened where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyxbroker.spark.columns import Columns
from pyxbroker.spark.errors import PulsarSparkError, without_traceback
from pyxbroker.spark.filters import Place
from pyxbroker.spark.options import BATCH, SINK, STREAM, Options, check_names
from pyxbroker.spark.plan import (
    ends_of,
    origins_of,
    ranges_of,
    starts_of,
    stops_of,
    uses_client,
    values_of_topics,
    without_lost,
)
from pyxbroker.spark.sink import PulsarStreamWriter, PulsarWriter
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

    @without_traceback()
    def schema(self) -> StructType:
        check_names(self.options)
        return Columns.requested(self._values, self._requested_columns()).schema()

    @without_traceback()
    def reader(self, schema: StructType) -> PulsarReader:
        options = Options(BATCH, self.options)
        return PulsarReader(options, self._columns_of(schema, options))

    @without_traceback()
    def streamReader(self, schema: StructType) -> PulsarStreamReader:
        options = Options(STREAM, self.options)
        return PulsarStreamReader(options, self._columns_of(schema, options))

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> PulsarWriter:
        _refuse_overwriting(overwrite)
        return PulsarWriter(Options(SINK, self.options), schema)

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _refuse_overwriting(overwrite)
        made: DataSourceStreamWriter = PulsarStreamWriter(Options(SINK, self.options), schema)
        return made

    @cached_property
    def _values(self) -> Values:
        return values_of_topics(self._options)

    @property
    def _options(self) -> Options:
        # Spark does not say yet whether this is a batch or a stream. Options of batches are
        # checked later.
        of_batches = ("endingoffsets", "endingtime", "publishtimeskewms")
        named = {
            name: each for name, each in self.options.items() if name.lower() not in of_batches
        }
        return Options(STREAM, named)

    def _columns_of(self, schema: StructType, options: Options) -> Columns:
        """Return the columns of a schema. Raises PulsarSparkError."""
        found = Columns.of(self._values, schema)
        if (unknown := found.unknown_to_client) and uses_client(options):
            raise PulsarSparkError(
                "the official client, which is used because of the option reader or of a key,"
                f" does not provide {' and '.join(unknown)}: remove it from the columns."
            )
        return found

    def _requested_columns(self) -> list[str]:
        found: list[str] = self._options["columns"]
        return found


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise PulsarSparkError("a topic cannot be overwritten; write with mode append.")


class PulsarReader(DataSourceReader):
    """A reader of the messages that exist when the query starts."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._place = Place()

    @without_traceback()
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Narrow the ranges by filters. Return all of them, because Spark has to apply them too."""
        for each in filters:
            self._place.add(each)
        return filters

    @without_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        ends = ends_of(self._options)
        begins = without_lost(self._options, starts_of(self._options, ends), ends)
        stops = stops_of(self._options, ends)
        origins = origins_of(begins, ends)
        begins, stops = self._place.narrow(self._options, begins, stops)
        ranges = ranges_of(self._options, begins, stops, origins=origins)
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._columns, partition)

"""What Spark sends to its tasks, and what a task does. Shared by both sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyxbroker.spark.columns import record_batches
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range
from pyxbroker.spark.range_reader import RangeReader
from pyxbroker.spark.values import Values

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)
        self.range = wanted


def read_partition(
    options: Options, values: Values, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The record batches of a task."""
    assert isinstance(partition, RangePartition)
    reader = RangeReader(options, partition.range, values)
    try:
        yield from record_batches(partition.range.topic, values, reader, reader.definition)
    finally:
        reader.close()

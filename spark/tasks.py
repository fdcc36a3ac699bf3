"""The partitions that Spark sends to tasks, and the work of a task, for both sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyxbroker.spark.columns import Columns
from pyxbroker.spark.errors import without_traceback
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range
from pyxbroker.spark.range_reader import RangeReader

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)
        self.range = wanted


def read_partition(
    options: Options, columns: Columns, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a task."""
    if not isinstance(partition, RangePartition):
        return  # Spark's own partition of an empty plan
    with without_traceback():
        reader = RangeReader(options, partition.range, columns)
        try:
            yield from columns.record_batches(partition.range.topic, reader, reader.definition)
        finally:
            reader.close()

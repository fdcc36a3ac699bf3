"""Topics as they are: payloads in bytes whatever their schema, and where each message stands.

`pulsar-raw` is the source `pulsar` without schemas, with the position of a message before its other
columns, as numbers that can be sorted. `pulsar-decoded` has the connector's columns, which are the
fields of records, behind the position.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.options import BATCH, STREAM, Options
from pyxbroker.spark.pipelines.arguments import POSITION
from pyxbroker.spark.source import PulsarDataSource, PulsarReader
from pyxbroker.spark.stream import PulsarStreamReader
from pyxbroker.spark.values import Bytes, Values

if TYPE_CHECKING:
    import pyarrow as pa


class DecodedTopics(PulsarDataSource):
    """The source `pulsar-decoded`."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-decoded"

    def schema(self) -> StructType:
        kinds = (LongType(), LongType(), IntegerType())
        position = [StructField(*each) for each in zip(POSITION, kinds, strict=True)]
        return StructType([*position, *super().schema().fields])

    def reader(self, schema: StructType) -> PulsarReader:
        return _Reader(Options(BATCH, self.options), self._values_for(_without_position(schema)))

    def streamReader(self, schema: StructType) -> PulsarStreamReader:
        values = self._values_for(_without_position(schema))
        return _StreamReader(Options(STREAM, self.options), values)


class RawTopics(DecodedTopics):
    """The source `pulsar-raw`."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-raw"

    @cached_property
    def _values(self) -> Values:
        return Bytes()


class _Reader(PulsarReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return map(_with_position, super().read(partition))


class _StreamReader(PulsarStreamReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return map(_with_position, super().read(partition))


def _without_position(schema: StructType) -> StructType:
    return StructType(schema.fields[len(POSITION) :])


def _with_position(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Its columns behind those of the position, which is what the message ids say."""
    import pyarrow as pa

    ids = [pb.MessageIdData.FromString(each) for each in batch.column("__messageId").to_pylist()]
    numbers = (
        pa.array([each.ledgerId for each in ids], pa.int64()),
        pa.array([each.entryId for each in ids], pa.int64()),
        pa.array([each.batch_index for each in ids], pa.int32()),
    )
    return pa.RecordBatch.from_arrays(
        [*numbers, *batch.columns], names=[*POSITION, *batch.schema.names]
    )

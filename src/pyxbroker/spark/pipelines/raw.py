"""Topics as they are: payloads in bytes whatever their schema, and where each message stands.

What the connector's columns do not have comes before them: the position of a message as numbers
that can be sorted, and the version of the schema that it was written with. `pulsar-raw` has the
payload alone; `pulsar-decoded` has beside it what the connector makes of it by the topic's schema,
as one column `decoded`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyxbroker.spark.source import PulsarDataSource
from pyxbroker.spark.values import Bytes, Definitions, Values

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from pyxbroker.spark.range_reader import Read

POSITION = ("__ledgerId", "__entryId", "__batchIndex")
"""Columns that sort the messages of a topic; the batch index is -1 for an entry of one message."""


class Raw:
    """The payload, the position and the schema version of messages."""

    def fields(self) -> list[StructField]:
        from pyspark.sql import types

        kinds = {
            "value": types.BinaryType(),
            "__ledgerId": types.LongType(),
            "__entryId": types.LongType(),
            "__batchIndex": types.IntegerType(),
            "__schemaVersion": types.BinaryType(),
        }
        return [types.StructField(name, kind) for name, kind in kinds.items()]

    def rows(self, reads: list[Read], definitions: Definitions) -> dict[str, list[Any]]:
        positions = [each.position for each in reads]
        return {
            **Bytes().rows(reads, definitions),
            "__ledgerId": [each.ledger for each in positions],
            "__entryId": [each.entry for each in positions],
            "__batchIndex": [each.batch for each in positions],
            "__schemaVersion": [each.message.schema_version or None for each in reads],
        }


class Decoded(Raw):
    """Those, and what the connector makes of the payload by the topic's schema."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import StructField, StructType

        return [*super().fields(), StructField("decoded", StructType(self._values.fields()))]

    def rows(self, reads: list[Read], definitions: Definitions) -> dict[str, list[Any]]:
        columns = self._values.rows(reads, definitions)
        records = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        return super().rows(reads, definitions) | {"decoded": records}


class RawTopics(PulsarDataSource):
    """The source `pulsar-raw`."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-raw"

    @cached_property
    def _values(self) -> Values:
        return Raw()


class DecodedTopics(PulsarDataSource):
    """The source `pulsar-decoded`."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-decoded"

    @cached_property
    def _values(self) -> Values:
        return Decoded(super()._values)

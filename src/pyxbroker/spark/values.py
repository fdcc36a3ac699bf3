"""The values of messages as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from pyxbroker.spark.range_reader import Read


class Values(Protocol):
    """What becomes of payloads. Pickles."""

    def fields(self) -> list[StructField]:
        """The columns in Spark's types."""
        ...

    def columns(self, rows: list[Read]) -> list[tuple[str, Any]]:
        """(name, Arrow array) of each column. Raises PulsarSparkError."""
        ...


class Bytes:
    """One column `value` with the payloads as they are; null for a tombstone."""

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import BinaryType, StructField

        return [StructField("value", BinaryType())]

    def columns(self, rows: list[Read]) -> list[tuple[str, Any]]:
        import pyarrow as pa

        return [("value", pa.array([each.message.payload for each in rows], pa.binary()))]

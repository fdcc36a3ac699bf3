"""Producer names and sequence ids that are the same when Spark repeats a batch.

A task of a streaming query writes a part of a batch. Its producer names are derived from the query
and the part, and its sequence ids grow with the batch and the row. So a broker with deduplication
drops rows that it has stored, and returns the last stored id when the producer connects. An id has,
from the top:

    14 bits  the batch; its higher bits are in the producer's name
    28 bits  the row within the task, from 1
    10 bits  the number of partitions of the topic, 0 for none
    11 bits  a checksum of all rows up to this one

The number of partitions keeps the routing of a batch that began before partitions were added. The
checksum detects a repeated batch whose rows or order differ: otherwise rows would be dropped that
were never stored.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.outgoing import Outgoing

EPOCH_BITS, ROW_BITS, PARTITIONS_BITS, CHECK_BITS = 14, 28, 10, 11
"""63 bits in total: ids are signed on the wire, and a negative id means none."""
ROWS_MAX = (1 << ROW_BITS) - 1
PARTITIONS_MAX = (1 << PARTITIONS_BITS) - 1


class Part(NamedTuple):
    """The part of a batch (epoch) of a query that one task writes."""

    query: str
    task: int
    epoch: int

    @property
    def producer_name(self) -> str:
        """The name for all batches whose numbers have the same higher bits."""
        era = self.epoch >> EPOCH_BITS
        name = f"pyxbroker-spark-{self.query}-{self.task}"
        return f"{name}-{era}" if era else name


class Id(NamedTuple):
    """A sequence id. Compare it only with ids of the same producer."""

    epoch: int
    row: int
    partitions: int
    check: int

    @classmethod
    def of(cls, part: Part, row: int, partitions: int, check: int) -> Id:
        return cls(part.epoch & ((1 << EPOCH_BITS) - 1), row, partitions, check)

    @property
    def number(self) -> int:
        """The encoded id. Raises PulsarSparkError if the row or the partitions are too large."""
        if self.row > ROWS_MAX:
            raise PulsarSparkError(
                f"a task writes more than {ROWS_MAX} rows in one batch, too many to be written"
                " exactly once: make batches smaller, or write with exactlyOnce=false."
            )
        if self.partitions > PARTITIONS_MAX:
            raise PulsarSparkError(
                f"a topic has more than {PARTITIONS_MAX} partitions, too many to be written"
                " exactly once: write with exactlyOnce=false."
            )
        head = self.epoch << ROW_BITS | self.row
        return (head << PARTITIONS_BITS | self.partitions) << CHECK_BITS | self.check


def id_of(number: int) -> Id | None:
    """Decode `Id.number`. None: the broker has no last id (-1)."""
    if number < 0:
        return None
    check = number & ((1 << CHECK_BITS) - 1)
    number >>= CHECK_BITS
    partitions = number & PARTITIONS_MAX
    number >>= PARTITIONS_BITS
    return Id(number >> ROW_BITS, number & ROWS_MAX, partitions, check)


class Rows:
    """The count and the checksum of a task's rows."""

    def __init__(self) -> None:
        self.row = 0
        self._sum = 0

    def add(self, message: Outgoing) -> None:
        # Fields other than the value are quoted in repr(), so they cannot be confused.
        head = repr(message._replace(value=None)).encode(errors="surrogatepass")
        value = b"-" if message.value is None else message.value
        self._sum = zlib.crc32(value, zlib.crc32(head, self._sum))
        self.row += 1

    @property
    def check(self) -> int:
        """The checksum of all rows so far."""
        return (self._sum ^ self._sum >> 16) & ((1 << CHECK_BITS) - 1)

"""Names of producers and sequence ids that are the same when Spark runs a batch again.

A task of a streaming query writes a part of a batch. Its producers have a name that is made of the
query and the part, and ids that grow with the batch and the row; so a broker with deduplication
drops what it has stored already, and says on connecting how far that is. An id has, from the top:

    14 bits  the batch; the rest of its number is in the producer's name
    28 bits  the row within the task, from 1
    10 bits  how many partitions the topic had, 0 for none
    11 bits  a check of all rows up to this one

The count of partitions says where the rows of a batch went that was begun before partitions were
added. The check tells when a batch comes again with other rows, or in another order: by number
alone rows would be dropped that were never stored.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.outgoing import Outgoing

EPOCH_BITS, ROW_BITS, PARTITIONS_BITS, CHECK_BITS = 14, 28, 10, 11
"""63 in all: ids are signed on the way, and negative ones say that there is none."""
ROWS_MAX = (1 << ROW_BITS) - 1
PARTITIONS_MAX = (1 << PARTITIONS_BITS) - 1


class Part(NamedTuple):
    """What one task writes: a part of one batch (epoch) of a query."""

    query: str
    task: int
    epoch: int

    @property
    def producer_name(self) -> str:
        """One for all batches, until their number no longer fits into an id."""
        era = self.epoch >> EPOCH_BITS
        name = f"pyxbroker-spark-{self.query}-{self.task}"
        return f"{name}-{era}" if era else name


class Id(NamedTuple):
    """A sequence id; compare only with those of the same producer."""

    epoch: int
    row: int
    partitions: int
    check: int

    @classmethod
    def of(cls, part: Part, row: int, partitions: int, check: int) -> Id:
        return cls(part.epoch & ((1 << EPOCH_BITS) - 1), row, partitions, check)

    @property
    def number(self) -> int:
        """Raises PulsarSparkError when it has no place for the row, or the partitions."""
        if self.row > ROWS_MAX:
            raise PulsarSparkError(
                f"a task writes more than {ROWS_MAX} rows in one batch, too many to be written"
                " exactly once: let batches be smaller, or write with exactlyOnce=false."
            )
        if self.partitions > PARTITIONS_MAX:
            raise PulsarSparkError(
                f"a topic has more than {PARTITIONS_MAX} partitions, too many to be written"
                " exactly once: write with exactlyOnce=false."
            )
        head = self.epoch << ROW_BITS | self.row
        return (head << PARTITIONS_BITS | self.partitions) << CHECK_BITS | self.check


def id_of(number: int) -> Id | None:
    """The inverse of `Id.number`; None: a broker knows of no id (-1)."""
    if number < 0:
        return None
    check = number & ((1 << CHECK_BITS) - 1)
    number >>= CHECK_BITS
    partitions = number & PARTITIONS_MAX
    number >>= PARTITIONS_BITS
    return Id(number >> ROW_BITS, number & ROWS_MAX, partitions, check)


class Rows:
    """Counts the rows of a task, and checks what they are."""

    def __init__(self) -> None:
        self.row = 0
        self._sum = 0

    def add(self, message: Outgoing) -> None:
        # All but the value has quotes or ends in this text, so nothing moves from one to the next.
        head = repr(message._replace(value=None)).encode(errors="surrogatepass")
        value = b"-" if message.value is None else message.value
        self._sum = zlib.crc32(value, zlib.crc32(head, self._sum))
        self.row += 1

    @property
    def check(self) -> int:
        """Of all rows so far."""
        return (self._sum ^ self._sum >> 16) & ((1 << CHECK_BITS) - 1)

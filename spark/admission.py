"""Limits of a stream's batch: about `maxBytesPerTrigger` bytes, at most `maxRowsPerTrigger` rows.

Bytes are known from the sizes of ledgers (plan.py). The number of messages in an entry is unknown
until it is read: an entry may be a batch of a thousand. So with a limit of rows the driver reads
the batch in advance, counts its messages and discards the payloads.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from pyxbroker import entry_columns
from pyxbroker.base import compression
from pyxbroker.entry_columns import EntryColumns
from pyxbroker.spark.arrays import positions_of
from pyxbroker.spark.avro_programs import Definitions
from pyxbroker.spark.errors import TopicMissing
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range, bounded, listed
from pyxbroker.spark.positions import BEGINNING, Position
from pyxbroker.spark.range_reader import RangeReader

_PART_ROWS_MAX = 1 << 16
_QUEUE = "pulsar.reader.receiverQueueSize"


def limit_ends(
    options: Options, begins: Mapping[str, Position], ends: dict[str, Position]
) -> dict[str, Position]:
    """Return the end positions of a batch, limited by `maxBytesPerTrigger` and `maxRowsPerTrigger`.

    Raises PulsarSparkError.
    """
    if options["maxBytesPerTrigger"] is not None:
        ends = bounded(options, dict(begins), ends, options["maxBytesPerTrigger"])
    if options["maxRowsPerTrigger"] is not None:
        ends = bounded_by_rows(options, begins, ends, options["maxRowsPerTrigger"])
    return ends


def bounded_by_rows(
    options: Options, begins: Mapping[str, Position], ends: dict[str, Position], rows_max: int
) -> dict[str, Position]:
    """Return ends that limit a batch to `rows_max` rows of all topics together.

    Topics with messages share the limit equally; what one does not use goes to the next ones. The
    order is random, so that no topic starves where there are more topics than rows. A topic that is
    deleted in the meantime keeps its end: the task that reads it reports the deletion.
    """
    found = dict(ends)
    waiting = [
        each
        for topic, end in ends.items()
        if begins.get(topic, BEGINNING).key < end.key
        and (each := _listed(options, Range(topic, begins.get(topic, BEGINNING), end)))
    ]
    random.shuffle(waiting)
    left = rows_max
    for index, wanted in enumerate(waiting):
        share = min(left, max(1, left // (len(waiting) - index)))
        taken, cut = _cut(options, wanted, share)
        left -= taken
        if cut is not None:
            found[wanted.topic] = cut
    return found


def _listed(options: Options, wanted: Range) -> Range | None:
    """Return the range without entries that do not exist, or None if it has none."""
    try:
        return listed(options, wanted)
    except TopicMissing:
        return None


def _cut(options: Options, wanted: Range, rows_max: int) -> tuple[int, Position | None]:
    """Return how many rows of a range fit, and where they end; None: at the range's end."""
    if not rows_max:
        return 0, wanted.begin
    part_rows_max = min(rows_max + 1, _PART_ROWS_MAX)
    # Tasks report lost messages: only they know what existed before.
    others = {_QUEUE: min(options[_QUEUE], part_rows_max), "failOnDataLoss": False}
    reader = RangeReader(options.replaced(others), wanted, _PositionsOnly(part_rows_max))
    rows = 0
    last = tuple(wanted.begin)
    try:
        for filled in reader:
            places = list(positions_of(filled))
            if rows + len(places) > rows_max:
                taken = rows_max - rows
                last = places[taken - 1] if taken else last
                # The end names a batch index only if the next message is in the same entry.
                is_within = places[taken][:2] == last[:2]
                return rows_max, Position(*last) if is_within else Position(*last[:2])
            rows += len(places)
            last = places[-1]
    finally:
        reader.close()
    return rows, None


class _PositionsOnly:
    """A decoder that keeps only the positions of messages."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max

    def entry_columns(self, partition: int, definitions: Definitions) -> EntryColumns:
        """See Columns.entry_columns."""
        return EntryColumns(
            *(entry_columns.NONE, (), compression, partition),
            kept=entry_columns.POSITION,
            rows_max=self._rows_max,
        )

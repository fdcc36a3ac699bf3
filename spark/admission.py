"""How much of what is there a batch of a stream takes: about so many bytes, at most so many rows.

Bytes are known of ledgers (plan.py). How many messages entries have nobody tells: an entry may be a
batch of a thousand. So where rows are to be bounded the driver reads ahead what the batch will
have, and counts; payloads are thrown away as they come.
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


def admitted(
    options: Options, begins: Mapping[str, Position], ends: dict[str, Position]
) -> dict[str, Position]:
    """Ends that are as near as the options say. Raises PulsarSparkError."""
    if options["maxBytesPerTrigger"] is not None:
        ends = bounded(options, dict(begins), ends, options["maxBytesPerTrigger"])
    if options["maxRowsPerTrigger"] is not None:
        ends = bounded_by_rows(options, begins, ends, options["maxRowsPerTrigger"])
    return ends


def bounded_by_rows(
    options: Options, begins: Mapping[str, Position], ends: dict[str, Position], rows_max: int
) -> dict[str, Position]:
    """Ends before which at most so many rows lie, of all topics together.

    Each topic that has something gets its share of what those before it left. Which is the first
    one is by chance: where there are more topics than rows, none waits for ever. One that is
    deleted meanwhile keeps its end, as whoever reads it will tell.
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
    """A range whose entries are to be counted. None: it has none."""
    try:
        return listed(options, wanted)
    except TopicMissing:
        return None


def _cut(options: Options, wanted: Range, rows_max: int) -> tuple[int, Position | None]:
    """(how many rows, where they end) of the first ones of a range; None: where it does."""
    if not rows_max:
        return 0, wanted.begin
    part_rows_max = min(rows_max + 1, _PART_ROWS_MAX)
    # What is lost is told by those that read: they know what there was before.
    others = {_QUEUE: min(options[_QUEUE], part_rows_max), "failOnDataLoss": False}
    reader = RangeReader(options.replaced(others), wanted, _Places(part_rows_max))
    rows = 0
    last = tuple(wanted.begin)
    try:
        for filled in reader:
            places = list(positions_of(filled))
            if rows + len(places) > rows_max:
                taken = rows_max - rows
                last = places[taken - 1] if taken else last
                # What follows lies in the same entry, or all of that one is taken.
                is_within = places[taken][:2] == last[:2]
                return rows_max, Position(*last) if is_within else Position(*last[:2])
            rows += len(places)
            last = places[-1]
    finally:
        reader.close()
    return rows, None


class _Places:
    """Where messages are, and nothing of what is in them."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max

    def entry_columns(self, partition: int, definitions: Definitions) -> EntryColumns:
        """See Columns.entry_columns."""
        return EntryColumns(
            *(entry_columns.NONE, (), compression, partition),
            kept=entry_columns.POSITION,
            rows_max=self._rows_max,
        )

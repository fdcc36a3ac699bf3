"""The streaming source: offsets are positions, so each batch can be read again as it was.

Spark keeps an offset for each batch in the query's checkpoint. An offset has every topic with the
last message before it (positions.py); a topic that appears while the query runs is read from its
beginning. No state of the source is anywhere else, and nothing is left with the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyxbroker.spark.admission import admitted
from pyxbroker.spark.columns import Columns
from pyxbroker.spark.errors import TopicMissing, WrongOption
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import (
    Ends,
    ends_of,
    hold,
    patiently,
    ranges_of,
    starts_of,
    without_lost,
)
from pyxbroker.spark.positions import BEGINNING, Position, read_offset, read_sizes, write_offset
from pyxbroker.spark.tasks import RangePartition, read_partition

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2, which asks for one batch of all there is then
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = None
    SupportsTriggerAvailableNow = object

BOUNDS = ("maxBytesPerTrigger", "maxRowsPerTrigger")
_log = logging.getLogger(__name__)


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks of the source on the driver, batch after batch."""

    _until: dict[str, Position] | None = None
    """What was there when a query began that ends with that."""
    _reported: dict[str, str] | None = None
    """What was there when it was looked the last time."""

    def __init__(self, options: Options, columns: Columns) -> None:
        """Raises WrongOption."""
        self._options = options
        self._columns = columns
        bounds = [each for each in BOUNDS if options[each] is not None]
        if "maxBytesPerTrigger" in bounds and options["admin.url"] is None:
            raise WrongOption(
                "maxBytesPerTrigger needs admin.url, which tells how large topics are."
            )
        if bounds and ReadAllAvailable is None:
            raise WrongOption(f"{bounds[0]} needs PySpark 4.2 or newer.")

    def initialOffset(self) -> dict[str, str]:
        ends = self._ends()
        begins = without_lost(self._options, starts_of(self._options, ends), ends)
        if self._options["predefinedSubscription"] is not None:
            patiently(self._options, lambda: hold(self._options, begins))
        return write_offset(begins)

    def commit(self, end: dict[str, str]) -> None:
        """A batch is done: what it had need not be kept for this query any more."""
        if self._options["predefinedSubscription"] is None:
            return
        for topic, position in read_offset(end).items():
            try:
                patiently(self._options, partial(hold, self._options, {topic: position}))
            except TopicMissing as error:
                _log.warning("%s", error)

    def latestOffset(
        self, start: dict[str, str] | None = None, limit: Any = None
    ) -> dict[str, str]:
        """Spark before 4.2 gives neither; then all that is there is the next batch."""
        begins = read_offset(start or {})
        found = self._ends()
        ends = {topic: each.last for topic, each in found.items()}
        sizes = {topic: each.bytes_per_entry for topic, each in found.items()}
        self._reported = write_offset(ends)
        if self._until is not None:
            # What came later is for the next query, and so is a topic that was not there.
            until = self._until
            ends = {
                topic: min(end, until[topic], key=_key)
                for topic, end in ends.items()
                if topic in until
            }
        # An offset never goes back, and a topic that was deleted stays where it was read to.
        for topic, begin in begins.items():
            ends[topic] = max(ends.get(topic, begin), begin, key=_key)
        latest = ends
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            ends = patiently(self._options, lambda: admitted(self._options, begins, latest))
        offset = write_offset(ends, {topic: size for topic, size in sizes.items() if size})
        # Where nothing came the offset is the same, to the letter.
        return offset | {
            topic: text for topic, text in (start or {}).items() if ends[topic] == begins[topic]
        }

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = {topic: each.last for topic, each in self._ends().items()}

    def reportLatestOffset(self) -> dict[str, str] | None:
        """What the query's progress tells, so that one sees how far it is behind."""
        return self._reported

    def getDefaultReadLimit(self) -> Any:
        bytes_max, rows_max = (self._options[each] for each in BOUNDS)
        if rows_max is not None:
            return ReadMaxRows(rows_max)
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        begins, stops = read_offset(start), read_offset(end)
        stops = {
            topic: stop
            for topic, stop in stops.items()
            if begins.get(topic, BEGINNING).key < stop.key
        }
        if not stops:
            return []
        ends = self._ends_of_those_left(stops)
        begins = {topic: begins.get(topic, BEGINNING) for topic in ends}
        begins = without_lost(self._options, begins, ends)
        stops = {topic: stops[topic] for topic in ends}
        sizes = read_sizes(end)
        ranges = patiently(self._options, lambda: ranges_of(self._options, begins, stops, sizes))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._columns, partition)

    def _ends(self) -> dict[str, Ends]:
        return patiently(self._options, lambda: ends_of(self._options))

    def _ends_of_those_left(self, stops: dict[str, Position]) -> dict[str, Ends]:
        """Raises TopicMissing for a topic that has to be read and was deleted, unless that is
        allowed.
        """
        found: dict[str, Ends] = {}
        for topic in stops:
            try:
                found |= patiently(self._options, partial(ends_of, self._options, [topic]))
            except TopicMissing as error:
                if self._options["failOnDataLoss"]:
                    raise
                _log.warning("%s", error)
        return found


def _key(position: Position) -> tuple[int, int, int]:
    return position.key

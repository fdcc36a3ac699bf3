"""The streaming source: offsets are positions, so each batch can be read again as it was.

Spark keeps an offset for each batch in the query's checkpoint. An offset has every topic with the
last message before it (positions.py); a topic that appears while the query runs is read from its
beginning. No state of the source is anywhere else, and nothing is left with the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyxbroker.spark.columns import Columns
from pyxbroker.spark.errors import TopicMissing, WrongOption
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import (
    Ends,
    bounded,
    ends_of,
    ends_of_topic,
    gone_sentence,
    hold,
    is_lost,
    is_whole,
    lose,
    patiently,
    ranges_of,
    sizes_of,
    starts_of,
    without_lost,
)
from pyxbroker.spark.positions import (
    BEGINNING,
    Position,
    read_begins,
    read_offset,
    read_sizes,
    write_offset,
)
from pyxbroker.spark.tasks import RangePartition, read_partition

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2, which asks for one batch of all there is then
    ReadAllAvailable = ReadMaxBytes = None
    SupportsTriggerAvailableNow = object

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
        self._gone: set[str] = set()  # topics of which that was told
        if options["maxBytesPerTrigger"] is None:
            return
        if options["admin.url"] is None:
            raise WrongOption(
                "maxBytesPerTrigger needs admin.url, which tells how large topics are."
            )
        if ReadMaxBytes is None:
            raise WrongOption("maxBytesPerTrigger needs Spark 4.2 or newer.")

    def initialOffset(self) -> dict[str, str]:
        ends = self._ends()
        begins = without_lost(self._options, starts_of(self._options, ends), ends)
        self._hold(begins)
        return write_offset(begins)

    def commit(self, end: dict[str, str]) -> None:
        """A batch is done: what it had need not be kept for this query any more."""
        self._hold(read_offset(end))

    def latestOffset(
        self, start: dict[str, str] | None = None, limit: Any = None
    ) -> dict[str, str]:
        """Spark before 4.2 gives neither; then all that is there is the next batch."""
        stood = read_offset(start or {})
        found = self._ends(stood)
        self._tell_of_gone(stood, found)
        self._reported = write_offset({topic: each.last for topic, each in found.items()})
        moved = self._moved(stood, found)
        begins = stood | moved
        latest = self._latest(begins, found)
        ends = latest
        if limit is not None and isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
            ends = patiently(
                self._options, lambda: bounded(self._options, begins, latest, bytes_max)
            )
        self._hold({topic: at for topic, at in moved.items() if topic not in stood})
        offset = write_offset(ends, sizes_of(ends, found), moved)
        # Where nothing came the offset is the same, to the letter.
        return offset | {
            topic: text for topic, text in (start or {}).items() if ends[topic] == stood[topic]
        }

    def _moved(self, stood: dict[str, Position], found: dict[str, Ends]) -> dict[str, Position]:
        """Where topics begin in this batch that do not where the one before ended: those that
        appeared, and those whose empty ledger was replaced by another one.

        Only now the broker knows that; a batch that is planned again has it from its offset.
        """
        moved = {}
        for topic, ends in found.items():
            if topic in stood:
                is_moved = is_lost(stood[topic], ends.first) and is_whole(stood[topic], ends)
            else:
                # What came later is for the next query.
                is_moved = self._until is None or topic in self._until
            if is_moved:
                moved[topic] = ends.first
        return moved

    def _latest(self, begins: dict[str, Position], found: dict[str, Ends]) -> dict[str, Position]:
        """Up to where all topics could be read by the query. An offset never goes back, and a topic
        that was deleted stays where it was read to.
        """
        latest = dict(begins)
        for topic, begin in begins.items():
            if topic not in found:
                continue
            end = found[topic].last
            if self._until is not None:
                end = min(end, self._until.get(topic, begin), key=_key)
            latest[topic] = max(end, begin, key=_key)
        return latest

    def prepareForTriggerAvailableNow(self) -> None:
        # What may be missing is looked at by what is asked next.
        self._until = {topic: each.last for topic, each in self._ends(None).items()}

    def reportLatestOffset(self) -> dict[str, str] | None:
        """What the query's progress tells, so that one sees how far it is behind."""
        return self._reported

    def getDefaultReadLimit(self) -> Any:
        bytes_max = self._options["maxBytesPerTrigger"]
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        begins, stops = read_offset(start), read_offset(end)
        stops = {
            topic: stop
            for topic, stop in stops.items()
            if begins.get(topic, BEGINNING).key < stop.key
        }
        begins |= read_begins({topic: end[topic] for topic in stops})
        begins = {topic: begins.get(topic, BEGINNING) for topic in stops}
        stops = {topic: stop for topic, stop in stops.items() if begins[topic].key < stop.key}
        if not stops:
            return []
        ends = self._ends_of_those_left(stops)
        begins = without_lost(self._options, {topic: begins[topic] for topic in ends}, ends)
        stops = {topic: stops[topic] for topic in ends}
        sizes = read_sizes(end)
        ranges = patiently(self._options, lambda: ranges_of(self._options, begins, stops, sizes))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._columns, partition)

    def _ends(self, read: Collection[str] | None = ()) -> dict[str, Ends]:
        return patiently(self._options, lambda: ends_of(self._options, read))

    def _hold(self, positions: dict[str, Position]) -> None:
        """Moves the subscription of the query's own, if it has one."""
        if self._options["predefinedSubscription"] is None:
            return
        for topic, position in positions.items():
            try:
                patiently(self._options, partial(hold, self._options, {topic: position}))
            except TopicMissing as error:
                _log.warning("%s", error)

    def _tell_of_gone(self, stood: dict[str, Position], found: dict[str, Ends]) -> None:
        """Raises DataLost for a topic that was deleted, unless that is allowed."""
        for topic in stood.keys() - found.keys() - self._gone:
            lose(self._options, gone_sentence(topic, f"was read up to {stood[topic]}"))
            self._gone.add(topic)
        self._gone -= found.keys()

    def _ends_of_those_left(self, stops: dict[str, Position]) -> dict[str, Ends]:
        """Raises DataLost for one that was deleted, unless that is allowed."""
        found: dict[str, Ends] = {}
        for topic, stop in stops.items():
            try:
                found[topic] = patiently(
                    self._options, partial(ends_of_topic, self._options, topic)
                )
            except TopicMissing:
                lose(self._options, gone_sentence(topic, f"was to be read up to {stop}"))
        return found


def _key(position: Position) -> tuple[int, int, int]:
    return position.key

"""The streaming source: offsets are positions, so each batch can be read again as it was.

Spark keeps an offset for each batch in the query's checkpoint. An offset has every topic with the
last message before it (positions.py); a topic that appears while the query runs is read from its
beginning. No state that a query needs is anywhere else, and nothing is left with the broker but the
subscription that `predefinedSubscription` names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyxbroker.spark.admission import admitted
from pyxbroker.spark.columns import Columns
from pyxbroker.spark.errors import TopicMissing, WrongOption, without_traceback
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import (
    Ends,
    ends_of,
    ends_of_topic,
    gone_sentence,
    hold,
    is_lost,
    is_whole,
    lose,
    may_lack,
    origins_of,
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
    read_moved,
    read_offset,
    read_origins,
    read_sizes,
    write_offset,
)
from pyxbroker.spark.tasks import RangePartition, read_partition
from pyxbroker.spark.topics import is_wanted

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
        self._planned: dict[str, str] | None = None  # the offset that the next batch begins at
        self._gone: set[str] = set()  # topics of which that was told
        self._held: dict[str, Position] = {}  # where the query's own subscription was moved
        # Topics that it was not there for when they were looked at: not before it was seen with all
        # still there does it tell that nothing is missing.
        self._unheld: set[str] = set()
        bounds = [each for each in BOUNDS if options[each] is not None]
        if "maxBytesPerTrigger" in bounds and options["admin.url"] is None:
            raise WrongOption(
                "maxBytesPerTrigger needs admin.url, which tells how large topics are."
            )
        if bounds and ReadAllAvailable is None:
            raise WrongOption(f"{bounds[0]} needs PySpark 4.2 or newer.")

    @without_traceback()
    def initialOffset(self) -> dict[str, str]:
        ends = self._ends()
        begins = without_lost(self._options, starts_of(self._options, ends), ends)
        self._hold(begins, ends)
        self._planned = write_offset(begins, origins=origins_of(begins, ends))
        return self._planned

    @without_traceback()
    def commit(self, end: dict[str, str]) -> None:
        """A batch is done: what it had need not be kept for this query any more."""
        self._hold(read_offset(end))

    @without_traceback()
    def latestOffset(
        self, start: dict[str, str] | None = None, limit: Any = None
    ) -> dict[str, str]:
        """Spark before 4.2 gives neither; then all that is there is the next batch, and where that
        begins is only known when one was planned before.
        """
        if start is None:
            start = self._planned
        stood = read_offset(start or {})
        found = self._found(stood)
        self._reported = write_offset({topic: each.last for topic, each in found.items()})
        appeared, moved = self._appeared(stood, found), self._moved(stood, found)
        begins = stood | appeared | moved
        latest = self._latest(begins, found)
        ends = latest
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            ends = patiently(self._options, lambda: admitted(self._options, begins, latest))
        # Spark commits a batch when the next one begins; when it asks for that one it is done.
        self._hold(stood | (appeared if start is not None else {}), found)
        # Without the offset before nobody knows which topics are new.
        origins = read_origins(start) | appeared if start is not None else {}
        offset = write_offset(ends, sizes_of(ends, found), appeared, moved, origins)
        # Where nothing came the offset is the same, to the letter.
        return offset | {
            topic: text for topic, text in (start or {}).items() if ends[topic] == stood[topic]
        }

    def _found(self, stood: dict[str, Position]) -> dict[str, Ends]:
        """What there is, of what has to be read. Raises DataLost for a topic that was read and was
        deleted, unless that is allowed.
        """
        found = self._ends(stood)
        for topic in sorted(stood.keys() - found.keys()):
            # What options do not name any more stays where it is.
            if not is_wanted(self._options, topic):
                continue
            how_far = f"was read up to {stood[topic]}"
            ends = self._ends_or_gone(topic, how_far, is_told=topic in self._gone)
            if ends is None:
                self._gone.add(topic)
            else:
                found[topic] = ends
        self._gone -= found.keys()
        return {topic: self._seen(topic, ends, stood.get(topic)) for topic, ends in found.items()}

    def _seen(self, topic: str, ends: Ends, stood: Position | None = None) -> Ends:
        """Without a subscription that was only made again: it does not tell what was deleted
        before. stood: where the query stands, if it does.
        """
        if ends.held is None:
            self._unheld.add(topic)
        elif stood is not None and not is_lost(stood, ends.first):
            self._unheld.discard(topic)
        return ends._replace(held=None) if topic in self._unheld else ends

    def _appeared(self, stood: dict[str, Position], found: dict[str, Ends]) -> dict[str, Position]:
        """Where topics begin that were not there, or of which it is not known."""
        return {
            topic: ends.first
            for topic, ends in found.items()
            # What comes after the query has begun to end is for the next one.
            if topic not in stood and (self._until is None or topic in self._until)
        }

    def _moved(self, stood: dict[str, Position], found: dict[str, Ends]) -> dict[str, Position]:
        """Where topics go on of which nothing was lost though a ledger is gone. Only now the broker
        knows that; a batch that is planned again has it from its offset.
        """
        return {
            topic: ends.first
            for topic, ends in found.items()
            if topic in stood and is_lost(stood[topic], ends.first) and is_whole(stood[topic], ends)
        }

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

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        # What may be missing is looked at by what is asked next.
        self._until = {topic: each.last for topic, each in self._ends(None).items()}

    def reportLatestOffset(self) -> dict[str, str] | None:
        """What the query's progress tells, so that one sees how far it is behind."""
        return self._reported

    def getDefaultReadLimit(self) -> Any:
        bytes_max, rows_max = (self._options[each] for each in BOUNDS)
        if rows_max is not None:
            return ReadMaxRows(rows_max)
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    @without_traceback()
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        self._planned = end
        begins, stops, appeared = read_offset(start), read_offset(end), read_begins(end)
        origins = {topic: at for topic, at in appeared.items() if topic not in begins}
        origins |= read_origins(start)
        begins = appeared | begins
        stops = _with_something(begins, stops)
        # Else the text is that of an earlier offset.
        begins |= read_moved({topic: end[topic] for topic in stops})
        stops = _with_something(begins, stops)
        ends = self._ends_of_those_left(stops)
        stops = {topic: stops[topic] for topic in ends}
        begins = {topic: begins.get(topic, BEGINNING) for topic in ends}
        begins = without_lost(self._options, begins, ends)
        self._unheld -= begins.keys()
        sizes = read_sizes(end)
        ranges = patiently(
            self._options, lambda: ranges_of(self._options, begins, stops, sizes, origins)
        )
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._columns, partition)

    def _ends(self, read: Collection[str] | None = ()) -> dict[str, Ends]:
        return patiently(self._options, lambda: ends_of(self._options, read))

    def _hold(
        self, positions: dict[str, Position], found: Mapping[str, Ends] | None = None
    ) -> None:
        """Move the subscription of the query's own, if it has one. found: topics as they are."""
        if self._options["predefinedSubscription"] is None:
            return
        for topic, position in positions.items():
            if self._held.get(topic) == position:
                continue
            try:
                if self._would_hide_loss(topic, position, (found or {}).get(topic)):
                    continue
                patiently(self._options, partial(hold, self._options, topic, position))
            except TopicMissing as error:
                _log.warning("%s", error)
            self._held[topic] = position

    def _would_hide_loss(self, topic: str, position: Position, ends: Ends | None) -> bool:
        """Whether what is to be held is gone, so that the query has to fail: a subscription that is
        made again, or moved back, would look as if it had kept it. Raises TopicMissing.
        """
        if not self._options["failOnDataLoss"]:
            return False  # the query goes on with what is there
        if ends is None:
            ask = partial(ends_of_topic, self._options, topic)
            ends = self._seen(topic, patiently(self._options, ask), position)
        return may_lack(position, ends)

    def _ends_of_those_left(self, stops: dict[str, Position]) -> dict[str, Ends]:
        """Raises DataLost for one that was deleted, unless that is allowed."""
        found = {
            topic: self._ends_or_gone(topic, f"was to be read up to {stop}")
            for topic, stop in stops.items()
        }
        return {topic: self._seen(topic, ends) for topic, ends in found.items() if ends is not None}

    def _ends_or_gone(self, topic: str, how_far: str, is_told: bool = False) -> Ends | None:
        """None: the topic was deleted. Raises DataLost, unless that is allowed."""
        try:
            return patiently(self._options, partial(ends_of_topic, self._options, topic))
        except TopicMissing:
            if not is_told:
                lose(self._options, gone_sentence(topic, how_far))
            return None


def _with_something(begins: dict[str, Position], stops: dict[str, Position]) -> dict[str, Position]:
    """The stops that lie behind where their topics begin."""
    return {
        topic: stop for topic, stop in stops.items() if begins.get(topic, BEGINNING).key < stop.key
    }


def _key(position: Position) -> tuple[int, int, int]:
    return position.key

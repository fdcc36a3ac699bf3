"""The streaming source. Offsets are positions, so each batch can be read again unchanged.

Spark stores an offset for each batch in the query's checkpoint. An offset has each topic with its
last read message (positions.py). A topic that appears while the query runs is read from its
beginning. The checkpoint has the whole state of a query. The broker stores only the subscription
that `predefinedSubscription` names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyxbroker.spark.admission import limit_ends
from pyxbroker.spark.columns import Columns
from pyxbroker.spark.errors import TopicMissing, WrongOption, without_traceback
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import (
    Ends,
    ends_of,
    ends_of_topic,
    gone_sentence,
    is_lost,
    is_whole,
    may_miss_messages,
    move_subscription,
    origins_of,
    ranges_of,
    report_loss,
    sizes_of,
    starts_of,
    with_retries,
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
except ImportError:  # Spark before 4.2, whose batches contain all messages
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = None
    SupportsTriggerAvailableNow = object

BOUNDS = ("maxBytesPerTrigger", "maxRowsPerTrigger")
_log = logging.getLogger(__name__)


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source on the driver, which plans batch after batch."""

    _until: dict[str, Position] | None = None
    """The ends of topics at the start of a query with the trigger availableNow."""
    _reported: dict[str, str] | None = None
    """The ends of topics at the last check."""

    def __init__(self, options: Options, columns: Columns) -> None:
        """Check the options. Raises WrongOption."""
        self._options = options
        self._columns = columns
        self._planned: dict[str, str] | None = None  # the offset that the next batch begins at
        self._deleted: set[str] = set()  # deleted topics that were reported
        self._held: dict[str, Position] = {}  # the positions of the query's own subscription
        # Topics at which the subscription was missing. It proves that nothing was lost only after
        # it was seen while no message was missing.
        self._unproven: set[str] = set()
        bounds = [each for each in BOUNDS if options[each] is not None]
        if "maxBytesPerTrigger" in bounds and options["admin.url"] is None:
            raise WrongOption(
                "maxBytesPerTrigger needs admin.url, because REST has the sizes of ledgers."
            )
        if bounds and ReadAllAvailable is None:
            raise WrongOption(f"{bounds[0]} needs PySpark 4.2 or newer.")

    @without_traceback()
    def initialOffset(self) -> dict[str, str]:
        ends = self._ends()
        begins = without_lost(self._options, starts_of(self._options, ends), ends)
        self._move_subscriptions(begins, ends)
        self._planned = write_offset(begins, origins=origins_of(begins, ends))
        return self._planned

    @without_traceback()
    def commit(self, end: dict[str, str]) -> None:
        """Move the query's subscription, because the batch is complete."""
        self._move_subscriptions(read_offset(end))

    @without_traceback()
    def latestOffset(
        self, start: dict[str, str] | None = None, limit: Any = None
    ) -> dict[str, str]:
        """Return the end of the next batch.

        Spark before 4.2 passes no arguments. Then the batch has all messages, and its start is
        known only if this object has planned the previous batch.
        """
        if start is None:
            start = self._planned
        previous = read_offset(start or {})
        found = self._ends_or_loss(previous)
        self._reported = write_offset({topic: each.last for topic, each in found.items()})
        appeared, moved = self._appeared(previous, found), self._moved(previous, found)
        begins = previous | appeared | moved
        latest = self._latest(begins, found)
        ends = latest
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            ends = with_retries(self._options, lambda: limit_ends(self._options, begins, latest))
        # Spark commits a batch only when the next one begins. But it is complete already.
        self._move_subscriptions(previous | (appeared if start is not None else {}), found)
        # Without the previous offset it is unknown which topics are new.
        origins = read_origins(start) | appeared if start is not None else {}
        offset = write_offset(ends, sizes_of(ends, found), appeared, moved, origins)
        # A topic without new messages keeps the text of its offset.
        return offset | {
            topic: text for topic, text in (start or {}).items() if ends[topic] == previous[topic]
        }

    def _ends_or_loss(self, previous: dict[str, Position]) -> dict[str, Ends]:
        """Return the ends of the topics to read.

        Raises DataLost for a deleted topic that was read before, unless loss is allowed.
        """
        found = self._ends(previous)
        for topic in sorted(previous.keys() - found.keys()):
            # A topic that the options no longer name keeps its position.
            if not is_wanted(self._options, topic):
                continue
            how_far = f"was read up to {previous[topic]}"
            ends = self._ends_or_deleted(topic, how_far, is_reported=topic in self._deleted)
            if ends is None:
                self._deleted.add(topic)
            else:
                found[topic] = ends
        self._deleted -= found.keys()
        return {
            topic: self._seen(topic, ends, previous.get(topic)) for topic, ends in found.items()
        }

    def _seen(self, topic: str, ends: Ends, previous: Position | None = None) -> Ends:
        """Return the ends without a subscription that was missing before.

        Such a subscription does not prove that nothing was deleted. previous: the position of the
        query, if it has read the topic.
        """
        if ends.held is None:
            self._unproven.add(topic)
        elif previous is not None and not is_lost(previous, ends.first):
            self._unproven.discard(topic)
        return ends._replace(held=None) if topic in self._unproven else ends

    def _appeared(
        self, previous: dict[str, Position], found: dict[str, Ends]
    ) -> dict[str, Position]:
        """Return the beginnings of new topics."""
        return {
            topic: ends.first
            for topic, ends in found.items()
            # Later topics belong to the next run of an availableNow query.
            if topic not in previous and (self._until is None or topic in self._until)
        }

    def _moved(self, previous: dict[str, Position], found: dict[str, Ends]) -> dict[str, Position]:
        """Return where topics continue that lost nothing though a ledger was deleted.

        Only the current state of the broker shows that, so the offset stores it for repeated
        batches.
        """
        return {
            topic: ends.first
            for topic, ends in found.items()
            if topic in previous
            and is_lost(previous[topic], ends.first)
            and is_whole(previous[topic], ends)
        }

    def _latest(self, begins: dict[str, Position], found: dict[str, Ends]) -> dict[str, Position]:
        """Return the ends up to which the query can read all topics.

        An offset never goes back, and a deleted topic keeps its position.
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
        # latestOffset reports missing topics.
        self._until = {topic: each.last for topic, each in self._ends(None).items()}

    def reportLatestOffset(self) -> dict[str, str] | None:
        """Return the ends of topics, which Spark shows in the query's progress."""
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
        stops = _not_empty(begins, stops)
        # Other texts were copied from an earlier offset.
        begins |= read_moved({topic: end[topic] for topic in stops})
        stops = _not_empty(begins, stops)
        ends = self._ends_of_those_left(stops)
        stops = {topic: stops[topic] for topic in ends}
        begins = {topic: begins.get(topic, BEGINNING) for topic in ends}
        begins = without_lost(self._options, begins, ends)
        self._unproven -= begins.keys()
        sizes = read_sizes(end)
        ranges = with_retries(
            self._options, lambda: ranges_of(self._options, begins, stops, sizes, origins)
        )
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._columns, partition)

    def _ends(self, read: Collection[str] | None = ()) -> dict[str, Ends]:
        return with_retries(self._options, lambda: ends_of(self._options, read))

    def _move_subscriptions(
        self, positions: dict[str, Position], found: Mapping[str, Ends] | None = None
    ) -> None:
        """Move the query's own subscription, if it has one. found: the current ends of topics."""
        if self._options["predefinedSubscription"] is None:
            return
        for topic, position in positions.items():
            if self._held.get(topic) == position:
                continue
            try:
                if self._would_hide_loss(topic, position, (found or {}).get(topic)):
                    continue
                with_retries(
                    self._options, partial(move_subscription, self._options, topic, position)
                )
            except TopicMissing as error:
                _log.warning("%s", error)
            self._held[topic] = position

    def _would_hide_loss(self, topic: str, position: Position, ends: Ends | None) -> bool:
        """Return True if messages after a position may be deleted, so that the query has to fail.

        Creating the subscription again, or moving it back, would make it look as if it had retained
        them. Raises TopicMissing.
        """
        if not self._options["failOnDataLoss"]:
            return False  # the query continues with the remaining messages
        if ends is None:
            ask = partial(ends_of_topic, self._options, topic)
            ends = self._seen(topic, with_retries(self._options, ask), position)
        return may_miss_messages(position, ends)

    def _ends_of_those_left(self, stops: dict[str, Position]) -> dict[str, Ends]:
        """Return the ends of existing topics. Raises DataLost for others if loss is an error."""
        found = {
            topic: self._ends_or_deleted(topic, f"was to be read up to {stop}")
            for topic, stop in stops.items()
        }
        return {topic: self._seen(topic, ends) for topic, ends in found.items() if ends is not None}

    def _ends_or_deleted(self, topic: str, how_far: str, is_reported: bool = False) -> Ends | None:
        """Return a topic's ends; None: it was deleted. Raises DataLost, unless loss is allowed."""
        try:
            return with_retries(self._options, partial(ends_of_topic, self._options, topic))
        except TopicMissing:
            if not is_reported:
                report_loss(self._options, gone_sentence(topic, how_far))
            return None


def _not_empty(begins: dict[str, Position], stops: dict[str, Position]) -> dict[str, Position]:
    """Return the stops of topics with messages to read."""
    return {
        topic: stop for topic, stop in stops.items() if begins.get(topic, BEGINNING).key < stop.key
    }


def _key(position: Position) -> tuple[int, int, int]:
    return position.key

"""Filters of a query that narrow the topics and positions that a batch reads.

Spark passes its filters to the source (from 4.1 on), and applies them itself as well. So the
narrowed ranges have to contain all messages that pass, and may contain others.

- `__topic` selects topics.
- `__publishTime` becomes a seek and an end. A broker finds a time by bisection, as if messages were
ordered by time. The option `publishTimeSkewMs` is how far they may be out of order. - `__messageId`
selects an entry by equality. Spark compares ids as bytes, whose order is not that of messages, so
other comparisons are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import before_time
from pyxbroker.spark.positions import Position, of_bytes

Positions = dict[str, Position]


class Place:
    """The topics and positions of messages that pass all filters that were added."""

    def __init__(self) -> None:
        self.topics: set[str] | None = None
        self.since_ms: int | None = None
        self.until_ms: int | None = None
        self.first: Position | None = None
        self.last: Position | None = None

    def add(self, one: Any) -> None:
        """Add a filter of Spark; ignore one that does not narrow positions.

        Filters are identified by their class name, because older Sparks do not have the classes.
        """
        attribute: Sequence[str] = getattr(one, "attribute", ())
        take = _TAKEN.get((".".join(attribute), type(one).__name__))
        if take is not None:
            take(self, one.value)

    def narrow(
        self, options: Options, begins: Positions, stops: Positions
    ) -> tuple[Positions, Positions]:
        """Return narrowed (begins, stops). Requests positions of times from brokers."""
        if self.topics is not None:
            begins = {topic: at for topic, at in begins.items() if topic in self.topics}
            stops = {topic: at for topic, at in stops.items() if topic in begins}
        skew_ms = round(options["publishTimeSkewMs"] * 1000)
        if self.since_ms is not None and self.since_ms > skew_ms:
            begins = _later(begins, before_time(options, self.since_ms - skew_ms, begins))
        if self.until_ms is not None:
            until_ms = max(0, self.until_ms + skew_ms + 1)
            stops = _earlier(stops, before_time(options, until_ms, stops))
        if self.first is not None and self.last is not None:
            begins = _later(begins, dict.fromkeys(begins, self.first.before()))
            stops = _earlier(stops, dict.fromkeys(stops, self.last))
        return begins, stops

    # --- filters --------------------------------------------------------------------------------

    def _be_one_of_topics(self, topics: Iterable[Any]) -> None:
        found = {each for each in topics if isinstance(each, str)}
        self.topics = found if self.topics is None else self.topics & found

    def _be_since(self, moment: Any) -> None:
        if (ms := _milliseconds(moment)) is not None:
            self.since_ms = max(self.since_ms or 0, math.floor(ms))

    def _be_until(self, moment: Any) -> None:
        if (ms := _milliseconds(moment)) is not None:
            until_ms = math.ceil(ms)
            self.until_ms = until_ms if self.until_ms is None else min(self.until_ms, until_ms)

    def _be_one_of_times(self, moments: Iterable[Any]) -> None:
        found = [each for each in moments if each is not None]
        if found and all(_milliseconds(each) is not None for each in found):
            self._be_since(min(found))
            self._be_until(max(found))

    def _be_one_of_ids(self, ids: Iterable[Any]) -> None:
        try:
            found = [_entry_of(bytes(each)) for each in ids if each is not None]
        except (TypeError, ValueError):
            return  # no message has such an id: Spark's own filter removes all rows
        if not found:
            return
        first, last = min(found), max(found)
        self.first = first if self.first is None else max(self.first, first)
        self.last = last if self.last is None else min(self.last, last)


def _as_list(take: Callable[[Place, Iterable[Any]], None]) -> Callable[[Place, Any], None]:
    return lambda place, value: take(place, [value])


_TAKEN: dict[tuple[str, str], Callable[[Place, Any], None]] = {
    ("__topic", "EqualTo"): _as_list(Place._be_one_of_topics),
    ("__topic", "EqualNullSafe"): _as_list(Place._be_one_of_topics),
    ("__topic", "In"): Place._be_one_of_topics,
    ("__publishTime", "GreaterThan"): Place._be_since,
    ("__publishTime", "GreaterThanOrEqual"): Place._be_since,
    ("__publishTime", "LessThan"): Place._be_until,
    ("__publishTime", "LessThanOrEqual"): Place._be_until,
    ("__publishTime", "EqualTo"): _as_list(Place._be_one_of_times),
    ("__publishTime", "EqualNullSafe"): _as_list(Place._be_one_of_times),
    ("__publishTime", "In"): Place._be_one_of_times,
    ("__messageId", "EqualTo"): _as_list(Place._be_one_of_ids),
    ("__messageId", "EqualNullSafe"): _as_list(Place._be_one_of_ids),
    ("__messageId", "In"): Place._be_one_of_ids,
}


def _milliseconds(moment: Any) -> float | None:
    """Return milliseconds since 1970, or None for a time without a time zone."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return None
    return moment.timestamp() * 1000


def _entry_of(message_id: bytes) -> Position:
    """Return the position of the whole entry of a message. Raises ValueError."""
    return of_bytes(message_id)._replace(batch=-1)


def _later(one: Positions, other: Positions) -> Positions:
    return {topic: max(at, other[topic], key=_key) for topic, at in one.items()}


def _earlier(one: Positions, other: Positions) -> Positions:
    return {topic: min(at, other[topic], key=_key) for topic, at in one.items()}


def _key(position: Position) -> tuple[int, int, int]:
    return position.key

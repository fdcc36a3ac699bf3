"""What filters of Spark's say of where messages are. Each is known by the name of its class."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark import filters
from pyxbroker.spark.options import BATCH, Options
from pyxbroker.spark.positions import Position

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone.utc)
MS = 1_767_323_045_678
OPTIONS = Options(BATCH, {"service.url": "pulsar://a", "topic": "t", "publishTimeSkewMs": "1000"})


@dataclass
class Filter:
    attribute: tuple[str, ...]
    value: Any = None


class EqualTo(Filter): ...


class EqualNullSafe(Filter): ...


class GreaterThan(Filter): ...


class LessThanOrEqual(Filter): ...


class In(Filter): ...


class IsNull(Filter): ...


def place_of(*added: Any) -> filters.Place:
    place = filters.Place()
    for each in added:
        place.add(each)
    return place


def id_of(ledger: int, entry: int, **more: int) -> bytes:
    return pb.MessageIdData(ledgerId=ledger, entryId=entry, **more).SerializeToString()


def test_times_are_rounded_away_from_what_passes() -> None:
    time_of = ("__publishTime",)
    place = place_of(GreaterThan(time_of, NOW), LessThanOrEqual(time_of, NOW))
    assert (place.since_ms, place.until_ms) == (MS, MS + 1)
    earlier = NOW - timedelta(seconds=1)
    place = place_of(In(time_of, (NOW, None, earlier)))
    assert (place.since_ms, place.until_ms) == (MS - 1000, MS + 1)


def test_what_says_nothing_of_a_place_narrows_nothing() -> None:
    naive = NOW.replace(tzinfo=None)
    place = place_of(
        EqualTo(("value",), 1),
        EqualTo(("a", "__topic"), "x"),
        GreaterThan(("__publishTime",), naive),
        In(("__publishTime",), (NOW, naive)),
        EqualNullSafe(("__publishTime",), None),
        IsNull(("__topic",)),
        GreaterThan(("__messageId",), id_of(3, 4)),
        In(("__messageId",), (id_of(3, 4), b"\xff")),
        object(),
    )
    assert vars(place) == vars(filters.Place())


def test_topics_and_ids_that_pass_all_filters_are_left() -> None:
    begins = {name: Position(1, -1) for name in ("a", "b", "c")}
    stops = {name: Position(9, 9) for name in begins}
    place = place_of(In(("__topic",), ("a", "b", "z")), In(("__topic",), ("b", "c", None)))
    assert place.narrow(OPTIONS, begins, stops) == ({"b": begins["b"]}, {"b": stops["b"]})
    ids = In(("__messageId",), (id_of(3, 4, batch_index=2), id_of(5, 0), None))
    place = place_of(ids)
    found = place.narrow(OPTIONS, begins, stops)
    assert found == (dict.fromkeys(begins, Position(3, 3)), dict.fromkeys(stops, Position(5, 0)))
    place.add(EqualTo(("__messageId",), id_of(5, 0)))
    assert (place.first, place.last) == (Position(5, 0), Position(5, 0))


def test_seeks_go_further_than_filters_by_the_skew(monkeypatch: Any) -> None:
    asked = []

    def before(options: Options, moment: int, topics: dict[str, Position]) -> dict[str, Position]:
        asked.append(moment)
        return dict.fromkeys(topics, Position(4, 4))

    monkeypatch.setattr(filters, "before_time", before)
    place = place_of(EqualTo(("__publishTime",), NOW))
    found = place.narrow(OPTIONS, {"t": Position(1, 1)}, {"t": Position(9, 9)})
    assert asked == [MS - 1000, MS + 1 + 1000 + 1]
    assert found == ({"t": Position(4, 4)}, {"t": Position(4, 4)})

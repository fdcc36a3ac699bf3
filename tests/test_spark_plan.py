"""How the Spark connector cuts topics into ranges, and what its sequence ids hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from pyxbroker.spark import plan
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.ledgers import Ledger
from pyxbroker.spark.options import STREAM, Options
from pyxbroker.spark.outgoing import Outgoing
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
from pyxbroker.spark.sequence import ROWS_MAX, Id, Part, Rows, id_of

TOPIC = "persistent://public/default/t"
GIVEN = {
    "service.url": "pulsar://a",
    "admin.url": "http://a",
    "topic": TOPIC,
    "bytesPerTask": "1000",
}


def ranges(ledgers: Iterable[Ledger], offset: dict[str, str], patch: Any) -> list[plan.Range]:
    patch.setattr(plan, "_ledgers", lambda options, topic: list(ledgers))
    begin = {TOPIC: Position(1, 3)}
    options = Options(STREAM, GIVEN)
    return plan.ranges_of(options, begin, read_offset(offset), read_sizes(offset))


def test_a_batch_is_cut_where_it_was_whatever_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offset = write_offset({TOPIC: Position(2, 49)}, {TOPIC: 100})
    assert offset == {TOPIC: "2:49~100"}
    before = [Ledger(1, 20, 3_000, False), Ledger(2, 50, 5_000, True)]
    found = ranges(before, offset, monkeypatch)
    assert len(found) > 5
    # The ledger that was written has grown by larger entries, and is not the last one any more.
    after = [before[0], Ledger(2, 80, 90_000, False), Ledger(3, 7, 700, True)]
    assert ranges(after, offset, monkeypatch) == found
    assert ranges(after, {TOPIC: "2:49"}, monkeypatch) != found


def test_each_ledger_is_cut_by_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with a bound ends in an old ledger, whose entries are not those of the newest."""
    ledgers = [
        Ledger(1, 20, 3_000, False),
        Ledger(2, 50, 5_000, False),
        Ledger(3, 9, 900_000, True),
    ]
    ends = {TOPIC: plan.Ends(Position(0, -1), Position(3, 8), ledgers[-1])}
    offset = write_offset({TOPIC: Position(2, 49)}, plan.sizes_of({TOPIC: Position(2, 49)}, ends))
    assert offset == {TOPIC: "2:49"}
    found = ranges(ledgers, offset, monkeypatch)
    assert 7 <= len(found) <= 8
    offset = write_offset({TOPIC: Position(3, 8)}, plan.sizes_of({TOPIC: Position(3, 8)}, ends))
    assert offset == {TOPIC: "3:8~100000"}
    # The first of the large ones fills up the range before.
    assert len(ranges(ledgers, offset, monkeypatch)) == len(found) + 8


def test_the_number_of_ranges_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = [Ledger(1, 1 << 30, 1 << 40, True)]
    monkeypatch.setattr(plan, "_ledgers", lambda options, topic: ledgers)
    options = Options(STREAM, GIVEN | {"bytesPerTask": "1"})
    others = [f"{TOPIC}-{number}" for number in range(3)]
    ends = dict.fromkeys(others, Position(1, (1 << 30) - 1))
    found = plan.ranges_of(options, {}, ends)
    assert plan.RANGES_MAX // 2 < len(found) <= plan.RANGES_MAX + len(others)
    for topic in others:
        mine = [each for each in found if each.topic == topic]
        assert mine[0].begin == BEGINNING and mine[-1].end == ends[topic]
        assert all(one.end == other.begin for one, other in itertools.pairwise(mine))


@pytest.mark.parametrize(
    "listed",
    [
        [],
        [Ledger(1, 9, 900, True)],
        [Ledger(1, 20, 2_000, False), Ledger(2, 0, 0, True)],
        [Ledger(1, 20, 2_000, False), Ledger(2, 30, 3_000, True)],
    ],
    ids=["nothing", "not the last ledger", "no entry of it", "not its last entry"],
)
def test_a_topic_is_cut_to_its_end_whatever_rest_does_not_list_yet(listed: list[Ledger]) -> None:
    begin, end = Position(1, 3), Position(2, 49)
    found = plan.cut(begin, end, listed, 1_000)
    assert found[0][0] == begin and found[-1][1] == end
    assert all(one[1] == other[0] for one, other in itertools.pairwise(found))
    assert all(one.key < other.key for one, other in found)


def test_the_beginning_of_a_ledger_is_no_entry_to_wait_for() -> None:
    listed = [Ledger(1, 20, 2_000, False), Ledger(2, 0, 0, True)]
    assert plan.cut(Position(1, 3), Position(2, -1), listed, 10_000) == [
        (Position(1, 3), Position(1, 19))
    ]
    assert plan.cut(Position(1, 19), Position(2, -1), listed, 10_000) == []
    # It was made after this list, which has less of the ledger before than there is.
    behind = [Ledger(1, 7, 700, True)]
    assert plan.cut(Position(1, 3), Position(2, -1), behind, 10_000) == [
        (Position(1, 3), Position(2, -1))
    ]


def test_an_offset_has_where_a_topic_begins() -> None:
    positions = {TOPIC: Position(2, 49), "other": Position(3, 1, 4)}
    offset = write_offset(positions, {TOPIC: 100}, {TOPIC: Position(1, -1), "other": BEGINNING})
    assert offset == {TOPIC: "2:49~100@1:-1", "other": "3:1:4@-1:-1"}
    assert read_offset(offset) == positions
    assert read_sizes(offset) == {TOPIC: 100}
    assert read_begins(offset) == {TOPIC: Position(1, -1), "other": BEGINNING}
    assert read_moved(offset) == {}
    assert read_begins({TOPIC: "2:49~100", "other": "2:49"}) == {}
    offset = write_offset({TOPIC: Position(6, -1)}, moved={TOPIC: Position(6, -1)})
    assert offset == {TOPIC: "6:-1^6:-1"}
    assert read_moved(offset) == read_offset(offset) and read_begins(offset) == {}
    assert read_origins(offset) == {}
    begins = {TOPIC: Position(1, -1)}
    offset = write_offset(positions, {TOPIC: 100}, begins, begins, begins | {"other": BEGINNING})
    assert offset == {TOPIC: "2:49~100@1:-1^1:-1<1:-1", "other": "3:1:4<-1:-1"}
    assert read_origins(offset) == begins | {"other": BEGINNING}
    assert read_offset(offset) == positions and read_moved(offset) == begins


@pytest.mark.parametrize(
    ("held", "is_whole"),
    [
        (Position(4, 2), True),
        (Position(4, 1), True),
        (Position(4, 4), False),
        (Position(7, -1), True),
        (Position(7, 0), False),
        (None, False),
    ],
)
def test_a_mark_proves_that_nothing_is_missing_where_the_query_put_it(
    held: Position | None, is_whole: bool
) -> None:
    """Or where brokers put it before they delete a ledger that was read to its end."""
    ends = plan.Ends(Position(7, -1), Position(7, 5), None, Position(7, 5), held)
    assert plan.may_miss_messages(Position(4, 2), ends) is not is_whole


def test_sequence_ids_grow_with_batch_and_row_and_hold_what_they_are_made_of() -> None:
    ids = [
        Id.of(Part("q", 0, epoch), row, partitions, check)
        for epoch in (0, 1, 9)
        for row, partitions, check in ((1, 0, 2047), (2, 1023, 0), (ROWS_MAX, 4, 1))
    ]
    numbers = [each.number for each in ids]
    assert numbers == sorted(set(numbers)) and numbers[0] > 0 and numbers[-1] < 1 << 63
    assert [id_of(each) for each in numbers] == ids
    assert id_of(-1) is None
    with pytest.raises(PulsarSparkError, match="rows in one batch"):
        _ = Id(0, ROWS_MAX + 1, 0, 0).number
    with pytest.raises(PulsarSparkError, match="1023 partitions"):
        _ = Id(0, 1, 1024, 0).number


def test_the_check_of_rows_sees_all_of_them_and_their_order() -> None:
    one, two = (Outgoing("t", key, b"v", {}) for key in ("a", "b"))
    others = [
        one._replace(value=None),
        one._replace(value=b""),
        one._replace(key=None),
        one._replace(topic="u"),
        one._replace(properties={"a": "b"}),
        one._replace(event_time=1),
        one._replace(deliver_at=1),
    ]
    sums = {sum_of([two, one]), sum_of([one, two]), *(sum_of([each, two]) for each in others)}
    assert len(sums) == 9


def sum_of(messages: list[Outgoing]) -> int:
    rows = Rows()
    for each in messages:
        rows.add(each)
    return rows._sum

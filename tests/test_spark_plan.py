"""How the Spark connector cuts topics into ranges, and what its sequence ids hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pyxbroker.spark import plan
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.ledgers import Ledger
from pyxbroker.spark.options import STREAM, Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.positions import Position, read_offset, read_sizes, write_offset
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

"""What is known of the ledgers of a range: whether entries are missing where some were deleted."""

from __future__ import annotations

import pytest

from pyxbroker.spark.ledgers import Ledger, are_entries_between, entries_of
from pyxbroker.spark.positions import BEGINNING, Position

LEDGERS = [Ledger(3, 10, 0, False), Ledger(5, 0, 0, False), Ledger(7, 20, 0, False)]


@pytest.mark.parametrize(
    ("begin", "end", "is_missing"),
    [
        (
            Position(3, 9),
            Position(7, -1),
            False,
        ),  # the next ledger comes next, but for an empty one
        (Position(3, 8), Position(7, -1), True),
        (Position(3, 9, 0), Position(7, -1), True),  # the rest of a batch
        (Position(3, 9), Position(7, 0), True),
        (Position(3, 9), Position(9, -1), True),  # a whole ledger
        (Position(7, 19), Position(9, -1), False),
        (Position(7, 3), Position(7, 3), False),
        (Position(2, 0), Position(3, -1), True),  # nobody knows
        (BEGINNING, Position(3, -1), True),
    ],
)
def test_entries_between_two_positions(begin: Position, end: Position, is_missing: bool) -> None:
    known = tuple((each.id, each.entries) for each in LEDGERS)
    assert are_entries_between(known, begin, end) == is_missing


def test_a_range_knows_its_ledgers_and_none_of_what_comes_later() -> None:
    begin, end = Position(3, 4), Position(7, 6)
    found = entries_of(LEDGERS, begin, end)
    assert found == ((3, 10), (5, 0), (7, 7))
    grown = [*LEDGERS[:2], Ledger(7, 90, 0, True), Ledger(8, 1, 0, True)]
    assert entries_of(grown, begin, end) == found

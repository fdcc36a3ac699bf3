"""Lines of /metrics are what Python's own formatting makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.metric_lines import lines
from pyxbroker.stats.definitions import Stat
from pyxbroker.stats.exposition import Table

NUMBERS = st.integers(-(10**39) + 1, 10**40 - 1) | st.floats()


@given(st.binary(max_size=20), st.lists(st.tuples(st.binary(max_size=40), NUMBERS, NUMBERS)))
def test_each_row_is_a_line_with_its_number(
    name: bytes, table: list[tuple[bytes, int | float, int | float]]
) -> None:
    labels = tuple(label for label, _, _ in table)
    rows = tuple(numbers for _, *numbers in map(tuple, table))
    for index in (0, 1):
        wanted = b"".join(
            name + label + _text(row[index]) + b"\n"
            for label, row in zip(labels, rows, strict=True)
        )
        assert lines(name, labels, tuple(map(tuple, rows)), index) == wanted


def test_zero_is_written_without_a_sign() -> None:
    assert lines(b"a", (b"", b""), ((0.0,), (-0.0,)), 0) == b"a0.0\na0.0\n"


def _text(number: int | float) -> bytes:
    return b"0.0" if number == 0 and isinstance(number, float) else str(number).encode()


@pytest.mark.parametrize(
    ("labels", "rows", "index", "error"),
    [
        ((b"a",), (("1",),), 0, TypeError),
        ((b"a",), ((True,),), 0, TypeError),
        ((b"a",), ((None,),), 0, TypeError),
        (("a",), ((1,),), 0, TypeError),
        ((b"a",), ([1],), 0, TypeError),
        ((b"a",), ((1,),), 1, IndexError),
        ((b"a",), ((1,),), -1, IndexError),
        ((b"a", b"b"), ((1,),), 0, ValueError),
        ((b"a",), ((10**40,),), 0, OverflowError),
    ],
)
def test_what_is_no_row_of_numbers_is_refused(
    labels: Any, rows: Any, index: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        lines(b"name", labels, rows, index)


def test_a_series_has_the_labels_of_its_row_and_the_one_of_its_own() -> None:
    table = Table((Stat("a", "A.", "s_a"), Stat("b", "B.", "s_b", label='le="1"')))
    table.append('{topic="t"} ', (5, 6))
    table.end_block()
    assert list(table.lines(0)) == [b's_a{topic="t"} 5\n']
    assert list(table.lines(1)) == [b's_b{topic="t",le="1"} 6\n']

"""The index of delayed delivery against a slow, obvious model: a sorted list."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.delayed_index import DelayedIndex
from pyxbroker.entry import Position

TIMES = st.integers(0, 50)
POSITIONS = st.tuples(st.integers(0, 3), st.integers(0, 200))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), TIMES, POSITIONS),
            st.tuples(st.just("take"), TIMES, st.integers(0, 5)),
            st.tuples(st.just("drop"), TIMES, POSITIONS),
        ),
        max_size=200,
    )
)
def test_gives_what_a_sorted_list_gives(steps) -> None:
    index = DelayedIndex()
    model: list[tuple[int, tuple[int, int]]] = []
    for kind, time, what in steps:
        if kind == "put":
            if any(position == what for _, position in model):
                continue
            index.put(time, *what)
            model.append((time, what))
        elif kind == "drop":
            index.drop_up_to(*what)
            model = [each for each in model if each[1] > what]
        else:
            due = sorted(each for each in model if each[0] <= time)
            taken = index.take_due(time, what)
            assert [when_of(model, each) for each in taken] == [when for when, _ in due][:what]
            assert set(taken) <= {position for _, position in due}
            assert len(set(taken)) == len(taken)
            model = [each for each in model if each[1] not in taken]
        assert len(index) == len(model)
        assert index.next_time == min((when for when, _ in model), default=-1)


def when_of(model: list[tuple[int, tuple[int, int]]], position: Position) -> int:
    return next(when for when, each in model if each == position)


def test_equal_times_go_in_the_order_of_the_log() -> None:
    index = DelayedIndex()
    for entry_id in (5, 3, 9, 1):
        index.put(1000, 7, entry_id)
    assert index.take_due(999, 10) == []
    assert index.take_due(1000, 10) == [Position(7, each) for each in (1, 3, 5, 9)]


def test_takes_sixteen_bytes_an_entry_and_gives_them_back() -> None:
    index = DelayedIndex()
    for entry_id in range(100_000):
        index.put(entry_id * 7919 % 100_003, 1, entry_id)
    assert index.memory_bytes <= 100_000 * 16 * 5 / 4
    assert len(index.take_due(100_003, 90_000)) == 90_000
    assert index.memory_bytes < 100_000 * 16 / 2
    assert len(index.take_due(100_003, 90_000)) == 10_000
    assert (index.memory_bytes, index.next_time, len(index)) == (0, -1, 0)


def test_what_is_dropped_gives_its_memory_back() -> None:
    index = DelayedIndex()
    for entry_id in range(100_000):
        index.put(entry_id * 7919 % 100_003, 1 + entry_id % 2, entry_id)
    index.drop_up_to(2, 89_999)
    assert len(index) == 5_000
    assert index.memory_bytes < 100_000 * 16 / 4
    taken = index.take_due(100_003, 90_000)
    assert sorted(taken) == [(2, each) for each in range(90_001, 100_000, 2)]
    times = [entry_id * 7919 % 100_003 for _, entry_id in taken]
    assert times == sorted(times)


def test_times_out_of_range_are_brought_into_it() -> None:
    index = DelayedIndex()
    index.put(2**63 - 1, 1, 0)
    index.put(-5, 1, 1)
    assert index.take_due(0, 10) == [Position(1, 1)]
    assert index.take_due(2**41, 10) == []
    assert index.next_time == 2**42 - 1


WITHOUT_MEMORY = """
import resource
from pyxbroker.delayed_index import DelayedIndex
index = DelayedIndex()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
count = 0
try:
    while True:
        index.put(count, 1, count)
        count += 1
except MemoryError as error:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print(error)
assert len(index) == count
assert index.take_due(2, 5) == [(1, 0), (1, 1), (1, 2)]
index.put(0, 1, count)
assert index.take_due(0, 5) == [(1, count)]
"""


@pytest.mark.slow  # and not under ASan, whose allocator ends the process
def test_without_memory_one_is_refused_and_the_others_stay() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("no memory for ")

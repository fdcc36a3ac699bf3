"""Who waits for more entries: a few are told at once, many in rounds, and nobody misses any."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from manual_loop import ManualLoop
from pyxbroker.mledger.listener import CALLED_TOGETHER_MAX, Watchers
from pyxbroker.turn import Turn
from shares import over_at_once, without_end

MANY = 10 * CALLED_TOGETHER_MAX


class Telling:
    """Watchers with numbers, who is told in which turn of the loop, and a loop to go round."""

    def __init__(self, count: int, told_in_a_part: int | None = None) -> None:
        self.loop = ManualLoop()
        self.turn = Turn(cast(asyncio.AbstractEventLoop, self.loop))
        news = self.turn.notifications
        if told_in_a_part is None:
            without_end(news)
        else:
            over_at_once(news)
        self.watchers = Watchers(self.turn)
        self.told: list[int] = []
        self.calls: list[Callable[[], None]] = []
        for number in range(count):
            self.join(number)

    def join(self, number: int) -> None:
        def call() -> None:
            self.told.append(number)

        self.calls.append(call)
        self.watchers.add(call)

    def publish(self) -> None:
        self.turn.run(self.watchers.schedule_round)

    def go_round(self) -> int:
        """One turn of the loop; how many were told in it."""
        before = len(self.told)
        self.loop.run_soon()
        return len(self.told) - before

    def finish(self) -> None:
        while self.loop.soon:
            self.loop.run_soon()


@pytest.mark.parametrize("count", [1, CALLED_TOGETHER_MAX])
def test_a_few_are_told_in_the_turn_that_brought_entries(count: int) -> None:
    desk = Telling(count, told_in_a_part=1)
    desk.publish()
    assert desk.told == list(range(count))


def test_of_many_a_turn_tells_no_more_than_it_has_time_for() -> None:
    desk = Telling(MANY, told_in_a_part=1)
    desk.publish()
    assert len(desk.told) == 1
    assert [desk.go_round() for _ in range(MANY - 1)] == [1] * (MANY - 1)
    assert desk.told == list(range(MANY))
    desk.finish()
    assert len(desk.told) == MANY


def test_many_are_told_at_once_where_there_is_time() -> None:
    desk = Telling(MANY)
    desk.publish()
    assert desk.told == list(range(MANY))


@pytest.mark.parametrize("parts", range(0, MANY, 7))
def test_entries_that_come_during_a_round_are_told_of_to_all_when_it_is_over(parts: int) -> None:
    desk = Telling(MANY, told_in_a_part=1)
    desk.publish()
    for _ in range(parts):
        desk.go_round()
    before = len(desk.told)
    desk.publish()
    desk.publish()
    # Who asks again and again gets no more of a turn.
    assert len(desk.told) == before
    desk.finish()
    assert set(desk.told[before:]) == set(range(MANY))
    assert len(desk.told) == 2 * MANY
    assert set(Counter(desk.told).values()) == {2}


def test_who_leaves_during_a_round_is_not_told_and_who_comes_hears_of_the_next_entries() -> None:
    desk = Telling(MANY, told_in_a_part=1)
    desk.publish()
    gone = desk.calls[MANY - 1]
    desk.watchers.remove(gone)
    desk.join(MANY)
    desk.finish()
    assert desk.told == list(range(MANY - 1))
    desk.told.clear()
    desk.publish()
    desk.finish()
    assert desk.told == [*range(MANY - 1), MANY]


def test_who_leaves_and_comes_back_during_a_round_is_told() -> None:
    desk = Telling(MANY, told_in_a_part=1)
    desk.publish()
    back = desk.calls[MANY - 1]
    desk.watchers.remove(back)
    desk.watchers.add(back)
    desk.finish()
    assert MANY - 1 in desk.told


def test_when_all_have_left_during_a_round_the_next_entries_are_told_at_once() -> None:
    desk = Telling(MANY, told_in_a_part=1)
    desk.publish()
    for call in desk.calls:
        desk.watchers.remove(call)
    desk.finish()
    desk.told.clear()
    desk.join(MANY)
    desk.publish()
    assert desk.told == [MANY]


def test_one_that_fails_does_not_end_a_round() -> None:
    desk = Telling(MANY, told_in_a_part=1)
    desk.watchers.remove(desk.calls[0])
    desk.watchers.add(lambda: cast(None, 1 // 0))
    desk.watchers.add(desk.calls[0])
    desk.publish()
    desk.finish()
    assert set(desk.told) == set(range(MANY))


def test_topics_with_few_share_a_turn_with_others() -> None:
    """However many topics one client publishes to in one write."""
    desk = Telling(1, told_in_a_part=1)
    others = [Watchers(desk.turn) for _ in range(MANY)]
    for number, each in enumerate(others):
        each.add(lambda number=number: desk.told.append(number))  # type: ignore[misc]

    def publish_to_all() -> None:
        for each in others:
            each.schedule_round()

    desk.turn.run(publish_to_all)
    assert desk.told == [0]
    assert [desk.go_round() for _ in range(MANY - 1)] == [1] * (MANY - 1)
    assert desk.told == list(range(MANY))

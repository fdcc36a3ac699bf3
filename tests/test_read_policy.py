"""The order in which the bookies of a read are asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pyxbroker.ledger.bookie import Bookie
from pyxbroker.ledger.read_policy import MEMORY_S, ReadPolicy
from pyxbroker.ledger.reader import ReadSettings


class Clock:
    now = 100.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Any) -> Any:
        raise AssertionError("an order needs no timer")


def policy_of(**latencies_s: float) -> tuple[ReadPolicy, Clock]:
    clock = Clock()
    policy = ReadPolicy(clock, ReadSettings())
    for name, latency_s in latencies_s.items():
        policy.on_answer(name, latency_s)
    return policy, clock


def order(policy: ReadPolicy, *failures: int) -> str:
    names = "abc"
    bookies = [
        SimpleNamespace(bookie_id=name, failure=-5 if index in failures else 0)
        for index, name in enumerate(names)
    ]
    indexes = [0, 1, 2]
    policy.sort(indexes, cast(list[Bookie], bookies))
    return "".join(names[index] for index in indexes)


def test_bookies_that_are_about_as_fast_keep_their_order() -> None:
    assert order(policy_of()[0]) == "abc"
    assert order(policy_of(a=0.004, b=0.001, c=0.002)[0]) == "abc", "a few ms make no difference"
    assert order(policy_of(a=0.25, b=0.1, c=0.2)[0]) == "abc"


def test_a_slow_bookie_comes_after_fast_and_unknown_ones() -> None:
    policy, _ = policy_of(a=0.5, b=0.001)
    assert order(policy) == "bca"
    for _ in range(30):
        policy.on_answer("a", 0.001)
    assert order(policy) == "abc", "it is fast again"


def test_a_failed_bookie_comes_last_until_it_answers() -> None:
    policy, _ = policy_of(b=1.0, c=0.001)
    policy.on_failure("a")
    assert order(policy) == "cba"
    policy.on_answer("a", 0.001)
    assert order(policy) == "acb"
    assert order(policy, 0) == "cba", "its own report counts, too"


def test_what_was_long_ago_is_forgotten() -> None:
    policy, clock = policy_of(a=0.5, b=0.001)
    policy.on_failure("b")
    clock.now += MEMORY_S + 1
    assert order(policy) == "abc"
    policy.on_answer("a", 0.01)
    assert order(policy) == "abc", "the new latency counts alone"

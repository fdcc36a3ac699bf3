"""The storm and its judge: a broker that keeps its promises passes, and nothing else does."""

from __future__ import annotations

import pytest

from torture.key_order import Judge
from torture.key_shared import main


def judged(*steps: str) -> list[str]:
    """Problems after steps like "send 7", "1 gets 7:0", "1 acks 7:0", "1 refuses 7:0", "1 asks",
    "1 hears", "1 leaves" and "1 breaks".
    """
    judge = Judge()
    for step in steps:
        who, _, rest = step.partition(" ")
        what, _, name = rest.partition(" ")
        key, _, number = name.partition(":")
        if who == "send":
            judge.sent(int(rest))
        elif what == "gets":
            judge.delivered(int(who), int(key), int(number))
        elif what == "acks":
            judge.acknowledged(int(who), [(int(key), int(number))])
        elif what == "refuses":
            judge.refused(int(who), [(int(key), int(number))])
        elif what == "asks":
            judge.asks(int(who))
        elif what == "hears":
            judge.answered(int(who))
        else:
            judge.left(int(who), sure={"leaves": True, "breaks": False}[what])
    return judge.problems


TWO = ("send 7", "send 7")


@pytest.mark.parametrize(
    "steps",
    [
        ("1 gets 7:0", "1 gets 7:1", "1 acks 7:1", "1 acks 7:0"),
        ("1 gets 7:0", "1 acks 7:0", "2 gets 7:1"),
        ("1 gets 7:0", "1 leaves", "2 gets 7:0", "2 gets 7:1"),
        ("1 gets 7:0", "1 acks 7:0", "1 breaks", "2 gets 7:0", "2 gets 7:1"),
        ("1 gets 7:0", "1 acks 7:0", "1 breaks", "2 gets 7:1"),
        # A refusal is on its way, and so is the next message.
        ("1 gets 7:0", "1 refuses 7:0", "1 gets 7:1", "1 gets 7:0"),
        ("1 gets 7:0", "1 refuses 7:0", "2 gets 7:0", "2 gets 7:1"),
        ("1 gets 7:0", "1 refuses 7:0", "1 asks", "2 gets 7:0", "1 hears", "2 gets 7:1"),
    ],
)
def test_what_is_right(steps: tuple[str, ...]) -> None:
    assert judged(*TWO, *steps) == []


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        (("1 gets 7:1",), "before [0]"),
        (("1 gets 7:0", "2 gets 7:0"), "while 1 has it"),
        (("1 gets 7:0", "1 gets 7:0"), "while 1 has it"),
        (("1 gets 7:0", "2 gets 7:1"), "while [1] have others of the key"),
        (("1 gets 7:0", "1 acks 7:0", "2 gets 7:0"), "which is acknowledged"),
        (("1 gets 7:0", "1 acks 7:0", "1 leaves", "2 gets 7:0"), "which is acknowledged"),
        (("1 gets 7:0", "1 leaves", "2 gets 7:1"), "before [0]"),
        (
            ("1 gets 7:0", "1 acks 7:0", "1 asks", "1 hears", "1 breaks", "2 gets 7:0"),
            "which is acknowledged",
        ),
        (("1 gets 7:0", "1 refuses 7:0", "1 asks", "1 hears", "1 gets 7:1"), "before [0]"),
        (
            ("1 gets 7:0", "1 gets 7:1", "1 refuses 7:1", "2 gets 7:1"),
            "while [1] have others of the key",
        ),
        # An answer to an earlier question says nothing of what came after it.
        (("1 gets 7:0", "1 asks", "1 refuses 7:0", "1 hears", "2 gets 7:1"), "before"),
    ],
)
def test_what_is_wrong(steps: tuple[str, ...], problem: str) -> None:
    problems = judged(*TWO, *steps)
    assert problems and problem in problems[-1], problems


def test_a_short_storm() -> None:
    assert main(["--events", "300", "--seed", "5"]) == 0


def test_a_broker_that_keeps_no_order_is_found_out() -> None:
    assert main(["--events", "300", "--seed", "5", "--out-of-order"]) == 1

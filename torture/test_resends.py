"""The short form of the load that sends again, and that its judge can find fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.model import Verdict
from torture.resends import NOWHERE, Entry, ResendingProducer, ResendTopic
from torture.run import make, parse

pytestmark = pytest.mark.slow


def tortured(workspace: Path, kind: str, done: Callable[[Verdict], bool], *more: str) -> Verdict:
    """Three rounds; more of them on a machine so slow that those have not shown it."""
    options = parse(["--load", "resends", "--seed", "3", "--ready-limit-s", "60", *more])
    torture = make(kind, options, workspace)
    try:
        for _ in range(10):
            asyncio.run(torture.rounds(3))
            if done(torture.verdict):
                break
    finally:
        torture.close()
    return torture.verdict


@pytest.mark.parametrize("kind", ["kill", "cut"])
def test_what_is_sent_again_is_stored_once_and_no_epoch_comes_twice(
    tmp_path: Path, kind: str
) -> None:
    def done(verdict: Verdict) -> bool:
        return all(verdict.counts["resends", each] for each in ("duplicates", "stored", "epochs"))

    verdict = tortured(tmp_path, kind, done)
    assert verdict.problems == []
    assert done(verdict), verdict.counts


def test_a_broker_without_deduplication_is_found_out(tmp_path: Path) -> None:
    verdict = tortured(
        tmp_path, "kill", lambda it: bool(it.problems), "--set", "brokerDeduplicationEnabled=false"
    )
    assert any("is stored twice" in each for each in verdict.problems)


def producer(*entries: Entry) -> ResendingProducer:
    made = ResendingProducer("p", "t")
    for each in entries:
        made.add(each)
    return made


def test_the_judge_finds_what_must_not_be() -> None:
    one = producer(Entry(0, 1, 100), Entry(3, 5, 100), Entry(9, 1, 100))
    assert [one.take_receipt(0, (1, 0)), one.take_receipt(0, NOWHERE)] == [None, None]
    assert one.take_receipt(0, (1, 1)) == "p: 0 is stored twice, at (1, 0) as well"
    assert one.take_receipt(4, (1, 1)) == "p: a receipt for 4, which was never sent"
    assert one.take_receipt(3, (1, 2)) is None
    # The last id may be of what is stored without a receipt, and of nothing else.
    assert [one.take_last_id(each) is None for each in (-1, 0, 3, 7, 9, 10)] == [
        *(False, False, False, True, True, False)
    ]
    assert one.judge([(0, (1, 0)), (3, (1, 2)), (9, (1, 3))]) == []
    assert len(one.judge([(0, (1, 0)), (3, (1, 2))])) == 1  # it has been read before
    for read in ([0, 9], [0, 3, 3], [3, 0, 9], [0, 3, 9, 12]):
        assert one.judge([(each, (1, each)) for each in read]) != [], read


def test_the_judge_finds_an_epoch_that_comes_twice() -> None:
    topic = ResendTopic("t", False, [], exclusive=True)
    assert topic.take_epoch("a", None, 0, -1) is None
    assert topic.take_epoch("a", 0, 0, 0) is None  # it came back with its own
    for name, asked, epoch, floor in (("b", None, 0, 0), ("b", 0, 0, 0), ("a", None, 0, 0)):
        assert topic.take_epoch(name, asked, epoch, floor) is not None
    assert topic.take_epoch("b", None, 5, 0) is None
    assert topic.take_epoch("a", None, 4, 5) is not None

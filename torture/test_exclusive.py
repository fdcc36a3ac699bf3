"""The short form of torture.exclusive, and that its judge can find fault."""

from __future__ import annotations

from pathlib import Path

from torture.exclusive import Judge, run


def test_no_epoch_comes_twice_and_what_was_acknowledged_is_stored_once(tmp_path: Path) -> None:
    judge = run(tmp_path, rounds=4, seed=1)
    assert judge.faults == []
    assert len(judge.epochs) >= 5 and judge.acknowledged > 10


def test_the_judge_finds_what_must_not_be() -> None:
    judge = Judge()
    judge.took(3)
    judge.took(3)
    judge.sent, judge.acknowledged = 9, 7
    judge.found(6)
    judge.found(10)
    judge.check_stored([b"0"])
    assert len(judge.faults) == 4

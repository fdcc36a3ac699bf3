"""The short form of torture.compaction, and that its judge can find fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from torture.compaction import Judge, run


@pytest.mark.parametrize("cut", [False, True])
def test_every_key_has_its_newest_value_after_a_sudden_end(tmp_path: Path, cut: bool) -> None:
    judge = run(tmp_path, rounds=3, seed=1, cut=cut)
    assert judge.faults == []
    assert judge.entries > 0


def test_the_judge_finds_what_must_not_be() -> None:
    judge = Judge()
    for change in ({"a": b"1", "b": b"1"}, {"a": b"2"}, {"c": b"1"}, {"c": b""}):
        judge.sends(change)
        judge.stored()
    judge.sends({"d": b"1", "e": b"1"})
    judge.found({"a": b"1", "c": b"1", "d": b"1"})
    assert len(judge.faults) == 4  # a is old, b is gone, c is back, half a batch
    judge.found({"a": b"1", "c": b"1", "d": b"1"})
    assert len(judge.faults) == 4

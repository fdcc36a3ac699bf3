"""The short form of torture.compaction, and that its judge can find fault."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from torture import compaction
from torture.compaction import Judge, run


@pytest.mark.parametrize("cut", [False, True])
def test_every_key_has_its_newest_value_after_a_sudden_end(tmp_path: Path, cut: bool) -> None:
    judge = run(tmp_path, rounds=3, seed=1, cut=cut)
    assert judge.faults == []
    assert judge.entries > 0
    assert judge.compared > 0


def judged() -> Judge:
    """Of what was sent and stored."""
    judge = Judge()
    for change in ({"a": b"1", "b": b"1"}, {"a": b"2"}, {"c": b"1"}, {"c": b""}):
        judge.sends(change)
        judge.stored()
    return judge


def test_the_judge_finds_what_must_not_be() -> None:
    judge = judged()
    judge.sends({"d": b"1", "e": b"1"})
    judge.found({"a": b"1", "c": b"1", "d": b"1"}, {})
    assert len(judge.faults) == 4  # a is old, b is gone, c is back, half a batch
    judge.found({"a": b"1", "c": b"1", "d": b"1"}, {})
    assert len(judge.faults) == 4


def test_the_judge_reads_the_log_beside_the_view(tmp_path: Path) -> None:
    judge = judged()
    judge.sends({"a": b"3", "d": b""})
    # What was on its way may be there or not, but not in one of both alone.
    judge.found({"a": b"2", "b": b"1"}, {"a": b"3", "c": b"", "b": b"1"})
    assert judge.faults == ["a is 2 in the view, and 3 in the log"]
    judge.keep(tmp_path)
    kept = json.loads((tmp_path / "history.json").read_text())
    assert kept["faults"] == judge.faults
    assert kept["keys"]["c"][-1] == "in the log deleted"


def test_what_was_found_with_a_fault_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(directory: Path, rounds: int, seed: int, cut: bool) -> Judge:
        (directory / "data").touch()
        judge = judged()
        if cut:
            judge.found({}, {})
        return judge

    monkeypatch.setattr(compaction, "run", faulty)
    monkeypatch.setattr(sys, "argv", ["compaction"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert compaction.main() == 1
    [kept] = tmp_path.iterdir()
    assert (kept / "data").exists()
    assert f"it stays in {kept}" in capsys.readouterr().out

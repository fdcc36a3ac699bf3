"""The order of tests for several processes: files with long tests first, in each stretch."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.slow_first import read_seconds, slow_first, write_seconds

ROOT = Path(__file__).resolve().parent.parent


def made(count: int, name: str) -> list[str]:
    return [f"{name}{n}" for n in range(count)]


def test_each_process_begins_with_long_tests_and_ends_with_short_ones() -> None:
    files = {name: made(10, name) for name in "abcdefgh"}
    seconds = dict(zip(files, [0.1, 60.0, 0.2, 50.0, 0.3, 40.0, 0.4, 30.0], strict=True))
    order = slow_first(files, seconds, 4)
    stretches = [order[at : at + 20] for at in range(0, 80, 20)]
    assert {stretch[0][0] for stretch in stretches} == set("bdfh")
    assert {stretch[-1][0] for stretch in stretches} == set("aceg")


@pytest.mark.parametrize("processes", [2, 3, 4, 7])
def test_no_test_is_lost_and_a_process_has_no_more_than_its_part(processes: int) -> None:
    files = {f"f{n}-": made(1 + n * 7 % 23, f"f{n}-") for n in range(40)}
    seconds = {name: float(n % 5) for n, name in enumerate(files)}
    order = slow_first(files, seconds, processes)
    assert sorted(order) == sorted(each for tests in files.values() for each in tests)
    # Few are cut where a stretch ends; all others are in one piece.
    pieces = 1 + sum(a.split("-")[0] != b.split("-")[0] for a, b in itertools.pairwise(order))
    assert pieces <= len(files) + 2 * processes


def test_what_was_measured_is_kept_of_files_that_were_not_run(tmp_path: Path) -> None:
    path = tmp_path / "build" / "seconds.json"
    assert read_seconds(path) == {}
    write_seconds(path, {"a": 1.0, "b": 2.0})
    write_seconds(path, {"b": 3.004})
    assert read_seconds(path) == {"a": 1.0, "b": 3.0}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '{"a": "x"}', '{"a": null}'])
def test_a_record_that_is_damaged_is_none(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "seconds.json"
    path.write_text(damaged)
    assert read_seconds(path) == {}
    write_seconds(path, {"a": 1.0})
    assert json.loads(path.read_text()) == {"a": 1.0}


@pytest.mark.slow
def test_several_processes_measure_and_run_what_is_long_first(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n")
    marks = {"a": "slow", "b": "slow", "c": "slow(9)", "d": "usefixtures()"}
    for name, mark in marks.items():
        seconds = 0.3 if name == "d" else 0.0
        text = f"import pytest, time\npytestmark = pytest.mark.{mark}\n"
        text += f"def test_one():\n    time.sleep({seconds})\ndef test_two(): pass\n"
        (tmp_path / f"test_{name}.py").write_text(text)

    def ran() -> list[tuple[str, str]]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        line = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "worksteal"]
        told = subprocess.run(
            [*line, "-p", "no:cacheprovider", "."],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        return re.findall(r"\[(gw\d)\].* PASSED test_(.)\.py", told.stdout)

    def begins_with(wanted: str, order: list[tuple[str, str]]) -> bool:
        its_process = next(process for process, name in order if name == wanted)
        return next(name for process, name in order if process == its_process) == wanted

    order = ran()
    assert sorted(name for _, name in order) == sorted("aabbccdd")
    assert begins_with("c", order), "its mark tells the most seconds"
    assert read_seconds(tmp_path / "build" / "test-seconds.json")["test_d.py"] >= 0.3
    assert begins_with("d", ran())

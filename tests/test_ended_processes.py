"""What becomes of a run of tests when one of them ends its process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TESTS = """
import ctypes, os, pathlib

def first():
    seen = pathlib.Path(__file__).with_name("seen")
    is_first = not seen.exists()
    seen.touch()
    return is_first

def test_before():
    pass

def test_ends():
    if first():
        {how}

def test_after():
    pass
"""


@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        # In C: no signal handler of Python runs.
        ("ctypes.CDLL(None).pause()", 0, "HUNG test_it.py::test_ends"),
        ("os.abort()", 1, "CRASHED test_it.py::test_ends"),
    ],
)
def test_who_waits_for_ever_is_run_again_and_who_crashes_fails_the_run(
    tmp_path: Path, how: str, status: int, told: str
) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS.format(how=how))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_exit_on_timeout = true\n")
    command = [sys.executable, "-m", "pytest", "-n", "1", "--reruns", "1"]
    run = subprocess.run(
        [*command, "-o", "faulthandler_timeout=3"],
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told in run.stdout
    assert "3 passed, 1 rerun" in run.stdout
    assert run.returncode == status

"""A short storm of faults on Apache's bookies, and the end of a storm that is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.interop, pytest.mark.slow(60)]

ROOT = Path(__file__).resolve().parent.parent


def storm(*arguments: str, temporary: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torture.bookkeeper", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
    )


def test_nothing_acknowledged_is_lost_when_a_bookie_and_the_broker_are_killed(
    tmp_path: Path,
) -> None:
    # Kills a bookie in the first round and the broker in the second one.
    process = storm("--rounds", "2", "--seed", "16", "--verbose", temporary=tmp_path)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "kill bookie-3 for" in output and "kill broker for" in output
    assert ", 0 broken promises, " in output


def test_an_interrupted_storm_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    process = storm("--rounds", "1", "--seed", "1", temporary=tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("bookkeeper-*/bookie-4")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    started = psutil.Process(process.pid).children(recursive=True)
    assert started
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert not list(tmp_path.iterdir())
    assert str(tmp_path) not in Path("/proc/mounts").read_text()

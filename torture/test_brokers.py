"""A short storm of faults on three brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.slow(60)]

ROOT = Path(__file__).resolve().parent.parent


def test_nothing_is_lost_and_each_topic_has_one_owner_under_faults_of_three_brokers(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torture.brokers", "--rounds", "5", "--seed", "18436", "--verbose"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert ", 0 broken promises, " in done.stdout
    for fault in ("kill", "pause", "restart", "session", "stop", "transfer"):
        assert f" {fault} 1" in done.stdout
    assert "cut-one-way zookeeper to broker-2" in done.stdout

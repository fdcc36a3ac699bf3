"""A broker does not outlive whoever started it, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
STARTS = """
import sys, time
from pathlib import Path
from harness.brokers import Broker
broker = Broker("pyxbroker", Path(sys.argv[1]))
broker.start()
print(broker.process.pid, flush=True)
time.sleep(60)
"""


def runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_it_is_killed_with_who_started_it(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", STARTS, str(tmp_path / "broker")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    try:
        assert started.stdout is not None
        broker = int(started.stdout.readline())
        assert runs(broker)
        started.kill()
        started.wait(30)
        deadline = time.monotonic() + 20
        while runs(broker):
            assert time.monotonic() < deadline, "it runs on"
            time.sleep(0.01)
    finally:
        started.kill()
        started.wait()

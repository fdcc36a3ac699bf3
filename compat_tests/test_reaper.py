"""A broker does not outlive whoever started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
STARTS = """
import sys, time
from pathlib import Path
from harness.brokers import Broker
broker = Broker("pyxbroker", Path(sys.argv[1]))
broker.start()
print(broker.process.pid, flush=True)
{}
"""


def runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_it_is_killed_with_who_started_it(tmp_path: Path, how: signal.Signals | None) -> None:
    then = "time.sleep(60)" if how is not None else ""  # it ends without tidying up
    started = subprocess.Popen(
        [sys.executable, "-c", STARTS.format(then), str(tmp_path / "broker")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    try:
        assert started.stdout is not None
        broker = int(started.stdout.readline())
        if how is not None:
            assert runs(broker)
            started.send_signal(how)
        started.wait(30)
        deadline = time.monotonic() + 20
        while runs(broker):
            assert time.monotonic() < deadline, "it runs on"
            time.sleep(0.01)
    finally:
        started.kill()
        started.wait()

"""Ends the processes and deletes the directories of this process when it ends, even by SIGKILL.

A broker is a session of its own, so it outlives a parent that is killed before it can clean up. A
small process holds one end of a pipe. When the other end closes, it kills the process groups and
then deletes the directories that are still registered.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

REAPER = """
import os, signal, sys
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
registered = {"group": set(), "directory": set()}
for line in sys.stdin:
    event, kind, name = line.rstrip("\\n").split(" ", 2)
    (registered[kind].add if event == "began" else registered[kind].discard)(name)
for group in registered["group"]:
    try:
        os.killpg(int(group), signal.SIGKILL)
    except ProcessLookupError:
        pass
if registered["directory"]:
    import shutil, time
    for directory in registered["directory"]:
        for _ in range(50):  # until a process that was killed has ended
            shutil.rmtree(directory, ignore_errors=True)
            if not os.path.exists(directory):
                break
            time.sleep(0.1)
"""


def began(group: int) -> None:
    """Register a process group that must not outlive this process."""
    _send(f"began group {group}")


def ended(group: int) -> None:
    """Forget a process group that has ended: its number may be used again soon."""
    _send(f"ended group {group}")


def created(directory: Path) -> None:
    """Register a directory that must not outlive this process."""
    _send(f"began directory {directory}")


def deleted(directory: Path) -> None:
    """Forget a directory that is deleted, or that stays."""
    _send(f"ended directory {directory}")


def _send(line: str) -> None:
    pipe = _reaper().stdin
    assert pipe is not None, "the process was started with a pipe"
    pipe.write(line + "\n")
    pipe.flush()


@cache
def _reaper() -> subprocess.Popen[str]:
    # Only this process may hold the other end of the pipe; Python's descriptors are not inherited.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", REAPER],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

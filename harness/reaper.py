"""Ends what a process has started when that process ends, however it does: SIGKILL, too.

A broker is a session of its own, so it outlives whoever started it and was killed before it could
tidy up. A small process beside them holds one end of a pipe; when the other end closes, it kills
the groups that it was told of and not told that they ended.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

REAPER = """
import os, signal, sys
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    what, group = line.split()
    (groups.add if what == "began" else groups.discard)(int(group))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


def began(group: int) -> None:
    """A process group that is not to outlive this process."""
    _tell(f"began {group}")


def ended(group: int) -> None:
    """It has ended, and its number may soon be somebody else's."""
    _tell(f"ended {group}")


def _tell(line: str) -> None:
    pipe = _reaper().stdin
    assert pipe is not None, "it was asked for"
    pipe.write(line + "\n")
    pipe.flush()


@cache
def _reaper() -> subprocess.Popen[str]:
    # That of this process: nobody else may have the other end of the pipe.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", REAPER],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

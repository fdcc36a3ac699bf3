"""Busy loops that yield to everybody, one for each core: no processor halts while they run.

A virtual processor that was halted takes milliseconds to wake, which is no figure of a broker.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# A kernel that groups processes by session shares a core between sessions first and obeys the
# niceness of a process only within its own: so the session of a burner has to be nice as well.
# It ends with who started it, however that ends.
BURNER = """
import os, sys
parent = int(sys.argv[1])
os.nice(19)
if os.path.exists("/proc/self/autogroup"):
    with open("/proc/self/autogroup", "w") as group:
        group.write("19")
print(flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


FIRST = -19  # a niceness


def come_first(pid: int) -> None:
    """A process, and what it starts from now on, has the processors before all others. Raises
    PermissionError for who may not ask for that.
    """
    for thread in threads_of(pid):
        os.setpriority(os.PRIO_PROCESS, thread, FIRST)


def threads_of(pid: int) -> list[int]:
    """The ids of a process's threads."""
    return [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]


@contextlib.contextmanager
def burners(count: int | None = None) -> Iterator[list[int]]:
    """Runs them (one for each core by default); their process ids."""
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(len(os.sched_getaffinity(0)) if count is None else count):
            one = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", BURNER, str(os.getpid())],
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            stack.callback(one.kill)
            assert one.stdout is not None
            one.stdout.readline()  # It is nice from here on.
            started.append(one.pid)
        yield started

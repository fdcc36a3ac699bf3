"""The kernel's statistics about this process."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
# Fields of /proc/PID/stat after the name, see proc_pid_stat(5); 0 is the third field of the file.
USER_TICKS, SYSTEM_TICKS, START_TICKS, VIRTUAL_BYTES, RESIDENT_PAGES = 11, 12, 19, 20, 21


class ProcessStats(NamedTuple):
    """Memory, CPU and files of this process."""

    virtual_bytes: int
    resident_bytes: int
    start_s: float  # since the epoch
    cpu_s: float  # user and system
    open_files: int
    open_files_max: int


def process_stats() -> ProcessStats | None:
    """Return current values, or None without /proc. This blocks: not for the event loop."""
    own = PROC / "self"
    if not own.exists():
        return None
    # The name may contain spaces and parentheses.
    fields = (own / "stat").read_bytes().rpartition(b")")[2].split()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return ProcessStats(
        virtual_bytes=int(fields[VIRTUAL_BYTES]),
        resident_bytes=int(fields[RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
        start_s=_booted_s() + int(fields[START_TICKS]) / ticks_per_s,
        cpu_s=(int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / ticks_per_s,
        open_files=_count(own / "fd"),
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def _count(directory: Path) -> int:
    with os.scandir(directory) as entries:
        return sum(1 for _ in entries)


def _booted_s() -> float:
    """Return when the machine booted, in seconds since the epoch."""
    _, _, rest = (PROC / "stat").read_bytes().partition(b"\nbtime ")
    return float(rest.split(None, 1)[0])

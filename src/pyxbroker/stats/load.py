"""What this process takes of its machine, as a load report tells it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyxbroker.stats.process import PROC, ProcessStats, process_stats

MIB = 1 << 20
KBIT = 1_000
FRESH_S = 1.0  # whoever asks so soon after another is told the same
RECEIVED, SENT = 0, 8  # columns of /proc/net/dev, see proc_pid_net(5)
LOOPBACK = "lo"


class Usage(NamedTuple):
    """Over the time since the look before; of the first one, since the process was started."""

    cpu_percent: float  # of one core
    cpu_percent_max: float  # of all cores
    memory_mib: float
    memory_mib_max: float  # of the machine
    kbit_in: float  # per second, of all interfaces of the machine but loopback
    kbit_out: float
    start_s: float  # of the process, since the epoch


class Look(NamedTuple):
    """What counters said."""

    at_s: float  # since the epoch
    cpu_s: float
    received: int
    sent: int


class Load:
    """Looks at the counters of the kernel, and remembers the look before.

    Of a very short time counters tell nothing, and who asks often must not take it from others.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        process: Callable[[], ProcessStats | None] = process_stats,
        directory: Path = PROC,
    ) -> None:
        self._clock = clock
        self._process = process
        self._directory = directory
        self._before: Look | None = None
        self._told: Usage | None = None

    def usage(self) -> Usage | None:
        """None where there is no /proc. Waits for the kernel: not for the loop."""
        told, before = self._told, self._before
        if told and before and 0 <= self._clock() - before.at_s < FRESH_S:
            return told
        process = self._process()
        if process is None:
            return None
        received, sent = _interfaces(self._directory / "net" / "dev")
        now = Look(self._clock(), process.cpu_s, received, sent)
        before = before or Look(process.start_s, 0.0, received, sent)
        self._before = now
        # The clock may have been set back.
        seconds = max(now.at_s - before.at_s, 0.001)
        self._told = Usage(
            100 * max(now.cpu_s - before.cpu_s, 0.0) / seconds,
            100.0 * (os.cpu_count() or 1),
            process.resident_bytes / MIB,
            _memory_bytes(self._directory / "meminfo") / MIB,
            8 * max(now.received - before.received, 0) / seconds / KBIT,
            8 * max(now.sent - before.sent, 0) / seconds / KBIT,
            process.start_s,
        )
        return self._told


def percent(used: float, limit: float) -> float:
    """How much of a limit is used; 0 where the limit is not known."""
    return 100 * used / limit if limit else 0.0


def _interfaces(path: Path) -> tuple[int, int]:
    """Bytes that came and went, since the machine was started."""
    received = sent = 0
    for line in path.read_text().splitlines()[2:]:
        name, _, columns = line.partition(":")
        numbers = columns.split()
        if name.strip() != LOOPBACK and len(numbers) > SENT:
            received += int(numbers[RECEIVED])
            sent += int(numbers[SENT])
    return received, sent


def _memory_bytes(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0

"""Use of the machine by this process, for load reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyxbroker.stats.process import PROC, ProcessStats, process_stats

MIB = 1 << 20
KBIT = 1_000
KBIT_PER_MBIT = 1_000
KBIT_PER_GBIT = 1_000_000
FRESH_S = 1.0  # an answer is reused for this time
RECEIVED, SENT = 0, 8  # columns of /proc/net/dev, see proc_pid_net(5)
LOOPBACK = "lo"


class Usage(NamedTuple):
    """Use since the measurement before; at the first one, since the start of the process."""

    cpu_percent: float  # of one core
    cpu_percent_max: float  # of all cores
    memory_mib: float
    memory_mib_max: float  # of the machine
    kbit_in: float  # per second, of all interfaces of the machine but loopback
    kbit_out: float
    start_s: float  # of the process, since the epoch
    kbit_max: float = 0.0  # per second and direction, of the interfaces; 0: unknown


class Counters(NamedTuple):
    """Counters of the kernel at one moment."""

    at_s: float  # since the epoch
    cpu_s: float
    received: int
    sent: int


class Load:
    """Reads counters of the kernel and compares them with the previous ones.

    Rates over a very short time are meaningless, so an answer is reused for FRESH_S.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        process: Callable[[], ProcessStats | None] = process_stats,
        directory: Path = PROC,
        interfaces: Path = Path("/sys/class/net"),
        nic_gbit: float | None = None,
    ) -> None:
        self._interfaces = interfaces
        self._nic_gbit = nic_gbit
        self._clock = clock
        self._process = process
        self._directory = directory
        self._before: Counters | None = None
        self._usage: Usage | None = None

    def usage(self) -> Usage | None:
        """Return the use, or None without /proc. This blocks: do not call it on the event loop."""
        usage, before = self._usage, self._before
        if usage and before and 0 <= self._clock() - before.at_s < FRESH_S:
            return usage
        process = self._process()
        if process is None:
            return None
        received, sent = _interfaces(self._directory / "net" / "dev")
        now = Counters(self._clock(), process.cpu_s, received, sent)
        before = before or Counters(process.start_s, 0.0, received, sent)
        self._before = now
        # The system clock may have been set back.
        seconds = max(now.at_s - before.at_s, 0.001)
        self._usage = Usage(
            100 * max(now.cpu_s - before.cpu_s, 0.0) / seconds,
            100.0 * (os.cpu_count() or 1),
            process.resident_bytes / MIB,
            _memory_bytes(self._directory / "meminfo") / MIB,
            8 * max(now.received - before.received, 0) / seconds / KBIT,
            8 * max(now.sent - before.sent, 0) / seconds / KBIT,
            process.start_s,
            self._kbit_max(),
        )
        return self._usage

    def _kbit_max(self) -> float:
        """Return the sum of the speeds of the machine's interfaces, or that of the settings."""
        names = _names(self._directory / "net" / "dev")
        if self._nic_gbit is not None:
            return self._nic_gbit * KBIT_PER_GBIT * len(names)
        return sum(_mbit(self._interfaces / name) for name in names) * KBIT_PER_MBIT


def percent(used: float, limit: float) -> float:
    """Return the used part of a limit in percent, or 0 if the limit is unknown."""
    return 100 * used / limit if limit else 0.0


def _interfaces(path: Path) -> tuple[int, int]:
    """Return the bytes received and sent since the machine booted."""
    received = sent = 0
    for line in path.read_text().splitlines()[2:]:
        name, _, columns = line.partition(":")
        numbers = columns.split()
        if name.strip() != LOOPBACK and len(numbers) > SENT:
            received += int(numbers[RECEIVED])
            sent += int(numbers[SENT])
    return received, sent


def _names(path: Path) -> list[str]:
    """Return the interfaces of the machine but loopback."""
    names = (line.partition(":")[0].strip() for line in path.read_text().splitlines()[2:])
    return [name for name in names if name != LOOPBACK]


def _mbit(interface: Path) -> float:
    """Return the speed of an interface in Mbit/s; 0 if its driver does not know it."""
    try:
        return max(float((interface / "speed").read_text()), 0.0)
    except (OSError, ValueError):
        return 0.0


def _memory_bytes(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0

"""What the kernel says of this process."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from pyxbroker.stats.process import process_stats


def test_the_kernel_is_understood() -> None:
    # Both are there, and differ.
    while (used := os.times()).user < used.system + 0.5 or used.system < 0.05:
        sum(range(10_000))
        Path("/proc/self/maps").read_bytes()
    before = os.times()
    found = process_stats()
    after = os.times()
    assert found is not None
    # The kernel counts in ticks of a hundredth.
    assert before.user + before.system - 0.03 <= found.cpu_s
    assert found.cpu_s <= after.user + after.system + 0.03
    assert 0 < found.resident_bytes <= found.virtual_bytes
    assert found.resident_bytes <= 1.1 * 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert time.time() - 7 * 86_400 < found.start_s < time.time()
    assert 3 <= found.open_files < found.open_files_max

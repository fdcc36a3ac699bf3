"""entry.pyx: runs of entries and of positions."""

from __future__ import annotations

from typing import Any

from bench.micro import material
from pyxbroker.entry import AckRun, EntryRun


def test_run_of_one_entry(benchmark: Any) -> None:
    section = material.section()
    assert benchmark(EntryRun.of, section).bytes == len(section)


def test_run_of_1000_positions(benchmark: Any) -> None:
    positions = [(1, entry) for entry in range(1000)]
    assert len(benchmark(AckRun.of, positions)) == 1000

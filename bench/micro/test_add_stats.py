"""add_stats.pyx: cost of a managed ledger's statistics per run of messages."""

from __future__ import annotations

from typing import Any

import pytest

from bench.micro import material
from bench.micro.test_sequence_ids import kept_run
from pyxbroker.add_stats import AddStats, PublishLatency


@pytest.mark.parametrize("runs", [1000])
def test_run_of_100_is_counted(benchmark: Any, line: material.Line, runs: int) -> None:
    run = kept_run(line)
    stats = AddStats(PublishLatency())

    def count() -> None:
        for _ in range(runs):
            stats.on_added(run)

    benchmark(count)
    assert stats.last_period() is not None


def test_last_period_is_told(benchmark: Any, line: material.Line) -> None:
    stats = AddStats(PublishLatency(0.001))
    stats.on_added(kept_run(line))
    assert len(benchmark(stats.last_period)) > 0

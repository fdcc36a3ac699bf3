"""metric_lines.pyx: one metric of a block of topics."""

from __future__ import annotations

from typing import Any

import pytest

from pyxbroker.metric_lines import lines

ROWS = 32
LABEL = '{cluster="standalone",namespace="public/default",topic="persistent://a/b/topic-%d"} '
LABELS = tuple((LABEL % number).encode() for number in range(ROWS))


@pytest.mark.parametrize("number", [0, 123_456, 0.0, 1234.5678])
def test_block(benchmark: Any, number: float) -> None:
    rows = tuple((number,) for _ in range(ROWS))
    text = benchmark(lines, b"pulsar_storage_write_latency_le_0_5", LABELS, rows, 0)
    assert text.count(b"\n") == ROWS

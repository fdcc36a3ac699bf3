"""Fixtures of the micro-benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # for the manual loop

from bench.micro.material import Line
from pyxbroker import _native


@pytest.fixture
def line() -> Iterator[Line]:
    """A connection and its client socket."""
    line = Line()
    yield line
    line.close()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[_native.Storage]:
    """A storage that is large enough not to flush during a measurement."""
    opened = _native.Storage(
        tmp_path / "journal",
        tmp_path / "ledgers",
        journal_file_bytes=64 << 20,
        dirty_bytes_max=256 << 20,
        cache_bytes_max=512 << 20,
        entry_bytes_max=6 << 20,
        journal_sync_data=False,
    )
    yield opened
    opened.close(flush=False)

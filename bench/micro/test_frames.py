"""frames.pyx: finding frames and checking payloads."""

from __future__ import annotations

from typing import Any

import pytest

from bench.micro import material
from pyxbroker import frames


def test_scan_64_frames_of_1_kib(benchmark: Any) -> None:
    data = b"".join(material.send(i, material.section()) for i in range(64))
    found, consumed, error = benchmark(frames.scan, data, material.FRAME_BYTES_MAX)
    assert (len(found), consumed, error) == (64, len(data), None)


@pytest.mark.parametrize("size", [100, 1024, 128 * 1024, 5 * 1024 * 1024])
def test_check_payload(benchmark: Any, size: int) -> None:
    section = material.section(bytes(size))
    assert benchmark(frames.check_payload, section)[0] == 0

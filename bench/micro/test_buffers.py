"""buffers.pyx: output vectors of sockets."""

from __future__ import annotations

from typing import Any

from pyxbroker.buffers import OutVector

from bench.micro.material import Line
from pyxbroker.commands import build_receipt_py

PIECES = 100


def test_100_receipts_in_one_write(benchmark: Any, line: Line) -> None:
    receipt = build_receipt_py(1, 10**6, 0, 10, 10**6)
    out = OutVector()

    def send() -> int:
        for _ in range(PIECES):
            out.append(receipt)
        assert out.send_to(line.fd) == 0
        return line.read_answers()

    assert benchmark(send) == PIECES * len(receipt)


def test_100_entries_of_1_kib_lent(benchmark: Any, line: Line) -> None:
    entry = bytes(1024)
    out = OutVector()

    def send() -> int:
        for _ in range(PIECES):
            out.append(b"header of a message frame")
            out.lend(entry, entry)
        assert out.send_to(line.fd) == 0
        return line.read_answers()

    assert benchmark(send) == PIECES * (1024 + 25)

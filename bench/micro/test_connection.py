"""connection.pyx: from one readable event to the receipts on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from bench.micro import material
from bench.micro.material import Line, Producer

# frames per read, messages per frame, bytes of payload
SHAPES = {"1 of 1 KiB": (1, 1, 1024), "64 of 1 KiB": (64, 1, 1024), "1 batch": (1, 120, 128 << 10)}


@pytest.mark.parametrize("shape", SHAPES)
def test_sends_read_and_answered(benchmark: Any, line: Line, shape: str) -> None:
    frames, messages, size = SHAPES[shape]
    producer = Producer(line.connection, 1)
    line.connection.producers[1] = producer
    section = material.section(bytes(size), messages if messages > 1 else 0)
    sent = b"".join(material.send(i, section, messages) for i in range(frames))

    def turn() -> int:
        assert line.client.send(sent) == len(sent)
        line.readable()
        return line.read_answers()

    assert benchmark(turn) > 20 * frames
    assert producer.msg_in % (frames * messages) == 0
    assert producer.pending_sends == 0

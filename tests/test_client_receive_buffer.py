"""The memory that the client reads into: what comes in whatever pieces is all there."""

from __future__ import annotations

import random

import pytest

from pyxbroker.client import receive_buffer
from pyxbroker.client.receive_buffer import READ_BYTES, RETAINED_BYTES_MAX, ReceiveBuffer


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_that_came_in_their_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_buffer, "READ_BYTES", 64)
    monkeypatch.setattr(receive_buffer, "RETAINED_BYTES_MAX", 256)
    chance = random.Random(seed)
    received, expected = ReceiveBuffer(), b""
    for _ in range(500):
        room = received.room()
        assert len(room)
        data = chance.randbytes(chance.randint(1, len(room)))
        room[: len(data)] = data
        received.add(len(data))
        expected += data
        assert received.waiting() == expected
        done = chance.choice((0, len(expected), chance.randint(0, len(expected))))
        received.consume(done)
        expected = expected[done:]
        assert received.waiting() == expected


def test_a_large_frame_gets_its_memory_and_gives_it_back() -> None:
    received = ReceiveBuffer()
    came = 0
    while came <= 2 * RETAINED_BYTES_MAX:
        size = len(received.room())
        received.add(size)
        came += size
    received.consume(came)
    assert len(received.room()) == READ_BYTES

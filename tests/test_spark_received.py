"""Memory that the Spark connector reads into: what comes in whatever pieces is all there."""

from __future__ import annotations

import random

import pytest

from pyxbroker.spark import broker_connection
from pyxbroker.spark.broker_connection import KEPT_BYTES_MAX, READ_BYTES, Received


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_that_came_in_their_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_connection, "READ_BYTES", 64)
    monkeypatch.setattr(broker_connection, "KEPT_BYTES_MAX", 256)
    chance = random.Random(seed)
    received, expected = Received(), b""
    for _ in range(500):
        room = received.room()
        assert len(room)
        data = chance.randbytes(chance.randint(1, len(room)))
        room[: len(data)] = data
        received.add(len(data))
        expected += data
        assert received.waiting() == expected
        done = chance.choice((0, len(expected), chance.randint(0, len(expected))))
        received.pass_over(done)
        expected = expected[done:]
        assert received.waiting() == expected


def test_a_large_frame_gets_its_memory_and_gives_it_back() -> None:
    received = Received()
    came = 0
    while came <= 2 * KEPT_BYTES_MAX:
        size = len(received.room())
        received.add(size)
        came += size
    received.pass_over(came)
    assert len(received.room()) == READ_BYTES

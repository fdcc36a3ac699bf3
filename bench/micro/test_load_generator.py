"""load_generator.pyx: frames that are sent, receipts and messages that are read."""

from __future__ import annotations

from typing import Any

import pytest
from harness import wire

from pyxbroker.load_generator import (
    LoadConnection,
    LoadConsumer,
    LoadPayload,
    LoadProducer,
    LoadStats,
)

COUNT = 1000


def connection(batch_max: int) -> LoadConnection:
    made = LoadConnection()
    payload = LoadPayload(b"x" * 1024, batch_max)
    producer = LoadProducer(0, b"producer", payload, LoadStats(), COUNT)
    producer.schedule(0, 0)
    made.add_producer(producer)
    return made


def receipts(step: int) -> bytes:
    return b"".join(
        wire.command(wire.SEND_RECEIPT, {1: 0, 2: number, 3: wire.message_id(1, number)})
        for number in range(0, COUNT, step)
    )


@pytest.mark.parametrize("batch_max", [1, COUNT], ids=["unbatched", "batched"])
def test_thousand_messages_and_their_receipts(benchmark: Any, batch_max: int) -> None:
    data = receipts(batch_max)

    def prepare() -> tuple[tuple[LoadConnection], dict[str, Any]]:
        return (connection(batch_max),), {}

    def work(made: LoadConnection) -> int:
        while made.produce(256 << 10):
            pass
        made.receive(data)
        return int(made.outstanding)

    assert benchmark.pedantic(work, setup=prepare, rounds=50) == 0


def test_thousand_messages_are_received(benchmark: Any) -> None:
    stats = LoadStats()
    made = LoadConnection()
    made.add_consumer(LoadConsumer(0, stats, COUNT))
    command = wire.encode({1: wire.MESSAGE, 9: wire.encode({1: 0, 2: wire.message_id(1, 1)})})
    sent = wire.send(0, 0, wire.metadata("p", 0, 1), b"x" * 1024)
    section = next(iter(wire.FrameReader().feed(sent))).rest
    head = (4 + len(command) + len(section)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    data = (head + command + section) * COUNT

    def work() -> bytes:
        made.receive(data)
        return made.take_answers()

    assert benchmark(work)
    assert stats.messages % COUNT == 0

"""delivery.pyx: delivering a batch of entries to one consumer."""

from __future__ import annotations

from typing import Any

import pytest

from bench.micro import material
from bench.micro.material import Line
from bench.micro.test_storage import fill
from pyxbroker import _native
from pyxbroker.ackset import AckSet
from pyxbroker.delivery import ConsumerState, Holders, peek_entry
from pyxbroker.entry import AckRun
from pyxbroker.storage import StorageReader

ENTRIES = 100


@pytest.mark.parametrize("shared", [False, True])
def test_100_entries_of_1_kib_to_a_socket_and_acknowledged(
    benchmark: Any, line: Line, storage: _native.Storage, shared: bool
) -> None:
    fill(storage, ENTRIES, material.section())
    batch = StorageReader(storage).read_cached(1, 0, ENTRIES - 1, ENTRIES, 1 << 30)
    assert batch is not None
    consumer = ConsumerState(line.connection, 1)
    holders = Holders()
    if shared:
        holders.add(consumer)
    consumer.tracks_pending = shared
    acks = AckSet(1, -1)
    answer = AckRun.of([(1, entry) for entry in range(ENTRIES)])

    def deliver() -> int:
        left_out: list[tuple[int, int]] = []
        consumer.permits = ENTRIES
        assert consumer.deliver(batch, 0, ENTRIES, acks, {}, left_out) == ENTRIES
        assert not left_out
        line.loop.run_soon()
        received = line.read_answers()
        if shared:
            holders.settle(answer, consumer, acks, {})
        else:
            consumer.count_acked(answer)
        assert consumer.unacked_messages == 0
        return received

    assert benchmark(deliver) > ENTRIES * 1024


def test_peek_entry(benchmark: Any, storage: _native.Storage) -> None:
    fill(storage, 1, material.section(messages=7))
    batch = StorageReader(storage).read_cached(1, 0, 0, 1, 1 << 30)
    assert batch is not None
    assert benchmark(peek_entry, batch, 0).num_messages == 7

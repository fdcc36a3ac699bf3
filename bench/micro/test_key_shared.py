"""keys.pyx: key hashes, and dispatch to the owners of keys."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from bench.micro import material
from bench.micro.material import Line
from pyxbroker import _native
from pyxbroker.ackset import AckSet
from pyxbroker.delivery import ConsumerState, dispatch_by_key, dispatch_waiting
from pyxbroker.entry import AckRun, EntryBatch, EntryRun
from pyxbroker.keys import KeyShared, murmur3_of
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.storage import StorageReader, StorageWriter

ENTRIES = 100
CONSUMERS = 16


def test_murmur3_of_16_bytes(benchmark: Any) -> None:
    assert benchmark(murmur3_of, b"0123456789abcdef") > 0


@pytest.fixture
def batch(storage: _native.Storage) -> EntryBatch:
    """Return entries of 1 KiB, each with a key of its own."""
    writer = StorageWriter(storage)
    for number in range(ENTRIES):
        metadata = pb.MessageMetadata(
            producer_name="bench-1", sequence_id=1, publish_time=1, partition_key=f"key-{number}"
        ).SerializeToString()
        data = len(metadata).to_bytes(4, "big") + metadata + material.PAYLOAD
        run = EntryRun.of(data)
        run.ledger_id, run.first_entry_id = 1, number
        writer.add_run(run, number - 1, 0, 0, 0)
    writer.commit()
    found = StorageReader(storage).read_cached(1, 0, ENTRIES - 1, ENTRIES, 1 << 30)
    assert found is not None and found.count == ENTRIES
    return found


class Consumers:
    """Sixteen consumers on one connection; each owns a sixteenth of the hashes."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.keys = KeyShared(True)
        self.slots: list[ConsumerState | None] = [None]
        for slot in range(1, CONSUMERS + 1):
            consumer = ConsumerState(line.connection, slot)
            consumer.keys, consumer.slot = self.keys, slot
            self.slots.append(consumer)
        last = 65535
        slots = range(1, CONSUMERS + 1)
        ends = array("H", [last * slot // CONSUMERS for slot in slots])
        self.keys.set_owners(ends, array("i", slots))

    def settle(self) -> None:
        """Read everything as the client, and acknowledge it."""
        self.line.loop.run_soon()
        self.line.read_answers()
        for consumer in self.slots[1:]:
            assert consumer is not None
            consumer.settle(AckRun.of(consumer.pending_positions()))

    def give_permits(self, permits: int) -> None:
        for consumer in self.slots[1:]:
            assert consumer is not None
            consumer.permits = permits


def test_100_entries_dealt_to_16_consumers_and_acknowledged(
    benchmark: Any, line: Line, batch: EntryBatch
) -> None:
    consumers = Consumers(line)
    acks = AckSet(1, -1)

    def round_of() -> int:
        consumers.give_permits(ENTRIES)
        sent = dispatch_by_key(batch, consumers.slots, consumers.keys, acks, {}, [], 10_000)
        assert consumers.keys.waiting == 0
        consumers.settle()
        return sent

    assert benchmark(round_of) == ENTRIES


def test_100_entries_that_wait_first(benchmark: Any, line: Line, batch: EntryBatch) -> None:
    consumers = Consumers(line)
    acks = AckSet(1, -1)
    keys = consumers.keys

    def round_of() -> int:
        consumers.give_permits(0)
        dispatch_by_key(batch, consumers.slots, keys, acks, {}, [], 10_000)
        assert keys.waiting == ENTRIES
        consumers.give_permits(ENTRIES)
        planned = sum(len(keys.plan(slot, ENTRIES, 8)) for slot in range(1, CONSUMERS + 1))
        assert planned >= CONSUMERS
        sent = dispatch_waiting(batch, consumers.slots, keys, acks, {}, [])
        consumers.settle()
        return sent

    assert benchmark(round_of) == ENTRIES

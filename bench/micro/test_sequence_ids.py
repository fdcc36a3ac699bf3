"""sequence_ids.pyx: cost of deduplication per run, and of its recovery when a topic is opened."""

from __future__ import annotations

from typing import Any

from bench.micro import material
from pyxbroker.connection import ProducerState
from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.sequence_ids import SequenceIds, collect_highest

ENTRIES = 100


class Keeping(ProducerState):
    """A producer that stores a copy of its last run."""

    kept: EntryRun

    def publish(self, run: EntryRun) -> None:
        run.copy_data()
        self.kept = run


def kept_run(line: material.Line) -> EntryRun:
    producer = Keeping(line.connection, 1)
    line.connection.producers[1] = producer
    sent = b"".join(material.send(i, material.section()) for i in range(ENTRIES))
    assert line.client.send(sent) == len(sent)
    line.readable()
    assert producer.kept.count == ENTRIES
    return producer.kept


def test_run_of_100_that_is_new(benchmark: Any, line: material.Line) -> None:
    run = kept_run(line)

    def take_and_confirm() -> SequenceIds:
        ids = SequenceIds(-1)
        assert ids.take(run)
        ids.confirm(run)
        return ids

    assert benchmark(take_and_confirm).persisted == ENTRIES - 1


def test_replay_of_100(benchmark: Any, line: material.Line) -> None:
    batch = EntryBatch.of_run(kept_run(line))

    def read() -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        collect_highest(batch, found, 1024)
        return found

    assert len(benchmark(read)) == 1


def test_metadata_before_100(benchmark: Any, line: material.Line) -> None:
    data = kept_run(line)

    def prefix() -> int:
        run = data.without(())
        assert run is not None
        return run.add_broker_metadata(1_700_000_000_000, 41)

    assert benchmark(prefix) == 41 + ENTRIES

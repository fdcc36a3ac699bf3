"""publish_checks.pyx: checking the metadata of each SEND of a run."""

from __future__ import annotations

from typing import Any

from bench.micro import material
from pyxbroker.connection import ProducerState
from pyxbroker.entry import EntryRun
from pyxbroker.publish_checks import forbidden

ENTRIES = 100


class Keeping(ProducerState):
    """A producer that stores a copy of its last run."""

    kept: EntryRun

    def publish(self, run: EntryRun) -> None:
        run.copy_data()
        self.kept = run


def test_run_of_100_that_may_be_published(benchmark: Any, line: material.Line) -> None:
    producer = Keeping(line.connection, 1)
    line.connection.producers[1] = producer
    sent = b"".join(material.send(i, material.section()) for i in range(ENTRIES))
    assert line.client.send(sent) == len(sent)
    line.readable()
    assert producer.kept.count == ENTRIES
    assert benchmark(forbidden, producer.kept, False, 1 << 20, 1000) == []

"""Writing exactly once, based on the broker's deduplication.

Each partition of a topic has its own producer. Its name and sequence ids are derived from Spark's
batch and task (sequence.py). Messages are not batched: the official client sets a sequence id only
for the first message of a batch, and batches differ when rows are sent again. When a producer
connects, the broker returns its last sequence id. Rows up to that id were stored by an earlier run
of the task, and are left out.

A producer of the same name may still be connected, from a task that Spark gave up. The task waits
until the broker closes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyxbroker.spark.entry_producer import EntryProducer, key_text, needs_entry
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.official import (
    client_of,
    close_client,
    register_schema,
    schema_of,
    translate_errors,
)
from pyxbroker.spark.options import Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.producers import check_room, producer_settings, router_of, send
from pyxbroker.spark.receipts import Receipts
from pyxbroker.spark.sequence import Id, Part, Rows, id_of
from pyxbroker.spark.topics import name_of

BUSY_S = 75.0
"""Longest wait for a name in use. A broker notices a dead client within a minute."""
RETRY_S = 0.3
FORGET_S = 300.0
"""After so long a topic without deduplication is checked again."""

NOT_THE_SAME = (
    "is not the batch that was begun before: its rows or their order differ."
    " Exactly once needs the same rows in the same order whenever Spark repeats a task; sort rows"
    " that were shuffled, for example by sortWithinPartitions. exactlyOnce=false writes this batch"
    " again."
)


@dataclass
class Partition:
    """A producer, and the progress that an earlier run of the task has stored."""

    producer: Any  # the official client's, or an EntryProducer
    stored: Id | None  # the last stored id of this batch
    is_confirmed: bool = False  # the row of `stored` was repeated, and was the same
    sent: int = -1  # the last sequence id


@dataclass
class Topic:
    """A topic that the task writes."""

    partitions: list[Partition]
    count: int  # the partitions its rows go to; 0: it is not partitioned
    is_deduplicated: bool  # the broker knows a last id, so deduplication is enabled
    names: list[str] = field(default_factory=list)
    entries: dict[int, Partition] = field(default_factory=dict)
    """Producers for messages that the client cannot send, with other names and their own ids."""

    def all(self) -> Iterator[Partition]:
        yield from self.partitions
        yield from self.entries.values()


class ExactlyOnce:
    """The producers of one task."""

    def __init__(self, options: Options, schema: tuple[str, str] | None, part: Part) -> None:
        self._options = options
        self._described = schema
        self._schema = schema_of(schema)
        self._part = part
        self._rows = Rows()
        self._router = router_of(options, part.task)
        self._topics: dict[str, Topic] = {}
        self._is_done = False
        self._client = client_of(options)
        self._receipts = Receipts(options, self._client)

    def send(self, message: Outgoing) -> None:
        topic = self._topics.get(message.topic) or self._open(message.topic)
        self._rows.add(message)
        index = self._router.partition_of(key_text(message.key), topic.count or 1)
        is_entry = needs_entry(message)
        partition = topic.partitions[index]
        if is_entry:
            partition = topic.entries.get(index) or self._open_entries(topic, index, message.topic)
        made = Id.of(self._part, self._rows.row, topic.count, self._rows.check)
        if partition.stored is not None and self._is_stored(partition, made, message.topic):
            return
        partition.sent = made.number
        if is_entry:
            partition.producer.send(message, partition.sent)
            return
        send(partition.producer, message, self._receipts, topic.names[index], partition.sent)
        if self._receipts.is_full:
            self._flush()

    def finish(self) -> None:
        for name, topic in self._topics.items():
            for partition in topic.all():
                if partition.stored is not None and not partition.is_confirmed:
                    self._refuse(name)
        self._flush()
        self._is_done = True

    def without_deduplication(self) -> list[str]:
        """Return the written topics without deduplication. Call it after `finish`."""
        return [
            name for name, topic in self._topics.items() if self._lacks_deduplication(name, topic)
        ]

    def close(self) -> None:
        for topic in self._topics.values():
            for each in topic.entries.values():
                each.producer.close()
        close_client(self._client, self._is_done)

    def _flush(self) -> None:
        self._receipts.settle()
        for topic in self._topics.values():
            for partition in topic.entries.values():
                partition.producer.flush()

    # --- what is stored -------------------------------------------------------------------------

    def _is_stored(self, partition: Partition, made: Id, topic: str) -> bool:
        """Return True if a row is stored. Raises PulsarSparkError if the stored row differs."""
        stored = partition.stored
        assert stored is not None
        if made.row < stored.row:
            return True
        if made.row == stored.row:
            if made != stored:
                self._refuse(topic)
            partition.is_confirmed = True
            return True
        if not partition.is_confirmed:
            self._refuse(topic)
        return False

    def _refuse(self, topic: str) -> None:
        raise PulsarSparkError(f"batch {self._part.epoch} for {topic} {NOT_THE_SAME}")

    # --- opening --------------------------------------------------------------------------------

    def _open(self, topic: str) -> Topic:
        check_room(self._topics)
        name = str(name_of(topic))
        names = translate_errors(
            self._options, topic, lambda: self._client.get_topic_partitions(name)
        )
        count = 0 if names == [name] else len(names)
        producers = [self._producer(each) for each in names]
        lasts = [id_of(each.last_sequence_id()) for each in producers]
        stored = [self._stored(topic, each) for each in lasts]
        # Partitions may have been added since this batch began.
        counts = {each.partitions for each in stored if each is not None}
        found = Topic(
            [Partition(*each) for each in zip(producers, stored, strict=True)],
            counts.pop() if counts else count,
            any(each is not None for each in lasts),
            names,
        )
        # The topic was created again with fewer partitions, or another producer uses the name.
        if counts or found.count > count:
            self._refuse(topic)
        register_schema(self._options, self._client, name, self._described)
        self._topics[topic] = found
        return found

    def _stored(self, topic: str, last: Id | None) -> Id | None:
        """Return a producer's last id if it belongs to this batch. Raises PulsarSparkError."""
        mine = Id.of(self._part, 0, 0, 0).epoch
        if last is not None and last.epoch > mine:
            raise PulsarSparkError(
                f"{topic} already has later batches of this query than {self._part.epoch}: was the"
                " checkpoint set back, or copied? Start with a new checkpoint, or write with"
                " exactlyOnce=false."
            )
        return last if last is not None and last.epoch == mine else None

    def _open_entries(self, topic: Topic, index: int, name: str) -> Partition:
        """Open an EntryProducer. Raises PulsarSparkError, also if the partitions have changed."""
        producer = EntryProducer(
            self._options, topic.names[index], self._described, f"{self._part.producer_name}-bytes"
        )
        made = topic.entries[index] = Partition(producer, None)
        last = id_of(producer.last_sequence_id)
        made.stored = self._stored(name, last)
        topic.is_deduplicated = topic.is_deduplicated or last is not None
        if made.stored is not None and made.stored.partitions != topic.count:
            self._refuse(name)
        return made

    def _producer(self, topic: str) -> Any:
        import pulsar

        settings = producer_settings(self._options, self._schema) | {"batching_enabled": False}
        deadline = time.monotonic() + BUSY_S

        def make() -> Any:
            while True:
                try:
                    return self._client.create_producer(
                        topic, producer_name=self._part.producer_name, **settings
                    )
                except pulsar.ProducerBusy:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(RETRY_S)

        return translate_errors(self._options, topic, make, self._described)

    # --- deduplication --------------------------------------------------------------------------

    def _lacks_deduplication(self, name: str, topic: Topic) -> bool:
        """Return True if the topic has no deduplication, which the broker's last id shows."""
        place = self._options["service.url"], name
        if topic.is_deduplicated:
            _without_deduplication.pop(place, None)
            return False
        for index, partition in enumerate(topic.partitions):
            if partition.sent >= 0:
                translate_errors(self._options, name, partition.producer.close)
                partition.producer = self._producer(topic.names[index])
                if partition.producer.last_sequence_id() == partition.sent:
                    return False
                _without_deduplication[place] = time.monotonic() + FORGET_S
                return True
        for partition in topic.entries.values():
            if partition.sent >= 0:
                partition.producer.reopen()
                if partition.producer.last_sequence_id == partition.sent:
                    return False
                _without_deduplication[place] = time.monotonic() + FORGET_S
                return True
        return False


_without_deduplication: dict[tuple[str, str], float] = {}
"""Topics without deduplication, and until when this result is used."""


def lacks_deduplication(options: Options) -> bool:
    """Return True if the topic of the options was found to have no deduplication."""
    found = _without_deduplication.get((options["service.url"], options["topic"]))
    return found is not None and time.monotonic() < found

"""Reads a range of a topic, message by message: what a task does.

The entries come over a connection of the task's own, by a reader without a cursor. A broker that
goes away, or gives the topic to another one, is looked for again, and reading goes on behind what
was handled. Whatever happens a task ends: `pollTimeoutMs` is how long nothing may come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

from pyxbroker.base.topic_name import TopicName
from pyxbroker.spark.broker_connection import BrokerConnection, Cluster
from pyxbroker.spark.chunks import Chunks, MissingChunks
from pyxbroker.spark.client_connection import ClientConnection
from pyxbroker.spark.entries import Damaged, Encrypted, Entry, Message, messages_of, read_entry
from pyxbroker.spark.errors import DataLost, NotReachable, PulsarSparkError, Refused
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range, cluster_of, is_lost, lost_sentence, uses_client
from pyxbroker.spark.positions import BEGINNING, Position

LOOK_S = 1.0
"""After so long without a message the broker is asked whether there is one."""
RETRY_S = 0.3
LOOK_BACK_ENTRIES = 16
"""How far a task first goes back for the chunks of a message; each time four times as far."""

_log = logging.getLogger(__name__)


class Read(NamedTuple):
    """A message, and the id of it."""

    position: Position
    batch_size: int
    message: Message


class RangeReader:
    """Reads one range. Iterate once, and close."""

    def __init__(self, options: Options, wanted: Range) -> None:
        self._options = options
        self._range = wanted
        self._cluster: Cluster = cluster_of(options)
        self._connection: BrokerConnection | ClientConnection | None = None
        self._permits = 0
        # Messages that a broker may send ahead of what was read.
        self._permits_max: int = options["pulsar.reader.receiverQueueSize"]
        self._handled = wanted.begin
        self._chunks = Chunks()
        self._back = 0  # how many entries before `_handled` it reads for chunks
        self._last_progress = time.monotonic()

    def close(self) -> None:
        self._disconnect()
        self._cluster.close()

    def definition(self, version: bytes) -> bytes:
        """The definition of a schema version of the topic. Raises PulsarSparkError."""
        name = TopicName.get(self._range.topic).partitioned_topic_name
        found = self._cluster.schema(name, version)
        if found is None:
            raise PulsarSparkError(f"{name} has no schema of version {version.hex()} any more.")
        return bytes(found.schema_data)

    def __iter__(self) -> Iterator[Read]:
        """Raises PulsarSparkError."""
        while not self._is_done():
            try:
                if self._connection is None:
                    self._connect()
                found = self._next()
                if found is not None:
                    yield from self._messages(*found)
                elif not self._is_more_there():
                    return
            except NotReachable as error:
                self._disconnect()
                self._cluster.close()
                self._wait(error)
            except Refused as error:
                self._disconnect()
                if not error.may_pass:
                    raise
                self._wait(error)
            except MissingChunks as missing:
                self._disconnect()
                self._look_back(missing)

    # --- the connection -------------------------------------------------------------------------

    def _connect(self) -> None:
        at = self._handled
        if at.ledger >= 0 and self._back:
            at = Position(at.ledger, at.entry - self._back) if self._back <= at.entry else BEGINNING
        elif at.ledger >= 0 and at.batch < 0:
            at = Position(at.ledger, at.entry + 1)
        if uses_client(self._options):
            self._connection = ClientConnection(self._options, self._range.topic, at)
        else:
            self._connection = self._cluster.reader(self._range.topic, at)
        self._connection.flow(self._permits_max)
        self._permits = self._permits_max

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _next(self) -> tuple[Position, bytes] | None:
        assert self._connection is not None
        if self._permits <= self._permits_max // 2:
            self._connection.flow(self._permits_max - self._permits)
            self._permits = self._permits_max
        found = self._connection.next_entry(LOOK_S)
        if found is not None:
            self._last_progress = time.monotonic()
        return found

    def _wait(self, error: PulsarSparkError) -> None:
        """Before the next try; the time that an operation may take is that of all of them."""
        if (
            time.monotonic() - self._last_progress
            > self._options["pulsar.client.operationTimeoutMs"]
        ):
            raise error
        time.sleep(RETRY_S)

    # --- entries --------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        return self._handled.key >= self._range.end.key

    def _messages(self, position: Position, section: bytes) -> Iterator[Read]:
        """What an entry has of the range."""
        self._check_gap(position)
        try:
            entry = read_entry(section)
            self._permits -= entry.permits
            if entry.is_chunk:
                yield from self._of_chunk(position, entry)
            elif position.key > self._handled.key:
                yield from self._of_entry(position, entry)
        except Encrypted as error:
            raise PulsarSparkError(
                f"{position} of {self._range.topic} cannot be read: {error}; give the key by"
                " pulsar.reader.defaultCryptoKeyReader."
            ) from error
        except Damaged as error:
            raise PulsarSparkError(
                f"{position} of {self._range.topic} is damaged: {error}."
            ) from error
        if position.key > self._handled.key:
            self._handled = position
            self._back = 0

    def _of_entry(self, position: Position, entry: Entry) -> Iterator[Read]:
        ledger, number, _ = position
        begin, end = self._range.begin, self._range.end
        size = entry.metadata.num_messages_in_batch
        # Of the first and the last entry a part may be wanted; of those between all is.
        is_inside = begin[:2] < (ledger, number) < end[:2]
        for message in messages_of(entry):
            at = Position(ledger, number, message.batch)
            if is_inside or begin.key < at.key <= end.key:
                yield Read(at, size if message.batch >= 0 else 0, message)

    def _of_chunk(self, position: Position, entry: Entry) -> Iterator[Read]:
        is_new = position.key > self._handled.key
        try:
            message = self._chunks.add(entry)
        except MissingChunks:
            if is_new and self._can_look_back():
                raise
            return  # its first chunk was deleted, or never sent: nobody can read it
        if message is not None and is_new and position.key <= self._range.end.key:
            yield Read(position, 0, message)

    # --- chunks before the range ----------------------------------------------------------------

    def _can_look_back(self) -> bool:
        return self._handled.ledger >= 0 and self._back <= self._handled.entry

    def _look_back(self, missing: MissingChunks) -> None:
        """The next connection reads further back, and only chunks of it."""
        self._back = max(self._back * 4, LOOK_BACK_ENTRIES, missing.chunk_id)
        self._chunks.forget()

    # --- when nothing comes ---------------------------------------------------------------------

    def _is_more_there(self) -> bool:
        """Asks the broker. Raises DataLost, PulsarSparkError."""
        topic, end = self._range.topic, self._range.end
        first, last = self._cluster.ends(topic)
        if first.key >= end.key or last.key <= self._handled.key:
            if end.entry >= 0:
                self._lost(first)
            return False
        if time.monotonic() - self._last_progress > self._options["pollTimeoutMs"]:
            raise PulsarSparkError(
                f"no message of {topic} came for {self._options['pollTimeoutMs']:g} s, though there"
                f" are some between {self._handled} and {end}."
            )
        return True

    def _check_gap(self, position: Position) -> None:
        """Asks whether entries are missing, where the first entry that comes is of a later ledger
        than the range begins in, or one behind the range comes instead of its last. DataLost.
        """
        if position.ledger == self._handled.ledger or position.key <= self._handled.key:
            return
        if self._handled == self._range.begin or position.key > self._range.end.key:
            first, _ = self._cluster.ends(self._range.topic)
            if is_lost(self._handled, first):
                self._lost(first)

    def _lost(self, first: Position) -> None:
        sentence = lost_sentence(self._range.topic, self._handled, first)
        if self._options["failOnDataLoss"]:
            raise DataLost(sentence)
        _log.warning("%s", sentence)

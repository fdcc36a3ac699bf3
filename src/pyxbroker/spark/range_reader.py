"""Reads a range of a topic to columns: what a task does.

The entries come over a connection of the task's own, by a reader without a cursor. A broker that
goes away, or gives the topic to another one, is looked for again, and reading goes on behind what
was handled. Whatever happens a task ends: `pollTimeoutMs` is how long nothing may come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from pyxbroker.avro_columns import Undecodable
from pyxbroker.base.topic_name import TopicName
from pyxbroker.entry_columns import CHUNK, FULL, LOOK, MORE, Damaged, Encrypted, Filled
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.broker_connection import BrokerConnection, Cluster
from pyxbroker.spark.chunks import Chunks, MissingChunks
from pyxbroker.spark.client_connection import ClientConnection
from pyxbroker.spark.errors import DataLost, NotReachable, PulsarSparkError, Refused
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range, cluster_of, is_lost, lost_sentence, uses_client
from pyxbroker.spark.positions import BEGINNING, Position
from pyxbroker.spark.values import Decoder, columns_of_bytes

LOOK_S = 1.0
"""After so long without a message the broker is asked whether there is one."""
RETRY_S = 0.3
LOOK_BACK_ENTRIES = 16
"""How far a task first goes back for the chunks of a message; each time four times as far."""

_log = logging.getLogger(__name__)


class RangeReader:
    """Reads one range. Iterate once, and close."""

    def __init__(self, options: Options, wanted: Range, columns: Decoder | None = None) -> None:
        """columns: what entries become; payloads are bytes without."""
        self._options = options
        self._range = wanted
        self._cluster: Cluster = cluster_of(options)
        self._connection: BrokerConnection | ClientConnection | None = None
        self._permits = 0
        # Messages that a broker may send ahead of what was read. What of them is on the way is
        # bounded by the socket: nothing is taken from it before what came is decoded.
        self._permits_max: int = options["pulsar.reader.receiverQueueSize"]
        partition = TopicName.get(wanted.topic).partition_index
        if columns is None:
            self._columns = columns_of_bytes(partition)
        else:
            self._columns = columns.entry_columns(partition, self.definition)
        self._columns.want(wanted.begin, wanted.end)
        self._entries = 0  # that came until the last look
        self._chunks = Chunks()
        self._back = 0  # how many entries before `_back_from` it reads for chunks
        self._back_from = BEGINNING
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

    def __iter__(self) -> Iterator[Filled]:
        """Rows of the range, in parts that are bounded. Raises PulsarSparkError."""
        while not self._columns.is_done:
            try:
                if self._connection is None:
                    self._connect()
                stop = self._take()
                if stop is None:
                    if not self._is_more_there():
                        break
                elif stop == LOOK:
                    self._check_gap()
                    self._columns.pass_look()
                elif stop == CHUNK:
                    self._see_chunk()
                elif stop == FULL:
                    yield self._columns.finish()
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
        if self._columns.rows:
            yield self._columns.finish()

    # --- the connection -------------------------------------------------------------------------

    def _connect(self) -> None:
        at = self._handled
        back = self._entries_back()
        if at.ledger >= 0 and back:
            at = Position(at.ledger, at.entry - back) if back <= at.entry else BEGINNING
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

    def _take(self) -> int | None:
        """See BrokerConnection.take. Raises PulsarSparkError."""
        assert self._connection is not None
        if self._permits <= self._permits_max // 2:
            self._connection.flow(self._permits_max - self._permits)
            self._permits = self._permits_max
        with self._explained():
            stop = self._connection.take(self._columns, LOOK_S)
        self._permits -= self._columns.spend()
        if self._columns.entries != self._entries or (stop is not None and stop != MORE):
            self._entries = self._columns.entries
            self._last_progress = time.monotonic()
        return stop

    def _wait(self, error: PulsarSparkError) -> None:
        """Before the next try; the time that an operation may take is that of all of them."""
        if (
            time.monotonic() - self._last_progress
            > self._options["pulsar.client.operationTimeoutMs"]
        ):
            raise error
        time.sleep(RETRY_S)

    # --- entries --------------------------------------------------------------------------------

    @property
    def _handled(self) -> Position:
        return Position(*self._columns.position)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What is wrong with an entry is told with its name."""
        try:
            yield
        except Encrypted as error:
            raise PulsarSparkError(
                f"{self._entry()} of {self._range.topic} cannot be read: {error}; give the key by"
                " pulsar.reader.defaultCryptoKeyReader."
            ) from error
        except Undecodable as error:
            raise PulsarSparkError(
                f"a message of {self._entry()} of {self._range.topic} cannot be read by its"
                f" schema: {error}."
            ) from error
        except (Damaged, DecodeError) as error:
            raise PulsarSparkError(
                f"{self._entry()} of {self._range.topic} is damaged: {error}."
            ) from error

    def _entry(self) -> Position:
        """The one that was looked at last."""
        return Position(self._columns.ledger_id, self._columns.entry_id)

    def _see_chunk(self) -> None:
        """A chunk came; the message, when it was the last of one. Raises MissingChunks."""
        columns = self._columns
        is_new = columns.is_new
        whole = None
        with self._explained():
            metadata = pb.MessageMetadata.FromString(columns.chunk_metadata)
            try:
                whole = self._chunks.add(metadata, columns.chunk_payload)
            except MissingChunks:
                if is_new and self._can_look_back():
                    raise
                # Its first chunk was deleted, or never sent: nobody can read it.
            if whole is not None and is_new and self._entry().key <= self._range.end.key:
                columns.add_message(self._entry(), columns.chunk_metadata, whole)
        columns.pass_entry()

    # --- chunks before the range ----------------------------------------------------------------

    def _entries_back(self) -> int:
        return self._back if self._back_from == self._handled else 0

    def _can_look_back(self) -> bool:
        return self._handled.ledger >= 0 and self._entries_back() <= self._handled.entry

    def _look_back(self, missing: MissingChunks) -> None:
        """The next connection reads further back, and only chunks of it."""
        self._back = max(self._entries_back() * 4, LOOK_BACK_ENTRIES, missing.chunk_id)
        self._back_from = self._handled
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

    def _check_gap(self) -> None:
        """Asks whether entries are missing: the first entry that came is of a later ledger than
        the range begins in, or one behind the range came instead of its last. Raises DataLost.
        """
        first, _ = self._cluster.ends(self._range.topic)
        if is_lost(self._handled, first):
            self._lost(first)

    def _lost(self, first: Position) -> None:
        sentence = lost_sentence(self._range.topic, self._handled, first)
        if self._options["failOnDataLoss"]:
            raise DataLost(sentence)
        _log.warning("%s", sentence)

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
from pyxbroker.entry_columns import CHUNK, FULL, MORE, NEW_LEDGER, Damaged, Encrypted, Filled
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.broker_connection import BrokerConnection, Cluster
from pyxbroker.spark.chunks import ChunkedMessages, MissingChunks
from pyxbroker.spark.client_connection import ClientConnection
from pyxbroker.spark.entry_scan import DamagedEntry
from pyxbroker.spark.errors import (
    DataLost,
    NotReachable,
    PulsarSparkError,
    Refused,
    TopicMissing,
)
from pyxbroker.spark.ledgers import are_entries_between
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range, cluster_of, is_lost, lost_sentence, uses_client
from pyxbroker.spark.positions import Position
from pyxbroker.spark.values import Decoder, columns_of_bytes

LOOK_S = 1.0
"""After so long without a message the broker is asked whether there is one."""
RETRY_S = 0.3

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
        self._columns.set_range(wanted.begin, wanted.end)
        self._entries = 0  # that came until the last look
        self._chunked = ChunkedMessages(self._cluster, wanted.topic, wanted.begin)
        self._may_lack_chunks: bool | None = None  # that were there; asked when it matters
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
                elif stop == NEW_LEDGER:
                    self._check_gap()
                    self._columns.accept_ledger()
                elif stop == CHUNK:
                    self._see_chunk()
                    self._last_progress = time.monotonic()
                elif stop == FULL:
                    yield self._columns.finish()
                    self._last_progress = time.monotonic()  # it was not the broker that let wait
            except NotReachable as error:
                self._disconnect()
                self._cluster.close()
                self._wait(error)
            except Refused as error:
                self._disconnect()
                if not error.may_pass:
                    raise
                self._wait(error)
            except TopicMissing as error:
                self._disconnect()
                if self._options["failOnDataLoss"]:
                    raise
                _log.warning("%s", error)
                break
        if self._columns.rows:
            yield self._columns.finish()

    # --- the connection -------------------------------------------------------------------------

    def _connect(self) -> None:
        at = self._handled.entry_behind()
        if uses_client(self._options):
            self._connection = ClientConnection(
                *(self._options, self._cluster, self._range, at, self._chunked),
                self._tell_missing_chunks,
            )
        else:
            self._connection = self._cluster.reader(self._range.topic, at)
        self._connection.flow(self._permits_max)
        self._permits = self._permits_max

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _take(self) -> int | None:
        """See BrokerConnection.take. Raises PulsarSparkError."""
        assert self._connection is not None
        if self._permits <= self._permits_max // 2:
            self._connection.flow(self._permits_max - self._permits)
            self._permits = self._permits_max
        with self._explained():
            stop = self._connection.take(self._columns, LOOK_S)
        self._permits -= self._columns.take_permits()
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
            position = error.position if isinstance(error, DamagedEntry) else self._entry()
            raise PulsarSparkError(
                f"{position} of {self._range.topic} is damaged: {error}."
            ) from error

    def _entry(self) -> Position:
        """The one that was looked at last."""
        return Position(self._columns.ledger_id, self._columns.entry_id)

    def _see_chunk(self) -> None:
        """A chunk came; the message, when it was the last one of it."""
        columns, position = self._columns, self._entry()
        if position.key <= self._range.end.key:
            with self._explained():
                metadata = pb.MessageMetadata.FromString(columns.chunk_metadata)
                try:
                    whole = self._chunked.add(position, metadata, columns.chunk_payload)
                except MissingChunks:
                    self._tell_missing_chunks(position)
                    whole = None
                if whole is not None:
                    columns.add_message(position, columns.chunk_metadata, whole.payload)
        columns.accept_chunk()

    def _tell_missing_chunks(self, last: Position) -> None:
        """The last chunk of a message came, and others are nowhere. That is a loss, unless all is
        read that there was when the query began, and is still there: then they were deleted before.
        Raises DataLost.
        """
        topic = self._range.topic
        sentence = (
            f"the message in chunks of {topic} that ends with {last} cannot be put together: chunks"
            " before were deleted, or never stored"
        )
        if self._may_lack_chunks is None:
            first, _ = self._cluster.ends(topic)
            origin = self._range.origin
            self._may_lack_chunks = origin is None or is_lost(origin, first)
        if self._options["failOnDataLoss"] and self._may_lack_chunks:
            raise DataLost(f"{sentence}; failOnDataLoss=false goes on without it.")
        _log.warning("%s; it is left out.", sentence)

    # --- when nothing comes ---------------------------------------------------------------------

    def _is_more_there(self) -> bool:
        """Ask the broker. Raises DataLost, PulsarSparkError."""
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
        """Ask whether entries are missing before one of another ledger that came: whether ledgers
        were deleted that were not read to their end. Raises DataLost.
        """
        first, _ = self._cluster.ends(self._range.topic)
        if not is_lost(self._handled, first):
            return
        until = min(first, self._range.end, key=lambda position: position.key)
        if are_entries_between(self._range.ledgers, self._handled, until):
            self._lost(first)

    def _lost(self, first: Position) -> None:
        sentence = lost_sentence(self._range.topic, self._handled, first)
        if self._options["failOnDataLoss"]:
            raise DataLost(sentence)
        _log.warning("%s", sentence)

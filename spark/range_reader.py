"""Reading of a range of a topic to columns, which is the work of a task.

Entries arrive on the task's own connection, from a reader without a cursor. If the broker fails or
unloads the topic, the task looks the topic up again and continues after the last entry that it has
handled. `pollTimeoutMs` limits how long a task waits without progress.
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

CHECK_S = 1.0
"""After so long without a message the task checks at the broker whether one exists."""
RETRY_S = 0.3

_log = logging.getLogger(__name__)


class RangeReader:
    """A reader of one range. Iterate once, and close it."""

    def __init__(self, options: Options, wanted: Range, columns: Decoder | None = None) -> None:
        """Prepare to read. columns: the decoder of entries; by default payloads are bytes."""
        self._options = options
        self._range = wanted
        self._cluster: Cluster = cluster_of(options)
        self._connection: BrokerConnection | ClientConnection | None = None
        self._permits = 0
        # Messages that a broker may send in advance. The socket limits their memory, because it is
        # read only after the received entries are decoded.
        self._permits_max: int = options["pulsar.reader.receiverQueueSize"]
        partition = TopicName.get(wanted.topic).partition_index
        if columns is None:
            self._columns = columns_of_bytes(partition)
        else:
            self._columns = columns.entry_columns(partition, self.definition)
        self._columns.set_range(wanted.begin, wanted.end)
        self._entries = 0  # the number of entries at the last check
        self._chunked = ChunkedMessages(self._cluster, wanted.topic, wanted.begin)
        self._may_lack_chunks: bool | None = None  # requested when a chunk is missing
        self._last_progress = time.monotonic()

    def close(self) -> None:
        self._disconnect()
        self._cluster.close()

    def definition(self, version: bytes) -> bytes:
        """Return the definition of a schema version of the topic. Raises PulsarSparkError."""
        name = TopicName.get(self._range.topic).partitioned_topic_name
        found = self._cluster.schema(name, version)
        if found is None:
            raise PulsarSparkError(f"{name} no longer has a schema of version {version.hex()}.")
        return bytes(found.schema_data)

    def __iter__(self) -> Iterator[Filled]:
        """Yield the rows of the range in parts of limited size. Raises PulsarSparkError."""
        while not self._columns.is_done:
            try:
                if self._connection is None:
                    self._connect()
                stop = self._take()
                if stop is None:
                    if not self._has_more():
                        break
                elif stop == NEW_LEDGER:
                    self._check_gap()
                    self._columns.accept_ledger()
                elif stop == CHUNK:
                    self._handle_chunk()
                    self._last_progress = time.monotonic()
                elif stop == FULL:
                    yield self._columns.finish()
                    self._last_progress = time.monotonic()  # the wait was Spark's
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
                self._report_missing_chunks,
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
        """Decode entries; see BrokerConnection.take. Raises PulsarSparkError."""
        assert self._connection is not None
        if self._permits <= self._permits_max // 2:
            self._connection.flow(self._permits_max - self._permits)
            self._permits = self._permits_max
        with self._errors_translated():
            stop = self._connection.take(self._columns, CHECK_S)
        self._permits -= self._columns.take_permits()
        if self._columns.entries != self._entries or (stop is not None and stop != MORE):
            self._entries = self._columns.entries
            self._last_progress = time.monotonic()
        return stop

    def _wait(self, error: PulsarSparkError) -> None:
        """Wait before a retry. All retries together have the operation timeout."""
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
    def _errors_translated(self) -> Iterator[None]:
        """Raise errors of an entry as PulsarSparkError with its position."""
        try:
            yield
        except Encrypted as error:
            raise PulsarSparkError(
                f"{self._entry()} of {self._range.topic} cannot be read: {error}; give its key by"
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
        """Return the position of the last inspected entry."""
        return Position(self._columns.ledger_id, self._columns.entry_id)

    def _handle_chunk(self) -> None:
        """Add the current chunk, and decode its message if it is complete."""
        columns, position = self._columns, self._entry()
        if position.key <= self._range.end.key:
            with self._errors_translated():
                metadata = pb.MessageMetadata.FromString(columns.chunk_metadata)
                try:
                    whole = self._chunked.add(position, metadata, columns.chunk_payload)
                except MissingChunks:
                    self._report_missing_chunks(position)
                    whole = None
                if whole is not None:
                    columns.add_message(position, columns.chunk_metadata, whole.payload)
        columns.accept_chunk()

    def _report_missing_chunks(self, last: Position) -> None:
        """Report a message of which only the last chunk exists.

        That is a loss, unless the query reads the topic from its beginning and nothing was deleted
        since. Then the chunks were deleted before the query began. Raises DataLost.
        """
        topic = self._range.topic
        sentence = (
            f"the chunked message of {topic} that ends with {last} cannot be assembled: earlier"
            " chunks were deleted, or never stored"
        )
        if self._may_lack_chunks is None:
            first, _ = self._cluster.ends(topic)
            origin = self._range.origin
            self._may_lack_chunks = origin is None or is_lost(origin, first)
        if self._options["failOnDataLoss"] and self._may_lack_chunks:
            raise DataLost(f"{sentence}; failOnDataLoss=false continues without it.")
        _log.warning("%s; the message is skipped.", sentence)

    # --- missing messages -----------------------------------------------------------------------

    def _has_more(self) -> bool:
        """Ask the broker whether the range has more messages. Raises DataLost, PulsarSparkError."""
        topic, end = self._range.topic, self._range.end
        first, last = self._cluster.ends(topic)
        if first.key >= end.key or last.key <= self._handled.key:
            if end.entry >= 0:
                self._report_loss(first)
            return False
        if time.monotonic() - self._last_progress > self._options["pollTimeoutMs"]:
            raise PulsarSparkError(
                f"no message of {topic} came for {self._options['pollTimeoutMs']:g} s, though there"
                f" are some between {self._handled} and {end}."
            )
        return True

    def _check_gap(self) -> None:
        """Check that no entries were lost before the first entry of another ledger.

        They are lost if a ledger was deleted before it was read to its end. Raises DataLost.
        """
        first, _ = self._cluster.ends(self._range.topic)
        if not is_lost(self._handled, first):
            return
        until = min(first, self._range.end, key=lambda position: position.key)
        if are_entries_between(self._range.ledgers, self._handled, until):
            self._report_loss(first)

    def _report_loss(self, first: Position) -> None:
        sentence = lost_sentence(self._range.topic, self._handled, first)
        if self._options["failOnDataLoss"]:
            raise DataLost(sentence)
        _log.warning("%s", sentence)

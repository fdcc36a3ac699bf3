"""Reading of encrypted messages by the official client.

A scan of our own (entry_scan.py), which needs no key, lists the entries. The client delivers the
encrypted ones. It skips messages that it cannot read, and loses a chunked message if it starts
behind the first chunk. So the reader waits for each entry, and starts the client at the first
chunk. The client's messages are encoded again as entries, which are then decoded as those of a
broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pyxbroker.entry_columns import FULL, MORE, NEW_LEDGER, EntryColumns
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.broker_connection import Cluster, closed_on_error
from pyxbroker.spark.chunks import ChunkedMessages, MissingChunks, Whole
from pyxbroker.spark.entry_scan import Entry, EntryScan
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.official import client_of, close_client, sentence_of
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range
from pyxbroker.spark.positions import Position, position_of

ENTRIES_PER_CALL_MAX = 100
"""The limit of entries that one call of `take` decodes."""
SOONER_S = 2.0
"""This reader gives up so much earlier than the task, because its error names the entry."""

_log = logging.getLogger(__name__)
_is_warned = False

_OF_CHUNKS = ("uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id")
_OF_PAYLOAD = (
    *("compression", "uncompressed_size"),
    *("encryption_keys", "encryption_algo", "encryption_param"),
)
"""Fields that describe the stored payload. The client returns it decrypted and unpacked."""


class ClientConnection:
    """A reader of one range. The caller closes it."""

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        wanted: Range,
        at: Position,
        chunked: ChunkedMessages,
        report_missing: Callable[[Position], None],
    ) -> None:
        """Open a reader at an entry. Raises PulsarSparkError.

        report_missing: called with the position of the last chunk of a message without its others.
        """
        _warn(options)
        self._options = options
        self._key = options["pulsar.reader.defaultCryptoKeyReader"]
        self._range = wanted
        self._chunked = chunked
        self._report_missing = report_missing
        self._wanted: _Wanted | None = None  # what the client has to deliver
        self._entry: tuple[Position, bytes] | None = (
            None  # an entry that did not fit into the columns
        )
        self._tried_again: Position | None = None
        self._reader: Any = None
        self._reader_begin = at
        self._scan = EntryScan(cluster, wanted.topic, at)
        with closed_on_error(self._scan):
            self._client = client_of(options)

    def close(self) -> None:
        self._scan.close()
        # The reader ends with its connection, so nothing waits for a broker that may hang.
        close_client(self._client, is_done=False)

    def flow(self, permits: int) -> None:
        """Do nothing: the client has its own queue."""

    def take(self, columns: EntryColumns, timeout_s: float) -> int | None:
        """Decode entries; see BrokerConnection.take. Raises PulsarSparkError, Damaged."""
        stop = None
        for _ in range(ENTRIES_PER_CALL_MAX):
            found = self._entry or self.next_entry(timeout_s)
            if found is None:
                return stop
            position, section = found
            stop = columns.take_entry(position.ledger, position.entry, section)
            # An entry that did not fit is decoded by the next call.
            self._entry = found if stop in (FULL, NEW_LEDGER) else None
            if stop != MORE:
                break
        return stop

    def next_entry(self, timeout_s: float) -> tuple[Position, bytes] | None:
        """Return the position and the payload section of the next entry.

        None: it did not arrive in time; its messages so far are kept for the next call.
        """
        deadline = time.monotonic() + timeout_s
        if self._wanted is None:
            entry = self._scan.next(timeout_s)
            if entry is None:
                return None
            found = self._section_or_wanted(entry)
            if isinstance(found, bytes):
                return entry.position, found
            self._wanted = found
        if not self._read(self._wanted, deadline):
            return None
        done, self._wanted = self._wanted, None
        return done.position, done.section()

    def _section_or_wanted(self, entry: Entry) -> bytes | _Wanted:
        """Return the payload section of an entry, or what the client has to deliver for it."""
        position, metadata = entry.position, entry.metadata
        if position[:2] > self._range.end[:2]:
            return _nothing(metadata)
        first = position
        if entry.is_chunk:
            whole = self._whole_of(entry)
            if whole is None:
                return _nothing(metadata)
            if not entry.is_encrypted:
                return _section(_without_fields(metadata, _OF_CHUNKS), whole.payload)
            first = whole.first
        if not entry.is_encrypted or self._key is None:
            return entry.section
        give_up_at = time.monotonic() + self._options["pollTimeoutMs"] - SOONER_S
        wanted = _Wanted(position, first, metadata, give_up_at)
        if not wanted.size:
            return wanted.section()
        return wanted

    def _whole_of(self, entry: Entry) -> Whole | None:
        try:
            return self._chunked.add(entry.position, entry.metadata, entry.payload)
        except MissingChunks:
            self._report_missing(entry.position)
            return None

    # --- the client -----------------------------------------------------------------------------

    def _read(self, wanted: _Wanted, deadline: float) -> bool:
        """Return True if all messages of the entry arrived in time."""
        import pulsar

        while len(wanted.messages) < wanted.size:
            if self._reader is None or wanted.first.key < self._reader_begin.key:
                self._open(wanted.first)
            left_ms = max(1, round((deadline - time.monotonic()) * 1000))
            try:
                message = self._reader.read_next(left_ms)
            except pulsar.Timeout as error:
                if time.monotonic() > wanted.give_up_at:
                    raise self._passed_over(wanted) from error
                return False
            except pulsar.PulsarException as error:
                raise self._trouble(error) from error
            place = pb.MessageIdData.FromString(message.message_id().serialize())
            at = position_of(place)
            if at == wanted.position:
                wanted.messages[max(place.batch_index, 0)] = message
            elif at.key > wanted.position.key:
                self._try_again(wanted)
        return True

    def _try_again(self, wanted: _Wanted) -> None:
        """Open the reader again at an entry that the client skipped. Raises PulsarSparkError.

        The client keeps the chunks of few messages, and loses them when its connection breaks.
        """
        if self._tried_again == wanted.position:
            raise self._passed_over(wanted)
        self._tried_again = wanted.position
        wanted.messages.clear()
        self._open(wanted.first)

    def _passed_over(self, wanted: _Wanted) -> PulsarSparkError:
        return PulsarSparkError(
            f"Pulsar's client skips {wanted.position} of {self._range.topic}: it cannot be"
            " decrypted by pulsar.reader.defaultCryptoKeyReader, or is damaged, or is one of too"
            " many chunked messages (the client keeps the chunks of ten messages)."
        )

    def _open(self, at: Position) -> None:
        """Open the client's reader at an entry."""
        import pulsar

        try:
            if self._reader is not None:
                self._reader.close()
            self._reader = self._client.create_reader(
                self._range.topic,
                pulsar.MessageId(-1, at.ledger, at.entry, -1)._msg_id,
                start_message_id_inclusive=True,
                receiver_queue_size=self._options["pulsar.reader.receiverQueueSize"],
                subscription_role_prefix=self._options["subscriptionPrefix"],
                crypto_key_reader=pulsar.CryptoKeyReader("", self._key),
            )
        except pulsar.PulsarException as error:
            raise self._trouble(error) from error
        self._reader_begin = at

    def _trouble(self, error: Exception) -> PulsarSparkError:
        return PulsarSparkError(f"{self._range.topic} cannot be read: {sentence_of(error)}.")


class _Wanted:
    """An entry whose messages the client has to deliver."""

    def __init__(
        self, position: Position, first: Position, metadata: Any, give_up_at: float
    ) -> None:
        """Describe the entry. first: the entry of its first chunk, or its own position."""
        self.position = position
        self.give_up_at = give_up_at
        self.first = first
        self._metadata = _without_fields(metadata, _OF_CHUNKS + _OF_PAYLOAD)
        self._is_batch = metadata.HasField("num_messages_in_batch")
        self.size: int = metadata.num_messages_in_batch if self._is_batch else 1
        if metadata.compression and not metadata.uncompressed_size:
            self.size = 0  # empty: the client cannot unpack that with ZLIB, and skips it
        self.messages: dict[int, Any] = {}
        """The messages by their batch index."""

    def section(self) -> bytes:
        """Return the payload section of an entry with the messages that arrived."""
        messages = [self.messages[index] for index in range(self.size)]
        if self._is_batch:
            return _section(self._metadata, batch(messages))
        return _section(self._metadata, messages[0].data() if messages else b"")


def batch(messages: list[Any]) -> bytes:
    """Return the payload of a batch of messages."""
    payload = bytearray()
    for message in messages:
        data = message.data()
        head = pb.SingleMessageMetadata(payload_size=len(data))
        _describe(message, head)
        encoded = head.SerializeToString()
        payload += len(encoded).to_bytes(4, "big") + encoded + data
    return bytes(payload)


def _describe(message: Any, head: Any) -> None:
    """Fill the metadata of a message in a batch."""
    if key := message.partition_key():
        head.partition_key = key
    if ordering := message.ordering_key():
        head.ordering_key = ordering.encode()
    if message.event_timestamp():
        head.event_time = message.event_timestamp()
    if message.has_null_value():
        head.null_value = True
    for name, text in message.properties().items():
        head.properties.add(key=name, value=text)


def _without_fields(metadata: Any, fields: tuple[str, ...]) -> Any:
    found = pb.MessageMetadata()
    found.CopyFrom(metadata)
    for name in fields:
        found.ClearField(name)
    return found


def _nothing(metadata: Any) -> bytes:
    """Return the payload section of an entry without messages."""
    empty = pb.MessageMetadata(
        producer_name="",
        sequence_id=0,
        publish_time=metadata.publish_time,
        num_messages_in_batch=0,
    )
    return _section(empty, b"")


def _section(metadata: Any, payload: bytes) -> bytes:
    encoded = metadata.SerializeToString()
    return bytes(len(encoded).to_bytes(4, "big") + encoded + payload)


def _warn(options: Options) -> None:
    """Warn once per process that the slower reader is used, unless the user chose it."""
    global _is_warned
    if options["reader"] == "auto" and not _is_warned:
        _is_warned = True
        _log.warning(
            "a key is given, so encrypted messages are read by the official client, which is slow;"
            " the option reader=client turns this warning off."
        )

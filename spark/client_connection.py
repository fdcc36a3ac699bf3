"""The official client for what the fast reader cannot do: to decrypt, where the key is given.

A scan of our own (entry_scan.py), which needs no key, says which entries there are. Those that are
encrypted are asked of the client, which leaves out what it cannot read, and whose chunks are lost
where it begins behind the first one; so each entry is waited for, and the client begins where its
message does. What it gives message by message is put together to entries as a broker sends them,
and all else is done as for any other connection.
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
from pyxbroker.spark.official import client_of, let_go, sentence_of
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range
from pyxbroker.spark.positions import Position, position_of

ENTRIES_AT_ONCE = 100
"""That are taken before a task looks up."""
SOONER_S = 2.0
"""Before the task itself finds that nothing comes, what does not come is told by its name."""

_log = logging.getLogger(__name__)
_is_told = False

_OF_CHUNKS = ("uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id")
_OF_PAYLOAD = (
    *("compression", "uncompressed_size"),
    *("encryption_keys", "encryption_algo", "encryption_param"),
)
"""What an entry's metadata says of its payload as it is stored; the client gives what it was."""


class ClientConnection:
    """A reader of one range. Close it."""

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        wanted: Range,
        at: Position,
        chunked: ChunkedMessages,
        tell_missing: Callable[[Position], None],
    ) -> None:
        """Its first entry is that at the position. tell_missing: gets where the last chunk is of a
        message whose others are nowhere. Raises PulsarSparkError.
        """
        _tell(options)
        self._options = options
        self._key = options["pulsar.reader.defaultCryptoKeyReader"]
        self._range = wanted
        self._chunked = chunked
        self._tell_missing = tell_missing
        self._wanted: _Wanted | None = None  # from the client
        self._entry: tuple[Position, bytes] | None = None  # that is not in the columns yet
        self._tried_again: Position | None = None
        self._reader: Any = None
        self._reader_begin = at
        self._scan = EntryScan(cluster, wanted.topic, at)
        with closed_on_error(self._scan):
            self._client = client_of(options)

    def close(self) -> None:
        self._scan.close()
        # A reader goes with its connection: nobody waits for a broker that may hang.
        let_go(self._client, is_done=False)

    def flow(self, permits: int) -> None:
        """The client has a queue of its own."""

    def take(self, columns: EntryColumns, timeout_s: float) -> int | None:
        """See BrokerConnection.take. Raises PulsarSparkError, Damaged."""
        stop = None
        for _ in range(ENTRIES_AT_ONCE):
            found = self._entry or self.next_entry(timeout_s)
            if found is None:
                return stop
            position, section = found
            stop = columns.take_entry(position.ledger, position.entry, section)
            # Where there was no room for it, it comes again.
            self._entry = found if stop in (FULL, NEW_LEDGER) else None
            if stop != MORE:
                break
        return stop

    def next_entry(self, timeout_s: float) -> tuple[Position, bytes] | None:
        """Where an entry is, and its payload section; None: it was not there in time, and what came
        of it is kept.
        """
        deadline = time.monotonic() + timeout_s
        if self._wanted is None:
            entry = self._scan.next(timeout_s)
            if entry is None:
                return None
            found = self._look_at(entry)
            if isinstance(found, bytes):
                return entry.position, found
            self._wanted = found
        if not self._read(self._wanted, deadline):
            return None
        done, self._wanted = self._wanted, None
        return done.position, done.section()

    def _look_at(self, entry: Entry) -> bytes | _Wanted:
        """A payload section, where the client is not needed for it."""
        position, metadata = entry.position, entry.metadata
        if position[:2] > self._range.end[:2]:
            return _nothing(metadata)
        first = position
        if entry.is_chunk:
            whole = self._whole_of(entry)
            if whole is None:
                return _nothing(metadata)
            if not entry.is_encrypted:
                return _section(_without(metadata, _OF_CHUNKS), whole.payload)
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
            self._tell_missing(entry.position)
            return None

    # --- the client -----------------------------------------------------------------------------

    def _read(self, wanted: _Wanted, deadline: float) -> bool:
        """Whether all messages of the entry came in time."""
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
        """The client has passed over an entry: it has place for the chunks of few messages, and
        loses those that it waits for when its connection breaks. Raises PulsarSparkError.
        """
        if self._tried_again == wanted.position:
            raise self._passed_over(wanted)
        self._tried_again = wanted.position
        wanted.messages.clear()
        self._open(wanted.first)

    def _passed_over(self, wanted: _Wanted) -> PulsarSparkError:
        return PulsarSparkError(
            f"Pulsar's client passes over {wanted.position} of {self._range.topic}: it cannot be"
            " decrypted by pulsar.reader.defaultCryptoKeyReader, or is damaged, or is one of too"
            " many in chunks (the client has place for the chunks of ten messages)."
        )

    def _open(self, at: Position) -> None:
        """Makes the client's reader, whose first entry is that at the position."""
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
    """An entry whose messages the client has to give."""

    def __init__(
        self, position: Position, first: Position, metadata: Any, give_up_at: float
    ) -> None:
        """first: where its first chunk is; where it is no chunk, it is that itself."""
        self.position = position
        self.give_up_at = give_up_at
        self.first = first
        self._metadata = _without(metadata, _OF_CHUNKS + _OF_PAYLOAD)
        self._is_batch = metadata.HasField("num_messages_in_batch")
        self.size: int = metadata.num_messages_in_batch if self._is_batch else 1
        if metadata.compression and not metadata.uncompressed_size:
            self.size = 0  # it is empty; the client cannot unpack that with ZLIB, and leaves it out
        self.messages: dict[int, Any] = {}
        """By their places in the batch."""

    def section(self) -> bytes:
        """The payload section of an entry of what came."""
        messages = [self.messages[index] for index in range(self.size)]
        if self._is_batch:
            return _section(self._metadata, batch(messages))
        return _section(self._metadata, messages[0].data() if messages else b"")


def batch(messages: list[Any]) -> bytes:
    """The payload of a batch."""
    payload = bytearray()
    for message in messages:
        data = message.data()
        head = pb.SingleMessageMetadata(payload_size=len(data))
        _describe(message, head)
        encoded = head.SerializeToString()
        payload += len(encoded).to_bytes(4, "big") + encoded + data
    return bytes(payload)


def _describe(message: Any, head: Any) -> None:
    """What is said of a message in its head in a batch."""
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


def _without(metadata: Any, fields: tuple[str, ...]) -> Any:
    found = pb.MessageMetadata()
    found.CopyFrom(metadata)
    for name in fields:
        found.ClearField(name)
    return found


def _nothing(metadata: Any) -> bytes:
    """The payload section of an entry in which no message ends."""
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


def _tell(options: Options) -> None:
    """Once in a process, unless it was wanted."""
    global _is_told
    if options["reader"] == "auto" and not _is_told:
        _is_told = True
        _log.warning(
            "a key is given, so encrypted messages are read by the official client, which is slower"
            " (reader=client says that this is well)."
        )

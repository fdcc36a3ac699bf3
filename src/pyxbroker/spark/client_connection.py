"""The official client in place of a connection of our own: for what the fast reader cannot do.

That is to decrypt, where the key is given. What the client gives message by message is put together
to entries as a broker sends them, so that all else is done as for any other connection. A message
whose first chunk lies before where it begins is not read.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from pyxbroker.entry_columns import FULL, LOOK, EntryColumns
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.official import client_of, sentence_of
from pyxbroker.spark.options import Options
from pyxbroker.spark.positions import Position, position_of

_log = logging.getLogger(__name__)
_is_told = False


class ClientConnection:
    """A reader of one topic. Close it."""

    def __init__(self, options: Options, topic: str, at: Position) -> None:
        """Its first entry is that at the position. Raises PulsarSparkError."""
        import pulsar

        _tell(options)
        self._topic = topic
        self._entry: tuple[Position, bytes] | None = None  # that is not in the columns yet
        self._pending: tuple[Position, Any, dict[int, Any]] | None = None
        key = options["pulsar.reader.defaultCryptoKeyReader"]
        self._client = client_of(options)
        start = pulsar.MessageId.earliest
        if at.ledger >= 0:
            start = pulsar.MessageId(-1, at.ledger, at.entry, -1)._msg_id
        try:
            self._reader = self._client.create_reader(
                topic,
                start,
                start_message_id_inclusive=True,
                receiver_queue_size=options["pulsar.reader.receiverQueueSize"],
                subscription_role_prefix=options["subscriptionPrefix"],
                crypto_key_reader=None if key is None else pulsar.CryptoKeyReader("", key),
            )
        except pulsar.PulsarException as error:
            self.close()
            raise self._trouble(error) from error

    def close(self) -> None:
        self._client.close()

    def flow(self, permits: int) -> None:
        """The client has a queue of its own."""

    def take(self, columns: EntryColumns, timeout_s: float) -> int | None:
        """See BrokerConnection.take. Raises PulsarSparkError."""
        found = self._entry or self.next_entry(timeout_s)
        if found is None:
            return None
        position, section = found
        stop = columns.take_entry(position.ledger, position.entry, section)
        # Where there was no room for it, it comes again.
        self._entry = found if stop in (FULL, LOOK) else None
        return stop

    def next_entry(self, timeout_s: float) -> tuple[Position, bytes] | None:
        """Where an entry is, and its payload section; None: none came in time."""
        import pulsar

        deadline = time.monotonic() + timeout_s
        while True:
            left_ms = max(1, round((deadline - time.monotonic()) * 1000))
            try:
                message = self._reader.read_next(left_ms)
            except pulsar.Timeout:
                return self._finish()
            except pulsar.PulsarException as error:
                raise self._trouble(error) from error
            place = pb.MessageIdData.FromString(message.message_id().serialize())
            at = position_of(place)
            done = self._finish() if self._pending is not None and self._pending[0] != at else None
            if place.batch_index < 0:
                self._pending = at, None, {0: message}
            else:
                if self._pending is None:
                    self._pending = at, place.batch_size, {}
                self._pending[2][place.batch_index] = message
            if done is not None:
                return done
            if place.batch_index < 0 or place.batch_index == place.batch_size - 1:
                return self._finish()

    def _finish(self) -> tuple[Position, bytes] | None:
        """The entry whose messages came."""
        if self._pending is None:
            return None
        at, size, messages = self._pending
        self._pending = None
        if size is None:
            return at, single(messages[0])
        return at, batch(size, messages)

    def _trouble(self, error: Exception) -> PulsarSparkError:
        return PulsarSparkError(f"{self._topic} cannot be read: {sentence_of(error)}.")


def single(message: Any) -> bytes:
    """The payload section of an entry of one message."""
    metadata = _metadata(message)
    _describe(message, metadata)
    return _section(metadata, message.data())


def batch(size: int, messages: dict[int, Any]) -> bytes:
    """That of a batch; what did not come of it was left out by compaction."""
    metadata = _metadata(next(iter(messages.values())))
    metadata.num_messages_in_batch = size
    payload = bytearray()
    for index in range(size):
        message = messages.get(index)
        head = pb.SingleMessageMetadata(payload_size=0, compacted_out=message is None)
        data = b""
        if message is not None:
            _describe(message, head)
            data = message.data()
            head.payload_size = len(data)
        encoded = head.SerializeToString()
        payload += len(encoded).to_bytes(4, "big") + encoded + data
    return _section(metadata, bytes(payload))


def _metadata(message: Any) -> Any:
    return pb.MessageMetadata(
        producer_name=message.producer_name(),
        sequence_id=0,
        publish_time=message.publish_timestamp(),
        schema_version=_version(message),
    )


def _version(message: Any) -> bytes | None:
    """The schema version, which the client tells as text; from 128 on it is none."""
    try:
        text: str = message.schema_version()
    except UnicodeDecodeError:
        return bytes(message._message.int_schema_version().to_bytes(8, "big"))
    return text.encode() or None


def _describe(message: Any, head: Any) -> None:
    """What is said of a message in the metadata of its entry, or in its head in a batch."""
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


def _section(metadata: Any, payload: bytes) -> bytes:
    encoded = metadata.SerializeToString()
    return bytes(len(encoded).to_bytes(4, "big") + encoded + payload)


def _tell(options: Options) -> None:
    """Once in a process, unless it was wanted."""
    global _is_told
    if options["reader"] == "auto" and not _is_told:
        _is_told = True
        _log.warning(
            "a key is given, so topics are read by the official client, which is slower"
            " (reader=client says that this is well)."
        )

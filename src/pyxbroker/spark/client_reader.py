"""Reads a range of a topic by the official client: for what the fast reader cannot do.

That is messages that are encrypted, where the key is given. A range is a whole topic then, and a
message whose first chunk was before the range is not read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from pyxbroker.base.topic_name import TopicName
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.entries import Message
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.official import client_of, sentence_of
from pyxbroker.spark.options import Options
from pyxbroker.spark.plan import Range, cluster_of
from pyxbroker.spark.positions import Position, position_of
from pyxbroker.spark.range_reader import Read

LOOK_MS = 1_000
"""After so long without a message the broker is asked whether there is one."""

_log = logging.getLogger(__name__)
_is_told = False


class ClientReader:
    """Reads one range. Iterate once, and close."""

    def __init__(self, options: Options, wanted: Range) -> None:
        self._options = options
        self._range = wanted
        self._client = client_of(options)
        self._handled = wanted.begin
        _tell(options)

    def close(self) -> None:
        self._client.close()

    def definition(self, version: bytes) -> bytes:
        """The definition of a schema version of the topic. Raises PulsarSparkError."""
        name = TopicName.get(self._range.topic).partitioned_topic_name
        with cluster_of(self._options) as cluster:
            found = cluster.schema(name, version)
        if found is None:
            raise PulsarSparkError(f"{name} has no schema of version {version.hex()} any more.")
        return bytes(found.schema_data)

    def __iter__(self) -> Iterator[Read]:
        """Raises PulsarSparkError."""
        import pulsar

        reader = self._open()
        last_progress = time.monotonic()
        while self._handled.key < self._range.end.key:
            try:
                message = reader.read_next(LOOK_MS)
            except pulsar.Timeout:
                if not self._is_more_there():
                    return
                if time.monotonic() - last_progress > self._options["pollTimeoutMs"]:
                    raise PulsarSparkError(
                        f"no message of {self._range.topic} came for"
                        f" {self._options['pollTimeoutMs']:g} s behind {self._handled}; is the key"
                        " of pulsar.reader.defaultCryptoKeyReader that of its messages?"
                    ) from None
                continue
            except pulsar.PulsarException as error:
                raise PulsarSparkError(
                    f"{self._range.topic} cannot be read: {sentence_of(error)}."
                ) from error
            last_progress = time.monotonic()
            place = pb.MessageIdData.FromString(message.message_id().serialize())
            at = position_of(place)._replace(batch=place.batch_index)
            if at.key <= self._range.begin.key:
                continue
            if at.key > self._range.end.key:
                return
            # Behind its last message an entry is read as a whole.
            is_last = place.batch_index == place.batch_size - 1
            self._handled = at._replace(batch=-1) if is_last else at
            yield Read(at, place.batch_size, _message(message, at))

    def _open(self) -> Any:
        import pulsar

        key = self._options["pulsar.reader.defaultCryptoKeyReader"]
        begin = self._range.begin
        start = pulsar.MessageId.earliest
        if begin.ledger >= 0:
            # Whole entries before it are passed over by the id, messages by `__iter__`.
            entry = begin.entry if begin.batch < 0 else begin.entry - 1
            start = pulsar.MessageId(-1, begin.ledger, entry, -1)._msg_id
        try:
            return self._client.create_reader(
                self._range.topic,
                start,
                receiver_queue_size=self._options["pulsar.reader.receiverQueueSize"],
                subscription_role_prefix=self._options["subscriptionPrefix"],
                crypto_key_reader=None if key is None else pulsar.CryptoKeyReader("", key),
            )
        except pulsar.PulsarException as error:
            raise PulsarSparkError(
                f"{self._range.topic} cannot be read: {sentence_of(error)}."
            ) from error

    def _is_more_there(self) -> bool:
        with cluster_of(self._options) as cluster:
            _, last = cluster.ends(self._range.topic)
        return last.key > self._handled.key


def _message(message: Any, at: Position) -> Message:
    key = message.partition_key()
    return Message(
        at.batch,
        key.encode() if key else None,
        None if message.has_null_value() else message.data(),
        message.publish_timestamp(),
        message.event_timestamp(),
        list(message.properties().items()),
        bytes(message.schema_version() or b""),
    )


def _tell(options: Options) -> None:
    """Once in a process, unless it was wanted."""
    global _is_told
    if options["reader"] == "auto" and not _is_told:
        _is_told = True
        _log.warning(
            "a key is given, so topics are read by the official client, which is slower"
            " (reader=client says that this is well)."
        )

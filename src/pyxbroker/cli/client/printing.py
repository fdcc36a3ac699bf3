"""The text and the JSON of messages on stdout."""

from __future__ import annotations

import base64
import json
import re
import sys
from argparse import Namespace
from typing import Any

from pyxbroker.base.topic_name import TopicName
from pyxbroker.cli.client.session import InputError
from pyxbroker.cli.client.topics import Received
from pyxbroker.cli.client.values import Codec, KeyValue, as_java, codec_of, in_json
from pyxbroker.client.client import Client
from pyxbroker.client.entries import Message
from pyxbroker.client.errors import BrokerRefused

BOUNDARY = "----- got message -----"
HEX_WIDTH = 16
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Printer:
    """Prints messages as pulsar-client does, or as one JSON object each."""

    def __init__(self, client: Client, options: Namespace) -> None:
        self._client = client
        self._options = options
        kind = options.schema_type or ("auto_consume" if options.output == "json" else "bytes")
        self._decodes = kind == "auto_consume"
        self._codecs: dict[tuple[str, bytes], Codec | KeyValue] = {}
        self._is_terminal = sys.stdout.isatty()

    async def print(self, received: Received) -> None:
        """Print one message. Raises InputError."""
        message, options = received.message, self._options
        if len(message.metadata.encryption_keys) > 0:
            if options.crypto_failure_action == "FAIL":
                raise InputError(
                    f"{received.consumer.topic}: the message {id_text(message)} is encrypted, and"
                    " this client cannot decrypt: use --crypto-failure-action DISCARD or CONSUME."
                )
            if options.crypto_failure_action == "DISCARD":
                return
        if options.hide_content:
            return
        value = await self._value(received.consumer.topic, message)
        if options.output == "json":
            text = json.dumps(
                self._object(received.consumer.topic, message, value),
                default=in_json,
                ensure_ascii=False,
            )
        else:
            text = f"{BOUNDARY}\n{self._text(message, value)}"
        if self._is_terminal:
            # Escape sequences of a payload would reach the terminal.
            text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
        out = sys.stdout.buffer
        out.write(text.encode("utf-8", "replace") + b"\n")
        out.flush()

    async def _value(self, topic: str, message: Message) -> Any:
        """Return the decoded value, or bytes."""
        if message.has_null_value:
            return None
        if not self._decodes or len(message.metadata.encryption_keys) > 0:
            return message.value
        codec = await self._codec(topic, message.metadata.schema_version)
        try:
            if isinstance(codec, KeyValue):
                return codec.decode(key_bytes(message), message.value)
            return codec.decode(message.value)
        except ValueError as error:
            raise InputError(
                f"{topic}: the message {id_text(message)} cannot be decoded: {error}; use"
                " --schema-type bytes."
            ) from None

    async def _codec(self, topic: str, version: bytes) -> Codec | KeyValue:
        name = TopicName.get(topic).partitioned_topic_name
        found = self._codecs.get((name, version))
        if found is None:
            schema = None
            if version:
                try:
                    schema = await self._client.schema(name, version)
                except BrokerRefused as error:
                    raise InputError(f"The schema of {name} cannot be read: {error}") from None
            found = self._codecs[name, version] = codec_of(schema)
        return found

    # --- text -----------------------------------------------------------------------------------

    def _text(self, message: Message, value: Any) -> str:
        properties = ", ".join(f"{key}={text}" for key, text in message.properties.items())
        content = _dumped(value) if self._options.hex and isinstance(value, bytes) else ""
        shown = (
            f"publishTime:[{message.metadata.publish_time}], eventTime:[{message.event_time_ms}],"
            f" key:[{'null' if message.key is None else message.key}], properties:[{properties}],"
            f" content:{content or as_java(value)}"
        )
        if not self._options.print_metadata:
            return shown
        more = (f"{name}:{text}" for name, text in _metadata(message).items())
        return ", ".join((shown, *more))

    # --- JSON -----------------------------------------------------------------------------------

    def _object(self, topic: str, message: Message, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {
            "topic": topic,
            "messageId": id_text(message),
            "publishTime": message.metadata.publish_time,
            "eventTime": message.event_time_ms,
            "key": message.key,
            "properties": message.properties,
        }
        if self._options.print_metadata:
            single, metadata = message.single, message.metadata
            found["producerName"] = metadata.producer_name
            found["sequenceId"] = single.sequence_id
            found["redeliveryCount"] = message.redelivery_count
            found["replicatedFrom"] = metadata.replicated_from or None
            found["orderingKey"] = _text_or_none(single.ordering_key)
            version = metadata.schema_version
            found["schemaVersion"] = int.from_bytes(version, "big") if version else None
        if isinstance(value, bytes):
            try:
                found["value"] = value.hex() if self._options.hex else value.decode()
            except UnicodeDecodeError:
                found["valueBase64"] = base64.b64encode(value).decode()
        else:
            found["value"] = value
        return found


def id_text(message: Message) -> str:
    """Return a message id as Java's client prints it: ledger:entry:partition, :batch."""
    id = message.id
    text = f"{id.ledger}:{id.entry}:{id.partition}"
    return text if id.batch < 0 else f"{text}:{id.batch}"


def key_bytes(message: Message) -> bytes | None:
    """Return the key of a message, decoded if the metadata says that it is in base64."""
    if message.key is None:
        return None
    if message.single.partition_key_b64_encoded:
        return base64.b64decode(message.key)
    return message.key.encode()


def _text_or_none(data: bytes) -> str | None:
    return data.decode(errors="replace") if data else None


def _metadata(message: Message) -> dict[str, Any]:
    metadata = message.metadata
    version = metadata.schema_version.decode(errors="replace")
    return {
        "event-time": _moment(message.event_time_ms),
        "message-id": id_text(message),
        "producer-name": metadata.producer_name,
        "sequence-id": message.single.sequence_id,
        "replicated-from": metadata.replicated_from or "null",
        "redelivery-count": message.redelivery_count,
        "ordering-key": _text_or_none(message.single.ordering_key) or "",
        "schema-version": version,
    }


def _moment(ms: int) -> str:
    from datetime import datetime

    moment = datetime.fromtimestamp(ms // 1000).astimezone().isoformat(timespec="seconds")
    fraction = f".{ms % 1000:03}".rstrip("0").rstrip(".")
    return moment[:19] + fraction + moment[19:].replace("+00:00", "Z")


def _dumped(data: bytes) -> str:
    """Return lines with an offset, hexadecimal digits and ASCII, as Apache Commons IO has them."""
    lines = []
    for at in range(0, len(data), HEX_WIDTH):
        part = data[at : at + HEX_WIDTH]
        digits = "".join(f"{each:02X} " for each in part)
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{at:08X} {digits:{3 * HEX_WIDTH}}{shown}\n")
    return "".join(lines)

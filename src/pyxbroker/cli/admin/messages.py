"""Messages that REST returns: a body with headers, printed as pulsar-admin prints them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyxbroker.cli.admin.output import pairs_of
from pyxbroker.client.http import HttpAnswer

LINE = "-" * 73
_FRAME = "+" + "-" * 49 + "+"
_HEAD = "|" + "".join(f"  {each:x}" for each in range(16)) + " |"


def messages_of(answer: HttpAnswer) -> list[dict[str, Any]]:
    """Return the messages of an entry: one, or those of a batch."""
    headers = {
        name.removeprefix("x-pulsar-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-pulsar-")
    }
    message = {
        "messageId": headers.get("message-id", ""),
        "publishTime": headers.get("publish-time", "0"),
        "eventTime": headers.get("event-time", "0"),
        "properties": _properties(headers.get("property", "")),
    }
    if "deliver-at-time" in headers:
        message["deliverAtTime"] = headers["deliver-at-time"]
    if "partition-key" in headers:
        message["key"] = headers["partition-key"]
    if "num-batch-message" not in headers:
        return [message | {"payload": answer.body}]
    return [
        message | single | {"messageId": f"{message['messageId']}:{index}"}
        for index, single in enumerate(_singles(answer.body))
    ]


def _properties(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _singles(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the messages of a batch."""
    from pyxbroker.proto import PulsarApi as pb

    at = 0
    while at + 4 <= len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        single = pb.SingleMessageMetadata.FromString(body[at + 4 : at + 4 + size])
        at += 4 + size
        found: dict[str, Any] = {"payload": body[at : at + single.payload_size]}
        at += single.payload_size
        found["properties"] = {each.key: each.value for each in single.properties}
        if single.HasField("partition_key"):
            found["key"] = single.partition_key
        yield found


def messages_text(messages: list[dict[str, Any]]) -> str:
    return f"\n{LINE}\n\n".join("\n".join(_lines(each)) for each in messages)


def _lines(message: dict[str, Any]) -> Iterator[str]:
    place = message["messageId"]
    yield f"{'Batch ' if place.count(':') > 1 else ''}Message ID: {place}"
    yield f"Publish time: {message['publishTime']}"
    yield f"Event time: {message['eventTime']}"
    if "deliverAtTime" in message:
        yield f"Deliver at time: {message['deliverAtTime']}"
    if message["properties"]:
        yield "Properties:"
        yield pairs_of(message["properties"])
    if message["payload"]:
        yield from _dump(message["payload"])


def _dump(data: bytes) -> Iterator[str]:
    """Yield the lines of a hexadecimal dump."""
    yield " " * 9 + _FRAME
    yield " " * 9 + _HEAD
    yield "+--------" + _FRAME + "----------------+"
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        codes = "".join(f" {each:02x}" for each in row)
        text = "".join(chr(each) if 0x1F < each < 0x7F else "." for each in row)
        yield f"|{at:08x}|{codes:48} |{text:16}|"
    yield "+--------" + _FRAME + "----------------+"

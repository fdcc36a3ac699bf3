"""Protobuf messages that are stored: parsed, or refused as malformed."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from pyxbroker.metadata.store import MetadataError


class MalformedRecord(MetadataError):
    """The bytes are not the record that they should be."""


def parse(message_class: Any, data: bytes) -> Any:
    """The message that the bytes are. Raises MalformedRecord, also where a needed field lacks."""
    name = message_class.DESCRIPTOR.name
    try:
        message = message_class.FromString(data)
    except DecodeError as error:
        raise MalformedRecord(f"not a {name}: {error}") from error
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise MalformedRecord(f"not a {name}: it lacks {missing}")
    return message


def text_of(value: str | bytes) -> str:
    """A text of a message, which protobuf gives as bytes where they are not UTF-8.

    Raises MalformedRecord.
    """
    if isinstance(value, str):
        return value
    raise MalformedRecord(f"{value[:40]!r} is not UTF-8")

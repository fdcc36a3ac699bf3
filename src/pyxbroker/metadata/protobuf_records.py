"""Parsing of stored protobuf messages."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from pyxbroker.metadata.store import MetadataError


class MalformedRecord(MetadataError):
    """The bytes are not a valid record of the expected type."""


def parse(message_class: Any, data: bytes) -> Any:
    """Parse a message. Raises MalformedRecord, also for a missing required field."""
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
    """Return a text field, which protobuf returns as bytes if it is not UTF-8.

    Raises MalformedRecord.
    """
    if isinstance(value, str):
        return value
    raise MalformedRecord(f"{value[:40]!r} is not UTF-8")

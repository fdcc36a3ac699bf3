"""Checks before a command is handled: its number of bytes and fields, and all of its text.

A frame has room for millions of fields of two bytes. Parsing blocks the event loop in proportion to
their number, so the number is limited.

Text must be UTF-8 and within its limits. The messages are proto2, whose parser accepts any bytes
for a string, and returns invalid UTF-8 as bytes. The check here lets handlers rely on text. Apache
Pulsar replaces invalid bytes instead, so that different names become equal.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pyxbroker import commands
from pyxbroker.base import limits
from pyxbroker.base.errors import InvalidTopicName, MetadataStoreError, NotAllowed, PulsarError
from pyxbroker.proto import PulsarApi as pb

_PROPERTIES = "KeyValue"
_REQUEST_ID = "request_id"
REQUEST_ID_FIELDS_MAX = 100  # clients write fields in order, so the request id is among the first


class _Text(NamedTuple):
    """The limits of a text field, and the error for a violation."""

    what: str
    bytes_max: int
    error: type[PulsarError] = NotAllowed

    def check(self, value: str | bytes) -> None:
        """Raise the error for a text that is not allowed."""
        if not isinstance(value, str):
            raise self.error(f"The {self.what} is not UTF-8 text.")
        trouble = limits.too_long(self.what, value, self.bytes_max)
        if trouble is not None:
            raise self.error(trouble)


# By field name; a name means the same in every command.
_TEXTS = {
    "topic": _Text("topic name", limits.TOPIC_NAME_BYTES_MAX, InvalidTopicName),
    "namespace": _Text("namespace", limits.NAMESPACE_NAME_BYTES_MAX, InvalidTopicName),
    "topics_pattern": _Text("topics pattern", limits.TEXT_BYTES_MAX, MetadataStoreError),
    "subscription": _Text("subscription name", limits.SUBSCRIPTION_BYTES_MAX),
    "initial_subscription_name": _Text("subscription name", limits.SUBSCRIPTION_BYTES_MAX),
    "consumer_name": _Text("consumer name", limits.CONSUMER_BYTES_MAX),
    "partitions": _Text("topic name", limits.TOPIC_NAME_BYTES_MAX, InvalidTopicName),
    "producer_name": _Text("producer name", limits.PRODUCER_BYTES_MAX),
    "client_version": _Text("client version", limits.CLIENT_VERSION_BYTES_MAX),
    "proxy_version": _Text("proxy version", limits.CLIENT_VERSION_BYTES_MAX),
}


class _Plan(NamedTuple):
    """The fields of a message type that can contain text."""

    texts: tuple[tuple[str, _Text], ...]
    lists: tuple[tuple[str, _Text], ...]
    """Repeated texts."""
    properties: tuple[str, ...]
    messages: tuple[str, ...]  # nested messages to check
    message_lists: tuple[str, ...]  # repeated ones


def exceeded_limit(kind: int, data: bytes) -> str | None:
    """Return which limit a BaseCommand exceeds, or None. The broker does not parse it then."""
    size = len(data)
    # Nearly all commands are too short to exceed a limit.
    if size <= limits.COMMAND_FIELDS_MAX:
        return None
    if size > limits.COMMAND_BYTES_MAX and not _may_have_schema(kind):
        return f"{limits.COMMAND_BYTES_MAX} bytes"
    if commands.has_more_fields(data, _shape_of_command(), limits.COMMAND_FIELDS_MAX):
        return f"{limits.COMMAND_FIELDS_MAX} fields"
    return None


def request_of(kind: int, data: bytes) -> Any:
    """Return the message of an unparsed BaseCommand, with only its request id. Return None if it
    has no request id, or none can be found.
    """
    field = pb.BaseCommand.DESCRIPTOR.fields_by_number.get(kind)
    request_id = field and field.message_type and field.message_type.fields_by_name.get(_REQUEST_ID)
    if not request_id:
        return None
    number = commands.find_number(data, request_id.number, REQUEST_ID_FIELDS_MAX)
    if number is None:
        return None
    message = getattr(pb.BaseCommand(), field.name)
    message.request_id = number
    return message


def check_text(message: Any) -> None:
    """Raise the error for the client (InvalidTopicName, NotAllowed, ...) if a text is not allowed.

    The error message does not repeat the text.
    """
    plan = _plan(message.DESCRIPTOR)
    for name, text in plan.texts:
        value = getattr(message, name)
        # Nearly all texts are so short that they fit in any encoding.
        if type(value) is not str or len(value) > limits.SURELY_SHORT:
            text.check(value)
    for name, text in plan.lists:
        for value in getattr(message, name):
            text.check(value)
    for name in plan.properties:
        _check_properties(name, getattr(message, name))
    for name in plan.messages:
        if message.HasField(name):
            check_text(getattr(message, name))
    for name in plan.message_lists:
        for each in getattr(message, name):
            check_text(each)


def _check_properties(what: str, pairs: Any) -> None:
    found: list[tuple[str, str]] = []
    if len(pairs) > limits.PROPERTIES_MAX:
        # A frame has room for a million properties; checking each would block the event loop.
        raise NotAllowed(limits.too_many(what, len(pairs)))
    for each in pairs:
        key, value = each.key, each.value
        if not (isinstance(key, str) and isinstance(value, str)):
            raise NotAllowed(f"The {what} have a key or value that is not UTF-8 text.")
        found.append((key, value))
    trouble = limits.properties_trouble(what, found)
    if trouble is not None:
        raise NotAllowed(trouble)


@cache
def _plan(descriptor: Any) -> _Plan:
    texts: list[tuple[str, _Text]] = []
    lists: list[tuple[str, _Text]] = []
    properties, messages, message_lists = [], [], []
    for field in descriptor.fields:
        nested = field.message_type
        if field.type == field.TYPE_STRING:
            default = _Text(field.name.replace("_", " "), limits.TEXT_BYTES_MAX)
            kind = lists if field.is_repeated else texts
            kind.append((field.name, _TEXTS.get(field.name, default)))
        elif nested is None:
            continue
        elif nested.name == _PROPERTIES:
            properties.append(field.name)
        elif not field.is_repeated:
            messages.append(field.name)
        elif any(each.type == field.TYPE_STRING for each in nested.fields):
            message_lists.append(field.name)
    return _Plan(
        *(tuple(texts), tuple(lists), tuple(properties), tuple(messages), tuple(message_lists))
    )


@cache
def _may_have_schema(kind: int) -> bool:
    field = pb.BaseCommand.DESCRIPTOR.fields_by_number.get(kind)
    return bool(field and field.message_type and "schema" in field.message_type.fields_by_name)


@cache
def _shape_of_command() -> list[Any]:
    """Return the description of a BaseCommand that has_more_fields needs."""
    known: dict[str, list[Any]] = {}

    def shape(descriptor: Any) -> list[Any]:
        found = known.get(descriptor.full_name)
        if found is not None:
            return found
        # Registered before its fields: one message type contains itself.
        found = known[descriptor.full_name] = [None] * (
            max(descriptor.fields_by_number, default=0) + 1
        )
        for field in descriptor.fields:
            if field.message_type is not None:
                found[field.number] = shape(field.message_type)
            elif field.is_repeated and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
                found[field.number] = True
        return found

    return shape(pb.BaseCommand.DESCRIPTOR)

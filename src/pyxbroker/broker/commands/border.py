"""What a command has to be before anybody looks at it: of no more bytes and fields than it may
have, and all of its text UTF-8 and within its limits.

A frame has room for millions of fields of two bytes, and to parse them holds everybody up for as
long as their number says, which a command may therefore not reach.

The messages are proto2, whose parser takes any bytes for a string and hands over those that are no
UTF-8 as bytes. So a command is looked at once, as it comes in; whoever handles it has text. Apache
Pulsar puts replacement characters in their place, which makes different names the same.
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
REQUEST_ID_FIELDS_MAX = 100  # among which the request id is: clients write fields by their numbers


class _Text(NamedTuple):
    """What a field of text may be, and what its sender is told else."""

    what: str
    bytes_max: int
    error: type[PulsarError] = NotAllowed

    def check(self, value: str | bytes) -> None:
        """Raises the error of a text that cannot be."""
        if not isinstance(value, str):
            raise self.error(f"The {self.what} is not UTF-8 text.")
        trouble = limits.too_long(self.what, value, self.bytes_max)
        if trouble is not None:
            raise self.error(trouble)


# By the name of the field, which means the same in every command.
_TEXTS = {
    "topic": _Text("topic name", limits.TOPIC_NAME_BYTES_MAX, InvalidTopicName),
    "namespace": _Text("namespace", limits.NAMESPACE_NAME_BYTES_MAX, InvalidTopicName),
    "topics_pattern": _Text("topics pattern", limits.TEXT_BYTES_MAX, MetadataStoreError),
    "subscription": _Text("subscription name", limits.SUBSCRIPTION_BYTES_MAX),
    "initial_subscription_name": _Text("subscription name", limits.SUBSCRIPTION_BYTES_MAX),
    "consumer_name": _Text("consumer name", limits.CONSUMER_BYTES_MAX),
    "producer_name": _Text("producer name", limits.PRODUCER_BYTES_MAX),
    "client_version": _Text("client version", limits.CLIENT_VERSION_BYTES_MAX),
    "proxy_version": _Text("proxy version", limits.CLIENT_VERSION_BYTES_MAX),
}


class _Plan(NamedTuple):
    """The fields of one kind of message that text may be in."""

    texts: tuple[tuple[str, _Text], ...]
    properties: tuple[str, ...]
    messages: tuple[str, ...]  # which may have text themselves


def excess(kind: int, data: bytes) -> str | None:
    """What a BaseCommand has more of than it may have, which is why it is not parsed."""
    size = len(data)
    # Nearly all are so short that they have neither.
    if size <= limits.COMMAND_FIELDS_MAX:
        return None
    if size > limits.COMMAND_BYTES_MAX and not _may_have_schema(kind):
        return f"{limits.COMMAND_BYTES_MAX} bytes"
    if commands.has_more_fields(data, _shape_of_command(), limits.COMMAND_FIELDS_MAX):
        return f"{limits.COMMAND_FIELDS_MAX} fields"
    return None


def request_of(kind: int, data: bytes) -> Any:
    """The message of a BaseCommand that is not parsed, with its request id alone; None: it has
    none, or cannot be found.
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
    """Raises the error that the command is answered with: InvalidTopicName, NotAllowed and so on.

    Its sentence does not repeat the text.
    """
    plan = _plan(message.DESCRIPTOR)
    for name, text in plan.texts:
        value = getattr(message, name)
        # Nearly all are so short that they cannot be too long, whatever letters they have.
        if type(value) is not str or len(value) > limits.SURELY_SHORT:
            text.check(value)
    for name in plan.properties:
        _check_properties(name, getattr(message, name))
    for name in plan.messages:
        if message.HasField(name):
            check_text(getattr(message, name))


def _check_properties(what: str, pairs: Any) -> None:
    found: list[tuple[str, str]] = []
    if len(pairs) > limits.PROPERTIES_MAX:
        # A frame has room for a million of them, and to look at each would hold everybody up.
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
    texts, properties, messages = [], [], []
    for field in descriptor.fields:
        nested = field.message_type
        if field.type == field.TYPE_STRING:
            default = _Text(field.name.replace("_", " "), limits.TEXT_BYTES_MAX)
            texts.append((field.name, _TEXTS.get(field.name, default)))
        elif nested is None:
            continue
        elif nested.name == _PROPERTIES:
            properties.append(field.name)
        elif not field.is_repeated:
            messages.append(field.name)
    return _Plan(tuple(texts), tuple(properties), tuple(messages))


@cache
def _may_have_schema(kind: int) -> bool:
    field = pb.BaseCommand.DESCRIPTOR.fields_by_number.get(kind)
    return bool(field and field.message_type and "schema" in field.message_type.fields_by_name)


@cache
def _shape_of_command() -> list[Any]:
    """What has_more_fields wants to know of a BaseCommand."""
    known: dict[str, list[Any]] = {}

    def shape(descriptor: Any) -> list[Any]:
        found = known.get(descriptor.full_name)
        if found is not None:
            return found
        # Known before its fields are: one kind of message has itself in it.
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

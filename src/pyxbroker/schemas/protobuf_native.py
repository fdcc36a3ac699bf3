"""The definition of a PROTOBUF_NATIVE schema: JSON with a FileDescriptorSet and the name of its
root message, like Pulsar's ProtobufNativeSchemaData.

The root message must be in its file, and each imported file must be present. Whether the types of
all fields are consistent is left to readers, since building them takes long.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from pyxbroker.base.slices import Steps
from pyxbroker.schemas.values import MalformedSchema

NAMES_PER_STEP = 500
FILES_MAX = 1000
"""Files of a FileDescriptorSet. Each becomes an object, however short it is."""

_FILE = b"\x0a"  # the tag of a file in its set


def root_message(data: bytes) -> Steps[str]:
    """Return the full name of a definition's root message. Raises MalformedSchema."""
    if max(data.count(each) for each in (b",", b":", b"[", b"{")) > NAMES_PER_STEP:
        raise MalformedSchema("its JSON has more than the three fields of a PROTOBUF_NATIVE schema")
    try:
        fields: Any = json.loads(data)
        encoded = base64.b64decode(fields["fileDescriptorSet"])
        name, file_name = fields["rootMessageTypeName"], fields["rootFileDescriptorName"]
        _check_files(encoded)
        files = descriptor_pb2.FileDescriptorSet.FromString(encoded).file
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise MalformedSchema(f"it is not JSON with a FileDescriptorSet: {error!r:.200}") from None
    if not isinstance(name, str) or not isinstance(file_name, str):
        raise MalformedSchema("the name of the root message or of its file is not text")
    yield
    by_name: dict[str, Any] = {}
    for number, each in enumerate(files, start=1):
        by_name[each.name] = each
        if number % NAMES_PER_STEP == 0:
            yield
    yield from _check_imports(by_name, file_name)
    root = by_name[file_name]
    package = f"{root.package}." if root.package else ""
    if name.startswith(package):
        found = yield from _has_message(root.message_type, name[len(package) :])
        if found:
            return name
    raise MalformedSchema(f"{file_name[:100]!r} has no message {name[:100]!r}")


def _check_files(encoded: bytes) -> None:
    """Raise MalformedSchema if a FileDescriptorSet has too many files. Invalid bytes end the check,
    since parsing reports them next.
    """
    at = files = 0
    while encoded[at : at + 1] == _FILE:
        files += 1
        if files > FILES_MAX:
            raise MalformedSchema(f"it has more than {FILES_MAX} files")
        at += 1
        length = 0
        for shift in range(0, 70, 7):
            byte = encoded[at] if at < len(encoded) else 0
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        at += length


def _check_imports(by_name: dict[str, Any], root: str) -> Steps[None]:
    """Raise MalformedSchema if a file that the root imports is missing."""
    seen, todo = {root}, [root]
    names = 0
    while todo:
        name = todo.pop()
        found = by_name.get(name)
        if found is None:
            raise MalformedSchema(f"the file {name[:100]!r} is missing")
        for each in found.dependency:
            names += 1
            if names % NAMES_PER_STEP == 0:
                yield
            if each not in seen:
                seen.add(each)
                todo.append(each)


def _has_message(messages: Any, name: str) -> Steps[bool]:
    """Return True if a message is among the given ones, or nested in them, by its dotted name."""
    while True:
        first, _, rest = name.partition(".")
        found = None
        for number, each in enumerate(messages, start=1):
            if each.name == first:
                found = each
                break
            if number % NAMES_PER_STEP == 0:
                yield
        if found is None:
            return False
        if not rest:
            return True
        messages, name = found.nested_type, rest

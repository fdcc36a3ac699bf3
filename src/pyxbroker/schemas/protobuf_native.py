"""The definition of a PROTOBUF_NATIVE schema: JSON with a FileDescriptorSet and the name of its root
message, as Pulsar's ProtobufNativeSchemaData.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from pyxbroker.schemas.values import NoSchema

FILES_MAX = 1_000


def root_message(data: bytes) -> str:
    """The full name of the message that a definition is about. Raises NoSchema."""
    try:
        fields: Any = json.loads(data)
        encoded = base64.b64decode(fields["fileDescriptorSet"])
        name, file_name = fields["rootMessageTypeName"], fields["rootFileDescriptorName"]
        files = descriptor_pb2.FileDescriptorSet.FromString(encoded).file
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise NoSchema(f"it is no JSON with a FileDescriptorSet: {error!r:.200}") from None
    if len(files) > FILES_MAX:
        raise NoSchema(f"it has {len(files)} files, and at most {FILES_MAX} are allowed")
    if not isinstance(name, str) or not isinstance(file_name, str):
        raise NoSchema("the name of the root message or of its file is no text")
    pool = DescriptorPool()
    try:
        left = {each.name: each for each in files}
        _add(pool, left, file_name)
        return str(pool.FindMessageTypeByName(name).full_name)
    except (KeyError, TypeError, ValueError) as error:
        raise NoSchema(f"the root message {name[:100]!r} cannot be built: {error!s:.200}") from None


def _add(pool: DescriptorPool, left: dict[str, Any], root: str) -> None:
    """Adds a file after those that it imports, however they are ordered. Raises KeyError."""
    under_way = [root]
    while under_way:
        name = under_way[-1]
        found = left.get(name)
        if found is None:
            # Added already: another file imports it, too.
            under_way.pop()
            continue
        missing = [each for each in found.dependency if each in left and each != name]
        if missing and len(under_way) <= len(left):
            under_way.append(missing[0])
            continue
        under_way.pop()
        del left[name]
        pool.AddSerializedFile(found.SerializeToString())

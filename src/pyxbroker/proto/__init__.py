"""The protobuf messages of the wire and of the metadata, one namespace per .proto file.

    from pyxbroker.proto import PulsarApi as pb
    command = pb.BaseCommand(type=pb.BaseCommand.PING)

The build compiles proto/*.proto to one descriptor set. A file is added to protobuf's pool when it
is first used, and so is a message class, so that a process loads only what it needs. The pool is
private: other libraries with .proto files of the same names cannot conflict with it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.internal import api_implementation
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor

_DESCRIPTORS = Path(__file__).with_name("descriptors.bin")


def _native() -> Any:
    """Return protobuf's implementation in C, or None if another one is active.

    The public modules for pools and message classes always import the implementation in Python as
    well. That is a twentieth of the startup time, and of the memory of an idle broker.
    """
    if api_implementation.Type() != "upb":
        return None
    module: Any = importlib.import_module("google._upb._message")
    has_all = hasattr(module, "DescriptorPool") and hasattr(module, "MessageMeta")
    return module if has_all else None


def _new_pool() -> Any:
    if _upb is not None:
        return _upb.DescriptorPool()
    from google.protobuf.descriptor_pool import DescriptorPool

    return DescriptorPool()


def _message_class(descriptor: Descriptor) -> Any:
    """Return the class of a message, created on first use together with those of its fields."""
    if _upb is None:
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(descriptor)
    made = getattr(descriptor, "_concrete_class", None)
    if made is None:
        # As in GetMessageClass; our files have no extensions.
        attributes = {"DESCRIPTOR": descriptor, "__module__": None}
        made = _upb.MessageMeta(descriptor.name, (Message,), attributes)
        for field in descriptor.fields:
            if field.message_type is not None:
                _message_class(field.message_type)
    return made


_upb: Any = _native()
_pool: Any = _new_pool()
_files: dict[str, bytes] = {}


class ProtoFile:
    """The contents of one .proto file: message classes, enum wrappers, enum values as ints."""

    def __init__(self, descriptor: FileDescriptor) -> None:
        self.DESCRIPTOR = descriptor

    def __getattr__(self, name: str) -> Any:
        value = self._look_up(name)
        setattr(self, name, value)
        return value

    def _look_up(self, name: str) -> Any:
        file = self.DESCRIPTOR
        if name in file.message_types_by_name:
            return _message_class(file.message_types_by_name[name])
        if name in file.enum_types_by_name:
            return EnumTypeWrapper(file.enum_types_by_name[name])
        for enum in file.enum_types_by_name.values():
            if name in enum.values_by_name:
                return enum.values_by_name[name].number
        raise AttributeError(f"{file.name} defines no {name}")

    def __dir__(self) -> list[str]:
        file = self.DESCRIPTOR
        return [*file.message_types_by_name, *file.enum_types_by_name]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if not _files:
        _read_descriptors()
    if name not in _files:
        raise AttributeError(f"there is no proto/{name}.proto; known are {', '.join(_files)}")
    file = ProtoFile(_pool.AddSerializedFile(_files[name]) or _pool.FindFileByName(f"{name}.proto"))
    globals()[name] = file
    return file


def _read_descriptors() -> None:
    """Split the FileDescriptorSet (repeated bytes field 1) without parsing the files in it.

    Each file begins with its own field 1, its name. The pool parses a file only when it is used.
    """
    data = _DESCRIPTORS.read_bytes()
    offset = 0
    while offset < len(data):
        file, offset = _length_delimited(data, offset)
        name, _ = _length_delimited(file, 0)
        _files[name.decode().removesuffix(".proto")] = file


def _length_delimited(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return a field with number 1 and wire type 2 at `offset`, and the offset of the next one."""
    if data[offset] != 0x0A:
        raise ValueError(f"{_DESCRIPTORS} is damaged; build the package again")
    offset += 1
    length = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    end = offset + length
    if end > len(data):
        raise ValueError(f"{_DESCRIPTORS} is cut short; build the package again")
    return data[offset:end], end

"""Protocol Buffers: a column for each field of the topic's message type.

The definition of PROTOBUF_NATIVE has file descriptors. The definition of PROTOBUF is an Avro schema
without field numbers. A property of the schema has the numbers, but not the fields of nested
messages and the values of enums. So a PROTOBUF topic has columns only if all fields are numbers,
booleans, strings or bytes.

Fields are read by their numbers, so the newest schema reads messages of older ones, as Protocol
Buffers promise. A missing field without presence has the default of its type; any other missing
field is null.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyxbroker.entry_columns import EntryColumns, Filled
from pyxbroker.spark.avro_types import NoColumn
from pyxbroker.spark.values import (
    Nothing,
    Values,
    columns_of_bytes,
    each_value,
    filled_array,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql.types import DataType, StructField

    from pyxbroker.spark.avro_programs import Definitions

_TIMESTAMP = "google.protobuf.Timestamp"
_PARSING_INFO = "__PARSING_INFO__"

_Read = Callable[[Any], Any]
"""A function that returns a column's value of a message."""

# Spark's types by FieldDescriptor.Type; unsigned types get the next larger type.
_SIMPLE = {
    1: "DoubleType",
    2: "FloatType",
    3: "LongType",  # int64
    4: "",  # uint64: a decimal
    5: "IntegerType",  # int32
    6: "",  # fixed64
    7: "LongType",  # fixed32
    8: "BooleanType",
    9: "StringType",
    12: "BinaryType",
    13: "LongType",  # uint32
    14: "StringType",  # enum
    15: "IntegerType",  # sfixed32
    16: "LongType",  # sfixed64
    17: "IntegerType",  # sint32
    18: "LongType",  # sint64
}
_MESSAGE, _ENUM, _REPEATED = 11, 14, 3
"""Values of FieldDescriptor.Type and of FieldDescriptorProto.Label."""

FIELDS_MAX = 10_000
"""The limit of fields including nested messages, which may repeat a message at each level."""
DEPTH_MAX = 32
"""The limit of nesting."""

_found_before: dict[tuple[bytes, str], tuple[Any, Descriptor]] = {}


class ProtobufMessage:
    """A column for each field of a message type."""

    is_record = True
    of_keys: tuple[str, ...] = ()

    def __init__(self, files: bytes, root: str) -> None:
        """Use `of_native` or `of_avro`.

        files: a FileDescriptorSet. root: the full name of the message type.
        """
        self._files = files
        self._root = root
        self._only: tuple[str, ...] | None = None

    @classmethod
    def of_native(cls, definition: bytes) -> ProtobufMessage | None:
        """Read a definition of PROTOBUF_NATIVE; None: it cannot become columns."""
        try:
            found = json.loads(definition)
            files = base64.b64decode(found["fileDescriptorSet"])
            root = found["rootMessageTypeName"]
        except (KeyError, TypeError, ValueError):
            return None
        return cls._checked(files, root)

    @classmethod
    def of_avro(cls, definition: bytes, properties: dict[str, str]) -> ProtobufMessage | None:
        """Read a definition of PROTOBUF and its properties; None: it cannot become columns."""
        try:
            fields = json.loads(properties[_PARSING_INFO])
            avro = json.loads(definition)
            defaults = {each["name"]: each.get("default") for each in avro["fields"]}
            files = _file_of(fields, defaults)
        except (AttributeError, KeyError, NoColumn, TypeError, ValueError):
            return None
        return cls._checked(files, "Described")

    @classmethod
    def _checked(cls, files: bytes, root: str) -> ProtobufMessage | None:
        made = cls(files, root)
        try:
            names = [field.name for field in made.fields()]
        except (NoColumn, KeyError, TypeError, ValueError):
            return None
        return None if any(name.startswith("__") for name in names) else made

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import StructField

        descriptor = self._load()[1]
        kinds = _Kinds()
        return [
            StructField(field.name, kinds.of(field, (descriptor.full_name,)))
            for field in self._fields(descriptor)
        ]

    def only(self, names: Sequence[str]) -> Values:
        if not names:
            return Nothing()
        made = ProtobufMessage(self._files, self._root)
        made._only = tuple(names)
        return made

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        return columns_of_bytes(partition, kept)

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        message, descriptor = self._load()
        fields = self._fields(descriptor)
        reads = [_read(field) for field in fields]

        def fields_of(payload: bytes, _: bytes) -> list[Any]:
            found = message.FromString(payload)
            return [read(found) for read in reads]

        rows = [
            [None] * len(fields) if row is None else row for row in each_value(filled, fields_of)
        ]
        return [
            filled_array(filled, field.name, [row[index] for row in rows], kind)
            for index, (field, kind) in enumerate(zip(fields, kinds, strict=True))
        ]

    def _load(self) -> tuple[Any, Descriptor]:
        """Return (message class, descriptor). Raises KeyError, TypeError, ValueError."""
        key = self._files, self._root
        if key not in _found_before:
            _found_before[key] = _message_of(*key)
        return _found_before[key]

    def _fields(self, descriptor: Descriptor) -> list[FieldDescriptor]:
        """Return the selected fields."""
        if self._only is None:
            return list(descriptor.fields)
        return [descriptor.fields_by_name[name] for name in self._only]


def _message_of(files: bytes, root: str) -> tuple[Any, Descriptor]:
    """Build (message class, descriptor). Raises KeyError, TypeError, ValueError."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(files)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    remaining = {each.name: each for each in found.file}
    added: set[str] = set()
    while remaining:
        ready = [each for each in remaining.values() if added.issuperset(each.dependency)]
        if not ready:
            raise ValueError(f"{next(iter(remaining))} needs a missing file")
        for each in ready:
            pool.AddSerializedFile(each.SerializeToString())
            added.add(each.name)
            del remaining[each.name]
    descriptor = pool.FindMessageTypeByName(root)
    return message_factory.GetMessageClass(descriptor), descriptor


def _file_of(fields: list[dict[str, Any]], defaults: dict[str, Any]) -> bytes:
    """Return the FileDescriptorSet of a message with the fields of __PARSING_INFO__.

    defaults: of Avro's fields. Raises NoColumn if the fields are not fully described.
    """
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="described.proto", syntax="proto3")
    message = file.message_type.add(name="Described")
    types = descriptor_pb2.FieldDescriptorProto.Type
    for each in fields:
        type_ = types.Value(f"TYPE_{each['type']}")
        if type_ not in _SIMPLE or type_ == _ENUM:
            raise NoColumn(each["type"])
        if defaults.get(each["name"]):
            raise NoColumn("a default value, which Avro's schema encodes in its own way")
        label = _REPEATED if each["label"] == "LABEL_REPEATED" else 1
        message.field.add(name=each["name"], number=each["number"], type=type_, label=label)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


# --- Spark's types --------------------------------------------------------------------------------


class _Kinds:
    """A converter of a message's fields to Spark's types, with a limit on their number."""

    def __init__(self) -> None:
        self._remaining = FIELDS_MAX

    def of(self, field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
        """Return Spark's type of a field. Raises NoColumn. within: the enclosing messages."""
        from pyspark.sql import types

        self._remaining -= 1
        if self._remaining < 0:
            raise NoColumn("too many fields")
        if _is_map(field):
            parts = _message(field).fields_by_name
            return types.MapType(self.of(parts["key"], within), self.of(parts["value"], within))
        kind = self._of_one(field, within)
        return types.ArrayType(kind) if _is_repeated(field) else kind

    def _of_one(self, field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
        from pyspark.sql import types

        if field.type in _SIMPLE:
            name = _SIMPLE[field.type]
            found: DataType = getattr(types, name)() if name else types.DecimalType(20, 0)
            return found
        if field.type != _MESSAGE:
            raise NoColumn("a group")
        message = _message(field)
        if message.full_name == _TIMESTAMP:
            return types.TimestampType()
        if message.full_name in within:
            raise NoColumn("a message within itself")
        if not message.fields:
            raise NoColumn("a message without fields")
        if len(within) > DEPTH_MAX:
            raise NoColumn("too many levels of messages")
        within = (*within, message.full_name)
        return types.StructType(
            [types.StructField(each.name, self.of(each, within)) for each in message.fields]
        )


def _message(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None
    return field.message_type


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)


def _is_repeated(field: FieldDescriptor) -> bool:
    from google.protobuf import descriptor_pb2

    # The attribute of the field differs between versions of the library.
    message = descriptor_pb2.DescriptorProto()
    assert field.containing_type is not None
    field.containing_type.CopyToProto(message)
    return message.field[field.index].label == _REPEATED


# --- values ---------------------------------------------------------------------------------------


def _read(field: FieldDescriptor) -> _Read:
    """Return a function that reads a field of a message for pyarrow."""
    name = field.name
    if _is_map(field):
        one = _converter(_message(field).fields_by_name["value"])
        return lambda message: [(key, one(each)) for key, each in getattr(message, name).items()]
    one = _converter(field)
    if _is_repeated(field):
        return lambda message: [one(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    return lambda message: one(getattr(message, name))


def _converter(field: FieldDescriptor) -> _Read:
    """Return a function that converts one value for pyarrow."""
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.type != _MESSAGE:
        return lambda value: value
    message = _message(field)
    if message.full_name == _TIMESTAMP:
        return lambda moment: moment.seconds * 1_000_000 + moment.nanos // 1_000
    reads = [(each.name, _read(each)) for each in message.fields]
    return lambda value: {name: read(value) for name, read in reads}

"""Values of KEY_VALUE schemas: the columns `key` and `value`, each with its own schema.

With the encoding INLINE the payload has both, each after its length: 4 bytes, big-endian, -1 for
null. With SEPARATED the message's key is the key, and the payload is the value (Java's
KeyValueSchemaImpl). Each half is decoded like the payload of a topic with its schema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker import entry_columns
from pyxbroker.avro_columns import Undecodable
from pyxbroker.entry_columns import EntryColumns, Filled
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.schemas.values import Schema, SchemaType, halves
from pyxbroker.spark.arrays import bytes_of, payloads_of, position_in, positions_of
from pyxbroker.spark.avro_programs import Definitions
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.values import Bytes, Nothing, Values, columns_of_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField

KEY, VALUE = "key", "value"
_NAMES = (KEY, VALUE)
_LENGTH = struct.Struct(">i")

Pair = tuple[bytes | None, bytes | None]


class _Message(NamedTuple):
    """A message to decode: its position, its schema version, and its key and value."""

    position: tuple[int, int, int]
    version: bytes
    pair: Pair


class KeyValues:
    """The columns `key` and `value`. A record becomes a struct."""

    is_record = True

    def __init__(self, key: Values, value: Values, is_separated: bool) -> None:
        self._parts = _with_columns(key), _with_columns(value)
        self._is_separated = is_separated
        self._only: tuple[str, ...] = _NAMES

    @property
    def of_keys(self) -> tuple[str, ...]:
        return (KEY,) if self._is_separated and KEY in self._only else ()

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import StructField, StructType

        def kind(part: Values) -> StructField:
            fields = part.fields()
            return StructType(fields) if part.is_record else fields[0].dataType

        return [StructField(name, kind(self._part(name))) for name in self._only]

    def only(self, names: Sequence[str]) -> Values:
        if not names:
            return Nothing()
        made = KeyValues(*self._parts, self._is_separated)
        made._only = tuple(names)
        return made

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        needed = entry_columns.KEY if self.of_keys else 0
        return columns_of_bytes(partition, kept | entry_columns.POSITION | needed)

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        messages = list(self._messages(filled))
        return [
            self._array(name, messages, kind, definitions)
            for name, kind in zip(self._only, kinds, strict=True)
        ]

    # --- one half -------------------------------------------------------------------------------

    def _part(self, name: str) -> Values:
        return self._parts[_NAMES.index(name)]

    def _array(
        self, name: str, messages: list[_Message], kind: pa.DataType, definitions: Definitions
    ) -> pa.Array:
        """Return the column of a half. Raises PulsarSparkError."""
        import pyarrow as pa

        part, index = self._part(name), _NAMES.index(name)

        def definition(version: bytes) -> bytes:
            whole = Schema(SchemaType.KEY_VALUE, definitions(version))
            return halves(whole)[index].data

        filled = _decoded(part, name, messages, definition)
        if not part.is_record:
            return part.arrays(filled, [kind], definition)[0]
        fields = list(kind)
        arrays = part.arrays(filled, [each.type for each in fields], definition)
        nulls = pa.array([each.pair[index] is None for each in messages], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=nulls)

    # --- messages -------------------------------------------------------------------------------

    def _messages(self, filled: Filled) -> Iterator[_Message]:
        """Divide payloads into halves. Raises PulsarSparkError."""
        versions = dict(filled.versions)
        version = b""
        payloads = payloads_of(filled)
        keys = bytes_of(filled.key, filled.rows) if self.of_keys else [None] * filled.rows
        rows = zip(positions_of(filled), keys, payloads, strict=True)
        for row, (position, key, payload) in enumerate(rows):
            version = versions.get(row, version)
            pair: Pair = (key, payload)
            if not self._is_separated:
                try:
                    pair = inline(payload)
                except ValueError as error:
                    raise _unreadable(filled, row, str(error)) from error
            yield _Message(position, version, pair)


def _with_columns(part: Values) -> Values:
    """Return bytes instead of a record without fields, which cannot be an Arrow struct."""
    return part if part.fields() else Bytes()


def _decoded(part: Values, name: str, messages: list[_Message], definition: Definitions) -> Filled:
    """Decode a half of each message. Raises PulsarSparkError."""
    columns = part.columns(-1, definition, 0)
    index = _NAMES.index(name)
    heads: dict[tuple[bytes, bool], bytes] = {}
    for message in messages:
        payload = message.pair[index]
        kind = message.version, payload is None
        head = heads.get(kind)
        if head is None:
            head = heads[kind] = _head(*kind)
        try:
            columns.add_message(message.position, head, payload or b"")
        except Undecodable as error:
            ledger, entry, _ = message.position
            raise PulsarSparkError(
                f"the message {ledger}:{entry} cannot be read by its schema: its {name} is"
                f" invalid ({error})."
            ) from error
    return columns.finish()


def _head(version: bytes, is_null: bool) -> bytes:
    """Return the encoded MessageMetadata of a half."""
    head = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
    if version:
        head.schema_version = version
    if is_null:
        head.null_value = True
    return bytes(head.SerializeToString())


def inline(payload: bytes | None) -> Pair:
    """Return the key and the value of a payload. Raises ValueError."""
    if payload is None:
        return None, None
    key, at = _key_or_value(payload, 0)
    value, at = _key_or_value(payload, at)
    if at != len(payload):
        raise ValueError(f"{len(payload) - at} bytes follow its key and value")
    return key, value


def _key_or_value(payload: bytes, at: int) -> tuple[bytes | None, int]:
    """Return (the key or value at an offset, the offset of its end). Raises ValueError."""
    begin = at + _LENGTH.size
    if begin > len(payload):
        raise ValueError("it ends before its key and value do")
    (length,) = _LENGTH.unpack_from(payload, at)
    if length < 0:
        return None, begin
    if length > len(payload) - begin:
        raise ValueError("it ends before its key and value do")
    return payload[begin : begin + length], begin + length


def _unreadable(filled: Filled, row: int, why: str) -> PulsarSparkError:
    return PulsarSparkError(
        f"the message {position_in(filled, row)} cannot be read by its schema: {why}."
    )

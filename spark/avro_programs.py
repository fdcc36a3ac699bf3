"""Programs that decode the fields of flat Avro records to columns, one for each schema version.

A version that can be decoded field by field has its own program. Payloads of any other version (a
field of another type, or with another type inside) are converted by fastavro to the newest version.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker import avro_columns, entry_columns
from pyxbroker.avro_columns import AvroProgram, Undecodable, width_of
from pyxbroker.base import compression
from pyxbroker.entry_columns import EntryColumns
from pyxbroker.spark.avro_types import NoColumn, parse, reader_of, resolve

if TYPE_CHECKING:
    from pyxbroker.avro_columns import Step

Definitions = Callable[[bytes], bytes]
"""The definition of a schema version of a topic."""

# By the name of a type or logical type: the kind of step, and the underlying Avro type.
_KINDS = {
    "boolean": (avro_columns.BOOLEAN, "boolean"),
    "int": (avro_columns.INT, "int"),
    "date": (avro_columns.INT, "int"),
    "long": (avro_columns.LONG, "long"),
    "timestamp-millis": (avro_columns.MILLISECONDS, "long"),
    "timestamp-micros": (avro_columns.LONG, "long"),
    "float": (avro_columns.FLOAT, "float"),
    "double": (avro_columns.DOUBLE, "double"),
    "bytes": (avro_columns.BYTES, "bytes"),
    "string": (avro_columns.BYTES, "string"),
    "uuid": (avro_columns.BYTES, "string"),
    "fixed": (avro_columns.FIXED, "fixed"),
    "enum": (avro_columns.ENUM, "enum"),
}


class _Field(NamedTuple):
    """A field that is decoded to a column."""

    kind: int
    type_name: str
    null_branch: int
    size: int = 0
    name: str = ""
    symbols: tuple[str, ...] = ()

    def step(self, column: int, default: bytes | None = None) -> Step:
        symbols = tuple(each.encode() for each in self.symbols) if self.symbols else None
        return self.kind, self.null_branch, column, self.size, symbols, default


def is_flat(definition: bytes) -> bool:
    """Return True if each field of a record can be decoded to a column directly."""
    try:
        _fields_of(*parse(definition))
    except NoColumn:
        return False
    return True


class Programs:
    """The Avro decoding programs of all versions of a schema.

    They decode to the columns of the newest version."""

    def __init__(
        self, definition: bytes, definitions: Definitions, only: Sequence[str] | None = None
    ) -> None:
        """Compile the newest version.

        definition: of the newest version, which `is_flat`. only: the fields that have columns.
        """
        self._newest, self._named = parse(definition)
        self._definitions = definitions
        fields = _fields_of(self._newest, self._named)
        self.fields = fields if only is None else {name: fields[name] for name in only}
        self._writers = {b"": self._newest}
        self._made: dict[bytes, AvroProgram | None] = {
            b"": self._compile(self._newest, self._named)
        }

    def columns(self, partition: int, kept: int = entry_columns.DEFAULT) -> EntryColumns:
        return EntryColumns(
            *(entry_columns.AVRO, self._widths(), compression),
            *(partition, self._program_of, self._translate),
            kept=kept,
        )

    def _widths(self) -> tuple[int, ...]:
        return tuple(width_of(each.kind) for each in self.fields.values())

    def _program_of(self, version: bytes | None) -> AvroProgram | None:
        """Return the program of a version, or None without one. Raises PulsarSparkError."""
        version = version or b""
        if version not in self._made:
            writer, named = parse(self._definitions(version))
            self._writers[version] = writer
            self._made[version] = self._compile(writer, named)
        return self._made[version]

    def _translate(self, version: bytes, payload: bytes) -> bytes:
        """Convert a payload to the newest version. Raises Undecodable."""
        import fastavro

        out = io.BytesIO()
        writer = self._writers[version]
        try:
            found = fastavro.schemaless_reader(
                io.BytesIO(payload), writer, reader_of(self._newest, writer)
            )
            fastavro.schemaless_writer(out, self._newest, found)
        except Exception as error:  # fastavro raises many classes
            raise Undecodable(repr(error)) from error
        return out.getvalue()

    # --- steps ----------------------------------------------------------------------------------

    def _compile(self, writer: Any, named: dict[str, Any]) -> AvroProgram | None:
        """Return the program of a version, or None if it cannot be decoded field by field."""
        if not isinstance(writer, dict) or writer.get("type") != "record":
            return None
        try:
            written = _fields_of(writer, named)
        except NoColumn:
            return None
        columns = {name: column for column, name in enumerate(self.fields)}
        steps = []
        for name, field in written.items():
            if name in columns and not _is_read_as(field, self.fields[name]):
                return None
            # The newest schema decides the column's type: an int may be a long there.
            newest = self.fields.get(name, field)
            kind = field._replace(kind=newest.kind)
            steps.append(kind.step(columns.get(name, -1)))
        for field in self._newest["fields"]:
            if field["name"] in self.fields and field["name"] not in written:
                default = self._default(field)
                if default is None:
                    return None
                name = field["name"]
                steps.append(self.fields[name].step(columns[name], default))
        return AvroProgram(self._widths(), steps)

    def _default(self, field: dict[str, Any]) -> bytes | None:
        """Return a field's default in Avro's encoding; None without one or with aliases."""
        import fastavro

        if "default" not in field or field.get("aliases"):
            return None
        name = self._newest["name"]
        empty = {"type": "record", "name": name, "fields": []}
        try:
            parsed = fastavro.parse_schema(
                {"type": "record", "name": name, "fields": [field]}, dict(self._named), _force=True
            )
            out = io.BytesIO()
            fastavro.schemaless_writer(
                out, parsed, fastavro.schemaless_reader(io.BytesIO(), empty, parsed)
            )
        except Exception:  # fastavro raises many classes, and converts each message then
            return None
        return out.getvalue()


def _fields_of(record: Any, named: dict[str, Any]) -> dict[str, _Field]:
    """Return the fields of a flat record, in order. Raises NoColumn."""
    return {field["name"]: _field_of(field["type"], named) for field in record["fields"]}


def _field_of(schema: Any, named: dict[str, Any]) -> _Field:
    null_branch = -1
    if isinstance(schema, list):
        if len(schema) != 2 or "null" not in schema:
            raise NoColumn("a union")
        null_branch = schema.index("null")
    type_name, full = resolve(schema, named)
    if type_name not in _KINDS:
        raise NoColumn(type_name)
    kind, of_type = _KINDS[type_name]
    if (full["type"] if isinstance(full, dict) else full) != of_type:
        raise NoColumn(f"{type_name} that is not {of_type}")
    if not isinstance(full, dict):
        return _Field(kind, type_name, null_branch)
    symbols = tuple(full.get("symbols", ()))
    return _Field(kind, type_name, null_branch, full.get("size", 0), full.get("name", ""), symbols)


def _is_read_as(written: _Field, read: _Field) -> bool:
    """Return True if the bytes of one type are valid as the other type."""
    if written.null_branch >= 0 and read.null_branch < 0:
        return False
    if (written.type_name, read.type_name) == ("int", "long"):
        return True
    return (
        written.type_name == read.type_name
        and (written.size, written.name) == (read.size, read.name)
        and set(written.symbols) <= set(read.symbols)
    )

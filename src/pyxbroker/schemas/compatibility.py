"""Validation of schemas, and Pulsar's compatibility strategies.

BACKWARD: the new schema can read old data. FORWARD: the old schema can read new data. FULL: both.
Plain strategies check the newest version, transitive ones every version. Mirrors Pulsar's
SchemaCompatibilityCheck for each type, and its StructSchemaDataValidator.
"""

from __future__ import annotations

from pyxbroker.base.errors import IncompatibleSchema, InvalidSchema
from pyxbroker.base.slices import Steps
from pyxbroker.schemas import avro, avro_resolution
from pyxbroker.schemas.values import (
    AVRO_FAMILY,
    PRIMITIVES,
    SCHEMA_BYTES_MAX,
    MalformedSchema,
    Schema,
    SchemaType,
    halves,
)

ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
UNDEFINED = "UNDEFINED"
TRANSITIVE = "_TRANSITIVE"
BACKWARD = ("BACKWARD", "BACKWARD_TRANSITIVE")
FORWARD = ("FORWARD", "FORWARD_TRANSITIVE")
FULL = ("FULL", "FULL_TRANSITIVE")

ParsedSchemas = dict[bytes, avro.AvroSchema]
"""Parsed definitions, of a schema and of its halves."""


class _Mismatch(Exception):
    """A schema may not follow another one."""


def is_transitive(strategy: str) -> bool:
    """Return True if a strategy checks every version."""
    return strategy.endswith(TRANSITIVE)


def check_size(schema: Schema) -> None:
    """Raise InvalidSchema for a definition that is too long."""
    if len(schema.data) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(
            f"The definition of the {schema.type} schema has {len(schema.data)} bytes, and at most"
            f" {SCHEMA_BYTES_MAX} are allowed."
        )


def validate(schema: Schema) -> Steps[None]:
    """Raise InvalidSchema for a definition that is invalid for its type."""
    check_size(schema)
    try:
        yield from _validate(schema)
    except MalformedSchema as error:
        raise InvalidSchema(
            f"Invalid schema definition data for {schema.type} schema: {error}"
        ) from None


def _validate_plain(schema: Schema) -> None:
    """Validate a type without a definition; the messages are Pulsar's."""
    start = "Invalid schema definition data for "
    if schema.type is SchemaType.STRING:
        if schema.data not in (b"", b"null"):
            shown = schema.data[:100].decode(errors="replace")
            raise InvalidSchema(f"{start}string schema : '{shown}'")
    elif schema.data:
        raise InvalidSchema(
            f"{start}primitive schemas :length of schema data should be zero, but"
            f" {len(schema.data)} bytes is found"
        )


def _validate(schema: Schema) -> Steps[None]:
    kind = schema.type
    if kind in AVRO_FAMILY:
        found = yield from avro.parse(schema.data)
        if kind is SchemaType.AVRO and found.root.kind == "union":
            raise MalformedSchema("Avro schema typed [UNION] is not supported")
    elif kind is SchemaType.KEY_VALUE:
        for half in halves(schema):
            yield from _validate(half)
    elif kind is SchemaType.PROTOBUF_NATIVE:
        yield from _root_message(schema)
    elif kind is SchemaType.STRING or kind in PRIMITIVES:
        _validate_plain(schema)
    elif kind is SchemaType.AUTO_CONSUME:
        raise MalformedSchema("a topic cannot have a schema of this type")


def fingerprint(schema: Schema) -> Steps[bytes]:
    """Return a value that equal schemas share: Avro's compare by meaning, others by bytes."""
    found = schema.hash
    if schema.type in AVRO_FAMILY:
        try:
            found = (yield from avro.parse(schema.data)).fingerprint
        except MalformedSchema:
            # Stored by a broker with weaker checks; it equals only itself.
            return b"?" + found
    return bytes((schema.type,)) + found


def check(
    old: Schema, version: int, new: Schema, strategy: str, known: ParsedSchemas | None = None
) -> Steps[None]:
    """Raise IncompatibleSchema, with the reason, if a schema may not follow a version.

    `known` caches the parsed new schema for comparisons with further versions.
    """
    if strategy == ALWAYS_COMPATIBLE:
        return
    if old.type is not new.type:
        raise IncompatibleSchema(
            f"Incompatible schema: exists schema type {old.type}, new schema type {new.type}"
        )
    try:
        yield from _check(old, version, new, strategy, {} if known is None else known)
    except _Mismatch as error:
        raise IncompatibleSchema(str(error)) from None


def _check(
    old: Schema, version: int, new: Schema, strategy: str, known: ParsedSchemas
) -> Steps[None]:
    kind = new.type
    if kind in AVRO_FAMILY:
        yield from _check_avro(old, version, new, strategy, known)
    elif kind is SchemaType.KEY_VALUE:
        yield from _check_key_value(old, version, new, strategy, known)
    elif kind is SchemaType.PROTOBUF_NATIVE:
        yield from _check_protobuf_native(old, new, strategy)
    elif strategy == ALWAYS_INCOMPATIBLE and kind is not SchemaType.EXTERNAL:
        raise _Mismatch("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")


def _check_avro(
    old: Schema, version: int, new: Schema, strategy: str, known: ParsedSchemas
) -> Steps[None]:
    start = f"Error during schema compatibility check with strategy {strategy}: "
    if strategy in (ALWAYS_INCOMPATIBLE, UNDEFINED):
        raise _Mismatch(f"{start}no other schema may follow version {version}.")
    try:
        of_old = yield from avro.parse(old.data)
        of_new = known.get(new.data)
        if of_new is None:
            of_new = known[new.data] = yield from avro.parse(new.data)
    except MalformedSchema as error:
        raise _Mismatch(
            f"{start}version {version} or the new schema is invalid: {error}."
        ) from None
    try:
        if strategy in BACKWARD + FULL:
            why = yield from avro_resolution.mismatch(of_old, of_new)
            if why is not None:
                raise _Mismatch(f"{start}the new schema cannot read version {version}: {why}.")
        if strategy in FORWARD + FULL:
            why = yield from avro_resolution.mismatch(of_new, of_old)
            if why is not None:
                raise _Mismatch(f"{start}version {version} cannot read the new schema: {why}.")
    except avro_resolution.TooComplex as error:
        raise _Mismatch(f"{start}version {version} and the new schema: {error}.") from None


def _check_key_value(
    old: Schema, version: int, new: Schema, strategy: str, known: ParsedSchemas
) -> Steps[None]:
    try:
        old_key, old_value = halves(old)
        new_key, new_value = halves(new)
    except MalformedSchema as error:
        raise _Mismatch(f"Version {version} or the new schema is not KEY_VALUE: {error}.") from None
    if (old_key.type, old_value.type) != (new_key.type, new_value.type):
        raise _Mismatch(
            "Key schemas or Value schemas are different schema type, from key schema type is"
            f" {_name_of(old_key)} and to key schema is {_name_of(new_key)}, from value schema is"
            f" {_name_of(old_value)} and to value schema is {_name_of(new_value)}"
        )
    yield from _check_part("key", old_key, version, new_key, strategy, known)
    yield from _check_part("value", old_value, version, new_value, strategy, known)


def _check_part(
    which: str, old: Schema, version: int, new: Schema, strategy: str, known: ParsedSchemas
) -> Steps[None]:
    try:
        yield from _check(old, version, new, strategy, known)
    except _Mismatch as error:
        raise _Mismatch(f"{error} (of the {which})") from None


def _name_of(schema: Schema) -> str:
    return "BYTES" if schema.type is SchemaType.NONE else str(schema.type)


def _check_protobuf_native(old: Schema, new: Schema, strategy: str) -> Steps[None]:
    if strategy not in BACKWARD + FORWARD + FULL:
        raise _Mismatch("Unknown SchemaCompatibilityStrategy.")
    try:
        before = yield from _root_message(old)
        after = yield from _root_message(new)
    except MalformedSchema as error:
        raise _Mismatch(f"The root message cannot be found: {error}.") from None
    if before != after:
        raise _Mismatch(
            f"Protobuf root message change is not allowed under the '{strategy}' strategy."
            f" Original message name: '{before}', new message name: '{after}'."
        )


def _root_message(schema: Schema) -> Steps[str]:
    # Imported on first use: few topics have such a schema, and the module is large.
    from pyxbroker.schemas.protobuf_native import root_message

    return (yield from root_message(schema.data))

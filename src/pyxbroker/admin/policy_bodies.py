"""The bodies of requests that set a policy: parsed by the rule of coercion.py, with OpenAPI
schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pyxbroker.policies.shapes import INT_MAX
from pyxbroker.web.coercion import (
    is_null,
    to_boolean,
    to_choice,
    to_integer,
    to_number,
    to_text,
)
from pyxbroker.web.errors import HttpError

Json = Any
Schema = dict[str, Any]


class Field(NamedTuple):
    """A JSON value, or a field of an object with a default."""

    kind: str  # integer, number, boolean, string
    default: Json = None
    choices: tuple[str, ...] = ()
    maximum: int = INT_MAX

    def read(self, value: object, name: str) -> Json:
        """Return the value of the field.

        For null, it is 0 or False if the default is a number or a boolean, as for Java's primitive
        types, and otherwise the default. Raises HttpError 400.
        """
        if value is None or (is_null(value) and (self.kind != "string" or self.choices)):
            is_primitive = isinstance(self.default, (int, float))
            return type(self.default)() if is_primitive else self.default
        try:
            return self._coerced(value)
        except ValueError:
            reason = f"{name} must be {self.expected()}, not {value!r:.100}."
            raise HttpError(400, reason) from None

    def _coerced(self, value: object) -> Json:
        if self.choices:
            return to_choice(value, self.choices)
        if self.kind == "integer":
            return to_integer(value, self.maximum)
        if self.kind == "boolean":
            return to_boolean(value)
        return to_number(value) if self.kind == "number" else to_text(value)

    def expected(self) -> str:
        """Return a description of valid values for error messages."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind == "integer":
            return f"a whole number of at most {self.maximum.bit_length() + 1} bits"
        return {"number": "a number", "boolean": "true or false", "string": "text"}[self.kind]

    @property
    def schema(self) -> Schema:
        schema: Schema = {"type": self.kind}
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema


class Body(NamedTuple):
    """The body of a request: one value, an object of fields, or a list of names."""

    value: Field | None = None
    fields: Mapping[str, Field] = MappingProxyType({})
    names: tuple[str, ...] = ()

    def read(self, value: object) -> Json:
        """Return the value to store in a record; unknown fields are ignored, as in Pulsar.

        Raises HttpError 400.
        """
        if self.value is not None:
            if is_null(value):
                raise HttpError(400, "The request entity cannot be empty.")
            return self.value.read(value, "The value")
        if self.names:
            if not isinstance(value, list):
                raise HttpError(400, f"The body must be a list, not {value!r:.100}.")
            return enum_values_of(value, self.names, "A name")
        if not isinstance(value, dict):
            raise HttpError(400, f"The body must be a JSON object, not {value!r:.100}.")
        read = {
            name: field.read(value[name], name) if name in value else field.default
            for name, field in self.fields.items()
        }
        return {name: each for name, each in read.items() if each is not None}

    @property
    def schema(self) -> Schema:
        """The OpenAPI schema of the body."""
        if self.value is not None:
            return self.value.schema
        if self.names:
            return {"type": "array", "items": {"type": "string", "enum": list(self.names)}}
        return {
            "type": "object",
            "properties": {name: field.schema for name, field in self.fields.items()},
        }


def enum_values_of(values: list[Any], choices: tuple[str, ...], what: str) -> list[str]:
    """Return the distinct values of an enumeration in a JSON list. Raises HttpError 400."""
    field = Field("string", choices=choices)
    found = [field.read(each, what) for each in values]
    if None in found:
        raise HttpError(400, f"{what} must be {field.expected()}, not null.")
    return list(dict.fromkeys(found))


INTEGER = Body(Field("integer"))
BOOLEAN = Body(Field("boolean"))

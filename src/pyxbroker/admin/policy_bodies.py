"""What requests bring to set a policy: read strictly, and described for the OpenAPI document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pyxbroker.policies.shapes import INT_MAX
from pyxbroker.web.errors import HttpError

Json = Any
Schema = dict[str, Any]


# Words that Pulsar's brokers take for booleans, and some clients send (pulsaradmin of Go).
BOOLEANS = {
    word: value
    for name, value in (("true", True), ("false", False))
    for word in (name, name.capitalize(), name.upper())
}


class Field(NamedTuple):
    """A value of JSON, or a field of an object. A field that is not there has the default."""

    kind: str  # integer, number, boolean, string
    default: Json = None
    choices: tuple[str, ...] = ()
    maximum: int = INT_MAX

    def read(self, value: object, name: str) -> Json:
        """Raises HttpError 400."""
        if value is None:
            return self.default
        if self.kind == "boolean" and isinstance(value, str):
            value = BOOLEANS.get(value, value)
        kinds: dict[str, tuple[type, ...]] = {
            "integer": (int,),
            "number": (int, float),
            "boolean": (bool,),
            "string": (str,),
        }
        if (
            not isinstance(value, kinds[self.kind])
            or isinstance(value, bool) != (self.kind == "boolean")
            or (self.choices and value not in self.choices)
            or (self.kind == "integer" and not -self.maximum - 1 <= int(str(value)) <= self.maximum)
        ):
            raise HttpError(400, f"{name} must be {self._expected()}, not {value!r:.100}.")
        if self.kind != "number":
            return value
        number = float(str(value))
        if math.isinf(number):
            raise HttpError(400, f"{name} must be {self._expected()}, not {value!r:.100}.")
        return number

    def _expected(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        article = "an" if self.kind == "integer" else "a"
        return f"{article} {self.kind}"

    @property
    def schema(self) -> Schema:
        schema: Schema = {"type": self.kind}
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema


class Body(NamedTuple):
    """What a request brings: one value, an object of fields, or a list of names."""

    value: Field | None = None
    fields: Mapping[str, Field] = MappingProxyType({})
    names: tuple[str, ...] = ()

    def read(self, value: object) -> Json:
        """The value as it goes into a record. Fields that we do not know are left out, as in
        Pulsar. Raises HttpError 400.
        """
        if self.value is not None:
            if value is None:
                raise HttpError(400, "The request entity cannot be empty.")
            return self.value.read(value, "The value")
        if self.names:
            if not isinstance(value, list):
                raise HttpError(400, f"The body must be a JSON list, not {value!r:.100}.")
            name = Field("string", choices=self.names)
            return list(dict.fromkeys(name.read(each, "A name") for each in value))
        if not isinstance(value, dict):
            raise HttpError(400, f"The body must be a JSON object, not {value!r:.100}.")
        read = {name: field.read(value.get(name), name) for name, field in self.fields.items()}
        return {name: each for name, each in read.items() if each is not None}

    @property
    def schema(self) -> Schema:
        """As OpenAPI writes it."""
        if self.value is not None:
            return self.value.schema
        if self.names:
            return {"type": "array", "items": {"type": "string", "enum": list(self.names)}}
        return {
            "type": "object",
            "properties": {name: field.schema for name, field in self.fields.items()},
        }


INTEGER = Body(Field("integer"))
BOOLEAN = Body(Field("boolean"))

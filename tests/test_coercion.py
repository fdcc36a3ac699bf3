"""Each value of each Java type, as bodies and parameters have it (harness/coercion_cases.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from harness.coercion_cases import INT_MAX, LONG_MAX, PARAMETERS, REFUSED, ROWS, Parameter, Row

from pyxbroker.admin.grant_checks import checked_actions
from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.resources.names import strings_of, texts_of
from pyxbroker.settings.sections.topics import SCHEMA_STRATEGIES
from pyxbroker.web.coercion import read_float
from pyxbroker.web.endpoint import Query
from pyxbroker.web.errors import HttpError
from test_router import endpoint, request


def of(field: Field) -> Callable[[Any], Any]:
    """The value of a field with the name a in the object that a body has."""
    return lambda value: Body(fields={"a": field}).read({"a": value}).get("a")


READ: dict[str, Callable[[Any], Any]] = {
    "int": of(Field("integer", 7)),
    "Integer": of(Field("integer")),
    "long": of(Field("integer", 7, maximum=LONG_MAX)),
    "Long": of(Field("integer", maximum=LONG_MAX)),
    "double": of(Field("number", 7.5)),
    "boolean": of(Field("boolean", True)),
    "Boolean": of(Field("boolean")),
    "enum": of(Field("string", choices=SCHEMA_STRATEGIES)),
    "String": of(Field("string")),
    "Set<String>": lambda value: None if value is None else texts_of(value, "It", 10, 10),
    "Set<enum>": checked_actions,
    "Map<String, String>": lambda value: strings_of(value, "It"),
}
CELLS = [(kind, row) for kind, rows in ROWS.items() for row in rows]
FIELDS = {"boolean": Query("a", "A truth value.", False), "Integer": Query("a", "A", None, True)}


@pytest.mark.parametrize(("kind", "row"), CELLS, ids=[f"{kind} {row.text}" for kind, row in CELLS])
def test_a_value_is_read_as_its_declared_type(kind: str, row: Row) -> None:
    try:
        value = json.loads(row.text, parse_float=read_float)
    except ValueError:
        assert row.value is REFUSED
        return
    if row.value is REFUSED:
        with pytest.raises(HttpError, match=r"must be ") as caught:
            READ[kind](value)
        assert caught.value.status == 400
    else:
        found = READ[kind](value)
        assert found == row.value
        assert type(found) is type(row.value), "3 is not 3.0, and 1 is not true"


@pytest.mark.parametrize(
    ("kind", "row"), [(kind, row) for kind, rows in PARAMETERS.items() for row in rows]
)
def test_a_parameter_is_read_as_its_declared_type(kind: str, row: Parameter) -> None:
    field = FIELDS[kind]
    asked = request("GET", "/a", f"a={row.text}")
    asked.endpoint = endpoint("GET /a")._replace(query=(field,))
    if row.value is REFUSED and row.text != str(INT_MAX + 1):  # whose limit its policy knows
        with pytest.raises(HttpError, match="a must be a whole number") as caught:
            asked.argument("a")
        assert caught.value.status == 400
    elif row.value is not REFUSED:
        assert asked.argument("a") == (field.default if row.value is None else row.value)


def test_a_field_that_is_left_out_has_its_default_and_not_what_null_is() -> None:
    body = Body(
        fields={"a": Field("integer", 7), "b": Field("boolean", True), "c": Field("string")}
    )
    assert body.read({}) == {"a": 7, "b": True}
    assert body.read({"a": None, "b": "", "c": None}) == {"a": 0, "b": False}


def test_fields_that_are_not_known_are_left_out() -> None:
    body = Body(fields={"a": Field("integer", 7)})
    assert body.read({"a": 1, "A": 2, "b": {"a": 3}}) == {"a": 1}

"""Avro's schemas: what is one, which are equal, and what can be read with which.

What Apache Avro says to each of the rules is asked in compat_tests/test_schemas.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyxbroker.base.slices import Steps, T
from pyxbroker.schemas import avro, avro_resolution
from pyxbroker.schemas.avro import NAME_MAX, NESTING_MAX, VALUES_MAX, AvroSchema
from pyxbroker.schemas.values import MalformedSchema
from steps import run_steps


def parsed(value: Any) -> AvroSchema:
    return run_steps(avro.parse(json.dumps(value).encode()))


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    found = [{"name": each, "type": kind} for each, kind in fields]
    return {"type": "record", "name": name, "fields": found, **more}


def why(writer: Any, reader: Any) -> str | None:
    return run_steps(avro_resolution.mismatch(parsed(writer), parsed(reader)))


def longest_step(steps: Steps[T]) -> tuple[int, T]:
    """How many steps there are, and the result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return count, result
        count += 1


# --- what is a schema -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nobody", "'nobody' is not a defined name"),
        (7, "7 is not a schema"),
        ({}, "no type"),
        ({"type": {"type": "string"}}, "no type"),
        ({"type": "array"}, "no type of its items"),
        ({"type": "map"}, "no type of its values"),
        ({"type": "record", "name": "R"}, "the record R has no fields"),
        ({"type": "record", "fields": []}, "None is not a name"),
        (record("R", ("a", "int"), ("a", "int")), "has the field 'a' twice"),
        (record("a-b"), "'a-b' is not a name"),
        (record("x..y"), "'' is not a name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "'a' of R has no type"),
        ({"type": "record", "name": "R", "fields": ["a"]}, "'a' is not a field"),
        ([record("R"), record("R")], "'R' is defined twice"),
        (["int", "int"], "a union has 'int' twice"),
        (["int", ["null"]], "a union is nested directly in another"),
        ({"type": "enum", "name": "E"}, "the enum has no symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol twice"),
        ({"type": "enum", "name": "E", "symbols": ["1"]}, "'1' is not a name"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "not a symbol of"),
        ({"type": "fixed", "name": "F", "size": -1}, "is not a number of bytes"),
        ({"type": "fixed", "name": "F", "size": True}, "is not a number of bytes"),
        (record("R", aliases="S"), "aliases are a list of names"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "order": "x"}]},
            "'x' is not an order of a field",
        ),
    ],
)
def test_what_is_no_schema_says_why(value: Any, reason: str) -> None:
    with pytest.raises(MalformedSchema) as refused:
        parsed(value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not UTF-8 text"),
        (b"NaN", "it is not JSON: NaN is not a JSON number"),
        (b"[" * 5_000, "its JSON is nested too deeply"),
        (b"[]," * VALUES_MAX, "values, and at most"),
        (b"1" * 5_000, "it is not JSON"),
    ],
)
def test_what_is_no_json_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedSchema) as refused:
        run_steps(avro.parse(data))
    assert reason in str(refused.value)


def nested(depth: int) -> Any:
    value: Any = "int"
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


def test_types_are_nested_up_to_a_bound() -> None:
    assert why(nested(NESTING_MAX), nested(NESTING_MAX)) is None
    with pytest.raises(MalformedSchema, match=f"nested more than {NESTING_MAX} deep"):
        parsed(nested(NESTING_MAX + 1))


def test_names_are_found_in_their_namespaces() -> None:
    inner = record("I", ("again", ["null", "x.R"]))
    found = parsed(record("R", ("i", inner), ("j", "I"), namespace="x"))
    assert set(found.named) == {"x.R", "x.I"}
    (i, j) = found.root.fields
    assert i.node is j.node
    assert i.node.fields[0].node.children[1] is found.root


# --- equality -------------------------------------------------------------------------------------

BASE = record("R", ("a", "int"), ("b", ["null", "string"]), namespace="x")


def changed(**more: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(BASE))
    value["fields"][0].update(more)
    return value


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        (BASE | {"doc": "d", "aliases": ["S"]}, True),
        (changed(doc="d", aliases=["c"], order="ascending"), True),
        (record("x.R", ("a", "int"), ("b", ["null", "string"])), True),
        (record("R", ("a", {"type": "int"}), ("b", ["null", "string"]), namespace="x"), True),
        (record("R", ("b", ["null", "string"]), ("a", "int"), namespace="x"), False),
        (record("R", ("a", "int"), ("b", ["string", "null"]), namespace="x"), False),
        (record("R", ("a", "int"), ("b", ["null", "string"])), False),
        (changed(default=1), False),
        (changed(order="ignore"), False),
        (changed(more="than that"), False),
        (BASE | {"more": "than that"}, False),
    ],
)
def test_schemas_are_equal_by_what_they_mean(other: Any, is_equal: bool) -> None:
    assert (parsed(BASE).fingerprint == parsed(other).fingerprint) == is_equal


# --- reading --------------------------------------------------------------------------------------


def test_a_refusal_names_the_field() -> None:
    inner = record("I", ("list", {"type": "array", "items": "long"}))
    other = record("I", ("list", {"type": "array", "items": "int"}))
    assert why(record("R", ("i", inner)), record("R", ("i", other))) == (
        "field 'i.list.items': the writer's long cannot be read as int"
    )
    assert why(record("R"), record("R", ("a", "int"))) == (
        "the reader's field 'a' of R has no default, and the writer does not have it"
    )
    assert why(record("R", ("a", "int")), record("R", ("a", ["null", "string"]))) == (
        "field 'a': int matches no branch of the reader's union of null, string"
    )


def test_types_that_refer_to_each_other_are_compared_once() -> None:
    def ring(kind: str) -> Any:
        back = record("B", ("a", ["null", "A"]), ("v", kind))
        return record("A", ("b", ["null", back]), ("self", ["null", "A"]))

    assert why(ring("int"), ring("long")) is None
    refused = why(ring("long"), ring("int"))
    assert refused is not None
    assert "long cannot be read as int" in refused


def test_a_chain_of_many_records_needs_no_stack() -> None:
    def chain(kind: str) -> Any:
        fields: list[tuple[str, Any]] = [("f0", record("C0", ("x", kind)))]
        fields += [(f"f{n}", record(f"C{n}", ("x", f"C{n - 1}"))) for n in range(1, 1_200)]
        return record("R", *fields)

    assert why(chain("int"), chain("long")) is None
    assert why(chain("long"), chain("int")) is not None


def test_a_comparison_takes_no_more_steps_than_its_schemas_have_parts() -> None:
    """Unions of records that have other names: each pair of them could be asked for its shape."""

    def shapes(name: str, field: str) -> Any:
        inner = [record(f"{name}I{n}", (field, "int")) for n in range(300)]
        made = [record(f"{name}{n}", ("f", ["null", each])) for n, each in enumerate(inner)]
        return record("R", ("u", made))

    writer, reader = parsed(shapes("W", "x")), parsed(shapes("V", "y"))
    steps, refused = longest_step(avro_resolution.mismatch(writer, reader))
    assert refused is not None
    bound = avro_resolution.PAIRS_MIN + avro_resolution.PAIRS_PER_NODE * (
        writer.nodes + reader.nodes
    )
    assert 0 < steps <= bound / avro_resolution.PAIRS_PER_STEP + 1


def test_aliases_of_fields_are_gathered_once_for_all_records_that_are_compared() -> None:
    gathered = 0

    class Counted(tuple[str, ...]):
        def __iter__(self) -> Iterator[str]:
            nonlocal gathered
            gathered += 1
            return super().__iter__()

    names = [f"W{n}" for n in range(50)]
    writer = parsed([record(name, ("old9", "int")) for name in names])
    reader = parsed(record("R", ("a", "int"), aliases=names))
    reader.root.fields[0].aliases = Counted(f"old{n}" for n in range(1_000))
    assert run_steps(avro_resolution.mismatch(writer, reader)) is None
    assert gathered == 1


def test_what_is_too_complex_to_be_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_resolution, "PAIRS_MIN", 10)
    monkeypatch.setattr(avro_resolution, "PAIRS_PER_NODE", 0)
    wide = record("R", *((f"f{n}", "int") for n in range(20)))
    with pytest.raises(avro_resolution.TooComplex, match="too many pairs"):
        why(wide, wide)


def test_reading_and_comparing_let_others_run() -> None:
    data = json.dumps(record("R", *((f"f{n}", "int") for n in range(2_000)))).encode()
    steps, found = longest_step(avro.parse(data))
    assert steps >= found.nodes // avro.NODES_PER_STEP
    steps, refused = longest_step(avro_resolution.mismatch(found, found))
    assert (refused, steps >= 2_000 // avro_resolution.PAIRS_PER_STEP) == (None, True)
    names = [f"n{number}" for number in range(5_000)]
    for value in (
        {"type": "enum", "name": "E", "symbols": names},
        record("R", aliases=names),
    ):
        steps, found = longest_step(avro.parse(json.dumps(value).encode()))
        assert found.nodes == 1 and steps >= 5_000 // avro.NAMES_PER_STEP


def test_the_text_of_a_definition_is_read_in_a_step_of_its_own() -> None:
    """What was read before is freed by then: to read and to free many values takes as long."""
    steps = avro.parse(b"no JSON")
    next(steps)
    with pytest.raises(MalformedSchema, match="not JSON"):
        next(steps)


def test_names_have_a_length_so_that_types_in_a_namespace_cost_the_same() -> None:
    assert parsed(record("R", namespace="n" * (NAME_MAX - 2))).root.name.endswith(".R")
    for value in (
        record("R", namespace="n" * (NAME_MAX - 1)),
        record("R" * (NAME_MAX + 1)),
        record(".".join(["R"] * NAME_MAX)),
        record("R", aliases=["a" * (NAME_MAX + 1)]),
        record("R", ("a", record("S" * 10)), namespace="n" * (NAME_MAX - 5)),
    ):
        with pytest.raises(MalformedSchema, match=f"has more than {NAME_MAX} characters"):
            parsed(value)

"""What the records of several levels say together. Values come in and go out, nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyxbroker.policies.table import TABLE, Level, Policies


class Record(NamedTuple):
    """What one level says."""

    level: Level
    owner: str  # whose record it is: a namespace
    fields: Mapping[str, Any]


class Refusal(NamedTuple):
    """A field with a value that its policy cannot have."""

    policy: str
    owner: str
    field: str
    reason: str


def decode(value: bytes) -> dict[str, Any]:
    """The fields of a record in metadata. Raises ValueError when it is not a JSON object."""
    try:
        fields = json.loads(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError(f"it is {type(fields).__name__}, not an object")
    return fields


def resolve(
    records: Sequence[Record], broker: Policies, last: Policies
) -> tuple[Policies, list[Refusal]]:
    """The policies that hold, and the fields that are refused.

    records are in the order in which they are asked, the most specific first. A refused field
    decides nothing but that its policy stays as it was last, whatever the further records say.
    """
    values: dict[str, Any] = {}
    refusals: list[Refusal] = []
    for row in TABLE:
        for record in records:
            field = row.fields.get(record.level)
            value = None if field is None else record.fields.get(field)
            if field is None or row.says_nothing(value):
                continue
            try:
                values[row.name] = row.read(value)
            except ValueError as error:
                values[row.name] = getattr(last, row.name)
                refusals.append(Refusal(row.name, record.owner, field, str(error)))
            break
    refused = frozenset(each.policy for each in refusals)
    return broker._replace(**values, refused=refused), refusals

"""Resolution of the records of several levels into policies: a pure function of values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.policies.shapes import CLUSTER, Level, Path, Policy
from pyxbroker.policies.table import TABLE
from pyxbroker.policies.values import Policies


class Record(NamedTuple):
    """The record of one level."""

    level: Level
    owner: str  # the topic or namespace of the record
    fields: dict[str, Any]

    def at(self, path: Path, cluster: str) -> Any:
        """Return the value at a path, or None.

        Raise ValueError if a value on the way is not an object.
        """
        value: Any = self.fields
        for name in path:
            if not isinstance(value, dict):
                raise ValueError(f"{value!r:.100}: expected an object")
            value = value.get(cluster if name == CLUSTER else name)
            if value is None:
                return None
        return value


class Refusal(NamedTuple):
    """A field whose value is invalid for its policy."""

    policy: str
    owner: str
    field: str
    reason: str


def resolve(
    records: Sequence[Record], broker: Policies, last: Policies, cluster: str
) -> tuple[Policies, list[Refusal]]:
    """Return the policies that apply in a cluster, and the refused fields.

    The records are in order of precedence, the most specific one first. A refused field gives its
    policy the last value, whatever the remaining records contain.
    """
    values: dict[str, Any] = {}
    refusals: list[Refusal] = []
    for row in TABLE:
        for record, path in _places(row, records):
            try:
                value = record.at(path, cluster)
                if row.is_absent(value):
                    continue
                values[row.name] = row.read(value)
            except ValueError as error:
                values[row.name] = getattr(last, row.name)
                refusals.append(Refusal(row.name, record.owner, ".".join(path), str(error)))
            break
    refused = frozenset(each.policy for each in refusals)
    return broker._replace(**values, refused=refused), refusals


def _places(row: Policy, records: Sequence[Record]) -> Iterator[tuple[Record, Path]]:
    for record in records:
        for path in row.paths.get(record.level, ()):
            yield record, path

"""What the records of several levels say together. Values come in and go out, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.policies.shapes import CLUSTER, Level, Path, Policy
from pyxbroker.policies.table import TABLE
from pyxbroker.policies.values import Policies


class Record(NamedTuple):
    """What one level says."""

    level: Level
    owner: str  # whose record it is: a topic, a namespace
    fields: dict[str, Any]

    def at(self, path: Path, cluster: str) -> Any:
        """What stands at a place; None when nothing does. Raises ValueError where an object is
        expected on the way.
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
    """A field with a value that its policy cannot have."""

    policy: str
    owner: str
    field: str
    reason: str


def resolve(
    records: Sequence[Record], broker: Policies, last: Policies, cluster: str
) -> tuple[Policies, list[Refusal]]:
    """The policies that hold in a cluster, and the fields that are refused.

    records are in the order in which they are asked, the most specific first. A refused field
    decides nothing but that its policy stays as it was last, whatever the further records say.
    """
    values: dict[str, Any] = {}
    refusals: list[Refusal] = []
    for row in TABLE:
        for record, path in _places(row, records):
            try:
                value = record.at(path, cluster)
                if row.says_nothing(value):
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

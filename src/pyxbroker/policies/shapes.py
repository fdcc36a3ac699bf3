"""Building blocks of the table of policies: JSON values, their types and their paths."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.settings.config import Config

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

CLUSTER = "{cluster}"
"""Placeholder in a path for the name of this cluster: some fields have a value per cluster."""


class Level(enum.Enum):
    """Levels at which a policy may be set; the first one with a value wins.

    A topic has two records, its own and one that all clusters share; their fields are the same.
    """

    TOPIC = "topic"
    NAMESPACE = "namespace"
    BROKER = "broker"


Path = tuple[str, ...]
"""Path of a value in a record: the names of nested fields."""


class Part(NamedTuple):
    """One JSON value of a policy: the whole field, or, with a name, a member of its object."""

    kind: type[bool] | type[int] | type[float] | type[str] | type[list[Any]] | type[dict[str, Any]]
    name: str = ""
    minimum: int = -LONG_MAX - 1
    maximum: int = INT_MAX
    choices: tuple[str, ...] = ()
    default: Any = None  # if the member is absent
    is_optional: bool = False

    def read(self, value: object) -> Any:
        """Return a valid value, or the default. Raise ValueError with the reason otherwise."""
        if value is None and self.is_optional:
            return self.default
        if not self._is_kind(value) or not self._is_within(value):
            shown = "missing" if value is None else repr(value)[:100]
            raise ValueError(f"{self.name} {shown}: expected {self.expected()}".lstrip())
        return value

    def _is_kind(self, value: object) -> bool:
        # In Python a bool is an int; in JSON it is not.
        if isinstance(value, bool):
            return self.kind is bool
        return isinstance(value, self.kind) or (self.kind is float and isinstance(value, int))

    def _is_within(self, value: Any) -> bool:
        if self.choices:
            return all(each in self.choices for each in ([value], value)[self.kind is list])
        return self.kind not in (int, float) or self.minimum <= value <= self.maximum

    def expected(self) -> str:
        """Describe the accepted values in words."""
        if self.choices:
            what = "a list of" if self.kind is list else "one of"
            return f"{what} " + ", ".join(self.choices)
        if self.kind is float:
            return f"a number up to {self.maximum}"
        if self.kind is dict:
            return "an object"
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return "text"
        if self.minimum < -INT_MAX:
            return "a whole number"
        return f"a whole number from {self.minimum}"


class Policy(NamedTuple):
    """One row of the table."""

    name: str  # the attribute of Policies
    about: str
    broker: Callable[[Config], Any]  # the default, computed from the broker's settings
    paths: Mapping[Level, tuple[Path, ...]] = {}
    """The paths of the value at each other level; the first path with a value counts."""
    parts: tuple[Part, ...] = ()
    make: Callable[..., Any] = lambda value: value  # from the values of the parts, in their order
    is_unset: Callable[[Any], bool] = lambda value: False
    """Function that returns True for a value that means the same as an absent one."""

    def is_absent(self, value: object) -> bool:
        """Return True if the next level decides."""
        return value is None or self.is_unset(value)

    def read(self, value: object) -> Any:
        """Return the policy's value for a JSON value. Raise ValueError if it is invalid."""
        if not self.parts[0].name:
            return self.make(self.parts[0].read(value))
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.100}: expected an object")
        return self.make(*(part.read(value.get(part.name)) for part in self.parts))

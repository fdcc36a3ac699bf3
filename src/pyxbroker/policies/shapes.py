"""What the table of policies is made of: JSON values, their types, and their places."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.settings.config import Config

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

CLUSTER = "{cluster}"
"""In a path: the name of this cluster. Records have rates for each cluster."""


class Level(enum.Enum):
    """Where a policy may be set; the first one that says something wins.

    A topic has two records, its own and one that all clusters share; their fields are the same.
    """

    TOPIC = "topic"
    NAMESPACE = "namespace"
    BROKER = "broker"


Path = tuple[str, ...]
"""Where a value stands in a record: a field, or a field of an object in it, and so on."""


class Part(NamedTuple):
    """One JSON value of a policy: the whole field, or, with a name, a part of the object in it."""

    kind: type[bool] | type[int] | type[float] | type[str] | type[list[Any]] | type[dict[str, Any]]
    name: str = ""
    minimum: int = -LONG_MAX - 1
    maximum: int = INT_MAX
    choices: tuple[str, ...] = ()
    default: Any = None  # where a part may be left out
    is_optional: bool = False

    def read(self, value: object) -> Any:
        """Raises ValueError, with what is wrong, for a value that it cannot have."""
        if value is None and self.is_optional:
            return self.default
        if not self._is_kind(value) or not self._is_within(value):
            shown = "missing" if value is None else repr(value)[:100]
            raise ValueError(f"{self.name} {shown}: expected {self.expected()}".lstrip())
        return value

    def _is_kind(self, value: object) -> bool:
        # To Python true is a number, to JSON it is not.
        if isinstance(value, bool):
            return self.kind is bool
        return isinstance(value, self.kind) or (self.kind is float and isinstance(value, int))

    def _is_within(self, value: Any) -> bool:
        if self.choices:
            return all(each in self.choices for each in ([value], value)[self.kind is list])
        return self.kind not in (int, float) or self.minimum <= value <= self.maximum

    def expected(self) -> str:
        """What a value looks like, in words."""
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
    broker: Callable[[Config], Any]  # its default: what the broker's settings say
    paths: Mapping[Level, tuple[Path, ...]] = {}
    """Where its value stands at each other level where it may be set: the first that says
    something counts."""
    parts: tuple[Part, ...] = ()
    make: Callable[..., Any] = lambda value: value  # of what the parts say, in their order
    is_unset: Callable[[Any], bool] = lambda value: False
    """Whether a value says nothing, as if it were not there."""

    def says_nothing(self, value: object) -> bool:
        """Whether the next level is asked."""
        return value is None or self.is_unset(value)

    def read(self, value: object) -> Any:
        """The policy's value from that of its JSON field. Raises ValueError for a wrong one."""
        if not self.parts[0].name:
            return self.make(self.parts[0].read(value))
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.100}: expected an object")
        return self.make(*(part.read(value.get(part.name)) for part in self.parts))

"""Building blocks of the settings schema: a row for each key, and sections of rows."""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")
Value = str | int | float | bool | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Setting:
    """One row of the schema: the meaning of a key and the values it accepts."""

    __slots__ = (
        *("choices", "default", "doc", "dynamic", "key", "kind", "maximum", "minimum", "unit"),
        "has_floor",
        "is_list",
    )

    def __init__(
        self,
        default: Any,
        doc: str,
        unit: str,
        minimum: float,
        maximum: float,
        choices: tuple[str, ...],
        dynamic: bool,
    ) -> None:
        self.key = ""
        self.kind = ""
        self.default: Value = default
        self.doc = doc
        self.unit = unit
        self.minimum = minimum
        self.maximum = maximum
        self.choices = choices
        self.dynamic = dynamic
        self.has_floor = False  # True: a number below the minimum counts as the minimum
        self.is_list = False  # True: several of the choices, separated by commas

    @property
    def optional(self) -> bool:
        """True if an empty value means None instead of the default."""
        return self.kind.endswith("None")

    @property
    def _is_float(self) -> bool:
        return self.kind.startswith("float")

    def expected(self, text: str = "") -> str:
        """Describe the accepted values in words, in answer to a text that is none of them."""
        if self.choices:
            kind = "a list, separated by commas, of" if self.is_list else "one of"
            return f"{kind} " + ", ".join(self.choices)
        if self.kind == "bool":
            return "true or false"
        if self.kind == "str":
            return "text"
        number = "a number" if self._is_float else "a whole number"
        least = _number(self.minimum)
        is_above = _NUMBER.fullmatch(text.strip()) and float(text) > self.maximum
        has_end = is_above or self.maximum < INT_MAX
        end = f" to {_number(self.maximum)}" if has_end else " or more"
        below = f"; less counts as {least}" if self.has_floor else ""
        return f"{number}, {least}{end}{below}" + (f" ({self.unit})" if self.unit else "")

    def parse(self, text: str) -> Value:
        """Convert a text from a file, the environment or the command line to a value.

        Pulsar's own files leave many keys empty. An empty text is the default, or None for an
        optional setting.

        Raise ValueError or KeyError if the text is not an accepted value.
        """
        text = text.strip()
        if not text:
            return None if self.optional else self.default
        if self.kind == "str":
            values = [each.strip() for each in text.split(",")] if self.is_list else [text]
            if self.choices and not set(values) <= set(self.choices):
                raise ValueError(text)
            return text
        if self.kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if not _NUMBER.fullmatch(text):
            raise ValueError(text)  # int() would also accept other digits, and 1_000
        number = float(text) if self._is_float else int(text)
        if self.has_floor and number < self.minimum:
            return float(self.minimum) if self._is_float else int(self.minimum)
        if not self.minimum <= number <= self.maximum:
            raise ValueError(text)
        return number


_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?", re.ASCII)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


class Section:
    """A part of the settings: its rows, in the order of the class body, as typed attributes.

    A subclass without a title combines the sections that it inherits from.
    """

    title: ClassVar[str]
    rows: ClassVar[dict[str, Setting]]

    def __init_subclass__(cls, title: str = "") -> None:
        cls.title = title
        cls.rows = {}
        for part in cls.__bases__:
            cls.rows.update(getattr(part, "rows", {}))
        for key, row in list(vars(cls).items()):
            if isinstance(row, Setting):
                row.key, row.kind = key, cls.__annotations__[key]
                cls.rows[key] = row
                delattr(cls, key)  # reading a setting of an instance without values must fail


def setting(
    default: T,
    doc: str,
    *,
    unit: str = "",
    minimum: float = 0,
    maximum: float = INT_MAX,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
    is_list: bool = False,
) -> T:
    """Declare a setting in the body of a section; an instance has the value as the attribute.

    `dynamic` marks a setting that the code reads at each use, so that a change at run time takes
    effect immediately. Only settings that Pulsar can change at run time are marked.
    """
    row: Any = Setting(default, doc, unit, minimum, maximum, choices, dynamic)
    row.is_list = is_list
    return row


def limit(
    default: T,
    doc: str,
    *,
    unit: str = "",
    minimum: float = 0,
    maximum: float = INT_MAX,
    dynamic: bool = False,
) -> T:
    """Declare a number whose minimum means "off" or "no limit".

    Lower numbers mean the same: Pulsar applies such a number only while it is positive.
    """
    row: Any = setting(default, doc, unit=unit, minimum=minimum, maximum=maximum, dynamic=dynamic)
    row.has_floor = True
    return row

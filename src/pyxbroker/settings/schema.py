"""One row of the settings' schema: what a key means, and which values it takes."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")
Value = str | int | float | bool | None

INT_MAX = 2**31 - 1


class Setting:
    """One row of the schema: what a key means and which values it takes."""

    __slots__ = ("choices", "default", "doc", "key", "kind", "maximum", "minimum", "unit")

    def __init__(
        self,
        default: Value,
        doc: str,
        unit: str,
        minimum: float,
        maximum: float,
        choices: tuple[str, ...],
    ) -> None:
        self.key = ""
        self.kind = ""
        self.default = default
        self.doc = doc
        self.unit = unit
        self.minimum = minimum
        self.maximum = maximum
        self.choices = choices

    @property
    def optional(self) -> bool:
        """Whether an empty value is a value of its own, rather than the default."""
        return self.kind.endswith("None")

    def expected(self) -> str:
        """What a value has to look like, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind == "bool":
            return "true or false"
        if self.kind == "str":
            return "text"
        number = "a number" if self.kind == "float" else "a whole number"
        end = f" to {_number(self.maximum)}" if self.maximum < INT_MAX else " or more"
        return f"{number}, {_number(self.minimum)}{end}" + (f" ({self.unit})" if self.unit else "")

    def parse(self, text: str) -> Value:
        """The value of a text from a file, the environment or the command line.

        Pulsar's own files leave many keys empty: that is the default, or None where it is a value.

        Raises ValueError when the text is not such a value.
        """
        text = text.strip()
        if not text:
            return None if self.optional else self.default
        if self.kind == "str":
            if self.choices and text not in self.choices:
                raise ValueError(text)
            return text
        if self.kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        number = float(text) if self.kind == "float" else int(text)
        if not self.minimum <= number <= self.maximum:
            raise ValueError(text)
        return number


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def setting(
    default: T,
    doc: str,
    *,
    unit: str = "",
    minimum: float = 0,
    maximum: float = INT_MAX,
    choices: tuple[str, ...] = (),
) -> T:
    """Declares a setting in the body of `Config`; an instance replaces it by the value."""
    row: Any = Setting(default, doc, unit, minimum, maximum, choices)  # type: ignore[arg-type]
    return row

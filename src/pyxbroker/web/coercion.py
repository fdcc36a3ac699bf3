"""How a value of JSON, or the text of a parameter, becomes a value of a declared type.

The rule is one for all bodies and parameters. It is that of Jackson and JAX-RS in Apache Pulsar's
broker: scripts and tools send "3600" and 3600.0 for a number, "true" and 1 for a truth value.
harness/coercion_cases.py has the table of what is taken and refused; compat_tests/test_coercion.py
asks a broker for each of its rows, Apache Pulsar's too.

Where Apache Pulsar takes what cannot be meant, the value is refused here: a text that names no
value of an enumeration, which it takes for null, and numbers that are not finite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TypeVar

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
Number = TypeVar("Number", int, float)
BLANKS = "".join(map(chr, range(33)))  # what Java's String.trim() removes
NULLS = ("", "null")
# Java reads digits of every script in whole numbers, and those of ASCII alone in fractions.
_WHOLE = re.compile(r"[-+]?\d+")
_FRACTION = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_BOOLEANS = {
    word: value
    for name, value in (("true", True), ("false", False))
    for word in (name, name.capitalize(), name.upper())
}


class WrittenFloat(float):
    """A number of JSON with a fraction or an exponent, and its text: a string field gets that."""

    __slots__ = ("text",)

    text: str


def read_float(text: str) -> WrittenFloat:
    """The number in a text of JSON. Raises ValueError for one that is too large."""
    number = WrittenFloat(text)
    number.text = text
    if math.isinf(number):
        raise ValueError(f"{text:.100} is too large a number")
    return number


def parse_int(text: str, maximum: int = LONG_MAX) -> int:
    """A whole number as Java's Integer and Long read one. Raises ValueError."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text!r:.100} is not a whole number")
    return _within(int(text), maximum)


def parse_bool(text: str) -> bool:
    """`true` in any case is True, everything else False, as Java's Boolean reads it."""
    return text.lower() == "true"


def is_null(value: object) -> bool:
    """Whether a value says nothing where a number, a truth value or a name is declared."""
    return value is None or (isinstance(value, str) and value.strip(BLANKS) in NULLS)


def to_integer(value: object, maximum: int = INT_MAX) -> int:
    """A whole number. A fraction is cut off, unless it stands in a text. Raises ValueError."""
    if isinstance(value, str):
        return parse_int(value.strip(BLANKS), maximum)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it is not a number")
    return int(_within(value, maximum))


def _within(number: Number, maximum: int) -> Number:
    if not -maximum - 1 <= number <= maximum:
        raise ValueError(f"it has more than {maximum.bit_length() + 1} bits")
    return number


def to_number(value: object) -> float:
    """A number that is finite. Raises ValueError."""
    if isinstance(value, str):
        value = value.strip(BLANKS)
        if _FRACTION.fullmatch(value) is None:
            raise ValueError("it is not a number")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it is not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("it is too large") from error
    if not math.isfinite(number):
        raise ValueError("it is too large")
    return number


def to_boolean(value: object) -> bool:
    """A truth value; of whole numbers, all but 0 are true. Raises ValueError."""
    if isinstance(value, int):
        return bool(value)
    if isinstance(value, str):
        found = _BOOLEANS.get(value.strip(BLANKS))
        if found is not None:
            return found
    raise ValueError("it is neither true nor false")


def to_text(value: object) -> str:
    """A text; numbers and truth values as JSON writes them. Raises ValueError."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, WrittenFloat):
        return value.text
    if isinstance(value, (int, float)):
        return str(value)
    raise ValueError("it is not a text")


def to_choice(value: object, choices: Sequence[str]) -> str:
    """A value of an enumeration, by its name or its number. Raises ValueError."""
    if isinstance(value, str):
        value = value.strip(BLANKS)
        if value in choices:
            return str(value)
        value = parse_int(str(value), INT_MAX)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return choices[value]
    raise ValueError("it is none of them")

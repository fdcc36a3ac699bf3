"""Conversion of JSON values and texts of parameters to declared types.

One rule applies to all bodies and parameters: that of Jackson and JAX-RS in Apache Pulsar's broker.
Scripts and tools send "3600" and 3600.0 for a number, "true" and 1 for a boolean.
harness/coercion_cases.py has the table of accepted and refused values;
compat_tests/test_coercion.py sends each row to a broker, also to Apache Pulsar.

Two kinds of values are refused here that Apache Pulsar accepts: a text that is not a value of an
enumeration, which it reads as null, and numbers that are not finite.
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
# Java accepts digits of every script in whole numbers, but only ASCII digits in fractions.
_WHOLE = re.compile(r"[-+]?\d+")
_FRACTION = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_BOOLEANS = {
    word: value
    for name, value in (("true", True), ("false", False))
    for word in (name, name.capitalize(), name.upper())
}


class WrittenFloat(float):
    """A JSON number with a fraction or an exponent, and its text, which a string field receives."""

    __slots__ = ("text",)

    text: str


def read_float(text: str) -> WrittenFloat:
    """Return the number in a JSON text. Raises ValueError if it is too large."""
    number = WrittenFloat(text)
    number.text = text
    if math.isinf(number):
        raise ValueError(f"{text:.100} is too large a number")
    return number


def parse_int(text: str, maximum: int = LONG_MAX) -> int:
    """Return a whole number, parsed as Java's Integer and Long do. Raises ValueError."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text!r:.100} is not a whole number")
    return _within(int(text), maximum)


def parse_bool(text: str) -> bool:
    """Return True for `true` in any case and False for all other texts, as Java's Boolean does."""
    return text.lower() == "true"


def is_null(value: object) -> bool:
    """Return True if a value counts as null for a number, a boolean or a name."""
    return value is None or (isinstance(value, str) and value.strip(BLANKS) in NULLS)


def to_integer(value: object, maximum: int = INT_MAX) -> int:
    """Convert to a whole number, truncating a number but not a string. Raises ValueError."""
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
    """Convert to a finite number. Raises ValueError."""
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
    """Convert to a boolean; whole numbers except 0 are true. Raises ValueError."""
    if isinstance(value, int):
        return bool(value)
    if isinstance(value, str):
        found = _BOOLEANS.get(value.strip(BLANKS))
        if found is not None:
            return found
    raise ValueError("it is neither true nor false")


def to_text(value: object) -> str:
    """Convert to a string; numbers and booleans as JSON formats them. Raises ValueError."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, WrittenFloat):
        return value.text
    if isinstance(value, (int, float)):
        return str(value)
    raise ValueError("it is not a string")


def to_choice(value: object, choices: Sequence[str]) -> str:
    """Convert to a value of an enumeration, by its name or its number. Raises ValueError."""
    if isinstance(value, str):
        value = value.strip(BLANKS)
        if value in choices:
            return str(value)
        value = parse_int(str(value), INT_MAX)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return choices[value]
    raise ValueError("it is none of them")

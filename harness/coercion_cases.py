"""What Apache Pulsar's REST takes for a value of each Java type, and what it makes of it.

tests/test_coercion.py asks our functions for each row, compat_tests/test_coercion.py a broker.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Refused:
    """The mark of a value that is refused."""

    def __repr__(self) -> str:
        return "REFUSED"


REFUSED: Final = Refused()
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SAME: Final = object()


class Row(NamedTuple):
    """A text of JSON, the value that it is, and what Apache Pulsar makes of it where that differs
    (policy_bodies.py says why).
    """

    text: str
    value: Any
    there: Any = SAME


_WHOLE = (
    Row("3", 3),
    Row('"3"', 3),
    Row('" 3 "', 3),
    Row('"+3"', 3),
    Row('"003"', 3),
    Row('"-0"', 0),
    Row('"\u0663"', 3),  # a digit of another script
    Row("3.0", 3),
    Row("3.7", 3),
    Row("0.5", 0),
    Row("-0.5", 0),
    Row("1e1", 10),
    Row(str(INT_MAX), INT_MAX),
    Row('"3.0"', REFUSED),
    Row('"1e1"', REFUSED),
    Row('"0x3"', REFUSED),
    Row('"3_0"', REFUSED),
    Row('"3L"', REFUSED),
    Row('"3,000"', REFUSED),
    Row('"abc"', REFUSED),
    Row('"-"', REFUSED),
    Row('"true"', REFUSED),
    Row('"NaN"', REFUSED),
    Row("true", REFUSED),
    Row("[3]", REFUSED),
    Row("[]", REFUSED),
    Row("{}", REFUSED),
    Row(str(LONG_MAX + 1), REFUSED),
    Row(f'"{LONG_MAX + 1}"', REFUSED),
    Row("1e19", REFUSED),
    Row("1e400", REFUSED),
)
_OF_32_BITS = (
    *_WHOLE,
    Row(str(INT_MAX + 1), REFUSED),
    Row(f'"{INT_MAX + 1}"', REFUSED),
    Row(f"{INT_MAX}.5", REFUSED),
)
_OF_64_BITS = (
    *_WHOLE,
    Row(str(INT_MAX + 1), INT_MAX + 1),
    Row(f'"{INT_MAX + 1}"', INT_MAX + 1),
    Row(f"{INT_MAX}.5", INT_MAX),
    Row("1e18", 10**18),
)
_TRUTH = (
    *(Row(text, True) for text in ("true", '"true"', '"True"', '"TRUE"', '" true "', "1", "2")),
    *(Row(text, False) for text in ("false", '"false"', '"False"', '"FALSE"', "0")),
    Row("-1", True),
    *(Row(text, REFUSED) for text in ('"tRue"', '"yes"', '"on"', '"t"', '"1"', '"0"')),
    *(Row(text, REFUSED) for text in ("1.0", "0.0", "[true]", "[]", "{}")),
)
_NULLS = ("null", '""', '" "', '"null"')
_CHOICE = (
    Row('"FULL"', "FULL"),
    Row('" FULL "', "FULL"),
    Row("5", "FULL"),
    Row('"5"', "FULL"),
    # Apache Pulsar reads what it does not know as null, and so forgets what was set before.
    *(Row(text, REFUSED, None) for text in ('"full"', '"nope"', "99", "-1")),
    *(Row(text, REFUSED) for text in ("1.0", "true", '["FULL"]', "[]", "{}")),
)
_TEXT = (
    Row('"x"', "x"),
    Row('" x "', " x "),
    Row('""', ""),
    Row('"null"', "null"),
    Row("1", "1"),
    Row("1.50", "1.50"),
    Row("1E5", "1E5"),
    Row("12345678901234567890123", "12345678901234567890123"),
    Row("true", "true"),
    Row("[]", REFUSED),
    Row('["x"]', REFUSED),
    Row("{}", REFUSED),
)
_FRACTION = (
    Row("3", 3.0),
    Row("3.7", 3.7),
    Row("-0.5", -0.5),
    Row("1e1", 10.0),
    Row('"3.7"', 3.7),
    Row('" 3 "', 3.0),
    Row('"+3"', 3.0),
    Row('"1e1"', 10.0),
    Row('".5"', 0.5),
    Row('"abc"', REFUSED),
    Row('"3,7"', REFUSED),
    Row('"\u0663"', REFUSED),
    Row("true", REFUSED),
    Row("[3]", REFUSED),
    Row("{}", REFUSED),
    # Java's own forms of numbers, and those that are not finite, mean nothing here.
    Row('"3d"', REFUSED, 3.0),
    Row('"0x1p3"', REFUSED, 8.0),
    Row('"NaN"', REFUSED, "NaN"),
    Row('"Infinity"', REFUSED, "Infinity"),
    Row('"1e400"', REFUSED, "Infinity"),
)
_TEXTS = (
    Row('["a"]', ["a"]),
    Row("[]", []),
    Row('["a","a"]', ["a"]),
    Row("[1,1.50,true]", ["1", "1.50", "true"]),
    Row('"a"', REFUSED),
    Row('""', REFUSED),
    Row("1", REFUSED),
    Row("{}", REFUSED),
    Row('[["a"]]', REFUSED),
    Row("[{}]", REFUSED),
    Row("[null]", REFUSED),
)
_CHOICES = (
    Row('["produce"]', ["produce"]),
    Row('[" produce "]', ["produce"]),
    Row('["produce","produce"]', ["produce"]),
    Row("[0]", ["produce"]),
    Row('["1"]', ["consume"]),
    Row("[]", []),
    *(Row(text, REFUSED, [None]) for text in ('["nope"]', '["PRODUCE"]', "[null]", '[""]')),
    *(Row(text, REFUSED) for text in ('"produce"', '""', "null", "1", "{}", "[true]", "[1.0]")),
)
_MAP = (
    Row('{"a":"b"}', {"a": "b"}),
    Row("{}", {}),
    Row('{"a":1,"b":1.50,"c":true}', {"a": "1", "b": "1.50", "c": "true"}),
    Row('{"a":null,"b":"c"}', {"b": "c"}),
    Row('{"a":"b","a":"c"}', {"a": "c"}),
    *(Row(text, REFUSED) for text in ('""', '"x"', "1", "[]", '[{"a":"b"}]')),
    *(Row(text, REFUSED) for text in ('{"a":{}}', '{"a":[]}', '{"a":["b"]}')),
)

# By the Java type. null is 0 or false for primitive types in a field, and None for the others; a
# body that is null is no body.
ROWS: dict[str, tuple[Row, ...]] = {
    "int": (*_OF_32_BITS, *(Row(text, 0) for text in _NULLS)),
    "Integer": (*_OF_32_BITS, *(Row(text, None) for text in _NULLS)),
    "long": (*_OF_64_BITS, *(Row(text, 0) for text in _NULLS)),
    "Long": (*_OF_64_BITS, *(Row(text, None) for text in _NULLS)),
    "double": (*_FRACTION, *(Row(text, 0.0) for text in _NULLS)),
    "boolean": (*_TRUTH, *(Row(text, False) for text in _NULLS)),
    "Boolean": (*_TRUTH, *(Row(text, None) for text in _NULLS)),
    "enum": (*_CHOICE, *(Row(text, None) for text in _NULLS)),
    "String": (*_TEXT, Row("null", None)),
    "Set<String>": (*_TEXTS, Row("null", None)),
    "Set<enum>": _CHOICES,
    "Map<String, String>": _MAP,
}


class Parameter(NamedTuple):
    """What a field of the query, or a segment of the path, stands for."""

    text: str  # with escapes
    value: Any  # None: as if it were not there


PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "boolean": (
        *(Parameter(text, True) for text in ("true", "TRUE", "True", "tRuE")),
        *(Parameter(text, False) for text in ("false", "FALSE", "1", "0", "yes", "x", "%20true")),
        Parameter("", None),
    ),
    "Integer": (
        *(Parameter(text, 3) for text in ("3", "%2B3", "003", "%D9%A3")),
        *(Parameter(text, REFUSED) for text in ("+3", "%203", "3%20", "3.0", "0x3", "1e1", "x")),
        *(Parameter(text, REFUSED) for text in ("null", str(INT_MAX + 1))),
        Parameter("", None),
    ),
}

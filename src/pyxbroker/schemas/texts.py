"""Encoding of values given as text, as Pulsar's schemas encode them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from pyxbroker.base.json_weight import MANY_TOKENS_MAX, parse_light
from pyxbroker.schemas.values import SchemaType

INTEGERS = {SchemaType.INT8: 8, SchemaType.INT16: 16, SchemaType.INT32: 32, SchemaType.INT64: 64}
REALS = {SchemaType.FLOAT: ">f", SchemaType.DOUBLE: ">d"}
BOOLEANS = {"true": b"\x01", "false": b"\x00"}
DIGITS_MAX = 20  # of an integer, with its sign
REAL_CHARACTERS_MAX = 400


def _integer(bits: int) -> Callable[[str], bytes]:
    def encode(text: str) -> bytes:
        digits = text.strip()
        limit = 1 << (bits - 1)
        if not digits.lstrip("+-").isdecimal() or len(digits) > DIGITS_MAX:
            raise ValueError(f"{text!r:.50} is not an integer")
        number = int(digits)
        if not -limit <= number < limit:
            raise ValueError(f"{number} does not fit into {bits} bits")
        return number.to_bytes(bits // 8, "big", signed=True)

    return encode


def _real(form: str) -> Callable[[str], bytes]:
    def encode(text: str) -> bytes:
        if len(text) > REAL_CHARACTERS_MAX:
            raise ValueError(f"{text!r:.50} is too long for a number")
        try:
            return struct.pack(form, float(text))
        except (ValueError, OverflowError):
            raise ValueError(f"{text!r:.50} is not a number of this type") from None

    return encode


def _boolean(text: str) -> bytes:
    found = BOOLEANS.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r:.50} is neither true nor false")
    return found


async def encode_json(text: str) -> bytes:
    """Encode JSON. Raises ValueError; a text with too many values is refused before parsing."""
    try:
        await parse_light(text, MANY_TOKENS_MAX)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return text.encode()


ENCODERS: dict[SchemaType, Callable[[str], bytes]] = {
    SchemaType.NONE: str.encode,
    SchemaType.STRING: str.encode,
    SchemaType.BOOLEAN: _boolean,
    **{kind: _integer(bits) for kind, bits in INTEGERS.items()},
    **{kind: _real(form) for kind, form in REALS.items()},
}
"""Functions that encode a text; they raise ValueError for one that is no value of the type. JSON
has `encode_json`."""

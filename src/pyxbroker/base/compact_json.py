"""JSON as Pulsar writes it, in records and in answers."""

from __future__ import annotations

import json


def to_json(value: object) -> bytes:
    """JSON as Pulsar's Jackson mapper writes it: no spaces, UTF-8. Raises TypeError, ValueError."""
    from orjson import JSONEncodeError, dumps  # a start does not wait for it

    try:
        return dumps(value)
    except JSONEncodeError:
        # Others may have written what it refuses: numbers of more than 64 bits, or deep nesting.
        return to_short_json(value)


def to_short_json(value: object) -> bytes:
    """Return what `to_json` returns for strings, whole numbers, booleans and what is made of them.

    It is slower, and does not import orjson: for the few short texts of a start.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

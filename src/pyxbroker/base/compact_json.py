"""JSON as Pulsar writes it, in metadata records and in REST responses."""

from __future__ import annotations

import json


def to_json(value: object) -> bytes:
    """Encode JSON like Pulsar's Jackson mapper: no spaces, UTF-8. Raises TypeError, ValueError."""
    from orjson import JSONEncodeError, dumps  # here, for a fast start

    try:
        return dumps(value)
    except JSONEncodeError:
        # orjson refuses numbers of more than 64 bits and deep nesting, which other writers allow.
        return to_short_json(value)


def to_short_json(value: object) -> bytes:
    """Return what `to_json` returns for strings, integers, booleans and containers of them.

    It is slower and does not import orjson: for the few short texts of a start.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

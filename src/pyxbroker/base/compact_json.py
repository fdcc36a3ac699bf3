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
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

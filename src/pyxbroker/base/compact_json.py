"""JSON as Pulsar writes it, in records and in answers."""

from __future__ import annotations

import json


def to_json(value: object) -> bytes:
    """JSON as Pulsar's Jackson mapper writes it: no spaces, UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

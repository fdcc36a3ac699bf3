"""Java's hash of texts."""

from __future__ import annotations


def java_hash(key: str) -> int:
    """Java's hash of a text without its sign: by it Pulsar's clients choose a partition."""
    value = 0
    for unit in memoryview(key.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF

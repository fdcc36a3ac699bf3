"""Java's hash of texts."""

from __future__ import annotations


def java_hash(key: str, before: int = 0) -> int:
    """Java's hash of a text without its sign: by it Pulsar's clients choose a partition. `before`
    is that of what stands before the text.
    """
    value = before
    for unit in memoryview(key.encode("utf-16-le")).cast("H"):
        # What the sign is made of is no part of what follows.
        value = (31 * value + unit) & 0x7FFFFFFF
    return value

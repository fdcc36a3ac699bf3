"""Java's hash of strings."""

from __future__ import annotations


def java_hash(key: str, before: int = 0) -> int:
    """Return String.hashCode without its sign bit: Pulsar's clients choose a partition by it.

    `before` is the hash of a prefix of the text.
    """
    value = before
    for unit in memoryview(key.encode("utf-16-le")).cast("H"):
        # The sign bit does not influence the lower bits of later steps.
        value = (31 * value + unit) & 0x7FFFFFFF
    return value

"""The choice of a message's partition, as in Pulsar's Java client."""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.base.java_hash import java_hash
from pyxbroker.keys import murmur3_of

MESSAGES_PER_PARTITION = 1_000
"""Messages without a key that go to one partition in a row, so that batches fill up."""

HASHES: dict[str, Callable[[str], int]] = {
    "JavaStringHash": java_hash,
    "Murmur3_32Hash": lambda key: murmur3_of(key.encode()),
}
"""Hash functions by the names of Java's HashingScheme."""
ROUND_ROBIN, SINGLE = "RoundRobinPartition", "SinglePartition"
"""Names of Java's MessageRoutingMode, for messages without a key."""


class Router:
    """A router by key. Messages without a key rotate, or stay at one partition."""

    def __init__(self, hashing: str, mode: str, begin: int) -> None:
        """Create a router. begin: any number, which selects the first partition without a key."""
        self._hash = HASHES[hashing]
        self._begin = begin
        self._is_round_robin = mode == ROUND_ROBIN
        self._without_key = 0

    def partition_of(self, key: str | None, partitions: int) -> int:
        if key:
            return self._hash(key) % partitions
        step = self._without_key // MESSAGES_PER_PARTITION if self._is_round_robin else 0
        self._without_key += 1
        return (self._begin + step) % partitions

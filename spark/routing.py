"""Which partition of a topic a message goes to: as Pulsar's Java client chooses."""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.base.java_hash import java_hash
from pyxbroker.keys import murmur3_of

MESSAGES_PER_TURN = 1_000
"""Messages without a key that one partition gets before the next one's turn: a batch is of one."""

HASHES: dict[str, Callable[[str], int]] = {
    "JavaStringHash": java_hash,
    "Murmur3_32Hash": lambda key: murmur3_of(key.encode()),
}
"""By the names of Java's HashingScheme."""
ROUND_ROBIN, SINGLE = "RoundRobinPartition", "SinglePartition"
"""Of messages without a key, by the names of Java's MessageRoutingMode."""


class Router:
    """Chooses by the key, else in turns, or always the same one."""

    def __init__(self, hashing: str, mode: str, begin: int) -> None:
        """begin: where it begins with messages that have no key; any number."""
        self._hash = HASHES[hashing]
        self._begin = begin
        self._takes_turns = mode == ROUND_ROBIN
        self._without_key = 0

    def partition_of(self, key: str | None, partitions: int) -> int:
        if key:
            return self._hash(key) % partitions
        turn = self._without_key // MESSAGES_PER_TURN if self._takes_turns else 0
        self._without_key += 1
        return (self._begin + turn) % partitions

"""A dictionary in parts, so that nothing that is done with a large one takes long at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

PARTS = 256


class Shards(Generic[K, V]):
    """Keys and values, without an order.

    A dict of 100,000 is copied in 3 ms, and grows in as much. Here a walk copies a part when it
    comes to it: who changes the dictionary meanwhile disturbs nobody, and may be seen or not.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: tuple[dict[K, V], ...] = tuple({} for _ in range(PARTS))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __setitem__(self, key: K, value: V) -> None:
        self._parts[hash(key) % PARTS][key] = value

    def get(self, key: K) -> V | None:
        """The value; None for a key that there is not."""
        return self._parts[hash(key) % PARTS].get(key)

    def pop(self, key: K) -> V | None:
        """Removes a key; returns its value, None if there was none."""
        return self._parts[hash(key) % PARTS].pop(key, None)

    def values(self) -> Iterator[V]:
        """All values, a part at a time."""
        for part in self._parts:
            yield from tuple(part.values())

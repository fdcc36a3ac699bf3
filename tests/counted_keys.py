"""Keys of which it is known how often something was looked for by them."""

from __future__ import annotations


class CountedKey(int):
    """A number; `looks`, of all of them, is to be set to 0 before what is judged."""

    looks = 0

    def __hash__(self) -> int:
        CountedKey.looks += 1
        return int.__hash__(self)

    __eq__ = int.__eq__

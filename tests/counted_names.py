"""A name that tells whether it is found among many without a look at each."""

from __future__ import annotations


class Name(str):
    """Counts with how many it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    def __gt__(self, other: str) -> bool:
        Name.compared += 1
        return str.__gt__(self, other)

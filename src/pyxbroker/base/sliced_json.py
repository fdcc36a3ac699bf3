"""JSON encoding of large values in slices, between which other tasks run.

The compiled encoder holds the GIL until it is done, so a thread would not help. Therefore a text is
encoded in short pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.slices import Slices

PIECE_VALUES_MAX = 256  # encoded in one call
TEXT_PER_VALUE = 256  # characters that count as one more value: client metadata may be long

Named = tuple["str | None", Any]  # a member of a container; list members have no name


async def to_json_in_slices(value: Any) -> bytes:
    """Encode a value like to_json. Keys are strings. The value must not change meanwhile."""
    slices = Slices()
    pieces = []
    for piece in _pieces(value):
        pieces.append(piece)
        await slices.pause()
    return b"".join(pieces)


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        yield b"{"
        yield from _parts(value.items(), dict)
        yield b"}"
    elif isinstance(value, (list, tuple)):
        yield b"["
        yield from _parts(((None, each) for each in value), _values)
        yield b"]"
    else:
        yield to_json(value)


def _parts(named: Iterable[Named], gather: Callable[[list[Named]], Any]) -> Iterator[bytes]:
    """Yield the text between the brackets; `gather` builds a dict or a list of some members."""
    some: list[Named] = []  # encoded together
    weight = 0
    comma = b""
    for name, each in named:
        found = _weight(each)
        if some and weight + found > PIECE_VALUES_MAX:
            yield comma + to_json(gather(some))[1:-1]
            some, weight, comma = [], 0, b","
        if found > PIECE_VALUES_MAX:
            yield comma if name is None else b"%b%b:" % (comma, to_json(name))
            yield from _pieces(each)
            comma = b","
        else:
            some.append((name, each))
            weight += found
    if some:
        yield comma + to_json(gather(some))[1:-1]


def _values(named: list[Named]) -> list[Any]:
    return [each for _, each in named]


def _weight(value: Any) -> int:
    """Return the number of values in a value; above PIECE_VALUES_MAX for nested containers."""
    if isinstance(value, str):
        return 1 + len(value) // TEXT_PER_VALUE
    if not isinstance(value, (dict, list, tuple)):
        return 1
    if len(value) > PIECE_VALUES_MAX:
        return PIECE_VALUES_MAX + 1
    weight = 1 + len(value)
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, str):
            weight += len(each) // TEXT_PER_VALUE
        elif each and isinstance(each, (dict, list, tuple)):
            return PIECE_VALUES_MAX + 1
    return weight

"""Long JSON, written in slices between which everybody else has a turn.

The encoder is compiled, and lets nobody run until it is through; a thread of its own is no help
against that. So a text is made of short pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.slices import Slices

PIECE_VALUES_MAX = 256  # that are encoded in one go
TEXT_PER_VALUE = 256  # characters of one that count as another: metadata of clients may be long

Named = tuple["str | None", Any]  # a part; what is in a list has no name


async def to_json_in_slices(value: Any) -> bytes:
    """What to_json makes of it. Keys are strings. Nobody changes the value meanwhile."""
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
    """What is between the brackets; gather makes a dict or a list of some parts."""
    some: list[Named] = []  # that are encoded together
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
    """How many values are in one; more than a piece has where what is in it has parts itself."""
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

"""Long JSON, written in slices between which everybody else has a turn.

The encoder of `json` is compiled, and lets nobody run until it is through; a thread of its own is
no help against that. So a text is made of short pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from pyxbroker.base.slices import Slices

PIECE_VALUES_MAX = 256  # that are encoded in one go

Named = tuple["str | None", Any]  # a part; what is in a list has no name

# As compact_json.py writes it.
_text_of = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)


async def to_json_in_slices(value: Any) -> bytes:
    """What to_json makes of it. Keys are strings. Nobody changes the value meanwhile."""
    slices = Slices()
    pieces = []
    for piece in _pieces(value):
        pieces.append(piece.encode())
        await slices.pause()
    return b"".join(pieces)


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        yield from _parts(value.items(), dict)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        yield from _parts(((None, each) for each in value), _values)
        yield "]"
    else:
        yield _text_of(value)


def _parts(named: Iterable[Named], gather: Callable[[list[Named]], Any]) -> Iterator[str]:
    """What is between the brackets; gather makes a dict or a list of some parts."""
    some: list[Named] = []  # that are encoded together
    weight = 0
    comma = ""
    for name, each in named:
        found = _weight(each)
        if some and weight + found > PIECE_VALUES_MAX:
            yield comma + _text_of(gather(some))[1:-1]
            some, weight, comma = [], 0, ","
        if found > PIECE_VALUES_MAX:
            yield comma if name is None else f"{comma}{_text_of(name)}:"
            yield from _pieces(each)
            comma = ","
        else:
            some.append((name, each))
            weight += found
    if some:
        yield comma + _text_of(gather(some))[1:-1]


def _values(named: list[Named]) -> list[Any]:
    return [each for _, each in named]


def _weight(value: Any) -> int:
    """How many values are in one; more than a piece has where what is in it has parts itself."""
    if not isinstance(value, (dict, list, tuple)):
        return 1
    if len(value) > PIECE_VALUES_MAX:
        return PIECE_VALUES_MAX + 1
    for each in value.values() if isinstance(value, dict) else value:
        if each and isinstance(each, (dict, list, tuple)):
            return PIECE_VALUES_MAX + 1
    return 1 + len(value)

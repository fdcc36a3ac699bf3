"""Long JSON, written in slices between which everybody else has a turn.

The encoder of `json` is compiled, and lets nobody run until it is through; a thread of its own is
no help against that. So a text is made of short pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyxbroker.base.slices import Slices

SLICE_S = 0.002  # of work, then it yields
PIECE_VALUES_MAX = 256  # that are encoded in one go

# As compact_json.py writes it.
_text_of = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)


async def to_json_in_slices(value: Any) -> bytes:
    """What to_json makes of it. Keys are strings. Nobody changes the value meanwhile."""
    slices = Slices(SLICE_S)
    pieces = []
    for piece in _pieces(value):
        pieces.append(piece.encode())
        await slices.pause()
    return b"".join(pieces)


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        yield from _pieces_of_dict(value)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        yield from _pieces_of_list(value)
        yield "]"
    else:
        yield _text_of(value)


def _pieces_of_dict(value: dict[str, Any]) -> Iterator[str]:
    some: dict[str, Any] = {}  # that are encoded together
    weight = 0
    comma = ""
    for name, each in value.items():
        found = _weight(each)
        if some and weight + found > PIECE_VALUES_MAX:
            yield comma + _text_of(some)[1:-1]
            some, weight, comma = {}, 0, ","
        if found > PIECE_VALUES_MAX:
            yield f"{comma}{_text_of(name)}:"
            yield from _pieces(each)
            comma = ","
        else:
            some[name] = each
            weight += found
    if some:
        yield comma + _text_of(some)[1:-1]


def _pieces_of_list(value: list[Any] | tuple[Any, ...]) -> Iterator[str]:
    some: list[Any] = []
    weight = 0
    comma = ""
    for each in value:
        found = _weight(each)
        if some and weight + found > PIECE_VALUES_MAX:
            yield comma + _text_of(some)[1:-1]
            some, weight, comma = [], 0, ","
        if found > PIECE_VALUES_MAX:
            yield comma
            yield from _pieces(each)
            comma = ","
        else:
            some.append(each)
            weight += found
    if some:
        yield comma + _text_of(some)[1:-1]


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

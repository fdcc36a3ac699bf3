"""How much work a text of JSON is: counted without reading it, in short slices."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.base import json_weight
from pyxbroker.base.json_weight import is_heavy
from pyxbroker.base.slices import Slices

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=10), inner, max_size=5)
    ),
    max_leaves=30,
)


def signs_of(value: Any) -> int:
    """An obvious count."""
    if isinstance(value, dict):
        inside = sum(map(signs_of, value.values())) + len(value)
        return 1 + inside + max(len(value) - 1, 0)
    if isinstance(value, list):
        return 1 + sum(map(signs_of, value)) + max(len(value) - 1, 0)
    return 0


@given(VALUES, st.booleans(), st.integers(2, 9))
def test_what_is_in_strings_does_not_count(value: Any, ascii_only: bool, chunk: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    expected = signs_of(value) + text.count(b"\\") // json_weight.ESCAPES_PER_TOKEN
    whole, json_weight.CHUNK_BYTES = json_weight.CHUNK_BYTES, chunk
    try:
        assert not asyncio.run(is_heavy(text, expected))
        if expected:
            assert asyncio.run(is_heavy(text, expected - 1))
    finally:
        json_weight.CHUNK_BYTES = whole


@pytest.mark.parametrize(
    "text",
    [b'"', b'"\\', b'"\\"', b"\\", b'""', b'"a\\\\"[', b"\x00\xff", b""],
)
def test_texts_that_are_no_json_come_to_an_end(text: bytes) -> None:
    assert not asyncio.run(is_heavy(text, 1))


def test_a_long_string_is_one_value_and_many_short_ones_are_many() -> None:
    assert not asyncio.run(is_heavy(b'{"a":"' + b"[,:{}" * 1_000_000 + b'"}', 2))
    assert asyncio.run(is_heavy(b'"",' * 3_000_000, 10_000))


def test_strings_without_signs_between_them_are_not_looked_through_to_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = 0

    class Counted(Slices):
        async def pause(self) -> None:
            nonlocal turns
            turns += 1

    monkeypatch.setattr(json_weight, "Slices", Counted)
    assert asyncio.run(is_heavy(b'"' * 1_000_000, 1_000))
    assert turns <= 2 * 1_000 + 4


def test_escapes_and_digits_that_take_as_long_as_many_values_count_as_such() -> None:
    # A text of JSON within another one has an escape for each quote.
    within = json.dumps(json.dumps([{"name": n} for n in range(100_000)])).encode()
    assert not asyncio.run(is_heavy(within, 20_000))
    assert asyncio.run(is_heavy(b'"' + b"a\\n" * 2_000_000 + b'"', 20_000))
    # Python's time for a whole number grows with the square of its digits.
    assert asyncio.run(is_heavy(b"[" + (b"9" * 4_300 + b",") * 1_000 + b"1]", 20_000))
    assert not asyncio.run(is_heavy(b"[" + b"1234567890123456789," * 9_000 + b"1]", 20_000))

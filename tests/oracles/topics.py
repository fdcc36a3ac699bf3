"""The hash of a list of topics, made in one go."""

from __future__ import annotations

from collections.abc import Iterable

from oracles import wire


def topics_hash(names: Iterable[str]) -> str:
    """As Java makes it: sorted by UTF-16 code units."""
    found = sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return wire.crc32c(",".join(found).encode()).to_bytes(4, "little").hex()

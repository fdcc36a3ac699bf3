"""Bundles: ranges of the 32-bit hashes of topic names that divide a namespace among brokers.

A request for one bundle applies to the topics whose hashes lie in it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import Any

from pyxbroker.base.errors import MetadataStoreError
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.topic_name import TopicName

BUNDLES_MAX = 4_096  # per namespace: each reader of the namespace's record reads all boundaries
FIRST_BOUNDARY = 0
LAST_BOUNDARY = 0xFFFFFFFF
DIGITS_MAX = 8


class Bundle(NamedTuple):
    """The hashes from `lower` up to, but not including, `upper`.

    The last bundle of a namespace also includes the highest hash.
    """

    lower: int
    upper: int

    def __contains__(self, topic: object) -> bool:
        assert isinstance(topic, TopicName)
        at = hash_of(topic)
        return self.lower <= at < self.upper or at == self.upper == LAST_BOUNDARY

    def __str__(self) -> str:
        return f"{text_of(self.lower)}_{text_of(self.upper)}"


WHOLE = Bundle(FIRST_BOUNDARY, LAST_BOUNDARY)


def hash_of(topic: TopicName) -> int:
    """Return the hash that places a topic in a bundle: the CRC-32 of its full name."""
    return zlib.crc32(str(topic).encode())


def bundle_of(topic: TopicName, boundaries: list[int]) -> Bundle | None:
    """Return the bundle of a topic, or None if there are no boundaries.

    The boundaries are sorted and cover all hashes.
    """
    if len(boundaries) < 2:
        return None
    # The highest hash does not begin a bundle: it belongs to the last one.
    at = bisect_right(boundaries, hash_of(topic), 1, len(boundaries) - 1)
    return Bundle(boundaries[at - 1], boundaries[at])


def text_of(boundary: int) -> str:
    return f"0x{boundary:08x}"


def bundles_data(count: int) -> dict[str, Any]:
    """Return Pulsar's BundlesData for `count` equal ranges."""
    if not 1 <= count <= LAST_BOUNDARY:
        raise ValueError(f"a namespace cannot have {count} bundles")
    size = 2**32 // count
    return data_of([*range(0, count * size, size), LAST_BOUNDARY])


def bundles_of(fields: dict[str, Any], local: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the BundlesData in a namespace's records, else that of `count` equal bundles."""
    found: dict[str, Any] = local.get("bundles") or fields.get("bundles") or bundles_data(count)
    return found


def data_of(boundaries: list[int]) -> dict[str, Any]:
    """Return the BundlesData of sorted boundaries."""
    return {"boundaries": [text_of(each) for each in boundaries], "numBundles": len(boundaries) - 1}


def boundaries_of(data: dict[str, Any]) -> list[int]:
    """Return the sorted boundaries of a BundlesData. Raises MetadataStoreError if it is invalid."""
    try:
        found = sorted({int(each, 16) for each in data["boundaries"]})
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataStoreError("The bundles of the namespace cannot be read.") from error
    if found[:1] != [FIRST_BOUNDARY] or found[-1] != LAST_BOUNDARY:
        raise MetadataStoreError("The bundles of the namespace do not cover all hashes.")
    return found


def parse(text: str) -> Bundle:
    """Parse a range such as 0x00000000_0x40000000. Raises ValueError."""
    parts = text.split("_")
    digits = [part.lower().removeprefix("0x") for part in parts]
    if len(parts) != 2 or not all(
        part.isascii() and part.isalnum() and len(part) <= DIGITS_MAX for part in digits
    ):
        raise ValueError(f"{text!r:.100} is not a range of hashes")
    lower, upper = (int(part, 16) for part in digits)
    if lower >= upper:
        raise ValueError(f"{text!r:.100} is an empty range of hashes")
    return Bundle(lower, upper)

"""Key_Shared with plain lists and dictionaries: hashes, owners, and who may get what."""

from __future__ import annotations

import base64
import binascii
from array import array
from collections import defaultdict

Position = tuple[int, int]
_MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def murmur3(data: bytes) -> int:
    """Murmur3 as its author describes it (x86, 32 bits, seed 0), without the sign bit."""
    value = 0
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        block = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & _MASK
        value ^= _rotate(block, 15) * 0x1B873593 & _MASK
        value = (_rotate(value, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        block = int.from_bytes(data[whole:], "little") * 0xCC9E2D51 & _MASK
        value ^= _rotate(block, 15) * 0x1B873593 & _MASK
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return (value ^ value >> 16) & 0x7FFFFFFF


def key_hash(
    producer_name: bytes,
    sequence_id: int,
    ordering_key: bytes | None,
    partition_key: bytes | None,
    is_base64: bool,
    hashes: int,
) -> int:
    """The hash of an entry's key; 65535 hashes start at 1, 65536 at 0, which becomes 1."""
    if ordering_key is not None:
        key = ordering_key
    elif partition_key is not None and is_base64:
        key = decoded(partition_key)
    elif partition_key is not None:
        key = partition_key
    else:
        signed = sequence_id - 2**64 if sequence_id >= 2**63 else sequence_id
        key = producer_name + b"-%d" % signed
    return (murmur3(key) % hashes + 65536 - hashes) or 1


def decoded(text: bytes) -> bytes:
    """Base64 with or without padding; NONE_KEY for what is not."""
    padding = b"=" * (-len(text) % 4)
    if b"=" in text and padding:
        return b"NONE_KEY"
    try:
        return base64.b64decode(text + padding, validate=True)
    except binascii.Error:
        return b"NONE_KEY"


def owners(ranges: list[tuple[int, int]]) -> tuple[array[int], array[int]]:
    """(last hash, slot) pairs as KeyShared.set_owners takes them."""
    return array("H", [last for last, _ in ranges]), array("i", [slot for _, slot in ranges])


class SlowKeyShared:
    """Who may get what, by looking at everything."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.ranges: list[tuple[int, int]] = []
        self.held: dict[int, list[int]] = defaultdict(list)  # hash -> a slot for each entry
        self.waiting: dict[int, list[Position]] = defaultdict(list)

    def owner(self, key_hash: int) -> int:
        for last, slot in self.ranges:
            if key_hash <= last:
                return slot
        return 0

    def is_drained(self, key_hash: int, slot: int) -> bool:
        return not self.ordered or set(self.held[key_hash]) <= {slot}

    def draining(self) -> list[tuple[int, int, int, int]]:
        """Slot that drains it, hash, entries that are out, entries that wait; by hash."""
        return [
            (slots[0], key_hash, len(slots), len(self.waiting[key_hash]))
            for key_hash, slots in sorted(self.held.items())
            if slots and slots[0] != self.owner(key_hash)
        ]

    def may_be_sent(self, key_hash: int, slot: int) -> bool:
        if self.ordered and self.waiting[key_hash]:
            return False
        return self.is_drained(key_hash, slot)

    def ready(self, slot: int) -> dict[int, list[Position]]:
        """What may be sent to a consumer, by hash, in order."""
        return {
            key_hash: entries
            for key_hash, entries in self.waiting.items()
            if entries and self.owner(key_hash) == slot and self.is_drained(key_hash, slot)
        }

"""What compaction reads of stored entries: any bytes are left as they are, left out, or rebuilt
into a batch that can be read; records of a compacted ledger are read, or they are none.
"""

from __future__ import annotations

from contextlib import suppress

import driver

with driver.guided("pyxbroker"):
    from pyxbroker.broker.compaction import packed_batches

from google.protobuf.message import DecodeError

from compacting import Sent, batch, batched, messages_of, packed_batch, single
from pyxbroker.compaction import (
    KEY_PARTS,
    LatestMessages,
    compressed_payload,
    record,
    unwrap,
    wrapped_position,
)
from pyxbroker.entry import EntryBatch, EntryRun, Position
from pyxbroker.proto import PulsarApi as pb

BYTES_MAX = 1 << 20
LATER = single("a", b"later")


def stored(data: bytes) -> EntryBatch:
    return EntryBatch.of_run(EntryRun.of(data))


def unpacked(one: EntryBatch) -> bytes | None:
    return packed_batches.unpack(*compressed_payload(one, 0), BYTES_MAX)


def look_at_entry(entry: bytes) -> None:
    """What is left of it, behind it another message of a key that it may have."""
    latest = LatestMessages(bytes(16), retains_keyless=len(entry) % 2 == 0)
    entries = [stored(entry), stored(LATER)]
    for each in entries:
        if latest.scan(each, 0) == 0:
            latest.scan_unpacked(each, 0, unpacked(each))
    for part in range(KEY_PARTS):
        latest.resolve(part, None)
    latest.begin_selection()
    run, at, partly = latest.select(entries[0], 0, -1, 1 << 20)
    assert at == (not partly)
    if partly:
        assert run is None
        plain = unpacked(entries[0]) if compressed_payload(entries[0], 0)[0] else None
        rebuilt = packed_batches.with_messages(entry, *latest.rebuild(entries[0], 0, plain))
        # What a producer made of a message that is left is not looked at more than need be.
        with suppress(DecodeError):
            found = messages_of(rebuilt)
            assert any(each is not None for each in found)
            assert all(each is None or each.key != "a" for each in found)
    elif run is not None:
        inner, _ = unwrap(EntryBatch.of_run(run), 0)
        assert inner is not None and inner.data(0) == entry
    run, _, _ = latest.select(entries[1], 0, -1, 1 << 20)
    assert run is not None


def look_at_batch(data: bytes) -> None:
    """The messages of a batch, packed as they should be."""
    count, codec = data[0] % 8, data[1] % 5
    look_at_entry(packed_batch(data[2:], count, codec))


def look_at_record(data: bytes) -> None:
    one = stored(data)
    position = wrapped_position(one, 0)
    found, _ = unwrap(one, 0)
    assert (found is None) == (position is None)
    if found is not None and position is not None:
        assert position == (found.ledger_id, found.entry_id(0))
        assert data.endswith(found.data(0))


LOOKS = (look_at_entry, look_at_batch, look_at_record)


def seeds() -> list[bytes]:
    """A byte that chooses the look, and what it looks at."""
    messages = (Sent("a", b"1"), Sent("b", b""), Sent(None, b"3"), Sent("c", b"4"))
    entries = [
        single("a", b"1"),
        single(None, b"1", chunk_id=1, num_chunks_from_msg=2, uuid="u"),
        *(batch(*messages, compression=codec) for codec in range(5)),
        batch(*messages, compacted_batch_indexes=[0, 1, 2, 3]),
        packed_batch(b"", 1 << 20, pb.ZLIB, uncompressed_size=1 << 31),
    ]
    plain = batched(*messages)
    whole = record(Position(3, 300), 2, entries[0])
    return [
        *(b"\0" + each for each in entries),
        *(bytes([1, 4, codec]) + plain for codec in range(5)),
        b"\2" + whole,
    ]


def one_input(data: bytes) -> None:
    if len(data) >= 3:
        LOOKS[data[0] % len(LOOKS)](bytes(data[1:]))


if __name__ == "__main__":
    driver.main(seeds, one_input, input_bytes_max=6000)

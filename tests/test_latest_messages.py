"""compaction.pyx: which messages are the latest of their keys, whatever entries they are in."""

from __future__ import annotations

import ctypes
import os
import random
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import pytest

from compacting import Sent, batch, batched, left_of, messages_of, packed_batch, single
from one_broker import section
from pyxbroker.broker.compaction.packed_batches import last_index_of, unpack, with_messages
from pyxbroker.compaction import (
    KEY_PARTS,
    LatestMessages,
    TooManyMessages,
    compressed_payload,
    keyed_hash,
    record,
    unwrap,
    wrapped_position,
)
from pyxbroker.entry import EntryBatch, EntryRun, Position
from pyxbroker.proto import PulsarApi as pb

LARGE = 5 << 20
BATCH = batched(Sent("a", b"1"), Sent("b", b"2"))
CODECS = (pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)


def stored(data: bytes) -> EntryBatch:
    return EntryBatch.of_run(EntryRun.of(data))


def compacted(
    entries: list[bytes], retains_keyless: bool = False, file: Any = None, partition: int = -1
) -> list[bytes | None]:
    """Each entry as it is left, None where nothing of it is."""
    latest = LatestMessages(os.urandom(16), retains_keyless)
    for each in entries:
        one = stored(each)
        if latest.scan(one, 0) == 0:
            latest.scan_unpacked(one, 0, unpack(*compressed_payload(one, 0), LARGE))
        if file is not None:
            latest.spill(file)
    for part in range(KEY_PARTS):
        latest.resolve(part, file)
    latest.begin_selection()
    found: list[bytes | None] = []
    for each in entries:
        one = stored(each)
        run, at, partly = latest.select(one, 0, partition, 1 << 20)
        if partly:
            assert run is None
            assert at == 0
            for index in (-1, 1):
                with pytest.raises(IndexError):
                    compressed_payload(one, index)
            compression, size, payload = compressed_payload(one, 0)
            plain = unpack(compression, size, payload, LARGE) if compression else None
            found.append(with_messages(each, *latest.rebuild(one, 0, plain)))
        elif run is None:
            found.append(None)
        else:
            assert (run.count, at) == (1, 1)
            inner, _ = unwrap(EntryBatch.of_run(run), 0)
            assert inner is not None
            found.append(inner.data(0))
    return found


def left(entries: list[bytes], **options: Any) -> dict[tuple[int, int], Sent]:
    found = {}
    for number, entry in enumerate(compacted(entries, **options)):
        for index, each in enumerate([] if entry is None else messages_of(entry)):
            if each is not None:
                found[number, index] = each
    return found


def anything(random_: random.Random) -> list[list[Sent]]:
    """Entries of one message, or of several; some keys often, some once."""
    entries = []
    for number in range(random_.randrange(1, 60)):
        messages = []
        for index in range(1 if random_.random() < 0.5 else random_.randrange(1, 9)):
            kind = random_.random()
            key = None if kind < 0.1 else f"k{random_.randrange(12)}"
            value = b"" if key and random_.random() < 0.15 else b"%d-%d" % (number, index)
            messages.append(Sent(key, value))
        entries.append(messages)
    return entries


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_is_the_latest_of_each_key(seed: int) -> None:
    random_ = random.Random(seed)
    sent = anything(random_)
    entries = [
        single(*messages[0])
        if len(messages) == 1 and random_.random() < 0.5
        else batch(*messages, compression=random_.choice(CODECS))
        for messages in sent
    ]
    keeps = seed % 2 == 0
    assert left(entries, retains_keyless=keeps) == left_of(sent, keeps)


def test_keys_that_are_spilled_count_as_those_in_memory() -> None:
    sent = [[Sent(f"k{n % 7000}", b"%d" % n)] for n in range(300_000)]
    entries = [batch(*(each[0] for each in sent[at : at + 1000])) for at in range(0, 300_000, 1000)]
    with tempfile.TemporaryFile(buffering=0) as file:
        found = left(entries, file=file)
        assert file.seek(0, os.SEEK_END) > 1 << 20
    assert sorted(found.values()) == sorted(each[0] for each in sent[293_000:])


def test_a_key_that_comes_thousands_of_times_is_left_once() -> None:
    sent = [Sent("k", b"%d" % n) for n in range(2_000)]
    assert list(left([batch(*sent[:900]), batch(*sent[900:])]).values()) == [sent[-1]]


@pytest.mark.parametrize("codec", CODECS)
def test_the_last_entry_with_something_to_keep_is_told(codec: int) -> None:
    latest = LatestMessages(bytes(16))
    assert latest.last_position == Position(-1, -1)
    one = stored(batch(Sent("a", b"1"), compression=codec))
    if latest.scan(one, 0) == 0:
        latest.scan_unpacked(one, 0, unpack(*compressed_payload(one, 0), LARGE))
    assert latest.last_position == Position(0, 0)


def test_a_batch_of_which_all_is_left_stays_as_it_is() -> None:
    entries = [batch(Sent("a", b"1"), Sent("b", b"2"), compression=pb.ZSTD), single("c", b"3")]
    assert compacted(entries) == entries


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_left_of_a_batch_can_be_compacted_again(codec: int) -> None:
    first = batch(*(Sent(f"k{n}", b"%d" % n) for n in range(4)), compression=codec)
    [once, _] = compacted([first, single("k1", b"new")])
    assert once is not None
    assert messages_of(once) == [Sent("k0", b"0"), None, Sent("k2", b"2"), Sent("k3", b"3")]
    # Its places do not count: nothing is left out of it, then one, then all.
    assert compacted([once]) == [once]
    [twice, _] = compacted([once, single("k3", b"new")])
    assert twice is not None
    assert messages_of(twice) == [Sent("k0", b"0"), None, Sent("k2", b"2"), None]
    assert last_index_of(twice) == 2
    assert compacted([twice, single("k0", b""), single("k2", b"")]) == [None, None, None]


def test_other_threads_run_while_a_large_batch_is_rebuilt() -> None:
    messages = 300_000
    sent = [Sent(f"k{n}" if n % 2 else "k", b"x") for n in range(messages)]
    plain = b"".join(map(batched, sent))
    one = stored(packed_batch(plain, messages, pb.NONE))
    latest = LatestMessages(os.urandom(16))
    latest.scan(one, 0)
    for part in range(KEY_PARTS):
        latest.resolve(part, None)
    latest.begin_selection()
    assert latest.select(one, 0, -1, 1 << 30) == (None, 0, True)
    ticks, is_over = [0], threading.Event()

    def tick() -> None:
        while not is_over.wait(0.0001):
            ticks[0] += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        before = ticks[0]
        _, kept = latest.rebuild(one, 0, None)
        after = ticks[0]
    finally:
        is_over.set()
        ticking.join()
    assert kept == sorted([*range(1, messages, 2), messages - 2])
    # A call that keeps the lock lets it run when it returns, once.
    assert after - before > 3


def test_a_null_value_deletes_a_key_and_is_not_left_itself() -> None:
    null = section(b"ignored", partition_key="a", null_value=True)
    assert left([single("a", b"1"), null]) == {}
    assert left([single("a", b"1"), null, single("a", b"2")]) == {(2, 0): Sent("a", b"2")}


def test_a_size_before_compression_tells_whether_there_is_a_value() -> None:
    packed_value = section(b"\0", partition_key="a", compression=pb.LZ4, uncompressed_size=0)
    assert left([single("a", b"1"), packed_value]) == {}


def chunk(key: str, uuid: str, number: int, count: int) -> bytes:
    return section(
        b"part", partition_key=key, uuid=uuid, chunk_id=number, num_chunks_from_msg=count
    )


def test_all_chunks_of_the_latest_message_are_left() -> None:
    entries = [
        chunk("a", "old", 0, 2),
        chunk("a", "new", 0, 3),
        chunk("a", "old", 1, 2),
        chunk("a", "new", 1, 3),
        chunk("b", "gone", 0, 2),
        chunk("a", "new", 2, 3),
        chunk("b", "gone", 1, 2),
        single("b", b"whole"),
    ]
    found = compacted(entries)
    kept = [number for number, each in enumerate(found) if each is not None]
    assert kept == [1, 3, 5, 7]


def test_a_message_whose_last_chunk_has_not_come_replaces_nothing() -> None:
    assert all(compacted([single("a", b"1"), chunk("a", "u", 0, 2)]))


def test_a_message_whose_last_chunk_comes_after_a_compaction_is_whole_in_the_next_one() -> None:
    entries = [
        single("a", b"1"),
        chunk("a", "u", 0, 3),
        chunk("b", "v", 0, 2),
        chunk("a", "u", 1, 3),
    ]
    once = compacted(entries)
    assert all(once)
    again = compacted([*filter(None, once), chunk("a", "u", 2, 3)])
    assert [each is not None for each in again] == [False, True, True, True, True]
    # What never gets its last chunk goes with the next message of its key.
    last = compacted([*filter(None, again), single("b", b"2")])
    assert [each is not None for each in last] == [True, False, True, True, True]


def test_what_deletes_a_key_is_left_where_something_before_it_cannot_be_read() -> None:
    unreadable = packed_batch(BATCH[:-1], 2, pb.NONE)
    entries = [single("b", b""), unreadable, single("a", b""), single("c", b"1"), single("c", b"")]
    found = compacted(entries)
    assert [each is not None for each in found] == [False, True, True, False, True]


def test_markers_go_and_encrypted_batches_are_one_message() -> None:
    marker = section(b"", partition_key="a", marker_type=10)
    key = pb.EncryptionKeys(key="k", value=b"v")
    unreadable = section(b"x", num_messages_in_batch=3, encryption_keys=[key])
    with_key = section(b"x", num_messages_in_batch=3, encryption_keys=[key], partition_key="a")
    found = compacted([single("a", b"1"), marker, unreadable, with_key])
    assert [each is not None for each in found] == [False, False, False, True]


UNREADABLE = {
    "cut": packed_batch(BATCH[:-1], 2, pb.NONE),
    "fewer": packed_batch(BATCH, 3, pb.NONE),
    "a size beyond the end": packed_batch(b"\xff" * 8, 1, pb.NONE),
    "too many": packed_batch(BATCH, 1 << 30, pb.NONE),
    "a size that is not its own": packed_batch(BATCH, 2, pb.ZSTD, uncompressed_size=7),
    "a size beyond all limits": packed_batch(BATCH, 2, pb.ZLIB, uncompressed_size=1 << 31),
    "no codec's": section(b"x", num_messages_in_batch=2, compression=pb.ZLIB, uncompressed_size=9),
    "no metadata": b"\x0e\x01\0\0\0\0\0\0\0\1\xff",
    "nothing": b"",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_left_as_it_is(name: str) -> None:
    entry = UNREADABLE[name]
    assert compacted([single("a", b"0"), entry, single("a", b"9")])[1:] == [
        entry,
        single("a", b"9"),
    ]


def test_a_bomb_takes_no_more_memory_than_a_message_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpacked: list[int] = []

    def noting(codec: int) -> Callable[[bytes, int], bytes]:
        def unpack_it(_: bytes, size: int) -> bytes:
            unpacked.append(codec)
            return bytes(size)

        return unpack_it

    noted = {codec: noting(codec) for codec in (*CODECS, 9)}
    monkeypatch.setattr("pyxbroker.base.compression._DECOMPRESSORS", noted)
    assert unpack(pb.ZSTD, LARGE + 1, b"x" * 1000, LARGE) is None
    assert unpack(pb.LZ4, LARGE, b"x" * 1000, LARGE) is None
    assert unpack(9, 10, b"x" * 1000, LARGE) is None
    assert not unpacked
    assert unpack(pb.ZSTD, LARGE, b"x" * 1000, LARGE) == bytes(LARGE)
    assert unpacked == [pb.ZSTD]


def test_a_zlib_stream_needs_no_end_mark() -> None:
    import zlib

    packer = zlib.compressobj()
    cut = packer.compress(BATCH) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert unpack(pb.ZLIB, len(BATCH), cut, LARGE) == BATCH


def without_its_end(data: bytes, left_out: int) -> bytes:
    """A shorter one, with what it does not have behind it in memory."""
    whole = bytes(bytearray(data))  # nobody else's
    size = ctypes.c_ssize_t.from_address(id(whole) + object.__basicsize__)
    assert size.value == len(data)
    size.value -= left_out
    return whole


@pytest.mark.parametrize("left_out", range(1, len(batched(Sent("b", b"2")))))
def test_a_batch_that_ends_too_early_is_kept_whatever_lies_behind_it(left_out: int) -> None:
    lines = [batch(Sent("a", b"1"), Sent("b", b"2")), single("a", b"3"), single("b", b"4")]
    assert compacted(lines)[0] is None
    cut = without_its_end(lines[0], left_out)
    # Nobody can tell which keys it has.
    assert compacted([cut, *lines[1:]]) == [cut, *lines[1:]]


@pytest.mark.parametrize("head", [b"\xff\xff\xff", b"\x12\x01b"], ids=["noise", "without a size"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_with_a_message_that_cannot_be_read_is_kept(head: bytes, is_first: bool) -> None:
    damaged = len(head).to_bytes(4, "big") + head
    sound = batched(Sent("a", b"1"))
    plain = damaged + sound if is_first else sound + damaged
    lines = [packed_batch(plain, 2, pb.NONE), single("a", b"3"), single("b", b"4")]
    assert compacted(lines) == lines


def test_places_that_a_producer_makes_up_change_nothing() -> None:
    head = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    place = len(head).to_bytes(4, "big") + head
    lying = packed_batch(place + BATCH, 3, pb.NONE, compacted_batch_indexes=[0])
    assert compacted([lying]) == [lying]
    honest = packed_batch(place + BATCH, 3, pb.NONE)
    [found] = compacted([honest])
    assert found is not None
    assert messages_of(found) == [None, Sent("a", b"1"), Sent("b", b"2")]


def test_there_is_a_limit_of_messages() -> None:
    latest = LatestMessages(bytes(16), False, 10)
    assert latest.scan(stored(batch(*[Sent("a", b"1")] * 10)), 0) == 1
    with pytest.raises(TooManyMessages):
        latest.scan(stored(single("a", b"1")), 0)


def test_more_than_was_scanned_is_not_selected() -> None:
    latest = LatestMessages(bytes(16))
    latest.begin_selection()
    with pytest.raises(ValueError, match="more messages than were scanned"):
        latest.select(stored(single("a", b"1")), 0, -1, 1000)


def test_the_hash_is_siphash() -> None:
    # The vectors of the reference implementation.
    secret = bytes(range(16))
    assert keyed_hash(secret, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert keyed_hash(secret, bytes(range(15))).hex() == "5493e99933b0a8117e08ec0f97cfc3d9"
    with pytest.raises(ValueError, match="16 bytes"):
        keyed_hash(b"short", b"")


def test_records_have_the_ids_of_their_entries() -> None:
    whole = record(Position(5, 300), 2, b"entry")
    assert pb.MessageIdData.FromString(whole[4 : 4 + whole[3]]) == pb.MessageIdData(
        ledgerId=5, entryId=300, partition=2
    )
    inner, following = unwrap(stored(whole), 0)
    assert inner is not None
    assert (inner.ledger_id, inner.entry_id(0), inner.data(0), following) == (5, 300, b"entry", 1)
    with_more = pb.MessageIdData(ledgerId=5, entryId=6, ack_set=[1, 2], batch_size=0)
    head = with_more.SerializeToString()
    apache = len(head).to_bytes(4, "big") + head + b"\0\0\0\1x"
    assert wrapped_position(stored(apache), 0) == (5, 6)


def test_damaged_records_are_none() -> None:
    whole = record(Position(5, 300), 2, b"entry")
    for size in range(len(whole)):
        assert unwrap(stored(whole[:size]), 0) == (None, 0)
        assert wrapped_position(stored(whole[:size]), 0) is None
    for at in range(4):
        broken = bytearray(whole)
        broken[at] ^= 0xFF
        assert wrapped_position(stored(bytes(broken)), 0) is None

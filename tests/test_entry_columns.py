"""entry_columns.pyx: entries of a topic as columns, whatever is in them."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compacting import PACK, packed_batch
from one_broker import section
from oracles import wire
from oracles.columns import Row, cells, rows_of
from oracles.entries import Message, messages_of, read_entry
from pyxbroker import avro_columns
from pyxbroker.avro_columns import Undecodable
from pyxbroker.base import compression
from pyxbroker.entry_columns import (
    AVRO,
    BITS,
    BYTES,
    CHUNK,
    DONE,
    FULL,
    MORE,
    NEW_LEDGER,
    NONE,
    NUMBER,
    OTHER,
    PRODUCER_NAME,
    TRUTH,
    UNPACKED_BYTES_MAX,
    VARIABLE,
    Damaged,
    Encrypted,
    EntryColumns,
)
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark.positions import Position

CODECS = (pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)
NEAR, FAR = Position(3, -1), Position(1 << 40, 0)


def columns_of(
    begin: Position = NEAR, end: Position = FAR, partition: int = -1, **bounds: int
) -> EntryColumns:
    columns = EntryColumns(BYTES, (VARIABLE,), compression, partition, **bounds)
    columns.set_range(begin, end)
    return columns


def head(payload: bytes, **fields: Any) -> bytes:
    """A message of a batch."""
    single = pb.SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
    return len(single).to_bytes(4, "big") + single + payload


def message(ledger: int, entry: int, stored: bytes) -> bytes:
    """The frame that brings an entry."""
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.message_id.ledgerId = ledger
    command.message.message_id.entryId = entry
    return framed(command.SerializeToString(), stored)


def framed(command: bytes, rest: bytes = b"") -> bytes:
    size = 4 + len(command) + len(rest)
    return size.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + rest


def rows(*entries: bytes, **arguments: Any) -> list[Row]:
    """The rows of entries 3:0, 3:1 and so on."""
    columns = columns_of(**arguments)
    for number, each in enumerate(entries):
        assert columns.take_entry(3, number, each) in (MORE, DONE)
    return rows_of(columns.finish())


def refused(entry: bytes) -> str:
    """What is said of an entry that is damaged."""
    with pytest.raises(Damaged) as caught:
        rows(entry)
    return str(caught.value)


# --- what entries have ----------------------------------------------------------------------------


def test_a_message_by_itself() -> None:
    (row,) = rows(
        section(
            b"value",
            partition_key="key",
            event_time=7,
            publish_time=9,
            schema_version=b"\0\1",
            properties=[pb.KeyValue(key="a", value="1"), pb.KeyValue(key="b", value="")],
        ),
        partition=4,
    )
    assert row == Row(
        *(Position(3, 0), 4, 0, [b"value"], b"key", 9000, 7000, [("a", "1"), ("b", "")], b"\0\1")
    )


def test_a_tombstone_has_null_and_no_key_is_null() -> None:
    one, two, three = rows(
        section(b"", null_value=True), section(b""), section(b"x", partition_key="")
    )
    assert (one.payload, one.key, one.event_time) == (None, None, None)
    assert (two.payload, two.key) == (b"", None)
    assert (three.payload, three.key) == (b"x", b"")


def test_keys_that_are_bytes_are_those_bytes() -> None:
    entries = [
        section(b"", partition_key=text, partition_key_b64_encoded=True)
        for text in ("AP+A", "AP8=", "AP8")
    ]
    entries.append(section(b"", partition_key="AP8=", null_partition_key=True))
    assert [each.key for each in rows(*entries)] == [b"\0\xff\x80", b"\0\xff", b"\0\xff", None]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_every_codec(codec: int) -> None:
    plain = head(b"a", partition_key="k") + head(b"", null_value=True)
    plain += head(b"gone", compacted_out=True) + head(b"d" * 5000, event_time=5)
    found = rows(packed_batch(plain, 4, codec, publish_time=2))
    assert [each.payload for each in found] == [b"a", None, b"d" * 5000]
    assert [each.position.batch for each in found] == [0, 1, 3]
    assert [each.batch_size for each in found] == [4, 4, 4]
    assert [each.key for each in found] == [b"k", None, None]
    assert [each.event_time for each in found] == [None, None, 5000]
    assert [each.publish_time for each in found] == [2000] * 3


def test_a_stream_of_zlib_without_its_end_mark_is_read() -> None:
    packer = zlib.compressobj()
    packed = packer.compress(b"value" * 99) + packer.flush(zlib.Z_SYNC_FLUSH)
    (row,) = rows(section(packed, compression=pb.ZLIB, uncompressed_size=495))
    assert row.payload == b"value" * 99


def test_what_the_broker_put_in_front_of_an_entry_is_passed_over() -> None:
    block = b"\x0e\x02\0\0\0\2\x08\x01"
    assert [each.payload for each in rows(block + section(b"a"))] == [b"a"]


def test_an_entry_without_a_checksum_is_read() -> None:
    assert [each.payload for each in rows(section(b"a")[6:])] == [b"a"]


def test_versions_of_schemas_are_told_where_they_change() -> None:
    columns = columns_of()
    for number, version in enumerate((b"", b"", b"1", b"1", b"2", b"2", b"")):
        fields = {"schema_version": version} if version else {}
        columns.take_entry(3, number, section(b"", **fields))
    assert columns.finish().versions == [(0, b""), (2, b"1"), (4, b"2"), (6, b"")]
    columns.take_entry(3, 7, section(b""))
    assert columns.finish().versions == [(0, b"")]


# --- ranges ---------------------------------------------------------------------------------------


def test_a_range_may_begin_and_end_within_batches() -> None:
    batch = packed_batch(b"".join(head(b"%d" % n) for n in range(5)), 5, pb.LZ4)
    columns = columns_of(Position(3, 0, 2), Position(3, 2, 1))
    stops = [columns.take_entry(3, number, batch) for number in range(3)]
    assert stops == [MORE, MORE, DONE] and columns.is_done
    found = rows_of(columns.finish())
    assert [(each.position.entry, each.position.batch) for each in found] == [
        *((0, 3), (0, 4)),
        *((1, n) for n in range(5)),
        *((2, 0), (2, 1)),
    ]


def test_what_is_before_and_behind_a_range_is_left_out() -> None:
    columns = columns_of(Position(3, 1), Position(3, 2))
    assert columns.take_entry(3, 0, section(b"a")) == MORE
    assert columns.take_entry(3, 1, section(b"b")) == MORE
    assert columns.position == (3, 1, -1)
    assert columns.take_entry(3, 3, section(b"d")) == DONE
    assert columns.finish().rows == 0
    assert columns.take_permits() == 3 and columns.take_permits() == 0


def test_the_first_entry_of_each_later_ledger_is_looked_at_before() -> None:
    columns = columns_of(Position(3, 5), Position(9, 0))
    assert columns.take_entry(7, 0, section(b"a")) == NEW_LEDGER
    assert columns.take_entry(7, 0, section(b"a")) == NEW_LEDGER
    assert (columns.ledger_id, columns.entry_id) == (7, 0)
    columns.accept_ledger()
    assert columns.take_entry(7, 0, section(b"a")) == MORE
    assert columns.take_entry(7, 1, section(b"a")) == MORE
    # The number of entries in the previous ledger is unknown.
    assert columns.take_entry(8, 0, section(b"b")) == NEW_LEDGER
    columns.accept_ledger()
    assert columns.take_entry(8, 0, section(b"b")) == MORE
    assert columns.take_entry(11, 0, section(b"c")) == NEW_LEDGER  # not the last one of the range
    columns.accept_ledger()
    assert columns.take_entry(11, 0, section(b"c")) == DONE
    assert [each.payload for each in rows_of(columns.finish())] == [b"a", b"a", b"b"]


def test_chunks_are_left_to_who_puts_them_together() -> None:
    columns = columns_of()
    chunk = section(b"part", num_chunks_from_msg=2, chunk_id=1, uuid="u", compression=pb.LZ4)
    assert columns.take_entry(3, 0, chunk) == CHUNK
    assert columns.chunk_payload == b"part"
    assert pb.MessageMetadata.FromString(columns.chunk_metadata).uuid == "u"
    whole = PACK[pb.LZ4](b"whole" * 9)
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression=pb.LZ4, uncompressed_size=45
    )
    columns.add_message(Position(3, 0), metadata.SerializeToString(), whole)
    columns.accept_chunk()
    assert columns.position == (3, 0, -1)
    columns.take_permits()
    assert columns.take_entry(3, 0, chunk) == MORE  # it was seen to
    assert columns.take_permits() == 1
    (row,) = rows_of(columns.finish())
    assert (row.payload, row.position) == (b"whole" * 9, Position(3, 0))


def test_messages_of_another_reader_are_rows_like_others() -> None:
    columns = columns_of(rows_max=2)
    metadata = pb.MessageMetadata(
        producer_name="", sequence_id=0, publish_time=1, num_messages_in_batch=5
    )
    for index in range(2):
        columns.add_message(Position(7, 8, index), metadata.SerializeToString(), b"%d" % index)
    assert columns.take_entry(7, 9, section(b"next")) == NEW_LEDGER
    columns.accept_ledger()
    assert columns.take_entry(7, 9, section(b"next")) == FULL
    found = rows_of(columns.finish())
    assert [(each.position, each.batch_size, each.payload) for each in found] == [
        *((Position(7, 8, 0), 5, b"0"), (Position(7, 8, 1), 5, b"1"))
    ]


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_columns_are_full_within_a_batch_and_go_on_there(codec: int) -> None:
    plain = b"".join(head(b"%d" % n) for n in range(10))
    stream = message(3, 0, packed_batch(plain, 10, codec)) + message(3, 1, section(b"10"))
    columns = columns_of(rows_max=4)
    found = []
    at = 0
    for rows_then, stop_then in ((4, FULL), (4, FULL), (3, MORE)):
        done, stop = columns.take(memoryview(stream)[at:])
        at += done
        assert (columns.rows, stop) == (rows_then, stop_then)
        assert columns.take(memoryview(stream)[at:])[1] == stop_then  # and it stays so
        found += rows_of(columns.finish())
    assert [each.payload for each in found] == [b"%d" % n for n in range(11)]
    assert columns.take_permits() == 11 and at == len(stream)


def test_columns_are_full_by_their_bytes() -> None:
    columns = columns_of(bytes_max=1000)
    assert columns.take_entry(3, 0, section(b"x" * 995)) == MORE
    assert columns.take_entry(3, 1, section(b"x" * 10)) == FULL
    assert columns.finish().rows == 1
    assert columns.take_entry(3, 1, section(b"x" * 10)) == MORE


def test_names_of_producers_count_for_each_message_of_a_batch() -> None:
    name = "n" * 1000
    batch = packed_batch(b"".join(head(b"") for _ in range(100)), 100, pb.NONE, producer_name=name)
    columns = columns_of(bytes_max=10_000, kept=PRODUCER_NAME)
    assert columns.take_entry(3, 0, batch) == FULL
    assert columns.finish().rows == 10
    assert columns_of(bytes_max=10_000).take_entry(3, 0, batch) == MORE


def test_an_entry_that_is_gone_when_it_was_read_in_part_is_left() -> None:
    batch = packed_batch(b"".join(head(b"%d" % n) for n in range(4)), 4, pb.LZ4)
    columns = columns_of(rows_max=2)
    assert columns.take_entry(3, 0, batch) == FULL
    assert columns.finish().rows == 2
    assert columns.take_entry(3, 5, batch) == FULL
    assert [each.position for each in rows_of(columns.finish())] == [
        *(Position(3, 5, 0), Position(3, 5, 1))
    ]
    # Nor do other bytes under its name lead astray.
    with pytest.raises(Damaged):
        columns.take_entry(3, 5, packed_batch(head(b"")[:4], 4, pb.NONE))


def test_buffers_outlive_what_they_came_from() -> None:
    columns = columns_of()
    columns.take_entry(3, 0, section(b"a" * 100))
    filled = columns.finish()
    columns.take_entry(3, 1, section(b"b" * 100))
    del columns
    assert [each.payload for each in rows_of(filled)] == [b"a" * 100]


def test_columns_of_nothing() -> None:
    filled = columns_of().finish()
    assert rows_of(filled) == [] and filled.versions == []


# --- frames ---------------------------------------------------------------------------------------


def test_frames_are_taken_wherever_they_are_cut() -> None:
    stream = b"".join(message(3, n, section(b"%d" % n)) for n in range(3))
    for cut in range(len(stream) + 1):
        columns = columns_of()
        done, stop = columns.take(stream[:cut])
        assert stop == MORE and done <= cut
        rest, stop = columns.take(stream[done:])
        assert (done + rest, stop) == (len(stream), MORE)
        assert [each.payload for each in rows_of(columns.finish())] == [b"0", b"1", b"2"]


def test_what_is_no_message_is_left_where_it_is() -> None:
    first = message(3, 0, section(b"a"))
    ping = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()).SerializeToString()
    nameless = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    nameless.message.consumer_id = 1
    others = [
        framed(ping),
        framed(nameless.SerializePartialToString(), section(b"a")),
        framed(b"\xff\xff"),
        bytes(8),
        b"\x7f\xff\xff\xff\0\0\0\1",
        (100).to_bytes(4, "big") + (97).to_bytes(4, "big"),
    ]
    for each in others:
        assert columns_of().take(first + each) == (len(first), OTHER)


# --- what cannot be read --------------------------------------------------------------------------


def section_of(metadata: bytes, payload: bytes = b"") -> bytes:
    return wire.payload_section(metadata, payload)


REQUIRED = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()


def test_a_flipped_bit_is_a_wrong_checksum() -> None:
    entry = bytearray(section(b"value"))
    entry[-1] ^= 1
    assert refused(bytes(entry)) == "its checksum is wrong"


def test_every_cut_of_an_entry_is_damaged() -> None:
    entry = packed_batch(head(b"a", partition_key="k") + head(b"b"), 2, pb.NONE)[6:]
    for cut in range(len(entry)):
        refused(entry[:cut])


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        (b"", "its metadata lacks required fields"),
        (REQUIRED[:-2], "its metadata lacks required fields"),
        (REQUIRED + b"\xff", "its metadata cannot be decoded"),
        (REQUIRED + b"\x32\x7fkey", "its metadata cannot be decoded"),
        (REQUIRED + b"\x22\x03\x0a\x01a", "a property has no key or no value"),
        (REQUIRED + b"\x22\x02\x0a\x7f", "a property cannot be decoded"),
        (REQUIRED + b"\x32\x01!\x88\x01\x01", "its key is not valid base64"),
        (REQUIRED + b"\x18" + b"\xff" * 9 + b"\x01", "its publish or event time is out of range"),
        (REQUIRED + b"\x60" + b"\xff" * 9 + b"\x01", "its publish or event time is out of range"),
    ],
)
def test_metadata_that_makes_no_sense(metadata: bytes, sentence: str) -> None:
    assert sentence in refused(section_of(metadata))


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (b"", "message 0 exceeds its batch"),
        (head(b"ab"), "message 1 exceeds its batch"),
        (head(b"ab")[:-1], "message 0 exceeds its batch"),
        (b"\xff\xff\xff\xff" + head(b"ab"), "metadata of 4294967295 bytes exceeds its batch"),
        (
            b"\0\0\0\2\x18\xff" + bytes(9),
            "the metadata of a message in its batch cannot be decoded",
        ),
        (b"\0\0\0\0" + bytes(9), "metadata of a message in its batch has no payload size"),
        (b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01", "message 0 exceeds its batch"),
    ],
)
def test_batches_that_make_no_sense(batch: bytes, sentence: str) -> None:
    assert sentence in refused(section_of(REQUIRED + b"\x58\x02", batch))
    assert sentence in refused(packed_batch(batch, 2, pb.LZ4))


def test_a_block_of_the_broker_that_runs_past_its_end_is_damaged() -> None:
    assert "exceeds the entry" in refused(b"\x0e\x02\0\0\xff\xff" + section(b"a"))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_sizes_are_looked_at_before_memory_is_taken(codec: int) -> None:
    for size in (UNPACKED_BYTES_MAX + 1, (1 << 32) - 1):
        entry = section(b"abc", compression=codec, uncompressed_size=size)
        assert refused(entry) == f"its uncompressed size of {size} bytes exceeds the limit"
    entry = section(b"abc", compression=codec, uncompressed_size=UNPACKED_BYTES_MAX)
    assert refused(entry) == f"it cannot be decompressed (3 bytes claim to be {UNPACKED_BYTES_MAX})"


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_becomes_something_else_than_it_says_is_damaged(codec: int) -> None:
    packed = PACK[codec](b"value" * 30)
    for size in (149, 151, 0):
        entry = section(packed, compression=codec, uncompressed_size=size)
        assert "it cannot be decompressed" in refused(entry)
    entry = section(b"\xff" * 20, compression=codec, uncompressed_size=20)
    assert "it cannot be decompressed" in refused(entry)


def test_a_codec_that_nobody_knows_is_damaged() -> None:
    assert "it cannot be decompressed" in refused(section_of(REQUIRED + b"\x40\x09\x48\x01", b"a"))


def test_what_is_encrypted_is_said() -> None:
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    with pytest.raises(Encrypted, match="it is encrypted"):
        rows(section(b"a", encryption_keys=keys))


def test_columns_that_broke_off_are_of_no_more_use() -> None:
    columns = columns_of()
    columns.take_entry(3, 0, section(b"a"))
    with pytest.raises(Damaged):
        columns.take_entry(3, 1, section_of(REQUIRED + b"\x22\x03\x0a\x01a"))
    with pytest.raises(AssertionError, match="incomplete after an error"):
        columns.finish()
    with pytest.raises(AssertionError, match="incomplete after an error"):
        columns.take_entry(3, 2, section(b"a"))


# --- values ---------------------------------------------------------------------------------------


def decoded(decoding: int, width: int, *payloads: bytes | None) -> Any:
    columns = EntryColumns(decoding, (width,), compression)
    columns.set_range(NEAR, FAR)
    for number, each in enumerate(payloads):
        columns.take_entry(3, number, section(each or b"", null_value=each is None))
    filled = columns.finish()
    return cells(filled.values[0], filled.rows, width)


def test_numbers_are_told_in_the_order_of_this_machine() -> None:
    for width in (1, 2, 4, 8):
        one, two = (-2).to_bytes(width, "big", signed=True), (77).to_bytes(width, "big")
        assert decoded(NUMBER, width, one, None, two) == [one[::-1], None, two[::-1]]
        with pytest.raises(
            Undecodable, match=f"{width + 1} bytes are not a number of {width} bytes"
        ):
            decoded(NUMBER, width, bytes(width + 1))


def test_truth_values_are_bits() -> None:
    chance = random.Random(1)
    payloads = [chance.choice((b"\0", b"\1", None)) for _ in range(100)]
    expected = [None if each is None else each == b"\1" for each in payloads]
    assert decoded(TRUTH, BITS, *payloads) == expected
    with pytest.raises(Undecodable, match="2 bytes are not a boolean"):
        decoded(TRUTH, BITS, b"ab")


def test_layouts_that_fit_no_values_are_refused() -> None:
    for decoding, widths in (
        *((BYTES, ()), (BYTES, (0, 0)), (BYTES, (8,)), (NUMBER, (0,)), (NUMBER, (3,))),
        *((TRUTH, (1,)), (NUMBER, (BITS,)), (9, (0,)), (-1, (0,)), (NONE, (0,))),
    ):
        with pytest.raises(ValueError):
            EntryColumns(decoding, widths, compression)
    for kept in (-1, 256):
        with pytest.raises(ValueError, match="not a set of optional columns"):
            EntryColumns(NONE, (), compression, kept=kept)


# --- columns beside the values --------------------------------------------------------------------


def test_columns_that_are_not_asked_for_have_no_rows() -> None:
    columns = EntryColumns(NONE, (), compression, kept=0)
    columns.set_range(NEAR, FAR)
    properties = [pb.KeyValue(key="a", value="1")]
    columns.take_entry(3, 0, section(b"v", partition_key="k", properties=properties, event_time=1))
    filled = columns.finish()
    assert (filled.rows, filled.values, filled.properties) == (1, [], 0)
    for each in (filled.key, filled.property_names, filled.producer_name, filled.ordering_key):
        assert cells(each, 0, VARIABLE) == []
    for each in (filled.publish_time, filled.event_time, filled.sequence_id, filled.ledger_id):
        assert cells(each, 0, 8) == []
    assert len(cells(filled.message_id, 1, VARIABLE)) == 1


def test_who_sent_a_message_and_where_it_is() -> None:
    columns = EntryColumns(BYTES, (VARIABLE,), compression, kept=255)
    columns.set_range(NEAR, FAR)
    columns.take_entry(3, 0, section(b"v", sequence_id=8, ordering_key=b"o"))
    heads = head(b"a", sequence_id=5), head(b"b"), head(b"c", ordering_key=b"\xff")
    columns.take_entry(3, 1, section(b"".join(heads), sequence_id=4, num_messages_in_batch=3))
    filled = columns.finish()

    def numbers(column: Any, width: int) -> list[int]:
        found = cells(column, filled.rows, width)
        return [int.from_bytes(each, "little", signed=True) for each in found]

    assert cells(filled.producer_name, 4, VARIABLE) == [b"p"] * 4
    assert numbers(filled.sequence_id, 8) == [8, 5, 4, 4]
    assert cells(filled.ordering_key, 4, VARIABLE) == [b"o", None, None, b"\xff"]
    assert numbers(filled.ledger_id, 8) == [3] * 4
    assert numbers(filled.entry_id, 8) == [0, 1, 1, 1]
    assert numbers(filled.batch_index, 4) == [-1, 0, 1, 2]


def test_nulls_that_begin_late_and_end_early() -> None:
    for first, last, count in ((0, 1, 1), (9, 10, 10), (9, 10, 30), (0, 8, 64)):
        payloads = [None if first <= n < last else b"x" for n in range(count)]
        assert decoded(BYTES, VARIABLE, *payloads) == payloads


# --- against what reads message by message --------------------------------------------------------

TEXT = st.text(max_size=6)
MESSAGES = st.builds(
    dict,
    payload=st.binary(max_size=40),
    key=st.none() | TEXT,
    event_time=st.integers(0, 1 << 40),
    null_value=st.booleans(),
    properties=st.lists(st.tuples(TEXT, TEXT), max_size=3),
    compacted_out=st.integers(0, 9).map(lambda n: n == 9),
)
ENTRIES = st.builds(
    dict,
    messages=st.lists(MESSAGES, min_size=1, max_size=6),
    is_batch=st.booleans(),
    codec=st.sampled_from(CODECS),
    publish_time=st.integers(0, 1 << 40),
    schema_version=st.sampled_from((b"", b"\0\1", b"\0\2")),
    has_block=st.booleans(),
)
PLACES = st.builds(Position, st.just(3), st.integers(-1, 6), st.integers(-1, 5))


def fields_of(one: dict[str, Any]) -> dict[str, Any]:
    fields = {name: one[name] for name in ("event_time", "null_value")}
    fields["properties"] = [pb.KeyValue(key=key, value=value) for key, value in one["properties"]]
    return fields if one["key"] is None else fields | {"partition_key": one["key"]}


def stored(one: dict[str, Any]) -> bytes:
    """An entry as a broker sends it."""
    fields = {name: one[name] for name in ("publish_time", "schema_version")}
    if one["is_batch"]:
        plain = b"".join(
            head(each["payload"], compacted_out=each["compacted_out"], **fields_of(each))
            for each in one["messages"]
        )
        entry = packed_batch(plain, len(one["messages"]), one["codec"], **fields)
    else:
        first = one["messages"][0]
        fields |= fields_of(first) | {"compression": one["codec"]}
        packed = PACK[one["codec"]](first["payload"])
        entry = section(packed, uncompressed_size=len(first["payload"]), **fields)
    return b"\x0e\x02\0\0\0\2\x08\x01" * one["has_block"] + entry


def expected_rows(entries: list[bytes], begin: Position, end: Position) -> list[Row]:
    found = []
    for number, each in enumerate(entries):
        entry = read_entry(each)
        for one in messages_of(entry):
            at = Position(3, number, one.batch)
            if begin.key < at.key <= end.key:
                found.append(row_of(at, entry.metadata.num_messages_in_batch, one))
    return found


def row_of(at: Position, batch_size: int, one: Message) -> Row:
    return Row(
        *(at, 2, batch_size if at.batch >= 0 else 0, [one.payload], one.key),
        *(one.publish_time * 1000, one.event_time * 1000 or None),
        *(one.properties, one.schema_version),
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(ENTRIES, max_size=6), PLACES, PLACES, st.integers(1, 5))
def test_columns_are_what_is_read_message_by_message(
    made: list[dict[str, Any]], begin: Position, end: Position, rows_max: int
) -> None:
    entries = [stored(each) for each in made]
    stream = memoryview(b"".join(message(3, n, each) for n, each in enumerate(entries)))
    columns = columns_of(begin, end, partition=2, rows_max=rows_max)
    found: list[Row] = []
    stop = FULL
    while stop == FULL:
        done, stop = columns.take(stream)
        stream = stream[done:]
        found += rows_of(columns.finish())
    assert stop in (MORE, DONE)
    assert found == expected_rows(entries, begin, end)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_strangers_are_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    plain = head(b"a", partition_key="k", properties=[pb.KeyValue(key="a", value="b")]) + head(b"b")
    seeds = [packed_batch(plain, 2, codec)[6:] for codec in CODECS]
    for _ in range(2_000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        columns = columns_of(rows_max=chance.randint(1, 3))
        try:
            while columns.take_entry(3, 0, bytes(data)) == FULL:
                assert columns.finish().rows
        except (Damaged, Encrypted):
            continue
        columns.finish()


def test_programs_are_of_the_columns_that_are_wanted_and_the_newest_is_there() -> None:
    step = (avro_columns.LONG, -1, 0, 0, None, None)
    found: dict[bytes | None, avro_columns.AvroProgram | None] = {
        None: avro_columns.AvroProgram((8,), [step]),
        b"": avro_columns.AvroProgram((8,), [step]),  # of an entry that names none
        b"\0\1": avro_columns.AvroProgram((8,), [step]),
        b"\0\2": avro_columns.AvroProgram((), []),
    }

    def columns() -> EntryColumns:
        made = EntryColumns(AVRO, (8,), compression, program_of=found.get, translate=translated)
        made.set_range(NEAR, FAR)
        return made

    one = columns()
    for number, version in enumerate((None, b"\0\1", b"\0\3")):
        stored = section(b"\x0e", schema_version=version) if version else section(b"\x0e")
        assert one.take_entry(3, number, stored) == MORE
    assert [row.values for row in rows_of(one.finish(), (8,))] == [[(7).to_bytes(8, "little")]] * 3
    with pytest.raises(ValueError, match="the program has"):
        columns().take_entry(3, 0, section(b"\x0e", schema_version=b"\0\2"))
    del found[None]
    with pytest.raises(ValueError, match="the newest schema has no program"):
        columns()


def translated(version: bytes, payload: bytes) -> bytes:
    """One of the newest schema."""
    assert version == b"\0\3"
    return payload

"""Chunks of the Spark connector's that wait for their last one."""

from __future__ import annotations

from typing import Any

import pytest

from pyxbroker.base import compression
from pyxbroker.entry_columns import BYTES, MORE, VARIABLE, EntryColumns
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.spark import chunks
from pyxbroker.spark.chunks import CHUNK_BYTES, ChunkedMessages, Chunks, MissingChunks
from pyxbroker.spark.client_connection import _nothing
from pyxbroker.spark.options import BATCH, Options
from pyxbroker.spark.plan import cluster_of
from pyxbroker.spark.positions import BEGINNING, Position


def chunk(uuid: str, index: int, count: int = 3) -> Any:
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        uuid=uuid,
        chunk_id=index,
        num_chunks_from_msg=count,
    )


def taken(*sent: tuple[str, int, bytes]) -> list[bytes]:
    """The messages that are whole, of (uuid, chunk, payload)."""
    waiting = Chunks()
    found = [waiting.add(chunk(uuid, index), payload) for uuid, index, payload in sent]
    return [each for each in found if each is not None]


def test_chunks_of_several_messages_come_mixed() -> None:
    sent = [(uuid, index, b"%s%d" % (uuid.encode(), index)) for index in range(3) for uuid in "abc"]
    assert taken(*sent) == [b"a0a1a2", b"b0b1b2", b"c0c1c2"]


def test_a_chunk_that_is_sent_again_is_there_once() -> None:
    assert taken(("a", 0, b"0"), ("a", 1, b"1"), ("a", 1, b"1"), ("a", 2, b"2")) == [b"012"]


def test_a_name_that_begins_anew_is_another_message() -> None:
    """A producer without a name of its own that starts again counts from 0 again."""
    sent = [("a", 0, b"old "), ("a", 1, b"old "), ("a", 0, b"0"), ("a", 1, b"1"), ("a", 2, b"2")]
    assert taken(*sent) == [b"012"]


def test_a_message_with_a_hole_is_none() -> None:
    assert taken(("a", 0, b"0"), ("a", 2, b"2"), ("b", 1, b"1"), ("b", 2, b"2")) == []


@pytest.mark.parametrize("seen", [(0, 1, 3), (0, 2, 3), (0, 1, 1, 3)])
def test_a_hole_in_what_came_is_not_looked_for(
    seen: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was seen, so a topic is not read once more."""

    def no_scan(*_: object) -> None:
        raise AssertionError("a broker is asked")

    monkeypatch.setattr(chunks, "EntryScan", no_scan)
    nobody = cluster_of(Options(BATCH, {"service.url": "pulsar://127.0.0.1:1", "topic": "t"}))
    waiting = ChunkedMessages(nobody, "t", BEGINNING)
    for entry, index in enumerate(seen[:-1]):
        assert waiting.add(Position(1, entry), chunk("a", index, 4), b"x") is None
    with pytest.raises(MissingChunks):
        waiting.add(Position(1, 9), chunk("a", seen[-1], 4), b"x")


def test_chunks_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one message as well as of many, the oldest leave; also where they are empty."""
    monkeypatch.setattr(chunks, "WAITING_BYTES_MAX", 10_000)
    waiting = Chunks()
    for index in range(100):
        assert waiting.add(chunk("large", index, 1_000), bytes(1_000)) is None
        assert waiting._bytes <= 10_000
    for number in range(1_000):
        assert waiting.add(chunk(f"small {number}", 0), b"") is None
        assert len(waiting._parts) * CHUNK_BYTES <= waiting._bytes <= 10_000
    assert waiting.add(chunk("small 999", 1), b"x") is None
    assert waiting.add(chunk("small 999", 2), b"y") == b"xy"
    for name in ("large", "small 0"):
        assert waiting.add(chunk(name, 1), b"") is None
        assert waiting.add(chunk(name, 2), b"") is None


def test_a_uuid_that_is_no_text_is_a_name_like_others() -> None:
    packed = chunk("uu", 0, 2).SerializeToString().replace(b"uu", b"\xff\xfe")
    metadata = pb.MessageMetadata.FromString(packed)
    waiting = Chunks()
    assert waiting.add(metadata, b"0") is None
    metadata.chunk_id = 1
    assert waiting.add(metadata, b"1") == b"01"


def test_uuids_take_as_much_memory_however_long_they_are() -> None:
    waiting = Chunks()
    waiting.add(chunk("u" * 1_000_000, 0), b"")
    assert [len(each) for each in waiting._parts] == [16]


def test_an_entry_in_which_no_message_ends_is_passed_without_a_row() -> None:
    """So a chunk that is read by the official client counts as read."""
    columns = EntryColumns(BYTES, (VARIABLE,), compression)
    columns.set_range(Position(3, -1), Position(3, 9))
    assert columns.take_entry(3, 0, _nothing(chunk("a", 0))) == MORE
    assert columns.position == (3, 0, -1)
    assert columns.finish().rows == 0

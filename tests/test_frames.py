"""The frame scanner and the payload check, against golden bytes and a slow scanner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import wire
from pyxbroker import frames

FRAME_MAX = 5 * 1024 * 1024 + frames.FRAME_PADDING

# Written out by hand from the table in frames.pxd.
PING = bytes.fromhex("00000009 00000005 0812920100")
SECTION = bytes.fromhex(
    "0e01"  # checksum magic
    "7481e6fa"  # CRC-32C of all that follows
    "0000000e"  # metadata size
    "0a05702d312d30 1002 18ffffff7f"  # producer p-1-0, sequence 2, time 2^28-1
    "68656c6c6f"  # hello
)
SEND = bytes.fromhex("00000029 00000008 0806 3204 0801 1002") + SECTION


@pytest.mark.parametrize(
    ("whole", "frame"), [(PING, (PING[8:], b"")), (SEND, (SEND[8:16], SECTION))]
)
def test_a_golden_frame_split_at_every_offset_is_found_when_it_is_whole(
    whole: bytes, frame: tuple[bytes, bytes]
) -> None:
    for end in range(len(whole)):
        assert frames.scan(whole[:end], FRAME_MAX) == ([], 0, None)
    assert frames.scan(whole, FRAME_MAX) == ([frame], len(whole), None)


def test_a_stream_split_at_every_offset_gives_the_frames_before_the_split() -> None:
    stream = PING + SEND + PING
    bounds = [0, len(PING), len(PING) + len(SEND), len(stream)]
    for end in range(len(stream) + 1):
        found, consumed, error = frames.scan(stream[:end], FRAME_MAX)
        whole = sum(bound <= end for bound in bounds[1:])
        assert (len(found), consumed, error) == (whole, bounds[whole], None)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("00000000", "malformed"),
        ("00000003", "malformed"),
        ("00000004 00000000", "malformed"),
        ("00000009 00000000", "malformed"),  # no command
        ("00000009 00000006", "malformed"),  # the command is larger than what is left of the frame
        ("00000009 ffffffff", "malformed"),
        ("00000065", "too large"),
        ("ffffffff", "too large"),
        ("00000064 0000", None),
    ],
)
def test_wrong_sizes_are_found_as_soon_as_they_are_there(data: str, error: str | None) -> None:
    stream = PING + bytes.fromhex(data)
    assert frames.scan(stream, 100) == ([(PING[8:], b"")], len(PING), error)


def test_a_frame_at_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    frame = wire.frame(b"\x08\x12", b"x" * 94)
    assert frames.scan(frame, 100) == ([(b"\x08\x12", b"x" * 94)], 104, None)
    assert frames.scan(frame, 99) == ([], 0, "too large")


_FRAME = st.builds(wire.frame, st.binary(min_size=1, max_size=40), st.binary(max_size=60))
_STREAM = st.lists(_FRAME | st.binary(max_size=20), max_size=6).map(b"".join)


@given(_STREAM, st.integers(0, 120))
def test_the_scanner_sees_what_the_slow_one_sees(data: bytes, frame_bytes_max: int) -> None:
    assert frames.scan(data, frame_bytes_max) == wire.scan(data, frame_bytes_max)


@given(st.lists(_FRAME, max_size=6), st.data())
def test_frames_do_not_depend_on_where_reads_end(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    found, rest = [], b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        rest += stream[start:end]
        some, consumed, error = frames.scan(rest, FRAME_MAX)
        assert error is None
        found += some
        rest = rest[consumed:]
    assert rest == b""
    assert found == frames.scan(stream, FRAME_MAX)[0]


# --- payload sections -------------------------------------------------------------------------


def test_the_golden_section_is_whole_and_its_checksum_is_that_of_all_its_bytes() -> None:
    assert frames.check_payload(SECTION) == (0, SECTION[10:24], wire.crc32c(SECTION))


def test_a_section_without_checksum_is_taken() -> None:
    bare = SECTION[6:]
    assert frames.check_payload(bare) == (0, SECTION[10:24], wire.crc32c(bare))


def test_every_flipped_bit_behind_the_magic_is_found() -> None:
    for bit in range(16, len(SECTION) * 8):
        damaged = bytearray(SECTION)
        damaged[bit // 8] ^= 1 << bit % 8
        code, metadata, crc = frames.check_payload(bytes(damaged))
        assert code < 0
        assert (metadata, crc) == (None, None)


def test_a_section_cut_anywhere_is_refused() -> None:
    for end in range(len(SECTION)):
        assert frames.check_payload(SECTION[:end])[0] < 0


def slow_check(data: bytes) -> tuple[int, bytes | None, int | None]:
    try:
        metadata, right = wire.check_payload(data)
    except wire.Malformed:
        return -2, None, None
    return (0, metadata, wire.crc32c(data)) if right else (-1, None, None)


_SECTION = st.builds(
    lambda metadata, data, checksum: wire.payload_section(metadata, data, checksum=checksum),
    st.binary(max_size=40),
    st.binary(max_size=200),
    st.booleans(),
)


@given(_SECTION | st.binary(max_size=40), st.data())
def test_the_payload_check_sees_what_the_slow_one_sees(data: bytes, draw: st.DataObject) -> None:
    if data and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes([draw.draw(st.integers(0, 255))]) + data[at + 1 :]
    assert frames.check_payload(data) == slow_check(data)


def test_the_slow_checksum_has_the_published_check_value() -> None:
    assert wire.crc32c(b"123456789") == 0xE3069283

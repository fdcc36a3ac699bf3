"""The frame scanner and the payload check: the same answer as the plain decoders, for any bytes."""

from __future__ import annotations

import driver

from oracles import wire
from oracles.golden import CLIENT_FRAMES
from pyxbroker import frames

LIMITS = (16, 300, 5 * 1024 * 1024 + frames.FRAME_PADDING, 2**32 - 1)


def seeds() -> list[bytes]:
    """A byte that chooses the limit, a byte that chooses the cut, and a stream."""
    client = [bytes.fromhex(each) for each in CLIENT_FRAMES.values()]
    section = wire.payload_section(b"metadata", b"payload")
    broker_entry = b"\x0e\x02\x00\x00\x00\x02ab"
    streams = [
        *client,
        b"".join(client[:4]),
        client[0] + client[1][:20],
        wire.frame(b"command", section),
        wire.frame(b"command", broker_entry + section),
        wire.frame(b"command", wire.payload_section(b"m", b"", checksum=False)),
    ]
    return [bytes([limit, 7]) + each for limit in (1, 2) for each in streams]


def one_input(data: bytes) -> None:
    if len(data) < 2:
        return
    limit = LIMITS[data[0] % len(LIMITS)]
    stream = bytes(data[2:])
    found = frames.scan(stream, limit)
    expected = wire.scan(stream, limit)
    assert found == expected, f"{found} instead of {expected}"
    # What a first read brought does not change what the frames are.
    first, consumed, _ = frames.scan(stream[: data[1]], limit)
    rest = frames.scan(stream[consumed:], limit)
    assert (first + rest[0], consumed + rest[1], rest[2]) == expected, f"cut at {data[1]}"
    for section in (stream, *(payload for _, payload in expected[0])):
        check_section(section)
    # A section with the right checksum leads behind the check.
    check_section(wire.CHECKSUM_MAGIC + wire.crc32c(stream).to_bytes(4, "big") + stream)


def check_section(section: bytes) -> None:
    found = frames.check_payload(section)
    try:
        metadata, right = wire.check_payload(section)
    except wire.Malformed:
        assert found == (-2, None, None), f"{found} for a malformed section"
        return
    expected = (0, metadata, wire.crc32c(section)) if right else (-1, None, None)
    assert found == expected, f"{found} instead of {expected}"


if __name__ == "__main__":
    driver.main(seeds, one_input)

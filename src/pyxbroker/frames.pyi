"""What Python sees of frames.pyx: the scanner and the payload check, for tests and fuzzing."""

FRAME_PADDING: int
"""Bytes that a frame may be larger than maxMessageSize."""

def scan(
    data: bytes | bytearray | memoryview, frame_bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], int, str | None]:
    """(frames as (command, payload), bytes consumed, None or "too large" or "malformed")."""

def check_payload(
    data: bytes | bytearray | memoryview,
) -> tuple[int, bytes | None, int | None]:
    """(code, metadata, CRC32C of data): code 0 whole, -1 wrong checksum, -2 malformed."""

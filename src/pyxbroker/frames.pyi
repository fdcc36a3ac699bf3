"""Type stub of frames.pyx: the frame scanner and the payload check, for tests and fuzzing."""

FRAME_PADDING: int
"""Maximum excess of a frame over maxMessageSize, in bytes."""

def scan(
    data: bytes | bytearray | memoryview, frame_bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], int, str | None]:
    """Return (frames as (command, payload), bytes consumed, None or "too large" or "malformed")."""

def check_payload(
    data: bytes | bytearray | memoryview,
) -> tuple[int, bytes | None, int | None]:
    """Return (code, metadata, CRC32C of data). Codes: 0 intact, -1 checksum, -2 malformed."""

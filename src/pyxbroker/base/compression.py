"""Pulsar's codecs for messages, batches and records: raw blocks, by number of CompressionType.

An uncompressed size that a peer claims is accepted only if the codec can reach it from the given
bytes, so that no memory is allocated for a false claim.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

# The most bytes that one compressed byte can expand to.
_RATIOS_MAX = {0: 1, 1: 255, 2: 1032, 3: 32 << 10, 4: 22}


def compress(compression: int, data: bytes) -> bytes:
    """Compress data for `decompress`."""
    return _COMPRESSORS[compression](data)


def decompress(compression: int, data: bytes, size: int) -> bytes:
    """Return the `size` bytes that were compressed to `data`. Raises ValueError.

    The size alone shows completeness: Java's clients and brokers omit the end mark of a zlib
    stream (CompressionCodecZLib).
    """
    check_claim(compression, len(data), size)
    try:
        plain = _DECOMPRESSORS[compression](data, size)
    except Exception as error:  # every codec has its own exception classes
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if len(plain) != size:
        raise ValueError(f"it has {len(plain)} bytes, and {size} were declared")
    return plain


def check_claim(compression: int, packed_bytes: int, size: int) -> None:
    """Raise ValueError if that many bytes cannot expand to `size`, before memory is allocated."""
    if not 0 <= size <= packed_bytes * _RATIOS_MAX.get(compression, 0):
        raise ValueError(f"{packed_bytes} bytes cannot expand to {size}")


def decompress_into(compression: int, data: memoryview, output: memoryview) -> None:
    """Decompress into `output`, whose length is the uncompressed size. Raises ValueError."""
    try:
        written = _DECOMPRESSORS_INTO[compression](data, output)
    except Exception as error:  # every codec has its own exception classes
        raise ValueError(f"it cannot be decompressed: {error!r}") from error
    if written != len(output):
        raise ValueError(f"it has {written} bytes, and {len(output)} were declared")


def _decompress_zlib(data: bytes, size: int) -> bytes:
    return zlib.decompressobj().decompress(data, size + 1)


def _decompress_lz4(data: bytes, size: int) -> bytes:
    import cramjam

    return bytes(cramjam.lz4.decompress_block(data, output_len=size))


def _decompress_zstd(data: bytes, size: int) -> bytes:
    import cramjam

    output = bytearray(size)
    written = cramjam.zstd.decompress_into(data, output)
    return bytes(output[:written])


def _decompress_snappy(data: bytes, size: int) -> bytes:
    import cramjam

    output = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(data, output)
    return bytes(output[:written])


_DECOMPRESSORS = {
    0: lambda data, size: data,
    1: _decompress_lz4,
    2: _decompress_zlib,
    3: _decompress_zstd,
    4: _decompress_snappy,
}


def _fill_zlib(data: memoryview, output: memoryview) -> int:
    plain = zlib.decompressobj().decompress(data, len(output) + 1)
    output[: len(plain)] = plain
    return len(plain)


def _fill_lz4(data: memoryview, output: memoryview) -> int:
    import cramjam

    return int(cramjam.lz4.decompress_block_into(data, output, output_len=len(output)))


def _fill_zstd(data: memoryview, output: memoryview) -> int:
    import cramjam

    return int(cramjam.zstd.decompress_into(data, output))


def _fill_snappy(data: memoryview, output: memoryview) -> int:
    import cramjam

    return int(cramjam.snappy.decompress_raw_into(data, output))


_DECOMPRESSORS_INTO = {1: _fill_lz4, 2: _fill_zlib, 3: _fill_zstd, 4: _fill_snappy}


def _compress_lz4(data: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.lz4.compress_block(data, store_size=False))


def _compress_zstd(data: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.zstd.compress(data))


def _compress_snappy(data: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress_raw(data))


_COMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    0: lambda data: data,
    1: _compress_lz4,
    2: zlib.compress,
    3: _compress_zstd,
    4: _compress_snappy,
}

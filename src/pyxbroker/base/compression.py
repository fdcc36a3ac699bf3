"""Pulsar's codecs, of messages, batches and records: CompressionType by number, raw blocks.

What bytes claim to become is believed only within what their codec can make of them, so that memory
is taken for what can be there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

# How many bytes one compressed byte can become.
_RATIOS_MAX = {0: 1, 1: 255, 2: 1032, 3: 32 << 10, 4: 22}


def compress(compression: int, data: bytes) -> bytes:
    """What `decompress` makes the data of."""
    return _COMPRESSORS[compression](data)


def decompress(compression: int, data: bytes, size: int) -> bytes:
    """The `size` bytes that `data` was compressed from. Raises ValueError.

    What they have to be is their size: Java's clients and brokers leave out the end mark of a zlib
    stream, CompressionCodecZLib.
    """
    check_claim(compression, len(data), size)
    try:
        plain = _DECOMPRESSORS[compression](data, size)
    except Exception as error:  # every codec has its own exception classes
        raise ValueError(f"it cannot be expanded: {error}") from error
    if len(plain) != size:
        raise ValueError(f"it has {len(plain)} bytes, {size} were promised")
    return plain


def check_claim(compression: int, packed_bytes: int, size: int) -> None:
    """Whether so many bytes can become `size`: before memory is taken for them. ValueError."""
    if not 0 <= size <= packed_bytes * _RATIOS_MAX.get(compression, 0):
        raise ValueError(f"{packed_bytes} bytes claim to be {size}")


def decompress_into(compression: int, data: memoryview, output: memoryview) -> None:
    """The same into `output`, which has the size of what it was. Raises ValueError."""
    try:
        written = _DECOMPRESSORS_INTO[compression](data, output)
    except Exception as error:  # every codec has its own exception classes
        raise ValueError(f"it cannot be expanded: {error!r}") from error
    if written != len(output):
        raise ValueError(f"it has {written} bytes, {len(output)} were promised")


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

"""Entries as REST shows them: what is unpacked, and what cannot be."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from pyxbroker.admin.message_headers import REPEATED_MAX, headers_of
from pyxbroker.base.compression import decompress
from pyxbroker.base.times import iso_ms
from pyxbroker.broker.topics.entry_view import PLAIN_BYTES_MAX, EntryView
from pyxbroker.entry import Position
from pyxbroker.proto import PulsarApi as pb


def entry(payload: bytes = b"", **fields: Any) -> EntryView:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    return EntryView(Position(1, 2), metadata, None, payload)


def test_a_payload_is_unpacked_unless_only_its_reader_can() -> None:
    data = b"a" * 200_000
    packed = zlib.compress(data)
    fields = {"compression": 2, "uncompressed_size": len(data)}
    assert asyncio.run(entry(packed, **fields).plain()) == data
    key = pb.EncryptionKeys(key="k", value=b"v")
    assert asyncio.run(entry(packed, **fields, encryption_keys=[key]).plain()) == packed
    assert asyncio.run(entry(b"as it is").plain()) == b"as it is"


def test_a_payload_that_java_has_compressed_with_zlib_is_unpacked() -> None:
    """CompressionCodecZLib flushes a stream, and leaves out its end mark."""
    packer = zlib.compressobj()
    packed = packer.compress(b"a" * 1000) + packer.flush(zlib.Z_SYNC_FLUSH)
    view = entry(packed, compression=2, uncompressed_size=1000)
    assert asyncio.run(view.plain()) == b"a" * 1000
    with pytest.raises(ValueError, match="declared"):
        asyncio.run(entry(packed[:8], compression=2, uncompressed_size=1000).plain())


def test_a_payload_that_is_too_large_is_not_unpacked() -> None:
    def compressed(size: int) -> EntryView:
        return entry(zlib.compress(bytes(size)), compression=2, uncompressed_size=size)

    largest = compressed(PLAIN_BYTES_MAX)
    assert len(asyncio.run(largest.plain())) == PLAIN_BYTES_MAX == 32 << 20
    with pytest.raises(ValueError, match="at most 33554432 are decompressed"):
        asyncio.run(compressed(PLAIN_BYTES_MAX + 1).plain())


@pytest.mark.parametrize(
    ("payload", "size"),
    [(zlib.compress(b"abc"), 4), (b"no zlib", 3), (b"x", 2**32 - 1), (b"x", PLAIN_BYTES_MAX)],
)
def test_a_payload_that_is_not_what_it_claims_is_refused(payload: bytes, size: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        asyncio.run(entry(payload, compression=2, uncompressed_size=size).plain())


@pytest.mark.parametrize("compression", [5, -1])
def test_a_codec_that_there_is_not_is_refused(compression: int) -> None:
    with pytest.raises(ValueError, match="cannot expand"):
        decompress(compression, b"abc", 3)


def test_headers_are_printable_whatever_a_client_has_sent() -> None:
    view = entry(
        b"",
        partition_key="k\r\nX-Evil: 1\0\u20ac",
        properties=[pb.KeyValue(key="a\n\u00e4", value="\U0001f600\r")],
        event_time=2**63,
    )
    headers = dict(headers_of(view))
    assert all(value.isprintable() and value.isascii() for value in headers.values())
    assert headers["X-Pulsar-partition-key"] == "k??X-Evil: 1??"
    assert headers["X-Pulsar-PROPERTY"] == '{"a\\n\\u00e4":"\\ud83d\\ude00\\r"}'
    assert headers["X-Pulsar-event-time"] == str(2**63)


def test_numbers_have_the_sign_that_java_reads() -> None:
    headers = dict(headers_of(entry(txnid_most_bits=5, txnid_least_bits=2**64 - 1, marker_type=-3)))
    names = ("txnid-most-bits", "txnid-least-bits", "marker-type")
    assert [headers[f"X-Pulsar-{name}"] for name in names] == ["5", "-1", "-3"]


def test_clusters_and_keys_beyond_some_have_one_header_together() -> None:
    view = entry(replicate_to=[""] * 30_000, encryption_keys=[pb.EncryptionKeys(key="", value=b"")])
    headers = headers_of(view)
    assert len(headers) < 300
    assert dict(headers)["X-Pulsar-replicated-to-not-shown"] == str(30_000 - REPEATED_MAX)
    assert "X-Pulsar-Base64-encryption-keys-not-shown" not in dict(headers)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_600_000_000_010, "2020-09-13T12:26:40.01Z"),
        (1_600_000_000_999, "2020-09-13T12:26:40.999Z"),
    ],
)
def test_times_have_the_digits_that_they_need(time_ms: int, text: str) -> None:
    assert iso_ms(time_ms) == text

"""The metadata of an entry as X-Pulsar-... headers, which Pulsar's admin clients read."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from pyxbroker.base.signed import signed
from pyxbroker.base.times import iso_ms
from pyxbroker.broker.topics.entry_view import EntryView

PREFIX = "X-Pulsar-"
REPEATED_MAX = 256  # clusters or keys that each get a header
CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
# Fields of MessageMetadata that are copied unchanged, by the names of their headers.
PLAIN = {
    "producer-name": "producer_name",
    "sequence-id": "sequence_id",
    "highest-sequence-id": "highest_sequence_id",
    "replicated-from": "replicated_from",
    "partition-key": "partition_key",
    "partition-key-b64-encoded": "partition_key_b64_encoded",
    "null-partition-key": "null_partition_key",
    "null-value": "null_value",
    "uncompressed-size": "uncompressed_size",
    "uuid": "uuid",
    "num-chunks-from-msg": "num_chunks_from_msg",
    "total-chunk-msg-size": "total_chunk_msg_size",
    "chunk-id": "chunk_id",
    "marker-type": "marker_type",
    "encryption-algo": "encryption_algo",
    "txnid-least-bits": "txnid_least_bits",
    "txnid-most-bits": "txnid_most_bits",
}
TIMES = {
    "publish-time": "publish_time",
    "event-time": "event_time",
    "deliver-at-time": "deliver_at_time",
}
BASE64 = {
    "Base64-schema-version": "schema_version",
    "Base64-ordering-key": "ordering_key",
    "Base64-encryption-param": "encryption_param",
}

UNPRINTABLE = {code: "?" for code in range(256) if not chr(code).isprintable()}


def headers_of(
    entry: EntryView, is_uncommitted: bool = False, is_aborted: bool = False
) -> list[tuple[str, str]]:
    """Return the metadata of an entry as headers with printable values.

    is_uncommitted: consumers cannot receive the entry yet. is_aborted: its transaction was aborted.
    """
    metadata = entry.metadata
    rows: list[tuple[str, Any]] = [
        ("Message-ID", f"{entry.position.ledger_id}:{entry.position.entry_id}"),
        ("PROPERTY", json.dumps(_properties(entry), separators=(",", ":"))),
        *_of_broker(entry.broker_metadata),
    ]
    rows += [
        (name, iso_ms(getattr(metadata, field)))
        for name, field in TIMES.items()
        if metadata.HasField(field)
    ]
    if metadata.HasField("num_messages_in_batch"):
        rows.append(("num-batch-message", metadata.num_messages_in_batch))
        rows.append(("batch-size", len(entry.payload)))
    rows.append(("Is-Encrypted", bool(metadata.encryption_keys)))
    rows += [
        (name, getattr(metadata, field))
        for name, field in PLAIN.items()
        if metadata.HasField(field)
    ]
    if metadata.HasField("compression"):
        rows.append(("compression", CODECS[metadata.compression]))
    rows += [("replicated-to", each) for each in metadata.replicate_to[:REPEATED_MAX]]
    rows += [
        (name, b64encode(getattr(metadata, field)).decode())
        for name, field in BASE64.items()
        if metadata.HasField(field)
    ]
    rows += [
        ("Base64-encryption-keys", b64encode(each.SerializeToString()).decode())
        for each in metadata.encryption_keys[:REPEATED_MAX]
    ]
    rows += [
        (f"{name}-not-shown", count - REPEATED_MAX)
        for name, count in (
            ("replicated-to", len(metadata.replicate_to)),
            ("Base64-encryption-keys", len(metadata.encryption_keys)),
        )
        if count > REPEATED_MAX
    ]
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        rows.append(("txn-aborted", is_aborted))
    rows.append(("txn-uncommitted", is_uncommitted))
    return [(PREFIX + name, _shown(value)) for name, value in rows]


def _of_broker(metadata: Any) -> list[tuple[str, Any]]:
    if metadata is None:
        return []
    rows: list[tuple[str, Any]] = []
    if metadata.HasField("broker_timestamp"):
        rows.append(("Broker-Entry-METADATA-timestamp", iso_ms(metadata.broker_timestamp)))
    if metadata.HasField("index"):
        rows.append(("Broker-Entry-METADATA-index", metadata.index))
    return rows


def _properties(entry: EntryView) -> dict[str, str]:
    metadata = entry.metadata
    found = {each.key: each.value for each in metadata.properties}
    if metadata.HasField("chunk_id"):
        found["X-Pulsar-PROPERTY-TOTAL-CHUNKS"] = str(metadata.num_chunks_from_msg)
        found["X-Pulsar-PROPERTY-CHUNK-ID"] = str(metadata.chunk_id)
    return found


def _shown(value: object) -> str:
    """Format a header value: numbers as Java reads them, and question marks for characters that a
    header cannot contain.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(signed(value % (1 << 64)))
    text = str(value).encode("latin-1", "replace").decode("latin-1")
    return text if text.isprintable() else text.translate(UNPRINTABLE)

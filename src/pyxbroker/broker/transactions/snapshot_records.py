"""The stored form of snapshots: Avro records, as Apache Pulsar 4.2 writes them.

Apache Pulsar sorts the fields by name. Fields that are objects in Java are unions with null.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.topic_name import SNAPSHOT_INDEXES, SNAPSHOT_SEGMENTS, SNAPSHOTS
from pyxbroker.broker.transactions.buffer import Snapshot
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.entry import Position

_METADATA = "org.apache.pulsar.broker.transaction.buffer.metadata"


class Segment(NamedTuple):
    """The reference to a segment in an index."""

    sequence_id: int
    marker: Position  # that of the last aborted transaction in the segment
    position: Position  # of the message with the segment


class Index(NamedTuple):
    """A snapshot whose oldest aborted transactions are in segments."""

    max_read: Position
    segments: tuple[Segment, ...] = ()
    unsealed: tuple[TxnId, ...] = ()  # aborted transactions in no segment


# --- Avro -----------------------------------------------------------------------------------------


def _record(name: str, **fields: Any) -> dict[str, Any]:
    """Return an Avro record type. A field whose type is a union is optional."""
    rows = [
        {"name": field, "type": kind} | ({"default": None} if isinstance(kind, list) else {})
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": rows}


def _longs(name: str, *fields: str) -> dict[str, Any]:
    """Return an Avro record type of 64-bit numbers."""
    return _record(name, **dict.fromkeys(fields, "long"))


def _list(items: Any) -> list[Any]:
    return ["null", {"type": "array", "items": items, "java-class": "java.util.List"}]


_TEXT = ["null", "string"]
_SINGLE = _record(
    "TransactionBufferSnapshot",
    aborts=_list(
        _longs("AbortTxnMetadata", "entryId", "ledgerId", "txnIdLeastBits", "txnIdMostBits")
    ),
    maxReadPositionEntryId="long",
    maxReadPositionLedgerId="long",
    topicName=_TEXT,
)
_SEGMENT = _record(
    "TransactionBufferSnapshotSegment",
    aborts=_list(_longs("TxnIDData", "leastSigBits", "mostSigBits")),
    persistentPositionEntryId="long",
    persistentPositionLedgerId="long",
    sequenceId="long",
    topicName=_TEXT,
)
_INDEX = _record(
    "TransactionBufferSnapshotIndexes",
    indexList=_list(
        _longs(
            "TransactionBufferSnapshotIndex",
            *("abortedMarkEntryID", "abortedMarkLedgerID", "segmentEntryID", "segmentLedgerID"),
            "sequenceID",
        )
    ),
    snapshot=[
        "null",
        _record(
            "TransactionBufferSnapshotIndexesMetadata",
            aborts=_list(_longs("TxnIDData", "leastSigBits", "mostSigBits")),
            maxReadPositionEntryId="long",
            maxReadPositionLedgerId="long",
        ),
    ],
    topicName=_TEXT,
)
_RECORDS = {
    SNAPSHOTS: (_METADATA, _SINGLE),
    SNAPSHOT_SEGMENTS: (_METADATA + ".v2", _SEGMENT),
    SNAPSHOT_INDEXES: (_METADATA + ".v2", _INDEX),
}
PROPERTIES = (("__alwaysAllowNull", "true"), ("__jsr310ConversionEnabled", "false"))
"""Properties of the schemas that Java clients register."""


def definition(local_name: str) -> bytes:
    """Return the definition of the schema of a system topic."""
    namespace, record = _RECORDS[local_name]
    name = {"type": record["type"], "name": record["name"], "namespace": namespace}
    return json.dumps(name | record, separators=(",", ":")).encode()


@functools.cache
def _schema(local_name: str) -> Any:
    """Return the Avro schema of a system topic, parsed by fastavro."""
    import fastavro

    return fastavro.parse_schema(json.loads(definition(local_name)))


def _encode(schema: Any, value: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def _encode_with_aborts(
    local_name: str, value: dict[str, Any], rows: Sequence[tuple[int, ...]]
) -> bytes:
    """Return a record whose first field, `aborts`, has rows of 64-bit numbers.

    Avro stores the rows like an array of all their numbers, apart from the length. To encode that
    takes a fraction of the time that a dict for each row takes.
    """
    encoded = _encode(_schema(local_name), {"aborts": [], **value})
    if not rows:
        return encoded
    numbers = list(chain.from_iterable(rows))
    longs = _encode({"type": "array", "items": "long"}, numbers)
    stored = longs[len(_encode("long", len(numbers))) :]
    before = encoded.index(0)  # the length of the empty array
    return encoded[:before] + _encode("long", len(rows)) + stored + encoded[before + 1 :]


def _decode(schema: Any, value: bytes) -> Any:
    import fastavro

    try:
        return fastavro.schemaless_reader(io.BytesIO(value), schema, None)
    except Exception as error:
        # fastavro raises many kinds of errors for bytes that are not Avro.
        raise ValueError(f"the value is not a snapshot of transactions: {error!r:.200}") from error


# --- records --------------------------------------------------------------------------------------


def encode(topic: str, snapshot: Snapshot) -> bytes:
    """Return the value of the message with the snapshot of a topic."""
    rows = [
        (entry_id, ledger_id, least, most)
        for (most, least), (ledger_id, entry_id) in snapshot.aborted
    ]
    return _encode_with_aborts(SNAPSHOTS, {"topicName": topic, **_max_read(snapshot)}, rows)


def decode(value: bytes) -> Snapshot:
    """Return the snapshot in the value of a message. Raise ValueError if it is not one."""
    record = _decode(_schema(SNAPSHOTS), value)
    return Snapshot(
        _max_read_of(record),
        tuple(
            (
                TxnId(each["txnIdMostBits"], each["txnIdLeastBits"]),
                Position(each["ledgerId"], each["entryId"]),
            )
            for each in record["aborts"] or ()
        ),
    )


def encode_segment(
    topic: str, sequence_id: int, aborted: Iterable[TxnId], marker: Position
) -> bytes:
    """Return the value of a message with aborted transactions. marker: that of the last one."""
    value = {
        "persistentPositionEntryId": marker.entry_id,
        "persistentPositionLedgerId": marker.ledger_id,
        "sequenceId": sequence_id,
        "topicName": topic,
    }
    rows = [(least, most) for most, least in aborted]
    return _encode_with_aborts(SNAPSHOT_SEGMENTS, value, rows)


def decode_segment(value: bytes) -> list[TxnId]:
    """Return the aborted transactions in a segment. Raise ValueError if it is not one."""
    return _ids_of(_decode(_schema(SNAPSHOT_SEGMENTS), value)["aborts"])


def encode_index(topic: str, index: Index) -> bytes:
    """Return the value of the message with the index of a topic."""
    segments = [
        {
            "abortedMarkEntryID": each.marker.entry_id,
            "abortedMarkLedgerID": each.marker.ledger_id,
            "segmentEntryID": each.position.entry_id,
            "segmentLedgerID": each.position.ledger_id,
            "sequenceID": each.sequence_id,
        }
        for each in index.segments
    ]
    snapshot = {"aborts": _ids(index.unsealed), **_max_read(index)}
    value = {"indexList": segments, "snapshot": snapshot, "topicName": topic}
    return _encode(_schema(SNAPSHOT_INDEXES), value)


def decode_index(value: bytes) -> Index:
    """Return the index in the value of a message. Raise ValueError if it is not one."""
    record = _decode(_schema(SNAPSHOT_INDEXES), value)
    snapshot = record["snapshot"]
    if snapshot is None:
        raise ValueError("the index has no snapshot")
    segments = (
        Segment(
            each["sequenceID"],
            Position(each["abortedMarkLedgerID"], each["abortedMarkEntryID"]),
            Position(each["segmentLedgerID"], each["segmentEntryID"]),
        )
        for each in record["indexList"] or ()
    )
    return Index(_max_read_of(snapshot), tuple(segments), tuple(_ids_of(snapshot["aborts"])))


def _max_read(snapshot: Snapshot | Index) -> dict[str, int]:
    ledger_id, entry_id = snapshot.max_read
    return {"maxReadPositionEntryId": entry_id, "maxReadPositionLedgerId": ledger_id}


def _max_read_of(record: Any) -> Position:
    return Position(record["maxReadPositionLedgerId"], record["maxReadPositionEntryId"])


def _ids(txns: Iterable[TxnId]) -> list[dict[str, int]]:
    return [{"leastSigBits": each.least, "mostSigBits": each.most} for each in txns]


def _ids_of(rows: Any) -> list[TxnId]:
    return [TxnId(each["mostSigBits"], each["leastSigBits"]) for each in rows or ()]

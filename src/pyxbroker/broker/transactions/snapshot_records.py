"""The stored form of snapshots: Avro records, as Apache Pulsar 4.2 writes them.

Apache Pulsar sorts the fields by name. Fields that are objects in Java are unions with null.
"""

from __future__ import annotations

import functools
import io
from typing import Any

from pyxbroker.broker.transactions.buffer import Snapshot
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.entry import Position

_METADATA = "org.apache.pulsar.broker.transaction.buffer.metadata"


def _longs(name: str, *fields: str) -> dict[str, Any]:
    """Return an Avro record type of 64-bit numbers."""
    return _record(name, **dict.fromkeys(fields, "long"))


def _record(name: str, **fields: Any) -> dict[str, Any]:
    rows = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": _METADATA, "fields": rows}


def _list(items: Any) -> list[Any]:
    return ["null", {"type": "array", "items": items}]


@functools.cache
def schema() -> Any:
    """Return the Avro schema of a TransactionBufferSnapshot, parsed by fastavro."""
    import fastavro

    aborted = _longs("AbortTxnMetadata", "entryId", "ledgerId", "txnIdLeastBits", "txnIdMostBits")
    return fastavro.parse_schema(
        _record(
            "TransactionBufferSnapshot",
            aborts=_list(aborted),
            maxReadPositionEntryId="long",
            maxReadPositionLedgerId="long",
            topicName=["null", "string"],
        )
    )


def encode(topic: str, snapshot: Snapshot) -> bytes:
    """Return the value of the message with the snapshot of a topic."""
    import fastavro

    out = io.BytesIO()
    value = {
        "aborts": [
            {
                "entryId": marker.entry_id,
                "ledgerId": marker.ledger_id,
                "txnIdLeastBits": txn.least,
                "txnIdMostBits": txn.most,
            }
            for txn, marker in snapshot.aborted
        ],
        "maxReadPositionEntryId": snapshot.max_read.entry_id,
        "maxReadPositionLedgerId": snapshot.max_read.ledger_id,
        "topicName": topic,
    }
    fastavro.schemaless_writer(out, schema(), value)
    return out.getvalue()


def decode(value: bytes) -> Snapshot:
    """Return the snapshot in the value of a message. Raise ValueError if it is not one."""
    import fastavro

    try:
        record: Any = fastavro.schemaless_reader(io.BytesIO(value), schema(), None)
        return Snapshot(
            Position(record["maxReadPositionLedgerId"], record["maxReadPositionEntryId"]),
            tuple(
                (
                    TxnId(each["txnIdMostBits"], each["txnIdLeastBits"]),
                    Position(each["ledgerId"], each["entryId"]),
                )
                for each in record["aborts"] or ()
            ),
        )
    except Exception as error:
        # fastavro raises many kinds of errors for bytes that are not Avro.
        raise ValueError(f"the value is not a snapshot of transactions: {error!r:.200}") from error

"""Stored records as none of us writes them: a value or the documented error, at a fair price."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from pyxbroker.ackset import AckSet, PositionSet
from pyxbroker.base.errors import MetadataStoreError
from pyxbroker.bookie.cookie import parse_cookie
from pyxbroker.bookie.errors import DamagedCookie
from pyxbroker.broker.topics import partition_records
from pyxbroker.ledger import metadata as ledger_metadata
from pyxbroker.ledger.metadata import MalformedLedgerMetadata
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.mledger import positions, records
from pyxbroker.proto import DataFormats, MLDataFormats

LARGE = 2**40
HUGE = 2**62
ENDS = {3: 10, **{100 + each: LARGE for each in range(40)}}


def position(**fields: Any) -> Any:
    return MLDataFormats.PositionInfo(**{"ledgerId": 3, "entryId": 2, **fields})


def restore(info: Any) -> AckSet:
    acks, _ = positions.restore_position(info)
    for _ in positions.merge_position(acks, info, ENDS):
        pass
    return acks


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_a_short_record_that_claims_to_be_long_takes_no_memory(compression: int) -> None:
    header = MLDataFormats.ManagedLedgerInfoMetadata(
        compressionType=compression, uncompressedSize=records.UNCOMPRESSED_BYTES_MAX
    ).SerializeToString()
    value = b"\x47\x78" + len(header).to_bytes(4, "big") + header + b"12345678"
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRecord, match="cannot expand"):
            records.decode_managed_ledger_info(value)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_record_that_claims_more_than_a_record_may_have_takes_no_memory() -> None:
    header = MLDataFormats.ManagedLedgerInfoMetadata(
        compressionType=3, uncompressedSize=records.UNCOMPRESSED_BYTES_MAX + 1
    ).SerializeToString()
    value = b"\x47\x78" + len(header).to_bytes(4, "big") + header + bytes(9_000)
    with pytest.raises(MalformedRecord, match="claims 268435457 bytes"):
        records.decode_managed_ledger_info(value)


def range_of(ledger: int, lower: int, upper: int) -> dict[str, Any]:
    return {
        "lowerEndpoint": {"ledgerId": ledger, "entryId": lower},
        "upperEndpoint": {"ledgerId": ledger, "entryId": upper},
    }


def wide(info: Any) -> None:
    info.individualDeletedMessages.add(**range_of(100, 5, LARGE))


def wide_together(info: Any) -> None:
    for ledger in range(100, 140):
        info.individualDeletedMessages.add(**range_of(ledger, 5, 2**26))


def far_runs(info: Any) -> None:
    word = b"\x01" + b"\x01" * 8
    info.changes.since = 0
    info.changes.runs.add(ledgerId=100, runs=b"\x00" + word + b"\xff\xff\xff\xff\x07" + word)


def far_batches(info: Any) -> None:
    for entry in (1, LARGE - 1):
        info.batchedEntryDeletionIndexInfo.add(
            position={"ledgerId": 100, "entryId": entry}, deleteSet=[5]
        )


@pytest.mark.parametrize("make", [wide, wide_together, far_runs, far_batches])
def test_acknowledgements_that_would_take_all_memory_are_refused(
    make: Callable[[Any], None],
) -> None:
    info = position()
    make(info)
    with pytest.raises(MalformedRecord, match=r"no memory|more memory than any valid cursor"):
        restore(info)


def test_many_acknowledged_entries_are_restored() -> None:
    info = position()
    info.individualDeletedMessages.add(**range_of(100, 5, 10_000_000))
    assert restore(info).holes == 10_000_000 - 5


def test_a_range_that_begins_behind_every_entry_acknowledges_nothing() -> None:
    info = position()
    info.individualDeletedMessages.add(**range_of(3, 2**63 - 1, 2**63 - 1))
    assert restore(info).mark_delete == (3, 2)
    assert restore(info).holes == 0


def test_a_mark_before_the_first_entry_keeps_what_is_acknowledged_after_it() -> None:
    info = position(entryId=-5)
    info.individualDeletedMessages.add(**range_of(3, 4, 6))
    acks = restore(info)
    acks.advance(lambda *_: None)
    assert (acks.mark_entry_id, acks.ranges(3)) == (-1, [(4, 6)])


def test_a_mark_that_no_entry_can_follow_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="follows"):
        restore(position(entryId=2**63 - 1))


def test_texts_that_are_not_utf_8_are_refused() -> None:
    pair = b"\n\x01\xff\x12\x01v"
    with pytest.raises(MalformedRecord, match="UTF-8"):
        positions.decode_ledger_list(b"\x1a" + bytes([len(pair)]) + pair)
    metadata = DataFormats.LedgerMetadataFormat(
        quorumSize=1, ensembleSize=1, length=0, lastEntryId=-1, state=1
    )
    metadata.segment.add(ensembleMember=["@@"], firstEntryId=0)
    body = metadata.SerializeToString().replace(b"@@", b"\xff\xfe")
    with pytest.raises(MalformedLedgerMetadata, match="UTF-8"):
        ledger_metadata.decode(b"BookieMetadataFormatVersion\t3\n" + bytes([len(body)]) + body)


@pytest.mark.parametrize(
    "value",
    [
        b"2\n" + b"unknown {" * 5000,
        b"1\n2\n3\n" + b"9" * 30 + b"\n0\ta:1\n",
        b"1\n2\n3\n77\n0\ta:1\n" + b"9" * 30 + b"\tCLOSED\n",
        b"1\n2\n3\n77\n",
        b"1\n2\n3\n77\n5\ta:1\n",
    ],
)
def test_ledger_metadata_that_cannot_be_served_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedLedgerMetadata):
        ledger_metadata.decode(b"BookieMetadataFormatVersion\t" + value)


def test_partitions_nested_too_deeply_are_refused() -> None:
    with pytest.raises(MetadataStoreError, match="no valid number of partitions") as raised:
        partition_records._decode("/admin/a", b"[" * 200_000, 0)
    assert "/admin/a" not in str(raised.value), "where it is stored is for the log"


def test_a_cookie_with_a_version_of_thousands_of_digits_is_damaged() -> None:
    with pytest.raises(DamagedCookie):
        parse_cookie(b"9" * 5000 + b"\n", "The cookie")


def test_positions_are_given_however_many_are_asked_for() -> None:
    found = PositionSet()
    for entry in (5, 6, 9):
        found.add(1, entry)
    assert found.first_range(2**63 - 1) == (1, 5, 6)

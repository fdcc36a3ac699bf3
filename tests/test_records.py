"""The stored records of ledgers, managed ledgers and cursors, against bytes that Apache Pulsar 4.2
and BookKeeper 4.17 wrote."""

from __future__ import annotations

import struct
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_backends import coroutine_test
from pyxbroker import proto
from pyxbroker.ledger.metadata import (
    DigestType,
    LedgerMetadata,
    LedgerMetadataStore,
    LedgerState,
    MalformedLedgerMetadata,
    decode,
    encode,
)
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import BadVersion, NotFound
from pyxbroker.mledger import records
from pyxbroker.proto import DataFormats, MLDataFormats

OPEN_LEDGER = (
    b"BookieMetadataFormatVersion\t3\n\xc4\x01\x08\x01\x10\x01\x18\x00 \xff\xff\xff\xff\xff\xff\xff"
    b"\xff\xff\x01(\x012\x12\n\x0e127.0.0.1:3181\x10\x008\x03B\x00H\x01Z\x1b\n\tcomponent\x12\x0e"
    b"managed-ledgerZE\n\x15pulsar/managed-ledger\x12,public/default/persistent/my+topic%2B%C3%BC*Z"
    b"\x18\n\rpulsar/cursor\x12\x07sub%2F1Z\x15\n\x0bapplication\x12\x06pulsar`\x00"
)
CLOSED_LEDGER = (
    b"BookieMetadataFormatVersion\t3\n\xa2\x01\x08\x01\x10\x01\x18\xf2\x02 \t(\x032\x12\n\x0e"
    b"127.0.0.1:3181\x10\x008\x03B\x00H\x01Z\x1b\n\tcomponent\x12\x0emanaged-ledgerZE\n\x15pulsar/"
    b"managed-ledger\x12,public/default/persistent/my+topic%2B%C3%BC*Z\x15\n\x0bapplication\x12\x06"
    b"pulsar`\x00"
)
MANAGED_LEDGER = b"\n\x04\x08\x04 \x00"
OPEN_CURSOR = b"\x08\x05\x10\x04\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x010\xa1\x8b\xd9\xef\x9f4"
CLOSED_CURSOR = (
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x04\x18\x02\x22\x0c\n\x04\x08\x04\x10\x04"
    b"\x12\x04\x08\x04\x10\x050\xdf\x92\xd9\xef\x9f4"
)


def test_an_open_ledger_is_read_and_written_as_pulsar_does() -> None:
    metadata = decode(OPEN_LEDGER)
    assert metadata == LedgerMetadata(
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        ensembles={0: ("127.0.0.1:3181",)},
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        digest_type=DigestType.CRC32C,
        password=b"",
        custom_metadata={
            "component": b"managed-ledger",
            "pulsar/managed-ledger": b"public/default/persistent/my+topic%2B%C3%BC*",
            "pulsar/cursor": b"sub%2F1",
            "application": b"pulsar",
        },
    )
    assert encode(metadata) == OPEN_LEDGER


def test_a_closed_ledger_is_read_and_written_as_pulsar_does() -> None:
    metadata = decode(CLOSED_LEDGER)
    assert metadata.is_closed
    assert (metadata.last_entry_id, metadata.length) == (9, 370)
    assert encode(metadata) == CLOSED_LEDGER


def test_closing_an_open_ledger() -> None:
    metadata = decode(OPEN_LEDGER)
    recovering = metadata.in_recovery()
    assert recovering.state is LedgerState.IN_RECOVERY
    closed = recovering.closed(9, 370)
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 9, 370)
    assert decode(encode(closed)) == closed
    assert metadata.state is LedgerState.OPEN


def test_ensembles_are_found_by_entry() -> None:
    metadata = decode(OPEN_LEDGER).with_ensemble(10, ("b:1",)).with_ensemble(4, ("c:1",))
    assert list(metadata.ensembles) == [0, 4, 10]
    assert metadata.last_ensemble() == (10, ("b:1",))
    assert metadata.ensemble_of(3) == ("127.0.0.1:3181",)
    assert metadata.ensemble_of(4) == metadata.ensemble_of(9) == ("c:1",)
    assert metadata.ensemble_of(10) == metadata.ensemble_of(10**9) == ("b:1",)


def test_metadata_of_version_2_is_protobuf_text() -> None:
    metadata = decode(
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 3\nlength: 88\n"
        b'lastEntryId: 7\nstate: CLOSED\nsegment {\n  ensembleMember: "a:1"\n'
        b'  ensembleMember: "b:1"\n  ensembleMember: "c:1"\n  firstEntryId: 0\n}\n'
        b'digestType: CRC32\npassword: "secret"\nackQuorumSize: 1\n'
        b'customMetadata {\n  key: "k"\n  value: "v"\n}\nctime: 5\n'
    )
    assert metadata == LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=1,
        ensembles={0: ("a:1", "b:1", "c:1")},
        state=LedgerState.CLOSED,
        last_entry_id=7,
        length=88,
        digest_type=DigestType.CRC32,
        password=b"secret",
        custom_metadata={"k": b"v"},
        ctime_ms=5,
    )


@pytest.mark.parametrize(
    ("last_line", "state", "last_entry_id"),
    [
        (b"", LedgerState.OPEN, -1),
        (b"-102\tCLOSED\n", LedgerState.IN_RECOVERY, -1),
        (b"41\tCLOSED\n", LedgerState.CLOSED, 41),
    ],
)
def test_metadata_of_version_1_is_lines(
    last_line: bytes, state: LedgerState, last_entry_id: int
) -> None:
    metadata = decode(
        b"BookieMetadataFormatVersion\t1\n2\n3\n77\n0\ta:1\tb:1\tc:1\n9\ta:1\tb:1\td:1\n"
        + last_line
    )
    assert (metadata.write_quorum_size, metadata.ensemble_size, metadata.length) == (2, 3, 77)
    assert metadata.ack_quorum_size == 2
    assert metadata.ensembles == {0: ("a:1", "b:1", "c:1"), 9: ("a:1", "b:1", "d:1")}
    assert (metadata.state, metadata.last_entry_id) == (state, last_entry_id)
    assert metadata.digest_type is None


def test_every_truncation_of_ledger_metadata_is_refused() -> None:
    for length in range(len(CLOSED_LEDGER)):
        with pytest.raises(MalformedLedgerMetadata):
            decode(CLOSED_LEDGER[:length])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"BookieMetadataFormatVersion\t4\n",
        b"BookieMetadataFormatVersion\t3\n" + b"\xff" * 12,
        b"BookieMetadataFormatVersion\t3\n\x04\x08\x01\x10\x01",
        b"BookieMetadataFormatVersion\t2\nno protobuf text",
        b"BookieMetadataFormatVersion\t1\n2\nx\n",
        b"BookieMetadataFormatVersion\t1\n",
    ],
)
def test_garbage_is_no_ledger_metadata(value: bytes) -> None:
    with pytest.raises(MalformedLedgerMetadata):
        decode(value)


@given(
    st.builds(
        LedgerMetadata,
        ensemble_size=st.integers(1, 10),
        write_quorum_size=st.integers(1, 10),
        ack_quorum_size=st.integers(1, 10),
        ensembles=st.dictionaries(
            st.integers(0, 2**62), st.lists(st.text(max_size=20), max_size=4).map(tuple), max_size=4
        ).map(lambda later: {0: ("b:1",), **later}),
        state=st.sampled_from(LedgerState),
        last_entry_id=st.integers(-1, 2**62),
        length=st.integers(0, 2**62),
        digest_type=st.sampled_from(DigestType),
        password=st.binary(max_size=10),
        custom_metadata=st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=4),
        ctime_ms=st.none() | st.integers(0, 2**45),
        c_token=st.integers(0, 2**62),
    )
)
def test_ledger_metadata_survives_its_stored_form(metadata: LedgerMetadata) -> None:
    assert decode(encode(metadata)) == metadata


@coroutine_test
async def test_ledgers_are_created_updated_listed_and_deleted() -> None:
    store = MemoryStore()
    await store.open()
    ledgers = LedgerMetadataStore(store)
    metadata = decode(OPEN_LEDGER)
    for ledger_id in (2**40, 3, 70_000, 2**31 - 1, 2**31):
        await store.put(*ledgers.creation(ledger_id, metadata))
    with pytest.raises(BadVersion):
        await store.put(*ledgers.creation(3, metadata))
    created, version = await ledgers.read(3)
    assert version == 0
    assert created == metadata
    assert len({ledgers.new_token() for _ in range(100)}) == 100
    await ledgers.update(3, created.closed(5, 50), version)
    with pytest.raises(BadVersion):
        await ledgers.update(3, created.in_recovery(), version)
    assert (await ledgers.read(3)).metadata.last_entry_id == 5
    await store.put("/ledgers/00/0000/other", b"")
    await store.put("/ledgers/available/b:3181", b"", ephemeral=True)
    found = [ledger_id async for ledger_id in ledgers.ledger_ids()]
    assert found == [3, 70_000, 2**31 - 1, 2**31, 2**40]
    await ledgers.delete(3)
    with pytest.raises(NotFound, match="ledger 3"):
        await ledgers.read(3)
    await store.close()


def test_managed_ledgers_and_cursors_are_read_and_written_as_pulsar_does() -> None:
    info = records.decode_managed_ledger_info(MANAGED_LEDGER)
    assert [(each.ledgerId, each.timestamp) for each in info.ledgerInfo] == [(4, 0)]
    assert records.encode_managed_ledger_info(info) == MANAGED_LEDGER
    assert len(records.decode_managed_ledger_info(b"").ledgerInfo) == 0
    cursor = records.decode_managed_cursor_info(OPEN_CURSOR)
    assert (cursor.cursorsLedgerId, cursor.markDeleteLedgerId, cursor.markDeleteEntryId) == (
        *(5, 4, -1),
    )
    assert records.encode_managed_cursor_info(cursor) == OPEN_CURSOR
    cursor = records.decode_managed_cursor_info(CLOSED_CURSOR)
    assert cursor.cursorsLedgerId == records.NO_LEDGER
    (deleted,) = cursor.individualDeletedMessages
    assert (deleted.lowerEndpoint.entryId, deleted.upperEndpoint.entryId) == (4, 5)
    assert records.encode_managed_cursor_info(cursor) == CLOSED_CURSOR


def test_positions_survive_a_cursor_ledger() -> None:
    position = MLDataFormats.PositionInfo(ledgerId=4, entryId=2)
    position.properties.add(name="producer", value=-7)
    position.individualDeletedMessageRanges.add(key=4, values=[1, 2**62, -1])
    assert records.decode_position_info(records.encode_position_info(position)) == position


COMPRESSORS = {
    MLDataFormats.NONE: bytes,
    MLDataFormats.LZ4: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    MLDataFormats.ZLIB: zlib.compress,
    MLDataFormats.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
    MLDataFormats.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


def _envelope(compression: int, size: int, body: bytes) -> bytes:
    header = MLDataFormats.ManagedLedgerInfoMetadata(
        compressionType=compression, uncompressedSize=size
    ).SerializeToString()
    return struct.pack(">HI", 0x4778, len(header)) + header + body


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_compressed_records_are_read(compression: int) -> None:
    info = MLDataFormats.ManagedLedgerInfo()
    for ledger_id in range(500):
        info.ledgerInfo.add(ledgerId=ledger_id, entries=7, size=99, timestamp=1)
    plain = info.SerializeToString()
    value = _envelope(compression, len(plain), COMPRESSORS[compression](plain))
    assert records.decode_managed_ledger_info(value) == info
    cursor = _envelope(compression, len(OPEN_CURSOR), COMPRESSORS[compression](OPEN_CURSOR))
    assert records.decode_managed_cursor_info(cursor).cursorsLedgerId == 5


def test_a_record_that_java_has_compressed_with_zlib_is_read() -> None:
    """CompressionCodecZLib flushes a stream, and leaves out its end mark."""
    packer = zlib.compressobj()
    body = packer.compress(MANAGED_LEDGER) + packer.flush(zlib.Z_SYNC_FLUSH)
    value = _envelope(MLDataFormats.ZLIB, len(MANAGED_LEDGER), body)
    plain = records.decode_managed_ledger_info(MANAGED_LEDGER)
    assert records.decode_managed_ledger_info(value) == plain


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_damaged_compressed_records_are_refused(compression: int) -> None:
    plain = MANAGED_LEDGER * 100
    body = COMPRESSORS[compression](plain)
    for value in (
        _envelope(compression, len(plain) + 1, body),
        _envelope(compression, len(plain) - 1, body),
        _envelope(compression, len(plain), body[: len(body) // 2]),
        _envelope(compression, 2**31 - 1, body),
        _envelope(compression, len(plain), body)[:8],
        struct.pack(">HI", 0x4778, 2**32 - 1),
    ):
        with pytest.raises(records.MalformedRecord):
            records.decode_managed_ledger_info(value)


@pytest.mark.parametrize("value", [b"\xff", b"\x08", b"\n\x7f\x08", b"\x10\x04\x18\x05"])
def test_garbage_is_no_cursor(value: bytes) -> None:
    with pytest.raises(records.MalformedRecord):
        records.decode_managed_cursor_info(value)


def test_a_bookies_registration_is_read() -> None:
    info = DataFormats.BookieServiceInfoFormat.FromString(
        b'2"\n\x06bookie\x10\xed\x18\x1a\t127.0.0.1"\nbookie-rpc'
    )
    (endpoint,) = info.endpoints
    assert (endpoint.id, endpoint.host, endpoint.port, endpoint.protocol) == (
        *("bookie", "127.0.0.1", 3181, "bookie-rpc"),
    )


def test_a_cookie_is_read() -> None:
    from google.protobuf import text_format

    cookie = text_format.Parse(
        'bookieHost: "127.0.0.1:3181"\njournalDir: "data/bookie/journal"\n'
        'ledgerDirs: "1\\tdata/bookie/ledgers"\n'
        'instanceId: "9f2ab5c1-3c9c-4f87-9688-bfb36a81f51c"\n',
        DataFormats.CookieFormat(),
    )
    assert cookie.ledgerDirs == "1\tdata/bookie/ledgers"


def test_proto_files_are_namespaces_of_messages_enums_and_values() -> None:
    assert MLDataFormats is proto.MLDataFormats
    assert MLDataFormats.PositionInfo is MLDataFormats.PositionInfo
    assert MLDataFormats.CompressionType.Value("ZSTD") == MLDataFormats.ZSTD == 3
    assert DataFormats.LedgerMetadataFormat.CLOSED == 3
    with pytest.raises(AttributeError, match=r"MLDataFormats\.proto defines no Nothing"):
        MLDataFormats.Nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"no proto/Nothing\.proto; known are"):
        proto.Nothing  # noqa: B018
    assert "PositionInfo" in dir(MLDataFormats)

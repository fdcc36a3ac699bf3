"""What is stored, as a hostile or an older store could hold it: a value, or the documented error.

Metadata of ledgers, the list of a managed ledger, nodes and ledger entries of cursors, partitioned
topics, policies and cookies. Nothing else may be raised, and a short record that claims to be long
must not cost what a long one does, neither in memory nor in time.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from pathlib import Path

import driver

with driver.guided("pyxbroker"):
    from pyxbroker.base.errors import MetadataStoreError
    from pyxbroker.bookie.cookie import cookie_text, parse_cookie
    from pyxbroker.bookie.errors import DamagedCookie, NewerFormat
    from pyxbroker.broker.topics import partition_records
    from pyxbroker.ledger import metadata as ledger_metadata
    from pyxbroker.mledger import positions, records
    from pyxbroker.policies import records as policy_records
    from pyxbroker.policies import resolver
    from pyxbroker.policies.shapes import Level
    from pyxbroker.policies.values import Policies

from pyxbroker.ackset import AckSet
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.proto import MLDataFormats

LEDGERS_MAX = 10_000
ENDS = {3: 5, 5: 200, 7: -1, 11: 4500, 2**31: 2**40, 2**62: 2**62}


def look_at_ledger(data: bytes) -> None:
    with suppress(ledger_metadata.MalformedLedgerMetadata):
        found = ledger_metadata.decode(data)
        first, bookies = found.last_ensemble()
        assert found.ensemble_of(max(first, 0)) == bookies
        # What is read can be written, and is the same then.
        again = ledger_metadata.decode(ledger_metadata.encode(found))
        assert (again.ensembles, again.state) == (dict(found.ensembles), found.state)


def look_at_ledger_list(data: bytes) -> None:
    with suppress(MalformedRecord):
        ledgers, properties, terminated = positions.decode_ledger_list(data)
        positions.encode_ledger_list(ledgers, properties, terminated)


def look_at_cursor(data: bytes) -> None:
    with suppress(MalformedRecord):
        found = positions.decode_cursor(data, ENDS)
        check_acks(found.acks)


def look_at_position(data: bytes) -> None:
    with suppress(MalformedRecord):
        info = records.decode_position_info(data)
        acks, _ = positions.restore_position(info)
        for _ in positions.merge_position(acks, info, ENDS):
            pass
        acks.drop_acknowledged_batches()
        check_acks(acks)


def check_acks(acks: AckSet) -> None:
    """Only entries that there are may be acknowledged after the mark."""
    total = 0
    for ledger in acks.ledger_ids():
        ranges = acks.ranges(ledger)
        assert ranges and ranges[0][0] >= -1 and ranges[-1][1] <= ENDS[ledger]
        total += sum(upper - lower for lower, upper in ranges)
    assert acks.holes == total


def look_at_partitions(data: bytes) -> None:
    with suppress(MetadataStoreError):
        found = partition_records._decode("/a", data, 0)
        assert 0 <= found.partitions <= found.target


def look_at_policies(data: bytes) -> None:
    try:
        fields = policy_records.decode(data)
    except ValueError:
        return
    record = resolver.Record(Level.NAMESPACE, "public/default", fields)
    found, refusals = resolver.resolve([record], Policies(), Policies(), "standalone")
    assert found.refused == {each.policy for each in refusals}


def look_at_cookie(data: bytes) -> None:
    with suppress(DamagedCookie, NewerFormat):
        found = parse_cookie(data, "The cookie")
        assert found.bookie_id and found.instance_id


LOOKS = (
    look_at_ledger,
    look_at_ledger_list,
    look_at_cursor,
    look_at_position,
    look_at_partitions,
    look_at_policies,
    look_at_cookie,
)


def compressed(message: bytes, kind: int, size: int, body: bytes) -> bytes:
    header = MLDataFormats.ManagedLedgerInfoMetadata(compressionType=kind, uncompressedSize=size)
    head = header.SerializeToString()
    return b"\x47\x78" + len(head).to_bytes(4, "big") + head + body


def acknowledged() -> AckSet:
    acks = AckSet(3, 2, tracked=True)
    for entry in (*range(0, 150, 3), 190):
        acks.add(5, entry)
    acks.acknowledge_batch(5, 1, [5, -1])
    return acks


def seeds() -> list[bytes]:
    """A byte that chooses the kind, and a record."""
    acks = acknowledged()
    metadata = ledger_metadata.LedgerMetadata(3, 2, 2, {0: ("a:1", "b:1", "c:1")}, ctime_ms=5)
    text = (
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 3\nlength: 88\n"
        b'state: CLOSED\nsegment {\n  ensembleMember: "a:1"\n  firstEntryId: 0\n}\n'
    )
    lines = b"BookieMetadataFormatVersion\t1\n2\n3\n77\n0\ta:1\tb:1\tc:1\n41\tCLOSED\n"
    ledgers = [positions.LedgerRecord(each, 10, 100, 1000, b"") for each in (3, 5, 2**62)]
    infos = positions.encode_ledger_list(ledgers, {"k": "v"}, None)
    cursor = positions.encode_cursor(acks, records.NO_LEDGER, {"n": 1}, {"c": "d"})
    position = positions.encode_position(acks, {"n": 1})
    longs = positions.encode_position_as_longs(acks, {})
    changes = [
        positions.encode_changes(acks, {}, piece, since=0)
        for piece in positions.pieces(acks, 300, only_changed=False)
    ]
    wide = MLDataFormats.PositionInfo(ledgerId=3, entryId=2)
    wide.individualDeletedMessages.add(
        lowerEndpoint={"ledgerId": 2**31, "entryId": 3},
        upperEndpoint={"ledgerId": 2**31, "entryId": 2**40},
    )
    topic = {"partitions": 4, "growing-to": 8, "deleted": False}
    policies = {
        "retention_policies": {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4},
        "autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "partitioned"},
        "deduplicationEnabled": None,
    }
    found = [
        (0, [ledger_metadata.encode(metadata), text, lines]),
        (1, [infos, compressed(infos, 2, len(infos), zlib.compress(infos))]),
        (1, [compressed(b"", kind, 2**28, infos) for kind in range(5)]),
        (2, [cursor]),
        (3, [position, longs, *changes, wide.SerializeToString()]),
        (4, [json.dumps(topic).encode(), b"[" * 5000, b'{"partitions": ' + b"9" * 4999]),
        (5, [json.dumps(policies).encode(), b"[" * 5000]),
        (6, [cookie_text("b:1", Path("/d"), "i").encode(), b"9" * 5000 + b"\n"]),
    ]
    return [bytes([kind]) + each for kind, records_of in found for each in records_of]


def one_input(data: bytes) -> None:
    driver.look_within_bounds(LOOKS, data)


if __name__ == "__main__":
    driver.main(seeds, one_input, input_bytes_max=6000)

"""Compacted ledgers: Apache Pulsar's own classes read what this broker has written, and write what
it reads; its compactor leaves the same of the same log.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from harness.apache_records import ApacheRecords, Compacted

from compacting import PACK, Sent, batch, compact, compacted_ledgers, messages_of, single, view
from one_bookie import BOOKIE_ID, append
from one_broker import TOPIC, Broker, run
from pyxbroker.base.system_cursors import COMPACTION
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.compaction.compaction import _Writer
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.metadata import decode
from pyxbroker.metadata import paths
from pyxbroker.mledger.compacted_ledger import LEDGER_PROPERTY
from pyxbroker.mledger.cursor import NO_LEDGER
from test_apache_typed_records import value_at

pytestmark = pytest.mark.interop

PARTITION = "persistent://public/default/t-partition-2"
INDEXES = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
CODECS = sorted(PACK)
SINCE = 8  # when an entry in the midst was published
Log = list[tuple[Position, bytes]]
Views = list[tuple[Position, list[Sent | None]]]


def entries() -> list[bytes]:
    """What may come: batches of each codec that are kept whole, in part and not at all, values of
    all kinds, and what has no key; each is published a bit later.
    """
    found: list[bytes] = []

    def one(key: str | None, value: bytes) -> None:
        found.append(single(key, value, publish_time=len(found) + 1))

    def many(*messages: Sent, codec: int = 0) -> None:
        found.append(batch(*messages, compression=codec, publish_time=len(found) + 1))

    one("one", b"old")
    one("gone", b"1")
    one("odd \N{SNOWMAN} \x00", b"1")
    for codec in CODECS:
        shared = [Sent(f"k{n}", b"%d of codec %d" % (n, codec) * 9) for n in range(3)]
        many(*shared[:2], Sent(f"own {codec}", b"x" * (codec + 1)), shared[2], codec=codec)
        many(Sent(f"whole {codec}", b"1"), codec=codec)
        many(Sent("k0", b"again"), Sent("k1", b"again"), codec=codec)
    one(None, b"no key")
    many(Sent(None, b"-"), Sent("mixed", b"1"))
    one("gone", b"")
    many(Sent("one", b"new"), Sent("k2", b""))
    one("", b"1")
    return found


async def new_topic(broker: Broker, name: str) -> PersistentTopic:
    if name == PARTITION:
        await broker.topics.partitioned.create(TopicName.get(TOPIC), 3)
    return await topic_of(broker, name)


async def topic_of(broker: Broker, name: str = TOPIC) -> PersistentTopic:
    topic = await broker.topic(name)
    assert isinstance(topic, PersistentTopic)
    return topic


async def log_of(topic: PersistentTopic) -> Log:
    """All entries of a topic."""
    found: Log = []
    position = topic.managed_ledger.normalize(topic.first_position())
    while position is not None:
        read = await topic.managed_ledger.read_some(position, 100, 1 << 20)
        for index in range(len(read)):
            at = Position(read.ledger_id, read.entry_id(index))
            found.append((at, read.data(index)))
        position = topic.managed_ledger.normalize((at.ledger_id, at.entry_id + 1))
    return found


def taken_apart(log: Log) -> Views:
    return [(at, messages_of(entry)) for at, entry in log]


def as_apache_tells(told: list[dict[str, Any]]) -> Views:
    """The same of what Apache's classes tell."""
    found: Views = []
    for entry in told:
        messages = [
            None if each["isCompactedOut"] else Sent(each["key"], base64.b64decode(each["value"]))
            for each in entry["messages"]
        ]
        found.append((Position(*entry["position"]), messages))
    return found


def fields_of(entry: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an entry. Their compactor also writes the indexes of all messages, where a
    batch is kept whole; ours leaves that as it was.
    """
    fields: dict[str, Any] = entry["metadata"]
    is_whole = not any(each["isCompactedOut"] for each in entry["messages"])
    return fields | ({"compactedBatchIndexe": []} if is_whole else {})


async def records_of(topic: PersistentTopic) -> list[bytes]:
    """The entries of the compacted ledger, as they are stored."""
    assert topic.compacted is not None
    found = []
    for index in range(topic.compacted.last_index + 1):
        found.append((await topic.compacted.handle.read_future(index, index)).data(0))
    return found


async def opened(broker: Broker, apache: ApacheRecords, topic: PersistentTopic) -> dict[str, Any]:
    """What Apache's broker reads of a compacted ledger of ours."""
    assert topic.compacted is not None
    ledger_id = topic.compacted.ledger_id
    node = await value_at(broker, paths.ledger(ledger_id))
    return apache.open_compacted(ledger_id, node, await records_of(topic), topic.horizon, SINCE)


# --- ours, read by theirs -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TOPIC, PARTITION], ids=["plain", "partition"])
@pytest.mark.parametrize("with_index", [False, True], ids=["", "entry metadata"])
def test_apache_reads_a_compacted_ledger(
    tmp_path: Path, apache: ApacheRecords, name: str, with_index: bool
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await new_topic(broker, name)
        for entry in entries():
            await topic.append_message(entry)
        await compact(topic)
        assert topic.compacted is not None and topic.compacted.last is not None
        told = await opened(broker, apache, topic)
        ours = await view(topic)
        assert as_apache_tells(told["entries"]) == taken_apart(ours)
        assert all(each["checksumIsRight"] for each in told["entries"])
        assert {each.get("left", 0) for each in told["entries"]} == {0}
        # Places that are empty are told twice: at each, and by the metadata of the batch.
        partly = [each for _, each in taken_apart(ours) if None in each]
        indexes = [each["metadata"]["compactedBatchIndexe"] for each in told["entries"]]
        assert [each for each in indexes if each] == [
            [index for index, message in enumerate(each) if message is not None] for each in partly
        ]
        assert len(partly) > len(CODECS)
        # Records: Apache's class writes each of them again, byte for byte.
        stored = await records_of(topic)
        assert [base64.b64decode(each["again"]) for each in told["records"]] == stored
        partition = {} if topic.partition < 0 else {"partition": topic.partition}
        for record, (at, _) in zip(told["records"], ours, strict=True):
            wanted = {"ledgerId": at.ledger_id, "entryId": at.entry_id} | partition
            assert record["id"].items() >= wanted.items()
            assert ("partition" in record["id"]) == bool(partition)
        # Where its broker ends, and where it begins by time.
        last, index = await topic.compacted.last_message()
        assert told["lastPosition"] == list(topic.compacted.last)
        assert told["lastMessage"][:3] == [*last, index]
        assert told["since"] == list(await topic.compacted.first_since(SINCE) or ())
        # The node of the ledger.
        metadata = told["metadata"]
        custom = {key: base64.b64decode(value) for key, value in metadata["customMetadata"].items()}
        assert custom.pop("pulsar/compactedTo")
        assert custom == {
            "application": b"pulsar",
            "component": b"compacted-ledger",
            "pulsar/compactedTopic": name.encode(),
        }
        assert metadata["compactedTo"] == f"{last.ledger_id}:{last.entry_id}:{topic.partition}"
        assert (metadata["state"], metadata["password"]) == ("CLOSED", "")
        assert metadata["lastEntryId"] == len(stored) - 1
        assert metadata["length"] == sum(map(len, stored))

    settings = {"brokerEntryMetadataInterceptors": INDEXES} if with_index else {}
    run(tmp_path, scenario, managedLedgerPassword="secret", **settings)


@pytest.mark.parametrize("is_open", [False, True], ids=["node", "ledger"])
def test_apache_finds_the_compacted_ledger_by_the_cursor(
    tmp_path: Path, apache: ApacheRecords, is_open: bool
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_of(broker)
        await append(topic.managed_ledger, *entries())
        await compact(topic)
        assert topic.compacted is not None
        wanted = [{"name": LEDGER_PROPERTY, "value": topic.compacted.ledger_id}]
        horizon = topic.horizon
        path = paths.cursor(topic.managed_ledger.name, COMPACTION)
        if is_open:
            ledger = topic.managed_ledger.cursors[COMPACTION]._ledger
            assert ledger is not None
            node = apache.read("ManagedCursorInfo", await value_at(broker, path))
            assert node["cursorsLedgerId"] == ledger.handle.ledger_id
            handle = await broker.node.client.open_read(ledger.handle.ledger_id)
            entry = (await handle.read_future(ledger._last, ledger._last)).data(0)
            told = apache.read("PositionInfo", entry)
            assert (told["ledgerId"], told["entryId"]) == horizon
        else:
            await broker.topics.deletion.unload(TopicName.get(TOPIC))
            told = apache.read("ManagedCursorInfo", await value_at(broker, path))
            assert told["cursorsLedgerId"] == NO_LEDGER
            assert (told["markDeleteLedgerId"], told["markDeleteEntryId"]) == horizon
        assert [
            {"name": each["name"], "value": each["value"]} for each in told["property"]
        ] == wanted

    run(tmp_path, scenario)


@pytest.mark.parametrize("keyless", [False, True], ids=["", "keyless"])
def test_apaches_compactor_leaves_the_same(
    tmp_path: Path, apache: ApacheRecords, keyless: bool
) -> None:
    """Also of what is compacted already, with what has come since."""

    async def same(broker: Broker, log: Log) -> PersistentTopic:
        topic = await topic_of(broker)
        await compact(topic)
        theirs = apache.compact(TOPIC, log, 1 << 40, BOOKIE_ID, retains_keyless=keyless)
        told = apache.open_compacted(
            theirs.ledger_id, theirs.metadata, theirs.entries, theirs.horizon, SINCE
        )
        assert taken_apart(await view(topic)) == as_apache_tells(told["entries"])
        assert theirs.horizon == topic.horizon == topic.last_confirmed
        ours = await opened(broker, apache, topic)
        assert ours["since"] == told["since"]
        for one, other in zip(ours["entries"], told["entries"], strict=True):
            assert fields_of(one) == fields_of(other)
        assert theirs.properties == {LEDGER_PROPERTY: theirs.ledger_id}
        assert topic.compacted is not None
        mine = decode(await value_at(broker, paths.ledger(topic.compacted.ledger_id)))
        assert decode(theirs.metadata).custom_metadata.keys() == mine.custom_metadata.keys()
        return topic

    async def scenario(broker: Broker) -> None:
        topic = await topic_of(broker)
        await append(topic.managed_ledger, *entries())
        topic = await same(broker, await log_of(topic))
        before = await view(topic)
        news = [single("own 1", b"new"), batch(Sent("mixed", b""), Sent("k0", b"new")), *entries()]
        await append(topic.managed_ledger, *news)
        behind = [each for each in await log_of(topic) if each[0] > topic.horizon]
        await same(broker, before + behind)

    run(tmp_path, scenario, topicCompactionRetainNullKey=keyless)


# --- theirs, read by ours -------------------------------------------------------------------------


async def written(broker: Broker, compacted: Compacted) -> None:
    """Stores a ledger that Apache's classes wrote, as their broker would: the node is theirs."""
    client, path = broker.node.client, paths.ledger(compacted.ledger_id)
    writer = _Writer()
    put = await broker.node.store.put(path, compacted.metadata)
    metadata = decode(compacted.metadata)
    writer.handle = client._handle(compacted.ledger_id, metadata, put.version, writer)
    for entry in compacted.entries:
        broker.node.turn.run(writer.append, EntryRun.of(entry))
    await writer.settle()
    assert metadata.is_closed
    assert (metadata.last_entry_id, metadata.length) == (
        writer.handle.last_add_confirmed,
        writer.handle.length,
    )


@pytest.mark.parametrize("name", [TOPIC, PARTITION], ids=["plain", "partition"])
def test_a_compacted_ledger_that_apache_wrote_is_read_and_compacted_on(
    tmp_path: Path, apache: ApacheRecords, name: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await new_topic(broker, name)
        await append(topic.managed_ledger, *entries())
        await topic.compaction_subscription()
        log = await log_of(topic)
        ledger_id = await broker.node.client._ids.next_id()
        theirs = apache.compact(name, log, ledger_id, BOOKIE_ID, partition=topic.partition)
        await written(broker, theirs)
        # The cursor, as their broker writes it when it closes the topic.
        await broker.topics.deletion.unload(TopicName.get(name))
        cursor = apache.write(
            "ManagedCursorInfo",
            {
                "cursorsLedgerId": NO_LEDGER,
                "markDeleteLedgerId": theirs.horizon[0],
                "markDeleteEntryId": theirs.horizon[1],
                "property": [{"name": key, "value": n} for key, n in theirs.properties.items()],
                "individualDeletedMessage": [],
                "batchedEntryDeletionIndexInfo": [],
                "cursorProperty": [],
            },
        )
        path = paths.cursor(topic.managed_ledger.name, COMPACTION)
        before = await broker.node.store.get(path)
        assert before is not None
        await broker.node.store.put(path, cursor.value, before.version)
        topic = await topic_of(broker, name)
        await topic.trim()
        assert topic.entries == 0, "the ledger stands for the log"
        assert topic.compacted is not None and topic.compacted.ledger_id == ledger_id
        assert topic.horizon == theirs.horizon
        told = await opened(broker, apache, topic)
        ours = await view(topic)
        assert len(ours) == len(theirs.entries)
        assert taken_apart(ours) == as_apache_tells(told["entries"])
        last, index = await topic.compacted.last_message()
        assert [*last, index] == told["lastMessage"][:3]
        # The next compaction builds upon it, and deletes it.
        await append(topic.managed_ledger, single("own 1", b""), single("one", b"newest"))
        await compact(topic)
        assert await compacted_ledgers(broker) == [topic.compacted.ledger_id]
        wanted = {each.key: each.value for _, found in taken_apart(ours) for each in found if each}
        del wanted["own 1"]
        found = taken_apart(await view(topic))
        assert {each.key: each.value for _, some in found for each in some if each} == wanted | {
            "one": b"newest"
        }

    run(tmp_path, scenario)

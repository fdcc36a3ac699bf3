"""Records of schemas, of sequence ids and of epochs: read by Apache Pulsar's own classes as this
broker has written them, and the other way round.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from harness.apache_records import ApacheRecords

from one_broker import TOPIC, Broker, run
from pyxbroker.base.system_cursors import DEDUPLICATION_CURSOR
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.mledger.cursor import NO_LEDGER
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.schemas import records
from pyxbroker.schemas.registry import Rules
from pyxbroker.schemas.values import (
    IndexEntry,
    Schema,
    SchemaType,
    StoredSchema,
    halves,
    key_value_data,
)
from steps import run_steps
from test_deduplication import publish, receipts

pytestmark = pytest.mark.interop

NAME = TopicName.get(TOPIC)
ID = NAME.schema_name
LOG = NAME.managed_ledger_name
STORED = [each for each in SchemaType if each is not SchemaType.AUTO_CONSUME]
DEFINITION = b'{"type":"record","name":"R","fields":[{"name":"a\\u2603","type":"int"}]}'
EPOCH = "pulsar.topic.epoch"  # PersistentTopic.TOPIC_EPOCH_PROPERTY_NAME
ODD = "p\N{SNOWMAN} \x00\n/:="  # a name may have any characters


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def avro(*fields: str) -> Schema:
    found = [{"name": each, "type": "string", "default": ""} for each in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": found}).encode()
    return Schema(SchemaType.AVRO, data)


async def value_at(broker: Broker, path: str) -> bytes:
    found = await broker.node.store.get(path)
    assert found is not None, path
    return found.value


async def entry_of(broker: Broker, ledger_id: int, entry_id: int = 0) -> bytes:
    handle = await broker.node.client.open_read(ledger_id)
    return (await handle.read_future(entry_id, entry_id)).data(0)


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORED, ids=str)
def test_a_schema_of_each_type_is_the_same_to_both(apache: ApacheRecords, kind: SchemaType) -> None:
    schema = Schema(kind, DEFINITION, (("", "empty"), ("k\N{SNOWMAN}", "v")))
    for deleted in (False, True):
        fields = {
            "type": str(kind),
            "data": text(schema.data),
            "user": "me\N{SNOWMAN}",
            "timestamp": (1 << 62) + deleted,
            "isDeleted": deleted,
            "props": dict(schema.properties),
        }
        stored = StoredSchema(schema, fields["user"], fields["timestamp"], deleted, 7)
        written = apache.write("StoredSchema", fields)
        assert written.fields == fields
        assert records.decode_schema(written.value, 7) == stored
        assert apache.read("StoredSchema", records.encode_schema(ID, stored)) == fields


def test_the_records_around_a_schema_are_the_same_to_both(apache: ApacheRecords) -> None:
    info = apache.write("SchemaInfo", {"type": "KEYVALUE"})
    schema = records.decode_schema(info.value, 3)
    again = records.encode_schema(info.fields["schemaId"], schema)
    assert apache.read("SchemaInfo", again) == info.fields
    # Versions in a node, and in the entry of each.
    entries = [IndexEntry(n, 10**12 + n, n, bytes((n,)) * 32 * (n != 1)) for n in range(4)]
    index = [
        {
            "version": each.version,
            "position": {"ledgerId": each.ledger_id, "entryId": each.entry_id},
            "hash": text(each.hash),
        }
        for each in entries
    ]
    locator = apache.write("SchemaLocator", {"info": index[-1], "index": index})
    assert locator.fields == {"info": index[-1], "index": index}
    assert run_steps(records.decode_locator(locator.value)) == entries
    before = records.encode_locator(entries[0], b"")
    for each in entries[1:]:
        before = records.encode_locator(each, records.index_of(before))
    assert apache.read("SchemaLocator", before) == locator.fields
    entry = apache.write("SchemaEntry", {"schemaData": text(info.value), "index": index})
    assert records.decode_entry(entry.value) == info.value
    assert apache.read("SchemaEntry", records.encode_entry(info.value, entries)) == entry.fields
    # A first version names one before it that is none.
    first = apache.read("SchemaEntry", records.encode_entry(info.value, ()))
    none = {"version": 0, "position": {"ledgerId": -1, "entryId": -1}, "hash": ""}
    assert first["index"] == [none]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_key_and_value_of_a_schema_are_the_same_to_both(
    apache: ApacheRecords, encoding: str
) -> None:
    kinds = [(SchemaType.STRING, b""), (SchemaType.AVRO, DEFINITION), (SchemaType.INT64, b"")]
    for key, key_definition in kinds:
        for value, value_definition in kinds:
            written = apache.write(
                "KeyValueSchema",
                {
                    "encoding": encoding,
                    "key": {"type": str(key), "data": text(key_definition), "props": {"a": "b"}},
                    "value": {"type": str(value), "data": text(value_definition)},
                },
            )
            schema = records.decode_schema(written.value, 0).schema
            assert schema.type is SchemaType.KEY_VALUE
            assert dict(schema.properties)["kv.encoding.type"] == encoding
            assert halves(schema) == (Schema(key, key_definition), Schema(value, value_definition))
            ours = schema._replace(data=key_value_data(key_definition, value_definition))
            stored = records.encode_schema(ID, StoredSchema(ours, "", 0, deleted=False))
            told = apache.read("KeyValueSchema", stored)
            assert told == written.fields
            assert (told["encoding"], told["key"]["type"]) == (encoding, str(key))
            assert told["key"]["schema"] == text(key_definition)


def test_apache_reads_a_history_of_schemas(tmp_path: Path, apache: ApacheRecords) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        rules = Rules("FULL", user="me")
        first = avro("a")._replace(properties=(("k", "v"),))
        assert await schemas.find_or_create(ID, first, rules) == 0
        assert await schemas.find_or_create(ID, avro("a", "b"), rules) == 1
        assert await schemas.delete(ID, "you") == 2
        assert await schemas.find_or_create(ID, avro("c"), rules) == 3
        locator = apache.read("SchemaLocator", await value_at(broker, paths.schema(ID)))
        index = locator["index"]
        assert locator["info"] == index[3] and [each["version"] for each in index] == [0, 1, 2, 3]
        wanted = [first, avro("a", "b"), Schema(SchemaType.NONE), avro("c")]
        for each, schema in zip(index, wanted, strict=True):
            is_deletion = schema.type is SchemaType.NONE
            assert each["hash"] == ("" if is_deletion else text(schema.hash))
            at = each["position"]
            entry = await entry_of(broker, at["ledgerId"], at["entryId"])
            told = apache.read("SchemaEntry", entry)
            assert told["index"][: each["version"]] == index[: each["version"]]
            record = base64.b64decode(told["schemaData"])
            assert apache.read("SchemaInfo", record)["schemaId"] == ID
            found = apache.read("StoredSchema", record)
            assert found.pop("timestamp") > 1_700_000_000_000
            assert found == {
                "type": str(schema.type),
                "data": text(schema.data),
                "user": "you" if is_deletion else "me",
                "isDeleted": is_deletion,
                "props": dict(schema.properties),
            }

    run(tmp_path, scenario)


def test_a_history_of_schemas_that_apache_wrote_is_read_and_goes_on(
    tmp_path: Path, apache: ApacheRecords
) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        history = [avro("a"), Schema(SchemaType.NONE), avro("b"), avro("b", "c")]
        index: list[dict[str, Any]] = []
        for version, schema in enumerate(history):
            is_deletion = schema.type is SchemaType.NONE
            info = apache.write(
                "StoredSchema",
                {"type": str(schema.type), "data": text(schema.data), "isDeleted": is_deletion},
            )
            entry = apache.write("SchemaEntry", {"schemaData": text(info.value), "index": index})
            ledger_id = (await schemas._storage._write(ID, entry.value)).ledger_id
            digest = b"" if is_deletion else schema.hash
            position = {"ledgerId": ledger_id, "entryId": 0}
            index.append({"version": version, "position": position, "hash": text(digest)})
        locator = apache.write("SchemaLocator", {"info": index[-1], "index": index})
        await broker.node.store.put(paths.schema(ID), locator.value)
        assert [each.schema async for each in schemas.every(ID)] == history[2:]
        assert await schemas.get(ID, 0) is None, "it was deleted since"
        client = await broker.client()
        answer = await client.request(pb.CommandGetSchema(topic=TOPIC), "getSchemaResponse")
        assert answer.schema.schema_data == history[3].data
        sent = pb.Schema(name="s", schema_data=history[2].data, type=pb.Schema.Avro)
        produced = await client.produce(schema=sent)
        assert produced.schema_version == (2).to_bytes(8, "big")
        # One more of ours, and what was there stays as it was.
        assert await schemas.find_or_create(ID, avro("b", "c", "d"), Rules("FULL")) == 4
        told = apache.read("SchemaLocator", await value_at(broker, paths.schema(ID)))
        assert told["index"][:4] == index and told["info"] == told["index"][4]

    run(tmp_path, scenario)


# --- sequence ids ---------------------------------------------------------------------------------

CURSOR = DEDUPLICATION_CURSOR
IDS = {ODD: 41, "first": 0, "most": (1 << 63) - 1}
SETTINGS = {"brokerDeduplicationEnabled": True, "brokerDeleteInactiveTopicsEnabled": False}


async def publish_each(broker: Broker, ids: dict[str, int]) -> PersistentTopic:
    """One message of each of these producers."""
    client = await broker.client()
    for number, (name, sequence_id) in enumerate(ids.items()):
        await client.produce(number, producer_name=name)
        publish(client, name, sequence_id, producer_id=number)
    await receipts(client, len(ids))
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    return topic


async def state_of(broker: Broker, apache: ApacheRecords) -> dict[str, Any]:
    """The node of the cursor that has the ids, as Apache's class reads it."""
    return apache.read("ManagedCursorInfo", await value_at(broker, paths.cursor(LOG, CURSOR)))


def test_apache_reads_the_sequence_ids_of_a_topic(tmp_path: Path, apache: ApacheRecords) -> None:
    def ids(told: list[dict[str, Any]]) -> list[tuple[str, int]]:
        """In the order of IDS: theirs says nothing."""
        found = [(each["name"], each["value"]) for each in told]
        return sorted(found, key=lambda each: list(IDS).index(each[0]))

    wanted = list(IDS.items())

    async def scenario(broker: Broker) -> None:
        topic = await publish_each(broker, IDS)
        assert topic.deduplication is not None
        await topic.deduplication.snapshot()
        # While the topic is open the state is the last entry of a ledger.
        ledger = topic.managed_ledger.cursors[CURSOR]._ledger
        assert ledger is not None
        node = await state_of(broker, apache)
        assert node["cursorsLedgerId"] == ledger.handle.ledger_id
        entry = await entry_of(broker, ledger.handle.ledger_id, ledger._last)
        told = apache.read("PositionInfo", entry)
        assert ids(told["property"]) == wanted
        assert (told["ledgerId"], told["entryId"]) == topic.last_confirmed
        # When it is closed, it is the node.
        await broker.topics.deletion.unload(NAME)
        node = await state_of(broker, apache)
        assert node["cursorsLedgerId"] == NO_LEDGER and ids(node["property"]) == wanted
        at = Position(node["markDeleteLedgerId"], node["markDeleteEntryId"])
        assert at == topic.last_confirmed

    run(tmp_path, scenario, **SETTINGS)


@pytest.mark.parametrize("in_ledger", [False, True], ids=["node", "ledger"])
def test_sequence_ids_that_apache_wrote_are_known(
    tmp_path: Path, apache: ApacheRecords, in_ledger: bool
) -> None:
    ids = IDS | {"negative": -2, "least": -(1 << 63) + 1}
    properties = [{"name": name, "value": value} for name, value in ids.items()]

    async def scenario(broker: Broker) -> None:
        at = (await publish_each(broker, {"other": 3})).last_confirmed
        await broker.topics.deletion.unload(NAME)
        position = {"ledgerId": at.ledger_id, "entryId": at.entry_id}
        nothing: dict[str, Any] = {
            "individualDeletedMessage": [],
            "batchedEntryDeletionIndexInfo": [],
        }
        fields = nothing | {"cursorsLedgerId": NO_LEDGER, "cursorProperty": []}
        if in_ledger:
            entry = apache.write(
                "PositionInfo",
                position | nothing | {"property": properties, "individualDeletedMessageRange": []},
            )
            handle = await broker.topics.schemas._storage._write(ID, entry.value)
            fields["cursorsLedgerId"] = handle.ledger_id
            fields["property"] = [{"name": "older", "value": 1}]
        else:
            fields |= {
                "markDeleteLedgerId": at.ledger_id,
                "markDeleteEntryId": at.entry_id,
                "property": properties,
            }
        node = apache.write("ManagedCursorInfo", fields)
        path = paths.cursor(LOG, CURSOR)
        before = await broker.node.store.get(path)
        assert before is not None
        await broker.node.store.put(path, node.value, before.version)
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic) and topic.deduplication is not None
        assert {name: topic.last_sequence_id(name) for name in ids} == ids
        assert topic.last_sequence_id("older") == -1
        # And they are what is asked when something is sent again.
        client = await broker.client()
        answer = await client.produce(producer_name=ODD)
        assert answer.last_sequence_id == ids[ODD]
        publish(client, ODD, ids[ODD], ids[ODD] + 1)
        assert [is_stored for _, is_stored in await receipts(client, 2)] == [False, True]

    run(tmp_path, scenario, **SETTINGS)


# --- epochs ---------------------------------------------------------------------------------------


def test_the_epoch_of_a_topic_is_the_same_to_both(tmp_path: Path, apache: ApacheRecords) -> None:
    async def take(broker: Broker) -> int:
        client = await broker.client()
        answer = await client.produce(producer_access_mode=pb.Exclusive)
        await client.request(pb.CommandCloseProducer(producer_id=1), "success")
        epoch: int = answer.topic_epoch
        return epoch

    async def properties(broker: Broker) -> dict[str, str]:
        told = apache.read("ManagedLedgerInfo", await value_at(broker, paths.managed_ledger(LOG)))
        return {each["key"]: each["value"] for each in told["property"]}

    async def scenario(broker: Broker) -> None:
        for expected in (0, 1):
            assert await take(broker) == expected
            assert await properties(broker) == {EPOCH: str(expected)}
        await publish_each(broker, {"p": 0})
        await broker.topics.deletion.unload(NAME)
        # As its ManagedLedgerImpl.setProperty does: all that is there, and the epoch.
        path = paths.managed_ledger(LOG)
        found = await broker.node.store.get(path)
        assert found is not None
        whole = apache.read("ManagedLedgerInfo", found.value)
        whole["property"] = [{"key": "k", "value": "v"}, {"key": EPOCH, "value": str(1 << 40)}]
        assert whole["ledgerInfo"] and "terminatedPosition" not in whole
        whole["ledgerInfo"] = [
            {"offloadContext": None, "property": []} | each for each in whole["ledgerInfo"]
        ]
        written = apache.write("ManagedLedgerInfo", whole | {"terminatedPosition": None})
        assert written.fields["property"] == whole["property"]
        await broker.node.store.put(path, written.value, found.version)
        assert await take(broker) == (1 << 40) + 1
        assert await properties(broker) == {"k": "v", EPOCH: str((1 << 40) + 1)}

    run(tmp_path, scenario, **SETTINGS)

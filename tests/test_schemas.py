"""The schema registry: what is stored of schemas, who may bring which, and bad days."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from loop_turns import counted_turns
from one_bookie import until
from one_broker import TOPIC, Broker, Client, run
from pyxbroker.base.errors import (
    IncompatibleSchema,
    InvalidSchema,
    PersistenceError,
    ServiceNotReady,
)
from pyxbroker.base.json_weight import TOKENS_MAX
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import NoSuchLedger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError, Put, Unavailable
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.proto import SchemaStorageFormat
from pyxbroker.schemas import avro as avro_schemas
from pyxbroker.schemas import compatibility, records
from pyxbroker.schemas.protobuf_native import FILES_MAX
from pyxbroker.schemas.registry import NOT_FOUND, Rules, SchemaRegistry
from pyxbroker.schemas.values import (
    SCHEMA_BYTES_MAX,
    VERSIONS_MAX,
    IndexEntry,
    Schema,
    SchemaType,
    StoredSchema,
    key_value_data,
)
from steps import run_steps
from test_admin_topics import Rest

ID = "public/default/t"
PATH = paths.schema(ID)
REST_PATH = f"/admin/v2/schemas/{ID}"
FULL = Rules("FULL")
TRANSITIVE = Rules("FULL_TRANSITIVE")


def avro(*fields: str, kind: SchemaType = SchemaType.AVRO) -> Schema:
    """A record with optional fields."""
    found = [{"name": each, "type": "string", "default": ""} for each in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": found}).encode()
    return Schema(kind, data)


def strict(*fields: str) -> Schema:
    """The same without defaults."""
    found = [{"name": each, "type": "string"} for each in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": found}).encode()
    return Schema(SchemaType.AVRO, data)


def sent(schema: Schema) -> Any:
    properties = [pb.KeyValue(key=key, value=value) for key, value in schema.properties]
    return pb.Schema(
        name="s", schema_data=schema.data, type=int(schema.type), properties=properties
    )


# --- what is stored -------------------------------------------------------------------------------


def test_versions_are_stored_as_pulsar_does(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        first = Schema(SchemaType.JSON, avro("a").data, (("k", "v"),))
        assert await schemas.find_or_create(ID, first, FULL._replace(user="me")) == 0
        assert await schemas.find_or_create(ID, avro("a", "b", kind=SchemaType.JSON), FULL) == 1
        assert await schemas.delete(ID) == 2
        found = await broker.node.store.get(PATH)
        assert found is not None
        locator = SchemaStorageFormat.SchemaLocator.FromString(found.value)
        assert [each.version for each in locator.index] == [0, 1, 2]
        assert locator.info == locator.index[2]
        assert [len(each.hash) for each in locator.index] == [32, 32, 0]
        assert locator.index[0].hash == first.hash
        client = broker.node.client
        for number, each in enumerate(locator.index):
            ledger = await client.open_read(each.position.ledgerId)
            batch = await ledger.read_future(0, 0)
            entry = SchemaStorageFormat.SchemaEntry.FromString(batch.data(0))
            before = [(at.version, at.position.ledgerId) for at in entry.index]
            places = [(at.version, at.position.ledgerId) for at in locator.index]
            assert before == (places[:number] or [(0, -1)])
            metadata = (await client._read(each.position.ledgerId)).metadata
            assert metadata.is_closed
            assert metadata.custom_metadata == {
                "application": b"pulsar",
                "component": b"schema",
                "pulsar/schemaId": ID.encode(),
            }
        assert await schemas.get(ID, 0) is None
        deleted = await schemas.latest(ID)
        assert deleted is not None
        assert (deleted.deleted, deleted.schema) == (True, Schema(SchemaType.NONE))

    run(tmp_path, scenario)


def test_operations_on_schemas_are_counted_by_namespace(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        assert broker.topics.schema_counts == {}
        await schemas.find_or_create(ID, avro("a"), FULL)
        await schemas.find_or_create(ID, avro("a", "b"), FULL)
        with pytest.raises(IncompatibleSchema):
            await schemas.find_or_create(ID, strict("c"), FULL)
        await schemas.latest(ID)
        await schemas.delete(ID)
        [(namespace, counts)] = broker.topics.schema_counts.items()
        assert namespace == ID.rpartition("/")[0]
        assert counts.done == {"get": 1, "put": 2, "del": 1}
        assert counts.failed == {"get": 0, "put": 1, "del": 0}
        assert (counts.compatible, counts.incompatible) == (1, 1)
        assert all(seconds > 0 for seconds in counts.seconds.values())

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", set(SchemaType) - {SchemaType.AUTO_CONSUME})
def test_every_type_is_stored_by_its_number(kind: SchemaType) -> None:
    stored = StoredSchema(Schema(kind, b"d", (("k", "v"), ("l", ""))), "u", 7, False, 3)
    data = records.encode_schema(ID, stored)
    assert records.decode_schema(data, 3) == stored
    number = 22 if kind is SchemaType.EXTERNAL else kind + 1
    assert b"\x18" + bytes((number,)) in data


def test_a_locator_grows_by_what_is_added() -> None:
    entries = [IndexEntry(n, 1_000 + n, 0, bytes([n]) * 32) for n in range(3)]
    value = b""
    for each in entries:
        value = records.encode_locator(each, records.index_of(value) if value else b"")
    whole = SchemaStorageFormat.SchemaLocator.FromString(value)
    assert run_steps(records.decode_locator(value)) == entries
    assert whole.SerializeToString() == value
    # Of somebody who writes fields in another order.
    shuffled = value[2 + value[1] :] + value[: 2 + value[1]]
    assert records.index_of(shuffled) == records.index_of(value)


@pytest.mark.parametrize("value", [b"", b"\xff", b"locator"])
def test_what_is_no_record_is_told_as_one(tmp_path: Path, value: bytes) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.node.store.put(PATH, value)
        client = await broker.client()
        answer = await client.produce(schema=sent(avro("a")))
        assert answer.error == pb.MetadataError
        assert (await client.produce()).producer_name
        # It is deleted all the same.
        await broker.topics.schemas.delete_storage(ID)
        assert (await client.produce(2, schema=sent(avro("a")))).schema_version == bytes(8)

    run(tmp_path, scenario)


# --- interruptions --------------------------------------------------------------------------------


class Interrupted(Exception):
    """The broker is gone."""


@pytest.mark.parametrize("where", ["create_for_schema", "close_named", "put_all"])
def test_an_interruption_leaves_the_schema_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def interrupted(*_: Any) -> Any:
        raise Interrupted

    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        assert await schemas.find_or_create(ID, avro("a"), FULL) == 0
        with monkeypatch.context() as patch:
            if where == "put_all":
                close_named = LedgerClient.close_named

                async def close(*arguments: Any) -> int:
                    patch.setattr(broker.node.store, "put_all", interrupted)
                    return await close_named(*arguments)

                patch.setattr(LedgerClient, "close_named", close)
            else:
                patch.setattr(LedgerClient, where, interrupted)
            with pytest.raises(Interrupted):
                await schemas.find_or_create(ID, avro("a", "b"), FULL)
        # For who comes then, be it another broker.
        for each in (schemas, SchemaRegistry(broker.node.store, broker.node.client, lambda: None)):
            assert [found.version async for found in each.every(ID)] == [0]
        assert await schemas.find_or_create(ID, avro("a", "b"), FULL) == 1

    run(tmp_path, scenario)


def test_a_version_whose_node_was_written_without_an_answer_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client, schemas, store = await broker.client(), broker.topics.schemas, broker.node.store
        assert await schemas.find_or_create(ID, avro("a"), FULL) == 0
        await client.produce(1)
        put_all = store.put_all

        async def unanswered(puts: Sequence[Put]) -> Any:
            done = await put_all(puts)
            if puts[0].path == PATH:
                raise Unavailable("no answer")
            return done

        with monkeypatch.context() as patch:
            patch.setattr(store, "put_all", unanswered)
            assert (await client.produce(2, schema=sent(avro("a", "b")))).error == pb.MetadataError
        for number in (3, 4):
            answer = await client.produce(number, schema=sent(avro("a", "b")))
            assert answer.schema_version == (1).to_bytes(8, "big")
        assert [each.version async for each in schemas.every(ID)] == [0, 1]
        # A deletion without an answer is one, too.
        with monkeypatch.context() as patch:
            patch.setattr(store, "put_all", unanswered)
            with pytest.raises(Unavailable):
                await schemas.delete(ID)
        assert not await schemas.has_schema(ID)
        assert len(await schemas.index(ID)) == 3

    run(tmp_path, scenario)


def test_who_comes_second_to_the_node_finds_what_the_first_one_stored(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        one = broker.topics.schemas
        other = SchemaRegistry(broker.node.store, broker.node.client, lambda: None)
        assert await one.find_or_create(ID, avro("a"), FULL) == 0
        assert await other.find_or_create(ID, avro("a"), FULL) == 0
        versions = await asyncio.gather(
            *(each.find_or_create(ID, avro("a", "b"), FULL) for each in (one, other) * 5)
        )
        assert set(versions) == {1}
        # Of ledgers that were written for nothing, none is left.
        ledgers = {each.ledger_id for each in await one.index(ID)}
        for ledger_id in range(max(ledgers) + 3):
            if ledger_id not in ledgers:
                with pytest.raises(NoSuchLedger):
                    await broker.node.client._read(ledger_id)

    run(tmp_path, scenario)


def test_a_version_that_is_lost_is_told_and_force_begins_anew(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, schemas = await broker.client(), broker.topics.schemas
        assert (await client.produce(1, schema=sent(avro("a")))).schema_version == bytes(8)
        (entry,) = await schemas.index(ID)
        await broker.node.client.delete(entry.ledger_id)
        answer = await client.request(pb.CommandGetSchema(topic=TOPIC), "getSchemaResponse")
        assert answer.error_code == PersistenceError.code
        assert (await client.produce(2, schema=sent(avro("a", "b")))).error == pb.PersistenceError
        await schemas.delete_storage(ID)
        assert (await client.produce(2, schema=sent(avro("a", "b")))).schema_version == bytes(8)

    run(tmp_path, scenario)


# --- deletion -------------------------------------------------------------------------------------


def test_a_deleted_topic_takes_its_schema_and_its_ledgers_along(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for number, fields in enumerate(["a", "ab", "abc"]):
            assert (await client.produce(number, schema=sent(avro(*fields)))).schema_version
        ledgers = [each.ledger_id for each in await broker.topics.schemas.index(ID)]
        await broker.topics.deletion.delete_by_name(TopicName.get(TOPIC), force=True)
        assert await broker.node.store.get(PATH) is None
        for ledger_id in ledgers:
            with pytest.raises(NoSuchLedger):
                await broker.node.client._read(ledger_id)

    run(tmp_path, scenario)


def test_a_deleted_partition_leaves_the_schema_to_the_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get(TOPIC)
        await broker.topics.partitioned.create(name, 2)
        client = await broker.client()
        answer = await client.produce(1, topic=f"{TOPIC}-partition-0", schema=sent(avro("a")))
        assert answer.schema_version == bytes(8)
        await broker.topics.deletion.delete_by_name(name.partition(0), force=True)
        assert await broker.topics.schemas.has_schema(ID)
        await broker.topics.partitioned.delete(name, force=True)
        assert not await broker.topics.schemas.has_schema(ID)

    run(tmp_path, scenario)


def test_a_schema_that_comes_while_its_topic_is_deleted_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        topic = await broker.topic()
        goes_on, is_held = asyncio.Event(), asyncio.Event()
        storage = broker.topics.schemas._storage
        versions = storage.versions

        async def slow(schema_id: str) -> Any:
            found = await versions(schema_id)
            if not is_held.is_set():
                is_held.set()
                await goes_on.wait()
            return found

        monkeypatch.setattr(storage, "versions", slow)
        late = asyncio.ensure_future(client.produce(1, schema=sent(avro("late"))))
        await is_held.wait()
        await broker.topics.deletion.delete(topic)
        goes_on.set()
        assert (await late).error in (pb.ServiceNotReady, pb.TopicNotFound)
        assert await broker.node.store.get(PATH) is None
        # Who makes the topic again begins with a schema of its own.
        answer = await other.produce(1, schema=sent(avro("other")))
        assert answer.schema_version == bytes(8)

    run(tmp_path, scenario)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_topic_that_may_still_be_used_is_not_deleted(tmp_path: Path, domain: str) -> None:
    """Its owner fences it first, in the turn in which it has seen that nobody uses it."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(f"{domain}://public/default/t")
        with pytest.raises(AssertionError, match="fences a topic before"):
            await topic.delete()
        assert not topic.is_gone
        await broker.topics.deletion.delete(topic)
        assert topic.is_gone

    run(tmp_path, scenario)


def test_nobody_begins_to_use_a_topic_whose_schema_is_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        topic = await broker.topic()
        goes_on = asyncio.Event()

        async def slow(name: TopicName) -> None:
            await goes_on.wait()

        async def failing(name: TopicName) -> None:
            raise MetadataError("away")

        monkeypatch.setattr(broker.topics.deletion, "forget_schema", failing)
        with pytest.raises(MetadataError):
            await broker.topics.deletion.delete(topic)
        assert (await client.produce(1)).producer_name, "what was not deleted can be used"
        monkeypatch.setattr(broker.topics.deletion, "forget_schema", slow)
        deletion = asyncio.ensure_future(broker.topics.deletion.delete(topic))
        await asyncio.sleep(0)
        assert (await client.produce(2)).error == pb.ServiceNotReady
        # Nor does anybody else delete it, who might make it usable again.
        with pytest.raises(ServiceNotReady, match="is being deleted"):
            await asyncio.wait_for(broker.topics.deletion.delete(topic), 10)
        goes_on.set()
        await deletion
        assert not await broker.topics.registry.exists(topic.name)

    run(tmp_path, scenario)


def test_a_topic_leaves_its_schema_to_that_of_its_name_in_the_other_domain(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        other = f"non-{TOPIC}"
        assert (await client.produce(1, schema=sent(avro("a")))).schema_version == bytes(8)
        assert (await client.produce(2, topic=other)).producer_name
        await broker.topics.deletion.delete_by_name(TopicName.get(other), force=True)
        assert await broker.topics.schemas.has_schema(ID)
        await broker.topics.deletion.delete_by_name(TopicName.get(TOPIC), force=True)
        assert not await broker.topics.schemas.has_schema(ID)

    run(tmp_path, scenario)


# --- commands -------------------------------------------------------------------------------------


async def get(client: Client, version: bytes | None = None) -> Any:
    command = pb.CommandGetSchema(topic=TOPIC, request_id=0)
    if version is not None:
        command.schema_version = version
    return await client.request(command, "getSchemaResponse")


def test_a_version_that_is_none_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert (await get(client)).error_code == pb.TopicNotFound
        await client.produce(schema=sent(avro("a")))
        assert (await get(client, bytes(8))).schema_version == bytes(8)
        for version, code in [
            (b"", pb.IncompatibleSchema),
            (b"\0", pb.UnknownError),
            (b"\xff" * 8, pb.TopicNotFound),
            (bytes(7) + b"\1", pb.TopicNotFound),
        ]:
            answer = await get(client, version)
            assert (answer.HasField("error_code"), answer.error_code) == (True, code)

    run(tmp_path, scenario)


def test_a_producer_that_asks_again_gets_its_version_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for _ in range(2):
            assert (await client.produce(schema=sent(avro("a")))).schema_version == bytes(8)

    run(tmp_path, scenario)


def test_without_schemas_nothing_of_them_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        asked = []
        read = broker.node.store.get
        monkeypatch.setattr(broker.node.store, "get", lambda path: asked.append(path) or read(path))
        assert (await client.produce()).schema_version == b""
        await client.subscribe()
        assert [each for each in asked if each.startswith(paths.SCHEMAS)] == []
        assert "schemas" not in vars(broker.topics)

    run(tmp_path, scenario)


def test_a_consumer_that_takes_any_schema_makes_no_use_of_the_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        any_schema = pb.Schema(name="", schema_data=b"", type=pb.Schema.AutoConsume)
        await client.subscribe(1, schema=any_schema)
        assert not await broker.topics.schemas.has_schema(ID)
        await client.subscribe(2, schema=sent(avro("a")))
        assert await broker.topics.schemas.has_schema(ID)

    run(tmp_path, scenario)


def test_a_consumer_brings_no_schema_to_a_topic_that_is_used_without_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        answer = await client.subscribe(2, schema=sent(avro("a")))
        assert answer.error == pb.IncompatibleSchema
        assert "active topic with empty(BYTES) schema: new schema type AVRO" in answer.message
        assert not await broker.topics.schemas.has_schema(ID)

    run(tmp_path, scenario)


def test_who_takes_any_schema_is_counted_and_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    class CountedLooks:
        """In the place of an attribute of consumers."""

        def __set__(self, consumer: Any, value: bool) -> None:
            vars(consumer)["takes_any"] = value

        def __get__(self, consumer: Any, owner: type) -> bool:
            nonlocal looks
            looks += 1
            return bool(vars(consumer).get("takes_any"))

    monkeypatch.setattr(Consumer, "auto_consume", CountedLooks())
    any_schema = pb.Schema(name="", schema_data=b"", type=pb.Schema.AutoConsume)

    async def scenario(broker: Broker) -> None:
        nonlocal looks
        client = await broker.client()
        for number in range(50):
            await client.subscribe(number, permits=0, schema=any_schema)
        looks = 0
        answer = await client.subscribe(50, schema=sent(Schema(SchemaType.AVRO, b"{")))
        assert hasattr(answer, "error")
        assert looks <= 2
        await client.subscribe(50, schema=sent(avro("a")))
        assert looks <= 4
        assert await broker.topics.schemas.has_schema(ID)

    run(tmp_path, scenario)


def test_who_takes_any_schema_is_counted_until_it_goes(tmp_path: Path) -> None:
    any_schema = pb.Schema(name="", schema_data=b"", type=pb.Schema.AutoConsume)

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client, other = await broker.client(), await broker.client()

        def counts() -> tuple[int, int]:
            return topic.consumer_count, topic.auto_consumer_count

        for number in range(4):
            await client.subscribe(number, permits=0, schema=any_schema)
        await other.subscribe(1, permits=0)
        await other.subscribe(2, permits=0, subscription="r", schema=any_schema)
        assert counts() == (6, 5)
        await client.request(pb.CommandCloseConsumer(consumer_id=0), "success")
        assert counts() == (5, 4)
        await client.request(pb.CommandSeek(consumer_id=1, message_publish_time=0), "success")
        assert counts() == (1, 1)
        await client.subscribe(1, permits=0)
        await client.subscribe(2, permits=0, schema=any_schema)
        assert counts() == (3, 2)
        client.far.close()
        await until(lambda: counts() == (1, 1))
        other.far.close()
        await until(lambda: counts() == (0, 0))

    run(tmp_path, scenario)


def test_nothing_is_registered_while_nothing_can_be_stored(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        assert await schemas.find_or_create(ID, avro("a"), FULL) == 0

        def no_space() -> None:
            raise PersistenceError("There is no space.")

        schemas._check_space = no_space
        assert await schemas.find_or_create(ID, avro("a"), FULL) == 0
        with pytest.raises(PersistenceError):
            await schemas.find_or_create(ID, avro("a", "b"), FULL)

    run(tmp_path, scenario)


# --- strategies -----------------------------------------------------------------------------------


def test_a_refusal_names_version_and_field(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        both = Rules("BACKWARD_TRANSITIVE")
        assert await schemas.find_or_create(ID, strict("a", "b"), both) == 0
        assert await schemas.find_or_create(ID, strict("a"), both) == 1
        wrong = json.loads(strict("a", "b").data)
        wrong["fields"][1].update(type="int", default=0)
        with pytest.raises(IncompatibleSchema) as refused:
            await schemas.find_or_create(
                ID, Schema(SchemaType.AVRO, json.dumps(wrong).encode()), both
            )
        assert str(refused.value) == (
            "Error during schema compatibility check with strategy BACKWARD_TRANSITIVE: the new"
            " schema cannot read version 0: field 'b': the writer's string cannot be read as int."
        )

    run(tmp_path, scenario)


def native(root: str, *messages: str, package: str = "p") -> Schema:
    """A PROTOBUF_NATIVE schema."""
    files = descriptor_pb2.FileDescriptorSet()
    one = files.file.add(name="a.proto", package=package)
    for each in messages:
        one.message_type.add(name=each).nested_type.add(name="Inner")
    fields = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": "a.proto",
    }
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(fields).encode())


def test_a_protobuf_schema_keeps_its_root_message() -> None:
    before = native("p.A", "A", "B")
    run_steps(compatibility.check(before, 0, native("p.A", "A"), "FULL"))
    run_steps(compatibility.check(before, 0, native("p.B", "B"), "ALWAYS_COMPATIBLE"))
    run_steps(compatibility.validate(native("p.A.Inner", "A")))
    with pytest.raises(IncompatibleSchema) as refused:
        run_steps(compatibility.check(before, 0, native("p.B", "B"), "FULL"))
    assert str(refused.value) == (
        "Protobuf root message change is not allowed under the 'FULL' strategy. Original message"
        " name: 'p.A', new message name: 'p.B'."
    )


@pytest.mark.parametrize(
    "data",
    [
        native("p.C", "A").data,
        native("A", "A").data,
        native("p.A.B", "A").data,
        b"{}",
        b"[" * 10_000,
        b'{"fileDescriptorSet":"AAAA","rootMessageTypeName":"A","rootFileDescriptorName":"a"}',
        b'{"fileDescriptorSet":"","rootMessageTypeName":1,"rootFileDescriptorName":"a"}',
        b'{"fileDescriptorSet":"","rootMessageTypeName":"A","rootFileDescriptorName":"a"}',
    ],
)
def test_what_is_no_protobuf_schema_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidSchema, match="Invalid schema definition data for PROTOBUF_NATIVE"):
        run_steps(compatibility.validate(Schema(SchemaType.PROTOBUF_NATIVE, data)))


def with_files(encoded: bytes) -> Schema:
    fields = {
        "fileDescriptorSet": base64.b64encode(encoded).decode(),
        "rootMessageTypeName": "M",
        "rootFileDescriptorName": "f",
    }
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(fields).encode())


def test_files_of_a_protobuf_schema_are_counted_before_they_are_made() -> None:
    most = FILES_MAX - 1
    message = b"\x0a\x08\x0a\x01f\x22\x03\x0a\x01M"
    run_steps(compatibility.validate(with_files(b"\x0a\x00" * most + message)))
    for encoded, reason in (
        (b"\x0a\x00" * FILES_MAX + message, f"it has more than {FILES_MAX} files"),
        (b"\x0a" + b"\x80" * 150_000, "not JSON with a FileDescriptorSet"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not JSON with a FileDescriptorSet"),
    ):
        with pytest.raises(InvalidSchema, match=reason):
            run_steps(compatibility.validate(with_files(encoded)))


@pytest.mark.parametrize(
    ("data", "properties", "reason"),
    [
        (b"", (), "the length of the key's schema is missing"),
        (b"\0\0\0\5abc", (), "the key's schema is truncated"),
        (key_value_data(b"", b"")[:-1], (), "the length of the value's schema is missing"),
        (b"\x7f\xff\xff\xff", (), "the key's schema is truncated"),
        (
            key_value_data(b"", b""),
            (("key.schema.type", "NOBODY"),),
            "'NOBODY' is not a schema type",
        ),
        (key_value_data(b"", b"{}"), (("value.schema.type", "AVRO"),), "no type"),
        (key_value_data(b"", b""), (("value.schema.type", "KEY_VALUE"),), "length of the key's"),
    ],
)
def test_what_is_no_key_value_schema_is_refused(
    data: bytes, properties: tuple[tuple[str, str], ...], reason: str
) -> None:
    with pytest.raises(InvalidSchema) as refused:
        run_steps(compatibility.validate(Schema(SchemaType.KEY_VALUE, data, properties)))
    assert reason in str(refused.value)


def test_a_definition_is_bounded(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        long = Schema(SchemaType.EXTERNAL, bytes(SCHEMA_BYTES_MAX + 1))
        for asked in (schemas.find(ID, long), schemas.find_or_create(ID, long, FULL)):
            with pytest.raises(InvalidSchema, match="262145 bytes, and at most 262144 are allowed"):
                await asked
        exact = Schema(SchemaType.EXTERNAL, bytes(SCHEMA_BYTES_MAX))
        assert await schemas.find_or_create(ID, exact, FULL) == 0
        found = await schemas.get(ID, 0)
        assert found is not None
        assert found.schema == exact

    run(tmp_path, scenario)


# --- many versions --------------------------------------------------------------------------------


async def with_versions(broker: Broker, count: int) -> SchemaRegistry:
    """A schema that has many versions, all of which are in one ledger."""
    schemas = broker.topics.schemas
    assert await schemas.find_or_create(ID, avro("a"), FULL) == 0
    ((_, ledger_id, _, digest),) = await schemas.index(ID)
    locator = SchemaStorageFormat.SchemaLocator()
    for version in range(count):
        each = locator.index.add(version=version, hash=bytes(28) + version.to_bytes(4, "big"))
        each.position.ledgerId, each.position.entryId = ledger_id, 0
    locator.index[0].hash = digest
    locator.info.CopyFrom(locator.index[-1])
    await broker.node.store.put(PATH, locator.SerializeToString())
    return schemas


def test_ten_thousand_versions_are_looked_at_in_slices(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = await with_versions(broker, VERSIONS_MAX - 2)
        async with counted_turns() as ticks:
            began = time.process_time()
            version = await schemas.find_or_create(ID, avro("a", "b"), TRANSITIVE)
            took_s = time.process_time() - began
            assert version == VERSIONS_MAX - 2
            # Each version was read, and others had their turns between them.
            assert ticks() > VERSIONS_MAX / 50
            assert took_s < 60
            # What was found out is remembered: no version is read for the next one.
            asked = ticks()
            assert await schemas.find(ID, strict("c")) == NOT_FOUND
            assert await schemas.find_or_create(ID, avro("a", "b"), TRANSITIVE) == version
            assert ticks() - asked < 100
            assert await schemas.find_or_create(ID, avro("a", "b", "c"), FULL) == version + 1
            with pytest.raises(IncompatibleSchema, match="which is the limit of this broker"):
                await schemas.find_or_create(ID, avro("a", "b", "c", "d"), FULL)

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.KEY_VALUE])
def test_a_new_schema_is_read_once_for_all_versions_that_it_is_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SchemaType
) -> None:
    def schema_of(*fields: str) -> Schema:
        found = avro(*fields)
        if kind is SchemaType.AVRO:
            return found
        types = (("key.schema.type", "AVRO"), ("value.schema.type", "AVRO"))
        return Schema(kind, key_value_data(avro("k").data, found.data), types)

    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        for number in range(6):
            await schemas.find_or_create(ID, schema_of(*(f"f{n}" for n in range(number))), FULL)
        parse = avro_schemas.parse
        read: list[bytes] = []

        def noted(data: bytes) -> Any:
            read.append(data)
            return parse(data)

        new = avro("new")
        monkeypatch.setattr(avro_schemas, "parse", noted)
        await schemas.check(ID, schema_of("new"), "FULL_TRANSITIVE")
        # Once to see that it is one, and once for all six versions.
        assert read.count(new.data) == 2
        assert len(set(read)) == 6 + 1 + (kind is SchemaType.KEY_VALUE)

    run(tmp_path, scenario)


def test_what_was_stored_is_kept_in_mind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        monkeypatch.setattr(records, "decode_locator", None)
        for version, schema in enumerate((avro("a"), avro("a", "b"), avro("a", "b", "c"))):
            for _ in range(2):
                assert await schemas.find_or_create(ID, schema, FULL) == version

    run(tmp_path, scenario)


def test_rest_tells_which_version_a_deletion_is(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        await broker.topics.schemas.find_or_create(ID, avro("a"), FULL)
        path = f"{REST_PATH}/schema"
        assert await rest("DELETE", path) == (200, {"version": 1})
        assert await rest("DELETE", f"{path}?force=true") == (200, {"version": -1})

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", ["NOTHING", "4", None])
def test_a_schema_of_a_type_that_is_none_is_refused(tmp_path: Path, kind: object) -> None:
    async def scenario(broker: Broker) -> None:
        path = f"{REST_PATH}/schema"
        body = json.dumps({"type": kind, "properties": {}, "schema": ""})
        assert await Rest(broker).reason("POST", path, body) == (
            422,
            f"type must be a type of a schema, not {kind!r}.",
        )

    run(tmp_path, scenario)


def test_rest_tells_whether_a_schema_may_follow(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        await broker.topics.schemas.find_or_create(ID, strict("a"), FULL)
        path = f"{REST_PATH}/compatibility"
        body = {"type": "AVRO", "properties": {}, "schema": strict("a").data.decode()}
        told = {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
        assert await rest("POST", path, json.dumps(body)) == (202, told)
        body["schema"] = strict("a", "b").data.decode()
        status, reason = await rest.reason("POST", path, json.dumps(body))
        assert (status, "b" in reason) == (500, True), reason

    run(tmp_path, scenario)


def test_a_half_with_many_values_is_told_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        many = "[" + "0," * TOKENS_MAX + "0]"
        schema = Schema(SchemaType.KEY_VALUE, key_value_data(b'{"a":[1]}', many.encode()))
        await broker.topics.schemas.find_or_create(ID, schema, FULL)
        loads = json.loads

        def checked(text: Any, **more: Any) -> Any:
            assert text != many, "it was read"
            return loads(text, **more)

        monkeypatch.setattr(json, "loads", checked)
        rest = Rest(broker)
        path = f"{REST_PATH}/schema"
        _, newest = await rest("GET", path)
        assert loads(newest["data"]) == {"key": {"a": [1]}, "value": many}
        assert await rest("GET", f"{path}/0") == (200, newest)

    run(tmp_path, scenario)


def test_no_more_versions_are_kept_in_mind_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        schemas = broker.topics.schemas
        monkeypatch.setattr("pyxbroker.schemas.storage.KNOWN_VERSIONS_MAX", 5)
        for number in range(20):
            assert await schemas.find_or_create(f"public/default/{number}", avro("a"), FULL) == 0
        storage = schemas._storage
        assert list(storage._known) == [f"public/default/{number}" for number in range(15, 20)]
        assert (storage._known_versions, len(schemas._changing)) == (5, 0)
        assert await schemas.find_or_create("public/default/0", avro("a"), FULL) == 0

    run(tmp_path, scenario)


def test_what_is_no_name_is_refused_before_an_answer_begins(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        for name in ("..", ".", "%2e%2e", "%2e"):
            for what in ("schema", "schemas", "metadata"):
                path = f"/admin/v2/schemas/public/default/{name}/{what}"
                assert (await rest("GET", path))[0] == 412

    run(tmp_path, scenario)

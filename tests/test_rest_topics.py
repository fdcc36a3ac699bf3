"""Messages that are published by REST: what is stored of them, and what is refused."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.admin.resources import rest_topics
from pyxbroker.base.errors import ProducerBlockedQuotaExceededException
from pyxbroker.base.java_hash import java_hash
from pyxbroker.base.json_weight import TOKENS_MAX
from pyxbroker.base.limits import TEXT_BYTES_MAX
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.messages import read_message
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.schemas.values import SCHEMA_BYTES_MAX
from test_admin_topics import DONE, P, Rest, run

T = "/topics/persistent/public/default"
N = "/admin/v2/namespaces/public/default"


async def posted(rest: Rest, path: str, *messages: Any, **fields: Any) -> tuple[int, Any]:
    return await rest("POST", path, json.dumps({"messages": messages} | fields))


async def stored(rest: Rest, name: str) -> list[tuple[Any, bytes]]:
    """Metadata and payload of each entry of a topic."""
    topic: Any = await rest.broker.topic(f"persistent://public/default/{name}")
    start = topic.first_position()
    return [read_message(entry) async for _, entry in topic.read_from(start, "to look at it")]


def info(kind: str, definition: str = "", **properties: str) -> str:
    data = base64.b64encode(definition.encode()).decode()
    return json.dumps({"name": "x", "schema": data, "type": kind, "properties": properties})


def test_a_message_is_stored_with_all_that_it_says(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        full = {
            "payload": "v\u00e4l",
            "key": "k",
            "properties": {"p": "1", "n": 2},
            "eventTime": "123",
            "sequenceId": 5,
            "replicationClusters": ["standalone"],
            "deliverAt": 77,
            "unknown": [],
        }
        status, answer = await posted(rest, f"{T}/t", full, {"payload": 7}, producerName="me")
        topic: Any = await rest.broker.topic("persistent://public/default/t")
        ledger_id = topic.managed_ledger.ledger_ids[0]
        result = {"errorCode": 0, "schemaVersion": 0}
        assert (status, answer) == (
            200,
            {
                "messagePublishResults": [
                    {"messageId": f"{ledger_id}:{entry}:-1"} | result for entry in (0, 1)
                ],
                "schemaVersion": 0,
            },
        )
        (first, payload), (second, number) = await stored(rest, "t")
        assert (payload, number) == ("v\u00e4l".encode(), b"7")
        assert first.publish_time == pytest.approx(second.publish_time, abs=60_000)
        first.publish_time = 1
        assert first == pb.MessageMetadata(
            producer_name="me",
            sequence_id=5,
            publish_time=1,
            partition_key="k",
            properties=[pb.KeyValue(key="p", value="1"), pb.KeyValue(key="n", value="2")],
            event_time=123,
            replicate_to=["standalone"],
            deliver_at_time=77,
            schema_version=bytes(8),
        )
        assert second.producer_name == "me"
        assert not second.HasField("partition_key")
        found = (await rest("GET", "/admin/v2/schemas/public/default/t/schema"))[1]
        assert (found["type"], found["properties"]) == ("STRING", {"__charset": "UTF-8"})

    run(tmp_path, scenario)


def test_later_and_elsewhere(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        messages = {"payload": "a", "deliverAfterMs": 60_000, "disableReplication": True}
        assert (await posted(rest, f"{T}/t", messages))[0] == 200
        [(metadata, _)] = await stored(rest, "t")
        assert metadata.deliver_at_time - metadata.publish_time == 60_000
        assert list(metadata.replicate_to) == ["__local__"]

    run(tmp_path, scenario)


def test_values_of_a_message_may_have_other_forms(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        body = (
            '{"schemaVersion":"-1","producerName":7,"messages":[{"payload":1.50,"key":true,'
            '"sequenceId":"5","eventTime":123.9,"deliverAt":"","disableReplication":"TRUE",'
            '"properties":{"a":1.10,"b":null}}]}'
        )
        assert (await rest("POST", f"{T}/t", body))[0] == 200
        [(metadata, payload)] = await stored(rest, "t")
        assert payload == b"1.50"
        assert (metadata.producer_name, metadata.partition_key) == ("7", "true")
        assert (metadata.sequence_id, metadata.event_time) == (5, 123)
        assert not metadata.HasField("deliver_at_time")
        assert list(metadata.replicate_to) == ["__local__"]
        assert list(metadata.properties) == [pb.KeyValue(key="a", value="1.10")]

    run(tmp_path, scenario)


def test_partitions_take_turns_and_a_key_stays_in_one(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/p/partitions", "3") == DONE
        _, answer = await posted(rest, f"{T}/p", *({"payload": str(n)} for n in range(6)))
        ids = [each["messageId"] for each in answer["messagePublishResults"]]
        assert [each.split(":")[1:] for each in ids] == [
            [str(entry), str(partition)] for entry in range(2) for partition in range(3)
        ]
        _, answer = await posted(rest, f"{T}/p", *({"payload": "x", "key": "k"} for _ in range(4)))
        # Java's hash of "k" is 107.
        assert {each["messageId"].split(":")[2] for each in answer["messagePublishResults"]} == {
            "2"
        }
        assert (await posted(rest, f"{T}/p/partitions/1", {"payload": "one"}))[0] == 200
        assert [payload for _, payload in await stored(rest, "p-partition-1")] == [
            b"1",
            b"4",
            b"one",
        ]
        assert (await posted(rest, f"{T}/p-partition-0", {"payload": "x"}))[0] == 200

    run(tmp_path, scenario)


def test_a_key_is_short_and_hashed_in_pieces_where_there_are_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        assert await rest("PUT", f"{P}/p/partitions", "3") == DONE
        hashed: list[int] = []

        def noted(key: str, before: int) -> int:
            hashed.append(len(key))
            return java_hash(key, before)

        monkeypatch.setattr(rest_topics, "java_hash", noted)
        short, long = "k" * TEXT_BYTES_MAX, "k" * (TEXT_BYTES_MAX + 1)
        messages = [{"payload": "x", "key": key} for key in (long, short)]
        for name in ("t", "p"):
            status, answer = await posted(rest, f"{T}/{name}", *messages)
            refused, kept = answer["messagePublishResults"]
            assert (status, refused["errorCode"], kept["errorCode"]) == (200, 2, 0)
            assert refused["errorMsg"] == (
                "The key is too long: it has 65537 bytes, and at most 65536 are allowed."
            )
            pieces = 0 if name == "t" else TEXT_BYTES_MAX // rest_topics.KEY_PIECE
            assert hashed == [rest_topics.KEY_PIECE] * pieces
        _, _, chosen = kept["messageId"].split(":")
        assert int(chosen) == java_hash(short) % 3

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("BYTES", {"a": b"a"}),
        ("STRING", {"\u00e4": "\u00e4".encode()}),
        ("BOOLEAN", {"true": b"\1", " False": b"\0", "1": None, "": None}),
        ("INT8", {"-128": b"\x80", "127": b"\x7f", "128": None, "x": None, "--1": None}),
        ("INT16", {"258": b"\1\2", "-32769": None}),
        ("INT32", {"7": b"\0\0\0\7", "2147483648": None, "1" * 5_000: None, "1.0": None}),
        ("INT64", {str(-(2**63)): b"\x80" + bytes(7), str(2**63): None}),
        ("FLOAT", {"0.5": struct.pack(">f", 0.5), "1e39": None, "x": None}),
        ("DOUBLE", {"0.1": struct.pack(">d", 0.1), "1" * 500: None}),
        ("JSON", {'{"a":1}': b'{"a":1}', "no": None, "[" * 100_000: None}),
    ],
)
def test_payloads_become_values_of_the_schema(
    tmp_path: Path, kind: str, texts: dict[str, bytes | None]
) -> None:
    definition = '{"type":"record","name":"U","fields":[{"name":"a","type":"int"}]}'

    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        schema = info(kind, definition if kind == "JSON" else "")
        status, answer = await posted(
            rest, f"{T}/t", *({"payload": each} for each in texts), valueSchema=schema
        )
        assert status == 200
        results = answer["messagePublishResults"]
        for (text, expected), result in zip(texts.items(), results, strict=True):
            assert result["errorCode"] == (0 if expected is not None else 2), text[:50]
            assert ("errorMsg" in result) == (expected is None)
        wanted = [each for each in texts.values() if each is not None]
        assert [payload for _, payload in await stored(rest, "t")] == wanted
        # The same by the version that it got.
        again = next(text for text, each in texts.items() if each is not None)
        status, answer = await posted(rest, f"{T}/t", {"payload": again}, schemaVersion=0)
        assert status == 200
        assert answer["messagePublishResults"][0]["errorCode"] == 0

    run(tmp_path, scenario)


def test_what_cannot_be_published_is_told_in_its_place(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        wrong: list[dict[str, Any]] = [
            {},
            {"payload": None},
            {"payload": []},
            {"payload": "a", "eventTime": "x"},
            {"payload": "a", "sequenceId": -1},
            {"payload": "a", "sequenceId": 2**63},
            {"payload": "a", "key": {}},
            {"payload": "a", "properties": []},
            {"payload": "a", "replicationClusters": "x"},
        ]
        status, answer = await posted(rest, f"{T}/t", {"payload": "1"}, *wrong, {"payload": "2"})
        assert status == 200
        first, *refused, last = answer["messagePublishResults"]
        assert first["errorCode"] == last["errorCode"] == 0
        for message, result in zip(wrong, refused, strict=True):
            assert (result["errorCode"], result["messageId"]) == (2, "-1"), message
            assert result["errorMsg"].endswith("."), result
        assert [payload for _, payload in await stored(rest, "t")] == [b"1", b"2"]

    run(tmp_path, scenario)


def test_what_no_partition_takes_is_told_in_its_place(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t/partitions", "2") == DONE
        second = await rest.broker.topics.loader.ensure(
            TopicName.get("persistent://public/default/t").partition(1)
        )

        async def full() -> None:
            raise ProducerBlockedQuotaExceededException("The backlog is full.")

        second.check_quotas = full  # type: ignore[method-assign]
        status, answer = await posted(rest, f"{T}/t", {"payload": "a"}, {"payload": "b"})
        assert status == 200
        kept, refused = answer["messagePublishResults"]
        assert kept["errorCode"] == 0
        assert (refused["errorCode"], refused["errorMsg"]) == (2, "The backlog is full.")

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "path", [f"{T}/t", f"{N}/replication", "/admin/v2/tenants/new", f"{N}/permissions/me"]
)
def test_half_a_character_is_refused_at_the_border(tmp_path: Path, path: str) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        method = "PUT" if "tenants" in path else "POST"
        for body in ('{"adminRoles":["\\ud800"]}', '["\\uDC00"]', '{"\\ud83d":1}'):
            status, reason = await rest.reason(method, path, body)
            assert (status, reason[:32]) == (400, "The body has half of a character"), body
        status, _ = await rest("POST", f"{T}/t", '{"messages":[{"payload":"\\ud83d\\ude00"}]}')
        assert status == 200
        assert [payload for _, payload in await stored(rest, "t")] == ["\U0001f600".encode()]

    run(tmp_path, scenario)


def test_policies_and_the_state_of_a_topic_hold_for_rest(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        for name in ("t", "e", "d"):
            assert await rest("PUT", f"{P}/{name}") == DONE
        assert await rest("POST", f"{P}/t/maxMessageSize", "200") == DONE
        _, answer = await posted(rest, f"{T}/t", {"payload": "x" * 201}, {"payload": "x"})
        large, small = answer["messagePublishResults"]
        assert (large["errorMsg"], small["errorCode"]) == ("Exceed maximum message size", 0)
        assert (await rest("POST", f"{P}/t/terminate"))[0] == 200
        _, answer = await posted(rest, f"{T}/t", {"payload": "x"})
        assert answer["messagePublishResults"][0]["errorMsg"] == "Topic was already terminated"
        assert await rest("POST", f"{P}/d/deduplicationEnabled", "true") == DONE
        _, answer = await posted(rest, f"{T}/d", *[{"payload": "x", "sequenceId": 1}] * 2)
        assert [each["errorCode"] for each in answer["messagePublishResults"]] == [0, 0]
        assert await rest("POST", f"{N}/encryptionRequired", "true") == DONE
        _, answer = await posted(rest, f"{T}/e", {"payload": "x"})
        assert answer["messagePublishResults"][0]["errorMsg"] == "Messages must be encrypted"

    run(tmp_path, scenario)


def test_a_storage_that_fails_is_told_for_each_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        topic: Any = await rest.broker.topic("persistent://public/default/t")

        def append(run: Any) -> None:
            raise ManagedLedgerError("the disk is gone")

        monkeypatch.setattr(topic.managed_ledger, "append", append)
        status, answer = await posted(rest, f"{T}/t", {"payload": "x"})
        assert status == 200
        assert answer["messagePublishResults"][0]["errorMsg"] == "the disk is gone"

    run(tmp_path, scenario)


def test_who_is_there_gets_what_comes_to_a_topic_that_keeps_nothing(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        name = "non-persistent://public/default/n"
        await rest.broker.topic(name)
        client = await rest.broker.client()
        await client.subscribe(1, topic=name)
        client.flow(1, 10)
        path = T.replace("persistent", "non-persistent") + "/n"
        status, answer = await posted(rest, path, {"payload": "x"})
        assert status == 200
        assert answer["messagePublishResults"][0]["errorCode"] == 0
        [message] = await client.messages(1)
        assert message is not None

    run(tmp_path, scenario)


def test_requests_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        assert await rest("PUT", f"{P}/p/partitions", "2") == DONE
        one = json.dumps({"messages": [{"payload": "x"}]})
        missing = "Fail to publish message: Topic persistent://public/default/{} not found"
        for path, name in (
            ("none", "none"),
            ("none/partitions/0", "none"),
            ("t/partitions/0", "t"),
            ("p/partitions/2", "p-partition-2"),
        ):
            assert await rest.reason("POST", f"{T}/{path}", one) == (404, missing.format(name))
        no_namespace = (404, "Fail to publish message: Namespace not found")
        assert await rest.reason("POST", "/topics/persistent/public/none/t", one) == no_namespace
        assert (await rest("POST", f"{T}/p/partitions/x", one))[0] == 404
        assert (await rest("POST", "/topics/other/public/default/t", one))[0] == 412
        assert (await rest("POST", f"{T}/__change_events", one))[0] == 405
        many = [{"payload": ""}] * (rest_topics.MESSAGES_MAX + 1)
        for body in (
            *("", "x", "[]", "{}", '{"messages":{}}', '{"messages":[1]}'),
            json.dumps({"messages": many}),
            json.dumps({"messages": [{"payload": [0] * TOKENS_MAX}]}),
            *(
                json.dumps({"messages": [], name: value})
                for name, value in (
                    ("producerName", [1]),
                    ("producerName", "x" * 2_000),
                    ("schemaVersion", "1.0"),
                    ("schemaVersion", 2**63),
                    ("keySchema", "{}"),
                    ("valueSchema", 1),
                    ("valueSchema", "x"),
                    ("valueSchema", "[]"),
                    ("valueSchema", info("FLY")),
                    ("valueSchema", info("AVRO")),
                    ("valueSchema", '{"type":"INT8","schema":"?"}'),
                )
            ),
        ):
            assert (await rest("POST", f"{T}/t", body))[0] == 400, body[:80]
        assert (await posted(rest, f"{T}/t", schemaVersion=7))[0] == 404
        assert (await posted(rest, f"{T}/t", valueSchema=info("INT8")))[0] == 200
        # What is there is of another type.
        assert (await posted(rest, f"{T}/t", valueSchema=info("INT16")))[0] == 409
        assert (await posted(rest, f"{T}/t"))[0] == 409
        assert await stored(rest, "t") == []

    run(tmp_path, scenario)


LISTS = "[" + "[]," * 1_000_000 + "1]"


def test_a_schema_with_a_million_values_within_one_text_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        monkeypatch.setattr(json, "loads", _small_only(json.loads))
        status, answer = await posted(rest, f"{T}/t", valueSchema=LISTS)
        assert (status, answer["reason"]) == (
            400,
            "valueSchema must be the JSON of a SchemaInfo: it has more than 20000 values and"
            " names, of which 64 escapes count as one.",
        )

    run(tmp_path, scenario)


def test_the_definition_of_a_schema_that_is_too_long_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        longest = info("JSON", '{"type":"record","name":"R","fields":[]}'.ljust(SCHEMA_BYTES_MAX))
        assert (await posted(rest, f"{T}/t", valueSchema=longest))[0] == 200
        long = info("JSON", " " * (SCHEMA_BYTES_MAX + 3))
        monkeypatch.setattr(base64, "b64decode", None)
        status, answer = await posted(rest, f"{T}/t", valueSchema=long)
        assert (status, answer["reason"]) == (
            400,
            "valueSchema must be the JSON of a SchemaInfo: schema has more than 262144 bytes in"
            " base64.",
        )

    run(tmp_path, scenario)


def test_a_payload_of_json_with_a_million_values_is_refused_unread_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        schema = info("JSON", '{"type":"record","name":"R","fields":[]}')
        assert (await posted(rest, f"{T}/t", valueSchema=schema))[0] == 200
        monkeypatch.setattr(json, "loads", _small_only(json.loads))
        many = json.dumps([0] * 90_000)
        status, answer = await posted(
            rest, f"{T}/t", {"payload": LISTS}, {"payload": many}, valueSchema=schema
        )
        heavy, light = answer["messagePublishResults"]
        assert (status, heavy["errorMsg"], light["errorCode"]) == (
            200,
            "The payload does not fit the schema: it has more than 100000 values and names,"
            " of which 64 escapes count as one.",
            0,
        )
        assert [payload for _, payload in await stored(rest, "t")] == [many.encode()]

    run(tmp_path, scenario)


def _small_only(loads: Any) -> Any:
    def checked(text: Any, **more: Any) -> Any:
        value = loads(text, **more)
        assert not isinstance(value, list) or len(value) < 100_000, "it was read"
        return value

    return checked

"""What is too long, too much or no text is refused before anything of it is stored."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from one_broker import TOPIC, Broker, Client, command_of, run, section
from oracles import wire
from pyxbroker.admin.resources import partitions
from pyxbroker.base import limits
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands import replies, topic_list
from pyxbroker.broker.topics import partition_nodes
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.roles.data import StandaloneData
from pyxbroker.settings.config import ENTRY_METADATA_BYTES_MAX, FRAME_PADDING_BYTES, Config
from stored import add, read
from test_admin_topics import DONE, NAME, PARTITIONED, P, Rest

INT_MAX = 2**31 - 1
PATH = paths.partitioned_topic("public/default", "t")
HUGE = b'{"partitions":2147483647,"deleted":false}'
TOO_LONG = "x" * 60_000
SOON_S = 5.0


async def soon(waiting: Awaitable[Any]) -> Any:
    """What must not go with the number of partitions that somebody has written."""
    return await asyncio.wait_for(waiting, SOON_S)


def asking(tmp_path: Path, scenario: Callable[[Rest], Awaitable[None]], **settings: Any) -> None:
    async def main(broker: Broker) -> None:
        await scenario(Rest(broker))

    run(tmp_path, main, **settings)


# --- partitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_more_partitions_than_there_can_be_are_refused_and_nothing_is_stored(
    tmp_path: Path, domain: str
) -> None:
    async def scenario(rest: Rest) -> None:
        target = f"/admin/v2/{domain}/public/default/t/partitions"
        refused = (
            406,
            {"reason": "Number of partitions should be less than or equal to 100000"},
        )
        assert await soon(rest("PUT", target, str(INT_MAX))) == refused
        assert await soon(rest("PUT", target, "100001")) == refused
        body = json.dumps({"partitions": INT_MAX})
        assert await soon(rest("PUT", target, body, PARTITIONED)) == refused
        store = rest.broker.node.store
        assert not await store.children(paths.partitioned_topics("public/default", domain))
        assert await rest("PUT", target, "2") == DONE
        assert (await soon(rest("POST", target, str(INT_MAX))))[0] == 422
        assert (await rest("GET", target))[1]["partitions"] == 2

    asking(tmp_path, scenario)


def test_a_topic_that_is_made_by_use_has_no_more_partitions_than_there_can_be(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        command = pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0)
        answer = await client.request(command, "partitionMetadataResponse")
        assert answer.error == pb.NotAllowedError
        assert not await broker.node.store.exists(PATH)

    run(
        tmp_path,
        scenario,
        allowAutoTopicCreationType="partitioned",
        defaultNumPartitions=INT_MAX,
    )


def test_the_setting_allows_more_partitions_than_the_built_in_limit(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", "/admin/v2/non-persistent/public/default/t/partitions", "100001")
        client = await rest.broker.client()
        name = "non-persistent://public/default/t"
        command = pb.CommandPartitionedTopicMetadata(topic=name, request_id=0)
        answer = await client.request(command, "partitionMetadataResponse")
        assert answer.partitions == 100_001

    asking(tmp_path, scenario, maxNumPartitionsPerPartitionedTopic=200_000)


def test_a_number_of_partitions_that_nobody_can_have_hangs_nobody_and_is_deleted(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        broker = rest.broker
        await broker.node.store.put(PATH, HUGE)
        name = TopicName.get(TOPIC)
        for index in (0, 7, 300):
            await broker.topics.loader.ensure(name.partition(index))
        await broker.topics.loader.ensure(TopicName.get(TOPIC + "-partition-x"))
        client = await broker.client()
        command = pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0)
        answer = await soon(client.request(command, "partitionMetadataResponse"))
        assert answer.error == pb.NotAllowedError
        assert "2147483647" in answer.message
        assert (await rest("GET", P + "/t/partitions"))[1]["partitions"] == INT_MAX
        assert (await soon(rest("POST", P + "/t/partitions", str(INT_MAX))))[0] == 422
        assert (await soon(rest("POST", P + "/t/terminate/partitions")))[0] == 404
        assert (await soon(rest("DELETE", P + "/t/subscription/s")))[0] == 404
        producer = await soon(client.produce(topic=str(name.partition(7))))
        assert producer.producer_name
        await soon(broker.topics.partitioned.forget_unused(name))
        assert (await soon(rest("DELETE", P + "/t/partitions")))[0] == 412
        assert await soon(rest("DELETE", P + "/t/partitions?force=true")) == DONE
        assert not await broker.node.store.exists(PATH)
        assert (await rest("GET", P))[1] == [f"{NAME}/t-partition-x"]
        assert await rest("PUT", P + "/t/partitions", "2") == DONE

    asking(tmp_path, scenario)


def test_a_creation_of_too_many_partitions_that_was_interrupted_is_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        broker = rest.broker
        await broker.node.store.put(PATH, HUGE[:-1] + b',"beingMade":true}')
        name = TopicName.get(TOPIC)
        assert (await soon(rest("PUT", P + "/t/partitions", str(INT_MAX))))[0] == 406
        for index in range(200):
            path = paths.managed_ledger(name.partition(index).managed_ledger_name)
            await broker.node.store.put(path, b"")
        assert await asyncio.wait_for(rest("DELETE", P + "/t/partitions"), 60) == DONE
        assert (await rest("GET", P))[1] == []

    asking(tmp_path, scenario)


@pytest.mark.parametrize("number", [b"-3", b"1e999", b"-1e999"])
def test_a_number_of_partitions_that_is_none_is_no_defect(tmp_path: Path, number: bytes) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.node.store.put(PATH, b'{"partitions":%s}' % number)
        client = await broker.client()
        command = pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0)
        answer = await client.request(command, "partitionMetadataResponse")
        if number == b"-3":
            assert answer.partitions == 0
        else:
            assert answer.error == pb.MetadataError

    run(tmp_path, scenario)


# --- names --------------------------------------------------------------------------------------


def refusals() -> list[Any]:
    topic = pb.CommandLookupTopic
    subscribe: dict[str, Any] = {"topic": TOPIC, "subType": 1, "consumer_id": 1}
    produce = {"topic": TOPIC, "producer_id": 1}
    pairs = [{"key": f"k{index}", "value": ""} for index in range(limits.PROPERTIES_MAX + 1)]
    sizes = [{"key": f"k{index}", "value": "v" * 60_000} for index in range(5)]
    named = TOPIC + "y" * limits.TOPIC_BYTES_MAX
    made = {
        "topic": topic(topic=TOO_LONG),
        "local name": topic(topic=named),
        "local name of more bytes than characters": topic(topic="ü" * 600),
        "tenant": topic(topic=f"{'t' * 300}/default/t"),
        "namespace": pb.CommandGetTopicsOfNamespace(namespace=f"public/{'n' * 300}"),
        "metadata of topic": pb.CommandPartitionedTopicMetadata(topic=named),
        "producer's topic": pb.CommandProducer(topic=named, producer_id=1),
        "producer": pb.CommandProducer(**produce, producer_name=TOO_LONG),
        "initial": pb.CommandProducer(**produce, initial_subscription_name=TOO_LONG),
        "metadata": pb.CommandProducer(**produce, metadata=pairs),
        "subscription": pb.CommandSubscribe(**subscribe, subscription=TOO_LONG),
        "consumer": pb.CommandSubscribe(**subscribe, subscription="s", consumer_name=TOO_LONG),
        "key": pb.CommandSubscribe(
            **subscribe, subscription="s", metadata=[{"key": TOO_LONG, "value": ""}]
        ),
        "value": pb.CommandSubscribe(
            **subscribe,
            subscription="s",
            subscription_properties=[{"key": "", "value": TOO_LONG + TOO_LONG}],
        ),
        "all": pb.CommandSubscribe(**subscribe, subscription="s", subscription_properties=sizes),
    }
    return [pytest.param(command, id=name.replace(" ", "-")) for name, command in made.items()]


@pytest.mark.parametrize("command", refusals())
def test_a_command_with_text_over_its_limit_is_refused(tmp_path: Path, command: Any) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        command.request_id = 77
        await broker.loop.sock_sendall(client.far, wire.frame(command_of(command)))
        answer = await soon(refusal(client))
        assert answer.request_id == 77
        about_names = (pb.InvalidTopicName, pb.NotAllowedError)
        assert answer.error in about_names
        assert len(answer.message) < 400
        assert "at most" in answer.message
        assert len(broker.topics.registry) == 0
        assert await broker.node.store.children(paths.managed_ledgers("public/default")) == []
        client.send(pb.CommandPing())
        await client.receive("pong")

    run(tmp_path, scenario)


async def refusal(client: Client) -> Any:
    """The next answer that is an error, of whatever command."""
    while True:
        for _, message, _ in client.take():
            if getattr(message, "error", None) is not None and message.HasField("error"):
                return message
        await asyncio.sleep(0)


def test_whatever_fits_a_frame_fits_an_entry(tmp_path: Path) -> None:
    """A SEND of the largest frame is an entry of less, with what the broker and a ledger add."""
    config = Config(maxMessageSize=1 << 20, dbStorage_writeCacheMaxSizeMb=16)
    data = SimpleNamespace(config=config, accept_loss=False)
    layout = SimpleNamespace(journal=tmp_path / "journal", ledgers=tmp_path / "ledgers")
    opened = StandaloneData.open_storage(data, layout)  # type: ignore[arg-type]
    try:
        entry = bytes(config.maxMessageSize + FRAME_PADDING_BYTES + ENTRY_METADATA_BYTES_MAX)
        add(opened, [entry])
        assert read(opened, 0, 0).count == 1
    finally:
        opened.close(flush=False)


def test_names_at_their_limits_are_taken(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        local = "x" * limits.TOPIC_BYTES_MAX
        for topic in (local, local + "-partition-99999"):
            await broker.topics.loader.ensure(TopicName.get(topic))
            produced = await client.produce(
                topic=topic, producer_name="p" * limits.PRODUCER_BYTES_MAX
            )
            assert produced.producer_name
            client.send(pb.CommandCloseProducer(producer_id=1, request_id=1000))
            await client.receive("success")
        answer = await client.subscribe(
            topic=local,
            subscription="s" * limits.SUBSCRIPTION_BYTES_MAX,
            consumer_name="c" * limits.CONSUMER_BYTES_MAX,
            metadata=[{"key": "k" * limits.PROPERTY_KEY_BYTES_MAX, "value": "v"}],
        )
        assert not hasattr(answer, "error")

    run(tmp_path, scenario)


def test_rest_refuses_what_is_too_long_and_deletes_what_is_there(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        target = f"{P}/{'x' * (limits.TOPIC_BYTES_MAX + 1)}"
        for method, path, body in (
            ("PUT", target, ""),
            ("PUT", target + "/partitions", "2"),
            ("POST", target + "/terminate", ""),
            ("GET", f"/lookup/v2/topic/persistent/public/default/{'x' * 1_025}", ""),
            ("PUT", f"/admin/v2/persistent/{'t' * 257}/default/t", ""),
            ("PUT", f"/admin/v2/persistent/public/{'n' * 257}/t/partitions", "2"),
        ):
            status, reason = await rest.reason(method, path, body)
            assert (status, "at most" in reason) == (412, True), (path, reason)
        pairs = json.dumps({f"k{index}": "" for index in range(limits.PROPERTIES_MAX + 1)})
        for properties in (pairs, json.dumps({"k": TOO_LONG + TOO_LONG}), r'{"k": "\ud800"}'):
            assert (await rest("PUT", P + "/t", properties))[0] == 400
            body = f'{{"partitions": 2, "properties": {properties}}}'
            told = (await rest("PUT", P + "/t/partitions", body, PARTITIONED))[0]
            assert told == (413 if len(body) > partitions.BODY_BYTES_MAX else 400)
        assert (await rest("GET", P))[1] == []
        # As an older broker made it.
        await rest.broker.topics.loader.ensure(TopicName.get("x" * (limits.TOPIC_BYTES_MAX + 1)))
        assert len((await rest("GET", P))[1]) == 1
        assert await rest("DELETE", target) == DONE
        assert (await rest("GET", P))[1] == []

    asking(tmp_path, scenario)


def test_properties_that_are_too_much_for_so_many_partitions_are_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PROPERTIES_BYTES_MAX", 3 * 100)

    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", P + "/t/partitions", "3") == DONE
        longest, longer = {"key": "x" * 97}, {"key": "é" * 49}
        subscription = P + "/t/subscription/s"
        body = json.dumps({"ledgerId": -1, "entryId": -1, "properties": longer})
        status, reason = await rest.reason("PUT", subscription, body)
        assert status == 412 and "101 bytes would be written into 3 partitions" in reason
        assert await rest("GET", P + "/t/subscriptions") == (200, [])
        # Of one partition they are no more than of any topic.
        assert await rest("PUT", P + "/t-partition-0/subscription/s", body) == DONE
        assert await rest("DELETE", P + "/t-partition-0/subscription/s") == DONE
        body = json.dumps({"ledgerId": -1, "entryId": -1, "properties": longest})
        assert await rest("PUT", subscription, body) == DONE
        assert await rest("GET", subscription + "/properties") == (200, longest)
        assert (await rest("PUT", subscription + "/properties", json.dumps(longer)))[0] == 412
        assert await rest("GET", subscription + "/properties") == (200, longest)
        other = {"key": "y" * 97}
        assert await rest("PUT", subscription + "/properties", json.dumps(other)) == DONE
        assert await rest("GET", subscription + "/properties") == (200, other)
        # Three more partitions would have as much, four would have too much.
        status, reason = await rest.reason("POST", P + "/t/partitions", "7")
        assert status == 422 and "100 bytes would be written into 4 partitions" in reason
        record = await rest.broker.node.store.get(PATH)
        assert record is not None and json.loads(record.value)["partitions"] == 3
        assert "growingTo" not in json.loads(record.value)
        assert await rest("POST", P + "/t/partitions", "6") == DONE
        assert await rest("GET", P + "/t-partition-5/subscription/s/properties") == (200, other)

    asking(tmp_path, scenario)


def test_partitions_with_too_many_subscriptions_are_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_SUBSCRIPTIONS_MAX", 12)

    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", P + "/t/partitions", "2") == DONE
        for number in range(3):
            made = await rest("PUT", f"{P}/t-partition-{number % 2}/subscription/s{number}")
            assert made == DONE
        status, reason = await rest.reason("POST", P + "/t/partitions", "7")
        assert status == 422 and "5 more partitions would have the 3 subscriptions" in reason
        record = await rest.broker.node.store.get(PATH)
        assert record is not None and json.loads(record.value)["partitions"] == 2
        assert "growingTo" not in json.loads(record.value)
        assert len((await rest("GET", P))[1]) == 2
        # It can still be changed, to as many as may be.
        assert await rest("POST", P + "/t/partitions", "6") == DONE
        assert len((await rest("GET", P + "/t-partition-5/subscriptions"))[1]) == 3
        assert await rest("DELETE", P + "/t/partitions?force=true") == DONE

    asking(tmp_path, scenario)


def test_what_many_partitions_have_in_common_is_within_the_limits_where_it_is_of_use() -> None:
    assert limits.PARTITIONS_SUBSCRIPTIONS_MAX >= 20 * 1_000
    assert limits.copies_trouble(1 << 10, 10_000) is None
    assert limits.copies_trouble(limits.PROPERTIES_BYTES_MAX, 1_000) is None
    assert limits.copies_trouble(240 << 10, limits.PARTITIONS_MAX) is not None


def test_a_long_name_does_not_hold_up_who_matches_patterns(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.loader.ensure(TopicName.get(TOO_LONG))
        client = await broker.client()
        command = pb.CommandGetTopicsOfNamespace(
            namespace="public/default", topics_pattern="public/default/.*x.*y", request_id=0
        )
        began = time.process_time()
        answer = await client.request(command, "getTopicsOfNamespaceResponse")
        assert time.process_time() - began < 0.5
        assert (list(answer.topics), answer.filtered) == ([], True)

    run(tmp_path, scenario)


def test_news_of_many_topics_are_matched_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200
    turns = 0
    seen: set[int] = set()
    matches = topic_list.matches

    def noted(*what: Any) -> bool:
        seen.add(turns)
        return matches(*what)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        command = pb.CommandWatchTopicList(
            namespace="public/default", topics_pattern=".*", watcher_id=1, request_id=0
        )
        await client.request(command, "watchTopicListSuccess")
        counting = asyncio.ensure_future(count_turns())
        nodes = partition_nodes.nodes_of(TopicName.get(TOPIC), 0, count)
        await broker.node.store.put_all(list(nodes))
        told = 0
        while told < count:
            told += len((await client.receive("watchTopicUpdate")).new_topics)
        counting.cancel()
        assert len(seen) > count / 2

    monkeypatch.setattr(topic_list, "matches", noted)
    monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", -1.0)
    run(tmp_path, scenario)


def test_a_cluster_name_that_is_too_long_is_refused() -> None:
    longest = "c" * limits.CLUSTER_BYTES_MAX
    assert Config.load(overrides={"clusterName": longest}).clusterName == longest
    with pytest.raises(ConfigError, match="clusterName cannot be used"):
        Config.load(overrides={"clusterName": longest + "c"})


# --- text ---------------------------------------------------------------------------------------


def spoiled(command: Any, good: str, raw: bytes = b"\xff") -> bytes:
    """A whole command, one of whose texts is replaced by bytes of the same length."""
    text = command_of(command, partial=True)
    assert text.count(good.encode()) == 1
    return text.replace(good.encode(), raw * len(good))


TEXTS = [
    pb.CommandLookupTopic(topic="persistent://public/default/@@@", request_id=7),
    pb.CommandLookupTopic(topic="t", advertised_listener_name="@@@", request_id=7),
    pb.CommandPartitionedTopicMetadata(topic="t", original_principal="@@@", request_id=7),
    pb.CommandProducer(topic="t", producer_id=1, producer_name="@@@", request_id=7),
    pb.CommandProducer(topic="t", producer_id=1, initial_subscription_name="@@@", request_id=7),
    pb.CommandProducer(
        topic="t", producer_id=1, request_id=7, metadata=[{"key": "@@@", "value": "v"}]
    ),
    pb.CommandProducer(
        topic="t",
        producer_id=1,
        request_id=7,
        schema={
            "name": "n",
            "schema_data": b"",
            "type": 0,
            "properties": [{"key": "k", "value": "@@@"}],
        },
    ),
    pb.CommandSubscribe(topic="t", subscription="@@@", subType=1, consumer_id=1, request_id=7),
    pb.CommandSubscribe(
        topic="t",
        subscription="s",
        subType=1,
        consumer_id=1,
        request_id=7,
        metadata=[{"key": "k", "value": "@@@"}],
    ),
    pb.CommandSubscribe(
        topic="t", subscription="s", consumer_name="@@@", subType=1, consumer_id=1, request_id=7
    ),
    pb.CommandCloseProducer(producer_id=1, assignedBrokerServiceUrl="@@@", request_id=7),
    pb.CommandGetTopicsOfNamespace(namespace="@@@", request_id=7),
    pb.CommandGetTopicsOfNamespace(namespace="public/default", topics_pattern="@@@", request_id=7),
    pb.CommandGetTopicsOfNamespace(namespace="public/default", topics_hash="@@@", request_id=7),
    pb.CommandWatchTopicList(
        namespace="public/default", topics_pattern="@@@", watcher_id=1, request_id=7
    ),
]


@pytest.mark.parametrize("command", TEXTS, ids=lambda each: type(each).__name__)
def test_text_of_a_command_that_is_not_utf8_is_refused(tmp_path: Path, command: Any) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        client.far.send(wire.frame(spoiled(command, "@@@")))
        answer = await soon(refusal(client))
        assert answer.request_id == 7
        assert "UTF-8" in answer.message
        assert len(broker.topics.registry) == 0
        client.send(pb.CommandPing())
        await client.receive("pong")

    run(tmp_path, scenario)


@pytest.mark.parametrize("field", ["client_version", "original_principal", "proxy_to_broker_url"])
@pytest.mark.parametrize("spoil", [b"\xff", b"x"])
def test_a_client_whose_connect_has_no_text_is_sent_away(
    tmp_path: Path, field: str, spoil: bytes
) -> None:
    async def scenario(broker: Broker) -> None:
        other = await broker.client()
        await other.subscribe()
        client = Client(broker)
        fields = {"client_version": "v", field: "@" * 70_000}
        command = pb.CommandConnect(protocol_version=21, **fields)
        data = wire.frame(spoiled(command, "@" * 70_000, spoil))
        await broker.loop.sock_sendall(client.far, data)
        answer = await client.receive("error")
        assert (answer.request_id, answer.error) == (replies.NO_REQUEST, pb.NotAllowedError)
        assert len(answer.message) < 400
        await client.closed()
        await broker.topics.deletion.terminate(TopicName.get(TOPIC))
        other.send(pb.CommandPing())
        await other.receive("pong")

    run(tmp_path, scenario)


# --- chunks -------------------------------------------------------------------------------------


def test_a_chunk_whose_uuid_is_too_long_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()

        def send(sequence_id: int, uuid: str) -> None:
            payload = section(b"", uuid=uuid, num_chunks_from_msg=2, chunk_id=0)
            command = pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1)
            client.send(command, payload)

        send(0, "u" * limits.CHUNK_UUID_BYTES_MAX)
        await client.receive("send_receipt")
        send(1, "u" * (limits.CHUNK_UUID_BYTES_MAX + 1))
        error = await client.receive("send_error")
        assert (error.sequence_id, error.error) == (1, pb.NotAllowedError)
        assert str(limits.CHUNK_UUID_BYTES_MAX) in error.message

    run(tmp_path, scenario)


def test_the_uuid_that_clients_make_is_within_its_limit() -> None:
    assert len("-" + str(2**64)) + limits.PRODUCER_BYTES_MAX <= limits.CHUNK_UUID_BYTES_MAX

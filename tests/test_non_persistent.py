"""Non-persistent topics: handed out at once, dropped when nobody can take it, never stored."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest

from one_bookie import until
from one_broker import Broker, Client, data_of, run, section, stats_of
from pyxbroker.base.errors import NotAllowed
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import non_persistent, unused_topics
from pyxbroker.broker.topics.non_persistent import NonPersistentTopic
from pyxbroker.entry import EntryRun
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from shares import over_at_once

NAME = "non-persistent://public/default/t"
SUB = pb.CommandSubscribe
MANY = 32  # subscriptions
TYPES = (SUB.Exclusive, SUB.Shared, SUB.Failover, SUB.Key_Shared)


async def publish(client: Client, *data: bytes, first: int = 0, **fields: Any) -> None:
    """Sends messages and waits for their receipts, which say 0:0."""
    for number, each in enumerate(data, start=first):
        command = pb.CommandSend(producer_id=1, sequence_id=number)
        client.send(command, section(each, **fields))
    for number, _ in enumerate(data, start=first):
        receipt = await client.receive("send_receipt")
        assert receipt.sequence_id == number
        assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (0, 0)


async def producer(broker: Broker, name: str = NAME) -> Client:
    client = await broker.client()
    assert not hasattr(await client.produce(topic=name), "error")
    return client


async def topic_of(broker: Broker) -> Any:
    return await broker.topics.loader.get(TopicName.get(NAME), create=False)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_subscription_gets_what_comes(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        await publish(sender, b"before")
        client = await broker.client()
        await client.subscribe(1, topic=NAME, subType=kind)
        await client.subscribe(2, topic=NAME, subType=kind, subscription="other")
        await publish(sender, *(b"%d" % number for number in range(20)), first=1)
        found = await client.messages(40)
        for consumer_id in (1, 2):
            mine = [each for each in found if each.consumer_id == consumer_id]
            assert [each.data for each in mine] == [b"%d" % number for number in range(20)]
            assert {each.position for each in mine} == {(0, 0)}
        assert "message" not in await client.quiet()
        assert await broker.node.store.children(paths.managed_ledgers("public/default")) == []

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", TYPES)
def test_what_nobody_has_permits_for_is_dropped_and_counted(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        client = await broker.client()
        await client.subscribe(1, permits=3, topic=NAME, subType=kind)
        await publish(sender, *(b"%d" % number for number in range(5)))
        await publish(sender, b"batch" * 12, first=5, num_messages_in_batch=10)
        assert [each.data for each in await client.messages(3)] == [b"0", b"1", b"2"]
        client.flow(100)
        assert "message" not in await client.quiet()
        await publish(sender, b"after", first=6)
        assert [each.data for each in await client.messages(1)] == [b"after"]
        [subscription] = stats_of(await topic_of(broker)).subscriptions
        assert subscription.msg_drop == 12
        assert subscription.msg_out == 4
        assert (subscription.backlog, subscription.unacked_messages) == (0, 0)

    run(tmp_path, scenario)


def test_shared_consumers_take_turns(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        client = await broker.client()
        for consumer_id, permits in ((1, 100), (2, 100), (3, 2), (4, 100)):
            level = 1 if consumer_id == 4 else 0
            await client.subscribe(consumer_id, permits, topic=NAME, priority_level=level)
        await publish(sender, *(b"%d" % number for number in range(22)))
        found = await client.messages(22)
        shares = [sum(each.consumer_id == number for each in found) for number in range(1, 5)]
        assert shares == [10, 10, 2, 0]
        assert len({each.data for each in found}) == 22

    run(tmp_path, scenario)


def test_keys_go_to_one_consumer_also_after_it_changed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        client = await broker.client()
        for consumer_id in (1, 2, 3):
            await client.subscribe(consumer_id, topic=NAME, subType=SUB.Key_Shared)

        async def owners(first: int) -> dict[bytes, int]:
            for key in range(60):
                await publish(sender, b"%d" % (key % 20), first=first + key,
                              partition_key=str(key % 20))  # fmt: skip
            by_key: dict[bytes, set[int]] = {}
            for each in await client.messages(60):
                by_key.setdefault(each.data, set()).add(each.consumer_id)
            assert all(len(each) == 1 for each in by_key.values())
            return {key: each.pop() for key, each in by_key.items()}

        before = await owners(0)
        assert set(before.values()) == {1, 2, 3}
        client.send(pb.CommandCloseConsumer(consumer_id=2, request_id=900))
        await client.receive("success")
        after = await owners(60)
        assert set(after.values()) == {1, 3}
        assert all(after[key] == owner for key, owner in before.items() if owner != 2)

    run(tmp_path, scenario)


def test_a_failover_consumer_takes_over_at_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        client = await broker.client()
        for consumer_id, name in ((1, "a"), (2, "b")):
            await client.subscribe(
                consumer_id, topic=NAME, subType=SUB.Failover, consumer_name=name
            )
        await publish(sender, b"one")
        [message] = await client.messages(1)
        active = message.consumer_id
        client.send(pb.CommandCloseConsumer(consumer_id=active, request_id=900))
        await client.receive("success")
        await publish(sender, b"two", first=1)
        [message] = await client.messages(1)
        assert (message.consumer_id, message.data) == (3 - active, b"two")

    run(tmp_path, scenario)


def test_subscriptions_go_with_their_last_consumer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        client = await broker.client()
        await client.subscribe(1, topic=NAME, subscription_properties=[pb.KeyValue(key="k",
                               value="v")])  # fmt: skip
        await client.subscribe(2, topic=NAME)
        await client.subscribe(3, topic=NAME, durable=False, subscription="reader",
                               subType=SUB.Exclusive)  # fmt: skip
        topic = await topic_of(broker)
        assert len(topic.all_subscriptions()) == 2
        mine = next(each for each in topic.all_subscriptions() if each.name == "s")
        assert mine.cursor.properties == {"k": "v"}
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        assert len(topic.all_subscriptions()) == 2
        answer = await client.request(pb.CommandUnsubscribe(consumer_id=2, request_id=0), "success")
        assert not hasattr(answer, "error")
        client.connection.close()
        assert topic.all_subscriptions() == []
        await publish(sender, b"to nobody")
        # One of another type, and one that is no reader, may have the name now.
        other = await broker.client()
        answer = await other.subscribe(1, topic=NAME, subType=SUB.Exclusive, subscription="reader")
        assert not hasattr(answer, "error")

    run(tmp_path, scenario)


def test_a_reader_from_some_time_ago_gets_what_comes(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.subscribe(
            1,
            topic=NAME,
            durable=False,
            subType=pb.CommandSubscribe.Exclusive,
            start_message_rollback_duration_sec=60,
        )
        assert not hasattr(answer, "error")
        assert (await broker.topic(NAME)).all_subscriptions()[0].consumers

    run(tmp_path, scenario)


def test_the_usual_refusals(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, topic=NAME, subType=SUB.Exclusive)
        assert (
            await client.subscribe(2, topic=NAME, subType=SUB.Exclusive)
        ).error == pb.ConsumerBusy
        assert (await client.subscribe(2, topic=NAME)).error == pb.ConsumerBusy
        answer = await client.subscribe(2, topic=NAME, subscription="c", read_compacted=True)
        assert answer.error == pb.NotAllowedError
        command = pb.CommandGetLastMessageId(consumer_id=1, request_id=0)
        answer = await client.request(command, "getLastMessageIdResponse")
        assert answer.error == pb.UnknownError
        with pytest.raises(NotAllowed):
            await (await topic_of(broker)).terminate()

    run(tmp_path, scenario)


def test_acks_redeliveries_and_seeks_change_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        client = await broker.client()
        for consumer_id, kind in enumerate(TYPES, start=1):
            await client.subscribe(
                consumer_id, topic=NAME, subType=kind, subscription=f"s{consumer_id}"
            )
        await publish(sender, b"one", b"two")
        await client.messages(8)
        for consumer_id in range(1, 5):
            answer = await client.ack((0, 0), consumer_id=consumer_id)
            assert not answer.HasField("error")
            client.redeliver((0, 0), consumer_id=consumer_id)
            client.redeliver(consumer_id=consumer_id)
            seek = pb.CommandSeek(consumer_id=consumer_id, request_id=0, message_publish_time=1)
            assert not hasattr(await client.request(seek, "success"), "error")
        assert "message" not in await client.quiet()
        await publish(sender, b"three", first=2)
        assert {each.data for each in await client.messages(4)} == {b"three"}

    run(tmp_path, scenario)


def test_a_consumer_that_does_not_read_loses_messages_and_nobody_else_does(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        stuck, lively = [await broker.client() for _ in range(2)]
        await stuck.subscribe(1, 100_000, topic=NAME, subscription="stuck")
        await lively.subscribe(1, 100_000, topic=NAME, subscription="lively")
        body = bytes(100_000)
        for number in range(200):
            await publish(sender, body, first=number)
            assert (await lively.messages(1))[0].data == body
        assert stuck.connection.pending_bytes < 5 << 20
        drops = {each.name: each.msg_drop for each in stats_of(await topic_of(broker))
                 .subscriptions}  # fmt: skip
        assert drops["lively"] == 0
        assert drops["stuck"] > 50
        got = len(await stuck.messages(200 - drops["stuck"]))
        assert got == 200 - drops["stuck"]

    run(tmp_path, scenario)


def test_of_a_shared_subscription_who_does_not_read_is_passed_over_until_it_does(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        stuck, lively = [await broker.client() for _ in range(2)]
        for consumer_id in (1, 2):
            await stuck.subscribe(consumer_id, 100_000, topic=NAME)
        await lively.subscribe(1, 100_000, topic=NAME)
        chooser = (await topic_of(broker)).all_subscriptions()[0].dispatcher.chooser
        body = bytes(100_000)
        number = itertools.count()

        async def fill() -> int:
            """Until the next ten all go to who reads; how many the other was sent."""
            before = sum(each.msg_out for each in stuck.connection.consumers.values())
            in_a_row = 0
            while in_a_row < 10:
                out = lively.connection.consumers[1].msg_out
                await publish(sender, body, first=next(number))
                if lively.connection.consumers[1].msg_out > out:
                    await lively.messages(1)
                    in_a_row += 1
                else:
                    in_a_row = 0
            assert list(chooser._waiting_for_room) == [stuck.connection]
            return sum(each.msg_out for each in stuck.connection.consumers.values()) - before

        for _ in range(2):
            sent = await fill()
            assert sent > 10
            assert len(await stuck.messages(sent)) == sent
            assert not chooser._waiting_for_room
        await fill()
        [subscription] = stats_of(await topic_of(broker)).subscriptions
        assert subscription.msg_drop == 0
        stuck.connection.close()
        assert not chooser._waiting_for_room
        await publish(sender, body, first=next(number))
        assert len(await lively.messages(1)) == 1

    run(tmp_path, scenario)


def test_memory_is_given_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        sender = await producer(broker)
        client = await broker.client()
        await client.subscribe(topic=NAME)
        await publish(sender, *(bytes(1000) for _ in range(50)))
        await client.messages(50)
        connections = broker.node.connections
        assert connections.publish_bytes == 0
        assert sender.connection.pending_sends == 0
        assert client.connection.consumers[1].unacked_messages == 0
        assert client.connection.consumers[1].pending_positions() == []

    run(tmp_path, scenario)


def test_a_topic_is_there_while_it_is_used(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        topics = broker.topics
        lists = pb.CommandGetTopicsOfNamespace(
            namespace="public/default", request_id=0, mode=pb.CommandGetTopicsOfNamespace.ALL
        )
        metadata = pb.CommandPartitionedTopicMetadata(
            topic=NAME, request_id=0, metadata_auto_creation_enabled=False
        )
        answer = await client.request(metadata, "partitionMetadataResponse")
        assert answer.error == pb.TopicNotFound
        await client.produce(topic=NAME)
        assert isinstance(await topic_of(broker), NonPersistentTopic)
        answer = await client.request(lists, "getTopicsOfNamespaceResponse")
        assert list(answer.topics) == [NAME]
        answer = await client.request(metadata, "partitionMetadataResponse")
        assert (answer.partitions, answer.HasField("error")) == (0, False)
        await topics.inactive.delete_all()
        assert len(topics.registry) == 1
        await client.request(pb.CommandCloseProducer(producer_id=1, request_id=0), "success")
        await topics.inactive.delete_all()
        assert len(topics.registry) == 0
        answer = await client.request(lists, "getTopicsOfNamespaceResponse")
        assert list(answer.topics) == []

    run(tmp_path, scenario, brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=0,
        defaultRetentionTimeInMinutes=-1)  # fmt: skip


def open_names(broker: Broker) -> list[str]:
    return sorted(each.name.local_name for each in broker.topics.registry)


def test_of_topics_that_were_left_the_oldest_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused_topics, "UNUSED_MAX", 3)
    prefix = "non-persistent://public/default/"

    async def scenario(broker: Broker) -> None:
        client = await broker.client()

        async def use(name: str, *, consumes: bool = False) -> None:
            if consumes:
                await client.subscribe(99, permits=0, topic=prefix + name)
                await client.request(pb.CommandCloseConsumer(consumer_id=99), "success")
            else:
                await client.produce(99, topic=prefix + name)
                await client.request(pb.CommandCloseProducer(producer_id=99), "success")

        for number in range(10):
            await use(f"t{number}", consumes=number % 2 == 0)
        assert open_names(broker) == ["t7", "t8", "t9"]
        # One that is used once more is the last that was left.
        await use("t7")
        await use("t0")
        await use("t1")
        assert open_names(broker) == ["t0", "t1", "t7"]
        # The namespace knows of no others.
        names = broker.topics.registry.in_namespace("public/default")
        assert sorted(each.local_name for each in names) == ["t0", "t1", "t7"]

    run(tmp_path, scenario)


@pytest.mark.parametrize("mode", [pb.Shared, pb.Exclusive])
def test_a_topic_that_its_producers_left_and_that_is_closed_leaves_no_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """The collector seldom looks at what has been there for long."""
    monkeypatch.setattr(unused_topics, "UNUSED_MAX", 1)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1, topic=NAME, producer_access_mode=mode)
        await publish(client, b"one")
        [topic] = [weakref.ref(each) for each in broker.topics.registry]
        gc.disable()
        try:
            await client.request(pb.CommandCloseProducer(producer_id=1), "success")
            await client.produce(2, topic=NAME + "-other")
            await until(lambda: len(broker.topics.registry) == 1)
            await until(lambda: topic() is None)
        finally:
            gc.enable()

    run(tmp_path, scenario)


def test_topics_that_are_used_stay_open_however_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused_topics, "UNUSED_MAX", 2)
    prefix = "non-persistent://public/default/"

    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await client.subscribe(1, topic=prefix + "consumed")
        await client.produce(1, topic=prefix + "produced")
        await client.produce(2, topic=prefix + "mine", producer_access_mode=pb.Exclusive)
        waits = await other.produce(
            2, topic=prefix + "mine", producer_access_mode=pb.WaitForExclusive
        )
        assert not waits.producer_ready
        for number in range(10):
            await client.produce(99, topic=f"{prefix}t{number}")
            await client.request(pb.CommandCloseProducer(producer_id=99), "success")
        assert open_names(broker) == ["consumed", "mine", "produced", "t8", "t9"]
        await other.produce(1, topic=prefix + "consumed")
        other.publish(0, b"there")
        assert [each.data for each in await client.messages(1)] == [b"there"]
        # Once they are left, they are closed as any others are.
        client.far.close()
        other.far.close()
        await until(lambda: client.connection.closed and other.connection.closed)
        await until(lambda: len(open_names(broker)) == 2)

    run(tmp_path, scenario)


def test_a_topic_is_deleted_and_closed_like_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producer(broker)
        await client.subscribe(topic=NAME)
        name = TopicName.get(NAME)
        with pytest.raises(NotAllowed, match="2 connected producers/consumers"):
            await broker.topics.deletion.delete_by_name(name)
        await broker.topics.deletion.delete_by_name(name, force=True)
        await client.receive("close_producer")
        await client.receive("close_consumer")
        assert len(broker.topics.registry) == 0
        client = await producer(broker)
        await publish(client, b"again")
        topic = await topic_of(broker)
        await topic.close()
        await client.receive("close_producer")
        assert not hasattr(await client.produce(topic=NAME), "error")

    run(tmp_path, scenario)


def test_partitions_of_a_non_persistent_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get(NAME)
        await broker.topics.partitioned.create(name, 2)
        path = paths.partitioned_topic("public/default", "t", "non-persistent")
        assert await broker.node.store.exists(path)
        client = await broker.client()
        assert (await client.produce(topic=NAME)).error == pb.NotAllowedError
        assert not hasattr(await client.produce(topic=str(name.partition(1))), "error")
        answer = await client.produce(2, topic=str(name.partition(2)))
        assert answer.error == pb.TopicNotFound
        await broker.topics.partitioned.update(name, 3)
        assert not hasattr(await client.produce(2, topic=str(name.partition(2))), "error")
        await broker.topics.partitioned.delete(name, force=True)
        assert not await broker.node.store.exists(path)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("enableNonPersistentTopics", NAME),
        ("enablePersistentTopics", "persistent://public/default/t"),
    ],
)
def test_a_kind_of_topics_may_be_switched_off(tmp_path: Path, setting: str, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.produce(topic=name)
        assert answer.error == pb.NotAllowedError
        assert setting in answer.message
        assert (await client.subscribe(topic=name)).error == pb.NotAllowedError

    run(tmp_path, scenario, **{setting: False})


def test_a_producers_initial_subscription_is_not_made(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.produce(topic=NAME, initial_subscription_name="first")
        assert not hasattr(answer, "error")
        assert (await topic_of(broker)).all_subscriptions() == []

    run(tmp_path, scenario)


def test_asking_for_the_last_message_is_refused_and_is_no_fault_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, topic=NAME)
        command = pb.CommandGetLastMessageId(consumer_id=1, request_id=7)
        answer = await client.request(command, "error")
        assert answer.error == pb.UnknownError
        assert "non-persistent" in answer.message
        assert "a command failed" not in caplog.text

    run(tmp_path, scenario)


async def many_subscribe(client: Client) -> None:
    for number in range(MANY):
        await client.subscribe(number, topic=NAME, subscription=f"s{number}", durable=False)


def test_many_subscriptions_get_everything_in_order_a_few_in_a_turn(tmp_path: Path) -> None:
    """Its producer has its receipts when all had their chance."""

    async def scenario(broker: Broker) -> None:
        client, sender = await broker.client(), await broker.client()
        await many_subscribe(client)
        await sender.produce(topic=NAME)
        over_at_once(broker.node.turn.notifications)
        topic = await topic_of(broker)
        data = data_of(3)
        for sequence_id, each in enumerate(data):
            sender.publish(sequence_id, each)
            await asyncio.sleep(0)
        for sequence_id in range(3):
            assert (await sender.receive("send_receipt")).sequence_id == sequence_id
        got: dict[int, list[bytes]] = {number: [] for number in range(MANY)}
        for message in await client.messages(3 * MANY):
            got[message.consumer_id].append(message.data)
        assert got == dict.fromkeys(range(MANY), data)
        assert not topic._waiting

    run(tmp_path, scenario)


def test_a_round_takes_a_turn_no_longer_than_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client, sender = await broker.client(), await broker.client()
        await many_subscribe(client)
        await sender.produce(topic=NAME)
        given: list[int] = []
        turn = 0

        def tick() -> None:
            nonlocal turn, handle
            turn += 1
            handle = broker.loop.call_soon(tick)

        give = non_persistent._send

        def counted(batch: Any, start: int, stop: int, subscription: Any) -> None:
            given.append(turn)
            give(batch, start, stop, subscription)

        monkeypatch.setattr(non_persistent, "_send", counted)
        over_at_once(broker.node.turn.notifications)
        handle = broker.loop.call_soon(tick)
        sender.publish(0, b"x")
        await sender.receive("send_receipt")
        handle.cancel()
        assert len(given) == MANY
        assert len(set(given)) == MANY

    run(tmp_path, scenario)


@pytest.mark.parametrize("subscriptions", [1, MANY])
def test_one_send_from_each_of_many_producers_makes_no_long_turn_nor_a_list_of_who_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subscriptions: int
) -> None:
    producers = 20

    async def scenario(broker: Broker) -> None:
        client, sender = await broker.client(), await broker.client()
        for number in range(subscriptions):
            await client.subscribe(number, topic=NAME, subscription=f"s{number}", durable=False)
        for producer_id in range(producers):
            await sender.produce(producer_id, topic=NAME)
        topic = await topic_of(broker)
        given: list[int] = []
        turn = 0

        def tick() -> None:
            nonlocal turn, handle
            turn += 1
            handle = broker.loop.call_soon(tick)

        give = non_persistent._send

        def counted(batch: Any, start: int, stop: int, subscription: Any) -> None:
            given.append(turn)
            for runs in topic._waiting.values():
                assert {type(each) for each in runs} == {EntryRun}
            give(batch, start, stop, subscription)

        monkeypatch.setattr(non_persistent, "_send", counted)
        over_at_once(broker.node.turn.notifications)
        handle = broker.loop.call_soon(tick)
        for producer_id in range(producers):
            command = pb.CommandSend(producer_id=producer_id, sequence_id=0)
            sender.send(command, section(b"%d" % producer_id))
        receipts = [await sender.receive("send_receipt") for _ in range(producers)]
        handle.cancel()
        # In the order in which they came, as those of one connection.
        assert [each.producer_id for each in receipts] == list(range(producers))
        assert len(given) == len(set(given)) == producers * subscriptions

    run(tmp_path, scenario)


def test_a_client_that_publishes_much_holds_up_others_for_a_run_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    give = non_persistent._send

    def noted(*args: Any) -> None:
        begun.set()
        give(*args)

    monkeypatch.setattr(non_persistent, "_send", noted)

    async def scenario(broker: Broker) -> None:
        client, much, little = [await broker.client() for _ in range(3)]
        await many_subscribe(client)
        for producer_id in range(10):
            await much.produce(producer_id, topic=NAME)
        await little.produce(topic=NAME)
        over_at_once(broker.node.turn.notifications)
        for producer_id in range(10):
            command = pb.CommandSend(producer_id=producer_id, sequence_id=0)
            much.send(command, section(b"much"))
        await begun.wait()
        await publish(little, b"little")
        got = [each.data for each in await client.messages(11 * MANY) if each.consumer_id == 0]
        assert got.index(b"little") <= 2
        assert len(got) == 11

    run(tmp_path, scenario)


def test_a_long_run_goes_to_a_subscription_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(non_persistent, "ENTRIES_PER_STEP", 3)
    parts: list[int] = []
    give = non_persistent._send

    def counted(batch: Any, start: int, stop: int, subscription: Any) -> None:
        dropped = subscription.msg_drop
        out = sum(each.msg_out for each in subscription.consumers)
        give(batch, start, stop, subscription)
        parts.append(sum(each.msg_out for each in subscription.consumers) - out)
        assert subscription.msg_drop == dropped

    monkeypatch.setattr(non_persistent, "_send", counted)

    async def scenario(broker: Broker) -> None:
        client, sender = await broker.client(), await broker.client()
        for number, kind in enumerate(TYPES):
            await client.subscribe(number, topic=NAME, subscription=f"s{number}", subType=kind)
        await sender.produce(topic=NAME)
        over_at_once(broker.node.turn.notifications)
        data = data_of(10)
        for sequence_id, each in enumerate(data):
            sender.publish(sequence_id, each)
        for sequence_id in range(10):
            assert (await sender.receive("send_receipt")).sequence_id == sequence_id
        got: dict[int, list[bytes]] = {number: [] for number in range(len(TYPES))}
        for message in await client.messages(10 * len(TYPES)):
            got[message.consumer_id].append(message.data)
        assert got == dict.fromkeys(range(len(TYPES)), data)
        assert max(parts) <= 3 and sum(parts) == 10 * len(TYPES)

    run(tmp_path, scenario)


def test_who_leaves_during_a_round_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, leaving, sender = [await broker.client() for _ in range(3)]
        await many_subscribe(client)
        await leaving.subscribe(7, topic=NAME, subscription="leaves", durable=False)
        await sender.produce(topic=NAME)
        over_at_once(broker.node.turn.notifications)
        sender.publish(0, b"x")
        await asyncio.sleep(0)
        leaving.connection.close()
        await sender.receive("send_receipt")
        assert len(await client.messages(MANY)) == MANY
        sender.publish(1, b"y")
        await sender.receive("send_receipt")
        assert {each.data for each in await client.messages(MANY)} == {b"y"}

    run(tmp_path, scenario)


def test_a_topic_that_is_closed_during_a_round_answers_its_producers(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, sender = await broker.client(), await broker.client()
        await many_subscribe(client)
        await sender.produce(topic=NAME)
        over_at_once(broker.node.turn.notifications)
        sender.publish(0, b"x")
        await asyncio.sleep(0)
        await broker.topics.deletion.unload(TopicName.get(NAME))
        await until(lambda: sender.connection.pending_sends == 0)

    run(tmp_path, scenario)

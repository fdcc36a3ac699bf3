"""Expiry: old messages count as acknowledged, and subscriptions that nobody uses are deleted."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bad_disk import Disk, run_on
from loop_turns import counted_turns
from one_bookie import append, until
from one_broker import TOPIC, Broker, Client, data_of, run
from oracles import wire
from pyxbroker.bookie.garbage_collection import GarbageCollector
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.broker.subscriptions.subscription import REPLICATED_SUBSCRIPTION
from pyxbroker.broker.topics import upkeep
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb

NOW_S = 1_800_000_000.0
NAME = "public/default/persistent/t"
LOOKED_AT = (
    *(("persistent", "a"), ("persistent", "fenced")),
    *(("non-persistent", "b"), ("persistent", "c")),
)


def message(age_s: float, data: bytes = b"", **fields: Any) -> bytes:
    """A message that was published so long before NOW_S."""
    published = int((NOW_S - age_s) * 1000)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=published)
    for name, value in fields.items():
        setattr(metadata, name, value)
    return wire.payload_section(metadata.SerializeToString(), data or b"%d" % age_s)


def with_broker_time(age_s: float, section: bytes) -> bytes:
    """An entry of a broker that notes when it has got it."""
    noted = pb.BrokerEntryMetadata(broker_timestamp=int((NOW_S - age_s) * 1000), index=7)
    block = noted.SerializeToString()
    return b"\x0e\x02" + len(block).to_bytes(4, "big") + block + section


async def set_policies(broker: Broker, **fields: Any) -> None:
    value = json.dumps(fields).encode()
    await broker.node.store.put(paths.namespace_policies("public/default"), value)


async def topic_with(broker: Broker, *ages_s: float, ttl_s: int = 100) -> PersistentTopic:
    """A topic with messages of these ages and a TTL, at NOW_S; its TTL is in force."""
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    topic.wall_clock = lambda: NOW_S
    await append(topic.managed_ledger, *map(message, ages_s))
    await set_policies(broker, message_ttl_in_seconds=ttl_s)
    await until(lambda: topic.policies.message_ttl_s == ttl_s)
    return topic


async def subscription_of(topic: PersistentTopic, name: str) -> Any:
    return await topic.subscription_for(name, topic.first_position(), {}, True)


def test_what_is_older_than_the_ttl_is_acknowledged_for_all(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        topic.wall_clock = lambda: NOW_S
        one, two = await subscription_of(topic, "one"), await subscription_of(topic, "two")
        await append(topic.managed_ledger, *map(message, (500, 400, 300, 100, 99, 1)))
        two.cursor.acknowledge_up_to((topic.managed_ledger.ledger_ids[0], 1))
        await broker.topics.upkeep.expire_messages()
        assert (one.backlog, two.backlog) == (6, 4), "without a TTL nothing expires"
        await set_policies(broker, message_ttl_in_seconds=100)
        # Nobody asks for it: the change itself is looked after.
        await until(lambda: (one.backlog, two.backlog) == (3, 3))
        topic.wall_clock = lambda: NOW_S + 2
        await broker.topics.upkeep.expire_messages()
        assert (one.backlog, two.backlog) == (1, 1)
        topic.wall_clock = lambda: NOW_S + 200
        await broker.topics.upkeep.expire_messages()
        assert (one.backlog, two.backlog) == (0, 0)

    run(tmp_path, scenario)


def test_only_topics_that_store_and_may_write_are_looked_after(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        names = [f"{kind}://public/default/{name}" for kind, name in LOOKED_AT]
        topics = [await broker.topic(name) for name in names]
        topics[1].managed_ledger.fence("another broker has it")
        found = [each async for each in upkeep.open_topics(iter(topics))]
        assert found == [topics[0], topics[3]]

    run(tmp_path, scenario)


def test_others_run_while_the_messages_of_many_subscriptions_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", -1.0)  # a subscription is a slice

    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, 200, 200, 200, ttl_s=1000)
        some = [await subscription_of(topic, f"s{i}") for i in range(20)]
        left: list[int] = []

        async def watch() -> None:
            while True:
                left.append(sum(each.backlog for each in some))
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        await expiry.skip_to(some, topic.last_confirmed._replace(entry_id=0))
        assert await expiry.expire(topic, 100, some) == 40
        watching.cancel()
        # One of them has gone on between two looks.
        assert len(set(left)) > 30

    run(tmp_path, scenario)


def test_others_run_while_many_subscriptions_with_nothing_to_write_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", -1.0)  # a subscription is a slice

    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, 200)
        some = [await subscription_of(topic, f"s{i}") for i in range(20)]
        async with counted_turns() as turn:
            before = turn()
            await expiry.persist(some)
            assert turn() - before >= 20

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_consumers_get_what_is_left_once_and_nothing_of_what_expired(
    tmp_path: Path, kind: str
) -> None:
    """Some is delivered, some wanted again, some was never read: none of it comes any more."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        kinds = pb.CommandSubscribe.SubType.Value
        await client.subscribe(subType=kinds(kind), permits=20)
        topic = await topic_with(broker, *[200] * 30, *[50] * 10, ttl_s=1000)
        assert len(await client.messages(20)) == 20
        subscription = topic.subscriptions["s"]
        await set_policies(broker, message_ttl_in_seconds=100)
        await until(lambda: subscription.backlog == 10)
        [consumer] = subscription.consumers
        assert consumer.unacked_messages == 0
        assert "message" not in await client.quiet()
        client.redeliver()
        client.flow(100)
        left = await client.messages(10)
        assert [each.data for each in left] == [b"50"] * 10
        assert "message" not in await client.quiet()
        await client.ack(*[each.position for each in left])
        assert subscription.backlog == 0

    run(tmp_path, scenario, dispatcherMaxReadBatchSize=5)


def test_what_waits_to_be_sent_again_expires(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(permits=10)
        topic = await topic_with(broker, *[200] * 6, *[50] * 4, ttl_s=1000)
        got = await client.messages(10)
        client.redeliver(*[each.position for each in got])
        replay = topic.subscriptions["s"].dispatcher.replay
        await until(lambda: len(replay.positions) == 10)
        await set_policies(broker, message_ttl_in_seconds=100)
        await until(lambda: len(replay.positions) == 4)
        assert len(topic.subscriptions["s"].dispatcher.redelivery.counts) == 4
        client.flow(100)
        assert [each.data for each in await client.messages(4)] == [b"50"] * 4
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_delayed_messages_expire_and_take_no_memory(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe()
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        topic.wall_clock = lambda: NOW_S
        later = int((NOW_S + 1000) * 1000)
        delayed = [message(age, deliver_at_time=later) for age in (300, 200, 50)]
        await append(topic.managed_ledger, *delayed)
        dispatcher = topic.subscriptions["s"].dispatcher
        await until(lambda: dispatcher.delayed_entries == 3)
        await set_policies(broker, message_ttl_in_seconds=100)
        await until(lambda: dispatcher.delayed_entries == 1)
        topic.wall_clock = lambda: NOW_S + 1001
        broker.node.turn.run(dispatcher.wake)
        assert [each.data for each in await client.messages(1)] == [b"50"]
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_a_key_goes_on_when_what_was_before_it_expires(tmp_path: Path) -> None:
    """A consumer holds the key's first message; what waits behind it goes to the key's owner."""

    async def scenario(broker: Broker) -> None:
        slow, other = await broker.client(), await broker.client()
        key_shared = {"subType": pb.CommandSubscribe.Key_Shared}
        await slow.subscribe(permits=1000, consumer_name="a", **key_shared)
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        topic.wall_clock = lambda: NOW_S
        keys = [f"key {n}" for n in range(20)]
        await append(topic.managed_ledger, *[message(200, partition_key=key) for key in keys])
        await slow.messages(20)
        await other.subscribe(permits=1000, consumer_name="b", **key_shared)
        await append(topic.managed_ledger, *[message(50, partition_key=key) for key in keys])
        before = (await slow.quiet()).count("message") + (await other.quiet()).count("message")
        assert before < 20, "some keys have another owner by now, and wait"
        subscription = topic.subscriptions["s"]
        assert subscription.dispatcher.key_queue.keys.waiting == 20 - before
        await set_policies(broker, message_ttl_in_seconds=100)
        await until(lambda: subscription.backlog == 20)
        after = (await slow.quiet()).count("message") + (await other.quiet()).count("message")
        assert after == 20

    run(tmp_path, scenario)


def test_what_waits_for_its_key_expires(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        slow, other = await broker.client(), await broker.client()
        key_shared = {"subType": pb.CommandSubscribe.Key_Shared}
        await slow.subscribe(permits=1000, consumer_name="a", **key_shared)
        topic = await topic_with(broker, ttl_s=1000)
        keys = [f"key {n}" for n in range(20)]
        await append(topic.managed_ledger, *[message(300, partition_key=key) for key in keys])
        await slow.messages(20)
        await other.subscribe(permits=0, consumer_name="b", **key_shared)
        await append(topic.managed_ledger, *[message(200, partition_key=key) for key in keys])
        # What is for the other consumer waits for its permits.
        waiting = topic.subscriptions["s"].dispatcher.key_queue.keys
        await until(lambda: waiting.waiting > 0)
        for each in (slow, other):
            await each.quiet()
            each.take()
        await set_policies(broker, message_ttl_in_seconds=100)
        await until(lambda: topic.subscriptions["s"].backlog == 0 and waiting.waiting == 0)
        assert await slow.quiet() == await other.quiet() == []

    run(tmp_path, scenario)


def test_what_expired_is_not_read_and_damage_in_it_stops_nobody(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions[10:80])
        client = await broker.client()
        await client.subscribe(permits=1000)
        await client.messages(10)
        subscription = (await broker.topic()).subscriptions["s"]
        await until(lambda: subscription.dispatcher.stopped_by_damage is not None)
        reads = len(disk.reads)
        await expiry.skip_to([subscription], Position(*positions[99]))
        # It would look again in half a minute.
        assert [each.data for each in await client.messages(5)] == data_of(105)[100:]
        assert subscription.dispatcher.stopped_by_damage is None
        assert len(disk.reads) <= reads + 5

    run_on(tmp_path, data_of(105), scenario)


def test_the_time_of_the_broker_counts_where_it_is_noted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, ttl_s=1000)
        subscription = await subscription_of(topic, "s")
        entries = [with_broker_time(50, message(500)), with_broker_time(50, message(1))]
        await append(topic.managed_ledger, *entries)
        await expiry.expire(topic, 100)
        assert subscription.backlog == 2
        await expiry.expire(topic, 40)
        assert subscription.backlog == 0

    run(tmp_path, scenario)


def test_a_look_reads_one_entry_or_bisects(tmp_path: Path, monkeypatch: Any) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, *range(1000, 0, -1), ttl_s=5000)
        subscription = await subscription_of(topic, "s")
        managed_ledger = topic.managed_ledger
        read: list[Position] = []
        read_one = managed_ledger.read_one

        async def noting(position: Position) -> Any:
            read.append(position)
            return await read_one(position)

        monkeypatch.setattr(managed_ledger, "read_one", noting)
        for _ in range(10):
            await expiry.expire(topic, 2000)
        assert len(read) == 1, "the oldest one is remembered"
        await expiry.expire(topic, 300)
        assert subscription.backlog == 300
        assert len(read) <= 12
        await managed_ledger.read_one(Position(managed_ledger.ledger_ids[0], 0))
        subscription.cursor.acknowledge_up_to(managed_ledger.last_confirmed)
        read.clear()
        await expiry.expire(topic, 1)
        assert read == [], "where nothing is left, nothing is read"

    run(tmp_path, scenario)


def test_ledgers_that_were_closed_for_long_are_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, ttl_s=5000)
        subscription = await subscription_of(topic, "s")
        managed_ledger = topic.managed_ledger
        for _ in range(3):
            # Their publish times are in the future: only the time of the ledger tells.
            await append(managed_ledger, message(-9999), message(-9999))
            managed_ledger.roll_over()
            await managed_ledger.finish_tasks()
        for ledger_id, age_s in zip(managed_ledger.ledger_ids, (300, 200, 50), strict=False):
            managed_ledger.ledgers[ledger_id].timestamp_ms = int((NOW_S - age_s) * 1000)
        await expiry.expire(topic, 100)
        assert subscription.backlog == 2
        await until(lambda: len(managed_ledger.ledgers) == 2)

    run(tmp_path, scenario)


def test_compaction_and_moves_are_left_alone(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, 300, 300)
        compaction = await topic.compaction_subscription()
        moving, other = await subscription_of(topic, "m"), await subscription_of(topic, "o")
        moving.closing = True
        await broker.topics.upkeep.expire_messages()
        assert (compaction.backlog, moving.backlog, other.backlog) == (2, 2, 0)
        moving.closing = False

    run(tmp_path, scenario)


def test_a_topic_that_cannot_be_read_does_not_keep_others_from_expiring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(upkeep, "TOPIC_S", 0.05)
        topics = []
        for n in range(3):
            topic = await broker.topic(f"{TOPIC}-{n}")
            assert isinstance(topic, PersistentTopic)
            topic.wall_clock = lambda: NOW_S
            await subscription_of(topic, "s")
            await append(topic.managed_ledger, message(500))
            topics.append(topic)
        stuck, *others = topics
        answer, asked = asyncio.Event(), []
        time_after = stuck.time_after

        async def when_the_disk_answers(mark: Position) -> int | None:
            asked.append(mark)
            await answer.wait()
            return await time_after(mark)

        monkeypatch.setattr(stuck, "time_after", when_the_disk_answers)
        # By the change itself, and by the looks that come now and then.
        await set_policies(broker, message_ttl_in_seconds=100)
        await until(lambda: all(each.subscriptions["s"].backlog == 0 for each in others))
        for other in others:
            await append(other.managed_ledger, message(400))
        await asyncio.wait_for(broker.topics.upkeep.expire_messages(), 5)
        await asyncio.wait_for(broker.topics.upkeep.check_quotas(), 5)
        assert [each.subscriptions["s"].backlog for each in topics] == [1, 0, 0]
        assert len(asked) == 1, "nobody begins again with what is not done"
        answer.set()
        await until(lambda: stuck.subscriptions["s"].backlog == 0)
        await append(stuck.managed_ledger, message(300))
        await broker.topics.upkeep.expire_messages()
        assert stuck.subscriptions["s"].backlog == 0

    run(tmp_path, scenario)


def test_what_expired_stays_so_after_a_restart(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, 300, 300, 1, ttl_s=1000)
        await subscription_of(topic, "s")
        await expiry.expire(topic, 100)
        await topic.close()
        again = await broker.topic()
        assert again is not topic
        assert again.subscriptions["s"].backlog == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize("reads", ["read_one", "read_some"])
def test_what_is_trimmed_while_it_is_read_is_not_told_as_lost(
    tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture, reads: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, 400, 300, 200, ttl_s=5000)
        await subscription_of(topic, "s")
        managed_ledger = topic.managed_ledger
        managed_ledger.roll_over()
        await append(managed_ledger, message(50))
        former, current = managed_ledger.ledger_ids
        read = getattr(managed_ledger, reads)

        async def trimmed(*arguments: Any) -> Any:
            await topic.truncate()
            return await read(*arguments)

        monkeypatch.setattr(managed_ledger, reads, trimmed)
        monkeypatch.setattr(managed_ledger, "read_cached", lambda *_: None)
        if reads == "read_one":
            found = [await topic.position_before_time(int((NOW_S - 100) * 1000))]
        else:
            entries = topic.read_from(topic.first_position(), "messages")
            found = [position async for position, _ in entries]
        assert former not in managed_ledger.ledgers
        assert {each.ledger_id for each in found} == {current}
        assert "entries cannot be read" not in caplog.messages

    run(tmp_path, scenario)


def test_a_lost_entry_does_not_keep_others_from_expiring(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with(broker, ttl_s=1000)
        subscription = await subscription_of(topic, "s")
        await append(topic.managed_ledger, b"no message", *map(message, (300, 200, 1)))
        await expiry.expire(topic, 100)
        assert subscription.backlog == 1

    run(tmp_path, scenario)


def test_the_space_of_what_expired_comes_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        node = broker.node
        topic = await topic_with(broker, ttl_s=1000)
        await subscription_of(topic, "s")
        managed_ledger = topic.managed_ledger
        await append(managed_ledger, *[message(500, b"x" * 10_000)] * 50)
        managed_ledger.roll_over()
        await managed_ledger.finish_tasks()
        managed_ledger.ledgers[managed_ledger.ledger_ids[0]].timestamp_ms = int(NOW_S * 1000)
        await node.flush()
        await append(managed_ledger, message(1))
        await node.flush()
        logs = node.directory / "ledgers"

        def size() -> int:
            found = 0
            for each in logs.glob("*.log"):
                with suppress(FileNotFoundError):  # the collector is deleting it
                    found += each.stat().st_size
            return found

        collector = GarbageCollector(node.storage, node.store)
        await collector.collect()
        assert size() > 500_000
        await expiry.expire(topic, 100)
        await until(lambda: len(managed_ledger.ledgers) == 1)
        await managed_ledger.finish_tasks()
        await collector.collect()
        await until(lambda: size() < 50_000)
        assert topic.subscriptions["s"].backlog == 1

    run(tmp_path, scenario)


# --- subscriptions ----------------------------------------------------------------------------


async def closed(client: Client, consumer_id: int = 1) -> None:
    await client.request(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0), "success")


def test_a_subscription_that_nobody_uses_is_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        topic = await broker.topic()
        now = topic.wall_clock()
        await client.subscribe(1, subscription="used")
        await client.subscribe(2, subscription="left")
        await client.subscribe(3, subscription="replicated", replicate_subscription_state=True)
        await topic.compaction_subscription()
        for consumer_id in (2, 3):
            await closed(client, consumer_id)
        await broker.topics.upkeep.expire_subscriptions()
        assert len(topic.subscriptions) == 4, "0 is never"
        await set_policies(broker, subscription_expiration_time_minutes=1)
        await until(lambda: topic.policies.subscription_expiry_s == 60)
        await broker.topics.upkeep.expire_subscriptions()
        assert len(topic.subscriptions) == 4
        topic.wall_clock = lambda: now + 120
        await broker.topics.upkeep.expire_subscriptions()
        assert sorted(topic.subscriptions) == ["__compaction", "replicated", "used"]
        assert not await broker.node.store.exists(paths.cursor(NAME, "left"))
        # Who leaves now is away from now on.
        await closed(client, 1)
        topic.wall_clock = lambda: now + 179
        await broker.topics.upkeep.expire_subscriptions()
        assert "used" in topic.subscriptions
        topic.wall_clock = lambda: now + 182
        await broker.topics.upkeep.expire_subscriptions()
        assert "used" not in topic.subscriptions
        assert topic.subscriptions["replicated"].cursor.position_properties == {
            REPLICATED_SUBSCRIPTION: 1
        }

    run(tmp_path, scenario)


def test_when_it_was_used_last_is_kept_over_a_clean_restart(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        topic = await broker.topic()
        await client.subscribe()
        topic.wall_clock = lambda: 1_000_000.0
        await closed(client)
        await topic.close()
        again = await broker.topic()
        assert again.subscriptions["s"].cursor.last_active_ms == 1_000_000_000
        await again.close()
        # Opening and closing it is no use.
        again = await broker.topic()
        assert again.subscriptions["s"].cursor.last_active_ms == 1_000_000_000

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_terminated", [False, True])
def test_after_a_kill_a_subscription_counts_as_used_until_the_start(
    tmp_path: Path, is_terminated: bool
) -> None:
    """Its consumers may have been there until then."""

    async def main() -> None:
        async with Broker(tmp_path / "bookie") as broker:
            client = await broker.client()
            topic = await broker.topic()
            topic.wall_clock = lambda: 1_000_000.0
            await client.subscribe()
            await broker.publish(b"one")
            if is_terminated:
                await topic.terminate()
            # As the node of a cursor says that nobody has used since long ago.
            cursor = topic.subscriptions["s"].cursor
            await cursor._write_node(-1)
            killed = broker.node.kill()
            async with killed as node:
                managed_ledger = await node.open()
                cursor = managed_ledger.cursors["s"]
                assert cursor.last_active_ms >= node.client.started_ms

    asyncio.run(main())

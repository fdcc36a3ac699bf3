"""Why a topic or a subscription does not move: a broker is put into each state of the tables."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import re
import string
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from bad_disk import EIO, Disk
from compacting import compact, single
from one_bookie import append, until
from one_broker import TOPIC, Broker, Client, data_of, section
from pyxbroker.admin import store_check
from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.times import iso_ms
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands import seek
from pyxbroker.broker.dispatch.redelivery import RedeliverEntries
from pyxbroker.broker.dispatch.replay import Replay
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.topics import loading
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.transactions import topic_buffer
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.pending_ack_handle import PendingAckStores
from pyxbroker.broker.transactions.topic_buffer import TransactionBuffer
from pyxbroker.broker.why import delivery, opening, publishing, refusals
from pyxbroker.broker.why.rules import Rule, first
from pyxbroker.ledger.errors import LedgerFenced, NoSuchEntry
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.metadata import paths
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.state import State
from pyxbroker.proto import PulsarApi as pb
from test_admin_topics import P, Rest
from test_publish_gate import HASTY, PATIENT, fill_up
from test_schemas import avro, sent
from test_transactional_acks import ack
from test_transactions_of_topics import ON, published
from transactions import add_coordinators, add_partition, new, transactions_of

LEDGERS = "public/default/persistent/t"
OTHER = "persistent://public/default/other"
EXCLUSIVE = {"subType": pb.CommandSubscribe.Exclusive}
FAILOVER = {"subType": pb.CommandSubscribe.Failover}
KEY_SHARED = {"subType": pb.CommandSubscribe.Key_Shared}
OF_TRANSACTION = "/admin/v3/transactions/transactionMetadata"
TIMEOUT_S = 20.0
NON_PERSISTENT = "non-persistent://public/default/t"


class Stage(NamedTuple):
    """What a scene has at hand."""

    broker: Broker
    rest: Rest
    patch: pytest.MonkeyPatch

    async def topic(self) -> PersistentTopic:
        topic = await self.broker.topic()
        assert isinstance(topic, PersistentTopic)
        return topic

    async def policies(self, **record: Any) -> None:
        path = paths.namespace_policies("public/default")
        topic = await self.topic()
        before = topic.policies
        await self.broker.node.store.put(path, json.dumps(record).encode())
        await until(lambda: topic.policies is not before)

    async def subscription(self) -> Any:
        """The subscription "s", which has no consumer."""
        topic = await self.topic()
        return await topic.subscription_for("s", topic.first_position(), {}, True)


Scene = Callable[[Stage], AsyncIterator[None]]


class Case(NamedTuple):
    scene: Callable[[Stage], Any]
    settings: dict[str, Any]
    path: str


CASES: dict[str, Case] = {}


def case(reason: str, path: str = "", **settings: Any) -> Callable[[Scene], Scene]:
    """The scene that ends in a state whose reason is the named one, as its topic says or, with
    /subscription/s, its subscription. It is cleared up behind its `yield`.
    """

    def add(scene: Scene) -> Scene:
        assert reason not in CASES
        CASES[reason] = Case(asynccontextmanager(scene), settings, f"{P}/t{path}/why")
        return scene

    return add


S = "/subscription/s"
RULES: tuple[Rule[Any], ...] = (*opening.RULES, *publishing.RULES, *delivery.RULES)


@pytest.mark.parametrize("reason", [each.reason for each in RULES])
def test_each_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    scene, settings, path = CASES[reason]

    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            rest = Rest(broker)
            async with scene(Stage(broker, rest, monkeypatch)):
                status, answer = await rest("GET", path)
                assert (status, answer.get("reason")) == (200, reason), answer
                assert "{" not in answer["sentence"] and answer["sentence"].endswith(".")
                assert answer["topic"] == TOPIC
                assert answer["owner"] == broker.service.broker_id
                if "subscription" in path:
                    assert f"/subscription/{answer['subscription']}/" in path
                if S in path and reason in {each.reason for each in delivery.RULES}:
                    # The topic's answer has the same line about it.
                    _, whole = await rest("GET", path.replace(S, ""))
                    lines = {each["subscription"]: each for each in whole["subscriptions"]}
                    assert lines["s"]["reason"] == reason

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_each_rule_has_a_name_of_its_own_and_names_fields_of_its_snapshot() -> None:
    names = [rule.reason for rule in RULES]
    assert len(names) == len(set(names)) == len(CASES)
    for rules, snapshot in (
        (opening.RULES, opening.OpeningState),
        (publishing.RULES, publishing.PublishingState),
        (delivery.RULES, delivery.DeliveryState),
        (delivery.CONSUMER_RULES, delivery.ConsumerState),
    ):
        fields = {each.name for each in dataclasses.fields(snapshot)}
        for rule in rules:
            in_sentence = {name for _, name, _, _ in string.Formatter().parse(rule.sentence)}
            assert in_sentence - {None} <= fields, rule.reason
            assert set(rule.evidence) <= fields, rule.reason
            assert not rule.since or rule.since in fields, rule.reason
    assert set(delivery.COMMON) <= {
        each.name for each in dataclasses.fields(delivery.DeliveryState)
    }


# --- a topic that is not open ---------------------------------------------------------------------


@case("partitioned")
async def _(stage: Stage) -> AsyncIterator[None]:
    assert await stage.rest("PUT", P + "/t/partitions", "4") == (204, None)
    yield


class Held:
    """A coroutine function whose calls wait until go()."""

    def __init__(self, stage: Stage, owner: Any, name: str) -> None:
        self.waiting = 0
        self._go = asyncio.Event()
        call = getattr(owner, name)

        async def wait(*arguments: Any, **named: Any) -> Any:
            self.waiting += 1
            await self._go.wait()
            return await call(*arguments, **named)

        stage.patch.setattr(owner, name, wait)

    def go(self) -> None:
        self._go.set()

    @asynccontextmanager
    async def within(
        self, call: Awaitable[Any], reached: Callable[[], object] | None = None
    ) -> AsyncIterator[None]:
        """A call that has come so far, and continues at the end of the block."""
        task = asyncio.ensure_future(call)
        try:
            await until(reached or (lambda: self.waiting))
            yield
        finally:
            self.go()
            with suppress(Exception):
                await task


@case("waits_to_open", maxConcurrentTopicLoadRequest=1)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.topic(OTHER + "-first")  # reads the policies
    held = Held(stage, loading, "open_managed_ledger")
    name, loader = TopicName.get(TOPIC), stage.broker.topics.loader

    def is_in_queue() -> bool:
        opening_of = loader.opening_of(name)
        return opening_of is not None and opening_of.step is loading.OpeningStep.QUEUE

    async with (
        held.within(stage.broker.topic(OTHER)),
        held.within(stage.topic(), is_in_queue),
    ):
        yield


@case("recovering")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.topic(OTHER)  # reads the policies
    held = Held(stage, loading, "open_managed_ledger")
    async with held.within(stage.topic()):
        yield


@case("loading")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.topic(OTHER)  # reads the policies
    held = Held(stage, PersistentTopic, "prepare")
    async with held.within(stage.topic()):
        yield


@case("topic_being_deleted")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.topic()
    held = Held(stage, PersistentTopic, "delete")
    async with held.within(stage.rest("DELETE", P + "/t")):
        yield


@case("fenced")
async def _(stage: Stage) -> AsyncIterator[None]:
    log = (await stage.topic()).managed_ledger
    node = await stage.broker.node.store.get(paths.managed_ledger(LEDGERS))
    assert node is not None
    await stage.broker.node.store.put(paths.managed_ledger(LEDGERS), node.value)
    log.roll_over()
    await until(lambda: log.state is State.FENCED)
    yield


@case("ledger_failed")
async def _(stage: Stage) -> AsyncIterator[None]:
    log = (await stage.topic()).managed_ledger
    assert log.current is not None
    log.on_ledger_failed(log.current, LedgerFenced("ledger 0 has another writer"))
    yield


@case("closing")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.topic()
    held = Held(stage, ManagedLedger, "close")
    async with held.within(stage.rest("PUT", P + "/t/unload")):
        yield


@case("not_open")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.topic()
    assert await stage.rest("PUT", P + "/t/unload") == (204, None)
    yield


# --- publishing -----------------------------------------------------------------------------------


async def producer(stage: Stage, **fields: Any) -> Client:
    client = await stage.broker.client()
    await client.produce(**fields)
    return client


@asynccontextmanager
async def unconfirmed(stage: Stage) -> AsyncIterator[None]:
    """What is added to ledgers is not confirmed until the block ends."""
    confirm = LedgerHandle.on_adds_acked
    acked: list[Any] = []
    stage.patch.setattr(LedgerHandle, "on_adds_acked", lambda *what: acked.append(what))
    try:
        yield
    finally:
        stage.patch.setattr(LedgerHandle, "on_adds_acked", confirm)
        for handle, *what in acked:
            stage.broker.node.turn.run(confirm, handle, *what)


@case("terminated")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.publish(b"last")
    await stage.rest("POST", P + "/t/terminate")
    yield


@case("journal_failed")
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    topic = await stage.topic()
    stage.broker.node.faults.rule("fdatasync", ".journal", errno=errno.EIO)
    client.publish(0, b"lost")
    await until(lambda: topic.managed_ledger.write_failure is not None)
    yield


@case("storage_refuses", **HASTY)
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    await fill_up(stage.broker)
    client.publish(0, b"refused")
    await client.receive("close_producer")
    yield


@case("storage_holds", **PATIENT)
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    await fill_up(stage.broker)
    client.publish(0, b"waits")
    yield
    stage.broker.node.faults.clear()
    await until(lambda: stage.broker.storage_state.refusal is None)


@case("not_enough_bookies")
async def _(stage: Stage) -> AsyncIterator[None]:
    log = (await stage.topic()).managed_ledger
    log.set_limits(log.limits._replace(quorums=LedgerQuorums(2, 2, 2)))
    log.roll_over()
    await until(lambda: log.state is State.TOO_FEW_BOOKIES)
    yield


async def exceed_quota(stage: Stage, policy: str) -> None:
    await stage.subscription()
    quota = {"destination_storage": {"limitSize": 1000, "policy": policy}}
    await stage.policies(backlog_quota_map=quota)
    await stage.broker.publish(bytes(2000))


@case("backlog_quota_hold")
async def _(stage: Stage) -> AsyncIterator[None]:
    await exceed_quota(stage, "producer_request_hold")
    yield


@case("backlog_quota_exception")
async def _(stage: Stage) -> AsyncIterator[None]:
    await exceed_quota(stage, "producer_exception")
    yield


@case("waits_for_ledger")
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    log = (await stage.topic()).managed_ledger
    held = Held(stage, ManagedLedger, "begin_ledger")
    log.roll_over()
    client.publish(0, b"waits")
    yield
    held.go()
    await client.receive("send_receipt")


@case("waits_for_exclusive_access")
async def _(stage: Stage) -> AsyncIterator[None]:
    await producer(stage, producer_access_mode=pb.Exclusive, producer_name="first")
    await producer(stage, producer_access_mode=pb.WaitForExclusive, producer_name="second")
    yield


@case("topic_publish_rate")
async def _(stage: Stage) -> AsyncIterator[None]:
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    client = await producer(stage)
    await stage.policies(publishMaxMessageRate={"standalone": rate})
    await publish_much(client)
    yield


@case("broker_publish_rate", brokerPublisherThrottlingMaxMessageRate=1)
async def _(stage: Stage) -> AsyncIterator[None]:
    await publish_much(await producer(stage))
    yield


async def publish_much(client: Client) -> None:
    for number in range(5):
        client.publish(number, b"x")
    await client.receive("send_receipt")
    assert client.connection.throttling_rates


@case("write_cache_full")
async def _(stage: Stage) -> AsyncIterator[None]:
    await producer(stage)
    stage.broker.node.on_full(True)
    yield
    stage.broker.node.on_full(False)


@case("publish_buffer_full")
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    stage.broker.node.connections.publish_bytes_max = 100
    async with unconfirmed(stage):
        client.publish(0, bytes(1000))
        await until(lambda: client.connection.is_paused)
        yield


@case("deduplication_waits", brokerDeduplicationEnabled=True)
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage, producer_name="p")
    topic = await stage.topic()
    async with unconfirmed(stage):
        client.publish(0, b"not stored yet")
        await until(lambda: topic.producers["p"].pending_sends)
        client.connection.close()
        await until(lambda: not topic.producers)
        again = await producer(stage, producer_name="p")
        yield
    assert again.connection.producers


@case("pending_sends_limit")
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    stage.broker.node.connections.sends_max = 2
    async with unconfirmed(stage):
        for number in range(3):
            client.publish(number, b"x")
        await until(lambda: client.connection.is_paused)
        yield


@case("producer_does_not_read")
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    client.connection.send_frame(bytes(12 << 20))
    await until(lambda: client.connection.is_paused)
    yield


@case("connection_busy")
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    client.connection.pause_commands(True)
    yield


@case("waits_for_storage")
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await producer(stage)
    async with unconfirmed(stage):
        client.publish(0, b"x")
        await until(lambda: client.connection.pending_sends)
        state = await publishing.publishing_state(stage.broker.service, await stage.topic())
        rule = first(publishing.RULES, state)
        assert rule is not None and rule.reason == "publishing"  # the send is not late yet
        stage.patch.setattr(publishing, "UNCONFIRMED_MS", 0)
        yield


@case("schema_incompatible")
async def _(stage: Stage) -> AsyncIterator[None]:
    first = await producer(stage, schema=sent(avro("a")))
    await first.request(pb.CommandCloseProducer(producer_id=1, request_id=0), "success")
    text = pb.Schema(name="", schema_data=b"", type=pb.Schema.String)
    refused = await first.produce(2, schema=text)
    assert refused.error == pb.IncompatibleSchema
    yield


@case("producer_refused")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.policies(encryption_required=True)
    client = await stage.broker.client()
    assert (await client.produce()).error == pb.MetadataError
    yield
    assert (await client.produce(encrypted=True)).producer_name
    _, answer = await stage.rest("GET", P + "/t/why")
    assert answer["reason"] == "publishing", "it is over"


@case("no_producer")
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.topic()
    yield


@case("publishing")
async def _(stage: Stage) -> AsyncIterator[None]:
    await producer(stage)
    yield


# --- delivery -------------------------------------------------------------------------------------


async def consumer(stage: Stage, **fields: Any) -> Client:
    client = await stage.broker.client()
    await client.subscribe(**fields)
    return client


@case("cursor_unreadable", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.rest("PUT", P + "/t/unload")
    await stage.broker.node.store.put(paths.cursor(LEDGERS, "s"), b"\xff\xff\xff\xff")
    await stage.topic()
    yield


@case("seeking", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await consumer(stage)
    with seek.moving((await stage.topic()).subscriptions["s"]):
        yield


@case("subscription_being_deleted", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await consumer(stage)
    held = Held(stage, Cursor, "delete")
    command = pb.CommandUnsubscribe(consumer_id=1, request_id=0)
    async with held.within(client.request(command, "success")):
        yield


@case("moved_by_compaction", "/subscription/__compaction")
async def _(stage: Stage) -> AsyncIterator[None]:
    await (await stage.topic()).compaction_subscription()
    yield


@case("end_of_topic", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.rest("POST", P + "/t/terminate")
    yield


@case("nothing_to_deliver", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await consumer(stage)
    yield


@case("consumer_joining", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.broker.publish(b"x")
    held = Held(stage, PersistentTopic, "_read_compacted")
    client = await stage.broker.client()
    async with held.within(client.subscribe(read_compacted=True, **EXCLUSIVE)):
        yield


@case("consumer_refused", S, maxConsumersPerTopic=1)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.broker.publish(b"x")
    client = await consumer(stage, subscription="another")
    assert (await client.subscribe(2, permits=0)).error == pb.ConsumerBusy
    yield
    stage.patch.setattr(refusals, "RECENT_S", -1.0)
    _, answer = await stage.rest("GET", P + "/t/subscription/s/why")
    assert answer["reason"] == "no_consumer", "an old refusal is no reason"


@case("no_consumer", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.broker.publish(b"x")
    yield


@case("failover_delay", S, activeConsumerFailoverDelayTimeMillis=60_000)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.broker.publish(b"x")
    await consumer(stage, consumer_name="c", **FAILOVER)
    yield


async def lose(stage: Stage, count: int) -> None:
    """The first entries behind the first one are lost; the consumer has the others."""
    await stage.subscription()
    positions = await stage.broker.publish(*data_of(100))
    Disk(stage.broker.node.bookie).lost = set(positions[1 : 1 + count])
    await consumer(stage)


@case("damaged_entries", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await lose(stage, 80)
    found = (await stage.topic()).subscriptions["s"]
    await until(lambda: found.dispatcher.stopped_by_damage is not None)
    yield


@case("read_fails", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.broker.publish(b"x")
    disk = Disk(stage.broker.node.bookie)
    disk.error = EIO
    await consumer(stage)
    await until(lambda: disk.reads)
    await asyncio.sleep(0.02)
    yield


@case("returning_deliveries", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.publish(*data_of(1500))
    client = await consumer(stage, permits=2000)
    await client.messages(1500)
    stage.patch.setattr(RedeliverEntries, "_return_later", lambda self: None)
    client.redeliver()
    await client.quiet()
    yield


@case("subscription_unacked_limit", S, maxUnackedMessagesPerSubscription=20)
async def _(stage: Stage) -> AsyncIterator[None]:
    await deliver_to_limit(stage)
    yield


@case(
    "broker_unacked_limit",
    S,
    maxUnackedMessagesPerBroker=20,
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked=0.1,
)
async def _(stage: Stage) -> AsyncIterator[None]:
    await deliver_to_limit(stage)
    yield


@case("consumer_unacked_limit", S, maxUnackedMessagesPerConsumer=20)
async def _(stage: Stage) -> AsyncIterator[None]:
    await deliver_to_limit(stage)
    yield


async def deliver_to_limit(stage: Stage) -> None:
    await stage.broker.publish(*data_of(50))
    await (await consumer(stage)).messages(20)


@case("consumer_does_not_read", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    for _ in range(10):
        await stage.broker.publish(*[bytes(100_000)] * 10)
    client = await stage.broker.client()
    await client.subscribe()
    await until(lambda: client.connection.is_delivery_paused)
    yield


@case("no_permits", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.publish(*data_of(10))
    await (await consumer(stage, permits=5)).messages(5)
    yield


@case("broker_dispatch_rate", S, dispatchThrottlingRateInMsg=1)
async def _(stage: Stage) -> AsyncIterator[None]:
    await use_up(stage)
    yield


@case("topic_dispatch_rate", S, dispatchThrottlingRatePerTopicInMsg=1)
async def _(stage: Stage) -> AsyncIterator[None]:
    await use_up(stage)
    yield


@case("subscription_dispatch_rate", S, dispatchThrottlingRatePerSubscriptionInMsg=1)
async def _(stage: Stage) -> AsyncIterator[None]:
    await use_up(stage)
    yield


async def use_up(stage: Stage) -> None:
    await stage.subscription()
    await stage.broker.publish(*data_of(50))
    await (await consumer(stage)).messages(1)


@case("too_many_acknowledged_ranges", S, managedLedgerMaxUnackedRangesToPersist=5)
async def _(stage: Stage) -> AsyncIterator[None]:
    client = await consumer(stage)
    await stage.policies(dispatcherPauseOnAckStatePersistentEnabled=True)
    await stage.broker.publish(*data_of(20))
    got = [each.position for each in await client.messages(20)]
    await client.ack(*got[1::2])
    await stage.broker.publish(b"one too many")
    assert await client.quiet() == []
    yield


@case("delayed_messages_full", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await delay(stage)
    stage.patch.setattr(Replay, "is_full", property(lambda self: True))
    yield


async def delay(stage: Stage) -> None:
    await stage.subscription()
    when = int((time.time() + 3600) * 1000)
    topic = await stage.topic()
    await append(topic.managed_ledger, section(b"x", deliver_at_time=when))
    client = await consumer(stage)
    await until(lambda: topic.subscriptions["s"].dispatcher.delayed_entries)
    assert await client.quiet() == []


@case("chunks_wait", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    topic = await stage.topic()
    first = await consumer(stage, permits=1, consumer_name="first")
    of_chunk = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
    await append(topic.managed_ledger, section(b"a", chunk_id=0, **of_chunk))
    await first.messages(1)
    second = await consumer(stage, consumer_name="second")
    await append(topic.managed_ledger, section(b"b", chunk_id=1, **of_chunk))
    assert await second.quiet() == []
    yield


async def publish_keys(stage: Stage, count: int = 50) -> None:
    topic = await stage.topic()
    sections = [section(b"x", partition_key=f"key-{number}") for number in range(count)]
    await append(topic.managed_ledger, *sections)


@case("key_without_consumer", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    meta = pb.KeySharedMeta(
        keySharedMode=pb.KeySharedMode.STICKY, hashRanges=[pb.IntRange(start=0, end=30_000)]
    )
    client = await consumer(stage, keySharedMeta=meta.SerializeToString(), **KEY_SHARED)
    await publish_keys(stage)
    await client.quiet()
    yield


@case("blocked_key", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    first = await consumer(stage, consumer_name="first", **KEY_SHARED)
    await publish_keys(stage)
    await first.messages(50)
    second = await consumer(stage, consumer_name="second", **KEY_SHARED)
    await publish_keys(stage)
    await second.quiet()
    yield
    _, answer = await stage.rest("GET", P + "/t/subscription/s/why")
    assert answer["evidence"]["blockingConsumer"] == "first"
    key = answer["evidence"]["blockedKeys"][0]
    assert (key["unackedBy"], key["waitsFor"]) == ("first", "second")
    assert (key["unackedEntries"], key["waitingEntries"]) == (1, 1)
    oldest = tuple(map(int, key["oldestUnacked"].split(":")))
    assert first.connection.consumers[1].key_hash_of(*oldest) == key["hash"]


@case("key_owner_blocked", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await consumer(stage, permits=0, consumer_name="idle", **KEY_SHARED)
    client = await consumer(stage, consumer_name="busy", **KEY_SHARED)
    await publish_keys(stage)
    await client.quiet()
    yield


@case("reading", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    await stage.broker.publish(b"x")
    log = (await stage.topic()).managed_ledger
    stage.patch.setattr(log, "read_cached", lambda *_: None, raising=False)
    stage.patch.setattr(log, "read", lambda *_: None, raising=False)
    await consumer(stage)
    await until(lambda: log.cursors["s"] and True)
    await asyncio.sleep(0.02)
    yield


@case("delayed", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await delay(stage)
    yield


@case("lost_entries", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await lose(stage, 2)
    found = (await stage.topic()).subscriptions["s"]
    await until(lambda: found.dispatcher.read_position.entry_id == 100)
    yield


@case("end_of_compacted_view", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.subscription()
    topic = await stage.topic()
    await append(topic.managed_ledger, *(single("key", b"%d" % n) for n in range(10)))
    await compact(topic)
    client = await consumer(stage, read_compacted=True, **EXCLUSIVE)
    await client.messages(1)
    await client.quiet()
    yield


@case("waits_for_acknowledgements", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.publish(*data_of(10))
    await (await consumer(stage)).messages(10)
    yield


@case("moving", S)
async def _(stage: Stage) -> AsyncIterator[None]:
    await stage.broker.publish(*data_of(10))
    client = await consumer(stage, permits=0)
    stage.patch.setattr(
        (await stage.topic()).subscriptions["s"].dispatcher.__class__, "wake", lambda self: None
    )
    client.flow(10)
    await until(lambda: client.connection.consumers[1].permits)
    yield


# --- transactions ---------------------------------------------------------------------------------


@asynccontextmanager
async def transaction(stage: Stage) -> AsyncIterator[tuple[Client, TxnId]]:
    """A client with a producer and the consumer of "s", and an open transaction."""
    await add_coordinators(stage.broker, 1)
    client = await consumer(stage)
    await client.produce()
    yield client, await new(client)
    await transactions_of(stage.broker).close()


async def reopened(stage: Stage) -> None:
    """The topic is open again, and has no consumer."""
    await stage.rest("PUT", P + "/t/unload")
    await stage.topic()


async def acknowledged(stage: Stage, client: Client, txn: TxnId) -> None:
    """The only message is acknowledged in a transaction."""
    await published(client, 0, (b"x", None))
    message = (await client.messages(1))[0]
    assert await ack(client, txn, message.position) == (None, "")


@case("open_transaction", S, **ON)
async def _(stage: Stage) -> AsyncIterator[None]:
    async with transaction(stage) as (client, txn):
        await published(client, 0, (b"x", txn))
        yield


@case("transactions_recovering", S, **ON)
async def _(stage: Stage) -> AsyncIterator[None]:
    async with transaction(stage) as (client, txn):
        await published(client, 0, (b"x", txn))
        held = Held(stage, TransactionBuffer, "_recover")
        await reopened(stage)
        await consumer(stage)
        yield
        held.go()


@case("transactions_unreadable", S, **ON)
async def _(stage: Stage) -> AsyncIterator[None]:
    def lose(*_: Any) -> None:
        raise NoSuchEntry("a test")

    async with transaction(stage) as (client, txn):
        await published(client, 0, (b"x", txn))
        stage.patch.setattr(topic_buffer, "read_batches", lose)
        await reopened(stage)
        await consumer(stage)
        yield


@case("pending_in_transactions", S, **ON)
async def _(stage: Stage) -> AsyncIterator[None]:
    async with transaction(stage) as (client, txn):
        await acknowledged(stage, client, txn)
        yield


@case("pending_acks_unreadable", S, **ON)
async def _(stage: Stage) -> AsyncIterator[None]:
    async def fail(*_: Any, **__: Any) -> None:
        raise LedgerFenced("a test")

    async with transaction(stage) as (client, txn):
        await acknowledged(stage, client, txn)
        stage.patch.setattr(PendingAckStores, "open_ledger", fail)
        await reopened(stage)
        assert (await (await stage.broker.client()).subscribe()).error
        yield


@case("pending_acks_recovering", S, **ON)
async def _(stage: Stage) -> AsyncIterator[None]:
    async with transaction(stage) as (client, txn):
        await acknowledged(stage, client, txn)
        held = Held(stage, PendingAckStores, "open_ledger")
        await reopened(stage)
        await until(lambda: held.waiting)
        yield
        held.go()


def test_an_open_transaction_is_named_with_its_end_until_it_is_aborted(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        stage = Stage(broker, rest, cast(Any, None))
        async with transaction(stage) as (client, txn):
            await published(client, 0, (b"x", txn), (b"y", None))
            answer = await why(rest)
            assert answer["sentence"].endswith(
                f"for the end of the transaction {txn}. It is open, and was begun by a client with"
                " a timeout of 60000 ms. To abort it: pyxbroker admin transactions"
                f" abort-transaction -m {txn.most} -l {txn.least}."
            )
            evidence = answer["evidence"]
            assert (evidence["transaction"], evidence["openTransactions"]) == (str(txn), 1)
            _, metadata = await rest("GET", f"{OF_TRANSACTION}/{txn.most}/{txn.least}")
            assert answer["since"] == iso_ms(metadata["openTimestamp"])
            assert (await add_partition(client, txn, TOPIC)).error == 0
            path = f"/admin/v3/transactions/abortTransaction/{txn.most}/{txn.least}"
            assert (await rest("POST", path))[0] == 204
            assert [each.data for each in await client.messages(1)] == [b"y"]
            assert (await why(rest))["reason"] == "waits_for_acknowledgements"

    run(tmp_path, scenario, **ON)


def test_a_transaction_that_its_coordinator_does_not_know_is_named(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        async with transaction(Stage(broker, rest, cast(Any, None))) as (client, _):
            await published(client, 0, (b"x", TxnId(0, 77)))
            assert "has ended it, or has never begun it" in (await why(rest))["sentence"]
            assert "since" not in await why(rest)

    run(tmp_path, scenario, **ON)


async def why(rest: Rest) -> Any:
    status, answer = await rest("GET", P + "/t/subscription/s/why")
    assert status == 200
    return answer


# --- consumers, other topics, other brokers -------------------------------------------------------


async def reasons(rest: Rest, path: str = "/t/subscription/s/why") -> dict[str, str]:
    """The reason of each consumer of a subscription, by its name."""
    status, answer = await rest("GET", P + path)
    assert status == 200
    consumers = answer["evidence"]["consumers"]
    return {each["consumerName"]: each["reason"] for each in consumers}


def run(
    tmp_path: Path, scenario: Callable[[Broker, Rest], Awaitable[None]], **settings: Any
) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            await scenario(broker, Rest(broker))

    asyncio.run(main())


def test_each_consumer_has_a_reason_of_its_own(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        clients = [await broker.client() for _ in range(2)]
        await broker.publish(*data_of(30))
        for client, name in zip(clients, "ab", strict=True):
            await client.subscribe(consumer_name=name, permits=10, **FAILOVER)
        found = await reasons(rest)
        assert sorted(found.values()) == ["no_permits", "waits_for_turn"]
        for client, name in zip(clients, "ab", strict=True):
            await client.subscribe(2, subscription="u", consumer_name=name, permits=0)
        clients[0].flow(100, 2)
        await until(lambda: clients[0].connection.consumers[2].is_at_limit)
        found = await reasons(rest, "/t/subscription/u/why")
        assert found == {"a": "unacked_limit", "b": "no_permits"}
        clients[1].flow(1, 2)
        await until(lambda: clients[1].connection.consumers[2].permits == 0)
        clients[1].flow(10_000, 2)
        await clients[1].quiet()
        assert await reasons(rest, "/t/subscription/u/why") == {"a": "unacked_limit", "b": "ready"}

    run(
        tmp_path,
        scenario,
        maxUnackedMessagesPerConsumer=20,
        activeConsumerFailoverDelayTimeMillis=0,
    )


def test_what_consumers_of_a_non_persistent_topic_do_not_ask_for_is_dropped(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        client = await broker.client()
        await client.subscribe(topic=NON_PERSISTENT, permits=1, consumer_name="c")
        await client.produce(topic=NON_PERSISTENT)
        path = P.replace("persistent", "non-persistent") + "/t"
        _, answer = await rest("GET", path + "/subscription/s/why")
        assert answer["reason"] == "moving"
        for number in range(3):
            client.publish(number, b"x")
        await client.messages(1)
        await client.receive("send_receipt")
        await client.quiet()
        _, answer = await rest("GET", path + "/subscription/s/why")
        assert answer["reason"] == "no_permits"
        assert answer["evidence"]["droppedMessages"] == 2
        _, answer = await rest("GET", path + "/why")
        assert answer["reason"] == "publishing"

    run(tmp_path, scenario)


def test_what_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        assert await rest.reason("GET", P + "/t/why") == (404, f"Topic {TOPIC} does not exist.")
        assert (await rest.reason("GET", P + "/t/subscription/s/why"))[0] == 404
        assert (await rest.reason("GET", P.replace("default", "x") + "/t/why"))[0] == 404
        await broker.topic()
        assert await rest.reason("GET", P + "/t/subscription/s/why") == (
            404,
            f"Subscription s not found for topic {TOPIC}",
        )

    run(tmp_path, scenario)


def test_a_question_opens_no_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        topic = await broker.topic()
        await topic.subscription_for("s", topic.first_position(), {}, True)
        assert await rest("PUT", P + "/t/unload") == (204, None)
        for path in ("/t/why", "/t/subscription/s/why"):
            status, answer = await rest("GET", P + path)
            assert (status, answer["reason"]) == (200, "not_open")
        assert (await rest("GET", P + "/t/subscription/x/why"))[0] == 404
        assert broker.topics.registry.find(TopicName.get(TOPIC)) is None
        monkeypatch.setattr(broker.service, "failure", lambda: "Too few bookies.")
        sentence = (await rest("GET", P + "/t/why"))[1]["sentence"]
        assert sentence == (
            "The topic is not open. The broker opens it for the next client. Too few bookies."
        )

    run(tmp_path, scenario)


def test_another_broker_that_owns_the_topic_answers(tmp_path: Path) -> None:
    class Elsewhere:
        async def find(self, *what: Any) -> Redirect:
            return Redirect(Addresses("pulsar://b:1", "http://b:2"), True)

        find_of_bundle = check = find

    async def scenario(broker: Broker, rest: Rest) -> None:
        await broker.topic()
        broker.service.__dict__["ownership"] = Elsewhere()
        for path in ("/t/why", "/t/subscription/s/why"):
            answer = await rest.answer("GET", P + path)
            assert answer.status == 307
            assert ("Location", f"http://b:2{P}{path}?authoritative=true") in answer.headers

    run(tmp_path, scenario)


@pytest.mark.parametrize("names", [{"topic": b"\xff"}, {"topic": TOPIC, "subscription": b"\xff"}])
def test_refusals_of_names_that_are_no_text_are_not_remembered(names: dict[str, Any]) -> None:
    found = refusals.LastRefusals()
    found.note(SimpleNamespace(**names), InvalidTopicName("no text"), "peer")
    assert found.recent(TopicName.get(TOPIC)) is None


def test_no_more_refusals_are_remembered_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "REFUSALS_MAX", 2)

    async def scenario(broker: Broker, rest: Rest) -> None:
        client = await broker.client()
        for name in ("a", "b", "c", "not//a:name"):
            topic = name if "/" in name else f"persistent://public/missing/{name}"
            assert (await client.produce(topic=topic)).error
        found = broker.service.last_refusals
        names = [TopicName.get(f"persistent://public/missing/{each}") for each in "abc"]
        assert [found.recent(each) is None for each in names] == [True, False, False]
        refusal = found.recent(names[2])
        assert refusal is not None and cast("str", refusal.error) == "TopicNotFound"

    run(tmp_path, scenario)


def test_the_page_for_operators_has_each_reason_in_its_order() -> None:
    page = (Path(__file__).parent.parent / "docs" / "operations.md").read_text()
    section = page.partition("## Why does it not move?")[2].partition("\n## ")[0]
    _, *tables = section.split("| what to do |")
    for table, rules in zip(tables, (opening.RULES, publishing.RULES, delivery.RULES), strict=True):
        cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        names = re.findall(r"`(\w+)`", " ".join(cells))
        assert names == [rule.reason for rule in rules]


def test_a_metadata_store_that_does_not_answer_is_named_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_check, "STORE_TIMEOUT_S", 0.05)

    async def main() -> None:
        async with Broker(tmp_path / "bookie") as broker:
            rest = Rest(broker)
            silent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            monkeypatch.setattr(broker.service.metadata, "get", lambda path: silent)
            for path in ("/t/why", "/t/subscription/s/why"):
                silent = asyncio.get_running_loop().create_future()
                status, answer = await rest("GET", P + path)
                assert (status, answer["reason"].partition(" (")[0]) == (503, "The metadata store")
                assert "has not answered for 0.05 s" in answer["reason"]

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))

"""Policies: what the table says, how levels are resolved, and that open topics follow at once."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from metadata_backends import Backend, coroutine_test
from one_bookie import append, until
from one_broker import TOPIC, Broker, Client, data_of, run, section
from pyxbroker.base.errors import MetadataStoreError, PersistenceError, TopicNotFound
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import GetResult, MetadataStore, Unavailable
from pyxbroker.mledger.state import State
from pyxbroker.policies import namespaces
from pyxbroker.policies.namespaces import NamespacePolicies
from pyxbroker.policies.page import markdown, settings_of
from pyxbroker.policies.resolver import Record, resolve
from pyxbroker.policies.shapes import CLUSTER, Level, Part, Policy
from pyxbroker.policies.shapes import Path as Path_
from pyxbroker.policies.table import NAMES, TABLE, of_broker
from pyxbroker.policies.values import (
    SUBSCRIPTION_TYPES,
    BacklogQuota,
    DispatchRate,
    InactiveTopics,
    Policies,
    Rate,
    Retention,
)
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import SCHEMA, Config
from test_expiry import NOW_S, message, subscription_of

PATH = paths.namespace_policies("public/default")
NAME = TopicName.get(TOPIC)
BY_NAME = {row.name: row for row in TABLE}
ABOVE_BROKER = [row for row in TABLE if row.paths]
OF_NAMESPACES = [row for row in TABLE if Level.NAMESPACE in row.paths]
SECONDS_MAX = 30.0  # until a change is in force, on a machine that others use


async def change(broker: Broker, fields: dict[str, Any] | None) -> None:
    """Writes the namespace's record (None: deletes it) as another process does, and no more."""
    if fields is None:
        await broker.node.store.delete(PATH)
    else:
        await broker.node.store.put(PATH, json.dumps(fields).encode())


async def in_force(topic: Topic, name: str, value: object) -> None:
    """Waits until a policy of an open topic has a value, as long as that may take."""
    await until(lambda: getattr(topic.policies, name) == value, SECONDS_MAX)


# --- one effect for each policy of a namespace ----------------------------------------------------


Effect = Callable[[Broker, Client, Topic], Awaitable[None]]


async def auto_topic_creation(broker: Broker, client: Client, topic: Topic) -> None:
    override = {"allowAutoTopicCreation": False}
    await change(broker, {"autoTopicCreationOverride": override})
    await until(lambda: not topic.policies.auto_topic_creation.allowed, SECONDS_MAX)
    assert (await client.produce(2, topic=TOPIC + "-new")).error == pb.TopicNotFound
    await change(broker, {})
    await until(lambda: topic.policies.auto_topic_creation.allowed, SECONDS_MAX)
    assert (await client.produce(2, topic=TOPIC + "-new")).producer_name


async def auto_subscription_creation(broker: Broker, client: Client, topic: Topic) -> None:
    override = {"allowAutoSubscriptionCreation": False}
    await change(broker, {"autoSubscriptionCreationOverride": override})
    await in_force(topic, "auto_subscription_creation", False)
    assert (await client.subscribe(2, subscription="new")).error == pb.SubscriptionNotFound
    refused = await client.produce(2, initial_subscription_name="new")
    assert refused.error == pb.NotAllowedError
    await change(broker, {})
    await in_force(topic, "auto_subscription_creation", True)
    await client.subscribe(2, subscription="new")
    assert "new" in topic.subscriptions


async def inactive_topics(broker: Broker, client: Client, topic: Topic) -> None:
    record = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 0,
        "deleteWhileInactive": False,
    }
    await change(broker, {"inactive_topic_policies": record})
    await until(lambda: not topic.policies.inactive_topics.delete, SECONDS_MAX)
    await broker.topics.inactive.delete_all()
    assert topic in broker.topics.registry
    await change(broker, {"inactive_topic_policies": record | {"deleteWhileInactive": True}})
    await until(lambda: topic.policies.inactive_topics.delete, SECONDS_MAX)
    await broker.topics.inactive.delete_all()
    assert topic not in broker.topics.registry


async def retention(broker: Broker, client: Client, topic: Topic) -> None:
    for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    await change(broker, {"retention_policies": for_ever})
    await in_force(topic, "retention", (-60.0, -1 << 20))
    for number in range(3):
        await broker.publish(b"%d" % number)
        topic.managed_ledger.roll_over()
        await topic.managed_ledger.finish_tasks()
    assert len(topic.managed_ledger.ledgers) == 4
    await change(broker, {})
    # Nobody asks for it: what is not kept any more goes at once.
    await until(lambda: len(topic.managed_ledger.ledgers) == 1, SECONDS_MAX)


async def persistence(broker: Broker, client: Client, topic: Topic) -> None:
    assert isinstance(topic, PersistentTopic)
    await client.subscribe()
    positions = await broker.publish(*data_of(2))
    client.send(ack_of(positions[0]))
    managed_ledger = topic.managed_ledger
    await until(lambda: topic.subscriptions["s"].backlog == 1)
    # A cursor that waits for its time is written when it comes earlier.
    await change(broker, {"persistence": persistence_of(1, rate=1000.0)})
    await until(lambda: managed_ledger.cursors["s"].ledger_id >= 0, SECONDS_MAX)
    await change(broker, {"persistence": persistence_of(1, rate=-1.0)})
    await until(lambda: managed_ledger.limits.mark_delete_per_s == 0.001, SECONDS_MAX)
    await change(broker, {"persistence": persistence_of(2)})
    await until(lambda: managed_ledger.limits.quorums[:3] == (2, 2, 2), SECONDS_MAX)
    await broker.publish(b"the ledger that is open stays as it is")
    managed_ledger.roll_over()
    await managed_ledger.finish_tasks()
    # There is one bookie, and the next ledger wants two.
    assert managed_ledger.state is State.TOO_FEW_BOOKIES


def persistence_of(bookies: int, rate: float = 0.001) -> dict[str, Any]:
    return {
        "bookkeeperEnsemble": bookies,
        "bookkeeperWriteQuorum": bookies,
        "bookkeeperAckQuorum": bookies,
        "managedLedgerMaxMarkDeleteRate": rate,
    }


def ack_of(position: tuple[int, int]) -> pb.CommandAck:
    message_id = pb.MessageIdData(ledgerId=position[0], entryId=position[1])
    return pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id])


async def message_ttl_s(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe(permits=0)
    await broker.publish(*data_of(3))  # in 1970
    await broker.topics.upkeep.expire_messages()
    assert topic.subscriptions["s"].backlog == 3
    await change(broker, {"message_ttl_in_seconds": 60})
    # Nobody asks for it: what is older expires at once.
    await until(lambda: topic.subscriptions["s"].backlog == 0, SECONDS_MAX)
    await change(broker, {"message_ttl_in_seconds": 0})
    await in_force(topic, "message_ttl_s", 0)
    await broker.publish(*data_of(3))
    await broker.topics.upkeep.expire_messages()
    assert topic.subscriptions["s"].backlog == 3


async def subscription_expiry_s(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe()
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
    topic.subscriptions["s"].cursor.last_active_ms -= 100_000
    await change(broker, {"subscription_expiration_time_minutes": 2})
    await in_force(topic, "subscription_expiry_s", 120)
    await broker.topics.upkeep.expire_subscriptions()
    assert "s" in topic.subscriptions
    await change(broker, {"subscription_expiration_time_minutes": 1})
    await in_force(topic, "subscription_expiry_s", 60)
    await broker.topics.upkeep.expire_subscriptions()
    assert "s" not in topic.subscriptions


async def backlog_size(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe(permits=0)
    await broker.publish(*data_of(100))
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    await change(broker, {"backlog_quota_map": {"destination_storage": quota}})
    await in_force(topic, "backlog_size", BacklogQuota(1000, "producer_exception"))
    refused = await client.produce(1)
    assert refused.error == pb.ProducerBlockedQuotaExceededException
    quota["policy"] = "consumer_backlog_eviction"
    await change(broker, {"backlog_quota_map": {"destination_storage": quota}})
    await in_force(topic, "backlog_size", BacklogQuota(1000, "consumer_backlog_eviction"))
    await broker.topics.upkeep.check_quotas()
    assert 0 < topic.subscriptions["s"].backlog < 40
    assert (await client.produce(2)).producer_name


async def backlog_age(broker: Broker, client: Client, topic: Topic) -> None:
    assert isinstance(topic, PersistentTopic)
    await client.subscribe(permits=0)
    await broker.publish(*data_of(3))
    topic.managed_ledger.roll_over()
    await topic.managed_ledger.finish_tasks()
    now = topic.wall_clock()
    topic.wall_clock = lambda: now + 100
    assert (await client.produce(1)).producer_name
    quota = {"limitTime": 60, "policy": "producer_request_hold"}
    await change(broker, {"backlog_quota_map": {"message_age": quota}})
    await in_force(topic, "backlog_age", BacklogQuota(60, "producer_request_hold"))
    refused = await client.produce(2)
    assert refused.error == pb.ProducerBlockedQuotaExceededError
    await broker.topics.upkeep.check_quotas()
    assert (await client.receive("close_producer")).producer_id == 1
    await change(broker, {})
    await in_force(topic, "backlog_age", BacklogQuota(-1))
    assert (await client.produce(3)).producer_name


async def delayed_delivery(broker: Broker, client: Client, topic: Topic) -> None:
    in_an_hour = section(b"later", deliver_at_time=int((time.time() + 3600) * 1000))
    await client.subscribe()
    await append(topic.managed_ledger, in_an_hour)
    assert await client.quiet() == []
    policy = {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
    await change(broker, {"delayed_delivery_policies": policy})
    assert len(await client.messages(1)) == 1
    await append(topic.managed_ledger, in_an_hour)
    assert len(await client.messages(1)) == 1
    await change(broker, {"delayed_delivery_policies": policy | {"active": True}})
    await in_force(topic, "delayed_delivery", True)
    await append(topic.managed_ledger, in_an_hour)
    assert await client.quiet() == []


async def delay_tick_ms(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe()
    in_five_s = section(b"later", deliver_at_time=int((time.time() + 5) * 1000))
    await append(topic.managed_ledger, in_five_s)
    assert await client.quiet() == []
    policy = {"active": True, "tickTime": 60_000, "maxDeliveryDelayInMillis": 0}
    await change(broker, {"delayed_delivery_policies": policy})
    assert len(await client.messages(1)) == 1, "what waits may come that early at once"
    await change(broker, {"delayed_delivery_policies": policy | {"tickTime": 10}})
    await in_force(topic, "delay_tick_ms", 10)
    await append(topic.managed_ledger, in_five_s)
    assert await client.quiet() == []


async def answer(client: Client, sequence_id: int, **fields: Any) -> Any:
    """What a SEND of producer 1 is answered: the error's code and text, or None."""
    command = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
    client.send(command, section(b"x" * fields.pop("size", 1), **fields))
    found = await client.either("send_receipt", "send_error")
    assert found.sequence_id == sequence_id
    return (found.error, found.message) if isinstance(found, pb.CommandSendError) else None


async def delay_max_ms(broker: Broker, client: Client, topic: Topic) -> None:
    await client.produce()
    refused = (pb.NotAllowedError, "Exceeds max allowed delivery delay of 500 milliseconds")
    assert await answer(client, 0, deliver_at_time=502) is None
    policy = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 500}
    await change(broker, {"delayed_delivery_policies": policy})
    await in_force(topic, "delay_max_ms", 500)
    # They say that they were published at 1.
    assert await answer(client, 1, deliver_at_time=502) == refused
    assert await answer(client, 2, deliver_at_time=501) is None
    assert await answer(client, 3) is None
    await change(broker, {"delayed_delivery_policies": policy | {"active": False}})
    await in_force(topic, "delayed_delivery", False)
    assert await answer(client, 4, deliver_at_time=502) is None


async def publish_rate(broker: Broker, client: Client, topic: Topic) -> None:
    await client.produce()
    rate = {broker.config.clusterName: {"publishThrottlingRateInMsg": 10}}
    await change(broker, {"publishMaxMessageRate": rate})
    await in_force(topic, "publish_rate", (10, 0))
    for number in range(60):
        client.publish(number, b"x")
    await until(lambda: client.connection.is_paused, SECONDS_MAX)
    assert topic.received()[0] < 20
    await change(broker, {})
    await until(lambda: topic.received()[0] == 60, SECONDS_MAX)


async def _dispatch_rate(broker: Broker, client: Client, field: str) -> None:
    await broker.publish(*data_of(60))
    rate = {broker.config.clusterName: {"dispatchThrottlingRateInMsg": 10}}
    await change(broker, {field: rate})
    topic = await broker.topic()
    await until(lambda: topic.limits_dispatch, SECONDS_MAX)
    await client.subscribe()
    assert 0 < (await client.quiet()).count("message") < 30
    await change(broker, {field: {}})
    assert len(await client.messages(60)) == 60


async def dispatch_rate(broker: Broker, client: Client, topic: Topic) -> None:
    await _dispatch_rate(broker, client, "topicDispatchRate")


async def subscription_dispatch_rate(broker: Broker, client: Client, topic: Topic) -> None:
    await _dispatch_rate(broker, client, "subscriptionDispatchRate")


async def subscribe_rate(broker: Broker, client: Client, topic: Topic) -> None:
    rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 60}
    await change(broker, {"clusterSubscribeRate": {broker.config.clusterName: rate}})
    await in_force(topic, "subscribe_rate", (2, 60))
    for _ in range(2):
        assert not hasattr(await client.subscribe(consumer_name="a"), "error")
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
    refused = await client.subscribe(consumer_name="a", permits=0)
    assert refused.error == pb.NotAllowedError
    assert refused.message == "Subscribe limited by subscribe rate limit per consumer."
    assert not hasattr(await client.subscribe(consumer_name="b"), "error"), "another one"
    await change(broker, {})
    await in_force(topic, "subscribe_rate", (0, 30))
    assert not hasattr(await client.subscribe(2, consumer_name="a"), "error")


async def subscription_types(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe(1, subscription="stays")
    await change(broker, {"subscription_types_enabled": ["Exclusive", "Failover"]})
    await in_force(topic, "subscription_types", frozenset({"Exclusive", "Failover"}))
    for kind in ("Shared", "Key_Shared"):
        number = pb.CommandSubscribe.SubType.Value(kind)
        refused = await client.subscribe(2, permits=0, subType=number)
        assert refused.error == pb.NotAllowedError
        assert refused.message == f"Topic[{{{TOPIC}}}] doesn't support {kind} sub type!"
    await client.subscribe(3, subscription="f", subType=pb.CommandSubscribe.Failover)
    assert len(topic.subscriptions["stays"].consumers) == 1, "who is there stays"
    assert "s" not in topic.subscriptions, "nothing is made for who is refused"
    await change(broker, {"subscription_types_enabled": []})
    await in_force(topic, "subscription_types", frozenset(SUBSCRIPTION_TYPES))
    await client.subscribe(4)
    assert len(topic.subscriptions["s"].consumers) == 1


async def pause_on_ack_state(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe()
    await broker.publish(*data_of(40))
    positions = [each.position for each in await client.messages(40)]
    await change(broker, {"dispatcherPauseOnAckStatePersistentEnabled": True})
    await in_force(topic, "pause_on_ack_state", True)
    await client.ack(*positions[1:21:2])
    await broker.publish(b"as many ranges as are stored")
    await client.messages(1)
    await client.ack(positions[21])
    await broker.publish(b"one too many")
    assert await client.quiet() == []
    client.redeliver(positions[2])
    assert (await client.messages(1))[0].position == positions[2], "what comes again does"
    await client.ack(positions[2])
    assert len(await client.messages(1)) == 1, "one range less"
    await client.ack(positions[25])
    await broker.publish(b"too many again")
    assert await client.quiet() == []
    await change(broker, {"dispatcherPauseOnAckStatePersistentEnabled": False})
    assert len(await client.messages(1)) == 1


async def encryption_required(broker: Broker, client: Client, topic: Topic) -> None:
    await client.produce()
    await change(broker, {"encryption_required": True})
    await in_force(topic, "encryption_required", True)
    refused = await client.produce(2)
    assert (refused.error, refused.message) == (
        pb.MetadataError,
        f"Encryption is required in {TOPIC}",
    )
    assert (await client.produce(2, encrypted=True)).producer_name
    # Who is there stays, and has to encrypt from now on.
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    assert await answer(client, 0) == (pb.MetadataError, "Messages must be encrypted")
    assert await answer(client, 1, encryption_keys=keys) is None
    await change(broker, {"encryption_required": False})
    await in_force(topic, "encryption_required", False)
    assert await answer(client, 2) is None


async def are_stored(client: Client, *ids: int) -> list[bool]:
    """Whether SENDs with these ids, one after the other, have got a place."""
    found = []
    for each in ids:
        client.publish(each, b"x")
        receipt = await client.receive("send_receipt")
        found.append(receipt.message_id.ledgerId != 2**64 - 1)
    return found


async def deduplication(broker: Broker, client: Client, topic: Topic) -> None:
    await client.produce()
    assert await are_stored(client, 1, 1) == [True, True]
    await change(broker, {"deduplicationEnabled": True})
    await in_force(topic, "deduplication", True)
    await until(lambda: topic.deduplication is not None, SECONDS_MAX)
    assert await are_stored(client, 2, 2) == [True, False]
    await change(broker, {"deduplicationEnabled": None})
    await in_force(topic, "deduplication", False)
    await until(lambda: topic.deduplication is None, SECONDS_MAX)
    assert await are_stored(client, 2) == [True]


async def compaction_threshold(broker: Broker, client: Client, topic: Any) -> None:
    await broker.publish(b"12345678")
    await change(broker, {"compaction_threshold": 1 << 20})
    await in_force(topic, "compaction_threshold", 1 << 20)
    await until(lambda: "__compaction" in topic.subscriptions, SECONDS_MAX)
    await broker.topics.upkeep.compact()
    assert topic.compaction is None
    await change(broker, {"compaction_threshold": 8})
    await in_force(topic, "compaction_threshold", 8)
    await compacted_by_the_look(broker, topic)


async def compacted_by_the_look(broker: Broker, topic: Any) -> None:
    await broker.topics.upkeep.compact()
    await topic.compaction.settle()
    assert topic.compaction.status.value == "SUCCESS"
    assert topic.horizon == topic.last_confirmed


async def deduplication_snapshot_s(broker: Broker, client: Client, topic: Any) -> None:
    await change(broker, {"deduplicationEnabled": True, "deduplicationSnapshotIntervalSeconds": 60})
    await in_force(topic, "deduplication_snapshot_s", 60)
    await until(lambda: topic.deduplication is not None, SECONDS_MAX)
    await client.produce(producer_name="p")
    assert await are_stored(client, 5) == [True]
    await snapshot_after(broker, topic, 50)
    assert topic.managed_ledger.cursors["pulsar.dedup"].position_properties == {}
    await snapshot_after(broker, topic, 20)
    assert topic.managed_ledger.cursors["pulsar.dedup"].position_properties == {"p": 5}
    await change(broker, {"deduplicationEnabled": True, "deduplicationSnapshotIntervalSeconds": 0})
    await in_force(topic, "deduplication_snapshot_s", 0)
    assert await are_stored(client, 6) == [True]
    await snapshot_after(broker, topic, 10_000)
    assert topic.managed_ledger.cursors["pulsar.dedup"].position_properties == {"p": 5}


async def snapshot_after(broker: Broker, topic: Any, seconds: float) -> None:
    """The look for what is due, so many seconds later."""
    topic.deduplication._snapshot_s -= seconds
    await broker.topics.upkeep.store_sequence_ids()


def schema_of(*fields: str, kind: int = pb.Schema.Avro) -> Any:
    """An Avro record with fields that have no defaults."""
    found = [{"name": each, "type": "string"} for each in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": found}).encode()
    return pb.Schema(name="s", schema_data=data, type=kind)


async def schema_strategy(broker: Broker, client: Client, topic: Topic) -> None:
    assert (await client.produce(1, schema=schema_of("a"))).schema_version
    refused = await client.produce(2, schema=schema_of("a", "b"))
    assert refused.error == pb.IncompatibleSchema
    await change(broker, {"schema_compatibility_strategy": "FORWARD"})
    await in_force(topic, "schema_strategy", "FORWARD")
    assert (await client.produce(2, schema=schema_of("a", "b"))).schema_version == bytes(7) + b"\1"
    # The older name of the policy, where the newer one says nothing.
    older = {"schema_auto_update_compatibility_strategy": "AutoUpdateDisabled"}
    await change(broker, {"schema_compatibility_strategy": "UNDEFINED"} | older)
    await in_force(topic, "schema_strategy", "ALWAYS_INCOMPATIBLE")
    refused = await client.produce(3, schema=schema_of("a", "b", "c"))
    assert "strategy ALWAYS_INCOMPATIBLE" in refused.message


async def schema_auto_update(broker: Broker, client: Client, topic: Topic) -> None:
    await change(broker, {"is_allow_auto_update_schema": False})
    await in_force(topic, "schema_auto_update", False)
    refused = await client.produce(1, schema=schema_of("a"))
    assert refused.message == "Schema not found and schema auto updating is disabled."


async def schema_validation(broker: Broker, client: Client, topic: Topic) -> None:
    assert (await client.produce(1, schema=schema_of("a"))).schema_version
    assert (await client.produce(2)).schema_version == b""
    await change(broker, {"schema_validation_enforced": True})
    await in_force(topic, "schema_validation", True)
    assert (await client.produce(3)).error == pb.IncompatibleSchema


async def producers_max(broker: Broker, client: Client, topic: Topic) -> None:
    await client.produce(1)
    await client.produce(2)
    await change(broker, {"max_producers_per_topic": 1})
    await in_force(topic, "producers_max", 1)
    assert (await client.produce(3)).error == pb.ProducerBusy
    assert len(topic.producers) == 2, "who is there stays"
    await change(broker, {"max_producers_per_topic": 0})
    await in_force(topic, "producers_max", 0)
    assert (await client.produce(3)).producer_name


async def consumers_max(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe(1, subscription="a")
    await client.subscribe(2, subscription="b")
    await change(broker, {"max_consumers_per_topic": 2})
    await in_force(topic, "consumers_max", 2)
    assert (await client.subscribe(3, subscription="c")).error == pb.ConsumerBusy
    await change(broker, {"max_consumers_per_topic": 3})
    await in_force(topic, "consumers_max", 3)
    await client.subscribe(3, subscription="c")
    assert len(topic.subscriptions["c"].consumers) == 1


async def consumers_per_subscription_max(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe(1)
    await change(broker, {"max_consumers_per_subscription": 1})
    await in_force(topic, "consumers_per_subscription_max", 1)
    assert (await client.subscribe(2)).error == pb.ConsumerBusy
    await change(broker, {})
    await in_force(topic, "consumers_per_subscription_max", 0)
    await client.subscribe(2)
    assert len(topic.subscriptions["s"].consumers) == 2


async def subscriptions_max(broker: Broker, client: Client, topic: Topic) -> None:
    await client.subscribe(1, subscription="a")
    await change(broker, {"max_subscriptions_per_topic": 1})
    await in_force(topic, "subscriptions_max", 1)
    assert (await client.subscribe(2, subscription="b")).error == pb.NotAllowedError
    await change(broker, {"max_subscriptions_per_topic": 2})
    await in_force(topic, "subscriptions_max", 2)
    await client.subscribe(2, subscription="b")
    assert sorted(topic.subscriptions) == ["a", "b"]


async def unacked(broker: Broker, client: Client, field: str, **subscription: Any) -> None:
    """A limit of unacknowledged messages is lowered, raised and switched off."""
    await client.subscribe(permits=0, **subscription)
    await broker.publish(*data_of(60))
    await change(broker, {field: 10})
    policy = next(row.name for row in OF_NAMESPACES if row.paths[Level.NAMESPACE] == ((field,),))
    topic = await broker.topic()
    await in_force(topic, policy, 10)
    client.flow(1000)
    assert (await client.quiet()).count("message") == 10
    await change(broker, {field: 15})
    assert len(await client.messages(15)) == 15, "what was blocked goes on at once"
    await change(broker, {field: 5})
    await in_force(topic, policy, 5)
    assert await client.quiet() == []
    await change(broker, {field: 0})
    assert len(await client.messages(45)) == 45


async def topics_max(broker: Broker, client: Client, topic: Topic) -> None:
    await change(broker, {"max_topics_per_namespace": 1})
    await in_force(topic, "topics_max", 1)
    refused = await client.produce(2, topic=TOPIC + "-new")
    assert refused.error == pb.NotAllowedError
    await change(broker, {"max_topics_per_namespace": 2})
    await in_force(topic, "topics_max", 2)
    assert (await client.produce(2, topic=TOPIC + "-new")).producer_name


async def unacked_per_consumer_max(broker: Broker, client: Client, topic: Topic) -> None:
    await unacked(broker, client, "max_unacked_messages_per_consumer")


async def unacked_per_subscription_max(broker: Broker, client: Client, topic: Topic) -> None:
    key_shared = {"subType": pb.CommandSubscribe.Key_Shared}
    await unacked(broker, client, "max_unacked_messages_per_subscription", **key_shared)


@pytest.mark.parametrize("row", OF_NAMESPACES, ids=[row.name for row in OF_NAMESPACES])
def test_a_changed_policy_is_in_force_on_an_open_topic(tmp_path: Path, row: Policy) -> None:
    effect: Effect = globals()[row.name]

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await effect(broker, await broker.client(), topic)

    run(tmp_path, scenario, **SETTINGS)


# What lets effects be seen: small numbers, and delayed messages that may be early.
SETTINGS: dict[str, Any] = {
    "dispatcherMaxReadBatchSize": 1,
    "managedLedgerMaxUnackedRangesToPersist": 10,
    "isDelayedDeliveryDeliverAtTimeStrict": False,
}


# --- and one for each that is there before the topic is opened ------------------------------------


class AtOpening:
    """An effect by the name of each policy, on a topic that is opened after RECORDS was written."""

    RECORDS: ClassVar[dict[str, dict[str, Any]]] = {
        "auto_topic_creation": {"autoTopicCreationOverride": {"allowAutoTopicCreation": False}},
        "auto_subscription_creation": {
            "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}
        },
        "inactive_topics": {
            "inactive_topic_policies": {
                "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
                "maxInactiveDurationSeconds": 0,
                "deleteWhileInactive": True,
            }
        },
        "retention": {
            "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        },
        "persistence": {
            "persistence": {
                "bookkeeperEnsemble": 1,
                "bookkeeperWriteQuorum": 1,
                "bookkeeperAckQuorum": 1,
                "managedLedgerMaxMarkDeleteRate": 1000.0,
            }
        },
        "message_ttl_s": {"message_ttl_in_seconds": 60},
        "subscription_expiry_s": {"subscription_expiration_time_minutes": 1},
        "backlog_size": {
            "backlog_quota_map": {
                "destination_storage": {"limitSize": 0, "policy": "producer_exception"}
            }
        },
        "backlog_age": {
            "backlog_quota_map": {
                "message_age": {"limitTime": 60, "policy": "producer_request_hold"}
            }
        },
        "delayed_delivery": {
            "delayed_delivery_policies": {
                "active": False,
                "tickTime": 1000,
                "maxDeliveryDelayInMillis": 0,
            }
        },
        "delay_tick_ms": {
            "delayed_delivery_policies": {
                "active": True,
                "tickTime": 60_000,
                "maxDeliveryDelayInMillis": 0,
            }
        },
        "delay_max_ms": {
            "delayed_delivery_policies": {
                "active": True,
                "tickTime": 1000,
                "maxDeliveryDelayInMillis": 500,
            }
        },
        "publish_rate": {
            "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": 10}}
        },
        "dispatch_rate": {"topicDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 10}}},
        "subscription_dispatch_rate": {
            "subscriptionDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 10}}
        },
        "subscribe_rate": {
            "clusterSubscribeRate": {
                "standalone": {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 60}
            }
        },
        "subscription_types": {"subscription_types_enabled": ["Exclusive"]},
        "pause_on_ack_state": {"dispatcherPauseOnAckStatePersistentEnabled": True},
        "encryption_required": {"encryption_required": True},
        "deduplication": {"deduplicationEnabled": True},
        "deduplication_snapshot_s": {
            "deduplicationEnabled": True,
            "deduplicationSnapshotIntervalSeconds": 60,
        },
        "compaction_threshold": {"compaction_threshold": 8},
        "schema_strategy": {"schema_compatibility_strategy": "ALWAYS_COMPATIBLE"},
        "schema_auto_update": {"is_allow_auto_update_schema": False},
        "schema_validation": {"schema_validation_enforced": True},
        "producers_max": {"max_producers_per_topic": 1},
        "consumers_max": {"max_consumers_per_topic": 1},
        "consumers_per_subscription_max": {"max_consumers_per_subscription": 1},
        "subscriptions_max": {"max_subscriptions_per_topic": 1},
        "topics_max": {"max_topics_per_namespace": 1},
        "unacked_per_consumer_max": {"max_unacked_messages_per_consumer": 10},
        "unacked_per_subscription_max": {"max_unacked_messages_per_subscription": 10},
    }

    def __init__(self, broker: Broker, client: Client, topic: Topic) -> None:
        self.broker = broker
        self.client = client
        self.topic = topic

    async def auto_topic_creation(self) -> None:
        refused = await self.client.produce(2, topic=TOPIC + "-new")
        assert refused.error == pb.TopicNotFound

    async def auto_subscription_creation(self) -> None:
        refused = await self.client.subscribe(2, subscription="new")
        assert refused.error == pb.SubscriptionNotFound

    async def inactive_topics(self) -> None:
        await self.broker.topics.inactive.delete_all()
        assert self.topic not in self.broker.topics.registry

    async def retention(self) -> None:
        for number in range(3):
            await self.broker.publish(b"%d" % number)
            self.topic.managed_ledger.roll_over()
            await self.topic.managed_ledger.finish_tasks()
        # One that the topic had, those three, and the one that is written.
        entries = [each.entries for each in self.topic.managed_ledger.ledgers.values()]
        assert entries == [1, 1, 1, 1, 0]

    async def persistence(self) -> None:
        assert isinstance(self.topic, PersistentTopic)
        await self.client.subscribe()
        positions = await self.broker.publish(*data_of(2))
        self.client.send(ack_of(positions[0]))
        cursor = self.topic.managed_ledger.cursors["s"]
        await until(lambda: cursor.ledger_id >= 0, SECONDS_MAX)
        await self.topic.close()
        await change(self.broker, {"persistence": persistence_of(2)})
        with pytest.raises(PersistenceError, match="an ensemble of 2 needs as many bookies"):
            await self.broker.topic(TOPIC + "-new")

    async def message_ttl_s(self) -> None:
        await self.client.subscribe(permits=0)
        assert self.topic.subscriptions["s"].backlog == 1
        await self.broker.topics.upkeep.expire_messages()
        assert self.topic.subscriptions["s"].backlog == 0

    async def subscription_expiry_s(self) -> None:
        await self.client.subscribe()
        closing = pb.CommandCloseConsumer(consumer_id=1, request_id=0)
        await self.client.request(closing, "success")
        self.topic.subscriptions["s"].cursor.last_active_ms -= 61_000
        await self.broker.topics.upkeep.expire_subscriptions()
        assert "s" not in self.topic.subscriptions

    async def backlog_size(self) -> None:
        refused = await self.client.produce(1)
        assert refused.error == pb.ProducerBlockedQuotaExceededException

    async def backlog_age(self) -> None:
        await self.client.subscribe(permits=0)
        now = self.topic.wall_clock()
        self.topic.wall_clock = lambda: now + 50
        assert (await self.client.produce(1)).producer_name
        self.topic.wall_clock = lambda: now + 100
        refused = await self.client.produce(2)
        assert refused.error == pb.ProducerBlockedQuotaExceededError

    async def delayed_delivery(self) -> None:
        await self.client.subscribe()
        in_an_hour = section(b"later", deliver_at_time=int((time.time() + 3600) * 1000))
        await append(self.topic.managed_ledger, in_an_hour)
        assert len(await self.client.messages(1)) == 1

    async def delay_tick_ms(self) -> None:
        await self.client.subscribe()
        in_five_s = section(b"later", deliver_at_time=int((time.time() + 5) * 1000))
        await append(self.topic.managed_ledger, in_five_s)
        assert len(await self.client.messages(2)) == 2

    async def delay_max_ms(self) -> None:
        await self.client.produce()
        assert (await answer(self.client, 0, deliver_at_time=502))[0] == pb.NotAllowedError

    async def publish_rate(self) -> None:
        await self.client.produce()
        for number in range(60):
            self.client.publish(number, b"x")
        await until(lambda: self.client.connection.is_paused, SECONDS_MAX)
        assert self.topic.received()[0] < 20

    async def dispatch_rate(self) -> None:
        await self.broker.publish(*data_of(60))
        await self.client.subscribe()
        assert 0 < (await self.client.quiet()).count("message") < 30

    async def subscription_dispatch_rate(self) -> None:
        await self.dispatch_rate()

    async def subscribe_rate(self) -> None:
        await self.client.subscribe()
        await self.client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        assert (await self.client.subscribe(permits=0)).error == pb.NotAllowedError

    async def subscription_types(self) -> None:
        assert (await self.client.subscribe(permits=0)).error == pb.NotAllowedError

    async def pause_on_ack_state(self) -> None:
        await self.client.subscribe()
        await self.broker.publish(*data_of(40))
        positions = [each.position for each in await self.client.messages(41)]
        await self.client.ack(*positions[1:23:2])
        await self.broker.publish(b"one too many")
        assert await self.client.quiet() == []

    async def encryption_required(self) -> None:
        assert (await self.client.produce()).error == pb.MetadataError

    async def deduplication(self) -> None:
        await self.client.produce()
        assert await are_stored(self.client, 3, 3) == [True, False]

    async def deduplication_snapshot_s(self) -> None:
        await self.client.produce(producer_name="p")
        assert await are_stored(self.client, 3) == [True]
        topic: Any = self.topic
        await snapshot_after(self.broker, topic, 70)
        cursor = topic.managed_ledger.cursors["pulsar.dedup"]
        assert cursor.position_properties == {"p": 3}

    async def compaction_threshold(self) -> None:
        await self.broker.publish(b"12345678")
        await compacted_by_the_look(self.broker, self.topic)

    async def schema_strategy(self) -> None:
        assert (await self.client.produce(1, schema=schema_of("a"))).schema_version
        assert (await self.client.produce(2, schema=schema_of("a", "b"))).schema_version

    async def schema_auto_update(self) -> None:
        refused = await self.client.produce(1, schema=schema_of("a"))
        assert refused.error == pb.IncompatibleSchema

    async def schema_validation(self) -> None:
        assert (await self.client.produce(1, schema=schema_of("a"))).schema_version
        assert (await self.client.produce(2)).error == pb.IncompatibleSchema

    async def producers_max(self) -> None:
        assert (await self.client.produce(1)).producer_name
        assert (await self.client.produce(2)).error == pb.ProducerBusy

    async def consumers_max(self) -> None:
        await self.client.subscribe(1, subscription="a")
        refused = await self.client.subscribe(2, subscription="b")
        assert refused.error == pb.ConsumerBusy

    async def consumers_per_subscription_max(self) -> None:
        await self.client.subscribe(1)
        assert (await self.client.subscribe(2)).error == pb.ConsumerBusy
        await self.client.subscribe(3, subscription="b")
        assert len(self.topic.subscriptions["b"].consumers) == 1

    async def subscriptions_max(self) -> None:
        await self.client.subscribe(1, subscription="a")
        refused = await self.client.subscribe(2, subscription="b")
        assert refused.error == pb.NotAllowedError

    async def topics_max(self) -> None:
        refused = await self.client.produce(2, topic=TOPIC + "-new")
        assert refused.error == pb.NotAllowedError

    async def _unacked(self, **subscription: Any) -> None:
        await self.client.subscribe(**subscription)
        await self.broker.publish(*data_of(30))
        assert (await self.client.quiet()).count("message") == 10

    async def unacked_per_consumer_max(self) -> None:
        await self._unacked()

    async def unacked_per_subscription_max(self) -> None:
        await self._unacked(subType=pb.CommandSubscribe.Key_Shared)


@pytest.mark.parametrize("row", OF_NAMESPACES, ids=[row.name for row in OF_NAMESPACES])
def test_a_policy_is_in_force_when_a_topic_is_opened(tmp_path: Path, row: Policy) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"before there was a record")
        await (await broker.topic()).close()
        await change(broker, AtOpening.RECORDS[row.name])
        topic = await broker.topic()
        assert getattr(topic.policies, row.name) != getattr(of_broker(broker.config), row.name)
        await getattr(AtOpening(broker, await broker.client(), topic), row.name)()

    run(tmp_path, scenario, **SETTINGS)


@pytest.mark.parametrize("name", [TOPIC, "non-persistent://public/default/t"])
def test_opening_and_changes_put_policies_into_force_in_one_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever a change does to an open topic, its opening has done."""
    applied: list[int] = []
    apply = Topic._apply

    def noting(topic: Topic, policies: Policies) -> None:
        apply(topic, policies)
        applied.append(policies.producers_max)

    async def scenario(broker: Broker) -> None:
        await change(broker, {"max_producers_per_topic": 3} | AtOpening.RECORDS["retention"])
        monkeypatch.setattr(Topic, "_apply", noting)
        topic = await broker.topic(name)
        assert set(applied) == {3}
        assert retention_s(topic) == -60.0
        applied.clear()
        await change(broker, {"max_producers_per_topic": 4})
        await in_force(topic, "producers_max", 4)
        assert applied == [4]
        assert retention_s(topic) == 0.0

    def retention_s(topic: Topic) -> float:
        if isinstance(topic, PersistentTopic):
            return topic.managed_ledger.limits.retention_s
        return topic.policies.retention.time_s  # nothing is kept that it would hold for

    run(tmp_path, scenario)


# --- the table ------------------------------------------------------------------------------------


def test_every_policy_is_a_row_and_an_attribute() -> None:
    assert [*[row.name for row in TABLE], "refused"] == list(Policies._fields)
    for level in (Level.TOPIC, Level.NAMESPACE):
        places = [path for row in TABLE for path in row.paths.get(level, ())]
        assert len(set(places)) == len(places)
    for row in TABLE:
        assert row.about.endswith("."), row.name
        assert bool(row.paths) == bool(row.parts), row.name


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_a_setting_is_the_default_of_its_policy(row: Policy) -> None:
    """Each setting that a row names changes its policy, and no other row's."""
    names = settings_of(row)
    assert set(names) <= set(SCHEMA)
    assert names or Level.NAMESPACE not in row.paths, "only a topic says something of parts of it"
    for name in names:
        changed = Config(**(NEEDED.get(name, {}) | {name: _another(name)}))
        before, after = of_broker(Config(**NEEDED.get(name, {}))), of_broker(changed)
        differ = {each for each in NAMES if getattr(before, each) != getattr(after, each)}
        assert row.name in differ, name
        assert all(name in settings_of(BY_NAME[each]) for each in differ), name


# What has to be set for another setting to mean anything.
NEEDED: dict[str, dict[str, Any]] = {
    "backlogQuotaDefaultLimitBytes": {"backlogQuotaDefaultLimitGB": -1.0},
    "defaultNumPartitions": {"allowAutoTopicCreationType": "partitioned"},
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": {"maxUnackedMessagesPerBroker": 100},
}


def _another(name: str) -> Any:
    setting = SCHEMA[name]
    if name == "subscriptionTypesEnabled":
        return "Shared"
    if setting.choices:
        return next(each for each in setting.choices if each != setting.default)
    if isinstance(setting.default, bool):
        return not setting.default
    if isinstance(setting.default, float):
        return setting.default / 2 if setting.default > 0 else 2.5
    return (setting.default or 0) + 70


def test_the_page_of_policies_is_up_to_date() -> None:
    page = markdown()
    for row in TABLE:
        assert f"`{row.name}`" in page
    committed = Path(__file__).parent.parent / "docs" / "policies.md"
    assert committed.read_text() == page, "run `make docs`"


# --- the resolver ---------------------------------------------------------------------------------


BROKER = of_broker(Config(maxProducersPerTopic=7, maxConsumersPerTopic=8))
LAST = BROKER._replace(producers_max=70, retention=Retention(1.0, 2))


def resolved(*fields: dict[str, Any], last: Policies = LAST) -> tuple[Policies, list[str]]:
    """The policies, and the refused fields, of records from the most specific on."""
    records = [Record(Level.NAMESPACE, f"level/{at}", each) for at, each in enumerate(fields)]
    policies, refusals = resolve(records, BROKER, last, "here")
    assert policies.refused == {each.policy for each in refusals}
    return policies, [f"{each.owner} {each.field}" for each in refusals]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], 7),
        ([{}, {"max_producers_per_topic": None}], 7),
        ([{"max_producers_per_topic": 3}, {"max_producers_per_topic": 4}], 3),
        ([{"max_producers_per_topic": None}, {"max_producers_per_topic": 4}], 4),
        ([{"max_producers_per_topic": -1}, {"max_producers_per_topic": 4}], 4),
        ([{"max_producers_per_topic": 0}, {"max_producers_per_topic": 4}], 0),
    ],
)
def test_the_first_level_that_says_something_wins(records: list[Any], expected: int) -> None:
    policies, refused = resolved(*records)
    assert (policies.producers_max, refused) == (expected, [])
    assert policies.consumers_max == 8


def at(path: Path_, value: Any) -> dict[str, Any]:
    """A record that has a value at a path, and nothing else."""
    for name in reversed(path):
        value = {"here" if name == CLUSTER else name: value}
    assert isinstance(value, dict)
    return value


WRONG_OF_KIND: dict[Any, list[Any]] = {
    bool: [1, "true", 1.5, [], {}],
    int: ["1", 1.5, True, [], {}],
    float: ["1", True, [], {}],
    str: [1, True, [], {}],
    dict: [
        *(1, "1", [], True, {"s": 1}, {"s": []}, {"s": {"dispatchRate": [1]}}),
        {"s": {"dispatchRate": {"dispatchThrottlingRateInMsg": "1"}}},
    ],
    list: ["Shared", 1, {}, True, ["unknown"], [1], [[]]],
}


def wrong_values(row: Policy) -> list[Any]:
    """Values of a row's place that are refused, made of what the table says."""
    good = {
        part.name: part.choices[0] if part.choices else part.kind(1)  # type: ignore[call-overload]
        for part in row.parts
        if part.name
    }
    wrong: list[Any] = [1, "text", [], True] if good else []
    for part in row.parts:
        values = list(WRONG_OF_KIND[part.kind])
        if part.kind is int:
            values += [part.maximum + 1, part.minimum - 1]
        if part.kind is str and part.choices:
            values.append("unknown")
        if part.name and not part.is_optional:
            values.append(None)
        wrong += [good | {part.name: value} if part.name else value for value in values]
    return [value for value in wrong if not row.is_unset(value)]


@pytest.mark.parametrize("level", [Level.TOPIC, Level.NAMESPACE], ids=lambda level: level.value)
@pytest.mark.parametrize("row", ABOVE_BROKER, ids=[row.name for row in ABOVE_BROKER])
def test_a_wrong_value_is_refused_for_its_policy_alone(row: Policy, level: Level) -> None:
    good = {"max_consumers_per_topic": 5, "max_subscriptions_per_topic": 6}
    for path in row.paths.get(level, ()):
        wrongs = wrong_values(row)
        assert wrongs
        for wrong in wrongs:
            # Nor is the next level asked: what was meant is not known.
            records = [Record(level, "it", at(path, wrong)), Record(Level.NAMESPACE, "next", good)]
            policies, refusals = resolve(records, BROKER, LAST, "here")
            assert refusals[0][:3] == (row.name, "it", ".".join(path)), wrong
            assert len(refusals) == 1
            assert getattr(policies, row.name) == getattr(LAST, row.name)
            for name, value in (("consumers_max", 5), ("subscriptions_max", 6)):
                if name != row.name:
                    assert getattr(policies, name) == value


def test_an_object_is_expected_on_the_way_to_a_value() -> None:
    policies, refused = resolved({"backlog_quota_map": [1], "publishMaxMessageRate": {"here": 1}})
    assert policies.backlog_size == LAST.backlog_size
    assert sorted(refused) == [
        "level/0 backlog_quota_map.destination_storage",
        "level/0 backlog_quota_map.message_age",
        "level/0 publishMaxMessageRate.{cluster}",
    ]


def test_a_refusal_shows_the_begin_of_a_long_value() -> None:
    expected = f"size {[0] * 50!r}"[:105] + ": expected a whole number"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}"):
        Part(int, "size").read([0] * 50)


def test_what_limits_nothing_says_nothing() -> None:
    nothing = {"publishMaxMessageRate": {"here": {"publishThrottlingRateInMsg": -1}}}
    rates = {"here": {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": -1}}
    assert resolved(nothing, {"publishMaxMessageRate": rates})[0].publish_rate == Rate(7, 0)
    others = {"publishMaxMessageRate": {"elsewhere": rates["here"]}}
    assert resolved(others)[0].publish_rate == Rate(0, 0), "another cluster's"
    old = {"clusterDispatchRate": {"here": {"dispatchThrottlingRateInMsg": 3}}}
    assert resolved(old)[0].dispatch_rate == DispatchRate(3, 0, 1, False)


def test_the_older_name_of_a_quota_counts_where_the_newer_one_is_missing() -> None:
    def size(**fields: Any) -> BacklogQuota:
        quota = {"destination_storage": {"policy": "producer_exception", **fields}}
        return resolved({"backlog_quota_map": quota})[0].backlog_size

    assert size(limit=5) == BacklogQuota(5, "producer_exception")
    assert size(limit=5, limitSize=6) == BacklogQuota(6, "producer_exception")
    assert size() == BacklogQuota(-1, "producer_exception")


def test_objects_say_what_they_leave_out() -> None:
    policies, refused = resolved(
        {
            "autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": None},
            "retention_policies": {"retentionTimeInMinutes": 2},
            "inactive_topic_policies": {
                "deleteWhileInactive": True,
                "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                "maxInactiveDurationSeconds": 5,
            },
        }
    )
    assert refused == []
    assert policies.auto_topic_creation == (True, 0)
    assert policies.retention == Retention(120.0, 0)
    assert policies.inactive_topics == InactiveTopics(True, "delete_when_no_subscriptions", 5.0)


# --- who is told ----------------------------------------------------------------------------------


UNREADABLE = ("policies cannot be read, the last ones stay in force", "public/default")
GONE = ("a namespace was deleted, its open topics keep their policies", "public/default")


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, ...]]:
    """The events, each with the namespace and the field that it is about."""
    found = []
    for record in caplog.records:
        fields = getattr(record, "fields", {})
        about = [str(fields[key]) for key in ("namespace", "field") if key in fields]
        found.append((record.getMessage(), *about))
    return found


def test_what_cannot_be_read_leaves_open_topics_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        await change(broker, {"max_producers_per_topic": 1})
        topic = await broker.topic()
        assert topic.policies.producers_max == 1
        for value in (b"", b"[", b"[]", b"\xff", b"[" * 100_000):
            caplog.clear()
            await broker.node.store.put(PATH, value)
            await until(lambda: UNREADABLE in logged(caplog), SECONDS_MAX)
            assert topic.policies.producers_max == 1
            # Another one can be opened, with what is known.
            assert (await broker.topic(f"{TOPIC}-{len(value)}")).policies.producers_max == 1
        await change(broker, {"max_producers_per_topic": [], "max_consumers_per_topic": 4})
        await in_force(topic, "consumers_max", 4)
        assert topic.policies.producers_max == 1
        of_field = ("invalid field in a policy record, the policy keeps its last value",)
        assert (*of_field, "public/default", "max_producers_per_topic") in logged(caplog)
        caplog.clear()
        await change(broker, None)
        await until(lambda: GONE in logged(caplog), SECONDS_MAX)
        assert (topic.policies.producers_max, topic.policies.consumers_max) == (1, 4)
        with pytest.raises(TopicNotFound):
            await broker.topic(TOPIC + "-new")
        await change(broker, {"max_producers_per_topic": 2})
        await in_force(topic, "producers_max", 2)

    run(tmp_path, scenario)


EVICTION = {"backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction"}


@pytest.mark.parametrize(
    ("name", "record", "settings"),
    [
        ("retention", {"retention_policies": {"retentionTimeInMinutes": "x"}}, {}),
        (
            "message_ttl_s",
            {"message_ttl_in_seconds": "x"},
            {"ttlDurationDefaultInSeconds": 1},
        ),
        (
            "backlog_size",
            {"backlog_quota_map": {"destination_storage": {"limitSize": "x"}}},
            EVICTION | {"backlogQuotaDefaultLimitBytes": 1},
        ),
        (
            "backlog_age",
            {"backlog_quota_map": {"message_age": {"limitTime": "x"}}},
            EVICTION
            | {"backlogQuotaDefaultLimitSecond": 1, "preciseTimeBasedBacklogQuotaCheck": True},
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_a_record_cannot_say_deletes_nothing_after_a_restart(
    tmp_path: Path, name: str, record: dict[str, Any], settings: dict[str, Any]
) -> None:
    """The broker's default would, and nobody knows what the field was to be."""

    async def scenario(broker: Broker) -> None:
        await change(broker, record)
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        assert topic.policies.refused == {name}
        topic.wall_clock = lambda: NOW_S
        subscription = await subscription_of(topic, "s")
        await append(topic.managed_ledger, *[message(500)] * 3)
        topic.managed_ledger.roll_over()

        async def left() -> int:
            """Entries, after all that deletes has looked at the topic."""
            await broker.topics.upkeep.expire_messages()
            await broker.topics.upkeep.check_quotas()
            if name == "retention":
                subscription.cursor.acknowledge_up_to(topic.last_confirmed)
                await topic.trim()
                return topic.entries
            return int(subscription.backlog)

        assert await left() == 3
        await change(broker, {})
        await until(lambda: not topic.policies.refused, SECONDS_MAX)
        assert await left() == 0

    run(tmp_path, scenario, **settings)


def test_a_topic_with_policies_of_its_own_knows_that_its_namespace_cannot_be_read(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        policies = broker.topics._policies
        topic = await broker.topic()
        policies.set_record(NAME, False, {"maxProducerPerTopic": 7})
        await in_force(topic, "producers_max", 7)
        await broker.node.store.put(PATH, b"no JSON")
        await in_force(topic, "refused", NAMES)
        assert topic.policies.producers_max == 7
        await change(broker, {})
        await in_force(topic, "refused", frozenset())

    run(tmp_path, scenario)


def test_a_namespace_whose_policies_never_could_be_read_has_no_topics(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.node.store.put(PATH, b"[")
        with pytest.raises(MetadataStoreError, match="public/default cannot be read"):
            await broker.topic()
        await change(broker, {})
        await broker.topic()

    run(tmp_path, scenario)


def test_without_enough_bookies_consumers_read_on_until_the_policy_changes(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        client = await broker.client()
        await client.produce()
        await client.subscribe(permits=0)
        managed_ledger = topic.managed_ledger
        sent = data_of(20)
        for sequence_id in range(10):
            client.publish(sequence_id, b"%d" % sequence_id)
            await client.receive("send_receipt")
        await change(broker, {"persistence": persistence_of(2)})
        await until(lambda: managed_ledger.limits.quorums[:3] == (2, 2, 2), SECONDS_MAX)
        managed_ledger.roll_over()
        client.publish(10, b"it waits for the next ledger")
        assert (await client.receive("send_error")).error == pb.PersistenceError
        assert (await client.receive("close_producer")).producer_id == 1
        assert (await client.produce(producer_id=2)).error == pb.PersistenceError
        client.flow(5)
        positions = [each.position for each in await client.messages(5)]
        assert not (await client.ack(positions[0])).HasField("error")
        assert not topic.fenced
        await change(broker, {"persistence": persistence_of(1)})
        await until(lambda: managed_ledger.state is State.OPEN, SECONDS_MAX)
        assert (await client.produce(producer_id=3)).producer_name
        await broker.publish(*sent)
        client.flow(100)
        rest = await client.messages(25)
        assert [each.data for each in rest] == [b"%d" % each for each in range(5, 10)] + sent
        await broker.topics.deletion.unload(TopicName.get(TOPIC))
        again = await broker.topic()
        assert isinstance(again, PersistentTopic)
        assert (again.entries, again.subscriptions["s"].backlog) == (30, 29)

    run(tmp_path, scenario)


def test_an_empty_topic_that_waited_for_its_policy_is_as_any_new_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await broker.topics.deletion.unload(topic.name)
        await change(broker, {"persistence": persistence_of(2)})
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        client = await broker.client()
        await client.subscribe()
        await change(broker, {"persistence": persistence_of(1)})
        managed_ledger = topic.managed_ledger
        await until(lambda: managed_ledger.state is State.OPEN, SECONDS_MAX)
        assert managed_ledger.last_confirmed == managed_ledger.first_position()
        await broker.publish(*data_of(3))
        assert [each.data for each in await client.messages(3)] == data_of(3)
        assert topic.subscriptions["s"].backlog == 3

    run(tmp_path, scenario)


def test_topics_of_a_namespace_share_what_its_policies_make(tmp_path: Path) -> None:
    """A change replaces few objects of each topic: else a collection has to look at all of them."""

    async def scenario(broker: Broker) -> None:
        topics = [await broker.topic(f"{TOPIC}-{number}") for number in range(2)]
        one, other = (each for each in topics if isinstance(each, PersistentTopic))

        async def change(**fields: Any) -> None:
            before = other.policies
            value = json.dumps({"encryption_required": True} | fields).encode()
            await broker.node.store.put(paths.namespace_policies("public/default"), value)
            await until(lambda: other.policies is not before, 1.0)

        await change()
        assert one._policy_check is not None
        assert one._policy_check is other._policy_check
        limits, publish = one.managed_ledger.limits, one.publish
        assert limits is other.managed_ledger.limits
        await change(message_ttl_in_seconds=60)
        assert one.managed_ledger.limits is limits
        assert one.publish is publish
        await change(retention_policies={"retentionTimeInMinutes": 1, "retentionSizeInMB": 1})
        assert one.managed_ledger.limits is other.managed_ledger.limits is not limits

    run(tmp_path, scenario)


def test_topics_that_are_gone_are_not_told(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        gone, stays = await broker.topic(TOPIC + "-gone"), await broker.topic()
        await broker.topics.deletion.delete(gone)
        told = broker.topics._policies._namespaces["public/default"].followers
        assert list(told.values()) == [stays]
        await broker.topics.deletion.delete(stays)
        await change(broker, {"max_producers_per_topic": 2})
        assert broker.topics._policies._namespaces == {}, "nobody wants to know"
        assert (await broker.topic()).policies.producers_max == 2

    run(tmp_path, scenario)


def test_a_change_while_a_topic_is_opened_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        put_all = broker.node.store.put_all
        began, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(puts: Any) -> Any:
            began.set()
            await go_on.wait()
            return await put_all(puts)

        monkeypatch.setattr(broker.node.store, "put_all", slowly)
        opening = asyncio.ensure_future(broker.topic())
        await began.wait()
        await change(broker, {"max_producers_per_topic": 3})
        go_on.set()
        await in_force(await opening, "producers_max", 3)

    run(tmp_path, scenario)


class Follower:
    """Takes notes."""

    def __init__(
        self, seconds: float = 0.0, error: Exception | None = None, name: TopicName = NAME
    ) -> None:
        self.name = name
        self.policies = Policies()
        self._seconds = seconds
        self._error = error

    def on_policies(self, policies: Policies) -> None:
        if self._error is not None:
            raise self._error
        self.policies = policies
        time.sleep(self._seconds)


def followed(store: MetadataStore, cache: MetadataCache) -> NamespacePolicies:
    return NamespacePolicies(
        of_broker(Config()), store, cache, lambda call, *arguments: call(*arguments), "here"
    )


def record_of(count: int) -> bytes:
    return json.dumps({"max_producers_per_topic": count}).encode()


@coroutine_test
async def test_changes_come_from_every_store(backend: Backend) -> None:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(backend.store())
        # Another process; an embedded store is of one.
        other = store
        if backend.kind != "embedded":
            other = await stack.enter_async_context(backend.store())
        await other.put(PATH, record_of(1))
        cache = MetadataCache(store)
        policies = followed(store, cache)
        follower = Follower()
        assert (await policies.of_namespace("public/default")).producers_max == 1
        policies.follow("public/default", follower)
        for number in range(2, 12):
            await other.put(PATH, record_of(number))
            await until(lambda number=number: follower.policies.producers_max == number, 1.0)
        await asyncio.gather(*(other.put(PATH, record_of(number)) for number in range(100, 200)))
        await until(lambda: follower.policies.producers_max == 199, 1.0)
        await other.delete(PATH)
        await other.put(PATH, record_of(12))
        await until(lambda: follower.policies.producers_max == 12, 1.0)
        if backend.server is not None:
            # What is changed after the connection was away is seen, too.
            backend.server.kill()
            backend.server.start()
            await other.put(PATH, record_of(13))
            await until(lambda: follower.policies.producers_max == 13, 20.0)
        policies.close()
        cache.close()


@coroutine_test
async def test_a_store_that_is_away_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(namespaces, "RETRY_S", 0.01)
    async with Backend("memory", tmp_path).store() as store:
        await store.put(PATH, record_of(1))
        policies, follower = followed(store, MetadataCache(store)), Follower()
        policies.follow("public/default", follower)
        await until(lambda: follower.policies.producers_max == 1)
        get = store.get
        away = [Unavailable("away")] * 3

        async def sometimes(path: str) -> GetResult | None:
            if away:
                raise away.pop()
            return await get(path)

        monkeypatch.setattr(store, "get", sometimes)
        await store.put(PATH, record_of(2))
        await until(lambda: follower.policies.producers_max == 2)
        assert not away
        assert "the last ones stay in force" in caplog.text
        policies.close()


@coroutine_test
async def test_many_followers_are_told_in_slices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Backend("memory", tmp_path).store() as store:
        await store.put(PATH, record_of(1))
        policies = followed(store, MetadataCache(store))
        followers = [Follower(0.001, name=TopicName.get(f"{NAME}-{n}")) for n in range(100)]
        broken = Follower(error=ZeroDivisionError("broken"))
        await policies.of_namespace("public/default")
        for each in followers[:50]:
            policies.follow("public/default", each)
        policies._namespaces["public/default"].followers[NAME] = broken
        for each in followers[50:]:
            policies.follow("public/default", each)
        await store.put(PATH, record_of(2))
        turns = 0
        while any(each.policies.producers_max != 2 for each in followers):
            await asyncio.sleep(0)
            turns += any(each.policies.producers_max == 2 for each in followers)
        assert turns > 20, "100 ms were to be done, 2 ms at a time"
        assert "a topic did not apply its policies" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        policies.close()


@coroutine_test
async def test_what_one_topic_says_is_looked_at_by_that_topic_alone(tmp_path: Path) -> None:
    """With its partitions; however many others are open in the namespace."""
    async with Backend("memory", tmp_path).store() as store:
        await store.put(PATH, record_of(1))
        policies = followed(store, MetadataCache(store))
        await policies.of_namespace("public/default")
        one, other = NAME, TopicName.get(f"{NAME}-other")
        names = [one, one.partition(0), one.partition(7), other, other.partition(0)]
        followers = {name: Follower(name=name) for name in names}
        for each in followers.values():
            policies.follow("public/default", each)
        looked_at: list[TopicName] = []
        of_topic = policies._of_topic

        def noting(namespace: Any, topic: TopicName) -> Policies:
            looked_at.append(topic)
            return of_topic(namespace, topic)

        policies._of_topic = noting  # type: ignore[method-assign]
        policies.set_record(one, False, {"maxProducerPerTopic": 5})
        told = names[:3]
        await until(lambda: all(followers[name].policies.producers_max == 5 for name in told))
        assert sorted(map(str, looked_at)) == sorted(map(str, told))
        assert all(followers[name].policies.producers_max == 1 for name in names[3:])
        # Who left is told nothing, and who came for it is.
        successor = Follower(name=one.partition(7))
        policies.follow("public/default", successor)
        policies.unfollow("public/default", followers[one.partition(7)])
        policies.unfollow("public/default", followers[one.partition(0)])
        policies.set_record(one, False, {"maxProducerPerTopic": 6})
        await until(lambda: successor.policies.producers_max == 6)
        assert followers[one.partition(0)].policies.producers_max == 5
        assert followers[one.partition(7)].policies.producers_max == 5
        for each in (successor, followers[one], followers[other], followers[other.partition(0)]):
            policies.unfollow("public/default", each)
        namespace = policies._namespaces["public/default"]
        assert (namespace.followers, namespace.partitions) == ({}, {})
        policies.close()


def test_each_effect_is_a_policys() -> None:
    """A row without its effect fails above; an effect without its row is dead."""
    effects = {
        name
        for name, value in globals().items()
        if inspect.iscoroutinefunction(value)
        and list(inspect.signature(value).parameters) == ["broker", "client", "topic"]
    }
    assert effects == {row.name for row in OF_NAMESPACES}

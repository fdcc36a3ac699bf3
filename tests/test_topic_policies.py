"""What topics say of themselves: events, who reads them, and what becomes of them."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, until
from one_broker import TOPIC, Broker, run, section
from pyxbroker.base.errors import InvalidTopicName, NotAllowed, PoliciesTooLarge
from pyxbroker.base.java_hash import java_hash
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import topic_policies
from pyxbroker.broker.topics.messages import read_message, write_message
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata import paths
from pyxbroker.policies import change_events
from pyxbroker.policies.change_events import (
    TOPIC_POLICIES,
    TopicRecord,
    decode,
    encode,
    key_of,
    record_of_key,
    schema,
)
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.table import TABLE
from pyxbroker.policies.values import Rate, Retention
from pyxbroker.proto import PulsarApi as pb
from test_expiry import subscription_of

NAME = TopicName.get(TOPIC)
EVENTS = TopicName.get("persistent://public/default/__change_events")
SECONDS_MAX = 30.0  # until a change is in force, on a machine that others use

# Events as Apache Pulsar 4.2.4 wrote them, when REST had set nearly everything.
OWN = base64.b64decode(
    "AgQCAAICFHN0YW5kYWxvbmUAAgIUcGVyc2lzdGVudAIOZGVmYXVsdAICAAIEJmRlc3RpbmF0aW9uX3N0b3JhZ2XQDwLQDw"
    "ECAhZtZXNzYWdlX2FnZQAAmgECBAAAAgECCgIBAsCpBwLoBwIsKgYBAgEAAgECAMYBAgACCAIKAtAPAAIMAg4CEAJCAAIC"
    "AgIAAAAAAAAEQAACGBYAAmhmAgACKBQCCAIBAAIODAJAPgIAAAICBHMxAlRSAgAAAgQCAAACDHB1YmxpYwICdA=="
)
SHARED = base64.b64decode(
    "AgQCAAACAhRwZXJzaXN0ZW50Ag5kZWZhdWx0AgACAAAAAAAAAAAAAAACAQAAAAI8AAAAAAAAAAAAAgQCAAAAAAAAAgACAA"
    "IMcHVibGljAgJ0"
)
NON_PERSISTENT = base64.b64decode(
    "AgQCAAICFHN0YW5kYWxvbmUAAgIcbm9uLXBlcnNpc3RlbnQCDmRlZmF1bHQCAAIAAAAAAAAAAAAAAAIAAAAAAgQAAAAAAA"
    "AAAAAAAAAAAAAAAgACAAIMcHVibGljAgRucA=="
)


def rate(messages: int, size: int, period_s: int = 1, relative: bool = False) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInByte": size,
        "dispatchThrottlingRateInMsg": messages,
        "ratePeriodInSecond": period_s,
        "relativeToPublishRate": relative,
    }


# What OWN says; REST was asked for the same.
OWN_FIELDS = {
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
    "backLogQuotaMap": {
        "destination_storage": {
            "limit": 1000,
            "limitSize": 1000,
            "limitTime": -1,
            "policy": "producer_exception",
        },
        "message_age": {
            "limit": 0,
            "limitTime": 77,
            "policy": "consumer_backlog_eviction",
        },
    },
    "deduplicationEnabled": True,
    "deduplicationSnapshotIntervalSeconds": 5,
    "delayedDeliveryEnabled": True,
    "delayedDeliveryMaxDelayInMillis": 60_000,
    "delayedDeliveryTickTimeMillis": 500,
    "dispatchRate": rate(21, 22, 3, relative=True),
    "dispatcherPauseOnAckStatePersistentEnabled": True,
    "inactiveTopicPolicies": {
        "deleteWhileInactive": True,
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 99,
    },
    "maxConsumerPerTopic": 4,
    "maxConsumersPerSubscription": 5,
    "maxMessageSize": 1000,
    "maxSubscriptionsPerTopic": 6,
    "maxUnackedMessagesOnConsumer": 7,
    "maxUnackedMessagesOnSubscription": 8,
    "messageTTLInSeconds": 33,
    "persistence": {
        "bookkeeperAckQuorum": 1,
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 2.5,
    },
    "publishRate": {"publishThrottlingRateInByte": 12, "publishThrottlingRateInMsg": 11},
    "replicatorDispatchRate": rate(51, 52),
    "retentionPolicies": {"retentionSizeInMB": 20, "retentionTimeInMinutes": 10},
    "schemaCompatibilityStrategy": "FORWARD",
    "schemaValidationEnforced": True,
    "subscribeRate": {"ratePeriodInSecond": 7, "subscribeThrottlingRatePerConsumer": 6},
    "subscriptionDispatchRate": rate(31, 32),
    "subscriptionPolicies": {"s1": {"dispatchRate": rate(41, 42)}},
    "subscriptionTypesEnabled": ["Shared", "Exclusive"],
}
SHARED_FIELDS = {
    "maxProducerPerTopic": 30,
    "retentionPolicies": {"retentionSizeInMB": 2, "retentionTimeInMinutes": 1},
}


# --- events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "record"),
    [
        (OWN, TopicRecord(NAME, False, OWN_FIELDS)),
        (SHARED, TopicRecord(NAME, True, SHARED_FIELDS)),
        (
            NON_PERSISTENT,
            TopicRecord(
                TopicName.get("non-persistent://public/default/np"),
                False,
                {"maxProducerPerTopic": 2},
            ),
        ),
    ],
    ids=["own", "shared", "non-persistent"],
)
def test_what_apache_pulsar_wrote_is_read_and_written_the_same(
    value: bytes, record: TopicRecord
) -> None:
    assert decode(value) == record
    assert encode(record, "standalone") == value


def test_each_place_of_a_policy_in_a_topic_is_a_field_of_its_record() -> None:
    for row in TABLE:
        for path in row.paths.get(Level.TOPIC, ()):
            assert path[0] in TOPIC_POLICIES, row.name


def test_fields_are_in_the_order_of_their_names() -> None:
    schema()
    assert list(TOPIC_POLICIES) == sorted(TOPIC_POLICIES)


@pytest.mark.parametrize("value", [b"", b"\x00", OWN[:-1], OWN[:40], b"\xff" * 50, b"{}"])
def test_what_is_no_event_is_refused(value: bytes) -> None:
    try:
        assert decode(value) is None
    except ValueError as error:
        assert "the value is not a PulsarEvent" in str(error)


def test_a_key_names_the_topic_and_the_record() -> None:
    for is_global in (False, True):
        assert record_of_key(key_of(NAME, is_global)) == (NAME, is_global)
    with pytest.raises(InvalidTopicName):
        record_of_key("__G__persistent://x")


def test_a_partition_is_chosen_as_java_does() -> None:
    # String.hashCode of these is well known.
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(2**31) & 0x7FFFFFFF
    assert java_hash("\U0001f600ey", java_hash("polygenelubricants hell")) == java_hash(
        "polygenelubricants hell\U0001f600ey"
    )


def test_a_message_of_the_broker_is_read_back() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    found, payload = read_message(write_message(metadata, b"data"))
    assert (found, payload) == (metadata, b"data")
    with_broker_metadata = b"\x0e\x02\x00\x00\x00\x03abc" + write_message(metadata, b"data")
    assert read_message(with_broker_metadata) == (metadata, b"data")


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0e\x01",
        b"\x00\x00\x00\x7fabc",
        b"\x00\x00\x00\x03abc",
        section(b"x", num_messages_in_batch=2),
        section(b"x", compression=pb.LZ4),
    ],
)
def test_what_is_no_plain_message_is_refused(entry: bytes) -> None:
    with pytest.raises(ValueError):
        read_message(entry)


# --- in force -------------------------------------------------------------------------------------


async def say(
    broker: Broker, is_global: bool = False, name: TopicName = NAME, **fields: Any
) -> None:
    """Sets fields of one of the two records of a topic; None: not any more."""

    def change(before: dict[str, Any]) -> dict[str, Any]:
        both = before | fields
        return {field: value for field, value in both.items() if value is not None}

    await broker.topics.policies.records.update(name, is_global, change)


def test_a_topic_goes_before_all_clusters_before_its_namespace(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        path = paths.namespace_policies("public/default")
        await broker.node.store.put(path, b'{"max_producers_per_topic": 3}')
        topic, other = await broker.topic(), await broker.topic(TOPIC + "-other")

        async def in_force(count: int) -> None:
            await until(lambda: topic.policies.producers_max == count, SECONDS_MAX)

        assert topic.policies is other.policies, "who says nothing has what the namespace has"
        await say(broker, is_global=True, maxProducerPerTopic=2)
        await in_force(2)
        await say(broker, maxProducerPerTopic=1)
        await in_force(1)
        # 0 is something that is said, a negative number is not.
        await say(broker, maxProducerPerTopic=0)
        await in_force(0)
        await say(broker, maxProducerPerTopic=-1)
        await in_force(2)
        await say(broker, maxProducerPerTopic=None)
        await say(broker, is_global=True, maxProducerPerTopic=None)
        await in_force(3)
        assert other.policies.producers_max == 3

    run(tmp_path, scenario)


def test_a_change_of_the_namespace_is_in_force_on_topics_that_say_something(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await say(broker, maxConsumerPerTopic=5)
        path = paths.namespace_policies("public/default")
        await broker.node.store.put(
            path, b'{"max_producers_per_topic": 3, "max_consumers_per_topic": 4}'
        )
        await until(lambda: topic.policies.producers_max == 3, SECONDS_MAX)
        assert topic.policies.consumers_max == 5

    run(tmp_path, scenario)


def test_a_wrong_field_is_refused_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 6}
        await say(broker, publishRate=rate)
        await until(lambda: topic.policies.publish_rate == Rate(5, 6), SECONDS_MAX)
        wrong = {"retentionTimeInMinutes": 1 << 30, "retentionSizeInMB": 1 << 62}
        await say(broker, retentionPolicies=wrong, maxProducerPerTopic=4)
        await until(lambda: topic.policies.producers_max == 4, SECONDS_MAX)
        assert topic.policies.publish_rate == Rate(5, 6)
        assert topic.policies.retention == Retention()
        assert "retention" in topic.policies.refused
        await say(broker, retentionPolicies=wrong, maxProducerPerTopic=5)
        await until(lambda: topic.policies.producers_max == 5, SECONDS_MAX)
        refused = "invalid field in a policy record, the policy keeps its last value"
        assert caplog.messages.count(refused) == 1, "it is known, and said once"

    run(tmp_path, scenario)


def test_partitions_have_what_their_topic_says(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        whole = TopicName.get(TOPIC + "-parts")
        await broker.topics.partitioned.create(whole, 2, None)
        open_before = await broker.topics.loader.get(whole.partition(0), create=True)
        await say(broker, name=whole, maxProducerPerTopic=7)
        await until(lambda: open_before.policies.producers_max == 7, SECONDS_MAX)
        opened_after = await broker.topics.loader.get(whole.partition(1), create=True)
        assert opened_after.policies.producers_max == 7
        with pytest.raises(NotAllowed):
            await say(broker, name=whole.partition(0), maxProducerPerTopic=8)
        await broker.topics.partitioned.delete(whole)
        assert broker.topics.policies.records.fields(whole, False) == {}

    run(tmp_path, scenario)


def test_a_topic_that_is_not_kept_has_policies_too(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get("non-persistent://public/default/np")
        await say(broker, name=name, maxConsumerPerTopic=2)
        topic = await broker.topics.loader.get(name, create=True)
        assert topic.policies.consumers_max == 2

    run(tmp_path, scenario)


async def reopened(broker: Broker) -> None:
    """The topics of a broker that starts on the same metadata and ledgers."""
    await broker.topics.close()
    del broker.service.__dict__["topics"]
    broker.service.__dict__.pop("handlers", None)
    broker.topics = broker.service.topics


def test_what_a_topic_says_is_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        for count in range(1, 250):
            await say(broker, maxProducerPerTopic=count)
        await say(broker, is_global=True, maxConsumerPerTopic=9)
        await say(broker, name=TopicName.get(TOPIC + "-gone"), maxConsumerPerTopic=8)
        await say(broker, name=TopicName.get(TOPIC + "-gone"), maxConsumerPerTopic=None)
        await reopened(broker)
        topic = await broker.topic()
        assert (topic.policies.producers_max, topic.policies.consumers_max) == (249, 9)
        assert (await broker.topic(TOPIC + "-gone")).policies.consumers_max == 0

    run(tmp_path, scenario)


def test_the_library_of_the_records_is_loaded_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fastavro

    threads = []

    def parse(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return arguments[0]

    async def scenario(broker: Broker) -> None:
        await broker.topic()
        await say(broker, maxProducerPerTopic=7)
        schema.cache_clear()
        await reopened(broker)
        await broker.topic()

    schema.cache_clear()
    monkeypatch.setattr(fastavro, "parse_schema", parse)
    run(tmp_path, scenario)
    schema.cache_clear()
    assert len(threads) == 2, "once to write, once to read"
    assert threading.current_thread() not in threads


def test_a_topic_that_is_deleted_says_nothing_any_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await say(broker, maxProducerPerTopic=1)
        await say(broker, is_global=True, maxConsumerPerTopic=1)
        await broker.topics.deletion.delete(topic)
        again = await broker.topic()
        assert (again.policies.producers_max, again.policies.consumers_max) == (0, 0)
        await reopened(broker)
        again = await broker.topic()
        assert (again.policies.producers_max, again.policies.consumers_max) == (0, 0)

    run(tmp_path, scenario)


def test_who_produces_events_is_followed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await say(broker, maxConsumerPerTopic=2)
        events = await broker.topics.loader.get(EVENTS, create=False)
        value = encode(TopicRecord(NAME, False, {"maxProducerPerTopic": 6}), "elsewhere")
        assert isinstance(events, PersistentTopic)
        await append(events.managed_ledger, section(value, partition_key=str(NAME)))
        await until(lambda: topic.policies.producers_max == 6, SECONDS_MAX)
        assert topic.policies.consumers_max == 0, "an event is all that a record says"
        await append(events.managed_ledger, section(b"", partition_key=str(NAME), null_value=True))
        await until(lambda: topic.policies.producers_max == 0, SECONDS_MAX)

    run(tmp_path, scenario)


def test_events_that_cannot_be_read_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        await say(broker, maxProducerPerTopic=1)
        events = await broker.topics.loader.get(EVENTS, create=False)
        assert isinstance(events, PersistentTopic)
        elsewhere = "persistent://public/other/t"
        for bad in (
            section(b"\xff\xff\xff", partition_key=str(NAME)),
            section(b"x", partition_key=str(NAME), num_messages_in_batch=3),
            section(b"x", partition_key="what"),
            section(b"x"),
            section(b"", partition_key=elsewhere, null_value=True),
        ):
            await append(events.managed_ledger, bad)
        await say(broker, maxProducerPerTopic=2)
        await reopened(broker)
        assert (await broker.topic()).policies.producers_max == 2
        assert caplog.messages.count("an event cannot be read") == 8
        assert caplog.messages.count("an event names a topic of another namespace") == 2

    run(tmp_path, scenario)


def test_topics_are_opened_when_the_policies_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        await say(broker, maxProducerPerTopic=1)
        await reopened(broker)
        events = await broker.topics.loader.get(EVENTS, create=False)
        assert isinstance(events, PersistentTopic)

        def fails(position: Position, *_: object) -> None:
            raise LedgerError("the disk says no")

        monkeypatch.setattr(events.managed_ledger, "normalize", fails)
        client = await broker.client()
        refused = await client.produce()
        assert refused.error == pb.ServiceNotReady
        assert "cannot be read now" in refused.message
        monkeypatch.undo()
        assert (await client.produce(2)).producer_name
        assert (await broker.topic()).policies.producers_max == 1

    run(tmp_path, scenario)


def test_events_are_kept_whatever_the_namespace_says(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        record = (
            b'{"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},'
            b' "max_producers_per_topic": 1,'
            b' "inactive_topic_policies": {"deleteWhileInactive": true,'
            b' "inactiveTopicDeleteMode": "delete_when_no_subscriptions",'
            b' "maxInactiveDurationSeconds": 0}}'
        )
        await subscription_of(await broker.topic(), "s")  # by which it stays
        await broker.node.store.put(paths.namespace_policies("public/default"), record)
        await say(broker, maxConsumerPerTopic=3)
        events = await broker.topics.loader.get(EVENTS, create=False)
        assert isinstance(events, PersistentTopic)
        events.managed_ledger.roll_over()
        await events.managed_ledger.finish_tasks()
        await say(broker, name=TopicName.get(TOPIC + "-2"), maxConsumerPerTopic=4)
        events.check_age()
        await events.managed_ledger.finish_tasks()
        await broker.topics.inactive.delete_all()
        assert events.entries == 2
        await reopened(broker)
        assert (await broker.topic()).policies.consumers_max == 3

    run(tmp_path, scenario)


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        names = ["maxProducerPerTopic", "maxConsumerPerTopic", "maxSubscriptionsPerTopic"]
        await asyncio.gather(*(say(broker, **{name: 4}) for name in names))
        assert broker.topics.policies.records.fields(NAME, False) == dict.fromkeys(names, 4)

    run(tmp_path, scenario)


def test_events_in_a_partitioned_topic_are_all_read(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.partitioned.create(EVENTS, 3, None)
        names = [TopicName.get(f"{TOPIC}-{number}") for number in range(12)]
        for number, name in enumerate(names):
            await broker.topic(str(name))
            await say(broker, name=name, maxProducerPerTopic=number + 1)
        open_names = await broker.topics.registry.open_names("public/default", "persistent")
        used = [name for name in open_names if name.is_change_events]
        assert len(used) > 1, "they are spread"
        await reopened(broker)
        for number, name in enumerate(names):
            assert (await broker.topic(str(name))).policies.producers_max == number + 1

    run(tmp_path, scenario)


def test_without_policies_of_topics_nothing_is_asked_for(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        with pytest.raises(NotAllowed, match="Topic level policies is disabled"):
            await say(broker, maxProducerPerTopic=1)

    run(tmp_path, scenario, topicLevelPoliciesEnabled=False)


def test_records_are_read_though_one_topic_at_a_time_is_opened(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        await say(broker, maxProducerPerTopic=1)
        await reopened(broker)
        # A topic that is there is opened to be deleted without a look at its policies before.
        await asyncio.wait_for(broker.topics.deletion.delete_by_name(NAME), 10)
        await asyncio.wait_for(broker.topic(TOPIC + "-other"), 10)
        assert broker.topics.policies.records.fields(NAME, False) == {}

    run(tmp_path, scenario, maxConcurrentTopicLoadRequest=1)


def test_a_partition_of_events_takes_only_what_it_said_with_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.partitioned.create(EVENTS, 2, None)
        names = [TopicName.get(f"{TOPIC}-{number}") for number in range(8)]
        topics = [await broker.topic(str(name)) for name in names]
        for name in names:
            await say(broker, name=name, maxProducerPerTopic=3)
        gone = [java_hash(str(name)) % 2 == 0 for name in names]
        assert any(gone) and not all(gone)
        await broker.topics.deletion.delete_by_name(EVENTS.partition(0), force=True)
        after = [{} if is_gone else {"maxProducerPerTopic": 3} for is_gone in gone]
        assert [broker.topics.policies.records.fields(name, False) for name in names] == after
        counts = [0 if is_gone else 3 for is_gone in gone]
        await until(lambda: [each.policies.producers_max for each in topics] == counts, SECONDS_MAX)
        await reopened(broker)
        await broker.topic(str(names[0]))
        assert [broker.topics.policies.records.fields(name, False) for name in names] == after
        # What is said after that is kept again.
        for name in names:
            await say(broker, name=name, maxProducerPerTopic=4)
        await broker.topics.partitioned.delete(EVENTS)
        assert all(broker.topics.policies.records.fields(name, False) == {} for name in names)

    run(tmp_path, scenario)


def test_an_event_larger_than_any_sensible_one_is_neither_decoded_nor_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event(**fields: Any) -> bytes:
        """As somebody writes it who has no limits."""
        with monkeypatch.context() as without:
            without.setattr(change_events, "EVENT_BYTES_MAX", 1 << 30)
            without.setattr(change_events, "ELEMENTS_MAX", 1 << 30)
            return encode(TopicRecord(NAME, False, fields), "elsewhere")

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await say(broker, maxProducerPerTopic=1)
        events = await broker.topics.loader.get(EVENTS, create=False)
        assert isinstance(events, PersistentTopic)
        largest = {"shadowTopics": ["x" * 1_000] * 66}
        wide = {"replicationClusters": [""] * (change_events.ELEMENTS_MAX + 1)}
        named = {f"s{n}": {"dispatchRate": rate(n, n)} for n in range(2_001)}
        for fields in (largest, wide, {"subscriptionPolicies": named}):
            value = event(**fields)
            with pytest.raises(ValueError, match=r"larger than|more than"):
                decode(value)
            await append(events.managed_ledger, section(value, partition_key=str(NAME)))
            with pytest.raises(PoliciesTooLarge, match="are too large") as refused:
                await say(broker, **fields)
            assert refused.value.http_status == 412
        much = pb.KeyValue(key="k", value="v" * (2 * change_events.EVENT_BYTES_MAX))
        small = event(maxProducerPerTopic=9)
        entry = section(small, partition_key=str(NAME), properties=[much])
        await append(events.managed_ledger, entry)
        await say(broker, maxConsumerPerTopic=2)
        await until(lambda: topic.policies.consumers_max == 2, SECONDS_MAX)
        assert topic.policies.producers_max == 1
        assert caplog.messages.count("an event cannot be read") == 4
        # What may be is not refused.
        some = {f"s{n}": {"dispatchRate": rate(n, n)} for n in range(1_000)}
        await say(broker, subscriptionPolicies=some)
        assert broker.topics.policies.records.fields(NAME, False)["subscriptionPolicies"] == some

    run(tmp_path, scenario)


@pytest.mark.parametrize("limit", ["RECORDS_MAX", "RECORDS_BYTES_MAX"])
def test_the_records_of_a_namespace_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def scenario(broker: Broker) -> None:
        def named(number: int) -> TopicName:
            return TopicName.get(f"{TOPIC}-{number}")

        for number in range(3):
            await say(broker, name=named(number), maxProducerPerTopic=1)
        events = await broker.topics.loader.get(EVENTS, create=False)
        assert isinstance(events, PersistentTopic)
        records = broker.topics.policies.records
        namespace = records._namespaces["public/default"]
        now = {"RECORDS_MAX": 3, "RECORDS_BYTES_MAX": namespace.records_bytes}
        monkeypatch.setattr(topic_policies, limit, now[limit])
        for number in range(3, 9):
            value = encode(TopicRecord(named(number), False, {"maxProducerPerTopic": 2}), "c")
            entry = section(value, partition_key=str(named(number)))
            await append(events.managed_ledger, entry)
        # What is there can be changed, and a record that goes makes room for another one.
        same = encode(TopicRecord(named(0), False, {"maxProducerPerTopic": 5}), "c")
        await append(events.managed_ledger, section(same, partition_key=str(named(0))))
        with pytest.raises(PoliciesTooLarge, match="limit on topic policies with 3 records"):
            await say(broker, name=named(3), maxProducerPerTopic=3)
        await say(broker, name=named(2), maxProducerPerTopic=None)
        said = [records.fields(named(number), False) for number in range(9)]
        assert said == [{"maxProducerPerTopic": 5}, {"maxProducerPerTopic": 1}] + [{}] * 7
        told = "topic policies of a namespace exceed the limit, and are ignored"
        assert caplog.messages.count(told) == 1
        monkeypatch.setattr(topic_policies, "RECORDS_BYTES_MAX", 1 << 20)
        await say(broker, name=named(3), maxProducerPerTopic=3)
        assert records.fields(named(3), False) == {"maxProducerPerTopic": 3}

    run(tmp_path, scenario)


async def killed_before_policies_go(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, deletion: Callable[[], Awaitable[None]]
) -> None:
    """Deletes something; what it said is still there after a restart."""

    async def killed(name: TopicName) -> None:
        if not name.is_partitioned:
            raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(broker.topics.policies, "forget_records", killed)
        with pytest.raises(asyncio.CancelledError):
            await deletion()
    await reopened(broker)


def test_a_topic_has_nothing_of_one_whose_deletion_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await say(broker, maxProducerPerTopic=1)
        await say(broker, is_global=True, maxConsumerPerTopic=1)
        await killed_before_policies_go(
            broker, monkeypatch, lambda: broker.topics.deletion.delete(topic)
        )
        await broker.topic(TOPIC + "-other")
        assert broker.topics.policies.records.fields(NAME, False) == {"maxProducerPerTopic": 1}
        again = await broker.topic()
        assert (again.policies.producers_max, again.policies.consumers_max) == (0, 0)
        # What is said of the new one is not lost when it is opened.
        await say(broker, maxProducerPerTopic=2)
        await reopened(broker)
        assert (await broker.topic()).policies.producers_max == 2

    run(tmp_path, scenario)


def test_a_partitioned_topic_has_nothing_of_one_whose_deletion_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.partitioned.create(NAME, 2, None)
        await say(broker, maxProducerPerTopic=1)
        await killed_before_policies_go(
            broker, monkeypatch, lambda: broker.topics.partitioned.delete(NAME)
        )
        await broker.topics.partitioned.create(NAME, 2, None)
        partition = await broker.topic(TOPIC + "-partition-0")
        assert partition.policies.producers_max == 0
        await say(broker, maxProducerPerTopic=2)
        await reopened(broker)
        assert (await broker.topic(TOPIC + "-partition-1")).policies.producers_max == 2

    run(tmp_path, scenario)


def test_a_topic_is_not_made_with_policies_of_a_former_one_that_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await say(broker, maxProducerPerTopic=1)
        await killed_before_policies_go(
            broker, monkeypatch, lambda: broker.topics.deletion.delete(topic)
        )

        async def fails(*_: object) -> None:
            raise LedgerError("the disk says no")

        with monkeypatch.context() as patched:
            patched.setattr(broker.topics.policies.records, "forget", fails)
            client = await broker.client()
            refused = await client.produce()
            assert refused.error == pb.PersistenceError
            assert "the policies of a former one cannot be deleted" in refused.message
        assert not await broker.topics.registry.exists(NAME)
        assert (await broker.topic()).policies.producers_max == 0

    run(tmp_path, scenario)


def test_a_partitioned_topic_that_nobody_uses_leaves_no_policies(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.partitioned.create(NAME, 1, None)
        await say(broker, maxProducerPerTopic=1)
        await broker.topics.loader.get(NAME.partition(0), create=True)
        await broker.topics.inactive.delete_all()
        assert (await broker.topics.partitions.read(NAME)).partitions == 0
        assert broker.topics.policies.records.fields(NAME, False) == {}
        assert (await broker.topic()).policies.producers_max == 0

    run(
        tmp_path,
        scenario,
        brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=0,
        brokerDeleteInactivePartitionedTopicMetadataEnabled=True,
    )

"""The statistics of topics: the same history on either broker, the same fields and values.

``BROKER=apache`` asks Apache Pulsar. What may differ is in DIFFERENCES, with the reason; all other
fields have one value that holds for both, or are times, which are looked at as such.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.web import web

PERSISTENT = "/admin/v2/persistent/public/default"
NON_PERSISTENT = "/admin/v2/non-persistent/public/default"
TOPIC = "persistent://public/default/counted"
PATH = f"{PERSISTENT}/counted"
SINGLE, BATCH = 3, 3
ENTRIES, MESSAGES = SINGLE + 1, SINGLE + BATCH
ISO = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
Json = dict[str, Any]

RATES_OUT = {"msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter"}
OF_TOPIC = {
    *RATES_OUT,
    *("msgRateIn", "msgThroughputIn", "bytesInCounter", "msgInCounter"),
    *("systemTopicBytesInCounter", "bytesOutInternalCounter", "averageMsgSize"),
    *("msgChunkPublished", "storageSize", "backlogSize", "backlogQuotaLimitSize"),
    *("backlogQuotaLimitTime", "oldestBacklogMessageAgeSeconds", "publishRateLimitedTimes"),
    *("earliestMsgPublishTimeInBacklogs", "offloadedStorageSize", "lastOffloadLedgerId"),
    *("lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp", "ongoingTxnCount"),
    *("abortedTxnCount", "committedTxnCount", "publishers", "waitingPublishers"),
    *("subscriptions", "replication", "nonContiguousDeletedMessagesRanges"),
    *("nonContiguousDeletedMessagesRangesSerializedSize", "delayedMessageIndexSizeInBytes"),
    *("compaction", "ownerBroker", "topicCreationTimeStamp", "lastPublishTimeStamp"),
}
OF_STORED_TOPIC = OF_TOPIC | {"deduplicationStatus"}
SLOWEST = "oldestBacklogMessageSubscriptionName"  # Apache Pulsar knows it after a while
OF_SUBSCRIPTION = {
    *RATES_OUT,
    *("msgRateRedeliver", "messageAckRate", "chunkedMessageRate", "msgBacklog", "backlogSize"),
    *("earliestMsgPublishTimeInBacklog", "msgBacklogNoDelayed", "msgDelayed", "msgInReplay"),
    *("blockedSubscriptionOnUnackedMsgs", "unackedMessages", "type", "msgRateExpired"),
    *("msgExpired", "totalMsgExpired", "lastExpireTimestamp", "lastConsumedFlowTimestamp"),
    *("lastConsumedTimestamp", "lastAckedTimestamp", "lastMarkDeleteAdvancedTimestamp"),
    *("consumers", "isDurable", "isReplicated", "durable", "replicated"),
    *("allowOutOfOrderDelivery", "consumersAfterMarkDeletePosition", "drainingHashesCount"),
    *("drainingHashesClearedTotal", "drainingHashesUnackedMessages", "subscriptionProperties"),
    *("nonContiguousDeletedMessagesRanges", "nonContiguousDeletedMessagesRangesSerializedSize"),
    *("delayedMessageIndexSizeInBytes", "filterProcessedMsgCount", "filterAcceptedMsgCount"),
    *("filterRejectedMsgCount", "filterRescheduledMsgCount"),
    *(
        f"dispatchThrottled{what}EventsBy{whose}Limit"
        for what in ("Msg", "Bytes")
        for whose in ("Subscription", "Topic", "Broker")
    ),
}
OF_CONSUMER = {
    *RATES_OUT,
    *("msgRateRedeliver", "messageAckRate", "chunkedMessageRate", "consumerName"),
    *("availablePermits", "unackedMessages", "avgMessagesPerEntry", "metadata"),
    *("blockedConsumerOnUnackedMsgs", "drainingHashesCount", "drainingHashesClearedTotal"),
    *("drainingHashesUnackedMessages", "address", "connectedSince", "clientVersion"),
    *("lastAckedTimestamp", "lastConsumedTimestamp", "firstMessagesSentTimestamp"),
    *("lastConsumedFlowTimestamp", "firstConsumedFlowTimestamp"),
    *("lastAckedTime", "lastConsumedTime"),
}
OF_PUBLISHER = {
    *("accessMode", "msgRateIn", "msgThroughputIn", "averageMsgSize", "chunkedMessageRate"),
    *("producerId", "supportsPartialProducer", "producerName", "address", "connectedSince"),
    *("clientVersion", "metadata"),
}
OF_LEDGERS = {
    *("entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries"),
    *("currentLedgerSize", "lastLedgerCreatedTimestamp", "waitingCursorsCount", "state"),
    *("pendingAddEntriesCount", "lastConfirmedEntry", "ledgers", "cursors", "properties"),
    *("schemaLedgers", "compactedLedger"),
}
OF_CURSOR = {
    *("markDeletePosition", "readPosition", "waitingReadOp", "pendingReadOps", "active"),
    *("messagesConsumedCounter", "cursorLedger", "cursorLedgerLastEntry", "state", "properties"),
    *("individuallyDeletedMessages", "lastLedgerSwitchTimestamp"),
    *("numberOfEntriesSinceFirstNotAckedMessage", "totalNonContiguousDeletedMessagesRange"),
    *("subscriptionHavePendingRead", "subscriptionHavePendingReplayRead"),
}
OF_LEDGER = {"ledgerId", "entries", "size", "offloaded", "underReplicated"}

DIFFERENCES = {
    "nonContiguousDeletedMessagesRangesSerializedSize": "formats: holes are stored as bits here",
    "avgMessagesPerEntry": "averages: over other numbers of entries",
    "cursorLedgerLastEntry": "formats: a cursor ledger begins with its state here",
    "cursorLedger": "ids: ledgers are counted by each broker",
    "messagesConsumedCounter": "formats: where a ledger was begun anew, it begins there",
}
"""What has another value, by the reason."""
SIZES = {"bytesOutCounter", "backlogSize"}
TIMES = {
    *("lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp"),
    *("firstMessagesSentTimestamp", "firstConsumedFlowTimestamp", "lastAckedTime"),
    *("lastConsumedTime", "connectedSince", "address", "clientVersion"),
    "lastMarkDeleteAdvancedTimestamp",
}
TEXTS: Json = {"subscriptionProperties": {}, "consumersAfterMarkDeletePosition": {}}


def compared(found: Json) -> Json:
    """What has to be the same value with either broker."""
    left_out = {*DIFFERENCES, *SIZES, *TIMES, "consumers"}
    return {name: value for name, value in found.items() if name not in left_out}


def usual(fields: set[str], **other: Any) -> Json:
    """All fields of an object that are compared: those that are not named are 0 or false."""
    return compared(dict.fromkeys(fields, 0) | {**TEXTS} | other)


@pytest.fixture(scope="module")
def clients(broker: Broker) -> Iterator[Json]:
    """The history: three messages and a batch of three, and who has read what of them."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    earliest = pulsar.InitialPosition.Earliest
    shared = client.subscribe(
        *(TOPIC, "shared"),
        consumer_type=pulsar.ConsumerType.Shared,
        consumer_name="s1",
        properties={"p": "q"},
        initial_position=earliest,
    )
    assert broker.request("PUT", f"{PATH}/subscription/idle", "earliest") == (204, "")
    producer = client.create_producer(
        TOPIC, producer_name="single", batching_enabled=False, properties={"a": "b"}
    )
    for i in range(SINGLE):
        producer.send(b"%d" % i)
    batches = client.create_producer(
        TOPIC, producer_name="batches", batching_enabled=True, batching_max_messages=BATCH,
        batching_max_publish_delay_ms=10_000,
    )  # fmt: skip
    for i in range(BATCH):
        batches.send_async(b"b%d" % i, lambda result, message_id: None)
    batches.flush()
    messages = [shared.receive(10_000) for _ in range(MESSAGES)]
    shared.acknowledge(messages[1])
    latest = {
        name: client.subscribe(TOPIC, name, consumer_type=kind, consumer_name=f"{name}-1")
        for name, kind in {
            "failover": pulsar.ConsumerType.Failover,
            "keys": pulsar.ConsumerType.KeyShared,
            "exclusive": pulsar.ConsumerType.Exclusive,
        }.items()
    }
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, reader_name="reader-1")
    reader.read_next(10_000)
    yield {"shared": shared, "producer": producer, "batches": batches, "reader": reader, **latest}
    client.close()


def told(broker: Broker, path: str) -> Json:
    answer = web(broker, "GET", path)
    assert answer.status == 200, answer.body
    found: Json = answer.json()
    return found


@pytest.fixture(scope="module")
def stats(broker: Broker, clients: Json) -> Json:
    """Once everything of the history is told."""
    return until(
        lambda: told(broker, f"{PATH}/stats"),
        lambda found: (
            found["subscriptions"]["shared"]["msgBacklog"] == ENTRIES - 1
            and found["msgInCounter"] == MESSAGES
            and found["msgOutCounter"] == 2 * MESSAGES
            and "activeConsumerName" in found["subscriptions"]["failover"]
        ),
    )


def until(ask: Callable[[], Json], is_so: Callable[[Json], bool]) -> Json:
    deadline = time.monotonic() + 60
    while not is_so(found := ask()):
        assert time.monotonic() < deadline, json.dumps(found)
        time.sleep(0.1)
    return found


def test_every_object_has_the_fields_of_pulsars(stats: Json) -> None:
    assert set(stats) - {SLOWEST} == OF_STORED_TOPIC
    assert all(set(each) == OF_PUBLISHER for each in stats["publishers"])
    fields = {
        "shared": OF_SUBSCRIPTION,
        "idle": OF_SUBSCRIPTION,
        "failover": OF_SUBSCRIPTION | {"activeConsumerName"},
        "exclusive": OF_SUBSCRIPTION | {"activeConsumerName"},
        "keys": OF_SUBSCRIPTION | {"keySharedMode"},
    }
    for name, subscription in stats["subscriptions"].items():
        assert set(subscription) == fields.get(name, fields["exclusive"]), name
        ranges = {"keyHashRangeArrays", "drainingHashes"} if name == "keys" else set()
        for consumer in subscription["consumers"]:
            assert set(consumer) == OF_CONSUMER | ranges


def test_the_topic_is_counted(broker: Broker, stats: Json) -> None:
    now_ms = time.time() * 1000
    assert stats["bytesInCounter"] > 0
    assert stats["storageSize"] > 0
    assert stats["backlogSize"] == stats["storageSize"]
    assert 0 < stats["topicCreationTimeStamp"] <= stats["lastPublishTimeStamp"] <= now_ms
    assert stats["ownerBroker"] in told(broker, "/admin/v2/brokers/standalone")
    assert stats["deduplicationStatus"] == "Disabled"
    assert stats.get(SLOWEST, "idle") in {"shared", "idle"}
    assert -1 <= stats["oldestBacklogMessageAgeSeconds"] < 3600
    assert stats["nonContiguousDeletedMessagesRanges"] == 1
    assert (stats["backlogQuotaLimitSize"], stats["backlogQuotaLimitTime"]) == (-1, -1)
    assert stats["waitingPublishers"] == 0
    assert stats["replication"] == {}
    assert set(stats["compaction"].values()) == {0}


def test_publishers_are_told_by_name(clients: Json, stats: Json) -> None:
    batches, single = stats["publishers"]
    assert (batches["producerName"], single["producerName"]) == ("batches", "single")
    assert (single["metadata"], batches["metadata"]) == ({"a": "b"}, {})
    for each in stats["publishers"]:
        assert each["accessMode"] == "Shared"
        assert each["address"].startswith("/127.0.0.1:")
        assert each["clientVersion"].startswith("Pulsar-CPP")
        assert ISO.fullmatch(each["connectedSince"])
        assert each["supportsPartialProducer"] is False


EXPECTED: dict[str, Json] = {
    "shared": {
        **{"type": "Shared", "msgBacklog": ENTRIES - 1, "unackedMessages": MESSAGES - 1},
        **{"msgOutCounter": MESSAGES, "nonContiguousDeletedMessagesRanges": 1},
        "msgBacklogNoDelayed": ENTRIES - 1,
    },
    "idle": {"type": "None", "msgBacklog": ENTRIES, "msgBacklogNoDelayed": ENTRIES},
    "failover": {"type": "Failover", "activeConsumerName": "failover-1"},
    "exclusive": {"type": "Exclusive", "activeConsumerName": "exclusive-1"},
    "keys": {"type": "Key_Shared", "keySharedMode": "AUTO_SPLIT"},
}


def test_each_value_of_a_subscription_is_that_of_pulsar(stats: Json) -> None:
    readers = [name for name in stats["subscriptions"] if name not in EXPECTED]
    assert len(readers) == 1
    reader = compared(stats["subscriptions"][readers[0]])
    assert reader == usual(
        OF_SUBSCRIPTION,
        **{"type": "Exclusive", "activeConsumerName": "reader-1", "msgOutCounter": MESSAGES},
        **{name: reader[name] for name in ("msgBacklog", "msgBacklogNoDelayed")},
    )
    for name, expected in EXPECTED.items():
        found = stats["subscriptions"][name]
        of_stored = {"durable": True, "isDurable": True, **expected}
        assert compared(found) == usual(OF_SUBSCRIPTION, **of_stored), name
        assert len(found["consumers"]) == (name != "idle")
        assert (found["backlogSize"] > 0) == (found["msgBacklog"] > 0)


def test_times_of_a_subscription_are_those_of_what_was_done(stats: Json) -> None:
    shared, idle = stats["subscriptions"]["shared"], stats["subscriptions"]["idle"]
    [consumer] = shared["consumers"]
    now_ms = time.time() * 1000
    first = consumer["firstConsumedFlowTimestamp"]
    begin = consumer["firstMessagesSentTimestamp"]
    assert 0 < first <= consumer["lastConsumedFlowTimestamp"] <= now_ms
    # Apache Pulsar notes the first one a little later than the others.
    assert first - 1_000 <= begin <= consumer["lastConsumedTimestamp"] + 1_000
    assert begin - 1_000 <= consumer["lastAckedTimestamp"] <= now_ms
    for name in ("lastAckedTimestamp", "lastConsumedFlowTimestamp", "lastConsumedTimestamp"):
        assert abs(shared[name] - consumer[name]) <= 1_000
        assert idle[name] == 0
    # The message that was acknowledged is not the first one.
    assert shared["lastMarkDeleteAdvancedTimestamp"] == 0
    assert ISO.fullmatch(consumer["lastAckedTime"])


def test_consumers_are_told(stats: Json) -> None:
    [shared] = stats["subscriptions"]["shared"]["consumers"]
    assert compared(shared) == {
        name: value
        for name, value in usual(
            OF_CONSUMER,
            **{"consumerName": "s1", "metadata": {"p": "q"}, "msgOutCounter": MESSAGES},
            **{"unackedMessages": MESSAGES - 1, "availablePermits": 1000 - MESSAGES},
        ).items()
        if name not in TEXTS
    }
    assert shared["address"].startswith("/127.0.0.1:")
    assert shared["clientVersion"].startswith("Pulsar-CPP")
    [keys] = stats["subscriptions"]["keys"]["consumers"]
    assert keys["keyHashRangeArrays"] == [[1, 65535]]  # a ring leaves out 0


def test_what_is_not_asked_for_is_left_out(broker: Broker, stats: Json) -> None:
    found = told(
        broker,
        f"{PATH}/stats?subscriptionBacklogSize=false&excludePublishers=true&excludeConsumers=true"
        "&getPreciseBacklog=true&getEarliestTimeInBacklog=true",
    )
    assert found["publishers"] == []
    idle, keys = found["subscriptions"]["idle"], found["subscriptions"]["keys"]
    assert (keys["consumers"], keys["backlogSize"], idle["backlogSize"]) == ([], -1, -1)
    earliest = idle["earliestMsgPublishTimeInBacklog"]
    assert 0 < earliest <= time.time() * 1000
    assert keys["earliestMsgPublishTimeInBacklog"] == -1
    assert found["earliestMsgPublishTimeInBacklogs"] == earliest
    assert stats["earliestMsgPublishTimeInBacklogs"] == 0


def test_ledgers_and_cursors_are_told(broker: Broker, stats: Json) -> None:
    found = told(broker, f"{PATH}/internalStats")
    assert set(found) == OF_LEDGERS
    [ledger] = found["ledgers"]
    assert set(ledger) == OF_LEDGER
    ledger_id = ledger["ledgerId"]
    # The ledger that is being written counts as empty.
    assert (ledger["entries"], ledger["size"], ledger["offloaded"]) == (0, 0, False)
    assert found["numberOfEntries"] == found["currentLedgerEntries"] == ENTRIES
    assert found["entriesAddedCounter"] == ENTRIES
    assert found["totalSize"] == found["currentLedgerSize"] == stats["storageSize"]
    assert found["lastConfirmedEntry"] == f"{ledger_id}:{ENTRIES - 1}"
    assert (found["state"], found["pendingAddEntriesCount"]) == ("LedgerOpened", 0)
    assert ISO.fullmatch(found["lastLedgerCreatedTimestamp"])
    assert found["schemaLedgers"] == []
    assert found["compactedLedger"]["ledgerId"] == -1
    for cursor in found["cursors"].values():
        assert set(cursor) == OF_CURSOR
    shared, idle = found["cursors"]["shared"], found["cursors"]["idle"]
    assert shared["markDeletePosition"] == idle["markDeletePosition"] == f"{ledger_id}:-1"
    assert shared["readPosition"] == f"{ledger_id}:{ENTRIES}"
    assert shared["individuallyDeletedMessages"] == f"[({ledger_id}:0..{ledger_id}:1]]"
    assert shared["totalNonContiguousDeletedMessagesRange"] == 1
    assert shared["numberOfEntriesSinceFirstNotAckedMessage"] == ENTRIES + 1
    assert (shared["waitingReadOp"], shared["subscriptionHavePendingRead"]) == (True, True)
    assert (idle["waitingReadOp"], idle["individuallyDeletedMessages"]) == (False, "[]")
    assert ISO.fullmatch(shared["lastLedgerSwitchTimestamp"])


def test_the_metadata_of_ledgers_is_told_when_asked_for(broker: Broker, stats: Json) -> None:
    [ledger] = told(broker, f"{PATH}/internalStats?metadata=true")["ledgers"]
    text = ledger["metadata"]
    assert text.startswith("LedgerMetadata{")
    assert "state=OPEN" in text and "password=OMITTED" in text and "ensembles={0=[" in text


# --- other topics -----------------------------------------------------------------------------


def test_partitions_are_counted_together(broker: Broker, python_client: pulsar.Client) -> None:
    path = f"{PERSISTENT}/parts"
    assert broker.request("PUT", path + "/partitions", 2) == (204, "")
    topic = "persistent://public/default/parts"
    python_client.subscribe(topic, "s", consumer_name="c")
    producer = python_client.create_producer(topic, batching_enabled=False)
    for i in range(6):
        producer.send(b"%d" % i)
    found = until(
        lambda: told(broker, path + "/partitioned-stats"),
        lambda found: found["msgOutCounter"] == 6,
    )
    of_one = {"ownerBroker", "deduplicationStatus", "oldestBacklogMessageSubscriptionName"}
    assert OF_TOPIC - of_one <= set(found)
    assert set(found["partitions"]) == {f"{topic}-partition-{i}" for i in range(2)}
    parts = found["partitions"].values()
    for name in ("msgInCounter", "bytesInCounter", "storageSize", "msgOutCounter"):
        assert found[name] == sum(each[name] for each in parts), name
    assert (found["msgInCounter"], found["subscriptions"]["s"]["msgBacklog"]) == (6, 6)
    [consumer] = found["subscriptions"]["s"]["consumers"]
    assert (consumer["consumerName"], consumer["msgOutCounter"]) == ("c", 6)
    assert found["metadata"] == {"partitions": 2, "deleted": False}
    assert told(broker, path + "/partitioned-stats?perPartition=false")["partitions"] == {}
    internal = told(broker, path + "/partitioned-internalStats")
    assert internal["metadata"] == {"partitions": 2, "deleted": False}
    assert {name: each["numberOfEntries"] for name, each in internal["partitions"].items()} == {
        f"{topic}-partition-{i}": 3 for i in range(2)
    }


def test_partitioned_statistics_have_the_same_fields_when_all_partitions_were_deleted(
    broker: Broker,
) -> None:
    path = f"{PERSISTENT}/emptied"
    assert broker.request("PUT", path + "/partitions", 2) == (204, "")
    before = told(broker, path + "/partitioned-stats")
    for index in range(2):
        assert broker.request("DELETE", f"{path}-partition-{index}") == (204, "")
    after = told(broker, path + "/partitioned-stats")
    assert set(after) == set(before)
    [(name, nothing)] = after["partitions"].items()
    assert name == "persistent://public/default/emptied"
    assert set(nothing) == set(before) - {"metadata", "partitions"}
    assert after == {**nothing, "metadata": before["metadata"], "partitions": {name: nothing}}


def test_a_non_persistent_topic_is_counted(broker: Broker, python_client: pulsar.Client) -> None:
    topic = "non-persistent://public/default/counted"
    consumer = python_client.subscribe(topic, "s", consumer_name="c")
    producer = python_client.create_producer(topic, producer_name="p")
    producer.send(b"a")
    consumer.receive(10_000)
    found = told(broker, f"{NON_PERSISTENT}/counted/stats")
    assert set(found) == OF_TOPIC | {"msgDropRate"}
    assert (found["msgInCounter"], found["msgOutCounter"], found["storageSize"]) == (1, 1, 0)
    [publisher] = found["publishers"]
    assert set(publisher) == OF_PUBLISHER | {"msgDropRate"}
    subscription = found["subscriptions"]["s"]
    assert set(subscription) == OF_SUBSCRIPTION | {"msgDropRate"}
    assert (subscription["type"], subscription["durable"]) == ("Exclusive", False)
    internal = told(broker, f"{NON_PERSISTENT}/counted/internalStats")
    assert (internal["entriesAddedCounter"], internal["numberOfEntries"]) == (1, 0)
    assert set(internal["cursors"]) == {"s"}


REFUSED = [
    ("persistent", "none/stats", 404, "Topic {}/none not found"),
    ("persistent", "none/internalStats", 404, "Topic {}/none not found"),
    ("persistent", "none/partitioned-stats", 404, "Partitioned Topic {}/none not found"),
    ("persistent", "none/partitioned-internalStats", 404, "Partitioned Topic {}/none not found"),
    ("non-persistent", "none/stats", 404, "Topic {}/none not found"),
    ("non-persistent", "none/internalStats", 404, "Topic not found"),
    ("non-persistent", "none/partitioned-stats", 404, "Partitioned topic not found {}/none"),
    (
        *("persistent", "none-partition-1/partitioned-stats", 412),
        "Partitioned Topic Name should not contain '-partition-'",
    ),
]


@pytest.mark.parametrize(("domain", "path", "status", "reason"), REFUSED)
def test_refusals(broker: Broker, domain: str, path: str, status: int, reason: str) -> None:
    answer = web(broker, "GET", f"/admin/v2/{domain}/public/default/{path}")
    expected = reason.format(f"{domain}://public/default")
    assert (answer.status, answer.reason) == (status, expected)


def test_a_partitioned_topic_is_none_itself(broker: Broker) -> None:
    assert broker.request("PUT", f"{PERSISTENT}/whole/partitions", 1) == (204, "")
    for what in ("stats", "internalStats"):
        answer = web(broker, "GET", f"{PERSISTENT}/whole/{what}")
        expected = "Topic persistent://public/default/whole not found"
        assert (answer.status, answer.reason) == (404, expected)
        assert web(broker, "GET", f"{PERSISTENT}/whole-partition-7/{what}").reason == (
            "Topic partitions were not yet created"
        )

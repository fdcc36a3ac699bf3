"""Messages are looked at and found by REST: bodies, headers and refusals are Apache Pulsar's."""

from __future__ import annotations

import json
import time
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.web import WebAnswer, web

INTERCEPTORS = ("AppendIndexMetadataInterceptor", "AppendBrokerTimestampMetadataInterceptor")
BROKER_SETTINGS = {
    "brokerEntryMetadataInterceptors": ",".join(
        f"org.apache.pulsar.common.intercept.{each}" for each in INTERCEPTORS
    )
}
PERSISTENT = "/admin/v2/persistent/public/default"
TOPIC = "persistent://public/default/looked-at"
PATH = f"{PERSISTENT}/looked-at"
NON_PERSISTENT = "/admin/v2/non-persistent/public/default/fleeting"
EVENT_MS = 1_600_000_000_000
BATCH = 3


@pytest.fixture(scope="module")
def ledger(broker: Broker) -> int:
    """A topic with three single messages, and a batch of three that is compressed; its ledger."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    single = client.create_producer(TOPIC, batching_enabled=False, producer_name="single")
    ids = [
        single.send(
            b"a%d" % i, {"k": str(i)}, partition_key=f"key{i}", event_timestamp=EVENT_MS + i
        )
        for i in range(3)
    ]
    batches = client.create_producer(
        TOPIC,
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_publish_delay_ms=10_000,
        compression_type=pulsar.CompressionType.ZLib,
    )
    for i in range(BATCH):
        batches.send_async(b"b%d" % i, lambda result, message_id: None)
    batches.flush()
    client.close()
    for path in ("empty", "whole/partitions"):
        body = 1 if path.endswith("partitions") else None
        assert broker.request("PUT", f"{PERSISTENT}/{path}", body) == (204, "")
    return int(ids[0].ledger_id())


def got(broker: Broker, path: str) -> WebAnswer:
    return web(broker, "GET", path)


def told(broker: Broker, method: str, path: str, body: Any = None) -> Any:
    status, text = broker.request(method, path, body)
    assert status == 200, text
    return json.loads(text)


def new_subscription(broker: Broker, name: str, body: Any = "earliest") -> str:
    path = f"{PATH}/subscription/{name}"
    assert broker.request("PUT", path, body) == (204, "")
    return path


def test_a_single_message_is_its_payload_and_headers(broker: Broker, ledger: int) -> None:
    path = new_subscription(broker, "single")
    answer = got(broker, f"{path}/position/2")
    assert (answer.status, answer.body) == (200, b"a1")
    for name, value in {
        "X-Pulsar-Message-ID": f"{ledger}:1",
        "X-Pulsar-PROPERTY": '{"k":"1"}',
        "X-Pulsar-event-time": "2020-09-13T12:26:40.001Z",
        "X-Pulsar-producer-name": "single",
        "X-Pulsar-sequence-id": "1",
        "X-Pulsar-partition-key": "key1",
        "X-Pulsar-Is-Encrypted": "false",
        "X-Pulsar-Broker-Entry-METADATA-index": "1",
    }.items():
        assert answer.headers.get(name) == value, name
    assert {"X-Pulsar-publish-time", "X-Pulsar-Broker-Entry-METADATA-timestamp"} <= set(
        answer.headers
    )


def test_a_batch_is_unpacked_and_counted(broker: Broker, ledger: int) -> None:
    answer = got(broker, f"{PATH}/ledger/{ledger}/entry/3")
    assert answer.status == 200
    assert answer.headers["X-Pulsar-num-batch-message"] == str(BATCH)
    assert answer.headers["X-Pulsar-compression"] == "ZLIB"
    assert answer.headers["X-Pulsar-uncompressed-size"] == str(len(answer.body))
    assert answer.headers["X-Pulsar-PROPERTY"] == "{}"
    assert all(b"b%d" % i in answer.body for i in range(BATCH))


def test_positions_count_what_a_subscription_has_left(broker: Broker, ledger: int) -> None:
    path = new_subscription(broker, "left", {"ledgerId": ledger, "entryId": 1})
    found = [got(broker, f"{path}/position/{n}") for n in (1, 2, 3, 4)]
    assert [each.status for each in found] == [200, 200, 200, 404]
    assert [each.headers["X-Pulsar-Message-ID"] for each in found[:3]] == [
        f"{ledger}:{entry}" for entry in (1, 2, 3)
    ]
    assert found[3].reason == "Message not found"


def test_to_look_for_a_subscription_that_is_not_there_makes_it(broker: Broker, ledger: int) -> None:
    assert got(broker, f"{PATH}/subscription/made-by-looking/position/1").body == b"a0"
    assert "made-by-looking" in told(broker, "GET", f"{PATH}/subscriptions")


def test_entries_are_examined_from_both_ends(broker: Broker, ledger: int) -> None:
    def examined(query: str) -> str:
        return got(broker, f"{PATH}/examinemessage{query}").headers["X-Pulsar-Message-ID"]

    for query, entry in {
        "": 3,
        "?initialPosition=latest&messagePosition=2": 2,
        "?initialPosition=latest&messagePosition=0": 3,
        "?initialPosition=earliest&messagePosition=1": 0,
        "?initialPosition=earliest&messagePosition=4": 3,
        "?initialPosition=earliest&messagePosition=99": 3,
    }.items():
        assert examined(query) == f"{ledger}:{entry}", query


def test_ids_are_found_by_time_and_by_index(broker: Broker, ledger: int) -> None:
    later = int(time.time() * 1000) + 1_000_000
    id_of = {"partitionIndex": -1, "batchIndex": -1, "batchSize": 0, "ledgerId": ledger}
    assert told(broker, "GET", f"{PATH}/messageid/{later}") == {**id_of, "entryId": 4}
    for index, entry in {0: 0, 1: 1, 2: 2, 3: 3, 5: 3}.items():
        path = f"{PATH}/getMessageIdByIndex?index={index}"
        assert told(broker, "GET", path) == {**id_of, "entryId": entry}
    answers = [got(broker, f"{PATH}/getMessageIdByIndex?index={index}") for index in (6, -1)]
    assert [(each.status, each.reason) for each in answers] == [
        (404, "Message not found for index 6"),
        (404, "Invalid message index: -1"),
    ]


def test_the_last_id_is_that_of_the_last_message_of_a_batch(broker: Broker, ledger: int) -> None:
    last = told(broker, "GET", f"{PATH}/lastMessageId")
    assert (last["ledgerId"], last["entryId"], last["batchIndex"]) == (ledger, 3, BATCH - 1)
    assert told(broker, "GET", f"{PERSISTENT}/empty/lastMessageId")["entryId"] == -1


def test_a_backlog_is_analyzed(broker: Broker, ledger: int) -> None:
    path = new_subscription(broker, "analyzed")
    found = told(broker, "POST", f"{path}/analyzeBacklog")
    assert (found["entries"], found["messages"], found["aborted"]) == (4, 6, False)
    assert (found["firstMessageId"], found["lastMessageId"]) == (f"{ledger}:0", f"{ledger}:3")
    some = told(broker, "POST", f"{path}/analyzeBacklog", {"ledgerId": ledger, "entryId": 2})
    assert (some["entries"], some["messages"], some["firstMessageId"]) == (2, 4, f"{ledger}:2")
    assert set(some) == {
        *("entries", "messages", "markerMessages", "aborted", "firstMessageId", "lastMessageId"),
        *(f"filter{what}Entries" for what in ("Accepted", "Rejected", "Rescheduled")),
        *(f"filter{what}Messages" for what in ("Accepted", "Rejected", "Rescheduled")),
    }


def test_the_size_of_a_backlog_falls_with_its_begin(broker: Broker, ledger: int) -> None:
    def size(ledger_id: int, entry_id: int) -> int:
        body = {"ledgerId": ledger_id, "entryId": entry_id}
        return int(told(broker, "PUT", f"{PATH}/backlogSize", body))

    whole = size(-1, -1)
    # Entries count as if all were as long; Apache Pulsar rounds that in another way.
    assert abs(size(ledger, 0) - whole * 3 // 4) <= 4
    assert abs(size(ledger, 2) - whole // 4) <= 4


GONE = "Topic persistent://public/default/missing not found"
REFUSED = [
    ("GET", "missing/lastMessageId", None, 404, GONE),
    ("GET", "missing/examinemessage", None, 404, GONE),
    ("GET", "missing/messageid/5", None, 404, GONE),
    ("GET", "missing/ledger/1/entry/1", None, 404, GONE),
    ("GET", "missing/getMessageIdByIndex?index=0", None, 404, GONE),
    ("GET", "missing/subscription/s/position/1", None, 404, GONE),
    ("POST", "missing/subscription/s/analyzeBacklog", None, 404, GONE),
    (
        *("GET", "empty/examinemessage", None, 412),
        "Could not examine messages due to the total message is zero",
    ),
    (
        *("GET", "empty/getMessageIdByIndex?index=0", None, 404),
        "No messages found in topic persistent://public/default/empty",
    ),
    ("GET", "looked-at/ledger/999999/entry/0", None, 404, "Message id not found"),
    (
        *("POST", "looked-at/subscription/none/analyzeBacklog", None, 404),
        "Subscription none not found for topic persistent://public/default/looked-at",
    ),
    (
        *("GET", "whole/subscription/s/position/1", None, 405),
        "Peek messages on a partitioned topic is not allowed",
    ),
    (
        *("GET", "whole/ledger/1/entry/1", None, 405),
        "GetMessageById is not allowed on partitioned-topic",
    ),
    (
        *("GET", "whole/examinemessage", None, 405),
        "Examine messages on a partitioned topic is not allowed, please try examine message on"
        " specific topic partition",
    ),
    (
        *("GET", "whole/messageid/5", None, 405),
        "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on"
        " specific topic partition",
    ),
    (
        *("GET", "whole/getMessageIdByIndex?index=0", None, 405),
        "GetMessageIDByIndex is not allowed on partitioned-topic",
    ),
    (
        *("GET", "whole/lastMessageId", None, 404),
        "Topic persistent://public/default/whole not found",
    ),
    (
        *("POST", "whole/subscription/s/analyzeBacklog", {}, 405),
        "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic"
        " partition",
    ),
    (
        *("PUT", "whole/backlogSize", {"ledgerId": -1, "entryId": -1}, 405),
        "calculate backlog size is not allowed for partitioned-topic",
    ),
]


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(("method", "path", "body", "status", "reason"), REFUSED)
def test_refusals(
    broker: Broker, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    answer = web(broker, method, f"{PERSISTENT}/{path}", body)
    assert (answer.status, answer.reason) == (status, reason)


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("lastMessageId", "GetLastMessageId"),
        ("examinemessage", "Examine messages"),
        ("messageid/5", "Get message ID by timestamp"),
        ("getMessageIdByIndex?index=0", "Get message id by index"),
        ("subscription/s/position/1", "Peek messages"),
    ],
)
def test_non_persistent_topics_have_no_messages(
    broker: Broker, python_client: pulsar.Client, path: str, what: str
) -> None:
    python_client.subscribe("non-persistent://public/default/fleeting", "s")
    answer = got(broker, f"{NON_PERSISTENT}/{path}")
    assert (answer.status, answer.reason) == (
        405,
        f"{what} on a non-persistent topic is not allowed",
    )


@pytest.mark.pyxbroker
@pytest.mark.parametrize(
    ("path", "status"),
    [
        # Apache Pulsar answers these with 500.
        ("looked-at/subscription/single/position/0", 412),
        ("looked-at/ledger/{}/entry/77", 404),
        ("looked-at/ledger/{}/entry/-1", 404),
        ("looked-at/examinemessage?initialPosition=latest&messagePosition=5", 404),
    ],
)
def test_what_is_beyond_all_entries_is_not_found(
    broker: Broker, ledger: int, path: str, status: int
) -> None:
    answer = got(broker, f"{PERSISTENT}/{path.format(ledger)}")
    assert (answer.status, bool(answer.reason)) == (status, True)

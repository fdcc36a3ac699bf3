"""Subscriptions and properties by REST: made, listed, moved, described, as in Apache Pulsar."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.web import web

PERSISTENT = "/admin/v2/persistent/public/default"
DONE = (204, "")
LATEST = 2**63 - 1
_NUMBERS = itertools.count()


class Log:
    """A topic with four messages, b'0' to b'3', and what REST does with it."""

    def __init__(self, broker: Broker, client: pulsar.Client) -> None:
        self.broker = broker
        self.client = client
        self.local = f"subscriptions-{next(_NUMBERS)}"
        self.topic = f"persistent://public/default/{self.local}"
        self.path = f"{PERSISTENT}/{self.local}"
        producer = client.create_producer(self.topic, batching_enabled=False)
        self.ids = [producer.send(b"%d" % i) for i in range(4)]
        self.ledger = int(self.ids[0].ledger_id())

    def make(self, name: str, body: Any = None, query: str = "") -> str:
        path = f"{self.path}/subscription/{name}"
        assert self.broker.request("PUT", path + query, body) == DONE
        return path

    def first(self, subscription: str) -> bytes | None:
        """The first message that a subscription has left."""
        answer = web(self.broker, "GET", f"{subscription}/position/1")
        return answer.body if answer.status == 200 else None


@pytest.fixture
def log(broker: Broker, python_client: pulsar.Client) -> Log:
    return Log(broker, python_client)


PLACES = [
    (None, None),
    ("latest", None),
    ("earliest", b"0"),
    ({"ledgerId": -1, "entryId": -1}, b"0"),
    ({"ledgerId": LATEST, "entryId": LATEST}, None),
    ({"ledgerId": "L", "entryId": 1}, b"1"),
    ({"ledgerId": "L", "entryId": 1, "excluded": True}, b"2"),
    ({"ledgerId": 999_999, "entryId": 1}, None),
]


def place(log: Log, body: Any) -> Any:
    if isinstance(body, dict) and body["ledgerId"] == "L":
        return body | {"ledgerId": log.ledger}
    return body


@pytest.mark.parametrize(("body", "first"), PLACES, ids=map(str, range(len(PLACES))))
def test_a_subscription_begins_where_it_is_said(log: Log, body: Any, first: bytes | None) -> None:
    path = log.make("s", place(log, body))
    if not (isinstance(body, dict) and body.get("excluded")):
        # Apache Pulsar makes it at the message, whether or not that is excluded.
        assert log.first(path) == first


@pytest.mark.parametrize(("body", "first"), PLACES[1:], ids=map(str, range(1, len(PLACES))))
def test_a_cursor_is_reset_to_a_message(log: Log, body: Any, first: bytes | None) -> None:
    path = log.make("s", {"ledgerId": log.ledger, "entryId": 3})
    assert log.broker.request("POST", path + "/resetcursor", place(log, body)) == DONE
    assert log.first(path) == first


def test_a_cursor_is_reset_to_a_time(log: Log) -> None:
    path = log.make("s", {"ledgerId": log.ledger, "entryId": 2})
    later = int(time.time() * 1000) + 1_000_000
    for timestamp, first in ((1, b"0"), (later, None), (1, b"0")):
        assert log.broker.request("POST", f"{path}/resetcursor/{timestamp}") == DONE
        assert log.first(path) == first


def test_consumers_of_a_subscription_that_is_reset_go_on_there(log: Log) -> None:
    earliest = pulsar.InitialPosition.Earliest
    consumer = log.client.subscribe(log.topic, "s", initial_position=earliest)
    assert [consumer.receive(10_000).data() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    # Nothing is acknowledged: without the reset it would begin anew.
    body = {"ledgerId": log.ledger, "entryId": 2}
    assert log.broker.request("POST", f"{log.path}/subscription/s/resetcursor", body) == DONE
    assert [consumer.receive(20_000).data() for _ in range(2)] == [b"2", b"3"]


def test_a_reset_into_a_batch_gives_the_rest_of_it(log: Log) -> None:
    producer = log.client.create_producer(
        log.topic,
        batching_enabled=True,
        batching_max_messages=3,
        batching_max_publish_delay_ms=10_000,
    )
    sent: list[Any] = []
    for i in range(3):
        producer.send_async(b"b%d" % i, lambda result, message_id: sent.append(message_id))
    producer.flush()
    entry = sent[0].entry_id()
    path = log.make("s")
    body = {"ledgerId": log.ledger, "entryId": entry, "batchIndex": 1}
    assert log.broker.request("POST", path + "/resetcursor", body) == DONE
    consumer = log.client.subscribe(log.topic, "s")
    assert [consumer.receive(10_000).data() for _ in range(2)] == [b"b1", b"b2"]


def test_a_subscription_is_made_once_and_with_the_topic(log: Log) -> None:
    path = log.make("s")
    answer = web(log.broker, "PUT", path)
    assert (answer.status, answer.reason) == (409, "Subscription already exists for topic")
    assert log.broker.request("PUT", f"{log.path}-new/subscription/s") == DONE
    assert web(log.broker, "GET", f"{log.path}-new/subscriptions").json() == ["s"]


def test_all_partitions_get_a_subscription(log: Log) -> None:
    path = f"{log.path}-p"
    assert log.broker.request("PUT", path + "/partitions", 2) == DONE
    assert log.broker.request("PUT", path + "/subscription/s") == DONE
    assert web(log.broker, "PUT", path + "/subscription/s").status == 409
    assert log.broker.request("PUT", path + "-partition-0/subscription/one") == DONE
    assert web(log.broker, "GET", path + "-partition-1/subscriptions").json() == ["s"]
    assert set(web(log.broker, "GET", path + "/subscriptions").json()) == {"s", "one"}
    assert log.broker.request("POST", path + "/subscription/s/resetcursor/5") == DONE
    replicated = web(log.broker, "GET", path + "/subscription/s/replicatedSubscriptionStatus")
    assert replicated.json() == {f"{log.topic}-p-partition-{i}": False for i in range(2)}
    answer = web(log.broker, "PUT", path + "-partition-5/subscription/s")
    assert (answer.status, answer.reason) == (
        412,
        "Topic does not exist and cannot be auto-created",
    )


def test_missing_partitions_are_made(log: Log) -> None:
    path = f"{log.path}-p"
    assert log.broker.request("PUT", path + "/partitions", 3) == DONE
    assert log.broker.request("DELETE", path + "-partition-1") == DONE
    name = f"{log.topic}-p-partition-1"
    assert name not in web(log.broker, "GET", PERSISTENT).json()
    for _ in range(2):
        assert log.broker.request("POST", path + "/createMissedPartitions") == DONE
        assert name in web(log.broker, "GET", PERSISTENT).json()
    assert web(log.broker, "POST", log.path + "/createMissedPartitions").status == 404


def test_a_subscription_has_the_properties_that_it_was_given_last(log: Log) -> None:
    body = {"ledgerId": log.ledger, "entryId": 1, "properties": {"a": "b"}}
    path = log.make("s", body)
    assert web(log.broker, "GET", path + "/properties").json() == {"a": "b"}
    for given in ({"c": "1", "d": "2"}, {"d": "3"}, {}):
        assert log.broker.request("PUT", path + "/properties", given) == DONE
        assert web(log.broker, "GET", path + "/properties").json() == given
        # They are stored, wherever the position is.
        assert log.broker.request("PUT", log.path + "/unload") == DONE
        assert web(log.broker, "GET", path + "/properties").json() == given
    assert log.first(path) == b"1"


def test_the_replicated_flag_is_set_and_taken_away(log: Log) -> None:
    path = log.make("s", query="?replicated=true") + "/replicatedSubscriptionStatus"
    for flag in (True, False, True):
        assert log.broker.request("POST", path, flag) == DONE
        assert web(log.broker, "GET", path).json() == {log.topic: flag}


@pytest.mark.pyxbroker
def test_the_replicated_flag_is_stored_when_it_is_set(log: Log) -> None:
    # Apache Pulsar forgets it with the topic, unless something is acknowledged meanwhile.
    path = log.make("s") + "/replicatedSubscriptionStatus"
    for flag in (True, False):
        assert log.broker.request("POST", path, flag) == DONE
        assert log.broker.request("PUT", log.path + "/unload") == DONE
        assert web(log.broker, "GET", path).json() == {log.topic: flag}


def test_properties_of_topics_are_added_and_taken_away(log: Log) -> None:
    whole = f"{log.path}-p"
    assert log.broker.request("PUT", whole + "/partitions", 2) == DONE
    for path in (log.path, whole):
        for given in ({"a": "1", "b": "2"}, {"b": "3", "c": "4"}):
            assert log.broker.request("PUT", path + "/properties", given) == DONE
        assert web(log.broker, "GET", path + "/properties").json() == {
            **{"a": "1", "b": "3", "c": "4"}
        }
        for key in ("a", "none"):
            assert log.broker.request("DELETE", f"{path}/properties?key={key}") == DONE
        assert web(log.broker, "GET", path + "/properties").json() == {"b": "3", "c": "4"}
    assert log.broker.request("PUT", log.path + "/unload") == DONE
    assert web(log.broker, "GET", log.path + "/properties").json() == {"b": "3", "c": "4"}


def test_all_policies_of_a_topic_go_together(log: Log) -> None:
    assert log.broker.request("POST", log.path + "/maxProducers", 5) == DONE
    assert log.broker.request("POST", log.path + "/maxConsumers", 6) == DONE
    deadline = time.monotonic() + 30
    while web(log.broker, "GET", log.path + "/maxConsumers").status != 200:
        assert time.monotonic() < deadline
    assert log.broker.request("DELETE", log.path + "/policies") == DONE
    while web(log.broker, "GET", log.path + "/maxProducers").body:
        assert time.monotonic() < deadline
    assert web(log.broker, "GET", log.path + "/maxConsumers").body == b""


def test_metadata_of_ledgers_and_cursors_is_told(log: Log) -> None:
    log.make("s", {"ledgerId": log.ledger, "entryId": 2}, "?replicated=true")
    info = web(log.broker, "GET", log.path + "/internal-info").json()
    assert {"version", "creationDate", "modificationDate", "ledgers", "cursors"} <= set(info)
    assert [each["ledgerId"] for each in info["ledgers"]] == [log.ledger]
    assert info["ledgers"][0]["isOffloaded"] is False
    cursor = info["cursors"]["s"]
    assert {"version", "creationDate", "modificationDate", "cursorsLedgerId"} <= set(cursor)
    assert cursor["properties"] == {"pulsar.replicated.subscription": 1}


def test_non_persistent_topics_are_listed_by_bundle(
    broker: Broker, python_client: pulsar.Client
) -> None:
    name = "non-persistent://public/default/of-a-bundle"
    python_client.subscribe(name, "s")
    path = "/lookup/v2/topic/non-persistent/public/default/of-a-bundle/bundle"
    answer = web(broker, "GET", path)
    assert answer.status == 200
    bundle = answer.body.decode()
    base = "/admin/v2/non-persistent/public/default"
    assert name in web(broker, "GET", f"{base}/{bundle}").json()
    assert web(broker, "GET", f"{base}/of-a-bundle/subscriptions").json() == ["s"]
    wrong = web(broker, "GET", f"{base}/nothing")
    assert (wrong.status, wrong.reason) == (412, "Invalid bundle range: nothing")


GONE = "Topic persistent://public/default/none not found"
NO_SUBSCRIPTION = "Subscription none not found for topic {}"
ID = {"ledgerId": 1, "entryId": 1}
REFUSED = [
    ("GET", "none/subscriptions", None, 404, GONE),
    ("GET", "none/properties", None, 404, GONE),
    ("POST", "none/subscription/s/resetcursor/5", None, 404, GONE),
    ("POST", "none/subscription/s/resetcursor", ID, 404, GONE),
    ("GET", "none/subscription/s/properties", None, 404, GONE),
    ("GET", "none/subscription/s/replicatedSubscriptionStatus", None, 404, GONE),
    (
        *("POST", "none/createMissedPartitions", None, 404),
        "Topic persistent://public/default/none does not exist",
    ),
    ("POST", "{}/subscription/none/resetcursor/5", None, 404, NO_SUBSCRIPTION),
    ("POST", "{}/subscription/none/resetcursor", ID, 404, NO_SUBSCRIPTION),
    ("GET", "{}/subscription/none/properties", None, 404, NO_SUBSCRIPTION),
    ("PUT", "{}/subscription/none/properties", {}, 404, NO_SUBSCRIPTION),
    ("GET", "{}/subscription/none/replicatedSubscriptionStatus", None, 404, NO_SUBSCRIPTION),
    ("POST", "{}/subscription/none/replicatedSubscriptionStatus", True, 404, NO_SUBSCRIPTION),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "reason"), REFUSED)
def test_refusals(log: Log, method: str, path: str, body: Any, status: int, reason: str) -> None:
    answer = web(log.broker, method, f"{PERSISTENT}/{path.format(log.local)}", body)
    assert (answer.status, answer.reason) == (status, reason.format(log.topic))


def test_what_only_persistent_topics_have_is_refused(
    broker: Broker, python_client: pulsar.Client
) -> None:
    python_client.subscribe("non-persistent://public/default/fleeting", "s")
    path = "/admin/v2/non-persistent/public/default/fleeting"
    for method, rest, body, status in (
        ("PUT", "subscription/new", None, 400),
        ("GET", "subscription/s/replicatedSubscriptionStatus", None, 405),
        ("POST", "subscription/s/replicatedSubscriptionStatus", True, 405),
        ("GET", "properties", None, 406),
        ("PUT", "properties", {"a": "b"}, 406),
    ):
        answer = web(broker, method, f"{path}/{rest}", body)
        assert (answer.status, bool(answer.reason)) == (status, True), rest
    assert web(broker, "GET", f"{path}/subscription/s/properties").json() == {}
    assert broker.request("POST", f"{path}/subscription/s/resetcursor/5") == DONE


@pytest.mark.pyxbroker
def test_the_message_that_is_excluded_is_not_in_a_new_subscription(log: Log) -> None:
    body = {"ledgerId": log.ledger, "entryId": 1, "excluded": True}
    assert log.first(log.make("s", body)) == b"2"


@pytest.mark.pyxbroker
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "subscription/" + "s" * 1025, None, 412),
        ("PUT", "subscription/s", [], 400),
        ("PUT", "subscription/s", {"ledgerId": 2**63, "entryId": 0}, 400),
        ("PUT", "subscription/s", {"ledgerId": "x"}, 400),
        ("POST", "subscription/none/resetcursor", "elsewhere", 400),
        ("PUT", "properties", {"k": {}}, 400),
        ("PUT", "properties", {"k": "v" * 70_000}, 400),
        ("DELETE", "properties", None, 412),
        ("PUT", "backlogSize", "all", 400),
        ("POST", "subscription/none/replicatedSubscriptionStatus", "yes", 400),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    log: Log, method: str, path: str, body: Any, status: int
) -> None:
    answer = web(log.broker, method, f"{log.path}/{path}", body)
    assert (answer.status, bool(answer.reason)) == (status, True)

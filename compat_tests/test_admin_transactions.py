"""Transactions by REST, as in Apache Pulsar: coordinators, transactions, topics, subscriptions.

``BROKER=apache`` asks Apache Pulsar. What it answers differently is in a test of its own.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

pytestmark = pytest.mark.standalone  # one connection speaks with the owners of everything

BROKER_SETTINGS = {"transactionCoordinatorEnabled": "true"}
COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
NEW, ADD_PARTITION, ADD_SUBSCRIPTION, END, CONNECT = 50, 52, 54, 56, 62
COMMIT, ABORT = 0, 1
PRODUCER, SHARED, FAILOVER = 1, 1, 2  # the ids of the clients
LONG_MS, SHORT_MS = 600_000, 300_000
OF_LOG = {
    *("entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries"),
    *("currentLedgerSize", "lastLedgerCreatedTimestamp", "waitingCursorsCount", "state"),
    *("pendingAddEntriesCount", "lastConfirmedEntry", "ledgers", "cursors", "properties"),
}
OF_CURSOR = {
    *("markDeletePosition", "readPosition", "waitingReadOp", "pendingReadOps", "active"),
    *("messagesConsumedCounter", "cursorLedger", "cursorLedgerLastEntry", "state", "properties"),
    *("individuallyDeletedMessages", "lastLedgerSwitchTimestamp"),
    *("numberOfEntriesSinceFirstNotAckedMessage", "totalNonContiguousDeletedMessagesRange"),
    *("subscriptionHavePendingRead", "subscriptionHavePendingReplayRead"),
}
Txn = tuple[int, int]
Position = tuple[int, int]
Json = dict[str, Any]
_NUMBERS = itertools.count()


def text(pair: tuple[int, int]) -> str:
    return "{}:{}".format(*pair)


def path_of(txn: Txn) -> str:
    return "{}/{}".format(*txn)


def id_of(txn: Txn) -> str:
    return "({},{})".format(*txn)


class Scene:
    """A topic with two subscriptions and five messages, and a connection that has transactions."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = f"public/default/rest-{next(_NUMBERS)}"
        self.topic = f"persistent://{self.name}"
        self.sequences = itertools.count()
        # Apache Pulsar creates the coordinators after it has begun to serve.
        self.settled(lambda: self.rest("coordinators")[0], 200)
        self.one = RawConnection(broker.port)
        self.one.lookup(f"{COORDINATORS}-partition-0")
        answer = self.ask(CONNECT, {2: 0})
        assert not answer.fields.get(2), answer
        for id, (name, kind) in enumerate((("s", wire.SHARED), ("f", wire.FAILOVER)), 1):
            assert self.one.subscribe(self.topic, name, id, kind).type == wire.SUCCESS
            self.one.flow(100, id)
        self.one.producer(self.topic, PRODUCER)
        self.first = [self.send() for _ in range(5)]

    def ask(self, command: int, fields: dict[int, Any]) -> wire.Frame:
        self.one.command(command, {1: self.one.request_id(), **fields})
        return self.one.wait_for(command + 1)

    def done(self, command: int, fields: dict[int, Any]) -> wire.Frame:
        answer = self.ask(command, fields)
        assert 4 not in answer.fields, answer
        return answer

    def begin(self, timeout_ms: int = LONG_MS) -> Txn:
        answer = self.done(NEW, {2: timeout_ms, 3: 0})
        return answer.number(3), answer.number(2)

    def add_topic(self, txn: Txn) -> None:
        self.done(ADD_PARTITION, {2: txn[1], 3: txn[0], 4: [self.topic]})

    def add_subscriptions(self, txn: Txn, *names: str) -> None:
        subscriptions = [wire.encode({1: self.topic, 2: name}) for name in names]
        self.done(ADD_SUBSCRIPTION, {2: txn[1], 3: txn[0], 4: subscriptions})

    def end(self, txn: Txn, action: int) -> None:
        self.done(END, {2: txn[1], 3: txn[0], 4: action})

    def send(self, txn: Txn | None = None) -> Position:
        sequence = next(self.sequences)
        ids = {} if txn is None else {22: txn[1], 23: txn[0]}
        metadata = wire.metadata("raw", sequence, int(time.time() * 1000), fields=ids)
        fields = {} if txn is None else {4: txn[1], 5: txn[0]}
        self.one.write(wire.send(PRODUCER, sequence, metadata, b"x", send_fields=fields))
        return wire.position(self.one.wait_for(wire.SEND_RECEIPT).data(3))

    def acknowledge(
        self, txn: Txn, consumer: int, *positions: Position, cumulative: bool = False
    ) -> None:
        ids = [wire.message_id(*each) for each in positions]
        ids_of_txn = {6: txn[1], 7: txn[0]}
        fields = {1: consumer, 2: int(cumulative), 3: ids, **ids_of_txn, 8: self.one.request_id()}
        self.one.command(wire.ACK, fields)
        answer = self.one.wait_for(wire.ACK_RESPONSE)
        assert 4 not in answer.fields, answer

    def rest(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        status, found = self.broker.request(method, f"/admin/v3/transactions/{path}", body)
        try:
            return status, json.loads(found)
        except ValueError:
            return status, found

    def get(self, path: str) -> Any:
        status, found = self.rest(path)
        assert status == 200, (status, found)
        return found

    def buffer(self, query: str = "") -> Json:
        """The state of the buffer, without its times."""
        found: Json = self.get(f"transactionBufferStats/{self.name}{query}")
        assert found.pop("recoverStartTime") <= found.pop("recoverEndTime")
        return found

    def pending(self, name: str, query: str = "") -> Json:
        found: Json = self.get(f"pendingAckStats/{self.name}/{name}{query}")
        return found

    def settled(self, found: Callable[[], Any], wanted: Any) -> None:
        """Waits for an answer: an end becomes visible when its marker is stored."""
        until = time.monotonic() + 10
        while found() != wanted and time.monotonic() < until:
            time.sleep(0.05)
        assert found() == wanted


@pytest.fixture
def scene(broker: Broker) -> Iterator[Scene]:
    made = Scene(broker)
    yield made
    made.one.socket.close()


# --- coordinators -----------------------------------------------------------------------------


def test_coordinators_are_listed_with_their_brokers(scene: Scene) -> None:
    found = scene.get("coordinators")
    assert found[0]["id"] == 0
    assert urlsplit(found[0]["brokerServiceUrl"]).port == scene.broker.port


def test_the_state_of_a_coordinator_counts_its_transactions(scene: Scene) -> None:
    def stats() -> Json:
        found: Json = scene.get("coordinatorStats?coordinatorId=0")
        assert found.pop("state") == "Ready"
        assert 0 < found.pop("recoverStartTime") <= found.pop("recoverEndTime")
        return found

    before = stats()
    assert before["ongoingTxnSize"] == 0
    first, second = scene.begin(), scene.begin()
    low_water_mark = first[1] - 1
    assert stats() == {
        "leastSigBits": second[1],
        "lowWaterMark": low_water_mark,
        "ongoingTxnSize": 2,
    }
    scene.end(first, COMMIT)
    assert stats()["lowWaterMark"] == first[1] and stats()["ongoingTxnSize"] == 1
    scene.end(second, ABORT)
    assert stats() == {"leastSigBits": second[1], "lowWaterMark": 0, "ongoingTxnSize": 0}


def test_the_log_of_a_coordinator_is_described(scene: Scene) -> None:
    for query, has_metadata in (("", False), ("?metadata=true", True)):
        found = scene.get(f"coordinatorInternalStats/0{query}")["transactionLogStats"]
        assert found.keys() == {"managedLedgerName", "managedLedgerInternalStats"}
        assert found["managedLedgerName"] == "pulsar/system/persistent/__transaction_log_0"
        log = found["managedLedgerInternalStats"]
        assert log.keys() == OF_LOG
        assert log["cursors"].keys() == {"transaction.subscription"}
        assert log["cursors"]["transaction.subscription"].keys() == OF_CURSOR
        assert ("metadata" in log["ledgers"][-1]) is has_metadata


def test_a_coordinator_that_does_not_exist_is_not_found(scene: Scene) -> None:
    for path in ("coordinatorStats?coordinatorId=9", "coordinatorInternalStats/9"):
        reason = "Transaction coordinator not found! coordinator id : 9"
        assert scene.rest(path) == (404, {"reason": reason})
    reason = "Transaction coordinator with id 9 not found!"
    assert scene.rest("transactionMetadata/9/0") == (404, {"reason": reason})


# --- transactions -----------------------------------------------------------------------------


def test_a_transaction_is_described_with_its_topics_and_subscriptions(scene: Scene) -> None:
    before_ms = int(time.time() * 1000)
    txn = scene.begin()
    path = f"transactionMetadata/{path_of(txn)}"
    found = scene.get(path)
    assert before_ms - 1000 <= found.pop("openTimestamp") <= time.time() * 1000 + 1000
    of_all = {"txnId": id_of(txn), "status": "OPEN", "timeoutAt": LONG_MS}
    assert found == {**of_all, "producedPartitions": {}, "ackedPartitions": {}}
    scene.add_topic(txn)
    scene.add_subscriptions(txn, "s", "f")
    found = scene.get(path)
    assert found["producedPartitions"] == {scene.topic: {"aborted": False}}
    assert found["ackedPartitions"] == {scene.topic: {"s": {}, "f": {}}}
    start = scene.send(txn)
    scene.send(txn)
    scene.acknowledge(txn, SHARED, scene.first[1])
    scene.acknowledge(txn, FAILOVER, scene.first[3], cumulative=True)
    found = scene.get(path)
    produced = {"startPosition": text(start), "aborted": False}
    assert found["producedPartitions"] == {scene.topic: produced}
    acked = {"s": {}, "f": {"cumulativeAckPosition": text(scene.first[3])}}
    assert found["ackedPartitions"] == {scene.topic: acked}
    scene.end(txn, COMMIT)
    reason = f"The transaction with this txdID `{id_of(txn)}`not found "
    assert scene.rest(path) == (404, {"reason": reason})


@pytest.mark.parametrize("query", ["", "?coordinatorId=0"])
def test_slow_transactions_have_a_longer_timeout(scene: Scene, query: str) -> None:
    slow, quick = scene.begin(LONG_MS), scene.begin(SHORT_MS)

    def listed(ms: int) -> set[str]:
        return set(scene.get(f"slowTransactions/{ms}{query}"))

    assert listed(LONG_MS) == set()
    assert listed(SHORT_MS) == {id_of(slow)}
    assert listed(SHORT_MS - 1) == {id_of(slow), id_of(quick)}
    found = scene.get(f"slowTransactions/{SHORT_MS}{query}")[id_of(slow)]
    assert found == scene.get(f"transactionMetadata/{path_of(slow)}")
    for each in (slow, quick):
        scene.end(each, ABORT)
    assert listed(0) == set()


def test_an_operator_aborts_a_transaction(scene: Scene) -> None:
    txn = scene.begin()
    scene.add_topic(txn)
    scene.send(txn)
    after = scene.send()
    scene.settled(lambda: scene.buffer()["maxReadPosition"], text(scene.first[-1]))
    assert scene.rest(f"abortTransaction/{path_of(txn)}", "POST") == (204, "")
    assert scene.rest(f"transactionMetadata/{path_of(txn)}")[0] == 404
    marker = after[0], after[1] + 1
    scene.settled(lambda: scene.buffer()["maxReadPosition"], text(marker))


# --- topics -----------------------------------------------------------------------------------


def test_the_buffer_of_a_topic_follows_its_transactions(scene: Scene) -> None:
    last = scene.first[-1]
    nothing = {
        "state": "NoSnapshot",
        "maxReadPosition": text(last),
        "lastSnapshotTimestamps": 0,
        "ongoingTxnSize": 0,
        "totalAbortedTransactions": 0,
        "snapshotType": "Single",
    }
    assert scene.buffer() == nothing
    assert scene.buffer("?lowWaterMarks=true&segmentStats=true") == nothing | {"lowWaterMarks": {}}
    first, second = scene.begin(), scene.begin()
    for each in (first, second):
        scene.add_topic(each)
    scene.send(first)
    start = scene.send(second)
    found = scene.buffer()
    assert found.pop("lastSnapshotTimestamps") > 0
    assert found == {
        **{"state": "Ready", "maxReadPosition": text(last), "ongoingTxnSize": 2},
        **{"totalAbortedTransactions": 0, "snapshotType": "Single"},
    }
    scene.end(first, COMMIT)
    before = start[0], start[1] - 1
    scene.settled(lambda: scene.buffer()["maxReadPosition"], text(before))
    marks = scene.buffer("?lowWaterMarks=true")
    assert (marks["ongoingTxnSize"], marks["lowWaterMarks"]) == (1, {"0": first[1] - 1})
    scene.end(second, ABORT)
    scene.settled(lambda: scene.buffer()["totalAbortedTransactions"], 1)
    assert scene.buffer()["ongoingTxnSize"] == 0


def test_a_transaction_in_a_topic_has_its_first_message(scene: Scene) -> None:
    txn = scene.begin()
    path = f"transactionInBufferStats/{scene.name}/{path_of(txn)}"
    assert scene.get(path) == {"aborted": False}
    scene.add_topic(txn)
    start = scene.send(txn)
    scene.send(txn)
    assert scene.get(path) == {"startPosition": text(start), "aborted": False}
    scene.end(txn, ABORT)
    scene.settled(lambda: scene.get(path), {"aborted": True})


def test_the_snapshots_of_a_topic_are_described(scene: Scene) -> None:
    txn = scene.begin()
    scene.add_topic(txn)
    scene.send(txn)
    for query, has_metadata in (("", False), ("?metadata=true", True)):
        found = scene.get(f"transactionBufferInternalStats/{scene.name}{query}")
        assert found.keys() == {"snapshotType", "singleSnapshotSystemTopicInternalStats"}
        assert found["snapshotType"] == "Single"
        topic = found["singleSnapshotSystemTopicInternalStats"]
        assert topic["managedLedgerName"] == "__transaction_buffer_snapshot"
        log = topic["managedLedgerInternalStats"]
        assert log.keys() == OF_LOG | {"schemaLedgers", "compactedLedger"}
        assert log["numberOfEntries"] > 0 and ("metadata" in log["ledgers"][-1]) is has_metadata
    scene.end(txn, ABORT)


def test_the_statistics_of_a_topic_count_transactions(scene: Scene) -> None:
    def counts() -> list[int]:
        _, found = scene.broker.rest("GET", f"/admin/v2/persistent/{scene.name}/stats")
        return [found[f"{each}TxnCount"] for each in ("ongoing", "aborted", "committed")]

    assert counts() == [0, 0, 0]
    first, second = scene.begin(), scene.begin()
    for each in (first, second):
        scene.add_topic(each)
        scene.send(each)
    assert counts() == [2, 0, 0]
    scene.end(first, COMMIT)
    scene.settled(counts, [1, 0, 1])
    scene.end(second, ABORT)
    scene.settled(counts, [0, 1, 1])


@pytest.mark.parametrize(
    "path",
    [
        *("transactionBufferStats/{}", "pendingAckStats/{}/s", "transactionInBufferStats/{}/0/0"),
        *("transactionInPendingAckStats/{}/s/0/0", "transactionBufferInternalStats/{}"),
        *("pendingAckInternalStats/{}/s", "positionStatsInPendingAck/{}/s/0/0"),
    ],
)
def test_a_topic_that_is_not_open_is_not_found(scene: Scene, path: str) -> None:
    for name in ("public/default/none", "public/no-namespace/none"):
        reason = f"Topic not found persistent://{name}"
        assert scene.rest(path.format(name)) == (404, {"reason": reason})


# --- subscriptions ----------------------------------------------------------------------------


def test_the_pending_acknowledgements_of_a_subscription_are_counted(scene: Scene) -> None:
    never = {"state": "None", "ongoingTxnSize": 0, "recoverStartTime": 0, "recoverEndTime": 0}
    assert scene.pending("s") == never
    assert scene.pending("s", "?lowWaterMarks=true") == never | {"lowWaterMarks": {}}
    path = f"pendingAckInternalStats/{scene.name}/s"
    assert scene.rest(path) == (503, {"reason": "Pending ack have not init success!"})
    txn = scene.begin()
    scene.add_subscriptions(txn, "s", "f")
    scene.acknowledge(txn, SHARED, scene.first[0], scene.first[2])
    scene.acknowledge(txn, FAILOVER, scene.first[3], cumulative=True)
    found = scene.pending("s", "?lowWaterMarks=true")
    assert 0 < found.pop("recoverStartTime") <= found.pop("recoverEndTime")
    assert found == {"state": "Ready", "ongoingTxnSize": 1, "lowWaterMarks": {}}
    assert scene.pending("f")["ongoingTxnSize"] == 0  # cumulative ones do not count
    log = scene.get(f"{path}?metadata=true")["pendingAckLogStats"]
    name = scene.name.rpartition("/")[2]
    assert log["managedLedgerName"] == (
        f"public/default/persistent/{name}-s__transaction_pending_ack"
    )
    stats = log["managedLedgerInternalStats"]
    assert stats.keys() == OF_LOG and "metadata" in stats["ledgers"][-1]
    assert stats["cursors"].keys() == {"__pending_ack_state"}
    scene.end(txn, COMMIT)
    scene.settled(lambda: scene.pending("s")["ongoingTxnSize"], 0)
    assert scene.pending("s", "?lowWaterMarks=true")["lowWaterMarks"] == {"0": txn[1] - 1}


def test_a_transaction_in_a_subscription_has_its_cumulative_position(scene: Scene) -> None:
    txn = scene.begin()
    scene.add_subscriptions(txn, "f")
    path = f"transactionInPendingAckStats/{scene.name}/f/{path_of(txn)}"
    assert scene.get(path) == {}
    scene.acknowledge(txn, FAILOVER, scene.first[3], cumulative=True)
    assert scene.get(path) == {"cumulativeAckPosition": text(scene.first[3])}
    scene.end(txn, ABORT)
    scene.settled(lambda: scene.get(path), {})


def test_a_position_is_pending_until_the_commit(scene: Scene) -> None:
    def states(name: str) -> list[str]:
        path = f"positionStatsInPendingAck/{scene.name}/{name}"
        return [scene.get("{}/{}/{}".format(path, *each))["state"] for each in scene.first[:3]]

    assert states("s") == ["PendingAckNotReady"] * 3
    txn = scene.begin()
    scene.add_subscriptions(txn, "s", "f")
    scene.acknowledge(txn, SHARED, scene.first[0], scene.first[2])
    scene.acknowledge(txn, FAILOVER, scene.first[2], cumulative=True)
    assert states("s") == ["PendingAck", "NotInPendingAck", "PendingAck"]
    assert states("f") == ["NotInPendingAck"] * 3  # only single ones are looked up
    scene.end(txn, COMMIT)
    scene.settled(lambda: states("s"), ["MarkDelete", "NotInPendingAck", "NotInPendingAck"])
    scene.settled(lambda: states("f"), ["MarkDelete"] * 3)


def test_a_subscription_that_does_not_exist_has_no_log(scene: Scene) -> None:
    found = scene.rest(f"pendingAckInternalStats/{scene.name}/none")
    assert found == (404, {"reason": f"{scene.topic} not found subscription : none"})


# --- what Apache Pulsar answers with an unexpected error ----------------------------------------


@pytest.mark.pyxbroker
def test_what_does_not_exist_is_not_found_everywhere(scene: Scene) -> None:
    for path in (
        *(f"pendingAckStats/{scene.name}/none", f"positionStatsInPendingAck/{scene.name}/none/0/0"),
        f"transactionInPendingAckStats/{scene.name}/none/0/0",
    ):
        reason = f"{scene.topic} not found subscription : none"
        assert scene.rest(path) == (404, {"reason": reason})
    reason = "The transaction with this txdID `(0,999999)`not found "
    assert scene.rest("abortTransaction/0/999999", "POST") == (404, {"reason": reason})
    assert scene.rest("abortTransaction/9/0", "POST")[0] == 404


# --- more coordinators ------------------------------------------------------------------------


def test_the_number_of_coordinators_grows_only(scene: Scene) -> None:
    path, count = "transactionCoordinator/replicas", len(scene.get("coordinators"))
    reason = (
        "Number of transaction coordinators should be more than the current number of"
        " transaction coordinator"
    )
    for each in (count, 0, -1):
        assert scene.rest(path, "POST", each) == (406, {"reason": reason})
    assert scene.rest(path, "POST", count + 1) == (204, "")
    assert [each["id"] for each in scene.get("coordinators")] == [*range(count + 1)]
    _, found = scene.broker.rest("GET", f"/admin/v2/{COORDINATORS.replace('://', '/')}/partitions")
    assert found["partitions"] == count + 1


@pytest.mark.pyxbroker
def test_a_coordinator_that_no_client_has_used_is_opened(own_broker: Any) -> None:
    """Apache Pulsar answers 404, or an unexpected error for all coordinators."""
    broker = own_broker(settings=BROKER_SETTINGS)
    broker.start()
    path = "/admin/v3/transactions"
    assert broker.rest("POST", f"{path}/transactionCoordinator/replicas", 3)[0] == 204
    _, found = broker.rest("GET", f"{path}/coordinatorStats")
    assert list(found) == ["0", "1", "2"]
    assert {each["state"] for each in found.values()} == {"Ready"}
    assert broker.rest("GET", f"{path}/slowTransactions/0") == (200, {})

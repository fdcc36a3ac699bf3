"""Transactions by REST: coordinators of other brokers, limits, and what does not answer.

compat_tests/test_admin_transactions.py compares the answers with those of Apache Pulsar.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import test_admin_topics
import transactions
from one_bookie import until
from one_broker import TOPIC, Broker
from pyxbroker.admin.resources import transactions as resource
from pyxbroker.base.errors import PersistenceError, ServiceNotReady
from pyxbroker.base.limits import COORDINATORS_MAX
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import SERVE, Redirect
from pyxbroker.broker.peers import Ask, PeerRefused
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.participants import Participants
from pyxbroker.broker.transactions.topic_buffer import TransactionBuffer
from test_admin_topics import Rest
from test_transactions_of_topics import buffer_of, end, published

PATH = "/admin/v3/transactions"
TOPIC_PATH = "public/default/t"
ALL = [
    *(("GET", f"coordinator{each}") for each in ("s", "Stats", "InternalStats/0")),
    *(("GET", "transactionMetadata/0/0"), ("GET", "slowTransactions/1")),
    ("GET", f"transactionBufferStats/{TOPIC_PATH}"),
    ("GET", f"transactionBufferInternalStats/{TOPIC_PATH}"),
    ("GET", f"transactionInBufferStats/{TOPIC_PATH}/0/0"),
    *(("GET", f"pendingAck{each}/{TOPIC_PATH}/s") for each in ("Stats", "InternalStats")),
    ("GET", f"transactionInPendingAckStats/{TOPIC_PATH}/s/0/0"),
    ("GET", f"positionStatsInPendingAck/{TOPIC_PATH}/s/0/0"),
    *(("POST", "abortTransaction/0/0"), ("POST", "transactionCoordinator/replicas")),
]
ELSEWHERE = Redirect(Addresses("pulsar://b:1", "http://b:2"), False, True)
CLOSED = {
    **{"state": "None", "leastSigBits": -1, "lowWaterMark": 0, "ongoingTxnSize": 0},
    **{"recoverStartTime": 0, "recoverEndTime": 0},
}


def run(
    tmp_path: Path,
    scenario: Callable[[Broker, Rest], Awaitable[None]],
    coordinators: int = 1,
    **settings: Any,
) -> None:
    async def with_rest(broker: Broker) -> None:
        await scenario(broker, Rest(broker))

    transactions.run(tmp_path, with_rest, coordinators, **settings)


class Cluster:
    """Another broker runs coordinator 1; it has answers, or refuses, or does not answer."""

    def __init__(self, broker: Broker) -> None:
        self.answer: Any = {}
        self.asked: list[Ask] = []
        broker.service.__dict__["ownership"] = self
        broker.service.peers = cast(Any, self)

    async def find(self, topic: Any, authoritative: bool, listener: str = "") -> Any:
        return ELSEWHERE if str(topic).endswith("-partition-1") else SERVE

    async def check(self, topic: Any, acquires: bool = False) -> Any:
        return await self.find(topic, False)

    async def ask(self, to: Redirect, request: Ask) -> Any:
        assert to is ELSEWHERE
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_each_endpoint_says_that_transactions_are_off(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert len(ALL) == len(resource.ENDPOINTS)
        for method, path in ALL:
            body = "1" if path.endswith("replicas") else ""
            reason = "This Broker is not configured with transactionCoordinatorEnabled=true."
            assert await rest.reason(method, f"{PATH}/{path}", body) == (503, reason), path

    test_admin_topics.run(tmp_path, scenario)


def test_requests_about_one_coordinator_are_redirected_to_its_broker(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        Cluster(broker)
        for method, path in (
            *(("GET", "coordinatorStats?coordinatorId=1"), ("GET", "coordinatorInternalStats/1")),
            *(("GET", "slowTransactions/5?coordinatorId=1"), ("GET", "transactionMetadata/1/7")),
            ("POST", "abortTransaction/1/7"),
        ):
            answer = await rest.answer(method, f"{PATH}/{path}")
            assert answer.status == 307, path
            separator = "&" if "?" in path else "?"
            location = f"http://b:2{PATH}/{path}{separator}authoritative=false"
            assert dict(answer.headers)["Location"] == location

    run(tmp_path, scenario, 2)


def test_an_answer_about_all_coordinators_has_those_of_other_brokers(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        cluster = Cluster(broker)
        client = await broker.client()
        txn = await transactions.new(client)
        _, found = await rest("GET", f"{PATH}/coordinators")
        urls = ["pulsar://here:1", "pulsar://b:1"]
        assert found == [{"id": id, "brokerServiceUrl": url} for id, url in enumerate(urls)]
        cluster.answer = {"state": "Ready"}
        _, found = await rest("GET", f"{PATH}/coordinatorStats")
        assert found["0"]["ongoingTxnSize"] == 1 and found["1"] == {"state": "Ready"}
        cluster.answer = {"(1,5)": {"txnId": "(1,5)"}}
        _, found = await rest("GET", f"{PATH}/slowTransactions/7")
        assert set(found) == {str(txn), "(1,5)"}
        targets = [each.target for each in cluster.asked]
        names = ("coordinatorStats", "slowTransactions/7")
        assert targets == [f"{PATH}/{each}?coordinatorId=1" for each in names]

    run(tmp_path, scenario, 2)


@pytest.mark.parametrize("error", [PeerRefused(500, "No."), ServiceNotReady("No.")])
def test_a_coordinator_that_does_not_answer_hides_no_other_one(
    tmp_path: Path, error: Exception
) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        Cluster(broker).answer = error
        _, found = await rest("GET", f"{PATH}/coordinatorStats")
        assert (found["0"]["state"], found["1"]) == ("Ready", CLOSED)
        # A list without its transactions would look complete.
        reason = "Transaction coordinator 1 does not answer: No."
        assert await rest.reason("GET", f"{PATH}/slowTransactions/1") == (503, reason)
        assert await rest("GET", f"{PATH}/slowTransactions/1?coordinatorId=0") == (200, {})

    run(tmp_path, scenario, 2)


def test_an_abort_continues_after_the_answer_that_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "END_WAIT_S", 0.05)
    ends = 0

    async def refuse(*_: Any) -> None:
        nonlocal ends
        ends += 1
        raise PersistenceError("a test")

    async def scenario(broker: Broker, rest: Rest) -> None:
        client = await broker.client()
        await client.produce()
        txn = await transactions.new(client)
        await transactions.add_partition(client, txn, TOPIC)
        await published(client, 0, (b"x", txn))
        with monkeypatch.context() as patch:
            patch.setattr(Participants, "end", refuse)
            path = f"{txn.most}/{txn.least}"
            status, reason = await rest.reason("POST", f"{PATH}/abortTransaction/{path}")
            assert status == 503
            assert reason.startswith(f"The abort of the transaction {txn} has begun, but ")
        assert ends
        _, found = await rest("GET", f"{PATH}/transactionMetadata/{path}")
        assert found["status"] == "ABORTING"
        assert (await rest("POST", f"{PATH}/abortTransaction/{path}"))[0] in (204, 503)

    run(tmp_path, scenario)


def test_what_has_become_of_a_transaction_at_a_topic_that_is_not_open_is_left_out(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        client = await broker.client()
        txn = await transactions.new(client)
        topic = "persistent://public/default/none"
        await transactions.add_partition(client, txn, topic)
        await transactions.add_subscription(client, txn, (topic, "s"))
        _, found = await rest("GET", f"{PATH}/transactionMetadata/{txn.most}/{txn.least}")
        assert found["producedPartitions"] == {topic: {"aborted": False}}
        assert found["ackedPartitions"] == {topic: {"s": {}}}

    run(tmp_path, scenario)


def test_nothing_can_be_read_while_a_buffer_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        client = await broker.client()
        await client.produce()
        await published(client, 0, (b"x", await transactions.new(client)))
        await rest("PUT", f"/admin/v2/persistent/{TOPIC_PATH}/unload")

        async def never(*_: Any) -> None:
            return

        monkeypatch.setattr(TransactionBuffer, "_recover", never)
        await broker.topic()
        _, found = await rest("GET", f"{PATH}/transactionBufferStats/{TOPIC_PATH}")
        assert (found["state"], found["maxReadPosition"]) == ("Initializing", "-1:-1")
        assert found["recoverStartTime"] > 0 == found["recoverEndTime"]

    run(tmp_path, scenario)


def test_the_segments_of_a_snapshot_are_counted(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        client = await broker.client()
        await client.produce()
        txns = [TxnId(0, number) for number in range(400)]
        for number, txn in enumerate(txns):
            await published(client, number, (b"x", txn))
            await end(broker, txn, commit=False)
        path = f"{PATH}/transactionBufferStats/{TOPIC_PATH}"

        async def segments(query: str = "") -> Any:
            return (await rest("GET", path + query))[1]["segmentsStats"]

        buffer = await buffer_of(broker)
        await until(lambda: buffer.segments_stats(False)["segmentsSize"])
        found = await segments()
        capacity = found["currentSegmentCapacity"]
        assert found["unsealedAbortTxnIDSize"] == len(txns) - capacity > 0
        assert found["lastTookSnapshotSegmentTimestamp"] > 0
        [segment] = (await segments("?segmentStats=true"))["segmentStats"]
        assert segment["lastTxnID"] == str(txns[capacity - 1])

    segmented = {"transactionBufferSegmentedSnapshotEnabled": True}
    at_once = {"transactionBufferSnapshotMinTimeInMillis": 1}
    run(tmp_path, scenario, transactionBufferSnapshotSegmentSize=1024, **segmented, **at_once)


def test_there_is_a_limit_of_coordinators(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        path, beyond = f"{PATH}/transactionCoordinator/replicas", str(COORDINATORS_MAX + 1)
        status, reason = await rest.reason("POST", path, beyond)
        assert (status, reason.split()[:3]) == (406, ["At", "most", str(COORDINATORS_MAX)])
        assert (await rest("POST", path, "3"))[0] == 204

    run(tmp_path, scenario)


def test_the_topic_of_the_coordinators_is_not_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker, rest: Rest) -> None:
        topic = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
        for path, expected in ((topic, 405), ("/admin/v2/namespaces/pulsar/system", 409)):
            for query in ("", "?force=true"):
                status, reason = await rest.reason("DELETE", path + query)
                assert (status, "while transactions are enabled" in reason) == (expected, True)
        assert [each["id"] for each in (await rest("GET", f"{PATH}/coordinators"))[1]] == [0]

    run(tmp_path, scenario, forceDeleteNamespaceAllowed=True)

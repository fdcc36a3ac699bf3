"""The ends of transactions at topics and subscriptions of other brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_broker import Broker
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import SERVE, Decision, Redirect
from pyxbroker.broker.transactions import participants, running_coordinator
from pyxbroker.broker.transactions.coordinators import ASSIGNMENT
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.cluster.peers import ClusterPeers
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config
from scripted_server import Answer, Peer, Server, here
from transactions import add_partition, add_subscription, end, new, run, transactions_of

ON_PARTITION = pb.BaseCommand.END_TXN_ON_PARTITION
ON_SUBSCRIPTION = pb.BaseCommand.END_TXN_ON_SUBSCRIPTION
ELSEWHERE = "persistent://public/default/elsewhere"


class Elsewhere:
    """An ownership rule: another broker has one topic, or knows who has it."""

    def __init__(self, url: str, is_owner: bool, topic: str = ELSEWHERE) -> None:
        self._topic = topic
        self._to = Redirect(Addresses(url, ""), authoritative=False, is_owner=is_owner)

    async def find(self, topic: TopicName, authoritative: bool, listener: str = "") -> Decision:
        return self._to if str(topic) == self._topic else SERVE

    async def check(self, topic: TopicName, acquires: bool = False) -> Decision:
        return SERVE


def done(kind: int) -> Answer:
    def answer(peer: Peer, body: Any, rest: bytes) -> None:
        peer.say(kind + 1, request_id=body.request_id)

    return answer


def refused(kind: int, *refusals: tuple[int, str]) -> Answer:
    """Give these refusals, one after the other, then success."""
    left = list(refusals)

    def answer(peer: Peer, body: Any, rest: bytes) -> None:
        if not left:
            peer.say(kind + 1, request_id=body.request_id)
            return
        error, message = left.pop(0)
        peer.say(kind + 1, request_id=body.request_id, error=error, message=message)

    return answer


def run_elsewhere(
    tmp_path: Path,
    answers: dict[int, Answer],
    error: int | None = None,
    is_owner: bool = True,
    **settings: Any,
) -> Server:
    """Commit transaction (0,1), while (0,0) is open, on a topic and on a subscription of another
    broker; return that broker.
    """
    server = Server({pb.BaseCommand.LOOKUP: here, **answers})

    async def scenario(broker: Broker) -> None:
        async with server:
            service: Any = broker.service
            service.ownership = Elsewhere(server.url, is_owner)
            service.peers = ClusterPeers(broker.config, Addresses(server.url, "http://here:2"))
            client = await broker.client()
            await new(client)
            txn = await new(client)
            await add_partition(client, txn, ELSEWHERE)
            await add_subscription(client, txn, (ELSEWHERE, "s"))
            answer = await asyncio.wait_for(end(client, txn), 10)
            found = answer.error if answer.HasField("error") else None
            assert found == error, answer.message
            service.peers.close()

    run(tmp_path, scenario, **settings)
    return server


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_coordinator, "RETRY_S", 0.01)


@pytest.mark.parametrize("is_owner", [True, False], ids=["owner", "looked up"])
def test_the_owner_gets_the_end_with_the_low_water_mark(tmp_path: Path, is_owner: bool) -> None:
    answers = {kind: done(kind) for kind in (ON_PARTITION, ON_SUBSCRIPTION)}
    server = run_elsewhere(tmp_path, answers, is_owner=is_owner)
    [on_topic], [on_subscription] = server.said(ON_PARTITION), server.said(ON_SUBSCRIPTION)
    assert on_topic.topic == ELSEWHERE
    assert on_subscription.subscription.topic == ELSEWHERE
    assert on_subscription.subscription.subscription == "s"
    for each in (on_topic, on_subscription):
        assert (each.txnid_most_bits, each.txnid_least_bits) == (0, 1)
        assert each.txn_action == pb.COMMIT
        assert each.txnid_least_bits_of_low_watermark == 2**64 - 1  # -1: (0,0) is open
    assert len(server.said(pb.BaseCommand.LOOKUP)) == (not is_owner)


def test_the_end_is_repeated_until_the_owner_takes_it(tmp_path: Path) -> None:
    passing = [
        (pb.ServiceNotReady, "later"),
        (pb.PersistenceError, "later"),
        (pb.TooManyRequests, "later"),
    ]
    answers = {
        ON_PARTITION: refused(ON_PARTITION, *passing),
        ON_SUBSCRIPTION: done(ON_SUBSCRIPTION),
    }
    server = run_elsewhere(tmp_path, answers)
    assert len(server.said(ON_PARTITION)) == 4
    assert len(server.said(ON_SUBSCRIPTION)) == 1


def test_a_silent_owner_is_asked_again(tmp_path: Path) -> None:
    asked = 0

    def silent_once(peer: Peer, body: Any, rest: bytes) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            done(ON_PARTITION)(peer, body, rest)

    answers = {ON_PARTITION: silent_once, ON_SUBSCRIPTION: done(ON_SUBSCRIPTION)}
    run_elsewhere(tmp_path, answers, transactionBufferClientOperationTimeoutInMills=50)
    assert asked == 2


def test_a_silent_broker_delays_no_requests_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participants, "REQUESTS_MIN", 1)
    asked: list[str] = []

    class TwoBrokers:
        config = Config(transactionBufferClientMaxConcurrentRequests=1)

        @property
        def ownership(self) -> Any:
            return self

        @property
        def peers(self) -> Any:
            return self

        async def find(self, topic: TopicName, authoritative: bool) -> Decision:
            return Redirect(Addresses(topic.local_name), authoritative=False, is_owner=True)

        async def command(self, to: Redirect, topic: TopicName, *_: Any) -> Any:
            asked.append(topic.local_name)
            if topic.local_name == "silent":
                await asyncio.sleep(60)
            return pb.CommandEndTxnOnPartitionResponse(request_id=1)

    async def main() -> None:
        brokers: Any = TwoBrokers()
        ends, about = participants.Participants(brokers), participants.End(TxnId(0, 1), True, -1)
        silent = [asyncio.create_task(ends.end("silent", None, about)) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.wait_for(ends.end("other", None, about), 5)
        assert asked == ["silent", "other"]
        for each in silent:
            each.cancel()

    asyncio.run(main())


def test_a_topic_without_transactions_elsewhere_has_nothing_to_end(tmp_path: Path) -> None:
    without = (pb.NotAllowedError, "Transaction buffer disable!")
    answers = {
        ON_PARTITION: refused(ON_PARTITION, without),
        ON_SUBSCRIPTION: done(ON_SUBSCRIPTION),
    }
    server = run_elsewhere(tmp_path, answers)
    assert len(server.said(ON_PARTITION)) == 1


def test_another_refusal_of_the_owner_is_the_answer_to_the_client(tmp_path: Path) -> None:
    answers = {
        ON_PARTITION: refused(ON_PARTITION, (pb.TransactionNotFound, "not a super user")),
        ON_SUBSCRIPTION: done(ON_SUBSCRIPTION),
    }
    server = run_elsewhere(tmp_path, answers, error=pb.TransactionNotFound)
    assert len(server.said(ON_SUBSCRIPTION)) == 1


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_coordinator_without_an_owner_gets_one(tmp_path: Path, is_owner: bool) -> None:
    """Its transactions end although no client connects to it."""
    kind = pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST
    server = Server({pb.BaseCommand.LOOKUP: here, kind: done(kind)})

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await new(client)  # it has a log now
        await transactions_of(broker).unload(lambda name: True)
        async with server:
            service: Any = broker.service
            service.ownership = Elsewhere(server.url, is_owner, str(ASSIGNMENT.partition(0)))
            service.peers = ClusterPeers(broker.config, Addresses(server.url, "http://here:2"))
            await transactions_of(broker).open_all()
            service.peers.close()
        assert transactions_of(broker).running == []

    run(tmp_path, scenario)
    # An owner opens it by itself.
    assert [each.tc_id for each in server.said(kind)] == ([] if is_owner else [0])

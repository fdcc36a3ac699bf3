"""Publishing while nothing can be stored: what is kept, what is refused, and how it goes on."""

from __future__ import annotations

import asyncio
import errno
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import MIB, until
from one_broker import TOPIC, Broker, Client, run, section
from oracles import wire
from pyxbroker.base import log
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.proto import PulsarApi as pb

PATIENT = {"storageUnavailableTimeoutMs": 60_000}
HASTY = {"storageUnavailableTimeoutMs": 100}
BODY = bytes(40_000)


async def fill_up(broker: Broker, code: int = errno.ENOSPC) -> None:
    """From here on no entry log can be written."""
    broker.node.faults.rule("open", ".log.tmp", errno=code)
    topic = await broker.topic("persistent://public/default/other")
    await broker.publish_to(topic, b"something to flush")
    broker.node.storage.flush()
    await until(lambda: broker.storage_state.refusal is not None)


async def free_up(broker: Broker) -> None:
    """The disk is well again; that is noticed without being asked for."""
    broker.node.faults.clear()
    await until(lambda: broker.storage_state.refusal is None)


async def positions(client: Client, count: int) -> list[tuple[int, tuple[int, int]]]:
    receipts = [await client.receive("send_receipt") for _ in range(count)]
    return [
        (each.sequence_id, (each.message_id.ledgerId, each.message_id.entryId)) for each in receipts
    ]


def test_what_is_sent_while_nothing_can_be_stored_is_kept_and_stored_in_its_order(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        client.publish(0, b"before")
        ((_, (ledger_id, _)),) = await positions(client, 1)
        await fill_up(broker)
        for sequence_id in range(1, 50):
            client.publish(sequence_id, b"%d" % sequence_id)
        assert await client.quiet() == []
        await free_up(broker)
        assert await positions(client, 49) == [(n, (ledger_id, n)) for n in range(1, 50)]
        assert broker.publish_gate.refused_sends == 0

    run(tmp_path, scenario, **PATIENT)


def test_sends_fail_after_the_timeout_and_producers_are_told_why(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1)
        await client.produce(2, topic=TOPIC + "-idle")
        client.publish(0, b"stored")
        await positions(client, 1)
        await fill_up(broker)
        for sequence_id in range(1, 11):
            client.publish(sequence_id, b"refused")
        assert (await client.receive("close_producer")).producer_id == 1
        answer = await client.produce(1)
        assert answer.error == pb.ProducerBlockedQuotaExceededException
        assert "The disk of the storage is full" in answer.message
        # Who had nothing pending is not disturbed until it sends something.
        assert await client.quiet() == []
        client.publish(0, b"refused", producer_id=2)
        assert (await client.receive("close_producer")).producer_id == 2
        # What was on its way to a closed producer is dropped.
        client.publish(11, b"late")
        assert await client.quiet() == []
        assert broker.publish_gate.refused_sends == 11
        assert broker.node.connections.publish_bytes == 0
        assert client.connection.pending_sends == 0
        await free_up(broker)
        await client.produce(1)
        client.publish(1, b"again")
        ((_, (_, entry_id)),) = await positions(client, 1)
        assert entry_id == 1, "the ids of what was refused are given again"
        await client.subscribe()
        assert [each.data for each in await client.messages(2)] == [b"stored", b"again"]

    run(tmp_path, scenario, **HASTY)


def test_acknowledging_on_the_same_connection_goes_on_and_is_durable(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        for sequence_id in range(10):
            client.publish(sequence_id, b"%d" % sequence_id)
        await positions(client, 10)
        await client.subscribe(permits=5)
        first = await client.messages(5)
        await fill_up(broker)
        # More than one connection may have pending, so that it would not be read otherwise.
        for sequence_id in range(10, 1210):
            client.publish(sequence_id, b"waits")
            if sequence_id % 100 == 0:
                await client.quiet()
        client.flow(5)
        second = await client.messages(5)
        answer = await client.ack(*(each.position for each in first + second))
        assert not answer.HasField("error")
        assert client.connection.pending_sends == 1200
        assert not client.connection.is_paused

    run(tmp_path, scenario, **PATIENT)


def test_more_than_is_kept_is_refused_at_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        broker.node.connections.publish_bytes_max = MIB
        client = await broker.client()
        await client.produce()
        await fill_up(broker)
        payload = b"".join(frame_of(sequence_id) for sequence_id in range(40))
        await broker.loop.sock_sendall(client.far, payload)
        assert (await client.receive("close_producer")).producer_id == 1
        assert broker.publish_gate.refused_sends > 20
        assert broker.node.connections.publish_bytes == 0

    run(tmp_path, scenario, **PATIENT)


def test_what_is_stored_of_refused_sends_is_their_beginning(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        broker.node.faults.rule("open", ".log.tmp", errno=errno.ENOSPC)
        # More than the write cache has room for.
        sequence_ids = range(5000)
        payload = b"".join(frame_of(sequence_id, bytes(1000)) for sequence_id in sequence_ids)
        await broker.loop.sock_sendall(client.far, payload)
        assert (await client.receive("close_producer")).producer_id == 1
        await free_up(broker)
        topic = await broker.topic()
        managed_ledger = topic.managed_ledger
        await until(lambda: broker.node.connections.publish_bytes == 0)
        kept = managed_ledger.entries
        assert 0 < kept < len(sequence_ids)
        assert managed_ledger.current is not None
        assert managed_ledger.current.pending.next == kept
        assert broker.node.last_entry(managed_ledger.current.ledger_id) == kept - 1
        # Some were answered before; all that is there is the beginning of what was sent.
        told = (await client.quiet()).count("send_receipt")
        assert 0 < told <= kept
        assert [each for each, _ in await positions(client, told)] == list(range(told))
        await client.subscribe(permits=10_000)
        got = await client.messages(kept)
        assert [each.data[:4] for each in got] == [b"%04d" % n for n in range(kept)]
        await client.produce()
        client.publish(10_000, b"next")
        ((_, (_, entry_id)),) = await positions(client, 1)
        assert entry_id == kept

    run(tmp_path, scenario, **HASTY)


def frame_of(sequence_id: int, body: bytes = BODY) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.CopyFrom(pb.CommandSend(producer_id=1, sequence_id=sequence_id))
    return wire.frame(command.SerializeToString(), section(b"%04d" % sequence_id + body))


def test_a_topic_is_deleted_while_sends_of_it_wait(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        await fill_up(broker)
        client.publish(0, b"waits")
        await until(lambda: client.connection.pending_sends == 1)
        topic = await broker.topic()
        await asyncio.wait_for(broker.topics.deletion.delete(topic), 10)
        assert client.connection.pending_sends == 0

    run(tmp_path, scenario, **PATIENT)


def test_a_failed_journal_refuses_producers_at_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        broker.node.faults.rule("fdatasync", ".journal", errno=errno.EIO)
        client.publish(0, b"x")
        await until(lambda: broker.storage_state.has_failed)
        answer: Any = await client.produce(2, topic=TOPIC + "-2")
        assert answer.error == pb.ProducerBlockedQuotaExceededException
        assert answer.message == "the journal failed"

    run(tmp_path, scenario, **PATIENT)


def test_non_persistent_topics_need_no_disk(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = "non-persistent://public/default/t"
        client = await broker.client()
        await client.subscribe(topic=name)
        await fill_up(broker)
        await until(lambda: broker.publish_gate.is_closed)
        await client.produce(topic=name)
        client.publish(0, b"handed out")
        assert (await client.messages(1))[0].data == b"handed out"

    run(tmp_path, scenario, **HASTY)


class Idle(PersistentTopic):
    """In the place of a topic that nobody uses."""

    def __init__(self, call: Callable[[], None] | None = None) -> None:
        self.name = TopicName.get(TOPIC)
        self.call = call

    def close_waiting_producers(self) -> int:
        if self.call is not None:
            self.call()
        return 0

    def take_back_waiting(self) -> None:
        """Nothing waits."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The garbage collector comes when it wants to; its time is not measured."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_hundred_thousand_topics_are_looked_at_once_and_without_holding_the_loop(
    tmp_path: Path, no_collection: None
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1)
        await client.produce(2, topic=TOPIC + "-idle")
        topics: list[Any] = [*(Idle() for _ in range(100_000)), *broker.topics.registry]
        walks: list[list[Any]] = []
        steps: list[float] = []
        gate = broker.publish_gate
        step = gate._step

        def walk() -> list[Any]:
            walks.append(topics)
            return topics

        def timed() -> None:
            began = time.thread_time()
            step()
            steps.append(time.thread_time() - began)

        gate._topics, gate._step = walk, timed  # type: ignore[method-assign]
        await fill_up(broker)
        client.publish(0, b"refused")
        assert (await client.receive("close_producer")).producer_id == 1
        assert len(walks) == 1
        assert len(steps) > 10
        assert max(steps) < sum(steps) / 3
        # Who sends something later is found without looking at all of them again.
        client.publish(0, b"refused", producer_id=2)
        assert (await client.receive("close_producer")).producer_id == 2
        assert len(walks) == 1
        assert gate.refused_sends == 2
        assert broker.node.connections.publish_bytes == 0
        # The next time the disk is full it is not known any more who waits.
        await free_up(broker)
        await client.produce(1)
        await fill_up(broker)
        client.publish(1, b"refused")
        assert (await client.receive("close_producer")).producer_id == 1
        assert len(walks) == 2

    run(tmp_path, scenario, **HASTY)


def test_who_sends_something_while_others_are_sent_away_is_sent_away_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.broker.publish_gate.SLICE_S", -1.0)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1)
        await client.produce(2)
        late = Idle(lambda: client.publish(0, b"late", producer_id=2))
        gate = broker.publish_gate
        idle: list[Any] = [late, *(Idle() for _ in range(20))]
        gate._topics = lambda: [*broker.topics.registry, *idle]
        await fill_up(broker)
        client.publish(0, b"early")
        closed = [(await client.receive("close_producer")).producer_id for _ in range(2)]
        assert closed == [1, 2]
        assert await client.quiet() == [], "no SEND is answered"
        assert gate.refused_sends == 2
        assert broker.node.connections.publish_bytes == 0

    run(tmp_path, scenario, **HASTY)


def test_a_defect_of_one_producer_keeps_no_other_from_being_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = Counter(log.defects)
    monkeypatch.setattr(log, "defects", met)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for producer_id in (1, 2, 3):
            await client.produce(producer_id)
        topic = await broker.topic()

        def release() -> None:
            raise ZeroDivisionError("a defect")

        broken = client.connection.producers[1]
        monkeypatch.setattr(Producer, "release", lambda self: release() if self is broken else None)
        before = met["topic"]
        await fill_up(broker)
        for producer_id in (1, 2, 3):
            client.publish(0, b"refused", producer_id=producer_id)
        closed = {(await client.receive("close_producer")).producer_id for _ in range(3)}
        assert closed == {1, 2, 3}
        assert met["topic"] > before
        assert list(topic.producers.values()) == [broken]

    run(tmp_path, scenario, **HASTY)

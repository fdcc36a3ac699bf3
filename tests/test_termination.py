"""Topics that are terminated: no message more, and consumers that are told so in the end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from one_bookie import until
from one_broker import TOPIC, Broker, Client, run
from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.topic_name import TopicName
from pyxbroker.ledger.errors import NotEnoughBookies
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.metadata import paths
from pyxbroker.mledger import positions
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.state import State
from pyxbroker.proto import PulsarApi as pb
from test_admin_topics import P, Rest
from test_admin_topics import run as run_rest

PATH = paths.managed_ledger("public/default/persistent/t")
LATEST = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
END = "reachedEndOfTopic"


async def reopened(broker: Broker) -> Any:
    topic = await broker.topic()
    await topic.close()
    return await broker.topic()


async def end_of(client: Client) -> int:
    return (await client.receive(END)).consumer_id


def test_a_terminated_topic_takes_no_message_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        positions_of = await broker.publish(b"one", b"two")
        topic = await broker.topic()
        assert await topic.terminate() == positions_of[1]
        assert await topic.terminate() == positions_of[1]
        assert (await client.receive("close_producer")).producer_id == 1
        client.publish(0, b"late")
        for _ in range(2):
            answer = await client.produce()
            assert (answer.error, answer.message) == (
                pb.TopicTerminatedError,
                "Topic was already terminated",
            )
            topic = await reopened(broker)
            assert topic.is_terminated
            assert topic.managed_ledger.terminated_position == positions_of[1]
        await client.subscribe()
        assert [each.data for each in await client.messages(2)] == [b"one", b"two"]

    run(tmp_path, scenario)


def test_what_was_sent_before_is_stored_and_what_comes_later_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        topic = await broker.topic()
        for number in range(20):
            client.publish(number, b"%d" % number)
        await asyncio.sleep(0)
        position = await topic.terminate()
        stored = 0
        told = await client.quiet()
        for name, message, _ in client._inbox:
            if name == "send_receipt":
                assert message.sequence_id == stored
                stored += 1
            elif name == "send_error":
                assert message.error == pb.TopicTerminatedError
        assert "close_producer" in told
        assert topic.managed_ledger.entries == stored
        assert position.entry_id == stored - 1

    run(tmp_path, scenario)


def test_the_end_is_stored_as_pulsar_does(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        [position] = await broker.publish(b"one")
        topic = await broker.topic()
        await topic.terminate()
        found = await broker.node.store.get(PATH)
        assert found is not None
        ledgers, _, terminated = positions.decode_ledger_list(found.value)
        assert terminated == position
        assert [each.entries for each in ledgers] == [1]
        assert all(each.timestamp_ms for each in ledgers)

    run(tmp_path, scenario)


def test_a_consumer_is_told_when_it_has_acknowledged_everything(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        await client.subscribe(2, subscription="other")
        where = await broker.publish(b"one", b"two")
        await client.messages(4)
        await client.ack(*where, consumer_id=2)
        topic = await broker.topic()
        await topic.terminate()
        assert await end_of(client) == 2
        await client.ack(where[0])
        client.flow(10)
        assert END not in await client.quiet()
        await client.ack(where[1])
        assert await end_of(client) == 1
        client.flow(10)
        assert END not in await client.quiet(), "it is told once"

    run(tmp_path, scenario)


def test_who_comes_to_the_end_is_told_when_it_asks(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"one")
        await (await broker.topic()).terminate()
        client = await broker.client()
        exclusive: dict[str, Any] = {"subType": pb.CommandSubscribe.Exclusive}
        await client.subscribe(1, 0, subscription="r", durable=False, start_message_id=LATEST,
                               **exclusive)  # fmt: skip
        assert END not in await client.quiet()
        client.flow(1)
        assert await end_of(client) == 1
        await client.subscribe(2, subscription="s", **exclusive)
        [message] = await client.messages(1)
        assert END not in await client.quiet()
        await client.ack(message.position, consumer_id=2, cumulative=True)
        assert await end_of(client) == 2

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "version"), [("old", 8), ("Pulsar-CPP-v4.2.0", 20), ("Pulsar-Go-v0.19.0", 20)]
)
def test_a_client_that_does_not_know_the_command_is_not_told(
    tmp_path: Path, name: str, version: int
) -> None:
    async def scenario(broker: Broker) -> None:
        client = Client(broker)
        client.send(pb.CommandConnect(client_version=name, protocol_version=version))
        await client.receive("connected")
        await client.subscribe()
        await (await broker.topic()).terminate()
        client.flow(1)
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_a_topic_without_messages_is_terminated_too(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        position = await topic.terminate()
        assert position.entry_id == -1
        for _ in range(2):
            topic = await reopened(broker)
            assert topic.is_terminated
            assert topic.managed_ledger.terminated_position == position
        client = await broker.client()
        await client.subscribe()
        assert await end_of(client) == 1
        assert (await client.produce()).error == pb.TopicTerminatedError

    run(tmp_path, scenario)


def test_its_end_is_stored_when_all_that_was_appended_is_confirmed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another write of the list in between would cut off what is confirmed after it."""

    async def scenario(broker: Broker) -> None:
        [position] = await broker.publish(b"one")
        topic: Any = await broker.topic()
        drain, goes_on = LedgerHandle.drain, asyncio.Event()

        async def slow(handle: LedgerHandle) -> None:
            await goes_on.wait()
            await drain(handle)

        async def stored_end() -> Any:
            found = await broker.node.store.get(PATH)
            assert found is not None
            return positions.decode_ledger_list(found.value)[2]

        monkeypatch.setattr(LedgerHandle, "drain", slow)
        termination = asyncio.ensure_future(topic.terminate())
        try:
            await until(lambda: topic.managed_ledger.state is State.TERMINATED, 10)
            await topic.managed_ledger.put_property("key", "value")
            assert await stored_end() is None
        finally:
            goes_on.set()
        assert await termination == position
        assert await stored_end() == position

    run(tmp_path, scenario)


def test_a_topic_is_terminated_while_its_ledger_changes(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        where = await broker.publish(*(b"%d" % number for number in range(5)))
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe()
        topic.managed_ledger.roll_over()
        assert await topic.terminate() == where[-1]
        assert [each.position for each in await client.messages(5)] == where

    run(tmp_path, scenario)


def test_a_terminated_topic_is_trimmed_and_deleted_like_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe()
        topic = await broker.topic()
        where = []
        for _ in range(3):
            where += await broker.publish(b"x")
            former = topic.managed_ledger.current
            topic.managed_ledger.roll_over()
            await until(lambda former=former: topic.managed_ledger.current is not former)
        await topic.terminate()
        await client.messages(3)
        await client.ack(*where)
        await until(lambda: len(topic.managed_ledger.ledgers) == 1)
        await broker.topics.deletion.delete_by_name(TopicName.get(TOPIC), force=True)
        assert not await broker.node.store.exists(PATH)
        assert not hasattr(await client.produce(), "error")

    run(tmp_path, scenario)


def test_a_termination_that_could_not_be_stored_fails_the_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"one")
        topic = await broker.topic()
        found = await broker.node.store.get(PATH)
        assert found is not None
        await broker.node.store.put(PATH, found.value)
        with pytest.raises(ManagedLedgerError):
            await topic.terminate()
        assert not topic.is_terminated
        assert not (await broker.topic()).is_terminated

    run(tmp_path, scenario)


def test_who_terminates_a_topic_that_is_closed_meanwhile_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        terminate = type(topic).terminate

        async def late(self: Any) -> Any:
            await broker.topics.deletion.unload(self.name)
            return await terminate(self)

        with monkeypatch.context() as patch:
            patch.setattr(type(topic), "terminate", late)
            with pytest.raises(ServiceNotReady, match="is being closed"):
                await broker.topics.deletion.terminate(topic.name)
        assert await broker.topics.deletion.terminate(topic.name)

    run(tmp_path, scenario)


def test_terminating_for_lack_of_bookies_is_refused_until_there_are_enough(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await rest.broker.topic()
        needs = "an ensemble of 2 needs as many bookies"
        topic.managed_ledger.refuse_for_bookies(NotEnoughBookies(needs))
        status, reason = await rest.reason("POST", f"{P}/t/terminate")
        assert status == 503
        assert reason == (
            f"Topic {TOPIC} was not terminated: public/default/persistent/t has no next ledger:"
            f" {needs}"
        )
        policy = {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
        policy["managedLedgerMaxMarkDeleteRate"] = 0
        path = "/admin/v2/namespaces/public/default/persistence"
        assert (await rest("POST", path, json.dumps(policy)))[0] == 204
        status, reason = await rest.reason("PUT", f"{P}/new")
        assert status == 503 and needs in reason

    run_rest(tmp_path, scenario)

"""Producers that want a topic for themselves: who gets it, who waits, who is fenced; and epochs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import turns, until
from one_broker import TOPIC, Broker, Client, run
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import access
from pyxbroker.broker.topics.access import CLIENT_EPOCH_MAX, EPOCH_MAX, EPOCH_PROPERTY
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import Unavailable
from pyxbroker.mledger import positions
from pyxbroker.proto import PulsarApi as pb

EXCLUSIVE = pb.Exclusive
WAIT = pb.WaitForExclusive
FENCING = pb.ExclusiveWithFencing
OTHER = "non-persistent://public/default/t"

TAKEN = "Topic has an existing exclusive producer: "


async def produce(client: Client, producer_id: int, mode: int, **fields: Any) -> Any:
    return await client.produce(producer_id, producer_access_mode=mode, **fields)


async def close(client: Client, producer_id: int) -> None:
    await client.request(pb.CommandCloseProducer(producer_id=producer_id), "success")


async def epoch_in_metadata(broker: Broker) -> str | None:
    found = await broker.node.store.get(
        paths.managed_ledger(TopicName.get(TOPIC).managed_ledger_name)
    )
    assert found is not None
    return positions.decode_ledger_list(found.value)[1].get(EPOCH_PROPERTY)


# --- epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_each_exclusive_producer_has_the_next_epoch_also_after_a_restart(
    tmp_path: Path, mode: int
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert not (await client.produce(0, topic=TOPIC)).HasField("topic_epoch")
        await close(client, 0)
        for expected in range(4):
            if expected == 2:
                await broker.topics.deletion.unload(TopicName.get(TOPIC))
            answer = await produce(client, 1, mode)
            assert answer.producer_ready and answer.topic_epoch == expected
            assert await epoch_in_metadata(broker) == str(expected)
            await close(client, 1)
        # Who shares the topic later is told the epoch, and has none of its own.
        assert (await client.produce(2)).topic_epoch == 3

    run(tmp_path, scenario)


def test_a_non_persistent_topic_has_epochs_as_long_as_it_is_open(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for expected in range(2):
            answer = await produce(client, 1, EXCLUSIVE, topic=OTHER)
            assert answer.topic_epoch == expected
            assert (await client.produce(2, topic=OTHER)).error == pb.ProducerBusy
            await close(client, 1)

    run(tmp_path, scenario)


def test_nobody_is_told_of_an_epoch_before_it_is_stored(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await broker.topic()
        put, stored = broker.node.store.put, asyncio.Event()

        async def slow(*args: Any) -> Any:
            await stored.wait()
            return await put(*args)

        broker.node.store.put = slow  # type: ignore[method-assign]
        asked = asyncio.ensure_future(produce(client, 1, EXCLUSIVE))
        await turns(50)
        assert not asked.done() and await epoch_in_metadata(broker) is None
        # It has the topic already.
        other = await broker.client()
        assert (await other.produce(1)).error == pb.ProducerBusy
        stored.set()
        assert (await asked).topic_epoch == 0
        assert await epoch_in_metadata(broker) == "0"

    run(tmp_path, scenario)


def test_a_producer_whose_epoch_cannot_be_stored_is_refused_and_leaves_the_topic_free(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert (await produce(client, 1, EXCLUSIVE)).topic_epoch == 0
        await close(client, 1)
        used = broker.service.client_memory.used
        put = broker.node.store.put

        async def refuse(*_: Any) -> Any:
            raise Unavailable("the store is away")

        broker.node.store.put = refuse  # type: ignore[method-assign]
        assert (await produce(client, 1, EXCLUSIVE)).error == pb.MetadataError
        broker.node.store.put = put  # type: ignore[method-assign]
        assert broker.service.client_memory.used == used
        assert not hasattr(await client.produce(2), "error")
        await close(client, 2)
        assert (await produce(client, 1, EXCLUSIVE)).topic_epoch == 1

    run(tmp_path, scenario)


def test_a_producer_that_comes_back_keeps_its_epoch_unless_another_one_was_there(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert (await produce(client, 1, EXCLUSIVE)).topic_epoch == 0
        await close(client, 1)
        assert (await produce(client, 1, EXCLUSIVE, topic_epoch=0)).topic_epoch == 0
        await close(client, 1)
        assert (await produce(client, 1, EXCLUSIVE)).topic_epoch == 1
        await close(client, 1)
        for mode in (EXCLUSIVE, WAIT, FENCING):
            late = await produce(client, 1, mode, topic_epoch=0)
            assert late.error == pb.ProducerFenced
            assert late.message == (
                "Topic epoch has already moved. Current epoch: 1, Producer epoch: 0"
            )
        # What a client says that had more is taken over.
        assert (await produce(client, 1, EXCLUSIVE, topic_epoch=7)).topic_epoch == 7
        assert await epoch_in_metadata(broker) == "7"

    run(tmp_path, scenario)


@pytest.mark.parametrize("brought", [CLIENT_EPOCH_MAX, CLIENT_EPOCH_MAX + 1, EPOCH_MAX])
@pytest.mark.parametrize("given", [0, 1])
def test_no_epoch_that_a_client_brings_is_the_last_one(
    tmp_path: Path, brought: int, given: int
) -> None:
    """Whether the topic has given one before or not, and also after it was opened anew."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for expected in range(given):
            assert (await produce(client, 1, EXCLUSIVE)).topic_epoch == expected
            await close(client, 1)
        epoch = brought if brought == CLIENT_EPOCH_MAX else given
        assert (await produce(client, 1, EXCLUSIVE, topic_epoch=brought)).topic_epoch == epoch
        assert await epoch_in_metadata(broker) == str(epoch)
        await close(client, 1)
        # Who got that one comes back with it.
        assert (await produce(client, 1, EXCLUSIVE, topic_epoch=epoch)).topic_epoch == epoch
        await close(client, 1)
        for mode in (EXCLUSIVE, WAIT, FENCING):
            epoch += 1
            assert (await produce(client, 1, mode)).topic_epoch == epoch
            await close(client, 1)
        await broker.topics.deletion.unload(TopicName.get(TOPIC))
        # Also where that is more than a topic believes that it does not know of.
        assert (await produce(client, 1, EXCLUSIVE, topic_epoch=epoch)).topic_epoch == epoch
        await close(client, 1)
        assert (await produce(client, 1, FENCING)).topic_epoch == epoch + 1

    run(tmp_path, scenario)


def test_epochs_end_where_their_numbers_do(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        late = await produce(client, 1, EXCLUSIVE, topic_epoch=EPOCH_MAX + 1)
        assert late.error == pb.ProducerFenced
        topic = await broker.topic()
        await topic.store_epoch(EPOCH_MAX - 1)
        assert (await produce(client, 1, EXCLUSIVE)).topic_epoch == EPOCH_MAX
        await close(client, 1)
        late = await produce(client, 1, EXCLUSIVE, topic_epoch=EPOCH_MAX + 1)
        assert late.error == pb.ProducerFenced
        assert (await produce(client, 1, EXCLUSIVE)).error == pb.NotAllowedError
        # Who had the last one still has it.
        assert (await produce(client, 1, EXCLUSIVE, topic_epoch=EPOCH_MAX)).topic_epoch == EPOCH_MAX
        await close(client, 1)
        assert not hasattr(await client.produce(1), "error")

    run(tmp_path, scenario)


def test_a_topic_whose_epoch_cannot_be_read_is_shared_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        topic: Any = await broker.topic()
        await topic.managed_ledger.put_property(EPOCH_PROPERTY, "many")
        await broker.topics.deletion.unload(topic.name)
        client = await broker.client()
        assert (await produce(client, 1, EXCLUSIVE)).error == pb.NotAllowedError
        assert not hasattr(await client.produce(1), "error")
        assert "the epoch of a topic cannot be read" in caplog.text

    run(tmp_path, scenario)


# --- who gets the topic ---------------------------------------------------------------------------


def test_an_exclusive_producer_keeps_others_out(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await produce(client, 1, EXCLUSIVE, producer_name="mine")
        shared = await other.produce(1)
        assert (shared.error, shared.message) == (pb.ProducerBusy, TAKEN + "mine")
        second = await produce(other, 1, EXCLUSIVE)
        assert (second.error, second.message) == (pb.ProducerFenced, TAKEN + "mine")
        await close(client, 1)
        assert not hasattr(await other.produce(1), "error")
        late = await produce(client, 1, EXCLUSIVE)
        assert late.error == pb.ProducerFenced
        assert late.message == "Topic has existing shared producers"

    run(tmp_path, scenario)


def test_producers_that_wait_have_the_topic_one_after_another(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await client.produce(1)
        await client.produce(2)
        waiting = [await produce(other, n, WAIT, producer_name=f"w{n}") for n in range(3)]
        assert [each.producer_ready for each in waiting] == [False] * 3
        assert [each.producer_name for each in waiting] == ["w0", "w1", "w2"]
        assert not any(each.HasField("topic_epoch") for each in waiting)
        # As long as somebody waits, nobody joins.
        assert (await client.produce(3)).error == pb.ProducerBusy
        assert (await produce(client, 3, EXCLUSIVE)).error == pb.ProducerFenced
        await close(client, 1)
        assert await other.quiet() == []
        await close(client, 2)
        for number in range(3):
            ready = await other.receive("producer_success")
            assert ready.request_id == waiting[number].request_id
            assert ready.producer_ready and ready.topic_epoch == number
            assert ready.producer_name == f"w{number}"
            other.publish(0, b"%d" % number, number)
            assert (await other.receive("send_receipt")).producer_id == number
            assert await other.quiet() == []
            await close(other, number)
        assert not hasattr(await client.produce(3), "error")

    run(tmp_path, scenario)


def test_one_that_waits_and_goes_is_passed_over(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, gone, last = [await broker.client() for _ in range(3)]
        await produce(client, 1, EXCLUSIVE)
        await produce(gone, 1, WAIT)
        await produce(client, 2, WAIT)
        used = broker.service.client_memory.used
        waiting = await produce(last, 1, WAIT)
        cost = broker.service.client_memory.used - used
        assert cost > 0  # who waits is paid for
        gone.connection.close()
        await close(client, 2)
        await until(lambda: broker.service.client_memory.used == used - cost)
        await close(client, 1)
        ready = await last.receive("producer_success")
        assert (ready.request_id, ready.topic_epoch) == (waiting.request_id, 1)
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_one_that_goes_while_its_epoch_is_stored_gives_way_to_the_next(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, gone, last = [await broker.client() for _ in range(3)]
        await produce(client, 1, EXCLUSIVE)
        for each in (gone, last):
            await produce(each, 1, WAIT)
        put, stored = broker.node.store.put, asyncio.Event()

        async def slow(*args: Any) -> Any:
            await stored.wait()
            return await put(*args)

        broker.node.store.put = slow  # type: ignore[method-assign]
        await close(client, 1)
        await turns(20)
        gone.connection.close()
        await turns(20)
        stored.set()
        # The epoch that was stored for the other is not given again.
        assert (await last.receive("producer_success")).topic_epoch == 2

    run(tmp_path, scenario)


def test_one_that_waits_is_no_producer_yet(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await produce(client, 1, EXCLUSIVE)
        await produce(client, 2, WAIT)
        topic = await broker.topic()
        assert len(topic.producers) == 1
        again = await produce(client, 2, WAIT)
        assert (again.error, again.message) == (
            pb.ServiceNotReady,
            "Producer is already present on the connection",
        )
        client.publish(0, b"too early", 2)
        await client.closed()

    run(tmp_path, scenario)


def test_fencing_sends_everybody_away(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        for number in range(120):
            await client.produce(number)
        waiting = [await produce(client, 1000 + n, WAIT) for n in range(120)]
        assert (await produce(other, 1, FENCING)).topic_epoch == 0
        for each in waiting:
            told = await client.receive("error")
            assert (told.request_id, told.error) == (each.request_id, pb.ProducerFenced)
            assert told.message == "Fenced out"
        closed = {(await client.receive("close_producer")).producer_id for _ in range(120)}
        assert closed == set(range(120))
        topic = await broker.topic()
        assert len(topic.producers) == 1
        # The next one that fences sends the first away, and those that came back share nothing.
        assert (await client.produce(1)).error == pb.ProducerBusy
        assert (await produce(client, 1, FENCING)).topic_epoch == 1
        assert (await other.receive("close_producer")).producer_id == 1
        back = await produce(other, 1, FENCING, topic_epoch=0)
        assert back.error == pb.ProducerFenced
        # That was no reason to send anybody away.
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_many_are_sent_away_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FENCED_PER_STEP", 5)

    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        for number in range(23):
            await client.produce(number)
        topic = await broker.topic()
        together = [0]  # in each turn of the loop
        close_producer = type(topic).close_producer

        def note(self: Any, producer: Any) -> None:
            together[-1] += 1
            close_producer(self, producer)

        def turn() -> None:
            together.append(0)
            timer[0] = broker.loop.call_soon(turn)

        timer = [broker.loop.call_soon(turn)]
        monkeypatch.setattr(type(topic), "close_producer", note)
        assert (await produce(other, 1, FENCING)).topic_epoch == 0
        timer[0].cancel()
        assert [each for each in together if each] == [5, 5, 5, 5, 3]

    run(tmp_path, scenario)


def test_one_that_fences_while_another_gets_its_epoch_fences_that(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await broker.topic()
        put, stored = broker.node.store.put, asyncio.Event()

        async def slow(*args: Any) -> Any:
            await stored.wait()
            return await put(*args)

        broker.node.store.put = slow  # type: ignore[method-assign]
        first = asyncio.ensure_future(produce(client, 1, FENCING))
        await turns(20)
        second = asyncio.ensure_future(produce(other, 1, FENCING))
        await turns(20)
        stored.set()
        told = await first
        assert (told.error, told.message) == (pb.ProducerFenced, "Fenced out")
        assert (await second).topic_epoch == 1
        assert len((await broker.topic()).producers) == 1

    run(tmp_path, scenario)


def test_a_client_that_reconnects_early_takes_its_exclusive_producer_over(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        old, new = await broker.client(), await broker.client()
        name = {"producer_name": "g", "user_provided_producer_name": False}
        first = await produce(old, 1, EXCLUSIVE, epoch=1, **name)
        waiting = await produce(old, 2, WAIT)
        again = await produce(new, 1, EXCLUSIVE, epoch=2, topic_epoch=first.topic_epoch, **name)
        assert again.topic_epoch == first.topic_epoch
        old.connection.close()
        await turns()
        assert (await new.produce(2)).error == pb.ProducerBusy
        new.publish(0, b"x", 1)
        await new.receive("send_receipt")
        assert not waiting.producer_ready

    run(tmp_path, scenario)


def test_who_waits_is_told_when_the_topic_goes(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await produce(client, 1, EXCLUSIVE)
        waiting = await produce(other, 1, WAIT)
        await broker.topics.deletion.unload(TopicName.get(TOPIC))
        told = await other.receive("error")
        assert (told.request_id, told.error) == (waiting.request_id, pb.ServiceNotReady)
        assert (await produce(other, 1, WAIT)).topic_epoch == 1

    run(tmp_path, scenario)

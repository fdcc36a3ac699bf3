"""SENDs that the broker refuses to look at: answered in the order in which they came."""

from __future__ import annotations

from pathlib import Path

from one_bookie import turns, until
from one_broker import Broker, Client, command_of, run, section
from oracles import wire
from pyxbroker.proto import PulsarApi as pb
from test_publish_steps import Held, answers, refusing


def damaged(sequence_id: int, producer_id: int = 1) -> bytes:
    """A SEND whose last byte is not what its checksum was made of."""
    payload = section(b"damaged")
    send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
    return wire.frame(command_of(send), payload[:-1] + bytes([payload[-1] ^ 1]))


def sound(sequence_id: int) -> bytes:
    send = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
    return wire.frame(command_of(send), section(b"%d" % sequence_id))


def in_transaction(client: Client, sequence_id: int) -> None:
    ids = {"txnid_least_bits": 1, "txnid_most_bits": 0}
    send = pb.CommandSend(producer_id=1, sequence_id=sequence_id, **ids)
    client.send(send, section(b"in a transaction"))


def test_a_send_that_is_refused_is_answered_after_those_before_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.produce()
        held = Held(topic)
        # Of one read, of others, and several in a row.
        client.far.send(sound(0) + damaged(1) + sound(2))
        await until(lambda: len(held.runs) == 2)
        client.far.send(damaged(3))
        await turns()
        in_transaction(client, 4)
        await turns()
        client.publish(5, b"5")
        await until(lambda: len(held.runs) == 3)
        assert await client.quiet() == []
        assert client.connection.producers[1].pending_sends == 6
        held.let_go()
        got = await answers(client, 6)
        assert [each for each, _ in got] == [0, 1, 2, 3, 4, 5]
        assert [got[1][1], got[3][1], got[4][1]] == [
            pb.ChecksumError,
            pb.ChecksumError,
            pb.NotAllowedError,
        ]
        entry_ids = [got[at][1][1] for at in (0, 2, 5)]
        assert entry_ids == [0, 1, 2], "what is refused uses up no entry id"
        assert client.connection.pending_sends == 0
        assert broker.node.connections.publish_bytes == 0
        # Nothing is before it: it is answered at once.
        client.far.send(damaged(6))
        assert await answers(client, 1) == [(6, pb.ChecksumError)]

    run(tmp_path, scenario)


def test_refused_sends_wait_for_what_the_steps_of_their_topic_decide(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        topic.add_publish_step(refusing())
        client = await broker.client()
        await client.produce()
        held = Held(topic)
        client.publish(0, b"stored")
        client.publish(1, b"refuse")
        await until(lambda: len(held.runs) == 1)
        client.far.send(damaged(2))
        await turns()
        client.publish(3, b"refuse")
        assert await client.quiet() == []
        held.let_go()
        assert [each for each, _ in await answers(client, 4)] == [0, 1, 2, 3]
        assert client.connection.pending_sends == 0

    run(tmp_path, scenario)


def test_refused_sends_of_a_producer_that_was_closed_are_forgotten(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.produce()
        held = Held(topic)
        client.far.send(sound(0) + damaged(1))
        await until(lambda: len(held.runs) == 1)
        await turns()
        topic.close_producers()
        held.let_go()
        assert await client.quiet() == ["close_producer"]
        assert client.connection.pending_sends == 0
        assert broker.node.connections.publish_bytes == 0

    run(tmp_path, scenario)


def test_refused_sends_that_wait_count_against_the_limit_of_their_connection(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.produce()
        held = Held(topic)
        limit = broker.node.connections.sends_max
        client.far.send(sound(0))
        await until(lambda: len(held.runs) == 1)
        await broker.loop.sock_sendall(
            client.far, b"".join(damaged(each) for each in range(1, limit))
        )
        await until(lambda: client.connection.is_paused)
        held.let_go()
        assert [each for each, _ in await answers(client, limit)] == list(range(limit))
        assert not client.connection.is_paused

    run(tmp_path, scenario)

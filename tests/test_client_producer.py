"""The client's producer: its window of pending entries, and what it does when brokers misbehave."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pyxbroker.client import attachment
from pyxbroker.client.client import Client
from pyxbroker.client.entries import MessageId, OutgoingMessage, ReceivedEntry, split_section
from pyxbroker.client.errors import BrokerRefused, Closed, MessageTooLarge, SendTimeout
from pyxbroker.client.pending_sends import OutOfOrder, Pending, PendingSends
from pyxbroker.client.producer import Producer, ProducerSettings
from pyxbroker.proto import PulsarApi as pb
from scripted_broker import frame_of
from scripted_server import Peer, Server, command_of, receipt, refuse, run

pytestmark = pytest.mark.usefixtures("each_loop")

TOPIC = "persistent://public/default/t"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "pauses_s", lambda: iter([0.01] * 100))


def value_of(section: bytes) -> bytes:
    return bytes(split_section(section)[1])


# --- the window, without a socket -----------------------------------------------------------------


def pending(number: int, size: int = 10) -> Pending:
    return Pending(number, number, bytes(size), [asyncio.Future()], sent_at=number)


@pytest.mark.parametrize("seed", range(30))
def test_any_schedule_of_receipts_resolves_each_entry_once_and_in_order(seed: int) -> None:
    """Connections break at any time; their late receipts, and those of resent entries, arrive."""
    chance = random.Random(seed)

    async def main() -> None:
        window, resolved = PendingSends(8, 1000), []
        sent, stored = 0, -1
        arriving: list[int] = []
        while len(resolved) < 200:
            if sent < 200 and not window.is_full and chance.random() < 0.5:
                each = pending(sent)
                number = sent
                each.futures[0].add_done_callback(lambda _, n=number: resolved.append(n))
                window.add(each)
                arriving.append(sent)
                sent += 1
            elif arriving and chance.random() < 0.7:
                number = arriving.pop(0)
                stored = max(stored, number)
                if window.acknowledge(number, 1, number):
                    assert number == stored
            elif chance.random() < 0.2:
                # A new connection: everything pending is sent again, old receipts may still come.
                lost = chance.randrange(len(arriving) + 1)
                arriving = [each for each in arriving[:lost] if each <= stored]
                arriving += [each.sequence_id for each in window]
            await asyncio.sleep(0)
        assert resolved == list(range(200)) and window.bytes == 0

    run(main)


def test_a_receipt_before_that_of_an_earlier_entry_is_out_of_order() -> None:
    async def main() -> None:
        window = PendingSends(8, 1000)
        window.add(pending(4))
        window.add(pending(5))
        assert not window.acknowledge(3, 1, 0)
        with pytest.raises(OutOfOrder):
            window.acknowledge(5, 1, 0)

    run(main)


def test_the_window_is_bounded_by_entries_and_by_bytes() -> None:
    async def main() -> None:
        window = PendingSends(2, 100)
        window.add(pending(0, 99))
        assert not window.is_full
        window.add(pending(1, 0))
        assert window.is_full
        window.acknowledge(0, 1, 0)
        window.add(pending(2, 100))
        assert window.is_full
        window.acknowledge(1, 1, 0)
        assert len(window) == 1 and window.is_full

    run(main)


def test_what_is_too_old_fails_and_the_rest_stays() -> None:
    async def main() -> None:
        window = PendingSends(8, 1000)
        entries = [pending(number) for number in range(4)]
        for each in entries:
            window.add(each)
        assert window.expire(1, SendTimeout("late")) == 2
        assert [each.futures[0].done() for each in entries] == [True, True, False, False]
        assert window.oldest_sent_at == 2

    run(main)


# --- against a scripted broker --------------------------------------------------------------------


def test_what_a_lost_connection_left_is_sent_again_in_order() -> None:
    async def main() -> None:
        async with Server() as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC, ProducerSettings(properties={"a": "b"}))
            count = 0

            def until_the_third(peer: Peer, body: Any, rest: bytes) -> None:
                nonlocal count
                count += 1
                if count == 3:
                    peer.close()
                if count < 3 or peer is not server.peers[0]:
                    receipt(peer, body, rest)

            server.answers[pb.BaseCommand.SEND] = until_the_third
            futures = [await producer.publish(b"%d" % number) for number in range(6)]
            ids = await asyncio.gather(*futures)
            assert ids == [MessageId(3, entry) for entry in range(6)]
            opened = server.said(pb.BaseCommand.PRODUCER)
            assert [each.producer_name for each in opened] == ["", "chosen"]
            assert [each.epoch for each in opened] == [0, 1]
            assert [value_of(each) for each in server.sections][-4:] == [b"2", b"3", b"4", b"5"]

    run(main)


def test_a_closed_producer_goes_to_the_broker_that_was_assigned_without_a_lookup() -> None:
    async def main() -> None:
        async with Server() as first, Server() as second, Client(first.settings()) as client:
            producer = await client.producer(TOPIC)
            first.peers[0].say(
                pb.BaseCommand.CLOSE_PRODUCER,
                producer_id=producer.number,
                request_id=1,
                assignedBrokerServiceUrl=second.url,
            )
            await second.until(pb.BaseCommand.PRODUCER)
            await producer.send(b"x")
            assert len(first.said(pb.BaseCommand.LOOKUP)) == 1
            assert not second.said(pb.BaseCommand.LOOKUP) and len(second.sections) == 1
            # Without one the topic is looked up.
            second.peers[0].say(
                pb.BaseCommand.CLOSE_PRODUCER, producer_id=producer.number, request_id=1
            )
            await first.until(pb.BaseCommand.LOOKUP, 2)
            await producer.send(b"y")
            assert value_of(first.sections[0]) == b"y"

    run(main)


def send_error(code: int) -> Any:
    def answer(peer: Peer, body: Any, rest: bytes) -> None:
        peer.say(
            pb.BaseCommand.SEND_ERROR,
            producer_id=body.producer_id,
            sequence_id=body.sequence_id,
            error=code,
            message="no",
        )

    return answer


def test_an_entry_that_is_refused_for_the_moment_is_sent_again_by_a_new_producer() -> None:
    async def main() -> None:
        async with Server() as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC)
            server.answers[pb.BaseCommand.SEND] = send_error(pb.PersistenceError)
            first, second = await producer.publish(b"1"), await producer.publish(b"2")
            await server.until(pb.BaseCommand.CLOSE_PRODUCER)
            server.answers[pb.BaseCommand.SEND] = receipt
            assert await first < await second
            assert [value_of(each) for each in server.sections][-2:] == [b"1", b"2"]
            kinds = [each.type for each in server.commands]
            closed = kinds.index(pb.BaseCommand.CLOSE_PRODUCER)
            assert pb.BaseCommand.PRODUCER in kinds[closed:]

    run(main)


def test_an_entry_that_is_refused_for_good_fails_alone() -> None:
    async def main() -> None:
        async with Server() as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC)
            server.answers[pb.BaseCommand.SEND] = send_error(pb.NotAllowedError)
            with pytest.raises(BrokerRefused, match="NotAllowedError"):
                await producer.send(b"1")
            server.answers[pb.BaseCommand.SEND] = receipt
            await producer.send(b"2")
            assert len(server.said(pb.BaseCommand.PRODUCER)) == 1

    run(main)


def test_a_terminated_topic_ends_the_producer() -> None:
    async def main() -> None:
        answers = {pb.BaseCommand.SEND: send_error(pb.TopicTerminatedError)}
        async with Server(answers) as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC)
            futures = [await producer.publish(b"1"), await producer.publish(b"2")]
            found = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(each) for each in found} == {BrokerRefused}
            with pytest.raises(BrokerRefused, match="TopicTerminatedError"):
                await producer.send(b"3")

    run(main)


def test_a_name_that_a_broken_connection_still_holds_is_waited_for() -> None:
    async def main() -> None:
        async with Server() as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC, ProducerSettings(name="me"))
            open_producer = server.answers[pb.BaseCommand.PRODUCER]
            server.answers[pb.BaseCommand.PRODUCER] = refuse(pb.ProducerBusy)
            server.peers[0].close()
            await server.until(pb.BaseCommand.PRODUCER, 3)
            server.answers[pb.BaseCommand.PRODUCER] = open_producer
            await producer.send(b"x")
            # The first time it is an error: another producer has the name.
            server.answers[pb.BaseCommand.PRODUCER] = refuse(pb.ProducerBusy)
            with pytest.raises(BrokerRefused, match="ProducerBusy"):
                await client.producer(TOPIC, ProducerSettings(name="me"))

    run(main)


def test_a_producer_that_waits_for_exclusive_access_does_not_time_out() -> None:
    async def main() -> None:
        asked: list[tuple[Peer, Any]] = []

        def wait(peer: Peer, body: Any, rest: bytes) -> None:
            asked.append((peer, body))
            say(False)

        def say(is_ready: bool) -> None:
            peer, body = asked[0]
            peer.say(
                pb.BaseCommand.PRODUCER_SUCCESS,
                request_id=body.request_id,
                producer_name="me",
                producer_ready=is_ready,
                topic_epoch=7,
            )

        async with (
            Server({pb.BaseCommand.PRODUCER: wait}) as server,
            Client(server.settings(operation_timeout_s=0.1)) as client,
        ):
            settings = ProducerSettings(access_mode=pb.WaitForExclusive)
            task = asyncio.create_task(client.producer(TOPIC, settings))
            await asyncio.sleep(0.3)
            assert not task.done()
            say(True)
            assert (await task).topic_epoch == 7

    run(main)


def test_ids_continue_behind_what_the_broker_has_of_the_name() -> None:
    def remember(peer: Peer, body: Any, rest: bytes) -> None:
        peer.say(
            pb.BaseCommand.PRODUCER_SUCCESS,
            request_id=body.request_id,
            producer_name="me",
            last_sequence_id=41,
        )

    async def main() -> None:
        answers = {pb.BaseCommand.PRODUCER: remember}
        async with Server(answers) as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC, ProducerSettings(name="me"))
            assert producer.last_sequence_id == 41
            await producer.send(b"x")
            await producer.send(OutgoingMessage(b"y", sequence_id=100))
            await producer.send(b"z")
            ids = [each.sequence_id for each in server.said(pb.BaseCommand.SEND)]
            assert ids == [42, 100, 101]

    run(main)


def test_batches_end_at_their_limits_and_after_a_while() -> None:
    async def main() -> None:
        settings = ProducerSettings(batch_messages_max=3, batch_bytes_max=1000, batch_delay_s=0.02)
        async with Server() as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC, settings)
            values = [b"1", b"2", b"3", b"x" * 600, b"y" * 600, b"4"]
            futures = [await producer.publish(each) for each in values]
            ids = await asyncio.gather(*futures)
            sent = server.said(pb.BaseCommand.SEND)
            assert [each.num_messages for each in sent] == [3, 1, 2]
            assert [(each.sequence_id, each.highest_sequence_id) for each in sent] == [
                (0, 2),
                (3, 3),
                (4, 5),
            ]
            assert [(each.entry, each.batch) for each in ids] == [
                *((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1))
            ]
            found = [
                message.value
                for section in server.sections
                for message in ReceivedEntry(MessageId(3, 0), 0, (), section).messages()
            ]
            assert found == values
            # One that is delayed is an entry of its own, and stays in its place.
            first = await producer.publish(b"5")
            later = await producer.publish(OutgoingMessage(b"6", deliver_at_ms=7))
            assert await first < await later
            metadata, _ = split_section(server.sections[-1])
            assert metadata.deliver_at_time == 7
            assert not metadata.HasField("num_messages_in_batch")

    run(main)


def test_a_full_window_waits_and_a_closed_producer_fails_what_waits() -> None:
    async def main() -> None:
        async with Server({pb.BaseCommand.SEND: lambda *_: None}) as server:
            async with Client(server.settings()) as client:
                settings = ProducerSettings(pending_entries_max=2)
                producer: Producer = await client.producer(TOPIC, settings)
                futures = [await producer.publish(b"1"), await producer.publish(b"2")]
                third = asyncio.create_task(producer.publish(b"3"))
                await server.until(pb.BaseCommand.SEND, 2)
                await asyncio.sleep(0.02)
                assert not third.done()
                (first, _) = server.said(pb.BaseCommand.SEND)
                receipt(server.peers[0], first, b"")
                assert await futures[0] == MessageId(3, 0)
                await third
                await producer.close()
                with pytest.raises(Closed):
                    await futures[1]
                with pytest.raises(Closed):
                    await producer.publish(b"4")
            assert len(server.said(pb.BaseCommand.CLOSE_PRODUCER)) == 1

    run(main)


def test_a_message_that_no_broker_acknowledges_times_out_also_without_a_broker() -> None:
    async def main() -> None:
        async with (
            Server({pb.BaseCommand.SEND: lambda *_: None}) as server,
            Client(server.settings()) as client,
        ):
            producer = await client.producer(TOPIC, ProducerSettings(send_timeout_s=0.05))
            with pytest.raises(SendTimeout):
                await producer.send(b"1")
            server.answers[pb.BaseCommand.PRODUCER] = refuse(pb.ServiceNotReady)
            server.peers[0].close()
            with pytest.raises(SendTimeout):
                await producer.send(b"2")

    run(main)


def test_a_message_over_the_brokers_limit_is_refused_here() -> None:
    def connect(peer: Peer, body: Any, rest: bytes) -> None:
        command = command_of(
            pb.BaseCommand.CONNECTED, server_version="x", protocol_version=21, max_message_size=1000
        )
        peer.write(frame_of(command))

    async def main() -> None:
        answers = {pb.BaseCommand.CONNECT: connect}
        async with Server(answers) as server, Client(server.settings()) as client:
            producer = await client.producer(TOPIC)
            with pytest.raises(MessageTooLarge):
                await producer.send(b"x" * 1000)
            await producer.send(b"x" * 800)

    run(main)

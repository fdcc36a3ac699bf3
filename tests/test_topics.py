"""Topics as clients meet them: producers, subscriptions, readers, and the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, until
from one_broker import TOPIC, Broker, Client, run, section
from oracles import wire
from pyxbroker.base.errors import NotAllowed, ServiceNotReady
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.topics import deletion
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import Unavailable
from pyxbroker.proto import PulsarApi as pb

EXCLUSIVE = {"subType": pb.CommandSubscribe.Exclusive}


# --- producers ------------------------------------------------------------------------------------


def test_receipts_come_in_order_with_their_positions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert (await client.produce()).producer_name == "standalone-0-0"
        for sequence_id in range(100):
            client.publish(sequence_id, b"%d" % sequence_id)
        receipts = [await client.receive("send_receipt") for _ in range(100)]
        assert [each.sequence_id for each in receipts] == list(range(100))
        positions = [(each.message_id.ledgerId, each.message_id.entryId) for each in receipts]
        assert positions == [(positions[0][0], n) for n in range(100)]
        await client.subscribe()
        messages = await client.messages(100)
        assert [each.position for each in messages] == positions
        assert [each.data for each in messages] == [b"%d" % n for n in range(100)]
        assert client.connection.pending_sends == 0
        assert broker.node.connections.publish_bytes == 0

    run(tmp_path, scenario)


def test_messages_make_no_tasks(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        await client.subscribe(permits=1)

        async def send_and_receive(sequence_id: int) -> None:
            client.publish(sequence_id, b"x")
            [message] = await client.messages(1)
            await client.receive("send_receipt")
            position = pb.MessageIdData(ledgerId=message.position[0], entryId=message.position[1])
            client.send(pb.CommandAck(consumer_id=1, ack_type=0, message_id=[position]))
            client.flow(1)

        await send_and_receive(0)
        await client.quiet()
        made: list[str] = []

        def note(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
            if "pyxbroker" in work.cr_code.co_filename:
                made.append(work.__qualname__)
            return asyncio.Task(work, loop=loop, **options)

        broker.loop.set_task_factory(note)
        for number in range(1, 101):
            await send_and_receive(number)
        # The cursor is stored now and then: that goes with time, not with messages.
        assert len(made) < 10, made
        before = len(made)
        await client.subscribe(2, subscription="t")
        assert len(made) > before, "what has to wait is a task, and is seen here"

    run(tmp_path, scenario)


def test_names_of_producers_are_taken_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.client()
        second = await broker.client()
        await first.produce(producer_name="mine", user_provided_producer_name=True)
        answer = await second.produce(producer_name="mine", user_provided_producer_name=True)
        assert answer.error == pb.ProducerBusy
        assert "already connected" in answer.message
        first.far.close()
        await until(lambda: first.connection.closed)
        answer = await second.produce(producer_name="mine", user_provided_producer_name=True)
        assert answer.producer_name == "mine"

    run(tmp_path, scenario)


def test_a_client_that_reconnects_takes_its_generated_name_over(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        old = await broker.client()
        name = (await old.produce()).producer_name
        new = await broker.client()
        same_epoch = await new.produce(
            producer_name=name, user_provided_producer_name=False, epoch=0
        )
        assert same_epoch.error == pb.ProducerBusy
        answer = await new.produce(producer_name=name, user_provided_producer_name=False, epoch=1)
        assert answer.producer_name == name
        # What the old connection still sends is dropped, not stored and not an error.
        old.publish(0, b"late")
        new.publish(0, b"mine")
        await new.receive("send_receipt")
        assert await old.quiet() == []
        topic = await broker.topic()
        assert topic.managed_ledger.entries == 1

    run(tmp_path, scenario)


def test_a_producer_closes_when_its_sends_are_answered(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        for sequence_id in range(20):
            client.publish(sequence_id, b"x")
        await client.request(pb.CommandCloseProducer(producer_id=1, request_id=0), "success")
        receipts = (await client.quiet()).count("send_receipt")
        assert receipts == 20
        topic = await broker.topic()
        assert topic.producers == {}
        assert topic.received()[0] == 20
        client.publish(20, b"late")
        assert (await client.quiet()).count("send_receipt") == 20
        client.publish(0, b"x", producer_id=77)
        assert "not open on this connection" in (await client.receive("error")).message
        await client.closed()

    run(tmp_path, scenario)


def test_sends_of_a_client_that_goes_away_are_stored_and_counted_off(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        for sequence_id in range(50):
            client.publish(sequence_id, b"x" * 1000)
        client.far.close()
        topic = await broker.topic()
        await until(lambda: topic.managed_ledger.entries == 50)
        await until(lambda: topic.producers == {})
        assert broker.node.connections.publish_bytes == 0
        assert broker.node.connections.live == set()

    run(tmp_path, scenario)


def test_a_damaged_send_is_refused_alone(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        good = section(b"good")
        client.send(pb.CommandSend(producer_id=1, sequence_id=0), good)
        client.send(pb.CommandSend(producer_id=1, sequence_id=1), good[:-1] + b"X")
        client.send(pb.CommandSend(producer_id=1, sequence_id=2), good)
        error = await client.receive("send_error")
        assert (error.sequence_id, error.error) == (1, pb.ChecksumError)
        receipts = [await client.receive("send_receipt") for _ in range(2)]
        assert [each.sequence_id for each in receipts] == [0, 2]

    run(tmp_path, scenario)


def test_a_send_whose_metadata_cannot_be_decoded_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        # The checksum of each is right.
        for number, metadata in enumerate([b"\xff" * 9, b"", b"\x0a\x7fshort"]):
            command = pb.CommandSend(producer_id=1, sequence_id=number)
            client.send(command, wire.payload_section(metadata, b"data"))
            error = await client.receive("send_error")
            assert (error.sequence_id, error.error) == (number, pb.ChecksumError)
            assert "metadata of the message cannot be decoded" in error.message
        client.send(pb.CommandSend(producer_id=1, sequence_id=9), section(b"data"))
        assert (await client.receive("send_receipt")).sequence_id == 9

    run(tmp_path, scenario)


def test_a_send_that_counts_more_messages_than_its_payload_can_have_is_refused(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        small, sixty = b"x" * 59, b"x" * 60
        sends: list[tuple[bytes, dict[str, int], bool]] = [
            (small, {"num_messages_in_batch": 10}, False),
            (sixty, {"num_messages_in_batch": 10}, True),
            (sixty, {"num_messages_in_batch": 2**31 - 1}, False),
            (sixty, {"num_messages_in_batch": -1}, False),
            (b"", {"num_messages_in_batch": 0}, True),
            (b"", {"num_messages_in_batch": 1}, True),
            # Compressed, and encrypted as well or not: what counts is the size before that.
            (
                small,
                {"num_messages_in_batch": 500, "uncompressed_size": 3000, "compression": 1},
                True,
            ),
            (
                small,
                {"num_messages_in_batch": 501, "uncompressed_size": 3000, "compression": 1},
                False,
            ),
            (small, {"num_messages_in_batch": 2**31 - 1, "uncompressed_size": 2**32 - 1}, False),
        ]
        for number, (data, fields, _) in enumerate(sends):
            command = pb.CommandSend(producer_id=1, sequence_id=number)
            client.send(command, section(data, **fields))
        good = [number for number, (_, _, taken) in enumerate(sends) if taken]
        for number in [n for n in range(len(sends)) if n not in good]:
            error = await client.receive("send_error")
            assert (error.sequence_id, error.error) == (number, pb.NotAllowedError)
            assert "more messages than its payload" in error.message
        assert [(await client.receive("send_receipt")).sequence_id for _ in good] == good

    run(tmp_path, scenario)


def test_a_topic_that_another_broker_took_sends_its_clients_away(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        client.publish(0, b"before")
        await client.receive("send_receipt")
        topic = await broker.topic()
        await append((await broker.node.open(name=topic.name.managed_ledger_name)), b"theirs")
        client.publish(1, b"too late")
        assert (await client.receive("send_error")).sequence_id == 1
        await client.receive("close_producer")
        # It may come back: whoever looks it up now gets it opened again.
        await client.produce(producer_id=3)
        client.publish(2, b"after", producer_id=3)
        await client.receive("send_receipt")
        again = await broker.topic()
        assert again is not topic

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("setting", "error"),
    [("maxProducersPerTopic", pb.ProducerBusy), ("", None)],
)
def test_the_limit_of_producers(tmp_path: Path, setting: str, error: int | None) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for producer_id in (1, 2):
            assert (await client.produce(producer_id)).producer_name
        answer = await client.produce(3)
        if error is None:
            assert answer.producer_name
        else:
            assert answer.error == error
            assert setting in answer.message

    run(tmp_path, scenario, **({setting: 2} if setting else {}))


# --- subscriptions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "names", "error"),
    [
        ("maxConsumersPerTopic", ("a", "b", "c"), pb.ConsumerBusy),
        ("maxConsumersPerSubscription", ("a", "a", "a"), pb.ConsumerBusy),
        ("maxSubscriptionsPerTopic", ("a", "b", "c"), pb.NotAllowedError),
    ],
)
def test_limits_of_consumers(
    tmp_path: Path, setting: str, names: tuple[str, ...], error: int
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answers = [
            await client.subscribe(consumer_id, subscription=name)
            for consumer_id, name in enumerate(names)
        ]
        assert [type(each).__name__ for each in answers[:2]] == ["CommandSuccess"] * 2
        assert answers[2].error == error
        assert setting in answers[2].message

    run(tmp_path, scenario, **{setting: 2})


def test_kinds_of_consumers_do_not_mix(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        answer = await client.subscribe(2, **EXCLUSIVE)
        assert answer.error == pb.ConsumerBusy
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await client.subscribe(3, **EXCLUSIVE)
        positions = await broker.publish(b"x")
        [message] = await client.messages(1)
        assert (message.consumer_id, message.position) == (3, positions[0])

    run(tmp_path, scenario)


def test_a_subscription_starts_at_the_end_or_at_the_beginning(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"old")
        client = await broker.client()
        latest = pb.CommandSubscribe.Latest
        await client.subscribe(1, subscription="latest", initialPosition=latest)
        await client.subscribe(2, subscription="earliest")
        await broker.publish(b"new")
        messages = await client.messages(3)
        assert [each.data for each in messages if each.consumer_id == 1] == [b"new"]
        assert [each.data for each in messages if each.consumer_id == 2] == [b"old", b"new"]

    run(tmp_path, scenario)


def test_two_clients_that_make_the_same_subscription_at_once_share_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.client() for _ in range(5)]
        answers = await asyncio.gather(
            *(client.subscribe(n, permits=0) for n, client in enumerate(clients))
        )
        assert {type(each).__name__ for each in answers} == {"CommandSuccess"}
        topic = await broker.topic()
        assert list(topic.subscriptions) == ["s"]
        assert len(topic.subscriptions["s"].consumers) == 5

    run(tmp_path, scenario)


def test_a_subscription_that_cannot_be_stored_does_not_exist(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        topic = await broker.topic()
        put = broker.node.store.put

        def refuse(*_: Any, **__: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(Unavailable("the store is away"))
            return future

        broker.node.store.put = refuse  # type: ignore[method-assign]
        answer = await client.subscribe(1, permits=0)
        assert answer.error == pb.MetadataError
        assert topic.subscriptions == {}
        assert topic.managed_ledger.cursors == {}
        broker.node.store.put = put  # type: ignore[method-assign]
        await client.subscribe(1)
        await broker.publish(b"x")
        assert len(await client.messages(1)) == 1

    run(tmp_path, scenario)


def test_unsubscribing_forgets_everything(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        other = await broker.client()
        await client.subscribe(1)
        await other.subscribe(2)
        await broker.publish(b"x")
        refused = await client.request(
            pb.CommandUnsubscribe(consumer_id=1, request_id=0), "success"
        )
        assert refused.error == pb.MetadataError
        await client.request(
            pb.CommandUnsubscribe(consumer_id=1, request_id=0, force=True), "success"
        )
        assert (await other.receive("close_consumer")).consumer_id == 2
        topic = await broker.topic()
        assert topic.subscriptions == {}
        path = paths.cursor(topic.name.managed_ledger_name, "s")
        assert not await broker.node.store.exists(path)

    run(tmp_path, scenario)


def test_an_acknowledgement_is_answered_when_it_is_durable(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        positions = await broker.publish(b"a", b"b", b"c")
        await client.messages(3)
        assert not (await client.ack(positions[1])).HasField("error")
        broker.node.faults.rule("fdatasync", ".journal", errno=5)
        answer = await client.ack(positions[0])
        assert answer.error == pb.PersistenceError

    run(tmp_path, scenario)


def test_acks_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        first = Broker(tmp_path / "bookie")
        async with first as broker:
            client = await broker.client()
            await client.subscribe(1)
            positions = await broker.publish(*[b"%d" % n for n in range(10)])
            await client.messages(10)
            # Without a request id: nobody waits, and a clean stop writes them all the same.
            client.send(
                pb.CommandAck(
                    consumer_id=1,
                    ack_type=pb.CommandAck.Individual,
                    message_id=[pb.MessageIdData(ledgerId=a, entryId=b) for a, b in positions[::2]],
                )
            )
            await client.quiet()
        second = Broker(tmp_path / "bookie")
        second.node.tree = first.node.tree
        async with second as broker:
            client = await broker.client()
            await client.subscribe(1)
            assert [each.position for each in await client.messages(5)] == positions[1::2]
            assert await client.quiet() == []

    asyncio.run(main())


# --- readers --------------------------------------------------------------------------------------

READER = {"subType": pb.CommandSubscribe.Exclusive, "durable": False}


def test_a_reader_starts_where_it_wants_and_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*[b"%d" % n for n in range(10)])
        client = await broker.client()
        start = pb.MessageIdData(ledgerId=positions[6][0], entryId=positions[6][1])
        await client.subscribe(1, subscription="reader", start_message_id=start, **READER)
        assert [each.position for each in await client.messages(4)] == positions[6:]
        topic = await broker.topic()
        assert len(topic.all_subscriptions()) == 1
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        assert topic.all_subscriptions() == []
        name = topic.name.managed_ledger_name
        assert await broker.node.store.children(paths.managed_ledger(name)) == []

    run(tmp_path, scenario)


def test_a_reader_whose_client_leaves_before_it_is_open_is_forgotten(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        client.send(
            pb.CommandSubscribe(
                topic=TOPIC,
                subscription="reader",
                consumer_id=1,
                request_id=1,
                start_message_rollback_duration_sec=60,
                **READER,
            )
        )
        # The connection ends while the start of the reader is looked for.
        before = topic.position_before_time

        async def close_meanwhile(publish_time_ms: int) -> Any:
            client.connection.close()
            return await before(publish_time_ms)

        topic.position_before_time = close_meanwhile  # type: ignore[method-assign]
        await until(lambda: client.connection.closed)
        await asyncio.gather(*client.connection.session.tasks)
        assert topic.all_subscriptions() == []

    run(tmp_path, scenario)


# --- positions ------------------------------------------------------------------------------------


async def last_message_id(client: Client) -> Any:
    command = pb.CommandGetLastMessageId(consumer_id=1, request_id=0)
    return (await client.request(command, "getLastMessageIdResponse")).last_message_id


def test_the_last_message_id(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        found = await last_message_id(client)
        assert (found.ledgerId, found.entryId) == (2**64 - 1, 2**64 - 1)
        [position] = await broker.publish(b"x")
        found = await last_message_id(client)
        assert (found.ledgerId, found.entryId, found.batch_index) == (*position, -1)
        topic = await broker.topic()
        batch = section(b"batch", num_messages_in_batch=7)
        [position] = await append(topic.managed_ledger, batch)
        found = await last_message_id(client)
        assert (found.ledgerId, found.entryId, found.batch_index) == (*position, 6)

    run(tmp_path, scenario)


def test_positions_of_times_by_bisection(tmp_path: Path) -> None:
    """Over several ledgers: all before the first message of that time; some cannot be decoded."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        managed_ledger = topic.managed_ledger
        await topic.subscription_for("s", managed_ledger.first_position(), {}, True)
        positions = []
        for n in range(40):
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=n, publish_time=n // 2 * 10
            )
            data = wire.payload_section(metadata.SerializeToString(), b"x")
            positions += await append(managed_ledger, b"?" if n in (6, 21) else data)
        for time_ms in range(-5, 210, 5):
            younger = [n for n in range(40) if n // 2 * 10 >= time_ms and n not in (6, 21)]
            first = younger[0] if younger else 40
            found = await topic.position_before_time(time_ms)
            assert found == (positions[first - 1] if first else managed_ledger.first_position())

    run(tmp_path, scenario, managedLedgerMaxEntriesPerLedger=7)


# --- names, opening, closing ----------------------------------------------------------------------


def test_topics_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for name, error in (
            ("persistent://public/default/t-partition-0", pb.NotAllowedError),
            ("persistent://no/such/t", pb.TopicNotFound),
            ("non-persistent://no/such/t", pb.TopicNotFound),
            ("persistent://a", pb.InvalidTopicName),
        ):
            answer = await client.produce(topic=name)
            assert answer.error == error, name
            assert answer.message

    run(tmp_path, scenario)


def test_a_topic_that_clients_may_not_make_is_not_made(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.produce()
        assert answer.error == pb.TopicNotFound
        assert "allowAutoTopicCreation" in answer.message
        name = TopicName.get(TOPIC).managed_ledger_name
        assert not await broker.node.store.exists(paths.managed_ledger(name))

    run(tmp_path, scenario, allowAutoTopicCreation=False)


def test_a_topic_is_opened_once_however_many_ask(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topics = await asyncio.gather(*(broker.topic() for _ in range(20)))
        assert all(each is topics[0] for each in topics)
        assert len(broker.topics.registry) == 1

    run(tmp_path, scenario)


def test_topics_are_opened_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        opened = broker.topics.loader._open_managed_ledger
        under_way, most = 0, 0

        async def counted(*arguments: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            try:
                return await opened(*arguments)
            finally:
                under_way -= 1

        monkeypatch.setattr(broker.topics.loader, "_open_managed_ledger", counted)
        await asyncio.gather(*[broker.topic(f"{TOPIC}-{number}") for number in range(10)])
        assert most == 3
        assert len(broker.topics.registry) == 10

    run(tmp_path, scenario, maxConcurrentTopicLoadRequest=3)


def test_a_lookup_that_meets_a_defect_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        async def broken(*_: Any) -> int:
            raise ZeroDivisionError("broken")

        broker.topics.partitioned.metadata = broken  # type: ignore[method-assign]
        client = await broker.client()
        answer = await client.request(
            pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0),
            "partitionMetadataResponse",
        )
        assert answer.error == pb.UnknownError
        [record] = [each for each in caplog.records if each.message == "a command failed"]
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError
        reference = vars(record)["fields"]["reference"]
        assert answer.message == f"The broker failed; its log says why. (reference {reference})"
        # What is refused as it should be is nothing for the log.
        caplog.clear()
        lookup = pb.CommandLookupTopic(topic="a/b", request_id=0)
        await client.request(lookup, "lookupTopicResponse")
        assert caplog.records == []

    run(tmp_path, scenario)


class Unspeakable(NotAllowed):
    """A refusal whose sentence cannot be made."""

    def __str__(self) -> str:
        raise ZeroDivisionError("broken")


@pytest.mark.parametrize("fails_again", [False, True])
def test_every_command_is_answered_also_when_its_refusal_meets_a_defect(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails_again: bool,
) -> None:
    async def refuse(*_: Any) -> None:
        raise Unspeakable

    def broken(*_: Any) -> bytes:
        raise ZeroDivisionError("broken")

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        asked = 0
        for kind, row in list(broker.handlers._table.items()):
            command = getattr(pb.BaseCommand(), row.field)
            names = command.DESCRIPTOR.fields_by_name
            if "request_id" not in names:
                continue
            if row.field == "getOrCreateSchema":
                command.schema.CopyFrom(pb.Schema(name="", schema_data=b"", type=pb.Schema.String))
            for name in command.FindInitializationErrors():
                is_text = names[name].type == names[name].TYPE_STRING
                setattr(command, name, "t" if is_text else 1)
            if "topic" in names:
                command.topic = TOPIC
            if "namespace" in names:
                command.namespace = "public/default"
            row = row._replace(handler=refuse)
            if fails_again:
                row = row._replace(refusal=broken)
            monkeypatch.setitem(broker.handlers._table, kind, row)
            caplog.clear()
            own = {"lookupTopic": "lookupTopicResponse"}
            own["partitionMetadata"] = "partitionMetadataResponse"
            of_schemas = row.field in ("getSchema", "getOrCreateSchema") and not fails_again
            of_transactions = "txn" in row.field.lower() or row.field.startswith("tcClient")
            if of_schemas or (of_transactions and not fails_again):
                own[row.field] = f"{row.field.removesuffix('Request')}Response"
            answer = await client.request(command, own.get(row.field, "error"))
            first = caplog.records[0]
            assert first.message == "a refusal failed"
            reference = vars(first)["fields"]["reference"]
            told = f"The broker failed; its log says why. (reference {reference})"
            if of_schemas:
                assert (answer.error_code, answer.error_message) == (pb.UnknownError, told)
            else:
                assert answer.error == pb.UnknownError, row.field
                assert answer.message.endswith(told), row.field
            asked += 1
        assert asked > 10

    run(tmp_path, scenario)


def test_partitions_are_read_from_metadata(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get(TOPIC)
        assert await broker.topics.partitions.partitions(name) == 0
        path = paths.partitioned_topic(name.namespace, name.local_name, name.domain)
        await broker.node.store.put(path, b'{"partitions": 4}')
        assert await broker.topics.partitions.partitions(name) == 4
        await broker.node.store.put(path, b"nonsense")
        with pytest.raises(Exception, match="has no valid number of partitions"):
            await broker.topics.partitions.partitions(name)

    run(tmp_path, scenario)


def test_closing_a_topic_sends_its_clients_away_and_keeps_everything(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        await client.subscribe(1)
        client.publish(0, b"x")
        await client.receive("send_receipt")
        [message] = await client.messages(1)
        topic = await broker.topic()
        await topic.close()
        await client.receive("close_producer")
        await client.receive("close_consumer")
        await client.subscribe(2)
        [again] = await client.messages(1)
        assert (again.position, again.data) == (message.position, b"x")
        assert (await broker.topic()) is not topic

    run(tmp_path, scenario)


def test_a_closing_topic_answers_what_it_is_storing_and_drops_later_sends(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        topic = await broker.topic()
        [producer] = topic.producers.values()
        publish, runs = topic.publish, []
        topic.publish = runs.append
        for number in range(100):
            client.publish(number, b"x")
        await until(lambda: producer.pending_sends == 100)
        closing = asyncio.ensure_future(topic.close())
        await until(lambda: not producer.connection.producers)
        client.publish(100, b"late")
        for each in runs:
            publish(each)
        receipts = [(await client.receive("send_receipt")).sequence_id for _ in range(100)]
        assert receipts == list(range(100))
        await client.receive("close_producer")
        await closing
        assert (await broker.topic()).entries == 100

    run(tmp_path, scenario)


def test_clients_of_a_moving_topic_are_notified_when_its_next_broker_can_open_it(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        await client.subscribe(1)
        topic = await broker.topic()
        await topic.close(is_moving=True)
        assert not await client.quiet()
        topic.send_notices(lambda listener: Addresses(f"pulsar://next{listener}:6650"))
        for name in ("close_producer", "close_consumer"):
            assert (await client.receive(name)).assignedBrokerServiceUrl == "pulsar://next:6650"
        assert not topic.is_in_use

    run(tmp_path, scenario)


def test_clients_of_a_topic_that_takes_long_to_close_are_notified_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr("pyxbroker.broker.topics.topic.NOTICES_TIMEOUT_S", 0.0)
        client = await broker.client()
        await client.produce()
        topic = await broker.topic()
        close = topic.managed_ledger.close
        may_close = asyncio.Event()

        async def slow() -> None:
            await may_close.wait()
            await close()

        topic.managed_ledger.close = slow  # type: ignore[method-assign]
        closing = asyncio.ensure_future(topic.close())
        await client.receive("close_producer")
        may_close.set()
        await closing

    run(tmp_path, scenario)


def test_files_of_the_metadata_are_in_the_log_and_not_in_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        async def broken(*_: Any) -> int:
            raise Unavailable("the metadata in /srv/secret cannot be read: [Errno 5]")

        broker.topics.partitioned.metadata = broken  # type: ignore[method-assign]
        client = await broker.client()
        answer = await client.request(
            pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=0),
            "partitionMetadataResponse",
        )
        assert answer.error == pb.MetadataError
        [record] = [each for each in caplog.records if each.message == "a command is refused"]
        fields = vars(record)["fields"]
        assert "/srv/secret" in str(fields["error"])
        assert "/srv" not in answer.message and "Errno" not in answer.message
        assert answer.message.endswith(f" (reference {fields['reference']})")

    run(tmp_path, scenario)


def test_open_topics_share_the_names_of_their_attributes(tmp_path: Path) -> None:
    """Beyond 30 of them each object has a table of its own: 1.5 KiB for each topic."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        await broker.publish(b"x")
        for each in (topic, topic.managed_ledger):
            assert len(vars(each)) <= 30, sorted(vars(each))

    run(tmp_path, scenario)


def test_a_stop_closes_topics_a_few_at_a_time_and_those_behind_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(deletion, "CLOSING_MAX", 3)
        close, closing, most, closed = PersistentTopic.close, 0, 0, set[str]()

        async def noting(topic: PersistentTopic) -> None:
            nonlocal closing, most
            closing += 1
            most = max(most, closing)
            await close(topic)
            closing -= 1
            closed.add(str(topic.name))
            if str(topic.name).endswith("-4"):
                raise Unavailable("the metadata cannot be written")

        monkeypatch.setattr(PersistentTopic, "close", noting)
        names = {f"{TOPIC}-{n}" for n in range(20)}
        for name in names:
            await append((await broker.topic(name)).managed_ledger, b"x")
        await broker.topics.close()
        assert most == 3
        assert closed == names
        assert [each.message for each in caplog.records if each.levelname == "ERROR"] == [
            "a topic was not closed cleanly"
        ]

    run(tmp_path, scenario)


def test_a_topic_is_not_opened_again_before_it_is_closed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(TOPIC)
        managed_ledger = topic.managed_ledger
        write, may_go_on, is_writing = managed_ledger.write_info, asyncio.Event(), asyncio.Event()

        async def write_late() -> None:
            is_writing.set()
            await may_go_on.wait()
            await write()

        managed_ledger.write_info = write_late
        unloading = asyncio.ensure_future(broker.topics.deletion.unload(topic.name))
        await is_writing.wait()
        with pytest.raises(ServiceNotReady, match="is being closed"):
            await broker.topics.loader.get(topic.name, create=False)
        may_go_on.set()
        await unloading
        assert await broker.topics.loader.get(topic.name, create=False) is not topic

    run(tmp_path, scenario)

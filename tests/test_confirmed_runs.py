"""What is told to those who follow a topic: runs that are durable, and where they are."""

from __future__ import annotations

from pathlib import Path

from one_bookie import until
from one_broker import Broker, run
from pyxbroker.broker.topics.publish_steps import Publication, StepOrder
from pyxbroker.entry import EntryRun, Position


class Follower:
    """Keeps what it was told: (producer's name, first position, sequence ids)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Position, list[int]]] = []

    def on_confirmed(self, run: EntryRun, first: Position) -> None:
        sequence_ids = [sequence_id for sequence_id, _ in run.sequence_ids()]
        self.told.append((run.owner.name, first, sequence_ids))


class DropsOdd:
    order = StepOrder.CHECK

    def check(self, publication: Publication) -> None:
        for index, (sequence_id, _) in enumerate(publication.run.sequence_ids()):
            if sequence_id % 2:
                publication.drop(index)


def test_followers_are_told_of_each_run_with_its_producer_and_position(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        one, other = Follower(), Follower()
        topic.add_confirm_listener(one)
        topic.add_confirm_listener(other)
        client = await broker.client()
        await client.produce(producer_name="p")
        for sequence_id in range(3):
            client.publish(sequence_id, b"x")
        receipts = [await client.receive("send_receipt") for _ in range(3)]
        places = [Position(each.message_id.ledgerId, each.message_id.entryId) for each in receipts]
        assert one.told == other.told == [("p", places[0], [0, 1, 2])]
        client.publish(3, b"x")
        await client.receive("send_receipt")
        following = Position(places[2].ledger_id, places[2].entry_id + 1)
        assert one.told[1:] == [("p", following, [3])]

    run(tmp_path, scenario)


def test_what_steps_kept_back_is_not_confirmed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        follower = Follower()
        topic.add_confirm_listener(follower)
        topic.add_publish_step(DropsOdd())
        client = await broker.client()
        await client.produce(producer_name="p")
        for sequence_id in range(5):
            client.publish(sequence_id, b"x")
        for _ in range(3):
            await client.receive("send_receipt")
        [(name, first, sequence_ids)] = follower.told
        assert (name, first.entry_id, sequence_ids) == ("p", 0, [0, 2, 4])

    run(tmp_path, scenario)


def test_runs_that_waited_for_a_ledger_are_told_of_in_the_order_of_the_log(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        follower = Follower()
        topic.add_confirm_listener(follower)
        client = await broker.client()
        await client.produce(producer_name="p")
        for sequence_id in range(20):
            client.publish(sequence_id, b"x")
            if sequence_id % 5 == 4:
                await client.receive("send_receipt")
                topic.managed_ledger.roll_over()
        await until(lambda: sum(len(each) for _, _, each in follower.told) == 20)
        places = [first for _, first, _ in follower.told]
        assert places == sorted(places)
        assert len({first.ledger_id for first in places}) > 1
        assert [n for _, _, each in follower.told for n in each] == list(range(20))

    run(tmp_path, scenario)


def test_followers_come_and_go_without_others_noticing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        one, other = Follower(), Follower()
        topic.add_confirm_listener(one)
        topic.add_confirm_listener(other)
        client = await broker.client()
        await client.produce(producer_name="p")
        client.publish(0, b"x")
        await client.receive("send_receipt")
        topic.remove_confirm_listener(one)
        client.publish(1, b"x")
        await client.receive("send_receipt")
        assert [ids for _, _, ids in one.told] == [[0]]
        assert [ids for _, _, ids in other.told] == [[0], [1]]

    run(tmp_path, scenario)


def test_without_followers_nobody_is_called(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        assert topic.managed_ledger.on_confirmed is None
        follower = Follower()
        topic.add_confirm_listener(follower)
        assert topic.managed_ledger.on_confirmed is not None
        topic.remove_confirm_listener(follower)
        assert topic.managed_ledger.on_confirmed is None
        await broker.publish(b"x")
        assert follower.told == []

    run(tmp_path, scenario)

"""Key_Shared through a whole broker: keys stay with consumers, in order, whatever happens."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, until
from one_broker import TOPIC, Broker, Message, run, section
from pyxbroker.base.errors import ConsumerAssignError, NotAllowed
from pyxbroker.base.limits import HASH_RANGES_MAX
from pyxbroker.base.slices import Slices
from pyxbroker.broker.commands.topic_commands import _key_shared_policy
from pyxbroker.broker.dispatch.key_shared import RANGES_PER_STEP, KeySlots, look_ahead
from pyxbroker.policies.values import Policies
from pyxbroker.proto import PulsarApi as pb

AUTO_SPLIT, STICKY = pb.KeySharedMode.AUTO_SPLIT, pb.KeySharedMode.STICKY


def key_shared(mode: int = AUTO_SPLIT, *ranges: tuple[int, int], ooo: bool = False) -> Any:
    return {
        "subType": pb.CommandSubscribe.Key_Shared,
        "keySharedMeta": pb.KeySharedMeta(
            keySharedMode=mode,
            hashRanges=[pb.IntRange(start=a, end=b) for a, b in ranges],
            allowOutOfOrderDelivery=ooo,
        ).SerializeToString(),
    }


async def publish(broker: Broker, keys: list[str]) -> list[tuple[int, int]]:
    """One message for each; it holds its key and its number."""
    topic = await broker.topic()
    return await append(
        topic.managed_ledger,
        *(section(f"{key}:{n}".encode(), partition_key=key) for n, key in enumerate(keys)),
    )


def key_of(message: Message) -> str:
    return message.data.decode().partition(":")[0]


async def chooser_of(broker: Broker) -> KeySlots:
    chooser = (await broker.topic()).subscriptions["s"].dispatcher.chooser
    assert isinstance(chooser, KeySlots)
    return chooser


KEYS = [f"key-{n % 50}" for n in range(500)]


@pytest.mark.parametrize("ring", [True, False])
def test_each_key_goes_to_one_consumer_in_order(tmp_path: Path, ring: bool) -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.client() for _ in range(4)]
        for number, client in enumerate(clients):
            await client.subscribe(number, consumer_name=f"c{number}", **key_shared())
        positions = await publish(broker, KEYS)
        owners: dict[str, set[int]] = defaultdict(set)
        got: list[tuple[int, int]] = []
        states = [each.connection.consumers[i] for i, each in enumerate(clients)]
        await until(lambda: sum(each.msg_out for each in states) == 500)
        for number, client in enumerate(clients):
            assert states[number].msg_out > 0
            messages = await client.messages(states[number].msg_out)
            assert [each.position for each in messages] == sorted(e.position for e in messages)
            for each in messages:
                owners[key_of(each)].add(number)
            got += [each.position for each in messages]
        assert sorted(got) == positions
        assert {len(each) for each in owners.values()} == {1}

    run(tmp_path, scenario, subscriptionKeySharedUseConsistentHashing=ring)


def test_what_waits_for_permits_comes_in_order(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0, consumer_name="a", **key_shared())
        await client.subscribe(2, permits=0, consumer_name="b", **key_shared())
        positions = await publish(broker, KEYS)
        got: dict[int, list[Message]] = {1: [], 2: []}
        client.flow(500, 1)
        await until(lambda: client.connection.consumers[1].msg_out > 0)
        await client.quiet()
        while sum(map(len, got.values())) < 500:
            client.flow(7, 2)
            await client.quiet()
            count = sum(each.msg_out for each in client.connection.consumers.values())
            for each in await client.messages(count - sum(map(len, got.values()))):
                got[each.consumer_id].append(each)
        for messages in got.values():
            by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for each in messages:
                by_key[key_of(each)].append(each.position)
            assert all(each == sorted(each) for each in by_key.values())
        assert {key_of(each) for each in got[1]}.isdisjoint(key_of(each) for each in got[2])
        assert sorted(e.position for each in got.values() for e in each) == positions
        assert (await chooser_of(broker)).keys.waiting == 0

    run(tmp_path, scenario)


def test_a_key_that_moves_waits_until_its_former_owner_is_done(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        keys = [f"k{n}" for n in range(40)]
        first = await publish(broker, keys)
        client = await broker.client()
        await client.subscribe(1, consumer_name="a", **key_shared())
        sent = {key_of(each): each.position for each in await client.messages(40)}
        await client.subscribe(2, consumer_name="b", **key_shared())
        second = await publish(broker, keys)
        await client.quiet()
        # What stayed with the first comes at once; what moved waits.
        stayed = client.connection.consumers[1].msg_out - 40
        assert 0 < stayed < 40
        assert client.connection.consumers[2].msg_out == 0
        mine = {key_of(each) for each in await client.messages(stayed)}
        moved = [key for key in keys if key not in mine]
        await client.ack(sent[moved[0]])
        [message] = await client.messages(1)
        assert (message.consumer_id, key_of(message)) == (2, moved[0])
        # A redelivery keeps it waiting, and comes before what is newer; to the new owner.
        client.redeliver(sent[moved[1]])
        pair = await client.messages(2)
        assert [(each.consumer_id, key_of(each), each.redelivery_count) for each in pair] == [
            (2, moved[1], 1),
            (2, moved[1], 0),
        ]
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await client.quiet()
        state = client.connection.consumers[2]
        expected = len(mine) * 2 + 2 * len(moved[2:]) + 3
        await until(lambda: state.msg_out == expected)
        by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for each in await client.messages(expected - 3):
            by_key[key_of(each)].append(each.position)
        for n, key in enumerate(keys):
            if key not in moved[:2]:
                assert by_key[key] == [first[n], second[n]]

    run(tmp_path, scenario)


def test_what_a_consumer_leaves_comes_before_what_is_newer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        keys = [f"k{n % 10}" for n in range(100)]
        leaver, stayer = await broker.client(), await broker.client()
        await leaver.subscribe(1, permits=60, consumer_name="a", **key_shared())
        positions = await publish(broker, keys)
        await leaver.messages(60)
        await leaver.ack(*positions[:20])
        await stayer.subscribe(2, consumer_name="b", **key_shared())
        await publish(broker, [])
        await stayer.quiet()
        leaver.far.close()
        messages = await stayer.messages(80)
        by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for each in messages:
            by_key[key_of(each)].append(each.position)
            assert each.redelivery_count == 0
        for n in range(10):
            assert by_key[f"k{n}"] == positions[20 + n :: 10]
        await stayer.ack(*positions[20:], consumer_id=2)
        topic = await broker.topic()
        assert topic.subscriptions["s"].cursor.backlog == 0
        chooser = await chooser_of(broker)
        assert (chooser.keys.waiting, chooser.keys.states_in_use) == (0, 0)

    run(tmp_path, scenario)


def test_the_last_one_leaves_everything_to_the_next(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await publish(broker, KEYS[:100])
        for permits in (30, 1000):
            client = await broker.client()
            await client.subscribe(1, permits=permits, **key_shared())
            messages = await client.messages(min(permits, 100))
            assert [each.position for each in messages] == positions[:permits]
            client.far.close()
            await until(lambda client=client: client.connection.closed)

    run(tmp_path, scenario)


def test_who_comes_takes_the_place_of_who_has_gone(tmp_path: Path) -> None:
    """Else there would be more and more of them on a subscription whose consumers come and go."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, consumer_name="who stays", **key_shared())
        for number in range(2, 12):
            await client.subscribe(number, consumer_name=f"c{number}", **key_shared())
            await client.request(pb.CommandCloseConsumer(consumer_id=number), "success")
        chooser = await chooser_of(broker)
        assert [each and each.name for each in chooser.slots] == [None, "who stays", None]

    run(tmp_path, scenario)


def test_more_ranges_than_there_are_hashes_are_refused() -> None:
    meta = pb.KeySharedMeta(keySharedMode=STICKY)
    meta.hashRanges.extend([pb.IntRange(start=0, end=1)] * HASH_RANGES_MAX)
    message = pb.CommandSubscribe(keySharedMeta=meta.SerializeToString())
    assert len(_key_shared_policy(message).ranges) == HASH_RANGES_MAX
    meta.hashRanges.add(start=0, end=1)
    message.keySharedMeta = meta.SerializeToString()
    with pytest.raises(ConsumerAssignError, match="65537 ranges"):
        _key_shared_policy(message)


@pytest.mark.parametrize(
    "end",
    [b"\x1a\x05", b"\x1a\x02\x08\xff", b"\x1a\x01\x08"],
    ids=["no range", "a number that is cut", "a field without a number"],
)
def test_a_policy_that_cannot_be_decoded_is_refused(tmp_path: Path, end: bytes) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        broken = pb.KeySharedMeta(keySharedMode=STICKY).SerializeToString() + end
        command = pb.CommandSubscribe(
            topic=TOPIC, subscription="s", subType=3, consumer_id=1, request_id=5
        )
        command.keySharedMeta = broken
        client.send(command)
        answer = await client.receive("error")
        assert (answer.request_id, answer.error) == (5, NotAllowed.code)
        assert "keySharedMeta" in answer.message

    run(tmp_path, scenario)


def test_as_many_ranges_as_may_be_asked_for_take_little_memory() -> None:
    meta = pb.KeySharedMeta(keySharedMode=STICKY)
    for i in range(HASH_RANGES_MAX):
        meta.hashRanges.add(start=i, end=i)
    message = pb.CommandSubscribe(keySharedMeta=meta.SerializeToString())
    tracemalloc.start()
    try:
        ranges = _key_shared_policy(message).ranges
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(ranges), ranges[HASH_RANGES_MAX - 1]) == (HASH_RANGES_MAX, (65535, 65535))
    assert held < 64 << 10  # besides eight bytes each, which Python does not count


def test_not_more_than_the_look_ahead_is_read(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, consumer_name="a", **key_shared(STICKY, (0, 40_000)))
        await client.subscribe(
            2, permits=0, consumer_name="b", **key_shared(STICKY, (40_001, 65_535))
        )
        await publish(broker, [f"k{n}" for n in range(400)])
        await client.quiet()
        chooser = await chooser_of(broker)
        assert chooser.keys.waiting == 60
        before = client.connection.consumers[1].msg_out
        assert 0 < before < 340
        client.flow(20, 2)
        await client.messages(before + 20)
        await client.quiet()
        assert chooser.keys.waiting == 60, "as many as were sent were read"
        client.flow(1000, 2)
        await until(
            lambda: sum(each.msg_out for each in client.connection.consumers.values()) == 400
        )

    run(tmp_path, scenario, keySharedLookAheadMsgInReplayThresholdPerConsumer=30)


@pytest.mark.parametrize(
    ("per_consumer", "per_subscription", "unacked", "expected"),
    [
        (2000, 20_000, (0, 0), 10_000),
        (2000, 7000, (0, 0), 7000),
        (0, 7000, (0, 0), 7000),
        (2000, 0, (0, 0), 10_000),
        (0, 0, (100, 300), 300),
        (0, 0, (100, 0), 500),
        (0, 0, (0, 0), 2**63 - 1),
    ],
)
def test_the_look_ahead(
    per_consumer: int, per_subscription: int, unacked: tuple[int, int], expected: int
) -> None:
    policies = Policies(
        look_ahead_per_consumer_max=per_consumer,
        look_ahead_per_subscription_max=per_subscription,
        unacked_per_consumer_max=unacked[0],
        unacked_per_subscription_max=unacked[1],
    )
    assert look_ahead(policies, 5) == expected


def test_many_ranges_are_told_in_steps(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        asked = [(first, first) for first in range(0, 20_000, 2)]
        await client.subscribe(1, consumer_name="a", **key_shared(STICKY, *asked))
        looks = 0

        class Counted(Slices):
            async def pause(self) -> None:
                nonlocal looks
                looks += 1

        slot = client.connection.consumers[1].slot
        told = await (await chooser_of(broker)).ranges_by_slot(Counted())
        assert told[slot] == [list(each) for each in asked]
        assert looks >= len(asked) // RANGES_PER_STEP

    run(tmp_path, scenario)


def test_out_of_order_nothing_is_withheld(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, consumer_name="a", **key_shared(ooo=True))
        keys = [f"k{n}" for n in range(40)]
        await publish(broker, keys)
        await client.messages(40)
        await client.subscribe(2, consumer_name="b", **key_shared(ooo=True))
        await publish(broker, keys)
        assert len({each.consumer_id for each in await client.messages(40)}) == 2
        held = client.connection.consumers[1].pending_positions()
        client.redeliver()
        again = await client.messages(len(held))
        assert sorted(each.position for each in again) == held
        assert {each.consumer_id for each in again} == {1, 2}
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_ranges_of_their_own(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, consumer_name="a", **key_shared(STICKY, (0, 20_000)))
        answer = await client.subscribe(2, **key_shared(STICKY, (20_000, 30_000)))
        assert answer.error == pb.ConsumerAssignError
        assert answer.message.startswith("Range conflict with consumer Consumer{subscription=s,")
        answer = await client.subscribe(2, **key_shared(STICKY))
        assert answer.message == "Ranges for KeyShared policy must not be empty."
        await client.subscribe(3, consumer_name="c", **key_shared(STICKY, (20_001, 50_000)))
        await publish(broker, [f"k{n}" for n in range(200)])
        await client.quiet()
        chooser = await chooser_of(broker)
        nobodys = chooser.keys.waiting
        assert 0 < nobodys < 120
        await client.messages(200 - nobodys)
        await client.subscribe(4, consumer_name="d", **key_shared(STICKY, (50_001, 65_535)))
        messages = await client.messages(nobodys)
        assert {each.consumer_id for each in messages} == {4}
        assert [each.position for each in messages] == sorted(e.position for e in messages)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (
            key_shared(),
            key_shared(STICKY, (0, 1)),
            "Active subscription key_shared mode of 'AUTO_SPLIT' is different than the connecting"
            " consumer's key_shared mode 'STICKY'.",
        ),
        (
            key_shared(ooo=True),
            key_shared(),
            "Active subscription allows out of order delivery while the connecting consumer does"
            " not allow it.",
        ),
        (
            key_shared(),
            key_shared(ooo=True),
            "Active subscription does not allow out of order delivery while the connecting"
            " consumer allows it.",
        ),
        (
            key_shared(),
            {},
            "Active subscription type of 'Key_Shared' is different than the connecting consumer's"
            " type 'Shared'.",
        ),
    ],
)
def test_what_does_not_mix(tmp_path: Path, first: Any, second: Any, sentence: str) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, **first)
        answer = await client.subscribe(2, **second)
        assert answer.error == pb.ConsumerBusy
        assert answer.message == f"Subscription is of different type. {sentence}"

    run(tmp_path, scenario)


def test_entries_that_wait_come_from_disk(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0, **key_shared())
        positions = await publish(broker, KEYS)
        topic = await broker.topic()
        await topic.close()
        client = await broker.client()
        await client.subscribe(1, permits=200, consumer_name="a", **key_shared())
        await client.subscribe(2, permits=0, consumer_name="b", **key_shared())
        await client.quiet()
        client.flow(1000, 1)
        await client.quiet()
        client.flow(1000, 2)
        await client.quiet()
        held = client.connection.consumers[1].pending_positions()
        await client.messages(len(held))
        await client.ack(*held)
        await until(
            lambda: sum(each.msg_out for each in client.connection.consumers.values()) == 500
        )
        rest = [each.position for each in await client.messages(500 - len(held))]
        assert sorted(rest + held) == positions

    run(tmp_path, scenario, managedLedgerMaxEntriesPerLedger=60)


def test_what_was_trimmed_waits_no_longer(tmp_path: Path) -> None:
    """The cursor was moved over entries that wait, and their ledger is gone."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0, consumer_name="a", **key_shared(STICKY, (0, 30_000)))
        await client.subscribe(2, consumer_name="b", **key_shared(STICKY, (30_001, 65_535)))
        await publish(broker, KEYS)
        await client.quiet()
        chooser = await chooser_of(broker)
        assert chooser.keys.waiting > 50
        topic = await broker.topic()
        topic.subscriptions["s"].cursor.acknowledge_up_to(topic.managed_ledger.last_confirmed)
        await until(lambda: len(topic.managed_ledger.ledgers) <= 2)
        [position] = await publish(broker, ["last"])
        client.flow(1000, 1)
        client.flow(1000, 2)
        await until(lambda: chooser.keys.waiting == 0)
        await until(
            lambda: any(each.is_pending(*position) for each in client.connection.consumers.values())
        )

    run(tmp_path, scenario, managedLedgerMaxEntriesPerLedger=60)


def test_a_seek_forgets_what_waits(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=10, **key_shared())
        positions = await publish(broker, KEYS[:100])
        await client.messages(10)
        client.redeliver()
        await client.quiet()
        seek = pb.CommandSeek(
            consumer_id=1,
            request_id=0,
            message_id=pb.MessageIdData(ledgerId=positions[50][0], entryId=positions[50][1]),
        )
        await client.request(seek, "success")
        await client.receive("close_consumer")
        await client.subscribe(1, **key_shared())
        assert [each.position for each in await client.messages(50)] == positions[50:]
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_an_ack_by_another_consumer_lets_a_key_go_on(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, consumer_name="a", **key_shared())
        keys = [f"k{n}" for n in range(40)]
        await publish(broker, keys)
        sent = {key_of(each): each.position for each in await client.messages(40)}
        await client.subscribe(2, consumer_name="b", **key_shared())
        await publish(broker, keys)
        await client.quiet()
        stayed = client.connection.consumers[1].msg_out - 40
        mine = {key_of(each) for each in await client.messages(stayed)}
        moved = next(key for key in keys if key not in mine)
        await client.ack(sent[moved], consumer_id=2)
        [message] = await client.messages(1)
        assert (message.consumer_id, key_of(message)) == (2, moved)

    run(tmp_path, scenario)

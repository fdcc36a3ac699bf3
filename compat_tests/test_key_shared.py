"""Key_Shared: each key to one consumer, in order, while consumers come, go and fall behind."""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import AnyClient, BrokerFactory, ClientFactory
from compat_tests.messages import assert_nothing_more

KEY_SHARED = 3
AUTO_SPLIT, STICKY = 0, 1
CONSUMER_ASSIGN_ERROR = 19
POLICIES = {
    "auto-split": None,
    "out-of-order": pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True),
}


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


def join(
    client: AnyClient,
    topic: str,
    name: str,
    policy: pulsar.ConsumerKeySharedPolicy | None = None,
    queue: int = 1000,
) -> Any:
    return client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.KeyShared,
        consumer_name=name,
        key_shared_policy=policy,
        receiver_queue_size=queue,
        initial_position=pulsar.InitialPosition.Earliest,
    )


def sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(
        key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
    )


class Keyed:
    """Sends numbered messages of some keys, and watches the order in which they come."""

    def __init__(self, producer: Any, keys: int) -> None:
        self._producer = producer
        self._keys = keys
        self._next: dict[str, int] = defaultdict(int)
        self.sent: set[tuple[str, int]] = set()
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.owners: dict[str, set[int]] = defaultdict(set)

    def send(self, count: int) -> None:
        results = []
        for number in range(count):
            key = f"key-{(number * 7919) % self._keys}"
            self._producer.send_async(
                b"%d" % self._next[key],
                lambda result, _: results.append(result),
                partition_key=key,
            )
            self.sent.add((key, self._next[key]))
            self._next[key] += 1
        self._producer.flush()
        assert results == [pulsar.Result.Ok] * count

    def take(self, consumer: Any, who: int, timeout_ms: int, ack: bool = True) -> bool:
        """Receives one message; False when none comes in time."""
        try:
            message = consumer.receive(timeout_millis=timeout_ms)
        except pulsar.Timeout:
            return False
        key, number = message.partition_key(), int(message.data())
        self.seen[key].append(number)
        self.owners[key].add(who)
        if ack:
            consumer.acknowledge(message)
        return True

    def take_all(self, consumers: list[Any], count: int) -> None:
        """Receives from all in turn until so many messages came."""
        taken = 0
        deadline = time.monotonic() + 30
        while taken < count:
            assert time.monotonic() < deadline, f"{taken} of {count} messages came"
            for who, consumer in enumerate(consumers):
                while taken < count and self.take(consumer, who, 20):
                    taken += 1

    def received(self) -> set[tuple[str, int]]:
        return {(key, number) for key, numbers in self.seen.items() for number in numbers}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("batching", ["single", "key-based"])
def test_each_key_goes_to_one_consumer_in_order(
    client: AnyClient, topic: str, policy: str, batching: str
) -> None:
    consumers = [join(client, topic, f"c{n}", POLICIES[policy]) for n in range(4)]
    producer = client.create_producer(
        topic,
        batching_enabled=batching != "single",
        batching_type=pulsar.BatchingType.KeyBased,
        max_pending_messages=2000,
    )
    keyed = Keyed(producer, 60)
    keyed.send(1200)
    keyed.take_all(consumers, 1200)
    assert keyed.received() == keyed.sent
    assert all(numbers == sorted(numbers) for numbers in keyed.seen.values())
    assert {len(owners) for owners in keyed.owners.values()} == {1}
    assert set().union(*keyed.owners.values()) == {0, 1, 2, 3}, "one got nothing"


def test_messages_without_a_key_are_spread(client: AnyClient, topic: str) -> None:
    consumers = [join(client, topic, f"c{n}") for n in range(3)]
    producer = client.create_producer(topic)
    for number in range(300):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    counts = [0, 0, 0]
    seen = set()
    deadline = time.monotonic() + 20
    while len(seen) < 300 and time.monotonic() < deadline:
        for index, consumer in enumerate(consumers):
            try:
                message = consumer.receive(timeout_millis=50)
            except pulsar.Timeout:
                continue
            seen.add(message.data())
            counts[index] += 1
            consumer.acknowledge(message)
    assert len(seen) == 300
    assert min(counts) > 30, counts


def test_a_key_that_moves_waits_for_its_former_consumer(client: AnyClient, topic: str) -> None:
    first = join(client, topic, "a")
    keyed = Keyed(client.create_producer(topic), 30)
    keyed.send(30)
    held = [first.receive(timeout_millis=10_000) for _ in range(30)]
    second = join(client, topic, "b")
    keyed.send(30)
    assert_nothing_more(second)
    for message in held:
        first.acknowledge(message)
    # It had messages of every key: only now what moved may go to the second one.
    keyed.take_all([first, second], 30)
    assert {len(owners) for owners in keyed.owners.values()} == {1}
    assert set().union(*keyed.owners.values()) == {0, 1}
    assert all(numbers == [1] for numbers in keyed.seen.values())


def test_order_is_kept_while_consumers_come_and_go(new_client: ClientFactory, topic: str) -> None:
    """Also with receiver queues that are full of what nobody has looked at."""
    chance = random.Random(7)
    clients = [new_client() for _ in range(3)]
    names = itertools.count()
    consumers: list[tuple[AnyClient, Any]] = []

    def comes() -> None:
        owner = chance.choice(clients)
        queue = chance.choice([5, 100])
        consumers.append((owner, join(owner, topic, f"c{next(names)}", queue=queue)))

    comes()
    keyed = Keyed(clients[0].create_producer(topic, batching_enabled=False), 40)
    for _ in range(25):
        keyed.send(40)
        if len(consumers) < 2 or chance.random() < 0.5:
            comes()
        else:
            consumers.pop(chance.randrange(len(consumers)))[1].close()
        for _ in range(60):
            who = chance.randrange(len(consumers))
            keyed.take(consumers[who][1], who, 5)
    missing = len(keyed.sent - keyed.received())
    deadline = time.monotonic() + 30
    while missing:
        assert time.monotonic() < deadline, f"{missing} are missing"
        for who, (_, consumer) in enumerate(consumers):
            while keyed.take(consumer, who, 50):
                pass
        missing = len(keyed.sent - keyed.received())
    # An acknowledgement that was on its way when its consumer went is no promise: a message
    # may come twice, but never behind one that came later.
    for key, numbers in keyed.seen.items():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), f"{key}: {numbers}"


def test_one_that_does_not_acknowledge_holds_only_its_own_keys(
    client: AnyClient, topic: str
) -> None:
    slow = join(client, topic, "slow", queue=5)
    quick = join(client, topic, "quick")
    keyed = Keyed(client.create_producer(topic, batching_enabled=False), 50)
    keyed.send(1000)
    taken = 0
    while keyed.take(quick, 1, 2000):
        taken += 1
    assert taken > 200
    assert_nothing_more(quick)
    slow.close()
    while keyed.take(quick, 1, 2000):
        taken += 1
    assert taken == 1000
    assert all(numbers == sorted(numbers) for numbers in keyed.seen.values())


def test_ranges_of_their_own(client: AnyClient, topic: str) -> None:
    low = join(client, topic, "low", sticky((0, 20_000), (60_000, 65_535)))
    with pytest.raises(pulsar.ConsumerAssignError):
        join(client, topic, "overlapping", sticky((20_000, 30_000)))
    high = join(client, topic, "high", sticky((20_001, 59_999)))
    keyed = Keyed(client.create_producer(topic), 100)
    keyed.send(500)
    keyed.take_all([low, high], 500)
    assert {len(owners) for owners in keyed.owners.values()} == {1}
    assert set().union(*keyed.owners.values()) == {0, 1}
    # What nobody asks for waits until somebody does.
    high.close()
    keyed.send(500)
    waiting = 500
    while keyed.take(low, 0, 1000):
        waiting -= 1
    assert 100 < waiting < 400
    again = join(client, topic, "again", sticky((20_001, 59_999)))
    keyed.take_all([again], waiting)
    assert keyed.received() == keyed.sent


def meta(mode: int, *ranges: tuple[int, int], out_of_order: bool = False) -> dict:
    encoded = [wire.encode({1: first, 2: last}) for first, last in ranges]
    return {17: wire.encode({1: mode, 3: encoded, 4: int(out_of_order)})}


@pytest.mark.parametrize(
    ("first", "second", "code", "sentence"),
    [
        (meta(STICKY), None, 19, "Ranges for KeyShared policy must not be empty."),
        (meta(STICKY, (10, 5)), None, 19, "Fixed hash range start > end for range: [10,5]"),
        (
            meta(STICKY, (0, 10), (5, 20)),
            None,
            19,
            "Consumer's own ranges conflict: [0,10] overlaps with [5,20]",
        ),
        (
            meta(STICKY, (0, 10)),
            meta(STICKY, (10, 20)),
            19,
            "Range conflict with consumer Consumer{subscription=",
        ),
        (
            meta(AUTO_SPLIT),
            meta(STICKY, (0, 10)),
            5,
            "Subscription is of different type. Active subscription key_shared mode of"
            " 'AUTO_SPLIT' is different than the connecting consumer's key_shared mode 'STICKY'.",
        ),
        (
            {},
            meta(STICKY, (0, 10)),
            5,
            "Subscription is of different type. Active subscription key_shared mode of"
            " 'AUTO_SPLIT' is different than the connecting consumer's key_shared mode 'STICKY'.",
        ),
        (
            meta(AUTO_SPLIT, out_of_order=True),
            meta(AUTO_SPLIT),
            5,
            "Subscription is of different type. Active subscription allows out of order delivery"
            " while the connecting consumer does not allow it.",
        ),
        (
            meta(AUTO_SPLIT),
            meta(AUTO_SPLIT, out_of_order=True),
            5,
            "Subscription is of different type. Active subscription does not allow out of order"
            " delivery while the connecting consumer allows it.",
        ),
    ],
)
def test_what_is_refused(
    broker: Broker, topic: str, first: dict, second: dict | None, code: int, sentence: str
) -> None:
    with RawConnection(broker.port) as one:
        answer = one.subscribe(topic, "s", 1, KEY_SHARED, fields=first)
        if second is not None:
            assert answer.type == wire.SUCCESS
            answer = one.subscribe(topic, "s", 2, KEY_SHARED, fields=second)
        assert (answer.type, answer.number(2)) == (wire.ERROR, code)
        assert answer.data(3).decode().startswith(sentence)
        one.assert_alive()


@pytest.mark.parametrize("ring", ["true", "false"])
def test_hashes_are_spread_as_pulsar_spreads_them(
    own_broker: BrokerFactory, topic: str, ring: str
) -> None:
    """The keys that each of three consumers gets are those that Apache Pulsar gives it."""
    broker = own_broker(settings={"subscriptionKeySharedUseConsistentHashing": ring})
    broker.start()
    expected = {
        "true": ["babbbaaacbbaacabbaab", "bbbbbbbbcbbbccbbbbcb"],
        "false": ["acbbaababbbacaabacca", "bcbbbbbbbbbbcbbbbccb"],
    }[ring]
    with RawConnection(broker.port) as one:
        one.producer(topic)
        for number, name in enumerate("abc"):
            one.subscribe(topic, "s", number, KEY_SHARED, fields={6: name} | meta(AUTO_SPLIT))
            one.flow(1000, number)
        assert owners(one) == expected[0]
        one.command(wire.CLOSE_CONSUMER, {1: 0, 2: one.request_id()})
        one.wait_for(wire.SUCCESS)
        assert owners(one) == expected[1]


def owners(one: RawConnection) -> str:
    """Which consumer gets which of 20 keys."""
    for number in range(20):
        keyed = wire.metadata("raw", number, 1, fields={6: f"key-{number}"})
        one.write(wire.send(1, number, keyed, b""))
    found = {}
    while len(found) < 20:
        frame = one.wait_for(wire.MESSAGE)
        found[wire.parse_payload(frame.rest).metadata[6][0]] = "abc"[frame.number(1)]
        ids = wire.encode({1: frame.number(1), 2: wire.INDIVIDUAL, 3: frame.data(2)})
        one.write(wire.command(wire.ACK, wire.decode(ids)))
    return "".join(found[b"key-%d" % number] for number in range(20))

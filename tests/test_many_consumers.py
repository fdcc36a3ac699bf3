"""Many consumers of one subscription: who comes or goes costs its own, and all are sent away bit by
bit.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatching import Desk, open_entries
from one_broker import TOPIC, Broker, Client, run
from pyxbroker import _native
from pyxbroker.base import pacing
from pyxbroker.broker.dispatch import kinds
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.key_shared import KeySharedPolicy
from pyxbroker.broker.dispatch.selectors import ConsistentHashing, FailoverRing
from pyxbroker.broker.topics.subscription import Subscription
from pyxbroker.proto import PulsarApi as pb

FEW, MANY = 100, 3_000
RATIO_MAX = 3  # of what it takes among many and among few; it grew with their number, or worse
SOME = 200  # consumers that are sent away, of a subscription of a broker

KINDS = [
    pb.CommandSubscribe.Shared,
    pb.CommandSubscribe.Failover,
    pb.CommandSubscribe.Key_Shared,
]


# --- who comes and goes one by one ----------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_native.Storage]:
    with open_entries(Path(tmp_path_factory.mktemp("entries"))) as storage:
        yield storage


def seconds(act: Callable[[], object]) -> float:
    before = time.process_time()
    act()
    return time.process_time() - before


@pytest.mark.parametrize(
    "kind", [kinds.shared, kinds.failover, kinds.key_shared], ids=lambda it: it.__name__
)
def test_who_comes_or_goes_costs_the_same_however_many_there_are(
    opened: _native.Storage, kind: Callable[[Any, KeySharedPolicy], Dispatcher]
) -> None:
    desk = Desk(opened, lambda it: kind(it, KeySharedPolicy()))
    try:
        joined = [desk.join(f"consumer-{number}") for number in range(FEW)]

        def some_come_and_go() -> None:
            came = [desk.join(f"another-{number}") for number in range(20)]
            # The oldest one of the others, too: it is not only quick for who came last.
            for consumer in [*came, joined.pop(0)]:
                desk.leave(consumer)

        few = min(seconds(some_come_and_go) for _ in range(5))
        joined += [desk.join(f"more-{number}") for number in range(MANY)]
        many = min(seconds(some_come_and_go) for _ in range(5))
        assert many < few * RATIO_MAX
    finally:
        desk.close()


def test_the_next_active_consumer_is_told_to_all_once_though_bit_by_bit(
    opened: _native.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "STEPS_AT_ONCE", 7)
    told: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        "pyxbroker.broker.commands.replies.active_consumer_change",
        lambda consumer_id, is_active: told.append((consumer_id, is_active)) or b"x",
    )
    desk = Desk(opened, lambda it: kinds.failover(it, KeySharedPolicy()), failover_delay_s=0)
    try:
        desk.connection.protocol_version = 12
        steps: list[Callable[[], None]] = []
        desk.connection.session.line.wait = steps.append

        def tell(switches: int) -> Counter[int]:
            told.clear()
            while steps:
                before = len(told)
                steps.pop(0)()
                assert len(told) <= before + 7
            return Counter(each for each, _ in told)

        joined = [desk.join(f"consumer-{number}", priority=1) for number in range(30)]
        tell(1)
        # While they are told, another one is active, and then another.
        first = desk.join("a", priority=0)
        assert len(steps) == 1
        desk.leave(first)
        assert len(steps) == 1
        tell(2)
        last = {each: is_active for each, is_active in told}
        chosen = desk.dispatcher.chooser.active
        assert {each.consumer_id: each is chosen for each in joined} == last
        assert max(Counter(each for each, _ in told).values()) == 1
    finally:
        desk.close()


# --- all who go at once ---------------------------------------------------------------------------


async def subscribed(client: Client, kind: int, count: int) -> None:
    for consumer_id in range(1, count + 1):
        await client.subscribe(consumer_id, permits=0, subType=kind)


def seek(client: Client, consumer_id: int, request_id: int) -> None:
    client.send(
        pb.CommandSeek(consumer_id=consumer_id, request_id=request_id, message_publish_time=1)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_seek_chooses_rebuilds_and_wakes_once_however_many_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    calls: Counter[str] = Counter()

    def counted(cls: type, name: str) -> None:
        method = getattr(cls, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return method(*args)

        monkeypatch.setattr(cls, name, call)

    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await broker.publish(b"1", b"2")
        await subscribed(client, kind, SOME)
        await other.subscribe(1, permits=0, subType=kind)
        for cls, name in (
            (Dispatcher, "wake"),
            (Dispatcher, "rewind"),
            (FailoverRing, "first"),
            (ConsistentHashing, "owners"),
        ):
            counted(cls, name)
        at_once: list[int] = []
        disconnect = Subscription.disconnect

        def watched(subscription: Subscription, *args: Any) -> None:
            disconnect(subscription, *args)
            at_once.append(SOME + 1 - len(client.connection.consumers))

        monkeypatch.setattr(Subscription, "disconnect", watched)
        seek(other, 1, 99)
        told = {(await client.receive("close_consumer")).consumer_id for _ in range(SOME)}
        assert told == set(range(1, SOME + 1))
        assert (await other.receive("success")).request_id == 99
        assert sum(calls.values()) < 10
        assert at_once[0] <= pacing.STEPS_AT_ONCE + 1
        for each in (client, other):
            assert each.connection.consumers == {}
            assert each.connection.session.moves == {}
        # Who comes back is served.
        await client.subscribe(1, permits=10, subType=kind)
        assert [each.data for each in await client.messages(2)] == [b"1", b"2"]

    run(tmp_path, scenario)

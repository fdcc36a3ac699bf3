"""What the garbage collector looks at while a broker runs, and that clients leave it nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

from one_broker import TOPIC, Broker
from pyxbroker.auth.authentication import Authentication
from pyxbroker.base import collector
from pyxbroker.base.collector import Collector
from pyxbroker.base.errors import AuthenticationError, TopicNotFound
from pyxbroker.base.pacing import Pace, paced
from pyxbroker.base.topic_name import TopicName
from pyxbroker.ledger.bookie import NO_ENTRY
from pyxbroker.ledger.errors import NoSuchEntry
from pyxbroker.ledger.reader import ReadHandle, Segment
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config
from pyxbroker.web.errors import HttpError
from pyxbroker.web.request_parser import RequestParser

LATER: list[Callable[[], None]] = []


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(collector, "FOUND_MAX", 100)
    gc.collect()
    LATER.clear()
    made = Collector(LATER.append)
    yield made
    made.stop()


class Ring:
    def __init__(self) -> None:
        self.self = self


def rings() -> int:
    return sum(isinstance(each, Ring) for each in gc.get_objects())


def test_what_survived_is_not_looked_at_again(policy: Collector) -> None:
    kept = [[] for _ in range(50_000)]  # type: list[list[int]]
    gc.collect()
    seen: list[int] = []
    gc.callbacks.append(lambda phase, info: seen.append(len(gc.get_objects())))
    try:
        gc.collect()
    finally:
        gc.callbacks.pop()
    assert seen[0] < 5_000
    assert len(kept) == 50_000


def test_no_collection_looks_at_more_than_two_milliseconds_take(policy: Collector) -> None:
    looked_at: list[int] = []
    gc.collect()
    gc.callbacks.append(
        lambda phase, info: phase == "start" and looked_at.append(len(gc.get_objects()))
    )
    try:
        kept = [[] for _ in range(200_000)]  # type: list[list[int]]
    finally:
        gc.callbacks.pop()
    assert len(kept) == 200_000
    assert max(looked_at) < 20_000  # 100 ns each


def test_a_ring_that_is_young_is_freed(policy: Collector) -> None:
    Ring()
    assert rings() == 1
    gc.collect()
    assert rings() == 0


def test_what_was_set_aside_is_looked_at_when_rings_were_found(policy: Collector) -> None:
    old = Ring()
    gc.collect()  # set aside while it is in use
    del old
    gc.collect()
    for _ in range(10):
        Ring()
    gc.collect()
    assert LATER == []
    for _ in range(200):
        Ring()
    gc.collect()
    assert [policy.collect_all] == LATER  # and not once for each collection
    for _ in range(200):
        Ring()
    gc.collect()
    assert [policy.collect_all] == LATER
    policy.collect_all()
    gc.unfreeze()
    assert rings() == 0
    gc.collect()
    assert len(LATER) == 1


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_clients_that_come_and_go_leave_no_rings(tmp_path: Path, kind: str) -> None:
    async def one(broker: Broker, topic: str) -> None:
        client = await broker.client()
        await client.request(
            pb.CommandProducer(topic=topic, producer_id=1, request_id=0), "producer_success"
        )
        sub_type = getattr(pb.CommandSubscribe, kind)
        await client.subscribe(topic=topic, subType=sub_type)
        watch = pb.CommandWatchTopicList(
            request_id=0, watcher_id=1, namespace="public/default", topics_pattern=".*"
        )
        await client.request(watch, "watchTopicListSuccess")
        client.far.close()
        for _ in range(50):
            await asyncio.sleep(0)
        assert client.connection not in broker.node.connections.live
        broker.clients.remove(client)

    async def run() -> None:
        async with Broker(tmp_path) as broker:
            await one(broker, TOPIC)
            gc.collect()
            gc.disable()
            try:
                for number in range(10):
                    await one(broker, f"{TOPIC}-{number % 3}")
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                left = [type(each).__module__ for each in gc.garbage]
                left += [each.__module__ for each in gc.garbage if isinstance(each, FunctionType)]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
            assert [name for name in left if name.startswith("pyxbroker")] == []

    asyncio.run(run())


def test_topics_that_are_opened_again_leave_no_rings_of_what_was_refused(tmp_path: Path) -> None:
    async def again(broker: Broker) -> None:
        for number in range(10):
            topic = await broker.topic(f"{TOPIC}-{number}")
            await broker.topics.deletion.unload(topic.name)

    async def run() -> None:
        async with Broker(tmp_path) as broker:
            await again(broker)
            gc.collect()
            gc.disable()
            try:
                await again(broker)
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                left = [each for each in gc.garbage if isinstance(each, (Exception, FrameType))]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
            assert left == []

    asyncio.run(run())


async def rings_of_refusals(refused: Callable[[], Awaitable[object]]) -> list[object]:
    """Exceptions and frames that are freed by the collector alone when that was refused often."""
    await refused()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            await refused()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [each for each in gc.garbage if isinstance(each, (Exception, FrameType))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def record(field: str, kind: str) -> pb.Schema:
    fields = f'[{{"name":"{field}","type":"{kind}"}}]'
    data = f'{{"type":"record","name":"R","fields":{fields}}}'.encode()
    return pb.Schema(name="", type=pb.Schema.Avro, schema_data=data)


def test_commands_that_are_refused_leave_no_rings(tmp_path: Path) -> None:
    async def run() -> None:
        async with Broker(tmp_path) as broker:
            client = await broker.client()

            async def create(schema: pb.Schema) -> Any:
                command = pb.CommandGetOrCreateSchema(request_id=0, topic=TOPIC, schema=schema)
                return await client.request(command, "getOrCreateSchemaResponse")

            made = pb.CommandProducer(
                topic=TOPIC, producer_id=1, request_id=0, schema=record("a", "int")
            )
            assert (await client.request(made, "producer_success")).schema_version

            async def refused() -> None:
                assert (await create(record("b", "int"))).error_message

            assert await rings_of_refusals(refused) == []

    asyncio.run(run())


def test_topics_that_are_not_there_leave_no_rings(tmp_path: Path) -> None:
    async def run() -> None:
        async with Broker(tmp_path) as broker:

            async def refused() -> None:
                name = TopicName.get(f"{TOPIC}-of-nobody")
                with pytest.raises(TopicNotFound):
                    await asyncio.ensure_future(paced(broker.topics.loader.get(name, False), queue))

            queue = Pace().queue()
            assert await rings_of_refusals(refused) == []

    asyncio.run(run())


def test_a_paced_task_that_fails_of_what_it_waited_for_leaves_no_ring() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("refused")

    async def waits() -> None:
        await asyncio.ensure_future(fails())

    async def run() -> None:
        queue = Pace().queue()

        async def refused() -> None:
            with pytest.raises(ValueError, match="refused"):
                await asyncio.ensure_future(paced(waits(), queue))

        assert await rings_of_refusals(refused) == []

    asyncio.run(run())


def test_requests_that_are_too_many_leave_no_rings() -> None:
    async def refused() -> None:
        parser = RequestParser()
        events = parser.receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2, 1)
        assert isinstance(events[-1], HttpError)
        parser.close()

    assert asyncio.run(rings_of_refusals(refused)) == []


def test_who_is_not_let_in_leaves_no_ring() -> None:
    class Refuses:
        method = "none"
        of_certificate = False

        async def authenticate(self, shown: bytes) -> str:
            raise AuthenticationError("nobody")

    authentication = Authentication(Config(anonymousUserRole="all"))
    refuses: Any = Refuses()
    authentication._providers["none"] = [refuses]
    authentication._names[refuses] = "Refuses"

    async def refused() -> None:
        with pytest.raises(AuthenticationError):
            await authentication.verify("none", b"")

    assert asyncio.run(rings_of_refusals(refused)) == []


@pytest.mark.parametrize("bookies", [2, 3], ids=["of one bookie", "of several bookies"])
def test_a_read_that_is_answered_leaves_no_ring(bookies: int) -> None:
    """What it read would keep memory of the storage until the collector comes."""

    class Bookie:
        def read(self, *arguments: Any) -> None:
            asyncio.get_running_loop().call_soon(arguments[-1], NO_ENTRY)

    async def run() -> None:
        members = [Bookie() for _ in range(bookies)]
        handle = ReadHandle(1, [Segment(0, members)], 2)  # type: ignore[arg-type]
        handle.entry_bytes = 1
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                with pytest.raises(NoSuchEntry):
                    await handle.read_future(0, 9)
            assert gc.collect() == 0
        finally:
            gc.enable()

    asyncio.run(run())

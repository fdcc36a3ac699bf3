"""A standalone broker as a whole: what ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import until
from one_broker import TOPIC, Broker, command_of, run
from oracles import wire
from pyxbroker.base import log
from pyxbroker.bookie.space import Usage
from pyxbroker.broker.broker import ProducerNames
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.metadata.embedded_tree import Tree
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataError, Unavailable
from pyxbroker.metadata.zookeeper import ZooKeeperStore
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.roles.start import start_standalone
from pyxbroker.settings.config import Config

CONNECT = wire.frame(command_of(pb.CommandConnect(client_version="test", protocol_version=21)))


def test_a_metadata_store_that_cannot_go_on_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tree: Tree, *arguments: object) -> None:
        raise ZeroDivisionError("broken")

    async def main() -> None:
        config = Config(bindAddress="127.0.0.1", brokerServicePort=0, webServicePort=None)
        service = await start_standalone(config, tmp_path)
        assert not service.broker.failed.done()
        with monkeypatch.context() as patch:
            patch.setattr(Tree, "get", broken)
            patch.setattr(Tree, "_undo_since", broken)
            with pytest.raises(MetadataError):
                await asyncio.wait_for(service.metadata.get("/"), 10)
        reason = await asyncio.wait_for(service.wait_failed(), 10)
        assert "the metadata store failed" in reason
        assert "broken" in reason
        await asyncio.wait_for(service.stop(), 10)

    asyncio.run(main())


def test_producers_get_names_when_a_store_that_was_away_is_back() -> None:
    async def main() -> None:
        store = MemoryStore("producer-names")
        await store.open()
        put = store.put

        def refuse(*_: Any, **__: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(Unavailable("the store is away"))
            return future

        store.put = refuse  # type: ignore[method-assign]
        names = ProducerNames("c", store)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await names.next()
        store.put = put  # type: ignore[method-assign]
        found = [await names.next() for _ in range(3)]
        number = found[0].split("-")[1]
        assert found == [f"c-{number}-{n}" for n in range(3)]
        await names.close()
        await store.close()

    asyncio.run(main())


def test_health_tells_that_the_metadata_could_not_be_written_lately_and_names_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(tree: Tree, batch: list[Any]) -> tuple[list[Any], list[Any]]:
        return [Unavailable("/data/metadata.db: the disk refuses") for _ in batch], []

    async def main() -> None:
        config = Config(bindAddress="127.0.0.1", brokerServicePort=0, webServicePort=None)
        service = await start_standalone(config, tmp_path)
        assert service.broker.failure() is None
        with monkeypatch.context() as patch:
            patch.setattr(Tree, "transact", refuse)
            with pytest.raises(Unavailable):
                await service.metadata.put("/a", b"")
        caplog.clear()
        told = str(service.broker.failure())
        (fields,) = [vars(each)["fields"] for each in caplog.records]
        assert "the disk refuses" in str(fields["error"])
        assert told == (
            f"The metadata store refused a request lately. (reference {fields['reference']})"
        )
        monkeypatch.setattr("pyxbroker.broker.broker.METADATA_REFUSAL_S", 0.0)
        assert service.broker.failure() is None
        await service.stop()

    asyncio.run(main())


def test_the_reserve_is_made_after_the_start_and_a_start_on_a_full_disk_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(
        bindAddress="127.0.0.1",
        brokerServicePort=0,
        webServicePort=None,
        diskReserveSizeMB=1,
        diskCheckInterval=10,
    )

    async def main(is_full: bool) -> None:
        service = await start_standalone(config, tmp_path)
        (file_system,) = service.storage_state.file_systems
        reserve = file_system.reserve
        assert reserve is not None
        if is_full:
            assert reserve.held == 0
            assert "disk of the storage is full" in str(service.broker.failure())
        else:
            await until(lambda: reserve.held == 1 << 20)
        await service.stop()

    asyncio.run(asyncio.wait_for(main(is_full=False), 10))
    monkeypatch.setattr("pyxbroker.bookie.space.usage_of", lambda path: Usage(0, 1 << 30))
    asyncio.run(asyncio.wait_for(main(is_full=True), 10))


def test_connections_from_one_address_are_counted_while_they_live(tmp_path: Path) -> None:
    async def main() -> None:
        config = Config(
            bindAddress="127.0.0.1",
            brokerServicePort=0,
            webServicePort=None,
            brokerMaxConnectionsPerIp=2,
        )
        service = await start_standalone(config, tmp_path)
        broker = service.broker
        here = ("127.0.0.1", service.broker_port)
        first = await asyncio.open_connection(*here)
        second = await asyncio.open_connection(*here)
        await until(lambda: broker.connections_of("127.0.0.1") == 2)
        refused, _ = await asyncio.open_connection(*here)
        assert await asyncio.wait_for(refused.read(), 10) == b""
        first[1].close()
        await until(lambda: broker.connections_of("127.0.0.1") == 1)
        third = await asyncio.open_connection(*here)
        await until(lambda: broker.connections_of("127.0.0.1") == 2)
        for _, writer in (second, third):
            writer.close()
        await until(lambda: broker.connections_of("127.0.0.1") == 0)
        await service.stop()

    asyncio.run(main())


def test_who_says_nothing_takes_nobodys_place_among_the_connections(tmp_path: Path) -> None:
    async def main() -> None:
        config = Config(
            bindAddress="127.0.0.1",
            brokerServicePort=0,
            webServicePort=None,
            brokerMaxConnections=2,
        )
        service = await start_standalone(config, tmp_path)
        broker = service.broker
        here = ("127.0.0.1", service.broker_port)
        silent = [await asyncio.open_connection(*here) for _ in range(2)]
        await until(lambda: broker.connection_count == 2)
        assert not broker.connections.live  # who says nothing counts, and has no more than a socket
        known = [await asyncio.open_connection(*here) for _ in range(2)]
        for reader, writer in silent:  # The oldest gives way.
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        for reader, writer in known:
            writer.write(CONNECT)
            assert await asyncio.wait_for(reader.read(4), 10)
        refused, writer = await asyncio.open_connection(*here)
        assert await asyncio.wait_for(refused.read(), 10) == b""
        writer.close()
        assert broker.connection_count == 2
        for _, writer in known:
            writer.close()
        await until(lambda: broker.connection_count == 0)
        await service.stop()

    asyncio.run(main())


def test_a_stop_closes_those_that_have_said_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        config = Config(bindAddress="127.0.0.1", brokerServicePort=0, webServicePort=0)
        service = await start_standalone(config, tmp_path)
        ports = (service.broker_port, service.web_port)
        silent = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
        await until(lambda: service.broker.connection_count == 1)
        await service.stop()
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    asyncio.run(main())


def test_a_defect_met_while_a_connection_closes_keeps_nobody_else_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(consumer: object) -> None:
        raise ZeroDivisionError("broken")

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, subscription="one")
        await client.subscribe(2, subscription="two")
        topic = await broker.topic()
        one, two = (topic.subscriptions[name] for name in ("one", "two"))
        monkeypatch.setattr(one, "remove_consumer", broken)
        client.far.close()
        await until(lambda: not two.consumers)
        assert "internal error" in caplog.text
        assert one.consumers

    run(tmp_path, scenario)


def test_a_defect_of_one_topic_leaves_the_others_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked_at = []

    async def scenario(broker: Broker) -> None:
        for name in ("a", "b", "c"):
            topic = await broker.topic(f"persistent://public/default/{name}")
            topic_name = name

            def look(name: str = topic_name) -> None:
                looked_at.append(name)
                if name == "b":
                    raise ZeroDivisionError("broken")

            for method in ("check_age", "free_space"):
                monkeypatch.setattr(topic, method, look)
        await broker.topics.upkeep.check_ages()
        await broker.topics.upkeep.free_space()
        assert sorted(looked_at) == ["a", "a", "b", "b", "c", "c"]
        assert "the age of a topic could not be checked" in caplog.text

    run(tmp_path, scenario)


def test_a_defect_of_work_in_the_background_costs_one_look_and_not_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = []

    def broken() -> None:
        looks.append("space")
        raise ZeroDivisionError("broken")

    async def main() -> None:
        config = Config(
            bindAddress="127.0.0.1", brokerServicePort=0, webServicePort=None, diskCheckInterval=5
        )
        service = await start_standalone(config, tmp_path)
        before = log.defects["broker"]
        monkeypatch.setattr(service.storage_state, "check", broken)
        await until(lambda: len(looks) >= 3)
        assert not service.broker.failed.done()
        assert log.defects["broker"] >= before + 2
        assert "a periodic task failed" in caplog.text
        monkeypatch.undo()
        await service.stop()

    asyncio.run(main())


def test_a_defect_of_a_callback_is_counted_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("broken")

    async def main() -> None:
        config = Config(bindAddress="127.0.0.1", brokerServicePort=0, webServicePort=None)
        service = await start_standalone(config, tmp_path)
        before = log.defects["standalone"]
        service.loop.call_soon(broken)
        await until(lambda: log.defects["standalone"] == before + 1)
        assert "a callback failed" in caplog.text
        assert "ZeroDivisionError: broken" in caplog.text
        assert not service.broker.failed.done()
        await service.stop()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_a_defect_of_one_dispatcher_sends_away_its_consumers_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    class Broken:
        def __init__(self, whole: Any) -> None:
            self._whole = whole

        def __getattr__(self, name: str) -> Any:
            return getattr(self._whole, name)

        def normalize(self, position: tuple[int, int]) -> None:
            raise ZeroDivisionError("broken")

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        kinds = {"subType": getattr(pb.CommandSubscribe, kind)}
        await client.subscribe(1, subscription="one", **kinds)
        await client.subscribe(2, subscription="two", **kinds)
        await broker.publish(b"a")
        assert len(await client.messages(2)) == 2
        topic = await broker.topic()
        dispatcher = topic.subscriptions["one"].dispatcher
        dispatcher.source = Broken(dispatcher.source)
        await broker.publish(b"b")
        assert (await client.receive("close_consumer")).consumer_id == 1
        assert [each.consumer_id for each in await client.messages(1)] == [2]
        assert "a subscription cannot continue" in caplog.text
        # It comes back, and gets again what it has not acknowledged.
        await client.subscribe(1, subscription="one", **kinds)
        assert [(each.consumer_id, each.data) for each in await client.messages(2)] == [
            (1, b"a"),
            (1, b"b"),
        ]
        assert not client.connection.closed
        assert topic.subscriptions["one"].dispatcher.limits.unacked.messages in (0, 2)

    run(tmp_path, scenario, activeConsumerFailoverDelayTimeMillis=0)


def test_a_defect_in_answering_what_is_stored_costs_that_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1)
        await client.produce(2, topic=TOPIC + "-other")
        topic = await broker.topic()
        producer = next(iter(topic.producers.values()))
        monkeypatch.setattr(type(producer), "on_run_added", broken_for(producer))
        client.publish(0, b"lost in thought", 1)
        client.publish(0, b"b", 2)
        assert (await client.receive("send_receipt")).producer_id == 2
        assert (await client.receive("close_producer")).producer_id == 1
        assert "handling a confirmed run failed" in caplog.text
        monkeypatch.undo()
        await client.produce(1)
        client.publish(1, b"again", 1)
        assert (await client.receive("send_receipt")).producer_id == 1
        assert (await broker.topic()) is not topic
        assert (await broker.topic()).managed_ledger.entries == 2

    def broken_for(producer: object) -> Any:
        usual = Producer.on_run_added

        def on_run_added(self: Producer, run: Any) -> None:
            if self is producer:
                raise ZeroDivisionError("broken")
            usual(self, run)

        return on_run_added

    run(tmp_path, scenario)


def test_a_defect_in_writing_a_cursor_costs_that_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(urgent: bool) -> None:
        raise ZeroDivisionError("broken")

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        (position,) = await broker.publish(b"a")
        await client.messages(1)
        topic = await broker.topic()
        monkeypatch.setattr(topic.subscriptions["s"].cursor, "_write_once", broken)
        answer = await client.ack(position)
        assert answer.error == pb.PersistenceError
        assert "ZeroDivisionError" not in answer.message
        assert (await client.receive("close_consumer")).consumer_id == 1
        assert "ZeroDivisionError: broken" in caplog.text
        await client.subscribe(1)
        assert [each.data for each in await client.messages(1)] == [b"a"]
        assert not (await client.ack(position)).HasField("error")

    run(tmp_path, scenario)


def test_news_of_zookeeper_that_meet_a_defect_keep_no_other_news_back() -> None:
    made = []

    def broken() -> None:
        raise ZeroDivisionError("broken")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: made.append(str(context["exception"])))
        store = ZooKeeperStore(
            "127.0.0.1:1", session_timeout_ms=1000, operation_timeout_ms=1000, connect_timeout_ms=1
        )
        store._loop = loop
        store._hand_over(broken)
        store._hand_over(made.append, "the next")
        await until(lambda: made == ["broken", "the next"])

    asyncio.run(main())

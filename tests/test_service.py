"""A standalone broker as a whole: what ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import until
from one_broker import Broker, run
from pyxbroker.bookie.space import Usage
from pyxbroker.broker.broker import ProducerNames
from pyxbroker.metadata.embedded_tree import Tree
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataError, Unavailable
from pyxbroker.roles.start import start_standalone
from pyxbroker.settings.config import Config


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


def test_health_tells_that_the_metadata_could_not_be_written_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tree: Tree, batch: list[Any]) -> tuple[list[Any], list[Any]]:
        return [Unavailable("the disk refuses") for _ in batch], []

    async def main() -> None:
        config = Config(bindAddress="127.0.0.1", brokerServicePort=0, webServicePort=None)
        service = await start_standalone(config, tmp_path)
        assert service.failure() is None
        with monkeypatch.context() as patch:
            patch.setattr(Tree, "transact", refuse)
            with pytest.raises(Unavailable):
                await service.metadata.put("/a", b"")
        assert "the disk refuses" in str(service.failure())
        monkeypatch.setattr("pyxbroker.broker.broker.METADATA_REFUSAL_S", 0.0)
        assert service.failure() is None
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
            assert "disk of the storage is full" in str(service.failure())
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
        await broker.topics.check_ages()
        await broker.topics.free_space()
        assert sorted(looked_at) == ["a", "a", "b", "b", "c", "c"]
        assert "the age of a topic could not be looked at" in caplog.text

    run(tmp_path, scenario)

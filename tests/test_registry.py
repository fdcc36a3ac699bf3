"""The registration of a broker: refused beside a broker with the same id or address."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.base.compact_json import to_short_json
from pyxbroker.broker.listeners import Addresses, Listeners
from pyxbroker.cluster import registry
from pyxbroker.cluster.checks import StartRefused
from pyxbroker.cluster.load_report import starting_report
from pyxbroker.cluster.registry import (
    AnotherBroker,
    BrokerRegistration,
    check_load_manager,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore

NUMBERS = itertools.count()
PATIENCE_S = 5.0


async def session(name: str) -> MemoryStore:
    store = MemoryStore(name)
    await store.open()
    return store


def new_tree() -> str:
    return f"registry-{next(NUMBERS)}"


def registration(
    store: MemoryStore,
    web: int,
    binary: int = 1,
    lost: list[str] | None = None,
    started_ms: int = 1,
) -> BrokerRegistration:
    own = Addresses(f"pulsar://127.0.0.1:{binary}", f"http://127.0.0.1:{web}")
    fields = starting_report(Listeners(own), "4.2.4", started_ms).fields()
    on_lost = [].append if lost is None else lost.append
    return BrokerRegistration(store, f"127.0.0.1:{web}", fields, on_lost)


@asynccontextmanager
async def web_server(status: str) -> AsyncIterator[int]:
    """A server that answers each request with a status."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def registered(store: MemoryStore) -> dict[str, Any]:
    names = await store.children(paths.BROKERS)
    nodes = [await store.get(paths.broker(name)) for name in names]
    return {name: json.loads(node.value) for name, node in zip(names, nodes, strict=True) if node}


async def eventually(check: Any) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not await check():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


@coroutine_test
async def test_several_brokers_register() -> None:
    store = await session(new_tree())
    for port in (1, 2):
        one = registration(store, web=port, binary=port)
        await one.check_alone(pytest.fail)
        await one.acquire()
    found = await registered(store)
    assert list(found) == ["127.0.0.1:1", "127.0.0.1:2"]
    assert found["127.0.0.1:2"]["pulsarServiceUrl"] == "pulsar://127.0.0.1:2"


@coroutine_test
async def test_a_broker_with_the_id_of_another_one_that_serves_is_refused() -> None:
    tree = new_tree()
    first, second = await session(tree), await session(tree)
    async with web_server("200 OK") as port:
        await registration(first, port).acquire()
        with pytest.raises(AnotherBroker, match=f"broker 127.0.0.1:{port} is registered"):
            await registration(second, port, started_ms=2).check_alone(pytest.fail)


@coroutine_test
async def test_a_restarted_broker_replaces_its_own_registration() -> None:
    """Its own port answers that it is starting."""
    tree = new_tree()
    former, store = await session(tree), await session(tree)
    async with web_server("503 Service Unavailable") as port:
        value = to_short_json(registration(former, port).fields)
        await former.put(paths.broker(f"127.0.0.1:{port}"), value, ephemeral=True)
        one = registration(store, port, started_ms=2)
        await one.check_alone(pytest.fail)
        await one.acquire()
    await former.close()
    assert (await registered(store))[f"127.0.0.1:{port}"]["startTimestamp"] == 2


@coroutine_test
async def test_a_broker_with_an_address_of_another_one_is_refused_or_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "POLL_S", 0.01)
    tree = new_tree()
    first, second = await session(tree), await session(tree)
    async with web_server("200 OK") as port:
        other = registration(first, port, binary=7)
        await other.acquire()
        one = registration(second, web=2, binary=7)
        with pytest.raises(AnotherBroker, match="one of its addresses"):
            await one.check_alone(pytest.fail)
    waits: list[str] = []
    checking = asyncio.ensure_future(one.check_alone(waits.append))
    await asyncio.sleep(0.05)
    assert set(waits) == {f"127.0.0.1:{port}"}
    assert not checking.done()
    await first.close()
    await checking


@coroutine_test
async def test_a_registration_that_was_deleted_or_whose_session_ended_is_created_again() -> None:
    store, lost = await session(new_tree()), list[str]()
    one = registration(store, 1, lost=lost)
    await one.acquire()
    await one.update({**one.fields, "numTopics": 3})

    async def has_three() -> bool:
        return (await registered(store)).get("127.0.0.1:1", {}).get("numTopics") == 3

    for end in (lambda: store.delete(paths.broker("127.0.0.1:1")), store.expire_session):
        end()
        await asyncio.sleep(0)
        await eventually(has_three)
    assert lost == []
    await one.release()
    assert await registered(store) == {}


@coroutine_test
async def test_a_broker_ends_when_another_process_takes_its_registration() -> None:
    tree = new_tree()
    first, second, lost = await session(tree), await session(tree), list[str]()
    await registration(first, 1, lost=lost).acquire()
    await registration(second, 1, started_ms=2).acquire()

    async def is_lost() -> bool:
        return bool(lost)

    await eventually(is_lost)
    assert "Give each broker its own advertisedAddress" in lost[0]
    assert (await registered(second))["127.0.0.1:1"]["startTimestamp"] == 2


def test_other_load_managers_are_refused() -> None:
    check_load_manager("org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl")
    check_load_manager("ModularLoadManagerImpl")
    other = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
    with pytest.raises(StartRefused, match="All brokers of a cluster need the same class"):
        check_load_manager(other)

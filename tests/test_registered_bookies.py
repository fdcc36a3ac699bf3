"""The bookies of a cluster, followed in each kind of metadata store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metadata_backends import Backend, coroutine_test
from one_bookie import until
from pyxbroker.ledger import registered_bookies
from pyxbroker.ledger.registered_bookies import Address, RegisteredBookies, groups_and_racks
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.proto import DataFormats
from zookeeper_server import ZooKeeperServer


def service_info(host: str, port: int) -> bytes:
    """Return the value that a bookie with an HTTP server registers."""
    info = DataFormats.BookieServiceInfoFormat()
    info.endpoints.add(id="httpserver", port=8000, host="0.0.0.0", protocol="http")
    info.endpoints.add(id="bookie", port=port, host=host, protocol="bookie-rpc")
    info.properties["key"] = "value"
    return bytes(info.SerializeToString())


OF_APACHE = (
    b'2\x1f\n\nhttpserver\x10\x93\xdb\x01\x1a\x070.0.0.0"\x04http'
    b'2#\n\x06bookie\x10\xea\xb8\x01\x1a\t127.0.0.1"\nbookie-rpc'
)
"""The value that a bookie of BookKeeper 4.17.3 registered, with Pulsar's metadata driver."""


async def register(
    store: MetadataStore, bookie_id: str, value: bytes = b"", root: str = "/ledgers"
) -> None:
    await store.put(f"{root}/available/{bookie_id}", value, ephemeral=True)


@asynccontextmanager
async def followed(
    store: MetadataStore, root: str = "/ledgers"
) -> AsyncIterator[RegisteredBookies]:
    bookies = RegisteredBookies(store, root)
    bookies.start()
    try:
        await bookies.wait_read()
        yield bookies
    finally:
        await bookies.close()


@coroutine_test
async def test_bookies_come_and_go_from_an_empty_store_on(backend: Backend) -> None:
    async with backend.store() as store, followed(store) as bookies:
        changes: list[set[str]] = []
        bookies.on_change(lambda: changes.append(set(bookies.view.writable)))
        assert bookies.view.writable == {}
        await store.put("/ledgers/available/readonly", b"")
        await register(store, "first:3181")
        await until(lambda: set(bookies.view.writable) == {"first:3181"})
        await register(store, "second", service_info("second.example", 3182))
        await until(lambda: len(bookies.view.writable) == 2)
        assert bookies.view.writable == {
            "first:3181": Address("first", 3181),
            "second": Address("second.example", 3182),
        }
        assert bookies.view.read_only == {}
        await store.delete("/ledgers/available/first:3181")
        await until(lambda: set(bookies.view.writable) == {"second"})
        assert changes[-1] == {"second"}


@coroutine_test
async def test_a_bookie_that_becomes_read_only_is_not_writable(backend: Backend) -> None:
    async with backend.store() as store, followed(store) as bookies:
        await register(store, "b:1")
        await until(lambda: "b:1" in bookies.view.writable)
        # BookKeeper's order: the new registration first.
        await store.put("/ledgers/available/readonly/b:1", b"", ephemeral=True)
        await until(lambda: "b:1" in bookies.view.read_only)
        assert bookies.view.writable == {}
        await store.delete("/ledgers/available/b:1")
        await register(store, "b:1")
        await store.delete("/ledgers/available/readonly/b:1")
        await until(lambda: "b:1" in bookies.view.writable)
        assert bookies.view.read_only == {}


@coroutine_test
async def test_a_bookie_that_returns_elsewhere_has_its_new_address(backend: Backend) -> None:
    async with backend.store() as store, followed(store) as bookies:
        await register(store, "b", service_info("old", 1))
        await until(lambda: bookies.view.address_of("b") == Address("old", 1))
        await store.put("/ledgers/available/b", service_info("new", 2))
        await until(lambda: bookies.view.address_of("b") == Address("new", 2))


@coroutine_test
async def test_a_registration_by_an_apache_bookie_is_understood(backend: Backend) -> None:
    async with backend.store() as store, followed(store) as bookies:
        await register(store, "somewhere", OF_APACHE)
        await until(lambda: "somewhere" in bookies.view.writable)
        assert bookies.view.writable == {"somewhere": Address("127.0.0.1", 23658)}


@coroutine_test
async def test_cookies_name_every_bookie_of_the_cluster(backend: Backend) -> None:
    async with backend.store() as store, followed(store, "/a/ledgers") as bookies:
        await register(store, "up:1", root="/a/ledgers")
        await store.put("/a/ledgers/cookies/up:1", b"5\n")
        await store.put("/a/ledgers/cookies/down:1", b"5\n")
        await until(lambda: len(bookies.view.known) == 2)
        assert bookies.view.known == {"up:1", "down:1"}
        assert set(bookies.view.writable) == {"up:1"}


@coroutine_test
async def test_racks_are_found_by_id_and_by_host(backend: Backend) -> None:
    async with backend.store() as store, followed(store) as bookies:
        racks = {"g": {"h:1": {"rack": "/r1", "hostname": "h"}, "id": {"rack": "r2"}}}
        await store.put("/bookies", json.dumps(racks).encode())
        await until(lambda: bool(bookies.view.groups))
        assert bookies.view.groups == {"g": {"h:1", "id"}}
        assert [bookies.view.rack_of(each) for each in ("h:1", "h:2", "id", "other:1")] == [
            *("/r1", "/r1", "r2", "")
        ]
        await store.put("/bookies", b"not JSON")
        await register(store, "b:1")
        await until(lambda: "b:1" in bookies.view.writable)
        assert bookies.view.rack_of("id") == "r2", "the last readable racks"


@coroutine_test
async def test_a_damaged_registration_leaves_the_address_in_the_id(backend: Backend) -> None:
    async with backend.store() as store, followed(store) as bookies:
        await register(store, "b:1", b"\xff\xff")
        await register(store, "name", b"\xff\xff")
        await until(lambda: len(bookies.view.writable) == 2)
        assert bookies.view.writable == {"b:1": Address("b", 1), "name": None}
        assert bookies.address_of("[::1]:3181") == ("::1", 3181)
        with pytest.raises(LookupError, match="bookie name is not registered with an address"):
            bookies.address_of("name")
        assert [bookies.view.address_of(each) for each in ("x", ":1", "x:", "x:70000")] == [
            None
        ] * 4


@pytest.mark.parametrize("value", [b"[]", b"{", b'{"g": 1}', b'{"g": {"b": 1}}', b'{"g": [1]}'])
def test_racks_of_another_form_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        groups_and_racks(value)


@pytest.mark.interop
@coroutine_test
async def test_an_outage_of_the_store_keeps_the_last_known_bookies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_bookies, "RETRY_S", 0.1)
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    try:
        backend = Backend("zookeeper", tmp_path, server)
        async with (
            backend.store(session_timeout_ms=4_000, operation_timeout_ms=500) as store,
            backend.store(session_timeout_ms=4_000) as bookie,
            followed(store) as bookies,
        ):
            await bookie.put("/ledgers/available/kept:1", b"")
            await register(bookie, "lost:1")
            await until(lambda: len(bookies.view.writable) == 2)
            server.kill()
            bookies._changed.set()
            await until(lambda: bookies._is_stale)
            assert len(bookies.view.writable) == 2
            await bookie.close()
            await asyncio.to_thread(server.start)
            # The session of the other bookie ends without it.
            await until(lambda: set(bookies.view.writable) == {"kept:1"})
            assert not bookies._is_stale
    finally:
        server.kill()

"""The ledger client on Apache BookKeeper's bookies, with metadata in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import trustme
from harness.bookies import Bookie, format_metadata, shell
from harness.certificates import write_certificate
from tests.zookeeper_server import ZooKeeperServer

from pyxbroker.entry import CRC32C, Digest, EntryBatch, EntryRun
from pyxbroker.ledger.bookie import ADD_RECOVERY, DISCONNECTED, NO_ENTRY, UNAUTHORIZED
from pyxbroker.ledger.bookie_tls import make_contexts
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError, LedgerFenced
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.ledger.pool import BookiePool
from pyxbroker.ledger.registered_bookies import RegisteredBookies
from pyxbroker.ledger.remote import RemoteSettings
from pyxbroker.metadata.store import open_store
from pyxbroker.turn import Turn

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

KEY = CRC32C.master_key
OTHER = Digest(CRC32C.type, b"another password")
MIB = 1 << 20


class Cluster(NamedTuple):
    """Three bookies and their ZooKeeper. The last bookie also offers TLS."""

    zookeeper: ZooKeeperServer
    bookies: list[Bookie]
    tls: SimpleNamespace
    """The settings of a broker that uses TLS."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("bookies")
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate, key = write_certificate(
        authority, directory, "bookie", "127.0.0.1", key_type=trustme.KeyType.RSA
    )
    of_broker = write_certificate(authority, directory, "broker", key_type=trustme.KeyType.RSA)
    tls = {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(key),
        "tlsCertificatePath": str(certificate),
    }
    zookeeper = ZooKeeperServer(directory / "zookeeper")
    zookeeper.start()
    bookies = [
        Bookie(directory / f"bookie-{n}", zookeeper.address, tls if n == 2 else None)
        for n in range(3)
    ]
    try:
        format_metadata(bookies[0].configuration)
        for each in bookies:
            each.spawn()
        for each in bookies:
            each.wait_ready()
        yield Cluster(
            zookeeper,
            bookies,
            SimpleNamespace(
                bookkeeperTLSClientAuthentication=True,
                bookkeeperTLSCertificateFilePath=str(of_broker[0]),
                bookkeeperTLSKeyFilePath=str(of_broker[1]),
                bookkeeperTLSKeyFileType="PEM",
                bookkeeperTLSKeyStorePasswordPath="",
                bookkeeperTLSTrustCertsFilePath=str(directory / "ca.pem"),
                bookkeeperTLSTrustCertTypes="PEM",
                bookkeeperTLSTrustStorePasswordPath="",
                bookkeeperTlsCertFilesRefreshDurationSeconds=300,
                bookkeeper_tlsHostnameVerificationEnabled=True,
            ),
        )
    finally:
        for each in bookies:
            each.kill()
        zookeeper.kill()


class Listener:
    """The owner of a ledger."""

    def __init__(self) -> None:
        self.confirmed: list[EntryRun] = []
        self.failure: LedgerError | None = None

    def on_run_confirmed(self, run: EntryRun) -> None:
        self.confirmed.append(run)

    def on_run_taken_back(self, run: EntryRun) -> None:
        raise AssertionError("there is room")

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        self.failure = error


class Broker:
    """The ledger client of one broker: its connections, metadata store and quorums."""

    def __init__(self, cluster: Cluster, quorums: LedgerQuorums, tls: bool = False) -> None:
        self.turn = Turn(asyncio.get_running_loop())
        contexts = make_contexts(cluster.tls) if tls else None
        settings = RemoteSettings(tls=None if contexts is None else contexts.current)
        self.store = open_store(f"zk:{cluster.zookeeper.address}")
        unregistered = RegisteredBookies(self.store)  # an id is an address
        self.pool = BookiePool(self.turn, unregistered.address_of, settings=settings)
        for each in cluster.bookies[2:] if tls else cluster.bookies[: quorums.ensemble]:
            self.pool[each.bookie_id]
        self.quorums = quorums
        self.client: LedgerClient

    async def __aenter__(self) -> Broker:
        await self.store.open()
        self.client = LedgerClient(self.store, self.pool, self.turn, self.quorums)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.stop()
        await self.pool.close()
        await self.store.close()


def run(
    cluster: Cluster,
    quorums: tuple[int, int, int],
    scenario: Callable[[Broker], Awaitable[None]],
    tls: bool = False,
) -> None:
    async def main() -> None:
        async with Broker(cluster, LedgerQuorums(*quorums), tls) as broker:
            await asyncio.wait_for(scenario(broker), 60)

    asyncio.run(main())


async def written(broker: Broker, data: list[bytes], run_entries: int = 7) -> LedgerHandle:
    """A ledger with these entries, in runs; all are confirmed."""
    listener = Listener()
    handle = await broker.client.create(listener, "public/default/persistent/t")
    for first in range(0, len(data), run_entries):
        handle.append(EntryRun.of_all(data[first : first + run_entries]))
    await handle.drain()
    assert [each.first_entry_id for each in listener.confirmed] == [
        *range(0, len(data), run_entries)
    ]
    return handle


async def contents(broker: Broker, ledger_id: int, count: int) -> list[bytes]:
    reader = await broker.client.open_read(ledger_id)
    found: list[bytes] = []
    while len(found) < count:
        batch = await reader.read_future(len(found), count - 1)
        assert batch.entry_id(0) == len(found)
        found += [batch.data(i) for i in range(len(batch))]
    return found


async def read(
    broker: Broker, bookie_id: str, ledger_id: int, entry_id: int, key: bytes | None = None
) -> EntryBatch | int:
    answer: asyncio.Future[EntryBatch | int] = asyncio.get_running_loop().create_future()
    asked = (ledger_id, entry_id, entry_id, 1, MIB)
    broker.pool[bookie_id].read(*asked, answer.set_result, key)
    return await answer


async def fence(broker: Broker, bookie_id: str, ledger_id: int, digest: Digest = CRC32C) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    broker.pool[bookie_id].fence(ledger_id, digest, answer.set_result)
    return await answer


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 2, 2), (3, 3, 2)])
def test_what_is_written_is_read_back_and_bookkeepers_shell_agrees(
    cluster: Cluster, quorums: tuple[int, int, int]
) -> None:
    data = [b"entry %d" % n for n in range(3000)]
    data += [b"", b"x" * (5 * MIB), b"y" * (3 * MIB), b"last"]
    ledgers: list[int] = []

    async def scenario(broker: Broker) -> None:
        handle = await written(broker, data)
        await broker.client.close(handle)
        assert await contents(broker, handle.ledger_id, len(data)) == data
        ledgers.append(handle.ledger_id)

    run(cluster, quorums, scenario)
    log = shell(
        cluster.bookies[0].configuration,
        *("readledger", "-ledgerid", str(ledgers[0]), "-firstentryid", "2990"),
        *("-lastentryid", str(len(data) - 1)),
    )
    # Its size is that of the ledger up to the entry.
    listed = re.findall(r"Lid=(\d+), Eid=(\d+), EntrySize=(\d+)", log)
    lengths = list(itertools.accumulate(map(len, data)))
    assert [tuple(map(int, each)) for each in listed] == [
        (ledgers[0], n, lengths[n]) for n in range(2990, len(data))
    ], log[-3000:]


def test_a_fence_stops_the_writer(cluster: Cluster) -> None:
    async def scenario(broker: Broker) -> None:
        listener = Listener()
        handle = await broker.client.create(listener, "public/default/persistent/t")
        handle.append(EntryRun.of_all([b"a", b"b"]))
        await handle.drain()
        handle.append(EntryRun.of(b"c"))
        await handle.drain()
        async with Broker(cluster, LedgerQuorums(3, 3, 3)) as other:
            members = [each.bookie_id for each in cluster.bookies]
            for bookie_id in members[:2]:
                assert await fence(other, bookie_id, handle.ledger_id) == 1
            third = await read(other, members[2], handle.ledger_id, 3, KEY)
            assert third == NO_ENTRY, "which fences as well"
            assert await fence(other, members[0], handle.ledger_id, OTHER) == UNAUTHORIZED
            assert await fence(other, members[0], handle.ledger_id + 1000) == -1
            handle.append(EntryRun.of(b"too late"))
            with pytest.raises(LedgerFenced):
                await handle.drain()
            assert isinstance(listener.failure, LedgerFenced)
            again = EntryRun.of(b"recovered")
            again.ledger_id, again.first_entry_id = handle.ledger_id, 3
            adder = Recovery()
            other.pool[members[2]].add_run(adder, 0, again, 2, 3, ADD_RECOVERY)
            assert await adder.answer == 3
            recovered = await read(other, members[2], handle.ledger_id, 3)
            assert isinstance(recovered, EntryBatch)
            assert recovered.unpack(CRC32C) == 1
            assert recovered.data(0) == b"recovered"

    run(cluster, (3, 3, 3), scenario)


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 2, 2), (3, 3, 2)])
def test_two_brokers_take_a_ledger_over_from_a_third_one(
    cluster: Cluster, quorums: tuple[int, int, int]
) -> None:
    """With a write quorum of three, while a bookie is paused."""
    ledgers: list[int] = []

    async def scenario(broker: Broker) -> None:
        data = [b"entry %d" % n for n in range(500)]
        handle = await written(broker, data)
        listener = handle.listener
        assert isinstance(listener, Listener)
        for n in range(500, 600, 10):
            more = [b"entry %d" % entry_id for entry_id in range(n, n + 10)]
            handle.append(EntryRun.of_all(more))
            data += more
        paused = cluster.bookies[2].process if quorums[1] == 3 else None
        if paused is not None:
            paused.send_signal(signal.SIGSTOP)
        try:
            async with Broker(cluster, broker.quorums) as one, Broker(cluster, broker.quorums) as b:
                ends = await asyncio.gather(
                    one.client.recover(handle.ledger_id), b.client.recover(handle.ledger_id)
                )
        finally:
            if paused is not None:
                paused.send_signal(signal.SIGCONT)
        last, length = ends[0]
        assert ends[0] == ends[1]
        assert 499 <= last < 600
        assert length == sum(map(len, data[: last + 1]))
        handle.append(EntryRun.of(b"too late"))
        with pytest.raises(LedgerError):
            await handle.drain()
        assert isinstance(listener.failure, LedgerFenced)
        assert listener.confirmed[-1].last_entry_id <= last
        assert await contents(broker, handle.ledger_id, last + 1) == data[: last + 1]
        ledgers.extend((handle.ledger_id, last, length))

    run(cluster, quorums, scenario)
    log = shell(cluster.bookies[0].configuration, "ledgermetadata", "-ledgerid", str(ledgers[0]))
    assert f"state=CLOSED, length={ledgers[2]}, lastEntryId={ledgers[1]}" in log, log[-3000:]


def test_bookkeepers_own_recovery_and_ours_agree(cluster: Cluster) -> None:
    async def scenario(broker: Broker) -> None:
        data = [b"entry %d" % n for n in range(50)]
        handle = await written(broker, data)
        ledger_id = str(handle.ledger_id)
        command = ("readledger", "-r", "-ledgerid", ledger_id)
        await asyncio.to_thread(shell, cluster.bookies[0].configuration, *command)
        assert await broker.client.recover(handle.ledger_id) == (49, handle.length)
        assert await contents(broker, handle.ledger_id, 50) == data
        handle.append(EntryRun.of(b"too late"))
        with pytest.raises(LedgerFenced):
            await handle.drain()

    run(cluster, (3, 3, 2), scenario)


class Recovery:
    """The writer of one add."""

    digest = CRC32C

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        self.answer.set_result(last)

    def on_adds_failed(self, slot: int, first: int, code: int) -> None:
        self.answer.set_result(code)

    def on_add_taken_back(self, slot: int, run: EntryRun) -> bool:
        return False


def test_ledgers_over_tls(cluster: Cluster) -> None:
    data = [b"%d" % n * 1000 for n in range(2000)]

    async def scenario(broker: Broker) -> None:
        handle = await written(broker, data, 50)
        await broker.client.close(handle)
        assert await contents(broker, handle.ledger_id, len(data)) == data
        assert await fence(broker, cluster.bookies[1].bookie_id, 1) == DISCONNECTED
        assert "refuses TLS" in (broker.pool[cluster.bookies[1].bookie_id].trouble or "")

    run(cluster, (1, 1, 1), scenario, tls=True)


def test_a_killed_bookie_fails_what_is_in_flight(cluster: Cluster) -> None:
    """The last test here: the bookie is not started again."""

    async def scenario(broker: Broker) -> None:
        bookie = broker.pool[cluster.bookies[0].bookie_id]
        handle = await written(broker, [b"before"])
        cluster.bookies[0].pause()
        adder = Recovery()
        run = EntryRun.of(b"in flight")
        run.ledger_id, run.first_entry_id = handle.ledger_id, 1
        bookie.add_run(adder, 0, run, 0, 6)
        await asyncio.sleep(0.05)
        assert not adder.answer.done()
        cluster.bookies[0].kill()
        assert await adder.answer == DISCONNECTED
        assert await read(broker, bookie.bookie_id, handle.ledger_id, 0) == DISCONNECTED

    run(cluster, (1, 1, 1), scenario)

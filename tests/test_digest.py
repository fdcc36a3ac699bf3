"""Digests of entries and passwords of ledgers, as BookKeeper has them."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from pathlib import Path
from typing import Any

import pytest
from harness import wire
from harness.raw import RawConnection

import stored
from command_line import standalone
from one_bookie import NAME, Node, Runs, until
from pyxbroker.entry import CRC32C, Digest, EntryRun
from pyxbroker.ledger.client import LedgerClient, LedgerProtection
from pyxbroker.ledger.errors import EntryDamaged, WrongPassword, is_lost
from pyxbroker.ledger.metadata import DigestType
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.metadata import paths
from pyxbroker.storage import StorageWriter

every_type = pytest.mark.parametrize("digest_type", DigestType)

# What BookKeeper's DigestManager makes of ledger 258, entry 77, last add confirmed 70, length 4242,
# and the data below, with the password "hush".
DATA = b"what an application sent"
HEAD = "0000000000000102000000000000004d00000000000000460000000000001092"
PACKAGED = {
    DigestType.CRC32: HEAD + "000000000b52265a",
    DigestType.HMAC: HEAD + "cc263fdce7d1597063be0d81ad3849f95095d82d",
    DigestType.CRC32C: HEAD + "5a5fffd6",
    DigestType.DUMMY: HEAD,
}


def client_of(node: Node, digest_type: DigestType, password: bytes = b"hush") -> LedgerClient:
    """As node.client, for the same bookie and metadata."""
    protection = LedgerProtection(digest_type, password)
    bookies = {node.bookie.bookie_id: node.bookie}
    return LedgerClient(node.store, bookies, node.turn, LedgerQuorums(), protection)


async def written(node: Node, client: LedgerClient, *data: bytes) -> int:
    """A ledger with these entries, still open."""
    runs = Runs()
    handle = await client.create(runs, NAME)
    for each in data:
        node.turn.run(handle.append, runs.run(each))
    await until(lambda: runs.answered == len(data))
    return handle.ledger_id


async def contents(client: LedgerClient, ledger_id: int, count: int) -> list[bytes]:
    """Its entries: what is in memory from there, as a dispatcher reads them."""
    reader = await client.open_read(ledger_id)
    found: list[bytes] = []
    while len(found) < count:
        batch = reader.read_cached(len(found), count - 1, count, 1 << 20)
        batch = batch or await reader.read_future(len(found), count - 1)
        found += [batch.data(i) for i in range(len(batch))]
    return found


@every_type
def test_entries_are_packaged_as_bookkeeper_packages_them(
    tmp_path: Path, digest_type: DigestType
) -> None:
    digest = Digest(digest_type, b"hush")
    run = EntryRun.of(DATA)
    run.ledger_id, run.first_entry_id = 258, 77
    with stored.storage(tmp_path) as opened:
        length = 4242 - len(DATA)
        assert StorageWriter(opened).add_run(run, 70, length, 0, 0, digest)[0] == 1
        batch = stored.read(opened, 77, 77, 258)
        assert batch.packaged(0) == bytes.fromhex(PACKAGED[digest_type]) + DATA
        assert batch.unpack(digest) == 1
        assert batch.data(0) == DATA
        assert len(batch.packaged(0)) == digest.header_size + len(DATA)
        del batch


@every_type
def test_a_ledger_keeps_its_digest_and_others_get_the_new_one(
    tmp_path: Path, digest_type: DigestType
) -> None:
    data = [b"entry %d" % n for n in range(50)] + [b"", b"x" * 100_000]

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            ledger_id = await written(node, client_of(node, digest_type), *data)
            other = client_of(node, DigestType.CRC32C)
            assert await other.recover(ledger_id) == (51, sum(map(len, data)))
            assert await contents(other, ledger_id, len(data)) == data
            await node.flush()
            successor = node.kill()
        async with successor as node:
            assert await contents(client_of(node, DigestType.DUMMY), ledger_id, 52) == data

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("digest_type", "notices"),
    [(DigestType.HMAC, True), (DigestType.CRC32, True), (DigestType.DUMMY, False)],
)
def test_an_entry_that_another_wrote_is_damaged(
    tmp_path: Path, digest_type: DigestType, notices: bool
) -> None:
    """Its record in the storage is as it should be."""

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            client = client_of(node, digest_type)
            ledger_id = await written(node, client, b"first", b"second")
            forged = bytearray(Digest(digest_type).header_size)
            forged[:16] = ledger_id.to_bytes(8, "big") + (2).to_bytes(8, "big")
            node.storage.add(forged, b"forged")
            await client.recover(ledger_id)
            reader = await client.open_read(ledger_id)
            assert len(await reader.read_future(0, 2)) == (2 if notices else 3)
            assert (reader.read_cached(2, 2, 1, 1 << 20) is None) is notices
            await node.flush()
            if notices:
                with pytest.raises(EntryDamaged):
                    await reader.read_future(2, 2)

    asyncio.run(scenario())


def test_a_ledger_of_another_password_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            ledger_id = await written(node, client_of(node, DigestType.CRC32C), b"x")
            before = await node.store.get(paths.ledger(ledger_id))
            stranger = client_of(node, DigestType.CRC32C, b"guessed")
            for question in (stranger.recover, stranger.open_read, stranger.end_of):
                with pytest.raises(WrongPassword, match="managedLedgerPassword") as refused:
                    await question(ledger_id)
                # Nobody takes it for a loss and passes over what is in it.
                assert not is_lost(refused.value)
            # Not even marked as being recovered.
            assert await node.store.get(paths.ledger(ledger_id)) == before
            assert await client_of(node, DigestType.MAC).recover(ledger_id) == (0, 1)

    asyncio.run(scenario())


def test_a_digest_type_that_is_none_is_refused() -> None:
    numbers: list[Any] = [0, 5, -1]
    for number in numbers:
        with pytest.raises(ValueError, match="not the number of a digest type"):
            Digest(number)
    assert (CRC32C.type, CRC32C.header_size) == (DigestType.CRC32C, 36)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_what_was_written_comes_back_with_the_password_only(
    end: signal.Signals, tmp_path: Path
) -> None:
    """A kill leaves the ledger open: it has to be recovered. A closed one is not even read, and
    what is published to its topic then would have another password than what is there.
    """
    topic = "persistent://public/default/t"
    password, digest_type = "managedLedgerPassword", "managedLedgerDigestType"
    settings = ("--set", f"{password}=hush", "--set", f"{digest_type}=MAC")
    with standalone(tmp_path, *settings) as broker, RawConnection(broker.broker_port) as client:
        client.producer(topic)
        client.send(b"secret", 0)
        client.wait_for(wire.SEND_RECEIPT)
        broker.stop(end)
    with (
        standalone(tmp_path, "--set", f"{password}=guessed") as broker,
        RawConnection(broker.broker_port) as client,
    ):
        refused = client.subscribe(topic)
        assert refused.type == wire.ERROR
        assert b"was made with another password: set managedLedgerPassword" in refused.data(3)
        assert client.subscribe(topic + "-other").type == wire.SUCCESS
        broker.stop()
    # What there is keeps its digest.
    with (
        standalone(tmp_path, "--set", f"{password}=hush") as broker,
        RawConnection(broker.broker_port) as client,
    ):
        assert client.subscribe(topic).type == wire.SUCCESS
        client.flow(1)
        assert client.wait_for(wire.MESSAGE).rest.endswith(b"secret")
        broker.stop()


def test_the_master_key_is_that_of_bookkeeper() -> None:
    assert CRC32C.master_key.hex() == hashlib.sha1(b"ledger").hexdigest()
    of_password = Digest(DigestType.CRC32, b"hush")
    assert of_password.master_key == hashlib.sha1(b"ledgerhush").digest()

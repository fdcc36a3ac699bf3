"""Broker entry metadata: what is stored in front of entries, who gets it, and how it goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from one_bookie import read_all, until
from one_broker import TOPIC, Broker, Client, run, section
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import INDEX_INTERCEPTOR, TIMESTAMP_INTERCEPTOR
from pyxbroker.broker.topics.messages import read_message
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.mledger.errors import ManagedLedgerTakenBack
from pyxbroker.proto import PulsarApi as pb

NAME = TopicName.get(TOPIC)
INDEX: dict[str, Any] = {"brokerEntryMetadataInterceptors": INDEX_INTERCEPTOR}
BOTH: dict[str, Any] = {
    "brokerEntryMetadataInterceptors": f"{TIMESTAMP_INTERCEPTOR}, {INDEX_INTERCEPTOR}"
}
EXPOSED: dict[str, Any] = {**BOTH, "exposingBrokerEntryMetadataToClientEnabled": True}


async def open_topic(broker: Broker) -> PersistentTopic:
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    return topic


def split(entry: bytes) -> tuple[Any, bytes]:
    """(BrokerEntryMetadata or None, what a client has sent) of an entry."""
    if entry[:2] != b"\x0e\x02":
        return None, entry
    end = 6 + int.from_bytes(entry[2:6], "big")
    block = pb.BrokerEntryMetadata()
    block.ParseFromString(entry[6:end])
    return block, entry[end:]


async def stored(broker: Broker) -> list[tuple[Any, bytes]]:
    topic = await open_topic(broker)
    return [split(each) for each in await read_all(topic.managed_ledger)]


async def send(client: Client, sequence_id: int, data: bytes, messages: int = 1) -> None:
    fields = {"num_messages_in_batch": messages} if messages > 1 else {}
    client.send(
        pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=messages),
        section(data, **fields),
    )
    await client.receive("send_receipt")


def test_entries_have_their_time_and_the_index_of_their_last_message(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        began_ms = int(time.time() * 1000)
        await send(client, 0, b"a")
        await send(client, 1, b"b" * 50, messages=5)
        await send(client, 6, b"c")
        found = await stored(broker)
        assert [block.index for block, _ in found] == [0, 5, 6]
        assert all(began_ms <= block.broker_timestamp <= time.time() * 1000 for block, _ in found)
        # What the client has sent is there as it was, and what is counted is what it has sent.
        assert found[0][1] == section(b"a")
        assert broker.node.connections.publish_bytes == 0
        await broker.node.flush()
        topic = await open_topic(broker)
        assert topic.managed_ledger.size == sum(map(len, await read_all(topic.managed_ledger)))

    run(tmp_path, scenario, **BOTH)


@pytest.mark.parametrize("kind", [TIMESTAMP_INTERCEPTOR, INDEX_INTERCEPTOR])
def test_only_what_was_asked_for_is_stored(tmp_path: Path, kind: str) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        await send(client, 0, b"a")
        [(block, _)] = await stored(broker)
        assert block.HasField("broker_timestamp") == (kind == TIMESTAMP_INTERCEPTOR)
        assert block.HasField("index") == (kind == INDEX_INTERCEPTOR)

    run(tmp_path, scenario, brokerEntryMetadataInterceptors=kind)


async def first_message(broker: Broker, client: Client, name: str) -> bytes:
    await client.subscribe(subscription=name)
    while True:
        for field, _, payload in client.take():
            if field == "message":
                return payload
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("exposes", [True, False])
def test_clients_that_know_it_get_it_where_it_is_exposed(tmp_path: Path, exposes: bool) -> None:
    async def scenario(broker: Broker) -> None:
        producer = await broker.client()
        await producer.produce()
        await send(producer, 0, b"a")
        plain = await broker.client()
        assert await first_message(broker, plain, "plain") == section(b"a")
        flags = pb.FeatureFlags(supports_broker_entry_metadata=True)
        for version, knows in ((18, True), (17, False)):
            client = Client(broker)
            client.send(
                pb.CommandConnect(client_version="t", protocol_version=version, feature_flags=flags)
            )
            await client.receive("connected")
            block, data = split(await first_message(broker, client, f"s{version}"))
            assert data == section(b"a")
            assert (block is not None) == (exposes and knows)
            assert block is None or block.index == 0

    run(tmp_path, scenario, **(EXPOSED if exposes else BOTH))


def test_the_index_goes_on_after_a_close_a_kill_and_a_trimmed_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie", **INDEX) as one:
            client = await one.client()
            await client.produce()
            for number in range(3):
                await send(client, number, b"x")
            await one.topics.deletion.unload(NAME)
            topic = await open_topic(one)
            assert topic.entry_metadata is not None and topic.entry_metadata.index == 2
            # Nobody needs what is there: only the list of ledgers tells then.
            topic.managed_ledger.set_limits(topic.managed_ledger.limits.keeping(0, 0))
            await topic.truncate()
            assert topic.entries == 0
            await one.topics.deletion.unload(NAME)
            client = await one.client()
            await client.produce()
            await send(client, 3, b"y")
            [(block, _)] = await stored(one)
            assert block.index == 3
            successor = Broker(tmp_path / "unused", **INDEX)
            successor.node = one.node.kill()
            async with successor as other:
                topic = await open_topic(other)
                assert topic.entry_metadata is not None and topic.entry_metadata.index == 3

    asyncio.run(main())


def test_old_entries_without_it_are_read_beside_those_that_have_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        old = section(b"old")
        await broker.publish_to(await broker.topic(), b"old")
        await broker.topics.deletion.unload(NAME)
        client = await broker.client()
        await client.produce()
        await send(client, 0, b"new")
        found = await stored(broker)
        assert [block.index if block else None for block, _ in found] == [None, 0]
        assert found[0][1] == old
        await client.subscribe()
        assert [each.data for each in await client.messages(2)] == [b"old", b"new"]
        topic = await open_topic(broker)
        entries = await read_all(topic.managed_ledger)
        assert [read_message(each)[1] for each in entries] == [b"old", b"new"]

    run(tmp_path, scenario, **INDEX)


def test_an_index_that_was_not_used_is_given_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        topic = await open_topic(broker)
        append = topic.managed_ledger.append
        taken: list[Any] = []
        topic.managed_ledger.append = taken.append  # type: ignore[method-assign]
        client.publish(0, b"a")
        await until(lambda: bool(taken))
        error = ManagedLedgerTakenBack("there is no space")
        broker.node.turn.run(taken[0].owner.on_run_failed, taken[0], error)
        await client.receive("send_error")
        topic.managed_ledger.append = append  # type: ignore[method-assign]
        await send(client, 1, b"b")
        assert [block.index for block, _ in await stored(broker)] == [0]

    run(tmp_path, scenario, **INDEX)


def test_deduplication_reads_entries_that_have_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        for number in range(3):
            await send(client, number, b"x")
        topic = await open_topic(broker)
        assert topic.deduplication is not None
        topic.deduplication.prepare_close = lambda: None  # type: ignore[method-assign]
        await broker.topics.deletion.unload(NAME)
        topic = await open_topic(broker)
        assert topic.deduplication is not None and topic.deduplication._entries == 3
        assert topic.last_sequence_id("p") == 0  # as their own metadata says

    run(tmp_path, scenario, **BOTH, brokerDeduplicationEnabled=True)

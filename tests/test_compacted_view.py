"""The compacted view of a topic where it is not plain: lost entries, markers behind it, a
successor that comes while it is asked, and what is acknowledged of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compacting import compact, single, values, view
from one_bookie import append
from one_broker import Broker, run, section
from pyxbroker.broker.compaction import compacted as module
from pyxbroker.broker.compaction.compacted import CompactedLedger, CompactedSource
from pyxbroker.entry import Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError, NoSuchEntry
from pyxbroker.ledger.retries import Retries
from pyxbroker.proto import PulsarApi as pb
from test_compaction import last_id, published, read, reader, reopened


def losing(
    monkeypatch: pytest.MonkeyPatch, ledger: CompactedLedger, is_lost: Callable[[int], bool]
) -> list[int]:
    """Has entries of a compacted ledger lost; the indexes of all that are read from now on."""
    asked: list[int] = []
    read_one = ledger.read_one

    async def some(index: int, retries: Retries) -> Any:
        asked.append(index)
        return None if is_lost(index) else await read_one(index, retries)

    monkeypatch.setattr(ledger, "read_one", some)
    return asked


def test_an_entry_before_many_lost_ones_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        entries = [single(f"k{n}", b"1", publish_time=n + 1) for n in range(200)]
        topic = await published(broker, *entries)
        ledger_id = topic.last_confirmed.ledger_id
        await compact(topic)
        ledger = topic.compacted
        asked = losing(monkeypatch, ledger, lambda index: 20 <= index <= 150)
        for index in (0, 1, 10, 19, 151, 199):
            assert await ledger.find((ledger_id, index)) == index
            assert len(asked) == len(set(asked)), "none is asked twice"
            assert await ledger.first_since(index + 1) == (ledger_id, index)
            asked.clear()
        assert await ledger.find((ledger_id, 100)) == 151
        monkeypatch.setattr(module, "LOST_MAX", 64)
        with pytest.raises(LedgerError, match="more than 64 entries of compacted ledger"):
            await ledger.find((ledger_id, 10))

    run(tmp_path, scenario)


@pytest.mark.parametrize("what", ["metadata", "entries"])
def test_who_reads_a_compacted_ledger_that_is_lost_gets_what_the_log_has(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    async def scenario(broker: Broker) -> None:
        entries = [single(key, value) for key, value in (("a", b"1"), ("b", b"1"), ("a", b"2"))]
        topic = await published(broker, *entries)
        await compact(topic)
        assert len(await view(topic)) == 2

        async def lost(*_: Any) -> Any:
            if what == "metadata":
                raise NoSuchEntry("its metadata is no metadata")

        with monkeypatch.context() as patches:
            if what == "metadata":
                patches.setattr(LedgerClient, "open_compacted", lost)
            else:
                patches.setattr(CompactedLedger, "read_one", lost)
            topic = await reopened(broker)
            assert topic.compacted is None
            errors = [each for each in caplog.records if each.levelname == "ERROR"]
            assert ["the compacted ledger is lost" in each.message for each in errors] == [True]
            # An older value is read before the newer one, and nothing is left out.
            assert [entry for _, entry in await view(topic)] == entries
            client = await broker.client()
            assert len(await read(client, 1, **reader((-1, -1)))) == 3
        await published(broker, single("b", b"2"))
        await compact(topic)
        assert await values(topic) == {"a": b"2", "b": b"2"}
        assert len(await view(await reopened(broker))) == 2

    run(tmp_path, scenario)


def test_the_last_message_is_known_without_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, *(single(f"k{n}", b"1") for n in range(9)))
        await compact(topic)
        asked = losing(monkeypatch, topic.compacted, lambda _: True)
        assert await topic.compacted.last_message() == (topic.compacted.last, -1)
        assert asked == []

    run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["empty", "error"])
def test_a_compacted_ledger_that_is_replaced_while_it_is_asked_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("b", b"1"), single("c", b"1"))
        first = topic.last_confirmed.ledger_id

        async def replace_when_asked() -> CompactedLedger:
            await append(topic.managed_ledger, single("a", b"2"))
            await compact(topic)
            former: CompactedLedger = topic.compacted

            async def deleted(index: int, retries: Retries) -> None:
                if topic.compacted is former:
                    await append(topic.managed_ledger, single("a", b"3"))
                    await compact(topic)
                if how == "error":
                    raise LedgerError("it is not there")

            monkeypatch.setattr(former, "read_one", deleted)
            monkeypatch.setattr(former, "_last_message", None)
            return former

        former = await replace_when_asked()
        assert await CompactedSource(topic, topic.managed_ledger).first_since(1) == (first, 1)
        assert topic.compacted is not former
        await replace_when_asked()
        assert await topic.last_compacted_message() == (topic.last_confirmed, -1)
        await replace_when_asked()
        assert [position.entry_id for position, _ in await view(topic)][:2] == [1, 2]
        # Who looks for a place in it, and reads what is in memory there.
        former = await replace_when_asked()
        source = CompactedSource(topic, topic.managed_ledger)
        batch = await source._read_some(Position(first, 2), 10, 1 << 20)
        assert (batch.ledger_id, batch.entry_id(0)) == (first, 2)
        assert topic.compacted is not former

    run(tmp_path, scenario)


def test_markers_behind_the_view_are_no_messages_of_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("b", b"1"), single("b", b""))
        ledger_id = topic.last_confirmed.ledger_id
        await compact(topic)
        await published(broker, section(b"", marker_type=10))
        client = await broker.client()
        await read(client, 1, **reader((-1, -1)))
        assert await last_id(client, 1) == (ledger_id, 0, -1), "nobody gets the one after it"
        await published(broker, single("c", b"1"), section(b"", marker_type=10))
        assert await last_id(client, 1) == (ledger_id, 4, -1)

    run(tmp_path, scenario)


def test_who_has_acknowledged_the_last_one_alone_gets_the_others_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, *(single(f"k{n}", b"1") for n in range(4)))
        first = topic.last_confirmed.ledger_id
        await compact(topic)
        topic = await reopened(broker)
        await topic.trim()
        assert first not in topic.managed_ledger.ledgers
        everything = [(first, n) for n in range(4)]
        client = await broker.client()

        async def again() -> list[tuple[int, int]]:
            await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
            return await read(client, 1)

        assert await read(client, 1) == everything
        await client.ack((first, 3))
        assert await again() == everything
        await client.ack((first, 1), (first, 1), (first, 9))
        assert await again() == everything
        # All of them, over several comings; a cumulative one in between counts.
        await client.ack((first, 0), (first, 0))
        await client.ack((first, 1), cumulative=True)
        assert await again() == everything[2:]
        await client.ack((first, 3))
        assert await again() == everything[2:]
        await client.ack((first, 2))
        assert await again() == []

    run(tmp_path, scenario)


async def without_log(broker: Broker, count: int, keys: int) -> tuple[Any, int]:
    """(topic, ledger): so many messages with as many keys are compacted, and the log has none."""
    topic = await published(broker, *(single(f"k{n % keys}", b"1") for n in range(count)))
    ledger_id = topic.last_confirmed.ledger_id
    await compact(topic)
    topic = await reopened(broker)
    await topic.trim()
    return topic, ledger_id


async def read_again(client: Any) -> list[tuple[int, int]]:
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
    return await read(client, 1)


def test_a_seek_forgets_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        _, first = await without_log(broker, 4, 4)
        client = await broker.client()
        everything = await read(client, 1)
        await client.ack((first, 1), (first, 2))
        start = pb.MessageIdData(ledgerId=0, entryId=0)
        seek = pb.CommandSeek(consumer_id=1, request_id=0, message_id=start)
        await client.request(seek, "success")
        assert await read_again(client) == everything
        await client.ack((first, 0))
        assert await read_again(client) == everything[1:]

    run(tmp_path, scenario)


def test_acknowledgements_of_what_the_view_has_not_count_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        _, first = await without_log(broker, 8, 4)
        client = await broker.client()
        view = await read(client, 1)
        assert view == [(first, n) for n in range(4, 8)]
        await client.ack(*((first, n) for n in range(4)))
        assert await read_again(client) == view
        await client.ack((first, 4))
        assert await read_again(client) == view[1:]

    run(tmp_path, scenario)


def test_of_so_many_that_are_read_and_not_acknowledged_later_ones_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOTED_MAX", 2)

    async def scenario(broker: Broker) -> None:
        topic, first = await without_log(broker, 4, 4)
        client = await broker.client()
        view = await read(client, 1)
        [subscription] = (each for each in topic.subscriptions.values() if each.compacted)
        assert len(subscription.compacted._noted) == 2
        await client.ack((first, 2), (first, 3), (first, 0), (first, 1))
        assert await read_again(client) == view[2:]
        await client.ack((first, 3), (first, 2))
        assert await read_again(client) == []

    run(tmp_path, scenario)

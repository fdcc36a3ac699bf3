"""Compaction of topics: what readers of the compacted view get, and what is stored of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from compacting import (
    Sent,
    batch,
    compact,
    compacted_ledgers,
    messages_of,
    single,
    values,
    view,
)
from interrupted import Answer, How, Interrupted
from late_store import HeldAnswers
from one_bookie import append, turns, until
from one_broker import TOPIC, Broker, Client, run, stats_of
from pyxbroker import compaction as compaction_module
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import COMPACTIONS_MAX
from pyxbroker.broker.compaction import compaction as module
from pyxbroker.broker.compaction.compaction import Status
from pyxbroker.entry import Position
from pyxbroker.ledger import retries
from pyxbroker.ledger.errors import EntryDamaged
from pyxbroker.mledger.compacted_ledger import NAMES_PROPERTY
from pyxbroker.proto import PulsarApi as pb
from test_admin_topics import DONE, Rest

P = "/admin/v2/persistent/public/default"
NAME = TopicName.get(TOPIC)


async def published(broker: Broker, *entries: bytes) -> Any:
    topic = await broker.topic()
    await append(topic.managed_ledger, *entries)
    return topic


async def reopened(broker: Broker) -> Any:
    await broker.topics.deletion.unload(NAME)
    return await broker.topic()


async def read(client: Client, consumer_id: int, **fields: Any) -> list[tuple[int, int]]:
    """The positions that a new consumer of the compacted view gets."""
    settings = {
        "subscription": f"r{consumer_id}",
        "subType": pb.CommandSubscribe.Exclusive,
        "read_compacted": True,
    }
    answer = await client.subscribe(consumer_id, **(settings | fields))
    assert not getattr(answer, "message", ""), answer
    await client.quiet()
    return [
        (message.message_id.ledgerId, message.message_id.entryId)
        for name, message, _ in client.take()
        if name == "message"
    ]


def reader(start: tuple[int, int]) -> dict[str, Any]:
    ledger_id, entry_id = (each % 2**64 for each in start)
    return {
        "durable": False,
        "start_message_id": pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
    }


async def last_id(client: Client, consumer_id: int) -> tuple[int, int, int]:
    answer = await client.request(
        pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=0),
        "getLastMessageIdResponse",
    )
    found = answer.last_message_id
    return found.ledgerId, found.entryId, found.batch_index


def test_readers_get_the_latest_of_each_key_and_then_what_is_new(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        entries = [single("a", b"1"), single("b", b"1"), single("a", b"2"), single(None, b"-")]
        topic = await published(broker, *entries)
        await compact(topic)
        await published(broker, single("b", b"2"))
        ledger_id = topic.last_confirmed.ledger_id
        client = await broker.client()
        assert await read(client, 1) == [(ledger_id, n) for n in (1, 2, 4)]
        assert await read(client, 2, subType=pb.CommandSubscribe.Failover) == [
            (ledger_id, n) for n in (1, 2, 4)
        ]
        assert await read(client, 3, read_compacted=False) == [(ledger_id, n) for n in range(5)]
        assert await read(client, 4, **reader((ledger_id, 2))) == [(ledger_id, 2), (ledger_id, 4)]
        assert await read(client, 5, **reader((-1, -1))) == [(ledger_id, n) for n in (1, 2, 4)]
        assert await read(client, 6, **reader((2**63 - 1, 2**63 - 1))) == []
        await published(broker, single("c", b"1"))
        await client.quiet()
        new = [each for name, each, _ in client.take() if name == "message"]
        assert {each.consumer_id for each in new} == {1, 2, 3, 4, 5, 6}
        assert {each.message_id.entryId for each in new} == {5}

    run(tmp_path, scenario, activeConsumerFailoverDelayTimeMillis=0)


def test_who_cannot_read_the_compacted_view_is_told_in_pulsars_words(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for kind in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared):
            answer = await client.subscribe(1, subType=kind, read_compacted=True)
            assert answer.error == pb.NotAllowedError
            assert answer.message == (
                "readCompacted only allowed on failover or exclusive subscriptions"
            )

    run(tmp_path, scenario)


def test_the_compacted_view_outlives_the_ledgers_of_the_log(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, *(single(f"k{n % 2}", b"%d" % n) for n in range(6)))
        first = topic.last_confirmed.ledger_id
        await compact(topic)
        topic = await reopened(broker)
        await topic.trim()
        assert first not in topic.managed_ledger.ledgers
        assert await view(topic) == [
            ((first, 4), single("k0", b"4")),
            ((first, 5), single("k1", b"5")),
        ]
        client = await broker.client()
        assert await read(client, 1) == [(first, 4), (first, 5)]
        assert await last_id(client, 1) == (first, 5, -1)
        assert await read(client, 2, **reader((first, 5))) == [(first, 5)]
        assert await read(client, 3, initialPosition=pb.CommandSubscribe.Latest) == []
        assert await read(client, 4, read_compacted=False) == []
        since = {"durable": False, "start_message_rollback_duration_sec": 1 << 31}
        assert await read(client, 7, **since) == [(first, 4), (first, 5)]
        since["start_message_rollback_duration_sec"] = 3600
        assert await read(client, 8, **since) == []
        # Who has acknowledged them does not get them again, who has not does.
        await client.ack((first, 4), (first, 5))
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        assert await read(client, 1) == []
        await client.request(pb.CommandCloseConsumer(consumer_id=2, request_id=0), "success")
        assert await read(client, 2, **reader((first, 5))) == [(first, 5)]

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_seeks_go_to_the_compacted_view(tmp_path: Path, is_trimmed: bool) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, *(single(f"k{n % 3}", b"%d" % n) for n in range(9)))
        first = topic.last_confirmed.ledger_id
        await compact(topic)
        if is_trimmed:
            topic = await reopened(broker)
            await topic.trim()
        await published(broker, single("k0", b"new"))
        new = tuple(topic.last_confirmed)
        client = await broker.client()
        everything = [(first, 6), (first, 7), (first, 8), new]
        assert await read(client, 1) == everything
        for seek, expected in [
            ({"message_id": pb.MessageIdData(ledgerId=first, entryId=7)}, everything[1:]),
            ({"message_id": pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)}, everything),
            ({"message_id": pb.MessageIdData(ledgerId=new[0], entryId=new[1])}, [new]),
            ({"message_publish_time": 1}, everything),
            ({"message_publish_time": 2}, []),
        ]:
            answer = await client.request(
                pb.CommandSeek(consumer_id=1, request_id=0, **seek), "success"
            )
            assert not getattr(answer, "message", ""), answer
            assert await read(client, 1) == expected, seek

    run(tmp_path, scenario)


def test_the_last_message_is_the_last_one_of_the_view(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(
            broker,
            batch(Sent("a", b"1"), Sent("b", b"1"), Sent("c", b"1")),
            single("c", b"2"),
            single("c", b""),
        )
        ledger_id = topic.last_confirmed.ledger_id
        client = await broker.client()
        await read(client, 1, **reader((-1, -1)))
        assert await last_id(client, 1) == (ledger_id, 2, -1)
        await compact(topic)
        assert await last_id(client, 1) == (ledger_id, 0, 1)
        await published(broker, single("d", b"1"))
        assert await last_id(client, 1) == (ledger_id, 3, -1)
        await published(broker, *(single(key, b"") for key in "abd"))
        await compact(topic)
        assert await last_id(client, 1) == (2**64 - 1, 2**64 - 1, -1)

    run(tmp_path, scenario)


def test_a_compaction_builds_upon_the_one_before_and_deletes_its_ledger(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("b", b"1"))
        await compact(topic)
        [former] = await compacted_ledgers(broker)
        topic = await reopened(broker)
        await topic.trim()
        await published(broker, single("b", b"2"), single("c", b"1"))
        await compact(topic)
        assert await values(topic) == {"a": b"1", "b": b"2", "c": b"1"}
        [now] = await compacted_ledgers(broker)
        assert now != former
        cursor = topic.managed_ledger.cursors["__compaction"]
        assert cursor.position_properties == {"CompactedTopicLedger": now}
        assert cursor.acks.mark_delete == topic.last_confirmed == topic.horizon
        # Nothing is new: nothing is written.
        await compact(topic)
        assert await compacted_ledgers(broker) == [now]

    run(tmp_path, scenario)


def test_the_ledger_says_what_it_is_as_pulsars_does(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"), single("b", b""))
        await compact(topic)
        [ledger_id] = await compacted_ledgers(broker)
        metadata = (await broker.node.client._metadata.read(ledger_id)).metadata
        log_id = topic.last_confirmed.ledger_id
        assert metadata.custom_metadata == {
            "application": b"pulsar",
            "component": b"compacted-ledger",
            "pulsar/compactedTopic": TOPIC.encode(),
            "pulsar/compactedTo": pb.MessageIdData(
                ledgerId=log_id, entryId=1, batch_size=0
            ).SerializeToString(),
        }
        assert metadata.is_closed
        assert metadata.last_entry_id == 0
        assert metadata.password == b""
        handle = await broker.node.client.open_read(ledger_id)
        stored = (await handle.read_future(0, 0)).data(0)
        head = pb.MessageIdData(ledgerId=log_id, entryId=1).SerializeToString()
        entry = single("a", b"2")
        assert stored == b"%b%b%b%b" % (
            len(head).to_bytes(4, "big"),
            head,
            len(entry).to_bytes(4, "big"),
            entry,
        )

    run(tmp_path, scenario, managedLedgerPassword="secret")


def test_messages_without_a_key_are_kept_where_the_setting_says_so(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(
            broker, single(None, b"1"), batch(Sent(None, b"2"), Sent("a", b"1")), single("a", b"2")
        )
        await compact(topic)
        found = [each for _, entry in await view(topic) for each in messages_of(entry)]
        assert found == [Sent(None, b"1"), Sent(None, b"2"), None, Sent("a", b"2")]

    run(tmp_path, scenario, topicCompactionRetainNullKey=True)


def test_broker_entry_metadata_stays_in_front(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        for entry in (batch(Sent("a", b"1"), Sent("b", b"1")), single("a", b"2")):
            await topic.append_message(entry)
        await compact(topic)
        entries = [entry for _, entry in await view(topic)]
        assert [each[:2] for each in entries] == [b"\x0e\x02", b"\x0e\x02"]
        assert [messages_of(each) for each in entries] == [
            [None, Sent("b", b"1")],
            [Sent("a", b"2")],
        ]

    run(
        tmp_path,
        scenario,
        brokerEntryMetadataInterceptors=(
            "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
        ),
    )


def test_partitions_have_their_number_in_the_ids(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        assert await rest("PUT", f"{P}/p/partitions", "2") == DONE
        topic: Any = await broker.topic("persistent://public/default/p-partition-1")
        await append(topic.managed_ledger, single("a", b"1"))
        assert await rest("PUT", f"{P}/p/compaction") == DONE
        await topic.compaction.settle()
        handle = topic.compacted.handle
        stored = (await handle.read_future(0, 0)).data(0)
        found = pb.MessageIdData.FromString(stored[4 : 4 + stored[3]])
        assert found.partition == 1
        # Read again, it is no part of the position.
        batch = await handle.read_future(0, 0)
        assert compaction_module.wrapped_position(batch, 0) == (found.ledgerId, found.entryId)
        assert found.entryId == 0
        status, _ = await rest("GET", f"{P}/p/compaction")
        assert status == 404

    run(tmp_path, scenario)


def test_a_partition_that_is_being_compacted_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        assert await rest("PUT", f"{P}/p/partitions", "3") == DONE
        topics: list[Any] = [
            await broker.topic(f"persistent://public/default/p-partition-{n}") for n in range(3)
        ]
        turns = topics[0].broker_limits.compaction.turns
        for _ in range(COMPACTIONS_MAX):
            await turns.acquire()
        topics[0].compacting.begin()
        topics[1].compacting.begin()
        status, answer = await rest("PUT", f"{P}/p/compaction")
        assert (status, answer["reason"]) == (409, "Compaction already in progress")
        # The first refusal is the answer; the others are told, too.
        assert [each.message for each in caplog.records].count("a partition is not compacted") == 1
        assert [each.compacting.is_running for each in topics] == [True] * 3
        for _ in range(COMPACTIONS_MAX):
            turns.release()
        for each in topics:
            await each.compacting.settle()
            assert each.compacting.status is Status.SUCCESS

    run(tmp_path, scenario)


def test_partitions_that_are_added_hold_what_is_not_compacted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        assert await rest("PUT", f"{P}/p/partitions", b"1") == DONE
        assert await rest("PUT", f"{P}/p/compaction") == DONE
        assert await rest("POST", f"{P}/p/partitions", b"2") == DONE
        _, found = await rest("GET", f"{P}/p-partition-1/subscriptions")
        assert found == ["__compaction"]

    run(tmp_path, scenario)


def test_rest_moves_a_subscription_in_the_compacted_view(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, *(single(f"k{n % 3}", b"%d" % n) for n in range(9)))
        first = topic.last_confirmed.ledger_id
        await compact(topic)
        topic = await reopened(broker)
        await topic.trim()
        await published(broker, single("k0", b"new"))
        new = tuple(topic.last_confirmed)
        client, rest = await broker.client(), Rest(broker)
        everything = [(first, 6), (first, 7), (first, 8), new]
        assert await read(client, 1) == everything
        reset = f"{P}/t/subscription/r1/resetcursor"
        seventh = {"ledgerId": first, "entryId": 7}
        for path, body, expected in [
            ("", seventh, everything[1:]),
            ("", seventh | {"excluded": True}, everything[2:]),
            ("", "earliest", everything),
            ("", "latest", []),
            ("/1", None, everything),
            ("/2", None, []),
        ]:
            given = b"" if body is None else json.dumps(body).encode()
            assert await rest("POST", reset + path, given) == DONE, (path, body)
            assert await read(client, 1) == expected, (path, body)

    run(tmp_path, scenario)


def test_statistics_tell_how_compaction_went_and_of_its_ledger(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        topic = await published(broker, *(single(f"k{n % 3}", b"%d" % n) for n in range(9)))
        for path in ("stats", "internalStats"):
            assert (await rest("GET", f"{P}/t/{path}"))[0] == 200
        await compact(topic)
        _, stats = await rest("GET", f"{P}/t/stats")
        assert stats["compaction"]["lastCompactionRemovedEventCount"] == 6
        assert stats["compaction"]["lastCompactionSucceedTimestamp"] > 0
        assert stats["compaction"]["lastCompactionFailedTimestamp"] == 0
        _, stats = await rest("GET", f"{P}/t/internalStats")
        ledger = stats["compactedLedger"]
        assert [ledger["ledgerId"]] == await compacted_ledgers(broker)
        assert ledger["entries"] == 3
        assert ledger["size"] > 3 * len(single("k0", b"6"))

    run(tmp_path, scenario)


# --- what goes on meanwhile -----------------------------------------------------------------------


def test_rest_tells_how_it_goes_and_that_one_is_under_way(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        assert (await rest("PUT", f"{P}/t/compaction"))[0] == 404
        topic = await published(broker, single("a", b"1"))
        told = {"status": "NOT_RUN", "lastError": ""}
        assert await rest("GET", f"{P}/t/compaction") == (200, told)
        assert await rest("PUT", f"{P}/t/compaction") == DONE
        assert await rest("GET", f"{P}/t/compaction") == (200, told | {"status": "RUNNING"})
        assert await rest.reason("PUT", f"{P}/t/compaction") == (
            409,
            "Compaction already in progress",
        )
        await topic.compaction.settle()
        assert await rest("GET", f"{P}/t/compaction") == (200, told | {"status": "SUCCESS"})
        await reopened(broker)
        assert await rest("GET", f"{P}/t/compaction") == (200, told)

    run(tmp_path, scenario)


def test_what_stores_nothing_is_not_compacted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic("non-persistent://public/default/n")
        for method in ("PUT", "GET"):
            path = "/admin/v2/non-persistent/public/default/n/compaction"
            status, reason = await Rest(broker).reason(method, path)
            assert (status, "not found" in reason) == (404, True), reason

    run(tmp_path, scenario)


async def until_it_writes(topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begins to compact a topic, and lets it stand still in its second phase."""
    stands: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def stand(self: Any) -> None:
        stands.set_result(None)
        await asyncio.Event().wait()

    monkeypatch.setattr(module._Writer, "wait_for_room", stand)
    topic.compacting.begin()
    await stands


@pytest.mark.parametrize("what", ["unload", "truncate", "delete", "unsubscribe"])
def test_a_compaction_that_is_given_up_leaves_nothing(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        with monkeypatch.context() as patches:
            await until_it_writes(topic, patches)
            assert len(await compacted_ledgers(broker)) == 1
            asked = {
                "unload": ("PUT", f"{P}/t/unload"),
                "truncate": ("DELETE", f"{P}/t/truncate"),
                "delete": ("DELETE", f"{P}/t?force=true"),
                "unsubscribe": ("DELETE", f"{P}/t/subscription/__compaction"),
            }
            assert await rest(*asked[what]) == DONE
        assert await compacted_ledgers(broker) == []
        assert not topic.compacting.is_running
        topic = await published(broker, single("b", b"1"))
        await compact(topic)
        kept = {} if what == "delete" else {"a": b"2"}
        assert await values(topic) == kept | {"b": b"1"}

    run(tmp_path, scenario)


def test_a_compaction_that_is_given_up_while_its_ledger_is_made_takes_nothing_from_the_topic(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        managed_ledger = topic.managed_ledger
        await topic.compaction_subscription()
        held = HeldAnswers(broker.node.store, "put_all")
        topic.compacting.begin()
        await held.asked.wait()
        assert len(await compacted_ledgers(broker)) == 1
        stops = [asyncio.ensure_future(topic.compaction.stop()) for _ in range(2)]
        await turns(5)
        assert topic.compacting.is_running
        held.let_go()
        await asyncio.gather(*stops)
        assert not topic.compacting.is_running
        assert await compacted_ledgers(broker) == []
        await managed_ledger.write_info()
        managed_ledger.roll_over()
        await append(managed_ledger, single("b", b"1"))
        assert len(managed_ledger.ledgers) == 2
        await compact(topic)
        assert await values(topic) == {"a": b"2", "b": b"1"}

    run(tmp_path, scenario)


def test_a_compaction_whose_entries_are_deleted_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"))
        await topic.compaction_subscription()
        managed_ledger = topic.managed_ledger
        managed_ledger.roll_over()
        await append(managed_ledger, single("a", b"2"))
        read_some = managed_ledger.read_some

        async def trimmed(*arguments: Any) -> Any:
            managed_ledger.cursors["__compaction"].acknowledge_up_to(managed_ledger.last_confirmed)
            await managed_ledger.truncate()
            return await read_some(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(managed_ledger, "read_some", trimmed)
            topic.compacting.begin()
            await topic.compacting.settle()
        assert topic.compacting.status is Status.ERROR
        assert "were deleted" in topic.compacting.last_error
        told = [each for each in caplog.records if each.getMessage() == "a topic was not compacted"]
        assert [each.levelname for each in told] == ["INFO"]
        await append(managed_ledger, single("a", b"3"))
        await compact(topic)
        assert (await values(topic))["a"] == b"3"

    caplog.set_level("INFO")
    run(tmp_path, scenario)


def test_a_compaction_of_a_topic_that_is_closed_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"))
        topic.compacting.begin()
        topic.fenced = True
        await topic.compacting.settle()
        assert topic.compacting.status is Status.ERROR
        assert "is being closed" in topic.compacting.last_error
        told = [each for each in caplog.records if each.getMessage() == "a topic was not compacted"]
        assert [each.levelname for each in told] == ["INFO"]

    caplog.set_level("INFO")
    run(tmp_path, scenario)


def test_a_compacted_ledger_is_deleted_when_nothing_is_under_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        done: list[str] = []
        give_up, delete = module._Writer.give_up, module.compacted_ledger.delete

        async def giving_up(writer: Any) -> None:
            await give_up(writer)
            done.append("it is quiet")

        async def deleting(*what: Any) -> None:
            done.append("it is deleted")
            await delete(*what)

        with monkeypatch.context() as patches:
            await until_it_writes(topic, patches)
            patches.setattr(module._Writer, "give_up", giving_up)
            patches.setattr(module.compacted_ledger, "delete", deleting)
            await topic.compaction.stop()
        assert done == ["it is quiet", "it is deleted"]

    run(tmp_path, scenario)


def test_a_truncation_that_is_refused_lets_the_compaction_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        with monkeypatch.context() as patches:
            await until_it_writes(topic, patches)
            topic.managed_ledger.unreadable.add("damaged")
            status, reason = await Rest(broker).reason("DELETE", f"{P}/t/truncate")
            assert status == 500
            assert "damaged" in reason
            assert topic.compacting.is_running
            topic.managed_ledger.unreadable.clear()

    run(tmp_path, scenario)


def test_what_the_broker_keeps_among_properties_is_its_own(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        await compact(topic)
        kept = dict(topic.managed_ledger.properties)
        assert NAMES_PROPERTY in kept
        properties = f"{P}/t/properties"
        for key in (NAMES_PROPERTY, "pulsar.topic.epoch"):
            given = json.dumps({key: "0"}).encode()
            assert (await rest("PUT", properties, given))[0] == 412
            assert await rest("DELETE", f"{properties}?key={key}") == DONE
        assert await rest("PUT", properties, b'{"a":"b"}') == DONE
        assert await rest("GET", properties) == (200, {"a": "b"})
        assert topic.managed_ledger.properties == kept | {"a": "b"}

    run(tmp_path, scenario)


def test_nobody_but_compaction_moves_its_subscription(tmp_path: Path) -> None:
    """Between its mark and where it was moved to nothing would be in any view."""

    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"))
        await compact(topic)
        await published(broker, single("a", b"2"))
        mark = topic.subscriptions["__compaction"].acks.mark_delete
        client, rest = await broker.client(), Rest(broker)
        answer = await client.subscribe(1, subscription="__compaction")
        assert answer.error == pb.ServerError.ProducerBusy
        one = f"{P}/t/subscription/__compaction"
        latest = json.dumps({"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}).encode()
        for method, path, body in [
            ("POST", f"{one}/skip/1", b""),
            ("POST", f"{one}/skip_all", b""),
            ("POST", f"{one}/expireMessages/1", b""),
            ("POST", f"{one}/resetcursor/1", b""),
            ("POST", f"{one}/resetcursor", latest),
        ]:
            assert (await rest(method, path, body))[0] == 405, path
        topic.wall_clock = lambda: 4e9
        assert await rest("POST", f"{P}/t/all_subscription/expireMessages/1") == DONE
        namespace = "/admin/v2/namespaces/public/default"
        assert await rest("POST", f"{namespace}/clearBacklog") == DONE
        assert (await rest("POST", f"{namespace}/clearBacklog/__compaction"))[0] == 405
        assert topic.subscriptions["__compaction"].acks.mark_delete == mark
        assert await values(await reopened(broker)) == {"a": b"2"}

    run(tmp_path, scenario)


def test_entries_that_find_no_space_at_the_end_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        with monkeypatch.context() as patches:
            patches.setattr(module._Writer, "append", module._Writer.on_run_taken_back)
            topic.compacting.begin()
            await topic.compaction.settle()
        assert topic.compaction.status is Status.ERROR
        assert await compacted_ledgers(broker) == []
        assert await values(topic) == {"a": b"2"}

    run(tmp_path, scenario)


def test_a_terminated_topic_is_compacted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        await topic.terminate()
        await compact(topic)
        topic = await reopened(broker)
        assert await values(topic) == {"a": b"2"}
        client = await broker.client()
        assert len(await read(client, 1)) == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["topic", "subscription"])
def test_the_compacted_ledger_goes_with_the_topic_or_the_subscription(
    tmp_path: Path, how: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        await compact(topic)
        rest = Rest(broker)
        if how == "topic":
            assert await rest("DELETE", f"{P}/t") == DONE
        else:
            assert await rest("DELETE", f"{P}/t/subscription/__compaction") == DONE
            # Nobody is compacted for any more.
            assert len(await view(topic)) == 2
        assert await compacted_ledgers(broker) == []

    run(tmp_path, scenario)


def test_what_is_not_compacted_is_kept_and_what_is_goes(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"))
        await topic.compaction_subscription()
        topic = await reopened(broker)
        await topic.trim()
        assert topic.entries == 1
        await compact(topic)
        await topic.trim()
        assert topic.entries == 0
        assert await values(topic) == {"a": b"1"}

    run(tmp_path, scenario)


def test_who_reads_goes_on_in_the_next_compacted_ledger(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, *(single(f"k{n}", b"1") for n in range(6)))
        ledger_id = topic.last_confirmed.ledger_id
        await compact(topic)
        client = await broker.client()
        assert await read(client, 1, permits=2) == [(ledger_id, 0), (ledger_id, 1)]
        await published(broker, single("k3", b"2"))
        await compact(topic)
        client.flow(100)
        found = [each.position for each in await client.messages(4)]
        assert found == [(ledger_id, n) for n in (2, 4, 5, 6)]

    run(tmp_path, scenario)


async def with_one_lost(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A topic whose last entry, the newest of k2, cannot be read."""
    topic = await published(broker, *(single(f"k{n % 3}", b"%d" % n) for n in range(9)))
    read_some = topic.managed_ledger.read_some

    async def damaged(position: Position, count: int, size: int, last: Any = None) -> Any:
        if position.entry_id == 8:
            raise EntryDamaged("it is damaged")
        last = min(7, last) if position.entry_id < 8 else last
        return await read_some(position, count, size, last)

    monkeypatch.setattr(topic.managed_ledger, "read_some", damaged)
    return topic


def test_what_is_lost_fails_it_as_the_former_value_is_not_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        with monkeypatch.context() as patches:
            topic = await with_one_lost(broker, patches)
            assert await Rest(broker)("PUT", f"{P}/t/compaction") == DONE
            await topic.compaction.settle()
        at = f"{topic.last_confirmed.ledger_id}:8"
        _, answer = await Rest(broker)("GET", f"{P}/t/compaction")
        assert answer == {
            "status": "ERROR",
            "lastError": f"Entry {at} cannot be read, and may have the newest of its keys; with"
            " autoSkipNonRecoverableData it is left out.",
        }
        assert await compacted_ledgers(broker) == []
        assert topic.entries == len(await view(topic)) == 9, "all of it is held"
        await compact(topic)
        assert await values(topic) == {"k0": b"6", "k1": b"7", "k2": b"8"}

    run(tmp_path, scenario)


@pytest.mark.parametrize("what", ["damaged", "no record"])
def test_a_record_that_is_lost_fails_the_next_compaction(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("b", b"1"))
        await compact(topic)
        await published(broker, single("c", b"1"))
        read_some = topic.compacted.read_some

        async def damaged(index: int, count: int, size: int) -> Any:
            if index != 1:
                return await read_some(index, 1, size)
            if what == "damaged":
                raise EntryDamaged("it is damaged")
            log = topic.managed_ledger  # whose entries are no records
            return await log.read_some(Position(topic.last_confirmed.ledger_id, 0), 1, size)

        with monkeypatch.context() as patches:
            patches.setattr(topic.compacted, "read_some", damaged)
            topic.compacting.begin()
            await topic.compacting.settle()
        assert topic.compacting.status is Status.ERROR
        assert topic.compacting.last_error.startswith("Record 1 of the compacted ledger cannot be")
        assert await values(topic) == {"a": b"1", "b": b"1", "c": b"1"}

    run(tmp_path, scenario)


def test_what_is_lost_is_left_out_in_both_phases_where_the_setting_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await with_one_lost(broker, monkeypatch)
        await compact(topic)
        assert await values(topic) == {"k0": b"6", "k1": b"7", "k2": b"5"}

    run(tmp_path, scenario, autoSkipNonRecoverableData=True)


def test_a_disk_that_has_no_room_for_keys_fails_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(module, "KEYS_BYTES_MAX", -1)
        topic = await published(broker, single("a", b"1"))
        topic.broker_limits.compaction.directory = tmp_path / "nowhere"
        topic.compacting.begin()
        await topic.compacting.settle()
        assert topic.compacting.status is Status.ERROR
        assert await compacted_ledgers(broker) == []
        topic.broker_limits.compaction.directory = tmp_path
        await compact(topic)
        assert await values(topic) == {"a": b"1"}

    run(tmp_path, scenario)


def test_properties_of_a_topic_do_not_delete_ledgers_of_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"))
        await compact(topic)
        own = topic.last_confirmed.ledger_id
        [victim] = await compacted_ledgers(broker)
        rest = Rest(broker)
        names = ",".join(map(str, range(20))) + ",x,99999999999999999999,-1"
        assert await rest("PUT", f"{P}/evil", f'{{"{NAMES_PROPERTY}": "{names}"}}') == DONE
        assert await rest("PUT", f"{P}/evil/unload") == DONE
        evil: Any = await broker.topic("persistent://public/default/evil")
        await append(evil.managed_ledger, single("a", b"1"))
        await compact(evil)
        assert await rest("DELETE", f"{P}/evil") == DONE
        assert await compacted_ledgers(broker) == [victim]
        topic = await reopened(broker)
        assert await values(topic) == {"a": b"1"}
        assert own in topic.managed_ledger.ledgers

    run(tmp_path, scenario)


# --- what is interrupted --------------------------------------------------------------------------


async def compacted_once(rest: Rest) -> None:
    topic = await published(rest.broker, single("a", b"1"), single("b", b"1"), single("c", b"1"))
    await compact(topic)
    await published(rest.broker, single("a", b"2"), single("b", b""), single("d", b"1"))


async def ask_to_compact(rest: Rest) -> Answer:
    status, answer = await rest("PUT", f"{P}/t/compaction")
    if status >= 300:
        return status, answer
    topic: Any = rest.broker.topics.registry.find(NAME)
    if topic is None or topic.compaction is None:
        return 503, "it was closed"
    await topic.compaction.settle()
    is_done = topic.compaction.status is Status.SUCCESS
    return (200 if is_done else 500), topic.compaction.last_error


async def look(rest: Rest) -> Any:
    # What a kill now would leave.
    topic = await reopened(rest.broker)
    return await values(topic), len(await compacted_ledgers(rest.broker))


def test_a_compaction_that_is_interrupted_at_any_write_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_FOR_S", 0.1)
    interrupted = Interrupted(tmp_path, compacted_once, ask_to_compact, look)
    _, after, count = asyncio.run(interrupted.whole())
    assert after == ({"a": b"2", "c": b"1", "d": b"1"}, 1)
    assert count >= 5
    for number in range(1, count + 1):
        for how in How:
            answers, found = asyncio.run(interrupted.at(how, number))
            where = f"write {number} of {count} {how.name}: {answers}"
            assert answers[-1][0] < 500, where
            assert found == after, where


def test_a_kill_at_any_write_leaves_the_view_as_it_was_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_FOR_S", 0.1)
    before = {"a": b"2", "b": b"", "c": b"1", "d": b"1"}  # the former one, and the log behind it
    after = {"a": b"2", "c": b"1", "d": b"1"}
    views = []

    interrupted = Interrupted(tmp_path, compacted_once, ask_to_compact, look)
    _, _, count = asyncio.run(interrupted.whole())
    for number in range(1, count + 1):
        # Nobody asks again: what is there is what the kill has left.
        with monkeypatch.context() as patches:
            patches.setattr(interrupted, "_repeated", lambda rest, how: _no_answers())
            _, (found, ledgers) = asyncio.run(interrupted.at(How.KILLED, number))
        assert found in (before, after), number
        assert ledgers == 1, number
        views.append(found)
    assert before in views
    assert after in views


async def _no_answers() -> list[Answer]:
    return []


def test_nothing_is_told_as_done_while_nobody_knows_whether_it_is_noted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"))
        cursor = (await topic.compaction_subscription()).cursor
        persist = cursor.persist

        def refused() -> asyncio.Future[None]:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(module.CursorError("nobody knows"))
            return future

        cursor.persist = refused
        topic.compacting.begin()
        await topic.compacting.settle()
        assert (topic.compacting.status, topic.compacting.last_error) == (
            Status.ERROR,
            "nobody knows",
        )
        assert cursor.kept_after is not None
        cursor.persist = persist
        await compact(topic)
        assert cursor.kept_after is None
        assert await values(topic) == {"a": b"2"}
        assert len(await compacted_ledgers(broker)) == 1

    run(tmp_path, scenario)


def test_metrics_tell_how_it_went(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"), single("a", b"2"), single("b", b"1"))
        assert stats_of(topic).compaction is None
        await compact(topic)
        found = stats_of(topic).compaction
        assert found is not None
        assert (found.removed, found.succeeded, found.failed, found.entries) == (1, 1, 0, 2)
        assert found.size > len(single("a", b"2"))

    run(tmp_path, scenario)


def test_compactions_of_many_topics_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        under_way = most = 0
        scan = module._Run._scan

        async def counted(self: Any) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await scan(self)
            under_way -= 1

        monkeypatch.setattr(module._Run, "_scan", counted)
        topics: list[Any] = []
        for number in range(5):
            topic: Any = await broker.topic(f"persistent://public/default/t{number}")
            await append(topic.managed_ledger, single("a", b"1"))
            topic.compacting.begin()
            topics.append(topic)
        for topic in topics:
            await topic.compacting.settle()
            assert topic.compacting.status is Status.SUCCESS
        assert most == COMPACTIONS_MAX

    run(tmp_path, scenario)


def test_a_threshold_holds_what_comes_and_has_it_compacted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await published(broker, single("a", b"1"))
        await until(lambda: "__compaction" in topic.subscriptions)
        topic = await published(broker, *(single("a", b"%d" % n) for n in range(20)))
        await broker.topics.upkeep.compact()
        await topic.compaction.settle()
        assert topic.horizon == topic.last_confirmed
        former = topic.compacted
        await broker.topics.upkeep.compact()
        assert not topic.compaction.is_running
        assert topic.compacted is former

    run(tmp_path, scenario, brokerServiceCompactionThresholdInBytes=100)

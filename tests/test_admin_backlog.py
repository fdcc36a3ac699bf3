"""REST of what is behind subscriptions: skip, expiry, truncation, unload, in Pulsar's words."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from late_store import HeldAnswers
from one_bookie import append, until
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.statistics import internal_stats
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.ledger.errors import JournalFailed
from pyxbroker.metadata.store import Unavailable
from test_admin_topics import DONE, NAME, NO_NAMESPACE, P, Rest, run
from test_expiry import NOW_S, message, subscription_of
from test_slices import longest_turn

N = P.replace("/persistent/", "/non-persistent/")
EACH = pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "unload"),
        ("DELETE", "truncate"),
        ("POST", "trim"),
        ("POST", "subscription/s/skip/1"),
        ("POST", "subscription/s/skip_all"),
        ("POST", "subscription/s/expireMessages/1"),
        ("POST", "all_subscription/expireMessages/1"),
    ],
)


async def filled(rest: Rest, name: str, *ages_s: float) -> PersistentTopic:
    """A topic with a subscription s, and messages of these ages."""
    topic = await rest.broker.topic(f"{NAME}/{name}")
    assert isinstance(topic, PersistentTopic)
    topic.wall_clock = lambda: NOW_S
    await subscription_of(topic, "s")
    await append(topic.managed_ledger, *map(message, ages_s))
    return topic


def backlog(topic: PersistentTopic, name: str = "s") -> int:
    return topic.subscriptions[name].backlog


def test_what_a_topic_stores_and_what_subscriptions_have_left_of_it(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", *[1] * 10)
        await subscription_of(topic, "other")
        ledger_id = topic.managed_ledger.ledger_ids[0]
        topic.subscriptions["s"].cursor.acknowledge_positions([(ledger_id, n) for n in range(4)])
        status, told = await rest("GET", f"{P}/t/backlog")
        assert status == 200
        assert told == {
            "storageSize": topic.storage_size,
            "totalMessages": 10,
            "messageBacklog": 16,
            "brokerName": ANY,
            "topicName": "public/default/persistent/t",
            # The ledger that is being written counts as empty.
            "dataLedgerDetails": [{"entries": 0, "size": 0, "ledgerId": ledger_id}],
            "cursorDetails": {
                "s": {"cursorBacklog": 6, "cursorLedgerId": ANY},
                "other": {"cursorBacklog": 10, "cursorLedgerId": ANY},
            },
        }

    run(tmp_path, scenario)


def test_what_many_subscriptions_have_left_is_told_in_short_turns(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", *[1] * 10)
        one = topic.subscriptions["s"]
        names = [f"s{number}" for number in range(10_000)]
        for name in names:
            topic.subscriptions[name] = copy.copy(one)
            topic.subscriptions[name].name = name

        async def ask() -> None:
            assert (await rest("GET", f"{P}/t/backlog"))[1]["messageBacklog"] == 100_010

        try:
            turns = [await longest_turn([asyncio.ensure_future(ask())]) for _ in range(2)]
        finally:
            for name in names:
                del topic.subscriptions[name]
        assert min(turns) < 0.02

    run(tmp_path, scenario)


def with_holes(topic: PersistentTopic, count: int) -> None:
    """Entries are added in memory of which every other one is acknowledged, all but the first."""
    managed_ledger = topic.managed_ledger
    ledger_id = managed_ledger.ledger_ids[0]
    acks = topic.subscriptions["s"].cursor.acks
    words = [0x2AAAAAAAAAAAAAAA] * (count // 31)
    acks.add_longs(ledger_id, words, 64 * len(words) - 1)
    assert acks.count_ranges() == 31 * len(words)


@pytest.mark.parametrize("path", ["internalStats", "backlog"])
def test_a_million_holes_are_not_gone_through_to_tell_a_thousand(tmp_path: Path, path: str) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 1)
        with_holes(topic, 1_000_000)
        found: list[Any] = []

        async def ask() -> None:
            found.append((await rest("GET", f"{P}/t/{path}"))[1])

        turns = [await longest_turn([asyncio.ensure_future(ask())]) for _ in range(3)]
        topic.subscriptions["s"].cursor.acks.clear()
        assert min(turns) < 0.02, "it took 0.1 s"
        if path == "internalStats":
            told = found[0]["cursors"]["s"]
            assert told["totalNonContiguousDeletedMessagesRange"] == 31 * (1_000_000 // 31)
            ranges = told["individuallyDeletedMessages"].split(",")
            ledger_id = topic.managed_ledger.ledger_ids[0]
            assert ranges[0] == f"[({ledger_id}:0..{ledger_id}:1]"
            assert len(ranges) == 1_000

    run(tmp_path, scenario)


def test_the_ledgers_of_many_schemas_are_told_in_short_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 1)
        ledger_id = topic.managed_ledger.ledger_ids[0]
        assert len((await rest("GET", f"{P}/t/internalStats"))[1]["schemaLedgers"]) == 0

        async def index(_: str) -> list[Any]:
            return [SimpleNamespace(ledger_id=each) for each in range(ledger_id, 10_000)]

        monkeypatch.setattr(rest.broker.topics.schemas, "index", index)
        found: list[Any] = []

        async def ask() -> None:
            found.append((await rest("GET", f"{P}/t/internalStats"))[1]["schemaLedgers"])

        turns = [await longest_turn([asyncio.ensure_future(ask())]) for _ in range(2)]
        assert min(turns) < 0.02
        # Of the others nothing is known.
        assert ledger_id in {each["ledgerId"] for each in found[0]}

    run(tmp_path, scenario)


def test_the_backlog_is_told_without_a_look_at_holes_and_schemas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        await filled(rest, "t", *[1] * 3)

        def must_not(*_: Any) -> Any:
            raise AssertionError("it is not needed")

        monkeypatch.setattr(internal_stats, "_cursor", must_not)
        monkeypatch.setattr(rest.broker.topics.schemas, "index", must_not)
        status, told = await rest("GET", f"{P}/t/backlog")
        assert (status, told["messageBacklog"]) == (200, 3)

    run(tmp_path, scenario)


def test_messages_are_skipped(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", *[1] * 10)
        cursor = topic.subscriptions["s"].cursor
        ledger_id = topic.managed_ledger.ledger_ids[0]
        cursor.acknowledge_positions([(ledger_id, n) for n in (1, 2, 4, 9)])
        # Of those that are left: 0, 3, 5, 6, 7, 8.
        assert await rest("POST", f"{P}/t/subscription/s/skip/0") == DONE
        assert backlog(topic) == 6
        assert await rest("POST", f"{P}/t/subscription/s/skip/2") == DONE
        assert backlog(topic) == 4
        assert cursor.acks.mark_delete == (ledger_id, 4)
        assert await rest("POST", f"{P}/t/subscription/s/skip/1") == DONE
        assert cursor.acks.mark_delete == (ledger_id, 5)
        assert await rest("POST", f"{P}/t/subscription/s/skip/99999999") == DONE
        assert backlog(topic) == 0
        assert await rest.reason("POST", f"{P}/t/subscription/x/skip/1") == (
            404,
            f"Subscription x not found for topic {NAME}/t",
        )

    run(tmp_path, scenario)


def test_what_is_skipped_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", *[1] * 10)
        await topic.managed_ledger.finish_tasks()
        assert await rest("POST", f"{P}/t/subscription/s/skip/3") == DONE
        assert not topic.managed_ledger.cursors["s"]._has_to_write
        killed = rest.broker.node.kill()
        async with killed as node:
            managed_ledger = await node.open(name="public/default/persistent/t")
            assert managed_ledger.cursors["s"].backlog == 7

    run(tmp_path, scenario)


def test_all_messages_are_skipped_in_every_partition(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topics.partitioned.create(TopicName.get(f"{NAME}/t"), 2)
        topics = [await filled(rest, f"t-partition-{n}", 1, 2, 3) for n in range(2)]
        assert await rest.reason("POST", f"{P}/t/subscription/s/skip/1") == (
            405,
            "Skip messages on a partitioned topic is not allowed",
        )
        assert await rest("POST", f"{P}/t-partition-0/subscription/s/skip/1") == DONE
        assert [backlog(each) for each in topics] == [2, 3]
        assert await rest("POST", f"{P}/t/subscription/s/skip_all") == DONE
        assert [backlog(each) for each in topics] == [0, 0]
        status, _ = await rest.reason("POST", f"{P}/t/subscription/x/skip_all")
        assert status == 404

    run(tmp_path, scenario)


def test_messages_expire_by_age_and_by_position(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 500, 400, 300, 200, 100)
        await subscription_of(topic, "o")
        assert await rest("POST", f"{P}/t/subscription/s/expireMessages/{2**31 - 1}") == DONE
        assert backlog(topic) == 5, "nothing is old enough, which is no error"
        assert await rest("POST", f"{P}/t/subscription/s/expireMessages/350") == DONE
        assert (backlog(topic), backlog(topic, "o")) == (3, 5)
        assert await rest("POST", f"{P}/t/all_subscription/expireMessages/250") == DONE
        assert (backlog(topic), backlog(topic, "o")) == (2, 2)
        ledger_id = topic.managed_ledger.ledger_ids[0]

        async def to(entry_id: int, **more: Any) -> Any:
            body = {"ledgerId": ledger_id, "entryId": entry_id, **more}
            return await rest("POST", f"{P}/t/subscription/s/expireMessages", json.dumps(body))

        assert await to(4, excluded=True) == DONE
        assert backlog(topic) == 1
        for entry_id in (3, 5):
            status, body = await to(entry_id)
            assert status == 409
            assert "Expire message by position not issued on topic" in str(body)
        assert await to(4) == DONE
        assert backlog(topic) == 0
        for body in ('{"ledgerId": "x"}', "[]", "null"):
            status, _ = await rest("POST", f"{P}/t/subscription/s/expireMessages", body)
            assert status == 400, body

    run(tmp_path, scenario)


def test_messages_do_not_expire_for_a_subscription_without_a_backlog(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 500, 400)
        await subscription_of(topic, "o")

        async def expire(whose: str, seconds: int) -> tuple[int, str]:
            return await rest.reason("POST", f"{P}/t/{whose}/expireMessages/{seconds}")

        assert await rest("POST", f"{P}/t/subscription/s/expireMessages/0") == DONE
        assert (backlog(topic), backlog(topic, "o")) == (0, 2), "0: whatever its age is"
        status, reason = await expire("subscription/s", 1)
        assert status == 409
        assert "not issued on topic persistent://public/default/t for subscription s " in reason
        # The others expire all the same.
        assert (await expire("all_subscription", 450))[0] == 409
        assert (backlog(topic), backlog(topic, "o")) == (0, 1)

    run(tmp_path, scenario)


def test_messages_expire_where_another_partition_has_no_backlog(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/p/partitions", "2") == DONE
        assert await rest("PUT", f"{P}/p/subscription/s") == DONE
        topic = await filled(rest, "p-partition-0", 500, 400)
        for whose in ("subscription/s", "all_subscription"):
            status, reason = await rest.reason("POST", f"{P}/p/{whose}/expireMessages/450")
            assert (status, "p-partition-1 for subscription s " in reason) == (409, True)
            assert backlog(topic) == 1

    run(tmp_path, scenario)


def test_what_is_before_a_position_expires_whether_there_is_an_entry_at_it_or_not(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", *[1] * 5)
        subscription = topic.subscriptions["s"]
        topic.managed_ledger.limits = topic.managed_ledger.limits.keeping(-1, -1)
        topic.managed_ledger.roll_over()
        await topic.managed_ledger.finish_tasks()
        await append(topic.managed_ledger, *[message(1)] * 5)
        one, two = topic.managed_ledger.ledger_ids

        async def to(ledger_id: int, entry_id: int, **more: Any) -> Any:
            body = {"ledgerId": ledger_id, "entryId": entry_id, **more}
            return await rest("POST", f"{P}/t/subscription/s/expireMessages", json.dumps(body))

        assert await to(one, 1) == DONE
        assert backlog(topic) == 8
        assert await to(one, 999) == DONE
        assert backlog(topic) == 5
        subscription.cursor.reset(topic.first_position())
        assert await to(two, 0, excluded=True) == DONE
        assert backlog(topic) == 5
        nothing_left = [(two, 0, True), (one, 4, False), (one, 999, False), (one - 1, 0, False)]
        for ledger_id, entry_id, excluded in (*nothing_left, (two, 5, False), (two + 9, 0, False)):
            status, _ = await to(ledger_id, entry_id, excluded=excluded)
            assert status == 409
        assert backlog(topic) == 5

    run(tmp_path, scenario)


def test_less_than_no_messages_and_less_than_no_age_are_refused(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 500, 400)
        for path, parameter in (
            ("subscription/s/skip/-5", "numMessages"),
            ("subscription/s/expireMessages/-1", "seconds"),
            ("all_subscription/expireMessages/-1", "seconds"),
        ):
            assert await rest.reason("POST", f"{P}/t/{path}") == (
                412,
                f"{parameter} must not be negative.",
            )
        assert backlog(topic) == 2

    run(tmp_path, scenario)


def test_a_topic_is_truncated_whatever_is_to_be_retained(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t")
        managed_ledger = topic.managed_ledger
        managed_ledger.limits = managed_ledger.limits.keeping(-1, -1)
        for _ in range(3):
            await append(managed_ledger, message(1))
            managed_ledger.roll_over()
            await managed_ledger.finish_tasks()
        await append(managed_ledger, message(1))
        assert len(managed_ledger.ledgers) == 4
        assert await rest("DELETE", f"{P}/t/truncate") == DONE
        assert len(managed_ledger.ledgers) == 1
        assert backlog(topic) == 0
        assert topic.entries == 1, "the open ledger stays"
        assert managed_ledger.limits.retention_s == -1
        assert await rest.reason("DELETE", f"{N}/t/truncate") == (412, "unsupport truncate")

    run(tmp_path, scenario)


def test_a_topic_is_trimmed_as_far_as_nothing_is_retained(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t")
        managed_ledger = topic.managed_ledger
        limits = managed_ledger.limits
        managed_ledger.limits = limits.keeping(-1, -1)
        for _ in range(3):
            await append(managed_ledger, message(1))
            managed_ledger.roll_over()
            await managed_ledger.finish_tasks()
        second = managed_ledger.ledger_ids[1]
        topic.subscriptions["s"].cursor.acknowledge_up_to((second, 0))
        assert await rest("POST", f"{P}/t/trim") == DONE
        assert len(managed_ledger.ledgers) == 4
        managed_ledger.limits = limits
        assert await rest("POST", f"{P}/t/trim") == DONE
        assert len(managed_ledger.ledgers) == 2
        assert backlog(topic) == 1
        assert await rest.reason("POST", f"{N}/t/trim") == (
            405,
            "Trim on a non-persistent topic is not allowed",
        )

    run(tmp_path, scenario)


@pytest.mark.parametrize(("method", "path"), [("DELETE", "truncate"), ("POST", "trim")])
def test_who_wants_space_back_is_told_when_nothing_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 1)
        managed_ledger, subscription = topic.managed_ledger, topic.subscriptions["s"]
        limits = managed_ledger.limits
        managed_ledger.limits = limits.keeping(-1, -1)
        managed_ledger.roll_over()
        await managed_ledger.finish_tasks()
        managed_ledger.unreadable.add("damaged")
        status, reason = await rest.reason(method, f"{P}/t/{path}")
        assert status == 500
        assert "is unknown: damaged" in reason
        assert subscription.backlog == 1, "then nothing is acknowledged for it either"
        managed_ledger.unreadable.clear()

        subscription.cursor.acknowledge_up_to(topic.last_confirmed)
        await subscription.persist()
        managed_ledger.limits = limits
        with monkeypatch.context() as patch:

            async def refused(*_: Any) -> Any:
                raise Unavailable("the disk is full")

            patch.setattr(managed_ledger.store, "put", refused)
            status, reason = await rest.reason(method, f"{P}/t/{path}")
            assert status == 503
            assert "reference" in reason
        assert len(managed_ledger.ledgers) == 2
        assert await rest(method, f"{P}/t/{path}") == DONE
        assert len(managed_ledger.ledgers) == 1

        managed_ledger.refuse_writes(JournalFailed("the journal has failed"))
        status, reason = await rest.reason(method, f"{P}/t/{path}")
        assert status == 500
        assert "the journal has failed" in reason

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "step"),
    [
        ("POST", "trim", "", "trim"),
        ("DELETE", "truncate", "", "truncate"),
        ("PUT", "properties", '{"a": "b"}', "change_properties"),
        ("DELETE", "properties?key=a", "", "change_properties"),
        ("POST", "messageTTL?messageTTL=1", "", "append_message"),
    ],
)
def test_who_wants_something_of_a_topic_that_is_closed_meanwhile_may_come_again(
    tmp_path: Path, method: str, path: str, body: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        await filled(rest, "t", 1, 1)
        take = getattr(PersistentTopic, step)

        async def late(self: PersistentTopic, *arguments: Any) -> Any:
            await rest.broker.topics.deletion.unload(self.name)
            return await take(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(PersistentTopic, step, late)
            status, reason = await rest.reason(method, f"{P}/t/{path}", body)
        assert status == 503
        assert "is closed; try again" in reason
        assert await rest(method, f"{P}/t/{path}", body) == DONE

    run(tmp_path, scenario)


def test_who_truncates_a_topic_that_is_being_terminated_may_come_again(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 1, 1)
        held = HeldAnswers(rest.broker.node.store, "put")
        ending = asyncio.ensure_future(topic.terminate())
        await held.asked.wait()
        status, reason = await rest.reason("DELETE", f"{P}/t/truncate")
        held.let_go()
        await ending
        assert status == 503
        assert "is terminated; try again" in reason
        assert await rest("DELETE", f"{P}/t/truncate") == DONE

    run(tmp_path, scenario)


def test_an_unloaded_topic_is_opened_again_by_its_clients(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        client = await rest.broker.client()
        topic = await filled(rest, "t", 1, 2)
        await client.produce(1, topic=f"{NAME}/t")
        assert await rest("PUT", f"{P}/t/unload") == DONE
        assert (await client.receive("close_producer")).producer_id == 1
        assert topic not in rest.broker.topics.registry
        assert await rest("PUT", f"{P}/t/unload") == DONE, "it need not be open"
        assert (await client.produce(1, topic=f"{NAME}/t")).producer_name
        again = await rest.broker.topic(f"{NAME}/t")
        assert again is not topic
        assert again.subscriptions["s"].backlog == 2
        fleeting = await rest.broker.topic("non-persistent://public/default/t")
        assert await rest("PUT", f"{N}/t/unload") == DONE
        assert fleeting not in rest.broker.topics.registry

    run(tmp_path, scenario)


def test_all_partitions_are_unloaded_and_truncated(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topics.partitioned.create(TopicName.get(f"{NAME}/t"), 2)
        topics = [await filled(rest, f"t-partition-{n}", 1) for n in range(2)]
        assert await rest("DELETE", f"{P}/t/truncate") == DONE
        assert [backlog(each) for each in topics] == [0, 0]
        assert await rest("PUT", f"{P}/t/unload") == DONE
        assert len(rest.broker.topics.registry) == 0

    run(tmp_path, scenario)


def test_who_comes_while_a_topic_is_unloaded_is_served(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await filled(rest, "t", 1)
        unloading = asyncio.ensure_future(rest("PUT", f"{P}/t/unload"))
        await until(lambda: topic.fenced)
        assert await unloading == DONE
        assert (await rest.broker.topic(f"{NAME}/t")).subscriptions["s"].backlog == 1

    run(tmp_path, scenario)


@EACH
def test_what_is_not_there_is_404(tmp_path: Path, method: str, path: str) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest.reason(method, f"{P}/none/{path}") == (
            404,
            f"Topic {NAME}/none not found",
        )
        elsewhere = P.replace("default", "none")
        assert await rest(method, f"{elsewhere}/t/{path}") == NO_NAMESPACE

    run(tmp_path, scenario)


def test_messages_of_a_non_persistent_topic_do_not_expire(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        for path, whose in (("subscription/s", ""), ("all_subscription", " for all subscriptions")):
            expire = f"{path}/expireMessages/1"
            assert (await rest("POST", f"{N}/not-there/{expire}"))[0] == 404
            assert await rest("PUT", f"{N}/t") in (DONE, (409, ANY))
            assert await rest.reason("POST", f"{N}/t/{expire}") == (
                405,
                f"Expire messages{whose} on a non-persistent topic is not allowed",
            )

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("DELETE", "truncate", "Truncate"),
        ("POST", "trim", "Trim"),
        ("POST", "subscription/s/skip/1", "Skip messages"),
        ("POST", "subscription/s/skip_all", "Skip messages"),
        ("POST", "subscription/s/expireMessages/1", "Expire messages"),
        ("POST", "subscription/s/expireMessages", "Expire messages"),
        ("POST", "all_subscription/expireMessages/1", "Expire messages"),
        ("POST", "terminate", "Termination"),
        ("POST", "terminate/partitions", "Termination"),
    ],
)
@pytest.mark.parametrize("partitions", [0, 2])
def test_the_policies_of_topics_are_not_to_be_truncated_or_ended(
    tmp_path: Path, method: str, path: str, operation: str, partitions: int
) -> None:
    async def scenario(rest: Rest) -> None:
        names = ["__change_events"]
        if partitions:
            assert await rest("PUT", f"{P}/__change_events/partitions", str(partitions)) == DONE
            names += [f"__change_events-partition-{index}" for index in range(partitions)]
        else:
            await filled(rest, "__change_events", 5, 5)
        body = '{"ledgerId": 0, "entryId": 1}' if path.endswith("expireMessages") else ""
        for name in names:
            assert await rest.reason(method, f"{P}/{name}/{path}", body) == (
                405,
                f"{operation} on a system topic is not allowed",
            )
        assert await rest("PUT", f"{P}/t") == DONE
        ttl = f"{P}/t/messageTTL"
        assert await rest("POST", f"{ttl}?messageTTL=7") == DONE
        assert await rest("GET", ttl) == (200, 7)

    run(tmp_path, scenario)

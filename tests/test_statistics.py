"""Statistics of topics: rates, times, what expired, and partitions together."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compacting import compact, single
from one_bookie import append
from one_broker import Broker, run
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.statistics import statistics, stats
from pyxbroker.broker.statistics.internal_stats import internal_stats
from pyxbroker.broker.statistics.partitioned_statistics import MergedStatistics
from pyxbroker.broker.statistics.statistics import StatisticsOptions, topic_statistics
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.ledger.metadata import LedgerMetadataStore
from steps import run_steps
from test_admin_topics import Rest


def together(partitions: list[dict[str, Any]]) -> dict[str, Any]:
    async def add_all() -> dict[str, Any]:
        together = MergedStatistics()
        for each in partitions:
            await together.add(each)
        return await together.end()

    return asyncio.run(add_all())


async def told(broker: Broker, **asked: bool) -> dict[str, Any]:
    topic = await broker.topic()
    return await topic_statistics(topic, StatisticsOptions(**asked), "host:8080", broker.node.store)


def test_rates_are_those_since_the_last_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    # The loop has its own clock.
    monkeypatch.setattr(statistics, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        topic = await broker.topic()
        run_steps(stats.note_rates(topic, clock[0]))
        await broker.publish(*(b"%d" % i for i in range(60)))
        await client.messages(60)
        clock[0] += 60
        found = await told(broker)
        subscription = found["subscriptions"]["s"]
        assert found["msgRateOut"] == subscription["msgRateOut"] == pytest.approx(1.0)
        assert found["msgThroughputOut"] == pytest.approx(found["bytesOutCounter"] / 60)
        clock[0] += 60
        run_steps(stats.note_rates(topic, clock[0]))
        assert (await told(broker))["msgRateOut"] == 0.0

    run(tmp_path, scenario)


def test_what_expired_is_counted_with_its_time(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        await broker.publish(b"one", b"two")
        topic = await broker.topic()
        topic.wall_clock = lambda: 4e9
        assert await expiry.expire(topic, 60) == 2
        found = (await told(broker))["subscriptions"]["s"]
        assert (found["totalMsgExpired"], found["msgExpired"], found["msgBacklog"]) == (2, 2, 0)
        assert found["lastExpireTimestamp"] == 4e12

    run(tmp_path, scenario)


def test_what_expires_has_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000.0]
    for module in (statistics, expiry):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        await broker.publish(b"one", b"two", b"three")
        topic = await broker.topic()
        topic.wall_clock = lambda: 4e9
        await expiry.expire(topic, 60)
        clock[0] += 60
        run_steps(stats.note_rates(topic, clock[0]))
        found = (await told(broker))["subscriptions"]["s"]
        assert found["msgRateExpired"] == pytest.approx(3 / 60)

    run(tmp_path, scenario)


def test_the_mark_that_moves_is_noted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        first, second = await broker.publish(b"one", b"two")
        await client.messages(2)
        found = (await told(broker))["subscriptions"]["s"]
        assert found["lastConsumedTimestamp"] >= found["consumers"][0]["firstMessagesSentTimestamp"]
        assert found["lastAckedTimestamp"] == found["lastMarkDeleteAdvancedTimestamp"] == 0
        await client.ack(second)
        found = (await told(broker))["subscriptions"]["s"]
        assert found["lastAckedTimestamp"] > 0
        await client.ack(first)
        found = (await told(broker))["subscriptions"]["s"]
        assert found["lastMarkDeleteAdvancedTimestamp"] == found["lastAckedTimestamp"]

    run(tmp_path, scenario)


def test_no_filter_is_told_to_have_seen_a_message(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        await broker.publish(b"one", b"two")
        await client.messages(2)
        found = (await told(broker))["subscriptions"]["s"]
        assert {name: count for name, count in found.items() if name.startswith("filter")} == {
            "filterProcessedMsgCount": 0,
            "filterAcceptedMsgCount": 0,
            "filterRejectedMsgCount": 0,
            "filterRescheduledMsgCount": 0,
        }

    run(tmp_path, scenario)


def one(messages: int, **more: Any) -> dict[str, Any]:
    return {
        **{"msgRateIn": 1.0, "msgThroughputIn": 10.0, "msgInCounter": messages},
        **{"backlogSize": 5, "ownerBroker": "a:1", "msgChunkPublished": False},
        **{"publishers": [], "subscriptions": {}},
        **more,
    }


def test_partitions_together_are_sums_and_the_last_times() -> None:
    consumer = {"consumerName": "c", "msgOutCounter": 1, "lastAckedTimestamp": 5, "address": "/a"}
    both = together(
        [
            one(
                3,
                topicCreationTimeStamp=7,
                lastPublishTimeStamp=8,
                subscriptions={"s": {"msgBacklog": 1, "consumers": [consumer]}},
            ),
            one(
                4,
                topicCreationTimeStamp=6,
                lastPublishTimeStamp=9,
                msgChunkPublished=True,
                subscriptions={
                    "s": {"msgBacklog": 2, "consumers": [{**consumer, "lastAckedTimestamp": 4}]},
                    "t": {"msgBacklog": 9, "consumers": []},
                },
            ),
        ]
    )
    assert (both["msgInCounter"], both["msgRateIn"], both["averageMsgSize"]) == (7, 2.0, 10.0)
    assert (both["topicCreationTimeStamp"], both["lastPublishTimeStamp"]) == (6, 9)
    assert both["msgChunkPublished"] is True
    assert "ownerBroker" not in both
    assert both["subscriptions"] == {
        "s": {
            "msgBacklog": 3,
            "consumers": [{"consumerName": "c", "msgOutCounter": 2, "lastAckedTimestamp": 5}],
        },
        "t": {"msgBacklog": 9, "consumers": []},
    }


def test_a_size_that_is_not_told_is_not_summed() -> None:
    assert together([one(1, backlogSize=-1), one(1, backlogSize=-1)])["backlogSize"] == -1


def test_publishers_of_partitions_are_one_by_name_where_clients_make_some() -> None:
    def publisher(name: str, partial: bool) -> dict[str, Any]:
        return {
            **{"producerName": name, "supportsPartialProducer": partial, "msgRateIn": 1.0},
            "producerId": 3,
        }

    parts = [one(1, publishers=[publisher(name, True) for name in names]) for names in ("ab", "b")]
    by_name = {each["producerName"]: each["msgRateIn"] for each in together(parts)["publishers"]}
    assert by_name == {"a": 1.0, "b": 2.0}
    parts = [one(1, publishers=[publisher(name, False) for name in names]) for names in ("ab", "b")]
    assert [each["msgRateIn"] for each in together(parts)["publishers"]] == [2.0, 1.0]
    # Where there are both, names tell them apart, whoever comes first.
    parts = [one(1, publishers=[publisher("a", partial)]) for partial in (False, True)]
    assert [each["msgRateIn"] for each in together(parts)["publishers"]] == [2.0]


def test_a_publisher_of_all_partitions_has_the_average_size_of_its_messages() -> None:
    publisher = {"producerName": "a", "supportsPartialProducer": True, "averageMsgSize": 1000.0}
    publisher |= {"msgRateIn": 2.0, "msgThroughputIn": 2000.0}
    [whole] = together([one(1, publishers=[publisher]) for _ in range(4)])["publishers"]
    assert whole["averageMsgSize"] == 1000.0
    still = publisher | {"msgRateIn": 0.0, "msgThroughputIn": 0.0, "averageMsgSize": 0.0}
    assert together([one(1, publishers=[still])])["publishers"][0]["averageMsgSize"] == 0.0


def test_partitions_are_what_they_were_when_they_are_added_up() -> None:
    parts = [one(1, subscriptions={"s": {"subscriptionProperties": {"a": "b"}}}) for _ in range(2)]
    before = json.dumps(parts)
    together(parts)
    assert json.dumps(parts) == before


def test_rest_tells_partitions_together_and_each(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        path = "/admin/v2/persistent/public/default/p"
        assert (await rest("PUT", f"{path}/partitions", "2"))[0] == 204
        for query, names in (
            ("?perPartition=false", set()),
            ("", {f"persistent://public/default/p-partition-{n}" for n in "01"}),
        ):
            status, found = await rest("GET", f"{path}/partitioned-stats{query}")
            assert (status, found["metadata"]) == (200, {"partitions": 2, "deleted": False})
            assert set(found["partitions"]) == names

    run(tmp_path, scenario)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_partitioned_statistics_have_all_fields_without_any_partition(
    domain: str, tmp_path: Path
) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        path = f"/admin/v2/{domain}/public/default/p"
        assert (await rest("PUT", f"{path}/partitions", "1"))[0] == 204
        _, before = await rest("GET", f"{path}/partitioned-stats")
        assert (await rest("DELETE", f"{path}-partition-0"))[0] == 204
        _, after = await rest("GET", f"{path}/partitioned-stats")
        assert set(after) == set(before)
        if domain == "persistent":
            # A non-persistent topic gets its first partition from this very request.
            assert set(after["partitions"]) == {"persistent://public/default/p"}
        for each in after["partitions"].values():
            assert {**each, "metadata": 0, "partitions": 0}.keys() >= set(before)
        _, brief = await rest("GET", f"{path}/partitioned-stats?perPartition=false")
        assert (set(brief), brief["partitions"]) == (set(before), {})

    run(tmp_path, scenario)


def test_a_partition_that_is_being_unloaded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        path = "/admin/v2/persistent/public/default/p"
        assert (await rest("PUT", f"{path}/partitions", "2"))[0] == 204
        name = TopicName.get("persistent://public/default/p-partition-0")
        managed_ledger = (await broker.topics.loader.get(name, create=False)).managed_ledger
        close, may_close = managed_ledger.close, asyncio.Event()

        async def close_late() -> None:
            await may_close.wait()
            await close()

        monkeypatch.setattr(managed_ledger, "close", close_late)
        unloading = asyncio.ensure_future(broker.topics.deletion.unload(name))
        await asyncio.sleep(0)
        for kind in ("partitioned-stats", "partitioned-internalStats"):
            status, found = await rest("GET", f"{path}/{kind}")
            assert (status, list(found["partitions"])) == (200, [str(name)[:-1] + "1"])
        may_close.set()
        await unloading

    run(tmp_path, scenario)


def test_what_is_deleted_while_internal_statistics_are_told_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        rest = Rest(broker)
        topic: Any = await broker.topic()
        await append(topic.managed_ledger, single("a", b"0"))
        await compact(topic)
        for number in range(3):
            await append(topic.managed_ledger, single("a", b"%d" % number))
            await broker.topics.deletion.unload(topic.name)
            topic = await broker.topic()
        await append(topic.managed_ledger, single("a", b"new"))
        schema = {"type": "STRING", "schema": "", "properties": {}}
        path = "/admin/v2/schemas/public/default/t/schema"
        assert (await rest("POST", path, json.dumps(schema).encode()))[0] == 200
        first, *_, last = topic.managed_ledger.ledgers
        read = LedgerMetadataStore._read

        async def meanwhile(self: Any, ledger_id: int, answer: Any) -> Any:
            found = await read(self, ledger_id, answer)
            if ledger_id == first:
                monkeypatch.setattr(LedgerMetadataStore, "_read", read)
                await compact(topic)
                await topic.trim()
            return found

        schemas = broker.topics.schemas
        index = schemas.index

        async def before_it_is_deleted(schema_id: str) -> Any:
            found = await index(schema_id)
            await schemas.delete_storage(schema_id)
            return found

        monkeypatch.setattr(LedgerMetadataStore, "_read", meanwhile)
        monkeypatch.setattr(schemas, "index", before_it_is_deleted)
        found = await internal_stats(topic, True, broker.node.store, schemas)
        assert [each["ledgerId"] for each in found["ledgers"]] == [first, last]
        assert found["compactedLedger"]["ledgerId"] == topic.compacted.ledger_id
        assert found["compactedLedger"]["size"] == topic.compacted.size > 0
        assert found["schemaLedgers"] == []

    run(tmp_path, scenario)

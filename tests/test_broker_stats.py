"""REST of broker-stats: what this broker serves, and what load that is."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.statistics import internal_stats, stats
from pyxbroker.stats import load as load_module
from pyxbroker.stats.load import Load, Usage
from pyxbroker.stats.process import ProcessStats
from test_admin_topics import Rest, run

S = "/admin/v2/broker-stats"
T = "/admin/v2/persistent/public/default/t"
STORED = "persistent://public/default/t"
PASSING = "non-persistent://public/default/n"
MIB = 1 << 20


async def served(rest: Rest) -> None:
    """A topic of each domain, with a consumer; the persistent one with three messages."""
    client = await rest.broker.client()
    await client.subscribe(1)
    await rest.broker.publish(b"one", b"two", b"three")
    await client.messages(3)
    await rest.broker.topic(PASSING)


async def answer(rest: Rest, path: str) -> Any:
    found = await rest.answer("GET", f"{S}/{path}")
    body = found.body
    text = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
    assert found.status == 200
    return json.loads(text)


def test_all_topics_are_told_by_bundle_and_domain(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await answer(rest, "topics") == {}
        await served(rest)
        found = await answer(rest, "topics")
        assert list(found) == ["public/default"]
        boundaries = await rest.broker.service.namespaces.bundles("public/default")
        told: dict[str, Any] = {}
        for bundle, domains in found["public/default"].items():
            assert int(bundle.split("_")[0], 16) in boundaries
            assert list(domains) == ["persistent", "non-persistent"]
            for domain, topics in domains.items():
                assert all(name.startswith(f"{domain}://") for name in topics)
                told |= topics
        assert set(told) == {STORED, PASSING}
        stored = told[STORED]
        assert (stored["msgOutCount"], stored["producerCount"]) == (3, 0)
        assert stored["storageSize"] == stored["backlogSize"] > 0
        subscription = stored["subscriptions"]["s"]
        assert subscription["msgBacklog"] == 3
        assert subscription["numberOfEntriesSinceFirstNotAckedMessage"] == 4
        [consumer] = subscription["consumers"]
        assert consumer["availablePermits"] >= 0 and "unackedMessages" not in consumer
        assert "storageSize" not in told[PASSING]

    run(tmp_path, scenario)


def test_a_topic_that_is_closed_while_the_answer_is_read_is_left_out(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await served(rest)
        names = [f"persistent://public/default/more-{number}" for number in range(3)]
        kept = {name: weakref.ref(await rest.broker.topic(name)) for name in names}
        found = await rest.answer("GET", f"{S}/topics")
        assert not isinstance(found.body, bytes)
        pieces = aiter(found.body)
        text = await anext(pieces)
        for name in names:
            assert (
                await rest.answer("DELETE", f"/admin/v2/{name.replace('://', '/')}")
            ).status == 204
        await asyncio.sleep(0)
        gc.collect()
        assert [name for name, topic in kept.items() if topic() is not None] == []
        text += b"".join([piece async for piece in pieces])
        told = [
            name
            for bundle in json.loads(text)["public/default"].values()
            for names in bundle.values()
            for name in names
        ]
        assert sorted(told) == sorted([STORED, PASSING])

    run(tmp_path, scenario)


def test_a_topic_whose_namespace_goes_is_not_told(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await served(rest)
        topic = await rest.broker.topic()
        store = rest.broker.node.store
        await store.delete("/admin/policies/public/default")
        assert topic in list(rest.broker.topics.registry)
        assert await answer(rest, "topics") == {}
        report = await answer(rest, "load-report")
        assert (report["numTopics"], report["bundles"]) == (0, [])

    run(tmp_path, scenario)


def test_the_load_report_sums_what_the_bundles_have(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await served(rest)
        report = await answer(rest, "load-report")
        assert report["loadReportType"] == "LocalBrokerData"
        assert report["webServiceUrl"] == "http://here:2"
        assert report["pulsarServiceUrl"] == "pulsar://here:1"
        assert (report["numTopics"], report["numConsumers"], report["numProducers"]) == (2, 1, 0)
        assert report["bundles"] == list(report["lastStats"])
        assert report["numBundles"] == len(report["bundles"]) > 0
        assert sum(each["topics"] for each in report["lastStats"].values()) == 2
        assert 0 < report["memory"]["usage"] < report["memory"]["limit"]
        assert 0 < report["startTimestamp"] < report["lastUpdate"]
        assert report["maxResourceUsage"] > 0

    run(tmp_path, scenario)


def test_the_metrics_of_a_namespace_are_those_of_its_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        await served(rest)
        found = await answer(rest, "metrics")
        by_dimensions = {json.dumps(each["dimensions"]): each["metrics"] for each in found}
        namespace = by_dimensions['{"namespace": "public/default"}']
        assert namespace["brk_no_of_subscriptions"] == namespace["brk_no_of_consumers"] == 1
        assert namespace["brk_msg_backlog"] == 3
        assert namespace["brk_storage_size"] > 0
        ledgers = by_dimensions['{"namespace": "public/default/persistent"}']
        assert ledgers["brk_ml_StoredMessagesSize"] == namespace["brk_storage_size"]
        assert by_dimensions["{}"] == {"brk_ml_count": 1}
        [health] = [each for each in found if each["dimensions"].get("metric") == "broker_health"]
        assert health["metrics"] == {"brk_health": 1}
        monkeypatch.setattr(rest.broker.service, "failure", lambda: "no space")
        found = await answer(rest, "metrics")
        [health] = [each for each in found if each["dimensions"].get("metric") == "broker_health"]
        assert health["metrics"] == {"brk_health": 0}

    run(tmp_path, scenario)


@pytest.mark.parametrize("path", ["metrics", "load-report"])
def test_others_have_their_turn_while_many_subscriptions_of_a_topic_are_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(stats, "SUBSCRIPTIONS_PER_STEP", 1)
    turns = 0

    async def scenario(rest: Rest) -> None:
        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        await served(rest)
        for number in range(100):
            created = await rest.answer("PUT", f"{T}/subscription/s-{number}")
            assert created.status == 204
        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", -1.0)
        await answer(rest, path)
        assert turns > 100

    run(tmp_path, scenario)


def test_what_waits_for_a_ledger_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rest: Rest) -> None:
        await served(rest)
        waits = (await answer(rest, "bookieops"))["public/default"]
        assert list(waits) == [STORED]
        assert len(waits[STORED]) == 8 and not any(waits[STORED].values())
        topic = await rest.broker.topics.loader.get(TopicName.get(STORED), create=False)
        monkeypatch.setattr(
            topic.managed_ledger,  # type: ignore[attr-defined]
            "state",
            internal_stats.State.CREATING_LEDGER,
        )
        waits = (await answer(rest, "bookieops"))["public/default"][STORED]
        monkeypatch.undo()
        assert [name for name, count in waits.items() if count] == ["dataLedgerCreateOp"]

    run(tmp_path, scenario)


def test_what_only_java_has_is_told_as_nothing_of_it(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await answer(rest, "mbeans") == []
        for name in ("default", "ml-cache"):
            found = await answer(rest, f"allocator-stats/{name}")
            assert found["directArenas"] == found["heapArenas"] == []
        wrong = (406, "Invalid allocator name : none")
        assert await rest.reason("GET", f"{S}/allocator-stats/none") == wrong
        status, _ = await rest("GET", f"{S}/broker-resource-availability/public/default")
        assert status == 409

    run(tmp_path, scenario)


# --- load -------------------------------------------------------------------------------------


def test_load_is_that_since_the_look_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module.os, "cpu_count", lambda: 4)
    (tmp_path / "net").mkdir()
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemTotal:  2048 kB\n")
    at = [1_010.0]
    cpu = [5.0]

    def interfaces(received: int, sent: int) -> None:
        lines = ["Inter-|", " face |", f"  lo: {'9 ' * 16}", f"eth0: {received} {'0 ' * 7}{sent} 0"]
        (tmp_path / "net" / "dev").write_text("\n".join(lines))

    def process() -> ProcessStats:
        return ProcessStats(0, MIB, 1_000.0, cpu[0], 0, 0)

    interfaces(1_000, 2_000)
    load = Load(lambda: at[0], process, tmp_path, tmp_path / "class")
    assert load.usage() == Usage(50.0, 400.0, 1.0, 2.0, 0.0, 0.0, 1_000.0)
    at[0], cpu[0] = 1_020.0, 15.0
    interfaces(11_000, 7_000)
    assert load.usage() == Usage(100.0, 400.0, 1.0, 2.0, 8.0, 4.0, 1_000.0)
    # Who asks at once is told the same.
    at[0], cpu[0] = 1_020.9, 20.0
    assert load.usage() == Usage(100.0, 400.0, 1.0, 2.0, 8.0, 4.0, 1_000.0)
    # Nothing was done, and an interface was taken away.
    at[0], cpu[0] = 1_021.0, 15.0
    interfaces(0, 0)
    assert load.usage() == Usage(0.0, 400.0, 1.0, 2.0, 0.0, 0.0, 1_000.0)


def test_the_limit_of_bandwidth_is_the_speed_of_the_interfaces(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    lines = ["Inter-|", " face |", *(f"{name}: {'0 ' * 16}" for name in ("lo", "a", "b", "c"))]
    (tmp_path / "net" / "dev").write_text("\n".join(lines))
    for name, speed in (("lo", "99"), ("a", "1000"), ("b", "-1")):
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / "speed").write_text(f"{speed}\n")

    def kbit_max(nic_gbit: float | None) -> float:
        process = ProcessStats(0, 0, 0.0, 0.0, 0, 0)
        places = (tmp_path, tmp_path / "class")
        found = Load(lambda: 1.0, lambda: process, *places, nic_gbit).usage()
        assert found is not None
        return found.kbit_max

    assert kbit_max(None) == 1_000_000
    assert kbit_max(2.5) == 3 * 2_500_000


def test_there_is_no_load_without_proc() -> None:
    assert Load(process=lambda: None).usage() is None

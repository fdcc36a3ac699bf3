"""REST of bundles; statuses, texts and hashes are Apache Pulsar 4.2.4's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyxbroker.admin.resources import bundles as bundles_resource
from pyxbroker.base.bundles import WHOLE, Bundle, boundaries_of, hash_of, parse
from pyxbroker.base.errors import ConcurrentModification, MetadataStoreError
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.cluster import splitting
from pyxbroker.metadata import paths
from test_admin_topics import DONE, Rest, run
from test_namespaces import FORCED, TOPICS, A, begin_with
from test_tenants import N

FIRST, SECOND, THIRD, LAST = (
    "0x00000000_0x40000000",
    "0x40000000_0x80000000",
    "0x80000000_0xc0000000",
    "0xc0000000_0xffffffff",
)
NAME = "persistent://a/x"


async def one_in_each(rest: Rest) -> dict[str, Topic]:
    """A topic in each bundle of a/x, with subscription s and two messages."""
    await begin_with(rest)
    found: dict[str, Topic] = {}
    for number in range(1_000):
        name = TopicName.get(f"{NAME}/t{number}")
        (text,) = (each for each in (FIRST, SECOND, THIRD, LAST) if name in parse(each))
        if text in found:
            continue
        assert await rest("PUT", f"{TOPICS}/{name.local_name}") == DONE
        topic = found[text] = await rest.broker.topic(str(name))
        await topic.subscription_for("s", topic.first_position(), {}, True, False)
        await rest.broker.publish_to(topic, b"a", b"b")
        if len(found) == 4:
            return found
    raise AssertionError("a thousand names have hashes in each quarter")


def test_hashes_are_pulsars() -> None:
    assert hash_of(TopicName.get("persistent://public/n1/t")) == 644819408
    assert hash_of(TopicName.get("persistent://public/n1/__change_events")) == 111915291


def test_each_hash_is_in_one_bundle() -> None:
    names = [TopicName.get(f"{NAME}/t{number}") for number in range(500)]
    parts = [parse(each) for each in (FIRST, SECOND, THIRD, LAST)]
    for name in names:
        assert sum(name in each for each in parts) == 1
        assert name in WHOLE
        at = hash_of(name)
        assert name in Bundle(at, at + 1) and name not in Bundle(at - 1, at)
        assert name in Bundle(at - 1, 0xFFFFFFFF)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bad",
        "0x0",
        "_",
        "0x0_0x0",
        "0x4_0x2",
        "0x0_0x1_0x2",
        "0x_0x1",
        "0x0_0x1ffffffff",
        "0_g",
    ],
)
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    "data", [{}, {"boundaries": []}, {"boundaries": ["x"]}, {"boundaries": ["0x0", "0x1"]}]
)
def test_what_are_no_bundles(data: dict[str, Any]) -> None:
    with pytest.raises(MetadataStoreError):
        boundaries_of(data)


@pytest.mark.parametrize(
    ("method", "operation"),
    [
        ("PUT", "/unload"),
        ("POST", "/clearBacklog"),
        ("POST", "/clearBacklog/s"),
        ("POST", "/unsubscribe/s"),
        ("GET", "/topicHashPositions"),
        ("PUT", "/split"),
        ("DELETE", ""),
    ],
)
def test_a_bundle_that_there_is_not(tmp_path: Path, method: str, operation: str) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        upper = "Invalid upper boundary for bundle a/x/{}. Expected upper boundary of a/x/" + FIRST
        for text, reason in (
            ("bad", "Invalid bundle range: bad"),
            ("0x40000000_0x00000000", "Invalid bundle range: 0x40000000_0x00000000"),
            ("0x00000000_0x50000000", upper.format("0x00000000_0x50000000")),
            ("0x00000000_0xffffffff", upper.format("0x00000000_0xffffffff")),
            (
                "0x10000000_0x40000000",
                "Cannot find bundle a/x/0x10000000_0x40000000 in the bundles list",
            ),
        ):
            assert await rest.reason(method, f"{A}/{text}{operation}") == (412, reason)
        missing = "Namespace does not exist" if method == "DELETE" else "Namespace not found"
        found = await rest.reason(method, f"{N}/a/none/{FIRST}{operation}")
        assert found == (404, missing)

    run(tmp_path, scenario)


def test_what_is_asked_for_a_bundle_is_done_in_it_alone(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topics = await one_in_each(rest)

        def backlogs() -> list[int]:
            return [
                each.subscriptions["s"].backlog if "s" in each.subscriptions else -1
                for each in topics.values()
            ]

        assert await rest("POST", f"{A}/{list(topics)[1]}/clearBacklog") == DONE
        assert backlogs() == [2, 0, 2, 2]
        assert await rest("POST", f"{A}/{list(topics)[2]}/clearBacklog/s") == DONE
        assert backlogs() == [2, 0, 0, 2]
        found = await rest.reason("POST", f"{A}/{list(topics)[2]}/clearBacklog/none")
        assert found[0] == 404
        assert await rest("POST", f"{A}/{list(topics)[3]}/unsubscribe/s") == DONE
        assert backlogs() == [2, 0, 0, -1]
        found = await rest.reason("POST", f"{A}/{FIRST}/unsubscribe/pulsar.repl.x")
        assert found == (412, "Cannot unsubscribe a replication cursor")
        assert await rest("PUT", f"{A}/{next(iter(topics))}/unload") == DONE
        assert [each.fenced for each in topics.values()] == [True, False, False, False]
        found = await rest.reason("PUT", f"{A}/{FIRST}/unload?destinationBroker=b")
        assert found == (
            409,
            "Not allowed unload namespace bundle to inactive destination broker",
        )

    run(tmp_path, scenario)


def test_a_subscription_that_somebody_consumes_from_stays(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topics = await one_in_each(rest)
        client = await rest.broker.client()
        await client.subscribe(topic=str(topics[FIRST].name))
        assert (await rest.reason("POST", f"{A}/{FIRST}/unsubscribe/s"))[0] == 412
        assert list(topics[FIRST].subscriptions) == ["s"]

    run(tmp_path, scenario)


def test_positions_of_topics(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topics = await one_in_each(rest)
        name = topics[SECOND].name
        at = f"{A}/{SECOND}/topicHashPositions"
        status, told = await rest("GET", at)
        assert (status, told["namespace"], told["bundle"]) == (200, "a/x", SECOND)
        positions = told["topicHashPositions"]
        assert positions[str(name)] == hash_of(name)
        assert all(0x40000000 <= each < 0x80000000 for each in positions.values())
        _, told = await rest("GET", f"{at}?topics={name}&topics={topics[FIRST].name}")
        assert told["topicHashPositions"] == {str(name): hash_of(name)}

    run(tmp_path, scenario)


def test_a_bundle_is_split(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topics = await one_in_each(rest)

        async def boundaries() -> list[str]:
            return (await rest("GET", f"{A}/bundles"))[1]["boundaries"]

        before = await boundaries()
        await rest.broker.node.store.put(
            paths.local_policies("a/x"), b'{"of_tomorrow":1,"bundles":{"boundaries":'
            + json.dumps(before).encode() + b',"numBundles":4}}',
        )  # fmt: skip
        assert await rest("PUT", f"{A}/{FIRST}/split") == DONE
        assert await boundaries() == sorted({*before, "0x20000000"})
        found = await rest.broker.node.store.get(paths.local_policies("a/x"))
        assert found is not None
        record = json.loads(found.value)
        assert (record["of_tomorrow"], record["bundles"]["numBundles"]) == (1, 5)
        assert (await rest("GET", A))[1]["bundles"] == record["bundles"]
        again = await rest.reason("PUT", f"{A}/{FIRST}/split")
        assert again[0] == 412 and "Expected upper boundary" in again[1]
        assert not topics[SECOND].fenced
        assert await rest("PUT", f"{A}/{SECOND}/split?unload=true") == DONE
        assert topics[SECOND].fenced
        # Where there is one topic at most, nothing is to be divided.
        now = await boundaries()
        query = "splitAlgorithmName=topic_count_equally_divide"
        assert await rest("PUT", f"{A}/{LAST}/split?{query}") == DONE
        assert await boundaries() == now
        for text, status, reason in (
            (f"{LAST}/split?splitAlgorithmName=none", 412, "Unsupported namespace bundle split"),
            ("HOT/split", 404, "Bundle range HOT not found"),
        ):
            answer = await rest.reason("PUT", f"{A}/{text}")
            assert answer[0] == status and reason in answer[1]
        for body in ("{}", '["1.5"]', "[true]", "[[1]]", json.dumps([1] * 5_000)):
            assert (await rest.reason("PUT", f"{A}/{LAST}/split", body))[0] == 400

    run(tmp_path, scenario)


def test_a_bundle_is_split_by_its_topics(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        for number in range(24):
            assert await rest("PUT", f"{TOPICS}/t{number}") == DONE

        async def now() -> list[int]:
            return boundaries_of((await rest("GET", f"{A}/bundles"))[1])

        names = await rest.broker.service.namespaces.topic_names("a/x", "persistent")
        parts = [parse(each) for each in (FIRST, SECOND, THIRD, LAST)]
        most = max(parts, key=lambda part: sum(name in part for name in names))
        query = "splitAlgorithmName=topic_count_equally_divide"
        assert await rest("PUT", f"{A}/LARGEST/split?{query}") == DONE
        (middle,) = set(await now()) - {0, *(each.upper for each in parts)}
        below, above = (
            sum(name in part for name in names)
            for part in (Bundle(most.lower, middle), Bundle(middle, most.upper))
        )
        assert abs(below - above) <= 1 and below + above > 1
        other = next(
            each for each in parts if each != most and sum(name in each for name in names) > 1
        )
        inside, outside = other.lower + 7, (other.upper + 7) % (1 << 32)
        query = "splitAlgorithmName=specified_positions_divide"
        target = f"{A}/{other}/split?{query}"
        assert await rest("PUT", target, json.dumps([outside, inside, inside, -1])) == DONE
        assert inside in await now() and outside not in await now()

    run(tmp_path, scenario)


def test_a_bundle_is_split_by_the_load_of_its_open_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "splitAlgorithmName=flow_or_qps_equally_divide"

    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        topics = [TopicName.get(f"{NAME}/t{number}") for number in range(40)]
        first = parse(FIRST)
        low, high = sorted(hash_of(each) for each in topics if each in first)[:2]
        for each in topics:
            assert await rest("PUT", f"{TOPICS}/{each.local_name}") == DONE
            await rest.broker.topic(str(each))
        assert await rest("PUT", f"{A}/{FIRST}/split?{query}") == DONE
        before = boundaries_of((await rest("GET", f"{A}/bundles"))[1])
        assert before == [0, 2**30, 2**31, 3 * 2**30, 2**32 - 1], "idle topics are not split"

        def read(topics: Iterable[Topic]) -> Iterator[object]:
            for each in topics:
                rate = 20_000.0 if hash_of(each.name) in (low, high) else 0.0
                yield SimpleNamespace(
                    name=str(each.name),
                    rate_in=rate,
                    rate_out=0.0,
                    throughput_in=0.0,
                    throughput_out=0.0,
                )

        monkeypatch.setattr(bundles_resource, "read_stats", read)
        assert await rest("PUT", f"{A}/{FIRST}/split?{query}") == DONE
        after = boundaries_of((await rest("GET", f"{A}/bundles"))[1])
        assert set(after) - set(before) == {low + (high - low) // 2 + 1}

    run(tmp_path, scenario)


def test_a_bundle_that_is_split_by_two_at_once_is_split_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        answers = await asyncio.gather(*(rest("PUT", f"{A}/{FIRST}/split") for _ in range(3)))
        assert [status for status, _ in answers].count(204) >= 1
        found = (await rest("GET", f"{A}/bundles"))[1]
        assert found["boundaries"][:3] == ["0x00000000", "0x20000000", "0x40000000"]
        assert found["numBundles"] == 5
        monkeypatch.setattr("pyxbroker.broker.namespaces.BUNDLES_MAX", 5)
        full = (412, "A namespace has at most 5 bundles.")
        assert await rest.reason("PUT", f"{A}/{LAST}/split") == full

    run(tmp_path, scenario)


def test_a_bundle_that_is_not_there_any_more_is_not_split(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        namespaces = rest.broker.service.namespaces
        before = await namespaces.bundles("a/x")
        gone = Bundle(before[0] + 1, before[1])
        with pytest.raises(ConcurrentModification):
            await namespaces.split_bundle("a/x", gone, [before[0] + 2])
        assert await namespaces.bundles("a/x") == before

    run(tmp_path, scenario)


def test_a_bundle_with_topics_is_deleted_by_force(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topics = await one_in_each(rest)
        name = topics[LAST].name
        answer = (409, "Cannot delete non empty bundle")
        assert await rest.reason("DELETE", f"{A}/{LAST}") == answer
        assert await rest("DELETE", f"{A}/{LAST}?force=true") == DONE
        assert not await rest.broker.topics.registry.exists(name)
        left = (await rest("GET", TOPICS))[1]
        assert sorted(left) == sorted(str(topics[each].name) for each in (FIRST, SECOND, THIRD))
        assert await rest("DELETE", f"{A}/{LAST}") == DONE
        # It is served on.
        assert await rest("PUT", f"{TOPICS}/{name.local_name}") == DONE

    run(tmp_path, scenario, **FORCED)


def test_force_has_to_be_allowed(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert (await rest.reason("DELETE", f"{A}/{FIRST}?force=true"))[0] == 405

    run(tmp_path, scenario)


def test_bundles_of_one_hash_are_not_split() -> None:
    assert splitting.halves(Bundle(5, 6)) == []
    assert splitting.halves(Bundle(4, 6)) == [5]

"""REST of topics: what is made, grown, listed, terminated and deleted, in Pulsar's words."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_broker import Broker
from pyxbroker.admin.app import Application
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources import topics as resource
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker import namespaces
from pyxbroker.cluster.initialize import local_policies
from pyxbroker.metadata import paths
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import State
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.web.request import Body
from pyxbroker.web.response import Response

P = "/admin/v2/persistent/public/default"
NP = "/admin/v2/non-persistent/public/default"
NAME = "persistent://public/default"
PARTITIONED = "application/vnd.partitioned-topic-metadata+json"
EXISTS = (409, {"reason": "This topic already exists"})
NO_NAMESPACE = (404, {"reason": "Namespace not found"})
DONE = (204, None)


class Rest:
    """Asks the resources of a broker, without a socket."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.app = Application(broker.service, lambda: broker.service)

    async def answer(
        self, method: str, target: str, body: bytes | str = b"", kind: str = "application/json"
    ) -> Response:
        data = body.encode() if isinstance(body, str) else body
        stream = Body(len(data), lambda: None)
        if data:
            stream.feed(data)
        stream.end()
        path, _, query = target.partition("?")
        headers = {"content-type": kind} if data else {}
        return await self.app.answer(Request(method, path, query, headers, stream))

    async def __call__(self, *asked: Any, **more: Any) -> tuple[int, Any]:
        """(status, the answer's JSON)."""
        answer = await self.answer(*asked, **more)
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body) if answer.body else None

    async def reason(self, *asked: str, **more: str) -> tuple[int, str]:
        status, answer = await self(*asked, **more)
        return status, answer["reason"]


def run(tmp_path: Path, scenario: Callable[[Rest], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            await scenario(Rest(broker))

    asyncio.run(main())


def test_partitioned_topics_are_made_and_told(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t/partitions", "3") == DONE
        assert await rest("PUT", f"{P}/t/partitions", "3") == EXISTS
        assert await rest("GET", f"{P}/t/partitions") == (200, {"partitions": 3, "deleted": False})
        plain = (200, {"partitions": 0, "deleted": False})
        assert await rest("GET", f"{P}/t-partition-2/partitions") == plain
        for name in ("t-partition-3", "none"):
            missing = (404, {"reason": f"Topic {NAME}/{name} not found"})
            assert await rest("GET", f"{P}/{name}/partitions") == missing
        assert await rest("GET", f"{P}/none/partitions?checkAllowAutoCreation=true") == plain
        assert not await rest.broker.topics.registry.exists(TopicName.get(f"{NAME}/none"))
        whole = json.dumps({"partitions": 1, "deleted": True, "properties": {"a": "b", "n": 1}})
        assert await rest("PUT", f"{P}/with/partitions", whole, PARTITIONED) == DONE
        assert await rest("GET", f"{P}/with/partitions") == (
            200,
            {"partitions": 1, "deleted": False, "properties": {"a": "b", "n": "1"}},
        )
        assert await rest("PUT", f"{NP}/t/partitions", "2") == DONE
        assert await rest("GET", f"{NP}/t/partitions") == (200, {"partitions": 2, "deleted": False})

    run(tmp_path, scenario)


@pytest.mark.parametrize("body", ['"2"', " 2 ", "2"])
def test_a_number_of_partitions_as_pulsar_reads_it(tmp_path: Path, body: str) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t/partitions", body, "text/plain") == DONE
        assert (await rest("GET", f"{P}/t/partitions"))[1]["partitions"] == 2

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "kind", "status", "reason"),
    [
        ("0", "application/json", 406, "Number of partitions should be more than 0"),
        ("-1", "application/json", 406, "Number of partitions should be more than 0"),
        ("null", "application/json", 406, "Number of partitions should be more than 0"),
        ("6", "application/json", 406, "Number of partitions should be less than or equal to 5"),
        ("", "application/json", 400, "The request entity cannot be empty."),
        ("true", "application/json", 400, "32 bits, not True"),
        ("99999999999", "application/json", 400, "32 bits, not 99999999999"),
        ('"99999999999999"', "application/json", 400, "whole number"),
        ('"two"', "application/json", 400, "32 bits, not 'two'"),
        ('"-"', "application/json", 400, "32 bits, not '-'"),
        ("[1]", "application/json", 400, "whole number"),
        ('{"partitions":1}', "application/json", 400, "whole number"),
        ("[" * 15_000, "application/json", 400, "not JSON"),
        ("x", "application/json", 400, "not JSON"),
        ("{}", PARTITIONED, 406, "more than 0"),
        ('{"partitions":1,"properties":3}', PARTITIONED, 400, "properties must be a JSON object"),
        ('{"partitions":1,"properties":{"a":[]}}', PARTITIONED, 400, "the value of 'a'"),
        ("2", "application/xml", 415, "it is 'application/xml'"),
        ("2" * 70_000, "application/json", 413, "longer than 65536 bytes"),
    ],
)
def test_no_number_of_partitions(
    tmp_path: Path, body: str, kind: str, status: int, reason: str
) -> None:
    async def scenario(rest: Rest) -> None:
        found = await rest.reason("PUT", f"{P}/t/partitions", body=body, kind=kind)
        assert found[0] == status and reason in found[1]
        assert await rest("GET", f"{P}/partitioned") == (200, [])

    run(tmp_path, scenario, maxNumPartitionsPerPartitionedTopic=5)


def test_names_that_cannot_be(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        suffix = (412, "Partitioned Topic Name should not contain '-partition-'")
        wrong = (412, "Topic name is not valid")
        for method in ("PUT", "POST", "DELETE"):
            body = "" if method == "DELETE" else "2"
            for name in ("t-partition-1", "t-partition-x"):
                assert await rest.reason(method, f"{P}/{name}/partitions", body) == suffix
            assert await rest.reason(method, f"{P}/a%2Fb/partitions", body) == wrong
        for method, path in (
            ("GET", f"{P}/a%2Fb/partitions"),
            ("PUT", f"{P}/a%2Fb"),
            ("DELETE", f"{P}/%20"),
            ("POST", f"{P}/a%2Fb/terminate"),
        ):
            assert await rest.reason(method, path) == wrong
        namespace = (412, "Namespace name is not valid")
        strange = "/admin/v2/persistent/public/de%20fault"
        assert await rest.reason("PUT", f"{strange}/t/partitions", "2") == namespace
        assert await rest.reason("PUT", f"{strange}/t") == namespace
        assert await rest.reason("GET", strange) == namespace
        assert await rest.reason("DELETE", f"{strange}/t") == wrong
        assert (await rest("PUT", "/admin/v2/durable/public/default/t"))[0] == 404

    run(tmp_path, scenario)


def test_a_namespace_that_is_not_there(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        nowhere = "/admin/v2/persistent/public/nowhere"
        for method, path, body in (
            ("PUT", "/t/partitions", "0"),
            ("GET", "/t/partitions", ""),
            ("PUT", "/t", ""),
            ("POST", "/t/terminate", ""),
            ("POST", "/t/terminate/partitions", ""),
        ):
            assert await rest(method, nowhere + path, body) == NO_NAMESPACE
        for path in (nowhere, nowhere + "/partitioned"):
            assert await rest.reason("GET", path) == (404, "Namespace does not exist")
        topic = "persistent://public/nowhere/t"
        assert await rest.reason("POST", f"{nowhere}/t/partitions", "2") == (
            409,
            f"Topic {topic} is not the partitioned topic.",
        )
        assert await rest.reason("DELETE", f"{nowhere}/t") == (404, f"Topic {topic} not found")

    run(tmp_path, scenario)


def test_partitions_only_grow(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest("PUT", f"{P}/t/partitions", "2")
        assert await rest("POST", f"{P}/t/partitions?force=true", "4") == DONE
        assert await rest("POST", f"{P}/t/partitions?updateLocalTopicOnly=true", "4") == DONE
        for count in ("3", "0", "-1", "null"):
            number = 0 if count == "null" else int(count)
            assert await rest.reason("POST", f"{P}/t/partitions", count) == (
                422,
                f"Desired partitions {number} can't be less than the current partitions 4.",
            )
        assert await rest.reason("POST", f"{P}/t/partitions", "6") == (
            422,
            "Desired partitions 6 can't be greater than the maximum partitions per topic 5.",
        )
        assert (await rest("POST", f"{P}/t/partitions"))[0] == 400
        await rest("PUT", f"{P}/plain")
        for name in ("plain", "none"):
            assert await rest.reason("POST", f"{P}/{name}/partitions", "2") == (
                409,
                f"Topic {NAME}/{name} is not the partitioned topic.",
            )
        assert (await rest("GET", f"{P}/t/partitions"))[1]["partitions"] == 4
        _, names = await rest("GET", P)
        assert names == [f"{NAME}/plain", *(f"{NAME}/t-partition-{n}" for n in range(4))]

    run(tmp_path, scenario, maxNumPartitionsPerPartitionedTopic=5)


def test_plain_topics_are_made(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        assert await rest("PUT", f"{P}/t") == EXISTS
        assert await rest("PUT", f"{P}/t/partitions", "2") == EXISTS
        assert await rest("PUT", f"{NP}/t") == DONE
        assert await rest("PUT", f"{NP}/t") == EXISTS
        assert await rest("PUT", f"{P}/p", '{"k":"v","n":1,"b":true}') == DONE
        topic = await rest.broker.topic(f"{NAME}/p")
        await topic.close()
        again = await rest.broker.topic(f"{NAME}/p")
        assert again is not topic
        assert again.managed_ledger.properties == {"k": "v", "n": "1", "b": "true"}
        for body in ("3", "[]", '{"k":{}}', "nonsense"):
            assert (await rest("PUT", f"{P}/wrong", body))[0] == 400
        assert (await rest("PUT", f"{P}/wrong", "{}", "text/plain"))[0] == 415
        assert (await rest("PUT", f"{P}/wrong", " " * (1 << 20) + "{}"))[0] == 413
        _, names = await rest("GET", P)
        assert f"{NAME}/wrong" not in names

    run(tmp_path, scenario, allowAutoTopicCreation=False)


def test_single_partitions_are_made_and_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest.reason("PUT", f"{P}/t-partition-0") == (
            412,
            'Can\'t create topic t-partition-0 with "-partition-" followed by numeric value if'
            " there isn't a partitioned topic t created.",
        )
        await rest("PUT", f"{P}/t/partitions", "2")
        assert await rest("PUT", f"{P}/t") == EXISTS
        assert await rest("PUT", f"{P}/t-partition-1") == EXISTS
        assert await rest("DELETE", f"{P}/t-partition-1") == DONE
        assert await rest.reason("POST", f"{P}/t-partition-1/terminate") == (
            404,
            "Topic partitions were not yet created",
        )
        assert await rest("PUT", f"{P}/t-partition-1") == DONE
        assert await rest.reason("PUT", f"{P}/t-partition-2") == (
            412,
            'Can\'t create topic t-partition-2 with "-partition-" followed by a number smaller'
            " than number of partition of partitioned topic t",
        )

    run(tmp_path, scenario)


def test_lists(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("GET", P) == (200, [])
        assert await rest("GET", P + "/partitioned") == (200, [])
        for path in (f"{P}/__change_events/partitions", f"{P}/b/partitions", f"{NP}/n/partitions"):
            await rest("PUT", path, "1")
        for path in (f"{P}/partitioned", f"{P}/a%20%C3%A9", f"{NP}/open"):
            assert await rest("PUT", path) == DONE
        assert await rest("GET", P) == (
            200,
            [f"{NAME}/a é", f"{NAME}/b-partition-0", f"{NAME}/partitioned"],
        )
        _, names = await rest("GET", f"{P}?includeSystemTopic=true")
        assert f"{NAME}/__change_events-partition-0" in names and len(names) == 4
        assert await rest("GET", f"{P}/partitioned") == (200, [f"{NAME}/b"])
        _, names = await rest("GET", f"{P}/partitioned?includeSystemTopic=true")
        assert names == [f"{NAME}/__change_events", f"{NAME}/b"]
        assert await rest("GET", NP) == (200, [f"non-{NAME}/open"])
        assert await rest("GET", f"{NP}/partitioned") == (200, [f"non-{NAME}/n"])

    run(tmp_path, scenario)


def test_others_have_their_turn_while_a_long_list_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "SLICE", 2)
    monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", -1.0)  # a name is a slice
    turns: list[int] = []
    threads: set[int] = set()
    now = 0
    topic_of_node, encode = namespaces.topic_of_node, resource.to_json

    def noted(*node: str) -> TopicName | None:
        turns.append(now)
        return topic_of_node(*node)

    def noted_encode(value: object) -> bytes:
        threads.add(threading.get_ident())
        return encode(value)

    async def count() -> None:
        nonlocal now
        while True:
            await asyncio.sleep(0)
            now += 1

    async def scenario(rest: Rest) -> None:
        locals_ = [f"{letter} é" for letter in "badcfe"]
        for local in locals_:
            await rest.broker.topic(f"{NAME}/{local}")
            path = paths.partitioned_topic("public/default", local)
            await rest.broker.node.store.put(path, b'{"partitions":1}')
        monkeypatch.setattr(namespaces, "topic_of_node", noted)
        counting = asyncio.ensure_future(count())
        for path in (P, f"{P}/partitioned"):
            turns.clear()
            threads.clear()
            with monkeypatch.context() as patch:
                patch.setattr(resource, "to_json", noted_encode)
                listed = await rest("GET", path)
            assert listed == (200, sorted(f"{NAME}/{local}" for local in locals_))
            assert len(turns) == len(locals_)
            assert len(set(turns)) == len(locals_)
            # Long texts are written aside.
            assert threads and threading.get_ident() not in threads
        counting.cancel()

    run(tmp_path, scenario)


def test_a_hash_at_the_boundary_belongs_to_the_upper_bundle() -> None:
    name = TopicName.get(f"{NAME}/t")
    at = zlib.crc32(str(name).encode())

    async def listed(*hashes: int) -> bytes:
        return (await resource.list_response([name], True, hashes)).body

    async def main() -> None:
        assert await listed(0, at) == b"[]"
        assert await listed(at, at + 1) == json.dumps([str(name)]).encode()

    asyncio.run(main())


def test_non_persistent_topics_of_a_bundle_are_listed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        store = rest.broker.node.store
        local = json.dumps(local_policies(4)).encode()
        await store.put(paths.local_policies("public/default"), local)
        names = [f"non-persistent://public/default/t{n}" for n in range(40)]
        for name in names:
            await rest.broker.topic(name)
        monkeypatch.setattr(resource, "SLICE", 4)
        looked: list[list[TopicName]] = []
        parts = resource._parts

        async def noted(items: list[TopicName]) -> AsyncIterator[list[TopicName]]:
            async for some in parts(items):
                looked.append(some)
                yield some

        monkeypatch.setattr(resource, "_parts", noted)
        # It is asked outside of the slices for none.
        monkeypatch.setattr(Bundle, "__contains__", None)
        last = "0xc0000000"
        found = []
        for low, high in itertools.pairwise(("0x00000000", "0x40000000", "0x80000000", last)):
            looked.clear()
            status, some = await rest("GET", f"{NP}/{low}_{high}")
            assert (status, len(looked)) == (200, 10)
            assert all(int(low, 16) <= zlib.crc32(name.encode()) < int(high, 16) for name in some)
            found += some
        status, some = await rest("GET", f"{NP}/{last}_0xffffffff")
        assert sorted(found + some) == sorted(names)

    run(tmp_path, scenario)


def test_a_list_of_one_bundle(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        store = rest.broker.node.store
        local = json.dumps(local_policies(4)).encode()
        await store.put(paths.local_policies("public/default"), local)
        names = [f"{NAME}/t{number}" for number in range(20)]
        for name in names:
            await rest.broker.topic(name)
        found = []
        for low, high in (("0", "4"), ("4", "8"), ("8", "c"), ("c", "f")):
            last = "0xffffffff" if high == "f" else f"0x{high}0000000"
            _, some = await rest("GET", f"{P}?bundle=0x{low}0000000_{last}")
            assert all(zlib.crc32(name.encode()) >> 28 >= int(low, 16) for name in some)
            assert all(zlib.crc32(name.encode()) <= int(last, 16) for name in some)
            found += some
        assert sorted(found) == sorted(names)
        for bundle in ("nonsense", "0x00000000_0x80000000"):
            assert await rest("GET", f"{P}?bundle={bundle}") == (200, [])

    run(tmp_path, scenario)


def test_a_topic_in_use_is_deleted_by_force_only(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        client = await rest.broker.client()
        await client.produce()
        await client.subscribe()
        assert await rest.reason("DELETE", f"{P}/t") == (
            412,
            "Topic has 2 clients connected Including 1 consumers, 1 producers, and 0 replicators.",
        )
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=1000))
        await client.receive("success")
        assert await rest.reason("DELETE", f"{P}/t") == (
            412,
            "Topic has 1 client connected Including 0 consumers, 1 producers, and 0 replicators.",
        )
        for no in ("maybe", "1", ""):
            assert (await rest("DELETE", f"{P}/t?force={no}"))[0] == 412, "only true is true"
        assert await rest("DELETE", f"{P}/t?force=true") == DONE
        await client.receive("close_producer")
        assert await rest("GET", P) == (200, [])
        for force in ("false", "true"):
            assert await rest.reason("DELETE", f"{P}/t?force={force}") == (
                404,
                f"Topic {NAME}/t not found",
            )

    run(tmp_path, scenario)


def test_a_topic_that_nobody_is_connected_to_is_deleted_with_its_subscriptions(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.publish(b"one")
        client = await rest.broker.client()
        await client.subscribe()
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=1000))
        await client.receive("success")
        await (await rest.broker.topic()).close()
        assert await rest("DELETE", f"{P}/t") == DONE
        assert await rest("GET", P) == (200, [])

    run(tmp_path, scenario)


def test_two_who_delete_a_topic_at_once(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.publish(b"one")
        answers = await asyncio.gather(*(rest("DELETE", f"{P}/t?force=true") for _ in range(3)))
        statuses = sorted(status for status, _ in answers)
        assert statuses[0] == 204 and {*statuses[1:]} <= {204, 404, 503}
        assert await rest("GET", P) == (200, [])
        assert await rest("PUT", f"{P}/t") == DONE

    run(tmp_path, scenario)


def test_partitioned_topics_are_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest("PUT", f"{P}/t/partitions", "2")
        await rest("PUT", f"{P}/plain")
        for query in ("", "?force=true"):
            assert await rest.reason("DELETE", f"{P}/t{query}") == (
                409,
                f"{NAME}/t is a partitioned topic, instead of calling delete topic, please call"
                " delete-partitioned-topic.",
            )
            assert await rest.reason("DELETE", f"{P}/plain/partitions{query}") == (
                409,
                f"{NAME}/plain is a non-partitioned topic. Instead of calling"
                " delete-partitioned-topic please call delete.",
            )
            assert await rest.reason("DELETE", f"{P}/none/partitions{query}") == (
                404,
                f"Topic {NAME}/none not found.",
            )
        client = await rest.broker.client()
        await client.produce(topic=f"{NAME}/t-partition-1")
        assert (await rest("DELETE", f"{P}/t/partitions"))[0] == 412
        assert (await rest("GET", f"{P}/t/partitions"))[1] == {"partitions": 2, "deleted": False}
        assert await rest("DELETE", f"{P}/t/partitions?force=true") == DONE
        await client.receive("close_producer")
        assert await rest("GET", P) == (200, [f"{NAME}/plain"])
        assert (await rest("GET", f"{P}/t/partitions"))[0] == 404

    run(tmp_path, scenario)


def test_non_persistent_topics_are_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        client = await rest.broker.client()
        await client.produce(topic=f"non-{NAME}/t")
        await client.subscribe(topic=f"non-{NAME}/t")
        reason = (412, "Topic has 2 connected producers/consumers")
        assert await rest.reason("DELETE", f"{NP}/t") == reason
        assert await rest("DELETE", f"{NP}/t?force=true") == DONE
        assert await rest("DELETE", f"{NP}/t") == DONE, "one that is not there is gone, too"
        assert await rest("GET", NP) == (200, [])

    run(tmp_path, scenario)


def test_termination(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        missing = (404, {"reason": f"Topic {NAME}/t not found"})
        assert await rest("POST", f"{P}/t/terminate") == missing
        client = await rest.broker.client()
        await client.produce()
        _, (ledger_id, entry_id) = await rest.broker.publish(b"one", b"two")
        last = {
            "ledgerId": ledger_id,
            "entryId": entry_id,
            "partitionIndex": -1,
            "batchIndex": -1,
            "batchSize": 0,
        }
        assert await rest("POST", f"{P}/t/terminate") == (200, last)
        assert await rest("POST", f"{P}/t/terminate", "{}") == (200, last)
        await client.receive("close_producer")
        assert (await client.produce()).error == pb.TopicTerminatedError
        await rest("PUT", f"{P}/empty")
        assert (await rest("POST", f"{P}/empty/terminate"))[1]["entryId"] == -1
        await rest("PUT", f"{NP}/t")
        assert await rest.reason("POST", f"{NP}/t/terminate") == (
            406,
            "Need to provide a persistent topic name",
        )

    run(tmp_path, scenario)


def test_termination_of_partitions(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest("PUT", f"{P}/t/partitions", "2")
        await rest("PUT", f"{P}/plain")
        assert await rest.reason("POST", f"{P}/t/terminate") == (
            405,
            "Termination of a partitioned topic is not allowed",
        )
        for name in ("plain", "none"):
            assert await rest.reason("POST", f"{P}/{name}/terminate/partitions") == (
                405,
                "Termination of a non-partitioned topic is not allowed using"
                " partitioned-terminate, please use terminate commands",
            )
        status, first = await rest("POST", f"{P}/t-partition-0/terminate")
        assert status == 200
        status, every = await rest("POST", f"{P}/t/terminate/partitions")
        assert (status, sorted(every), every["0"]) == (200, ["0", "1"], first)
        client = await rest.broker.client()
        answer = await client.produce(topic=f"{NAME}/t-partition-1")
        assert answer.error == pb.TopicTerminatedError
        await rest("PUT", f"{NP}/n/partitions", "2")
        assert await rest.reason("POST", f"{NP}/n/terminate/partitions") == (
            405,
            "Termination of a non-persistent topic is not allowed",
        )

    run(tmp_path, scenario)


def test_what_the_storage_refuses_is_told(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.publish(b"one")
        topic = await rest.broker.topic()
        topic.managed_ledger.state = State.FAILED
        assert await rest.reason("POST", f"{P}/t/terminate") == (
            500,
            f"Topic {NAME}/t was not terminated: public/default/persistent/t is failed",
        )
        assert await rest("DELETE", f"{P}/t") == DONE, "whoever opens it again finds it well"
        await rest.broker.publish(b"one")
        topic = await rest.broker.topic()

        async def refuse() -> None:
            raise ManagedLedgerError("it is fenced")

        topic.delete = refuse  # type: ignore[method-assign]
        assert await rest.reason("DELETE", f"{P}/t") == (
            500,
            f"Topic {NAME}/t was not deleted: it is fenced",
        )

    run(tmp_path, scenario)

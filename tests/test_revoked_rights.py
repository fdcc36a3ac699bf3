"""Who loses the right to what it has open is sent away; others notice nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import settings, token

from one_broker import TOPIC, Broker, Client, run
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.permissions import Permissions
from pyxbroker.broker import revoked_rights
from pyxbroker.broker.grant_records import GrantRecords
from pyxbroker.broker.revoked_rights import NOTHING, granted_by, revoked_by
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from test_logins import connect, let_in
from web_client import until

OTHER = "persistent://public/default/other"
ON: dict[str, Any] = settings(authorizationEnabled=True, superUserRoles="root", proxyRoles="proxy")
BOTH = ["produce", "consume"]
PATH = paths.namespace_policies("public/default")


async def put(broker: Broker, path: str, record: Any) -> None:
    await broker.node.store.put(path, json.dumps(record).encode())


async def grant(broker: Broker, roles: Any = None, topics: Any = None, **more: Any) -> None:
    """What the namespace's record says from now on."""
    grants = {"namespace_auth": roles or {}, "destination_auth": topics or {}}
    mode = more.pop("mode", None)
    record = {"auth_policies": grants | more} | ({"subscription_auth_mode": mode} if mode else {})
    await put(broker, PATH, record)


def serve(directory: Path, scenario: Callable[[Broker], Awaitable[None]], **more: Any) -> None:
    async def with_rights(broker: Broker) -> None:
        broker.service.authentication = Authentication(broker.config)
        await put(broker, paths.tenant("public"), {"adminRoles": ["admin"]})
        await scenario(broker)

    run(directory, with_rights, **{**ON, **more})


async def producing(broker: Broker, role: str, topic: str = TOPIC, **more: Any) -> Client:
    client = await let_in(broker, connect(token(role), **more))
    await client.request(
        pb.CommandProducer(topic=topic, producer_id=1, request_id=1), "producer_success"
    )
    return client


async def consuming(
    broker: Broker, role: str, topic: str = TOPIC, subscription: str = "s"
) -> Client:
    client = await let_in(broker, connect(token(role)))
    await client.request(
        pb.CommandSubscribe(
            topic=topic, subscription=subscription, subType=1, consumer_id=1, request_id=1
        ),
        "success",
    )
    return client


async def settled(broker: Broker) -> None:
    """Until what was changed last has been looked at."""
    revoked = broker.service.revoked_rights
    assert revoked is not None
    await asyncio.sleep(0.02)
    await until(lambda: not revoked._waiting and (not revoked._running or revoked._running.done()))


def test_who_loses_the_right_on_a_namespace_is_sent_away_and_is_told_why(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH, "you": BOTH})
        producer, consumer = await producing(broker, "me"), await consuming(broker, "me")
        yours, root = await producing(broker, "you"), await consuming(broker, "root")
        await grant(broker, {"me": ["consume"], "you": BOTH})
        assert (await producer.receive("close_producer")).producer_id == 1
        await settled(broker)
        assert consumer.connection.consumers and yours.connection.producers
        await grant(broker, {"you": BOTH})
        assert (await consumer.receive("close_consumer")).consumer_id == 1
        await settled(broker)
        assert root.connection.consumers and yours.connection.producers
        # It comes back, and is told.
        again = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=2)
        error = await producer.request(again, "error")
        assert (error.error, error.message) == (
            pb.AuthorizationError,
            "Client is not authorized to Produce",
        )
        topic = await broker.topic()
        assert [each.connection for each in topic.producers.values()] == [yours.connection]

    serve(tmp_path, scenario)


def test_who_loses_the_right_on_a_topic_keeps_it_on_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, topics={TOPIC: {"me": BOTH}, OTHER: {"me": BOTH}})
        here, there = await producing(broker, "me"), await consuming(broker, "me", OTHER)
        await grant(broker, topics={OTHER: {"me": BOTH}})
        await here.receive("close_producer")
        await settled(broker)
        assert there.connection.consumers
        # What the namespace still grants is enough.
        await grant(broker, {"me": BOTH}, {OTHER: {"me": BOTH}})
        here = await producing(broker, "me")
        await grant(broker, {"me": BOTH})
        await settled(broker)
        assert there.connection.consumers and here.connection.producers

    serve(tmp_path, scenario)


def test_a_partition_goes_by_what_its_topic_grants(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, topics={TOPIC: {"me": BOTH}})
        await put(broker, paths.partitioned_topic("public/default", "t"), {"partitions": 2})
        client = await producing(broker, "me", TOPIC + "-partition-1")
        await grant(broker)
        await client.receive("close_producer")

    serve(tmp_path, scenario)


def test_a_subscription_that_is_for_others_from_now_on(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        roles = {"me": BOTH, "you": BOTH}
        await grant(broker, roles)
        mine, yours = await consuming(broker, "me"), await consuming(broker, "you")
        elsewhere = await consuming(broker, "me", TOPIC, "s2")
        await grant(broker, roles, subscription_auth_roles={"s": ["you"]})
        await mine.receive("close_consumer")
        await settled(broker)
        assert yours.connection.consumers and elsewhere.connection.consumers
        await grant(broker, roles, mode="Prefix")
        await yours.receive("close_consumer")
        await elsewhere.receive("close_consumer")

    serve(tmp_path, scenario)


def test_who_is_no_administrator_any_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        admin, me = await producing(broker, "admin"), await producing(broker, "me")
        await put(broker, paths.tenant("public"), {"adminRoles": ["other"]})
        await admin.receive("close_producer")
        await settled(broker)
        assert me.connection.producers

    serve(tmp_path, scenario)


def test_a_role_that_is_no_superuser_any_more_is_sent_away(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        root, mine = await producing(broker, "root"), await producing(broker, "me")
        reading = await consuming(broker, "root", OTHER)
        settings = broker.service.dynamic_settings
        await settings.open()
        await settings.set("superUserRoles", "root,boss")
        await settled(broker)
        assert root.connection.producers and reading.connection.consumers
        boss = await producing(broker, "boss")
        await settings.set("superUserRoles", "boss")
        assert (await root.receive("close_producer")).producer_id == 1
        assert (await reading.receive("close_consumer")).consumer_id == 1
        await settled(broker)
        assert mine.connection.producers and boss.connection.producers
        await settings.close()

    serve(tmp_path, scenario)


def test_of_a_proxy_and_who_is_behind_it_both_need_the_right(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH, "proxy": BOTH})
        client = await producing(broker, "proxy", original_principal="me")
        await grant(broker, {"proxy": BOTH})
        await client.receive("close_producer")

    serve(tmp_path, scenario)


def test_a_producer_that_waits_for_its_turn_is_told_that_it_will_not_have_it(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH, "you": BOTH})
        await producing(broker, "you")
        client = await let_in(broker, connect(token("me")))
        wanted = pb.CommandProducer(
            topic=TOPIC, producer_id=1, request_id=1, producer_access_mode=2
        )
        assert not (await client.request(wanted, "producer_success")).producer_ready
        await grant(broker, {"you": BOTH})
        error = await client.receive("error")
        assert (error.request_id, error.error) == (1, pb.AuthorizationError)
        assert not client.connection.session.waiting_producers

    serve(tmp_path, scenario)


def test_a_producer_whose_turn_has_come_is_not_let_in_when_it_loses_its_right_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH, "you": BOTH})
        client, next_one = [await let_in(broker, connect(token(role))) for role in ("me", "you")]
        holder = await producing(broker, "you")
        wanted = pb.CommandProducer(
            topic=TOPIC, producer_id=1, request_id=1, producer_access_mode=2
        )
        for each in (client, next_one):
            assert not (await each.request(wanted, "producer_success")).producer_ready
        topic = await broker.topic()
        store_epoch, beginning, go_on = topic.store_epoch, asyncio.Event(), asyncio.Event()

        async def slow(epoch: int) -> None:
            beginning.set()
            await go_on.wait()
            await store_epoch(epoch)

        monkeypatch.setattr(topic, "store_epoch", slow)
        holder.send(pb.CommandCloseProducer(producer_id=1, request_id=9))
        await holder.receive("success")
        await beginning.wait()
        await grant(broker, {"you": BOTH})
        await settled(broker)
        go_on.set()
        error = await client.receive("error")
        assert (error.request_id, error.error) == (1, pb.AuthorizationError)
        assert (await next_one.receive("producer_success")).producer_ready
        await client.quiet()
        assert not client.connection.producers
        assert not client.connection.session.waiting_producers
        assert [each.connection for each in topic.producers.values()] == [next_one.connection]

    serve(tmp_path, scenario)


def test_a_watcher_is_not_told_of_topics_any_more_that_it_may_not_list(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        client = await let_in(broker, connect(token("me")))
        watch = pb.CommandWatchTopicList(
            namespace="public/default", topics_pattern="public/default/.*", watcher_id=1,
            request_id=1,
        )  # fmt: skip
        await client.request(watch, "watchTopicListSuccess")
        await grant(broker, topics={TOPIC: {"me": BOTH}})
        await settled(broker)
        assert not client.connection.session.watchers
        await broker.topic(OTHER)
        await client.quiet()

    serve(tmp_path, scenario)


def test_what_is_opened_while_its_right_is_taken_away_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        client = await let_in(broker, connect(token("me")))
        check = Permissions.check

        async def slow_check(self: Permissions, *about: Any) -> None:
            await check(self, *about)
            monkeypatch.setattr(Permissions, "check", check)
            await grant(broker)
            await settled(broker)

        monkeypatch.setattr(Permissions, "check", slow_check)
        wanted = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
        await client.request(wanted, "producer_success")
        await client.receive("close_producer")

    serve(tmp_path, scenario)


def test_a_right_that_is_granted_used_and_revoked_before_one_comparison_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"you": BOTH})
        yours = await producing(broker, "you")
        refresh, may_refresh = GrantRecords.refresh, asyncio.Event()

        async def slow_refresh(self: GrantRecords, name: str) -> Any:
            await may_refresh.wait()
            return await refresh(self, name)

        monkeypatch.setattr(GrantRecords, "refresh", slow_refresh)
        await grant(broker, {"me": BOTH, "you": BOTH})
        await asyncio.sleep(0.01)
        mine = await producing(broker, "me")
        await grant(broker, {"you": BOTH})
        may_refresh.set()
        await mine.receive("close_producer")
        await settled(broker)
        assert yours.connection.producers

    serve(tmp_path, scenario)


def test_a_defect_met_at_one_topic_costs_no_other_one_and_it_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revoked_rights, "RETRY_S", 0.05)

    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        clients = [await producing(broker, "me", each) for each in (TOPIC, OTHER)]
        look, defects = revoked_rights.RevokedRights._check_topic, 2

        async def broken(self: Any, topic: Any, judge: Any) -> None:
            nonlocal defects
            if str(topic.name) == TOPIC and defects:
                defects -= 1
                raise ZeroDivisionError
            await look(self, topic, judge)

        monkeypatch.setattr(revoked_rights.RevokedRights, "_check_topic", broken)
        await grant(broker)
        await clients[1].receive("close_producer")
        assert clients[0].connection.producers
        await clients[0].receive("close_producer")
        assert not defects

    serve(tmp_path, scenario)


def test_a_record_that_cannot_be_read_keeps_nobody_from_being_sent_away_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is in its own namespace stays until it can be read."""
    monkeypatch.setattr(revoked_rights, "RETRY_S", 0.05)
    elsewhere = paths.namespace_policies("public/elsewhere")

    async def scenario(broker: Broker) -> None:
        for each in (PATH, elsewhere):
            await put(broker, each, {})
        stays = await producing(broker, "admin", "persistent://public/elsewhere/t")
        goes = [await producing(broker, "admin", each) for each in (TOPIC, OTHER)]
        watcher = await let_in(broker, connect(token("admin")))
        for number, namespace in enumerate(("public/elsewhere", "public/default")):
            watch = pb.CommandWatchTopicList(
                namespace=namespace, topics_pattern=f"{namespace}/.*", watcher_id=number,
                request_id=number,
            )  # fmt: skip
            await watcher.request(watch, "watchTopicListSuccess")
        await broker.node.store.put(elsewhere, b"[1")
        await put(broker, paths.tenant("public"), {"adminRoles": ["other"]})
        for each in goes:
            await each.receive("close_producer")
        await until(lambda: set(watcher.connection.session.watchers) == {0})
        assert stays.connection.producers
        await put(broker, elsewhere, {})
        await stays.receive("close_producer")
        await until(lambda: not watcher.connection.session.watchers)

    serve(tmp_path, scenario)


def test_nothing_is_gone_through_for_grants_and_other_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        client = await producing(broker, "me")
        asked: list[Any] = []
        check = Permissions.check

        async def noted(self: Permissions, *about: Any) -> None:
            asked.append(about)
            await check(self, *about)

        monkeypatch.setattr(Permissions, "check", noted)
        await grant(broker, {"me": BOTH, "you": BOTH}, {OTHER: {"you": BOTH}})
        await settled(broker)
        auth = {"namespace_auth": {"me": BOTH, "you": BOTH}}
        await put(broker, PATH, {"auth_policies": auth, "message_ttl_in_seconds": 5})
        await settled(broker)
        await put(broker, paths.namespace_policies("public/elsewhere"), {"auth_policies": {}})
        await settled(broker)
        assert client.connection.producers
        assert asked == []

    serve(tmp_path, scenario)


def test_thousands_of_producers_are_sent_away_in_slices(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        client = await producing(broker, "me")
        for number in range(2, 1000):
            await client.request(
                pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=number),
                "producer_success",
            )
        left = [len(client.connection.producers)]  # in each turn

        async def watch() -> None:
            while left[-1]:
                await asyncio.sleep(0)
                left.append(len(client.connection.producers))

        watching = asyncio.ensure_future(watch())
        await grant(broker)
        await until(lambda: not client.connection.producers)
        await watching
        assert max(before - after for before, after in itertools.pairwise(left)) < left[0] / 2

    serve(tmp_path, scenario)


def test_what_is_lost() -> None:
    def record(**grants: Any) -> Any:
        return {"auth_policies": grants}

    def lost(before: Any, after: Any) -> set[Any]:
        return set(revoked_by(granted_by(before), granted_by(after))) - {None}

    assert lost({}, {}) == set()
    one, two = record(namespace_auth={"a": ["produce"]}), record(namespace_auth={"a": BOTH})
    assert lost(one, two) == set()
    assert lost(two, one) == {("*", "a", "consume")}
    topic = record(destination_auth={TOPIC: {"a": ["produce"]}})
    assert lost(topic, one) == {(TOPIC, "a", "produce")}
    restricted = record(subscription_auth_roles={"s": ["a"]})
    assert len(lost({}, restricted)) == len(lost(restricted, {})) == 1
    assert len(lost({}, {"subscription_auth_mode": "Prefix"})) == 1
    assert lost({"adminRoles": ["a", "b"]}, {"adminRoles": ["b"]}) == {("adminRoles", "a")}
    for damaged in (
        {"auth_policies": 5},
        record(namespace_auth=[1]),
        record(destination_auth={1: 2}),
    ):
        assert lost(two, damaged) == {("*", "a", "consume"), ("*", "a", "produce")}
    assert ("*", "a", "consume") in set(revoked_by(granted_by(two), NOTHING))


def test_where_many_grants_are_compared_none_is_listed_that_stays_and_each_step_is_short() -> None:
    def grants(count: int) -> Any:
        return {f"persistent://public/default/{number}": {"me": BOTH} for number in range(count)}

    def compared(count: int) -> list[Any]:
        before = granted_by({"auth_policies": {"destination_auth": grants(count)}})
        record = {"auth_policies": {"destination_auth": grants(count) | {TOPIC: {"me": BOTH}}}}
        assert [each for each in revoked_by(before, granted_by(record)) if each] == []
        record["auth_policies"]["destination_auth"].popitem()
        record["auth_policies"]["destination_auth"].popitem()
        return list(revoked_by(before, granted_by(record)))

    steps = compared(1_000)
    assert sum(each is not None for each in steps) == 2
    # One for each topic and one for each role there; what stays is compared as a whole.
    assert 2_000 <= len(steps) < 2_010


def test_a_right_that_is_lost_while_a_longer_list_is_compared_closes_who_used_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record after another takes something away, the next one before the first is compared."""
    monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", 0)
    others = {f"role-{number}": BOTH for number in range(2_000)}

    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH, "you": BOTH} | others)
        mine, yours = await producing(broker, "me"), await producing(broker, "you")
        await grant(broker, {"you": BOTH} | others)
        await asyncio.sleep(0.001)
        await grant(broker, others)
        await mine.receive("close_producer")
        await yours.receive("close_producer")

    serve(tmp_path, scenario)


def test_a_comparison_that_fails_lets_nobody_keep_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revoked_rights, "RETRY_S", 0.05)

    async def scenario(broker: Broker) -> None:
        await grant(broker, {"me": BOTH})
        client = await producing(broker, "me")

        def fail(before: Any, after: Any) -> Any:
            raise RecursionError

        monkeypatch.setattr(revoked_rights, "revoked_by", fail)
        await grant(broker)
        await client.receive("close_producer")

    serve(tmp_path, scenario)

"""REST of subscriptions: they are deleted, and made by who looks, in Pulsar's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from one_bookie import turns
from pyxbroker.base.limits import SUBSCRIPTION_BYTES_MAX
from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb
from test_admin_topics import DONE, NAME, NO_NAMESPACE, P, Rest, run


def test_a_subscription_is_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        broker = rest.broker
        client = await broker.client()
        await client.subscribe(1, topic=f"{NAME}/t", subscription="a/b")
        node = paths.cursor("public/default/persistent/t", "a/b")
        assert await rest.reason("DELETE", f"{P}/t/subscription/a%2Fb") == (
            412,
            "Subscription has active connected consumers",
        )
        assert await broker.node.store.exists(node)
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=999))
        await turns()
        assert await rest("DELETE", f"{P}/t/subscription/a%2Fb") == DONE
        assert not await broker.node.store.exists(node)
        assert await rest.reason("DELETE", f"{P}/t/subscription/a%2Fb") == (
            404,
            f"Subscription a/b not found for topic {NAME}/t",
        )

    run(tmp_path, scenario)


def test_an_entry_is_peeked_at(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        client = await rest.broker.client()
        await client.subscribe(1, topic=f"{NAME}/t", subscription="s")
        await rest.broker.publish(b"first", b"second")
        answer = await rest.answer("GET", f"{P}/t/subscription/s/position/2")
        assert (answer.status, answer.body) == (200, b"second")
        assert (await rest("GET", f"{P}/t/subscription/s/position/3"))[0] == 404

    run(tmp_path, scenario)


def test_who_looks_for_a_subscription_makes_none_of_too_long_a_name(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        topic = await rest.broker.topic(f"{NAME}/t")
        longest = "s" * SUBSCRIPTION_BYTES_MAX
        status, reason = await rest.reason("GET", f"{P}/t/subscription/{longest}s/position/1")
        assert (status, "subscription name" in reason, "1024" in reason) == (412, True, True)
        assert list(topic.subscriptions) == []
        missing = (404, "Message not found")
        assert await rest.reason("GET", f"{P}/t/subscription/{longest}/position/1") == missing
        assert list(topic.subscriptions) == [longest]

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "subscription/s/position/{}"),
        ("POST", "subscription/s/skip/{}"),
        ("POST", "subscription/s/expireMessages/{}"),
        ("POST", "subscription/s/resetcursor/{}"),
        ("GET", "ledger/{}/entry/0"),
        ("GET", "ledger/0/entry/{}"),
        ("GET", "messageid/{}"),
    ],
)
def test_there_is_nothing_at_a_number_of_more_than_64_bits(
    tmp_path: Path, method: str, path: str
) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic(f"{NAME}/t")
        wrong = f"{P}/t/{path}".format(2**63)
        assert await rest.reason(method, wrong) == (404, f"There is no resource {wrong}.")

    run(tmp_path, scenario)


def test_with_force_consumers_are_sent_away(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        client = await rest.broker.client()
        await client.subscribe(1, topic=f"{NAME}/t")
        assert await rest("DELETE", f"{P}/t/subscription/s?force=true") == DONE
        assert (await client.receive("close_consumer")).consumer_id == 1
        assert (await rest.broker.topic(f"{NAME}/t")).subscriptions == {}
        # They come back as consumers of a new one.
        assert not hasattr(await client.subscribe(1, topic=f"{NAME}/t"), "error")

    run(tmp_path, scenario)


def test_one_of_a_partitioned_topic_is_deleted_from_all_partitions_that_have_it(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        broker = rest.broker
        await broker.topics.partitioned.create(TopicName.get(f"{NAME}/t"), 3)
        for index in (0, 2):
            topic = await broker.topic(f"{NAME}/t-partition-{index}")
            start = topic.managed_ledger.first_position()
            await topic.subscription_for("s", start, {}, True)
        assert await rest("DELETE", f"{P}/t/subscription/s") == DONE
        for index in range(3):
            assert not (await broker.topic(f"{NAME}/t-partition-{index}")).subscriptions
        gone = await rest.reason("DELETE", f"{P}/t/subscription/s")
        assert gone == (404, "Subscription not found")

    run(tmp_path, scenario)


def test_what_is_not_there_is_not_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        missing = (404, f"Topic {NAME}/t not found")
        assert await rest.reason("DELETE", f"{P}/t/subscription/s") == missing
        nowhere = "/admin/v2/persistent/public/nowhere/t/subscription/s"
        assert await rest("DELETE", nowhere) == NO_NAMESPACE
        assert not await rest.broker.topics.registry.exists(TopicName.get(f"{NAME}/t"))

    run(tmp_path, scenario)

"""REST of subscriptions: they are deleted, in Pulsar's words."""

from __future__ import annotations

from pathlib import Path

from one_bookie import turns
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
        status, reason = await rest.reason("DELETE", f"{P}/t/subscription/s")
        assert (status, "Subscription s not found" in reason) == (404, True)

    run(tmp_path, scenario)


def test_what_is_not_there_is_not_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        missing = (404, f"Topic {NAME}/t not found")
        assert await rest.reason("DELETE", f"{P}/t/subscription/s") == missing
        nowhere = "/admin/v2/persistent/public/nowhere/t/subscription/s"
        assert await rest("DELETE", nowhere) == NO_NAMESPACE
        assert not await rest.broker.topics.exists(TopicName.get(f"{NAME}/t"))

    run(tmp_path, scenario)

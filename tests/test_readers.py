"""Many readers of one topic: none of them costs the others anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counted_names import Name
from one_broker import Broker, run
from pyxbroker.base.errors import NotAllowed
from pyxbroker.broker.topics.topic import SubscribeRequest, Topic

NON_PERSISTENT = "non-persistent://public/default/t"


@pytest.mark.parametrize("kind", ["persistent", "non-persistent"])
def test_a_reader_is_found_by_its_name_among_many_without_looking_at_them(
    tmp_path: Path, kind: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic(f"{kind}://public/default/t")
        for n in range(200):
            await topic.subscribe(SubscribeRequest(f"r{n}", durable=False))
        again = await topic.subscribe(SubscribeRequest("r7", durable=False))
        Name.compared = 0
        assert await topic.subscribe(SubscribeRequest(Name("r7"), durable=False)) is again
        assert Name.compared < 5
        assert len(topic.all_subscriptions()) == 200
        topic.drop_unused_reader(again)
        assert len(topic.all_subscriptions()) == 199
        # Its successor is another one, which it does not take along when it is dropped once more.
        await topic.subscribe(SubscribeRequest("r7", durable=False))
        topic.drop_unused_reader(again)
        assert len(topic.all_subscriptions()) == 200

    run(tmp_path, scenario)


def test_a_name_is_that_of_a_reader_or_that_of_a_subscription(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await topic.subscribe(SubscribeRequest("reader", durable=False))
        await topic.subscribe(SubscribeRequest("durable"))
        with pytest.raises(NotAllowed, match=r"^NonDurable subscription with the same name"):
            await topic.subscribe(SubscribeRequest("reader"))
        with pytest.raises(NotAllowed, match=r"^Durable subscription with the same name"):
            await topic.subscribe(SubscribeRequest("durable", durable=False))

    run(tmp_path, scenario)


def test_handing_out_a_run_makes_no_list_of_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(topic=NON_PERSISTENT)
        for n in range(3):
            await client.subscribe(n, topic=NON_PERSISTENT, subscription=f"s{n}")
        made: list[Topic] = []

        def all_subscriptions(topic: Topic) -> list[Any]:
            made.append(topic)
            return []

        monkeypatch.setattr(Topic, "all_subscriptions", all_subscriptions)
        client.publish(0, b"x")
        assert sorted(each.consumer_id for each in await client.messages(3)) == [0, 1, 2]
        monkeypatch.undo()
        assert made == []

    run(tmp_path, scenario)

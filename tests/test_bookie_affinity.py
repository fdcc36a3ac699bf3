"""The bookie affinity group of a namespace, which its topics' ledgers get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from one_broker import Broker
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.ledger.metadata import LedgerMetadataStore
from pyxbroker.ledger.placement import ANY_GROUP, Affinity, FixedPlacement, affinity_of
from pyxbroker.metadata import paths

GROUP = {"bookkeeperAffinityGroupPrimary": "g1", "bookkeeperAffinityGroupSecondary": "g2"}
SYSTEM_TOPIC = "persistent://public/default/__change_events"


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixedPlacement, "has_groups", True)


def run(directory: Path, scenario: Callable[[Broker], Awaitable[None]], strict: bool) -> None:
    async def main() -> None:
        async with Broker(directory, strictBookieAffinityEnabled=strict) as broker:
            await scenario(broker)

    asyncio.run(main())


async def set_group(broker: Broker, group: object) -> None:
    """Store the record of this cluster as Pulsar's REST does."""
    path = paths.local_policies("public/default")
    await broker.node.store.put(path, json.dumps({"bookieAffinityGroup": group}).encode())


async def affinity(broker: Broker, name: str) -> Affinity | None:
    """Return the affinity of a new topic's first ledger."""
    topic = await broker.topic(name)
    assert isinstance(topic, PersistentTopic)
    ledger_id = topic.managed_ledger.ledger_ids[-1]
    found = await LedgerMetadataStore(broker.node.store).read(ledger_id)
    return affinity_of(found.metadata.custom_metadata)


def test_topics_opened_after_a_change_have_the_group_of_their_namespace(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = "persistent://public/default/t"
        assert await affinity(broker, topic + "1") is None
        await set_group(broker, GROUP)
        assert await affinity(broker, topic + "2") == Affinity("g1", "g2")
        await set_group(broker, {"bookkeeperAffinityGroupPrimary": "g3"})
        assert await affinity(broker, topic + "3") == Affinity("g3")
        await set_group(broker, None)
        assert await affinity(broker, topic + "4") is None

    run(tmp_path, scenario, strict=False)


def test_strict_affinity_keeps_other_topics_out_of_all_groups(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        assert await affinity(broker, "persistent://public/default/t") == Affinity()
        assert await affinity(broker, SYSTEM_TOPIC) == ANY_GROUP
        await set_group(broker, GROUP)
        assert await affinity(broker, "persistent://public/default/u") == Affinity("g1", "g2")

    run(tmp_path, scenario, strict=True)


def test_a_broker_with_fixed_bookies_stores_no_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixedPlacement, "has_groups", False)

    async def scenario(broker: Broker) -> None:
        await set_group(broker, GROUP)
        assert await affinity(broker, "persistent://public/default/t") is None

    run(tmp_path, scenario, strict=True)

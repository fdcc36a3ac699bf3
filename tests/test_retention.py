"""Retention: what every subscription has acknowledged is kept as the namespace's policy says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from one_broker import TOPIC, Broker, run
from pyxbroker.metadata import paths
from pyxbroker.policies.resolver import Record, resolve
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.table import of_broker
from pyxbroker.policies.values import Policies
from pyxbroker.settings.config import Config
from served import turns

FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


async def set_retention(broker: Broker, policies: dict[str, int] | None) -> None:
    value = json.dumps({"retention_policies": policies}).encode()
    await broker.node.store.put(paths.namespace_policies("public/default"), value)


async def ledgers_left(broker: Broker) -> int:
    """Of four closed ones, after a look at their age."""
    topic = await broker.topic()
    await broker.topics.policies.of_topic(topic.name)
    await turns()
    await broker.topics.upkeep.check_ages()
    await topic.managed_ledger.finish_tasks()
    return len(topic.managed_ledger.ledgers) - 1


async def fill(broker: Broker) -> None:
    topic = await broker.topic()
    for number in range(4):
        await broker.publish(b"%d" % number)
        topic.managed_ledger.roll_over()
        await topic.managed_ledger.finish_tasks()


def test_the_policy_of_the_namespace_counts_and_may_change(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await set_retention(broker, FOR_EVER)
        await fill(broker)
        assert await ledgers_left(broker) == 4
        await broker.node.store.put(paths.namespace_policies("public/default"), b"[")
        assert await ledgers_left(broker) == 4, "nobody knows what is to be kept"
        await set_retention(broker, NOTHING)
        assert await ledgers_left(broker) == 0

    run(tmp_path, scenario)


def test_a_namespace_may_keep_less_than_the_setting(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await fill(broker)
        assert await ledgers_left(broker) == 4
        await set_retention(broker, NOTHING)
        assert await ledgers_left(broker) == 0
        await broker.topic("non-" + TOPIC)
        await broker.topics.upkeep.check_ages()

    run(tmp_path, scenario, defaultRetentionTimeInMinutes=-1, defaultRetentionSizeInMB=-1)


@pytest.mark.parametrize(
    ("record", "seconds", "size_is"),
    [
        (None, 300.0, 7 << 20),
        ({"retentionTimeInMinutes": 2, "retentionSizeInMB": 3}, 120.0, 3 << 20),
        ({"retentionTimeInMinutes": 2}, 120.0, 0),
    ],
)
def test_where_a_policy_is_silent(
    record: dict[str, int] | None, seconds: float, size_is: int
) -> None:
    found = policies(record, Config(defaultRetentionTimeInMinutes=5, defaultRetentionSizeInMB=7))
    assert found.retention == (seconds, size_is)


def test_without_limits_retention_is_negative() -> None:
    time_s, bytes_max = policies(FOR_EVER, Config()).retention
    assert time_s < 0 and bytes_max < 0


def policies(retention: dict[str, int] | None, config: Config) -> Policies:
    """What a namespace and the settings say together."""
    broker = of_broker(config)
    record = Record(Level.NAMESPACE, "a/b", {"retention_policies": retention})
    return resolve([record], broker, broker, "standalone")[0]

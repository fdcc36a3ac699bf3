"""Policies of what is published, kept and delivered, as official clients see them.

Each is set at every level that has it, seen, removed and seen no more (BROKER=apache asks Pulsar).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from harness.brokers import Broker

from compat_tests import test_policy_limits
from compat_tests.conftest import ClientFactory
from compat_tests.policy_cases import case_of, quota, until
from compat_tests.policy_scenes import (
    COUNT,
    RATE,
    SCENE_SETTINGS,
    Effect,
    Scene,
    cannot_publish,
    has_lost_the_first,
    keeps_what_is_acknowledged,
    looked_at,
    not_,
    publishes_slowly,
    receives_slowly,
    refuses_a_message,
    stops_at,
    stops_at_holes,
    together,
    waits,
    with_messages,
    with_old_messages,
)
from compat_tests.test_rest_answers import DONE
from pyxbroker.policies.table import TABLE

pytestmark = pytest.mark.slow

BROKER_SETTINGS = SCENE_SETTINGS


def dispatch(messages: int) -> dict[str, Any]:
    return {"dispatchThrottlingRateInMsg": messages, "dispatchThrottlingRateInByte": -1}


def delays(active: bool = True, tick_ms: int = 1, max_ms: int = 0) -> dict[str, Any]:
    return {"active": active, "tickTime": tick_ms, "maxDeliveryDelayInMillis": max_ms}


# The same whoever the client is.
OF_THE_BROKER = (
    Effect(
        "publish_rate",
        {"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": -1},
        publishes_slowly,
    ),
    Effect("dispatch_rate", dispatch(RATE), receives_slowly(), with_messages(COUNT)),
    Effect("subscription_dispatch_rate", dispatch(RATE), receives_slowly(), with_messages(COUNT)),
    Effect("dispatch_rates_of", dispatch(RATE), receives_slowly("s1"), with_messages(COUNT)),
    Effect("unacked_per_consumer_max", 5, stops_at(5), with_messages(COUNT)),
    Effect("unacked_per_subscription_max", 5, stops_at(5), with_messages(COUNT)),
    Effect("pause_on_ack_state", None, stops_at_holes, with_messages(COUNT)),
    Effect(
        "persistence",
        {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        },
        cannot_publish,
    ),
)
EFFECTS = (
    Effect("message_ttl_s", 1, has_lost_the_first, with_old_messages, is_final=True),
    Effect(
        "backlog_size",
        quota("consumer_backlog_eviction", size=1000),
        has_lost_the_first,
        with_old_messages,
        is_final=True,
    ),
    Effect(
        "backlog_age",
        quota("consumer_backlog_eviction", seconds=1),
        has_lost_the_first,
        with_old_messages,
        is_final=True,
    ),
    Effect("message_bytes_max", 100, refuses_a_message(200)),
    Effect(
        "delay_max_ms",
        delays(max_ms=1000),
        refuses_a_message(deliver_after=timedelta(seconds=60)),
    ),
    Effect("delayed_delivery", delays(active=False), not_(waits(60))),
    Effect("delay_tick_ms", delays(tick_ms=60_000), not_(waits(30))),
    Effect(
        "retention",
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
        keeps_what_is_acknowledged,
    ),
    *(each._replace(clients=("python",)) for each in OF_THE_BROKER),
)


@pytest.fixture(scope="module")
def outcomes(broker: Broker) -> Iterator[dict[str, Future[None]]]:
    with looked_at(broker, EFFECTS) as found:
        yield found


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.name)
def test_what_clients_see_of_messages(outcomes: dict[str, Future[None]], effect: Effect) -> None:
    outcomes[effect.name].result()


@pytest.mark.parametrize("new_client", ["python"], indirect=True)
def test_a_topic_that_nobody_uses_is_deleted_as_its_policy_says(
    broker: Broker, new_client: ClientFactory
) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }

    def at(level: str) -> None:
        scene = Scene(broker, new_client, "inactive_topics", level)

        def is_there() -> bool:
            return scene.topic in json.loads(broker.request("GET", scene.topics)[1])

        scene.publish(1)
        assert scene.policy.set(policy) == DONE
        until(lambda: not is_there(), f"deleted by the policy of a {level}")
        scene.publish(1)
        # One that is made anew has nothing of what the former one said.
        assert scene.policy.remove() == DONE
        time.sleep(3)
        assert is_there()

    together(at, [(level,) for level in case_of("inactive_topics").levels])


# By test_compaction.py, test_deduplication.py, test_schemas.py and (the interval)
# tests/test_policies.py.
SEEN_ELSEWHERE = {
    *("deduplication", "deduplication_snapshot_s", "compaction_threshold"),
    *("schema_strategy", "schema_auto_update", "schema_validation"),
}
# It counts in minutes: tests/test_expiry.py has a clock of its own.
NOT_SEEN = {"subscription_expiry_s"}


def test_each_policy_that_can_be_set_is_seen_by_clients() -> None:
    effects = (*test_policy_limits.EFFECTS, *EFFECTS)
    seen = {effect.policy for effect in effects} | {"inactive_topics", *SEEN_ELSEWHERE}
    assert {policy.name for policy in TABLE if policy.paths} - seen == NOT_SEEN

"""Fields that a policy's body leaves out, or has as null (BROKER=apache asks Pulsar)."""

from __future__ import annotations

from typing import Any

import pytest
from harness.brokers import Broker

from compat_tests.test_rest_answers import DONE, ask_json

NAMESPACE = "/admin/v2/namespaces/public/left-out"
TOPIC = "/admin/v2/persistent/public/left-out/t"
BOTH = (NAMESPACE, TOPIC)
MODE = {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"}
RATE = {
    "dispatchThrottlingRateInMsg": 0,
    "dispatchThrottlingRateInByte": 0,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 0,
}
PERSISTENCE = {
    "bookkeeperEnsemble": 2,
    "bookkeeperWriteQuorum": 2,
    "bookkeeperAckQuorum": 2,
    "managedLedgerMaxMarkDeleteRate": -1.0,
}
QUOTA = {"policy": "producer_exception"}

# Where, the segment, what is sent, and what is told then.
CASES: list[tuple[tuple[str, ...], str, dict[str, Any], dict[str, Any]]] = [
    (BOTH, "retention", {}, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
    (BOTH, "persistence", {}, PERSISTENCE),
    (
        BOTH,
        "inactiveTopicPolicies",
        {"maxInactiveDurationSeconds": 900, "deleteWhileInactive": True},
        {"maxInactiveDurationSeconds": 900, "deleteWhileInactive": True},
    ),
    (
        BOTH,
        "inactiveTopicPolicies",
        MODE,
        {**MODE, "maxInactiveDurationSeconds": 0, "deleteWhileInactive": False},
    ),
    (
        BOTH,
        "publishRate",
        {},
        {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1},
    ),
    (
        BOTH,
        "publishRate",
        {"publishThrottlingRateInMsg": None},
        {"publishThrottlingRateInMsg": 0, "publishThrottlingRateInByte": -1},
    ),
    (BOTH, "dispatchRate", {}, RATE),
    (BOTH, "dispatchRate", {"ratePeriodInSecond": None}, RATE),
    (BOTH, "subscriptionDispatchRate", {}, RATE),
    (BOTH, "replicatorDispatchRate", {}, RATE),
    (
        (TOPIC,),
        "sub/dispatchRate",
        {"dispatchThrottlingRateInMsg": 5},
        {**RATE, "dispatchThrottlingRateInMsg": 5},
    ),
    (
        BOTH,
        "subscribeRate",
        {},
        {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30},
    ),
    (
        BOTH,
        "subscribeRate",
        {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": None},
        {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 0},
    ),
    ((NAMESPACE,), "autoTopicCreation", {}, {"allowAutoTopicCreation": False}),
    (BOTH, "autoSubscriptionCreation", {}, {"allowAutoSubscriptionCreation": False}),
    (
        BOTH,
        "delayedDelivery",
        {},
        {"tickTime": 0, "active": False, "maxDeliveryDelayInMillis": 0},
    ),
    (BOTH, "backlogQuota", QUOTA, {"limit": 0, "limitSize": 0, "limitTime": 0, **QUOTA}),
    (
        BOTH,
        "backlogQuota",
        {"limit": 7, **QUOTA},
        {"limit": 7, "limitSize": 7, "limitTime": 0, **QUOTA},
    ),
]


@pytest.fixture(scope="module")
def made(broker: Broker) -> Broker:
    assert broker.request("PUT", NAMESPACE) == DONE
    assert broker.request("PUT", TOPIC) == DONE
    return broker


@pytest.mark.parametrize(
    ("base", "segment", "sent", "told"),
    [(base, *case) for bases, *case in CASES for base in bases],
)
def test_a_field_that_is_left_out_is_what_it_is_in_pulsar(
    made: Broker, base: str, segment: str, sent: dict[str, Any], told: dict[str, Any]
) -> None:
    path = f"{base}/{segment}"
    assert made.request("POST", path, {**sent, "unknown": {"a": 1}}) == DONE
    read = path + ("Map" if segment == "backlogQuota" else "")
    status, found = ask_json(made, "GET", read)
    if segment == "backlogQuota":
        found = found["destination_storage"]
    assert (status, found) == (200, told)
    assert made.request("DELETE", path) == DONE


def test_a_quota_without_its_policy_is_refused(made: Broker) -> None:
    for base in BOTH:
        assert made.request("POST", f"{base}/backlogQuota", {"limitSize": 7})[0] == 400

"""Policies by REST: set at each level, told, applied, removed; BROKER=apache asks Apache Pulsar."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from harness.brokers import Broker

from compat_tests.test_rest_answers import DONE, ask_json, local

TENANT = "/admin/v2/tenants/public"


class Set(NamedTuple):
    """A policy, what is set, and what is told then where that differs."""

    segment: str
    value: Any
    told: Any = None
    unset: Any = None  # what is told where nothing is set: None is 204
    query: str = ""  # the field that brings the value
    method: str = "POST"
    has_applied: bool = True


RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
PERSISTENCE = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 2.5,
}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 99,
    "deleteWhileInactive": True,
}
PUBLISH = {"publishThrottlingRateInMsg": 11, "publishThrottlingRateInByte": 12}
DISPATCH = {
    "dispatchThrottlingRateInMsg": 21,
    "dispatchThrottlingRateInByte": 22,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 3,
}
SUBSCRIBE = {"subscribeThrottlingRatePerConsumer": 6, "ratePeriodInSecond": 7}
DELAYED = {"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 60_000}
AUTO_SUBSCRIPTION = {"allowAutoSubscriptionCreation": False}
AUTO_TOPIC = {
    "allowAutoTopicCreation": True,
    "topicType": "partitioned",
    "defaultNumPartitions": 3,
}

OF_TOPICS = [
    Set("retention", RETENTION),
    Set("messageTTL", 33, query="messageTTL"),
    Set("subscriptionExpirationTime", 9, query="subscriptionExpirationTime"),
    Set("persistence", PERSISTENCE),
    Set("inactiveTopicPolicies", INACTIVE),
    Set("delayedDelivery", DELAYED),
    Set("publishRate", PUBLISH, has_applied=False),
    Set("dispatchRate", DISPATCH),
    Set("subscriptionDispatchRate", DISPATCH),
    Set("subscribeRate", SUBSCRIBE),
    Set("maxProducers", 3),
    Set("maxConsumers", 4),
    Set("maxConsumersPerSubscription", 5, has_applied=False),
    Set("maxSubscriptionsPerTopic", 6, has_applied=False),
    Set("maxUnackedMessagesOnConsumer", 7),
    Set("maxUnackedMessagesOnSubscription", 8),
    Set("maxMessageSize", 1000, has_applied=False),
    Set("subscriptionTypesEnabled", ["Shared", "Exclusive"], has_applied=False),
    Set("autoSubscriptionCreation", AUTO_SUBSCRIPTION),
    Set("dispatcherPauseOnAckStatePersistent", None, told=True),
]
OF_NAMESPACES = [
    Set("retention", RETENTION),
    Set("messageTTL", 33),
    Set("subscriptionExpirationTime", 9),
    Set("persistence", PERSISTENCE),
    Set("inactiveTopicPolicies", INACTIVE),
    Set("delayedDelivery", DELAYED),
    Set("publishRate", PUBLISH),
    Set("dispatchRate", DISPATCH),
    Set("subscriptionDispatchRate", DISPATCH),
    Set("subscribeRate", SUBSCRIBE),
    Set("maxProducersPerTopic", 3),
    Set("maxConsumersPerTopic", 4),
    Set("maxConsumersPerSubscription", 5),
    Set("maxSubscriptionsPerTopic", 6),
    Set("maxUnackedMessagesPerConsumer", 7),
    Set("maxUnackedMessagesPerSubscription", 8),
    Set("maxTopicsPerNamespace", 100),
    Set("subscriptionTypesEnabled", ["Shared", "Exclusive"], unset=[]),
    Set("autoSubscriptionCreation", AUTO_SUBSCRIPTION),
    Set("autoTopicCreation", AUTO_TOPIC),
    Set("dispatcherPauseOnAckStatePersistent", None, told=True),
]


def told(broker: Broker, path: str) -> Any:
    """What a policy is told to be; None for 204."""
    status, text = broker.request("GET", path)
    assert (status, bool(text)) in ((200, True), (204, False), (200, False)), (status, text)
    return json.loads(text) if text else None


def in_order(value: Any) -> Any:
    """Pulsar tells sets in an order of its own."""
    return sorted(value) if isinstance(value, list) else value


def put(broker: Broker, base: str, policy: Set, more: str = "") -> tuple[int, str]:
    path = f"{base}/{policy.segment}"
    if policy.query:
        return broker.request(policy.method, f"{path}?{policy.query}={policy.value}{more}")
    return broker.request(policy.method, path + more.replace("&", "?", 1), policy.value)


def expected(policy: Set) -> Any:
    return in_order(policy.value if policy.told is None else policy.told)


@pytest.fixture(scope="module")
def namespace(broker: Broker) -> Iterator[str]:
    """The path of a namespace of its own."""
    path = "/admin/v2/namespaces/public/of-policies"
    assert broker.request("PUT", path)[0] == 204
    yield path
    broker.request("DELETE", path + "?force=true")


@pytest.fixture
def own_topic(broker: Broker, topic: str) -> str:
    """The path of a topic of its own."""
    path = f"/admin/v2/persistent/public/default/{local(topic)}"
    assert broker.request("PUT", path) == DONE
    return path


@pytest.mark.parametrize("policy", OF_TOPICS, ids=lambda policy: policy.segment)
def test_a_topic_sets_a_policy(broker: Broker, own_topic: str, policy: Set) -> None:
    path = f"{own_topic}/{policy.segment}"
    before = told(broker, path + "?applied=true")
    assert told(broker, path) is None
    assert put(broker, own_topic, policy) == DONE
    assert in_order(told(broker, path)) == expected(policy)
    assert told(broker, path + "?isGlobal=true") is None
    if policy.has_applied:
        assert in_order(told(broker, path + "?applied=true")) == expected(policy)
    assert broker.request("DELETE", path) == DONE
    assert told(broker, path) is None
    assert told(broker, path + "?applied=true") == before


@pytest.mark.parametrize("policy", OF_NAMESPACES, ids=lambda policy: policy.segment)
def test_a_namespace_sets_a_policy(broker: Broker, namespace: str, policy: Set) -> None:
    path = f"{namespace}/{policy.segment}"
    assert told(broker, path) == policy.unset
    assert put(broker, namespace, policy)[0] in (200, 204)
    assert in_order(told(broker, path)) == expected(policy)
    assert broker.request("DELETE", path)[0] in (200, 204)
    assert told(broker, path) == policy.unset


def test_quotas_of_backlogs(broker: Broker, own_topic: str) -> None:
    none = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
    age = {"limitTime": 77, "policy": "consumer_backlog_eviction"}
    assert (
        broker.request("POST", f"{own_topic}/backlogQuota?backlogQuotaType=message_age", age)
        == DONE
    )
    whole = {"limit": 0, "limitSize": 0, **age}
    assert told(broker, f"{own_topic}/backlogQuotaMap") == {"message_age": whole}
    applied = told(broker, f"{own_topic}/backlogQuotaMap?applied=true")
    assert applied["message_age"] == whole
    assert applied["destination_storage"]["policy"] == none["policy"]
    size = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    assert broker.request("POST", f"{own_topic}/backlogQuota", size) == DONE
    assert told(broker, f"{own_topic}/backlogQuotaMap") == {
        "message_age": whole,
        "destination_storage": {"limit": 1000, **size},
    }


@pytest.mark.parametrize(
    ("segment", "body", "status"),
    [
        ("maxProducers", -1, 412),
        ("maxUnackedMessagesOnConsumer", -1, 412),
        ("maxMessageSize", 1 << 30, 412),
        ("messageTTL?messageTTL=-1", None, 412),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 400),
        ("persistence", {**PERSISTENCE, "bookkeeperWriteQuorum": 2}, 400),
        ("subscriptionTypesEnabled", ["None"], 400),
        ("publishRate", [], 400),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    broker: Broker, own_topic: str, segment: str, body: Any, status: int
) -> None:
    assert broker.request("POST", f"{own_topic}/{segment}", body)[0] == status
    if segment.isalpha():
        assert told(broker, f"{own_topic}/{segment}") is None


def test_a_topic_goes_before_its_namespace(broker: Broker, namespace: str) -> None:
    path = namespace.replace("namespaces", "persistent") + "/levels"
    assert broker.request("PUT", path) == DONE
    segment = f"{path}/maxProducers?applied=true"
    assert told(broker, segment) == 0
    assert broker.request("POST", f"{namespace}/maxProducersPerTopic", 3) == DONE
    deadline = time.monotonic() + 10
    while told(broker, segment) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert broker.request("POST", f"{path}/maxProducers?isGlobal=true", 2) == DONE
    assert told(broker, segment) == 2
    assert broker.request("POST", f"{path}/maxProducers", 1) == DONE
    assert told(broker, segment) == 1
    assert broker.request("DELETE", f"{path}/maxProducers") == DONE
    assert broker.request("DELETE", f"{path}/maxProducers?isGlobal=true") == DONE
    assert told(broker, segment) == 3
    assert broker.request("DELETE", f"{namespace}/maxProducersPerTopic") == DONE


def test_what_is_not_there_has_no_policies(broker: Broker, own_topic: str) -> None:
    assert broker.request("GET", own_topic + "-none/maxProducers")[0] == 404
    assert broker.request("GET", "/admin/v2/namespaces/public/none/retention")[0] == 404
    assert ask_json(broker, "GET", "/admin/v2/persistent/public/none/t/maxProducers")[0] == 404

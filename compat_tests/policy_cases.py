"""What the tests of policies set: each policy's value, and its place in REST at each level."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from harness.brokers import Broker

from compat_tests.policy_differences import differs

NAMESPACE, TOPIC, GLOBAL = "namespace", "topic", "global"
OF_TOPICS, EVERYWHERE = (TOPIC, GLOBAL), (NAMESPACE, TOPIC, GLOBAL)
"""The levels. A topic has two records: its own one, and one that all clusters share (GLOBAL)."""

FOREVER_S = 90.0  # clients that are refused try again after half a minute at times
"""A change is in force long before: within a second, and sooner at once."""


NOTHING = object()
"""No value at all."""


class Case(NamedTuple):
    """A policy as REST has it, with a value that nothing else sets."""

    policies: tuple[str, ...]  # its rows in pyxbroker.policies.table
    namespace: str  # the last part of the path, at each level; empty: it cannot be set there
    topic: str
    value: Any
    told: Any = None  # what is told then, where that is not the value
    unset: Any = None  # what is told where nothing is set: None is 204; [] is that of namespaces
    query: str = ""  # the field that brings a topic's value
    quota_type: str = ""  # of the two that are set with the same path
    has_applied: bool = True  # whether a topic is told what holds, whichever level says it
    removed_by: Any = None  # the value that switches it off, where DELETE does not
    nothing_removes: tuple[str, ...] = ()  # levels at which to set no value removes it
    method: str = "POST"  # that sets it for a namespace

    @property
    def name(self) -> str:
        return (self.topic or self.namespace) + (self.quota_type and f"-{self.quota_type}")

    @property
    def levels(self) -> tuple[str, ...]:
        return ((NAMESPACE,) if self.namespace else ()) + ((TOPIC, GLOBAL) if self.topic else ())

    @property
    def expected(self) -> Any:
        return self.value if self.told is None else self.told


class Place(NamedTuple):
    """A policy of a namespace or topic of a broker, at one level."""

    broker: Broker
    case: Case
    level: str
    base: str  # the path of the namespace or topic

    def path(self, verb: str, **query: object) -> str:
        segment = self.case.namespace if self.level == NAMESPACE else self.case.topic
        if verb == "GET" and self.case.quota_type:
            segment = "backlogQuotaMap"
        elif self.case.quota_type:
            query["backlogQuotaType"] = self.case.quota_type
        if self.level == GLOBAL and "applied" not in query:
            query["isGlobal"] = "true"
        fields = "&".join(f"{name}={value}" for name, value in query.items())
        return f"{self.base}/{segment}" + (fields and f"?{fields}")

    def set(self, value: Any) -> tuple[int, str]:
        method = self.case.method if self.level == NAMESPACE else "POST"
        if value is NOTHING:
            return self.broker.request(method, self.path("POST"))
        if self.case.query and self.level != NAMESPACE:
            return self.broker.request("POST", self.path("POST", **{self.case.query: value}))
        return self.broker.request(method, self.path("POST"), value)

    def remove(self) -> tuple[int, str]:
        if self.case.removed_by is not None:
            return self.set(self.case.removed_by)
        return self.broker.request("DELETE", self.path("DELETE"))

    def told(self, **query: object) -> Any:
        """What the policy is told to be; None for 204."""
        value = told(self.broker, self.path("GET", **query))
        if self.case.quota_type:
            return value.get(self.case.quota_type)
        # A topic without types has none of its own.
        return None if value == [] and self.level != NAMESPACE else in_order(value)

    def unset(self) -> Any:
        """What is told where nothing is set."""
        return None if self.case.unset == [] and self.level != NAMESPACE else self.case.unset

    def applied(self, **query: object) -> Any:
        """What a topic is told to have, whichever level says it."""
        return self.told(applied="true", **query)


def told(broker: Broker, path: str) -> Any:
    """The value that stands at a path, where one is set; else None."""
    status, text = broker.request("GET", path)
    nothing = {(204, False), (200, False)} if differs("nothing is set") else {(204, False)}
    assert (status, bool(text)) in {(200, True), *nothing}, (path, text)
    return json.loads(text) if text else None


def in_order(value: Any) -> Any:
    """Pulsar tells sets in an order of its own."""
    return sorted(value) if isinstance(value, list) else value


def until(holds: Callable[[], bool], what: str = "") -> None:
    """Ask again until it holds; who waits for too long fails."""
    deadline = time.monotonic() + FOREVER_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {FOREVER_S} s: {what}"
        time.sleep(0.05)


def _dispatch(number: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": number,
        "dispatchThrottlingRateInByte": number + 1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 3,
    }


def quota(policy: str, size: int = -1, seconds: int = -1) -> dict[str, Any]:
    """A quota of a backlog, of bytes or of seconds."""
    return {"limitSize": size, "limitTime": seconds, "policy": policy}


CASES = (
    Case(
        ("retention",),
        "retention",
        "retention",
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
        nothing_removes=(NAMESPACE,),
    ),
    Case(
        ("backlog_size",),
        "backlogQuota",
        "backlogQuota",
        quota("producer_exception", size=1000),
        told=quota("producer_exception", size=1000) | {"limit": 1000},
        quota_type="destination_storage",
        nothing_removes=OF_TOPICS,
    ),
    Case(
        ("backlog_age",),
        "backlogQuota",
        "backlogQuota",
        {"limitTime": 77, "policy": "consumer_backlog_eviction"},
        told=quota("consumer_backlog_eviction", size=0, seconds=77) | {"limit": 0},
        quota_type="message_age",
        nothing_removes=OF_TOPICS,
    ),
    Case(
        ("message_ttl_s",),
        "messageTTL",
        "messageTTL",
        33,
        query="messageTTL",
        nothing_removes=OF_TOPICS,
    ),
    Case(
        ("subscription_expiry_s",),
        "subscriptionExpirationTime",
        "subscriptionExpirationTime",
        9,
        query="subscriptionExpirationTime",
        nothing_removes=OF_TOPICS,
    ),
    Case(
        ("persistence",),
        "persistence",
        "persistence",
        {
            "bookkeeperEnsemble": 1,
            "bookkeeperWriteQuorum": 1,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 2.5,
        },
    ),
    Case(
        ("inactive_topics",),
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 99,
            "deleteWhileInactive": True,
        },
        nothing_removes=EVERYWHERE,
    ),
    Case(
        ("delayed_delivery", "delay_tick_ms", "delay_max_ms"),
        "delayedDelivery",
        "delayedDelivery",
        {"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 60_000},
        nothing_removes=EVERYWHERE,
    ),
    Case(
        ("publish_rate",),
        "publishRate",
        "publishRate",
        {"publishThrottlingRateInMsg": 11, "publishThrottlingRateInByte": 12},
        nothing_removes=(NAMESPACE,),
        has_applied=False,
    ),
    Case(
        ("dispatch_rate",),
        "dispatchRate",
        "dispatchRate",
        _dispatch(21),
        nothing_removes=(NAMESPACE,),
    ),
    Case(
        ("subscription_dispatch_rate",),
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        _dispatch(31),
        nothing_removes=(NAMESPACE,),
    ),
    Case(("dispatch_rates_of",), "", "s1/dispatchRate", _dispatch(41)),
    Case(
        (),
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        _dispatch(51),
        nothing_removes=EVERYWHERE,
    ),
    Case(
        ("subscribe_rate",),
        "subscribeRate",
        "subscribeRate",
        {"subscribeThrottlingRatePerConsumer": 6, "ratePeriodInSecond": 7},
        nothing_removes=(NAMESPACE,),
    ),
    Case(("producers_max",), "maxProducersPerTopic", "maxProducers", 3),
    Case(("consumers_max",), "maxConsumersPerTopic", "maxConsumers", 4),
    Case(
        ("consumers_per_subscription_max",),
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        5,
        has_applied=False,
    ),
    Case(
        ("subscriptions_max",),
        "maxSubscriptionsPerTopic",
        "maxSubscriptionsPerTopic",
        6,
        has_applied=False,
    ),
    Case(
        ("unacked_per_consumer_max",),
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        7,
        nothing_removes=OF_TOPICS,
    ),
    Case(
        ("unacked_per_subscription_max",),
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        8,
        nothing_removes=OF_TOPICS,
    ),
    Case(("topics_max",), "maxTopicsPerNamespace", "", 100, unset=0),
    Case(("message_bytes_max",), "", "maxMessageSize", 1000, has_applied=False),
    Case(
        ("subscription_types",),
        "subscriptionTypesEnabled",
        "subscriptionTypesEnabled",
        ["Exclusive", "Shared"],
        unset=[],
        has_applied=False,
    ),
    Case(
        ("auto_subscription_creation",),
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        {"allowAutoSubscriptionCreation": False},
        nothing_removes=EVERYWHERE,
    ),
    Case(
        ("auto_topic_creation",),
        "autoTopicCreation",
        "",
        {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        nothing_removes=(NAMESPACE,),
    ),
    Case(
        ("pause_on_ack_state",),
        "dispatcherPauseOnAckStatePersistent",
        "dispatcherPauseOnAckStatePersistent",
        None,
        told=True,
        unset=False,
    ),
    Case(
        ("deduplication",),
        "deduplication",
        "deduplicationEnabled",
        True,
        nothing_removes=OF_TOPICS,
    ),
    Case(
        ("deduplication_snapshot_s",),
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotInterval",
        60,
        removed_by=NOTHING,
        nothing_removes=EVERYWHERE,
    ),
    Case(
        ("compaction_threshold",),
        "compactionThreshold",
        "compactionThreshold",
        12345,
        method="PUT",
    ),
    Case(("encryption_required",), "encryptionRequired", "", True, unset=False, removed_by=False),
)


def case_of(policy: str) -> Case:
    """The case of a row of pyxbroker.policies.table."""
    (found,) = (case for case in CASES if policy in case.policies)
    return found

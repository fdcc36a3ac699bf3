"""Policies that refuse producers, consumers, subscriptions and topics, as official clients see it.

Each is set at every level that has it, seen, removed and seen no more (BROKER=apache asks Pulsar).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.policy_cases import NAMESPACE, TOPIC, quota
from compat_tests.policy_differences import differs
from compat_tests.policy_scenes import (
    SCENE_SETTINGS,
    SHARED,
    Effect,
    has_partitions,
    looked_at,
    refuses_a_consumer,
    refuses_a_producer,
    refuses_a_subscription,
    refuses_a_topic,
    refuses_who_subscribes_again,
    with_a_consumer,
    with_a_producer,
    with_old_messages,
)

BROKER_SETTINGS = SCENE_SETTINGS

NOT_SHARED = "autoSubscriptionCreation in the record that all clusters share"

# The Python client asks again where it may be only for now, until its time is up.
EFFECTS = (
    Effect("producers_max", 1, refuses_a_producer(pulsar.ProducerBusy), with_a_producer),
    Effect("consumers_max", 1, refuses_a_consumer("other", pulsar.ConsumerBusy), with_a_consumer),
    Effect(
        "consumers_per_subscription_max",
        1,
        refuses_a_consumer("kept", pulsar.ConsumerBusy, consumer_type=SHARED),
        with_a_consumer,
    ),
    Effect("subscriptions_max", 1, refuses_a_subscription(pulsar.NotAllowedError), with_a_consumer),
    Effect(
        "subscription_types",
        ["Shared"],
        refuses_a_consumer("exclusive", pulsar.NotAllowedError),
    ),
    Effect(
        "subscribe_rate",
        {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 3600},
        refuses_who_subscribes_again,
    ),
    Effect(
        "auto_subscription_creation",
        {"allowAutoSubscriptionCreation": False},
        refuses_a_subscription((pulsar.SubscriptionNotFound, pulsar.Timeout)),
        levels=(NAMESPACE, TOPIC) if differs(NOT_SHARED) else (),
    ),
    Effect(
        "auto_topic_creation",
        {"allowAutoTopicCreation": False},
        refuses_a_topic(pulsar.TopicNotFound),
    ),
    Effect(
        "auto_topic_creation",
        {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 3,
        },
        has_partitions,
        about="partitioned",
    ),
    Effect("topics_max", 1, refuses_a_topic(pulsar.NotAllowedError)),
    Effect(
        "encryption_required",
        True,
        refuses_a_producer((pulsar.BrokerMetadataError, pulsar.Timeout)),
    ),
    Effect(
        "backlog_size",
        quota("producer_exception", size=1000),
        refuses_a_producer(pulsar.ProducerBlockedQuotaExceededException),
        with_old_messages,
        about="exception",
    ),
    Effect(
        "backlog_size",
        quota("producer_request_hold", size=1000),
        refuses_a_producer(pulsar.ProducerBlockedQuotaExceededError),
        with_old_messages,
        about="hold",
    ),
    Effect(
        "backlog_age",
        quota("producer_exception", seconds=1),
        refuses_a_producer(pulsar.ProducerBlockedQuotaExceededException),
        with_old_messages,
    ),
)


@pytest.fixture(scope="module")
def outcomes(broker: Broker) -> Iterator[dict[str, Future[None]]]:
    with looked_at(broker, EFFECTS) as found:
        yield found


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.name)
def test_who_is_too_many_is_refused(outcomes: dict[str, Future[None]], effect: Effect) -> None:
    outcomes[effect.name].result()

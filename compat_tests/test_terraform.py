"""What Terraform does with its provider for Pulsar: apply, plan, change and destroy, in the
provider's own calls (``terraform_resources.py``). BROKER=apache does the same to Apache Pulsar.

A plan without changes reads back what was applied: each test of a state compares the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from harness.brokers import Broker
from harness.go_admin import GoAdmin, Refused

from compat_tests.terraform_resources import (
    Config,
    Grant,
    Namespace,
    Resource,
    Schema,
    Subscription,
    Tenant,
    Topic,
)

_NUMBERS = itertools.count(1)
RETENTION = {"retentionTimeInMinutes": 1600, "retentionSizeInMB": 10_000}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 3600,
    "deleteWhileInactive": True,
}
RATE = {
    "dispatchThrottlingRateInMsg": 50,
    "dispatchThrottlingRateInByte": 2048,
    "ratePeriodInSecond": 50,
}
PERSISTENCE = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 10.0,
}
SIZE_QUOTA = {"limitSize": 10_000_000, "limitTime": -1, "policy": "producer_request_hold"}
AGE_QUOTA = {"limitSize": -1, "limitTime": 3600, "policy": "consumer_backlog_eviction"}
AUTO_CREATION = {
    "allowAutoTopicCreation": True,
    "topicType": "partitioned",
    "defaultNumPartitions": 3,
}
# The provider's defaults: what it sets, and compares with, where a block names no attribute.
UNSET_CONFIG = {
    "is_allow_auto_update_schema": True,
    "max_consumers_per_subscription": -1,
    "max_consumers_per_topic": -1,
    "max_producers_per_topic": -1,
    "message_ttl_seconds": -1,
    "offload_threshold_size_in_mb": -1,
    "schema_validation_enforce": False,
    "subscription_expiration_time_minutes": -1,
}
WHOLE_CONFIG = {
    "anti_affinity": "anti-aff",
    "is_allow_auto_update_schema": False,
    "max_consumers_per_subscription": 50,
    "max_consumers_per_topic": 51,
    "max_producers_per_topic": 52,
    "message_ttl_seconds": 86_400,
    "offload_threshold_size_in_mb": 100,
    "replication_clusters": ["standalone"],
    "schema_compatibility_strategy": "FORWARD",
    "schema_auto_update_compatibility_strategy": "Forward",
    "schema_validation_enforce": True,
    "subscription_expiration_time_minutes": 60,
}
WHOLE_NAMESPACE: Config = {
    "namespace_config": WHOLE_CONFIG,
    "enable_deduplication": True,
    "retention_policies": RETENTION,
    "inactive_topic": INACTIVE,
    "backlog_quota": {"destination_storage": SIZE_QUOTA},
    "dispatch_rate": RATE,
    "subscription_dispatch_rate": RATE | {"dispatchThrottlingRateInMsg": 60},
    "persistence_policies": PERSISTENCE,
    "permission_grant": {"one": ["consume", "produce"], "two": ["produce"]},
    "topic_auto_creation": AUTO_CREATION,
}
CHANGED_NAMESPACE: Config = {
    "namespace_config": WHOLE_CONFIG
    | {
        "max_consumers_per_topic": 0,
        "max_producers_per_topic": -1,
        "message_ttl_seconds": -1,
        "offload_threshold_size_in_mb": 0,
        "schema_compatibility_strategy": "BACKWARD_TRANSITIVE",
        "schema_validation_enforce": False,
        "subscription_expiration_time_minutes": -1,
    },
    "enable_deduplication": False,
    "backlog_quota": {"message_age": AGE_QUOTA | {"limitSize": 0}},
    "dispatch_rate": RATE | {"dispatchThrottlingRateInMsg": -1},
    "subscription_dispatch_rate": RATE,
    "persistence_policies": PERSISTENCE | {"managedLedgerMaxMarkDeleteRate": 0.5},
    "permission_grant": {"two": ["consume", "produce"]},
}
WHOLE_TOPIC: Config = {
    "retention_policies": RETENTION,
    "enable_deduplication": True,
    "backlog_quota": {"destination_storage": SIZE_QUOTA},
    "dispatch_rate": RATE | {"relativeToPublishRate": False},
    "persistence_policies": PERSISTENCE,
    "permission_grant": {"one": ["consume", "produce"], "two": ["produce"]},
    "topic_config": {
        "compaction_threshold": 1024,
        "delayed_delivery": {"tickTime": 1500.0, "active": True},
        "inactive_topic": INACTIVE,
        "max_consumers": 10,
        "max_producers": 11,
        "message_ttl_seconds": 7200,
        "max_unacked_messages_per_consumer": 1000,
        "max_unacked_messages_per_subscription": 2000,
        "publish_rate": {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": 2048},
    },
    "topic_properties": {"owner": "team", "retention": "long"},
}
AVRO = '{{"type":"record","name":"r","fields":[{{"name":"a","type":"int"}}{}]}}'
FIELD = ',{"name":"b","type":["null","int"],"default":null}'


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[GoAdmin]:
    made = GoAdmin(broker.web_url)
    yield made
    made.close()


@pytest.fixture
def tenant(admin: GoAdmin) -> Iterator[str]:
    """A tenant that is applied before a test, and destroyed after it: nothing may be left in it."""
    one = Tenant(admin, f"terraform-{next(_NUMBERS)}")
    one.apply({"admin_roles": ["admin"], "allowed_clusters": ["standalone"]})
    yield one.name
    one.destroy()


@pytest.fixture
def namespace(admin: GoAdmin, tenant: str) -> Iterator[str]:
    one = Namespace(admin, f"{tenant}/ns")
    one.apply({"enable_deduplication": False})
    yield one.name
    one.destroy()


def check_states(resource: Resource, *states: Config) -> None:
    """Apply states one after another; each is read back without a difference, twice."""
    for state in states:
        resource.apply(state)
        for _ in range(2):
            assert resource.read() == state
    resource.destroy()


def test_a_tenant(admin: GoAdmin) -> None:
    state = {"admin_roles": ["a", "b"], "allowed_clusters": ["standalone"]}
    one = Tenant(admin, "terraform-tenant")
    check_states(one, state, state | {"admin_roles": ["c"]})
    with pytest.raises(Refused) as refused:
        one.read()
    assert refused.value.code == 404


def test_a_namespace_with_every_policy_is_applied_changed_and_destroyed(
    admin: GoAdmin, tenant: str
) -> None:
    one = Namespace(admin, f"{tenant}/ns")
    check_states(one, WHOLE_NAMESPACE, CHANGED_NAMESPACE, WHOLE_NAMESPACE)
    assert one.read() == {}


def test_a_namespace_that_names_no_policy_has_the_defaults_of_the_provider(
    admin: GoAdmin, tenant: str
) -> None:
    one = Namespace(admin, f"{tenant}/ns")
    check_states(one, {"namespace_config": UNSET_CONFIG}, {"namespace_config": WHOLE_CONFIG})


def test_a_namespace_in_which_nothing_is_set_is_imported(admin: GoAdmin, namespace: str) -> None:
    Namespace(admin, namespace).import_all()


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_topic_with_every_policy_is_applied_changed_and_destroyed(
    admin: GoAdmin, namespace: str, partitions: int
) -> None:
    one = Topic(admin, f"persistent://{namespace}/t")
    whole = WHOLE_TOPIC | {"partitions": partitions}
    changed: Config = {
        "partitions": partitions and partitions + 1,
        "backlog_quota": {"message_age": AGE_QUOTA | {"limitSize": 0}},
        "permission_grant": {"two": ["consume"]},
        "topic_config": whole["topic_config"] | {"max_consumers": 0, "max_producers": 12},
        "topic_properties": {"owner": "other"},
    }
    check_states(one, whole, changed)
    assert one.read() == {}


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_topic_in_which_nothing_is_set_is_read(
    admin: GoAdmin, namespace: str, domain: str, partitions: int
) -> None:
    one = Topic(admin, f"{domain}://{namespace}/t")
    if domain == "persistent":
        check_states(one, {"partitions": partitions})
    else:
        one.apply({"partitions": partitions})
        one.destroy()


def test_a_grant(admin: GoAdmin, namespace: str) -> None:
    one = Grant(admin, f"{namespace}/role")
    check_states(one, {"actions": ["consume", "produce"]}, {"actions": ["produce"]})
    assert one.read() == {}


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_subscription(admin: GoAdmin, namespace: str, partitions: int) -> None:
    topic = Topic(admin, f"persistent://{namespace}/t")
    topic.apply({"partitions": partitions})
    one = Subscription(admin, f"{topic.name}:s")
    check_states(one, {"position": "latest"}, {"position": "earliest"})
    assert one.read() == {}
    topic.destroy()
    one.config = {"position": "latest"}
    assert one.read() == {}


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_schema(admin: GoAdmin, namespace: str, partitions: int) -> None:
    topic = Topic(admin, f"persistent://{namespace}/t")
    topic.apply({"partitions": partitions})
    first: dict[str, Any] = {"type": "AVRO", "schema": AVRO.format(""), "properties": {"k": "v"}}
    one = Schema(admin, topic.name)
    second = first | {"schema": AVRO.format(FIELD)}
    check_states(one, first | {"version": 0}, second | {"version": 1})
    assert one.read() == {}
    topic.destroy()

"""Offload policies, shadow topics and migration by REST: set where nothing has to be done for
that, told, removed (BROKER=apache asks Pulsar).
"""

from __future__ import annotations

from typing import Any

import pytest
from harness.brokers import Broker
from harness.web import web

from compat_tests.policy_cases import told, until
from compat_tests.policy_differences import differs
from compat_tests.test_policy_answers import new_namespace
from compat_tests.test_rest_answers import DONE

DEFAULTS = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadReadThreads": 2,
    "managedLedgerOffloadPrefetchRounds": 1,
    "managedLedgerExtraConfigurations": {},
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 67108864,
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1048576,
    "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 134217728,
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1048576,
    "s3Driver": False,
    "gcsDriver": False,
    "fileSystemDriver": False,
}
ON_S3 = {
    "managedLedgerOffloadDriver": "aws-s3",
    "managedLedgerOffloadBucket": "bucket",
    "managedLedgerOffloadRegion": "region",
    "managedLedgerOffloadThresholdInBytes": 5_000_000_000,
    "managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST",
    "managedLedgerExtraConfigurations": {"a": "b"},
    "s3ManagedLedgerOffloadCredentialId": "id",
    "managedLedgerOffloadMaxThreads": 3,
}
ON_DISK = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": "file:///tmp"}


@pytest.fixture
def namespace(broker: Broker) -> str:
    return new_namespace(broker)


@pytest.fixture(params=["", "/partitions"], ids=["topic", "partitioned"])
def own_topic(broker: Broker, namespace: str, request: pytest.FixtureRequest) -> str:
    """The path of a topic in that namespace."""
    path = namespace.replace("namespaces", "persistent") + "/t"
    body = 2 if request.param else None
    assert broker.request("PUT", path + request.param, body) == DONE
    return path


def test_what_nobody_has_set_can_be_read_and_removed(
    broker: Broker, namespace: str, own_topic: str
) -> None:
    assert told(broker, f"{namespace}/offloadThreshold") == -1
    assert told(broker, f"{namespace}/offloadThresholdInSeconds") == -1
    for path in (
        f"{namespace}/offloadDeletionLagMs",
        f"{namespace}/offloadPolicies",
        f"{own_topic}/offloadPolicies",
        f"{own_topic}/offloadPolicies?applied=true",
        f"{own_topic}/shadowTopics",
    ):
        assert told(broker, path) is None, path
    for path in (
        f"{namespace}/offloadDeletionLagMs",
        f"{namespace}/removeOffloadPolicies",
        f"{own_topic}/offloadPolicies",
        f"{own_topic}/shadowTopics",
    ):
        assert broker.request("DELETE", path) == DONE, path
    assert broker.request("PUT", f"{namespace}/offloadThreshold", -1) == DONE
    assert told(broker, f"{namespace}/offloadThreshold") == -1


def test_policies_of_a_namespace_are_told_as_they_were_set(broker: Broker, namespace: str) -> None:
    assert broker.request("POST", f"{namespace}/offloadPolicies", ON_S3) == DONE
    expected = DEFAULTS | ON_S3 | {"s3Driver": True}
    assert told(broker, f"{namespace}/offloadPolicies") == expected
    assert told(broker, f"{namespace}/offloadThreshold") == 5_000_000_000
    assert broker.request("PUT", f"{namespace}/offloadThreshold", 7) == DONE
    assert broker.request("PUT", f"{namespace}/offloadThresholdInSeconds", 8) == (200, "")
    assert broker.request("PUT", f"{namespace}/offloadDeletionLagMs", 9) == DONE
    expected |= {
        "managedLedgerOffloadThresholdInBytes": 7,
        "managedLedgerOffloadThresholdInSeconds": 8,
        "managedLedgerOffloadDeletionLagInMillis": 9,
    }
    assert told(broker, f"{namespace}/offloadPolicies") == expected
    whole = told(broker, namespace)
    assert whole["offload_policies"] == expected
    assert (whole["offload_threshold"], whole["offload_threshold_in_seconds"]) == (-1, -1)
    assert broker.request("DELETE", f"{namespace}/offloadDeletionLagMs") == DONE
    assert told(broker, f"{namespace}/offloadDeletionLagMs") is None
    assert broker.request("DELETE", f"{namespace}/removeOffloadPolicies") == DONE
    assert told(broker, f"{namespace}/offloadPolicies") is None
    assert told(broker, f"{namespace}/offloadThreshold") == -1


def test_numbers_of_a_namespace_alone_have_the_other_fields_beside_them(
    broker: Broker, namespace: str
) -> None:
    assert broker.request("PUT", f"{namespace}/offloadThreshold", 7) == DONE
    expected = DEFAULTS | {"managedLedgerOffloadThresholdInBytes": 7}
    assert told(broker, f"{namespace}/offloadPolicies") == expected


def test_policies_of_a_topic_are_told_and_applied(
    broker: Broker, namespace: str, own_topic: str
) -> None:
    path = f"{own_topic}/offloadPolicies"
    assert broker.request("POST", path, ON_DISK) == DONE
    expected = DEFAULTS | ON_DISK | {"fileSystemDriver": True}
    until(lambda: told(broker, path) == expected, "set")
    assert told(broker, path + "?isGlobal=true") is None
    assert broker.request("PUT", f"{namespace}/offloadDeletionLagMs", 9) == DONE
    lag = {"managedLedgerOffloadDeletionLagInMillis": 9}
    until(lambda: told(broker, path + "?applied=true") == expected | lag, "applied")
    assert broker.request("DELETE", path) == DONE
    until(lambda: told(broker, path) is None, "removed")
    assert told(broker, path + "?applied=true") == DEFAULTS | lag


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "The driver is not supported, support value: "),
        ({"managedLedgerOffloadDriver": "tape"}, "The driver is not supported, support value: "),
        (
            {"managedLedgerOffloadDriver": "google-cloud-storage"},
            "The bucket must be specified for namespace offload.",
        ),
        (None, "The offloadPolicies must be specified for namespace offload."),
    ],
)
def test_policies_without_a_driver_or_a_bucket_are_refused(
    broker: Broker, namespace: str, own_topic: str, body: Any, reason: str
) -> None:
    for base in (namespace, own_topic):
        answer = web(broker, "POST", f"{base}/offloadPolicies", body)
        assert answer.status == 412 and answer.reason.startswith(reason)


def test_a_priority_that_there_is_not_is_refused(broker: Broker, namespace: str) -> None:
    body = ON_DISK | {"managedLedgerOffloadedReadPriority": "tape-first"}
    status, _ = broker.request("POST", f"{namespace}/offloadPolicies", body)
    assert status == (204 if differs("an unknown offload priority") else 400)


def test_no_offload_of_a_topic_has_run(broker: Broker, namespace: str) -> None:
    path = namespace.replace("namespaces", "persistent") + "/t"
    assert broker.request("PUT", path) == DONE
    assert told(broker, f"{path}/offload") == {
        "status": "NOT_RUN",
        "lastError": "",
        "firstUnoffloadedMessage": {
            **{"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
            **{"batchIndex": -1, "batchSize": 0},
        },
    }
    # Without an offloader Apache Pulsar tries, and tells the failure in the status above.
    status, _ = broker.request("PUT", f"{path}/offload", {"ledgerId": 1 << 40, "entryId": 0})
    assert status == (204 if differs("offload policies") else 501)


def test_nothing_has_migrated(broker: Broker, namespace: str) -> None:
    answer = web(broker, "GET", "/admin/v2/clusters/standalone/migrate")
    assert (answer.status, answer.reason) == (404, "Cluster does not exist")
    assert broker.request("POST", f"{namespace}/migration", False) == DONE
    assert told(broker, namespace)["migrated"] is False
    status, _ = broker.request("POST", f"{namespace}/migration", True)
    assert status == (204 if differs("shadow topics, and migration of a namespace") else 501)

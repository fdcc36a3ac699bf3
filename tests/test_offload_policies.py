"""What is not built but can be asked about: offload policies, shadow topics and migration.

compat_tests/test_offload_policies.py compares the answers with Apache Pulsar's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.admin import offload_policies
from pyxbroker.admin.namespace_record import new_record
from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.policies.change_events import TopicRecord, decode, encode
from pyxbroker.settings.config import Config
from pyxbroker.web.errors import HttpError
from test_admin_topics import DONE, Rest, run

NS = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"
NAME = TopicName.get("persistent://public/default/t")
NOTHING = (204, None)
ON_DISK = {"managedLedgerOffloadDriver": "filesystem"}
KINDS = {"s3Driver": False, "gcsDriver": False, "fileSystemDriver": False}


def whole(**given: Any) -> dict[str, Any]:
    return {**offload_policies.DEFAULTS, **KINDS, **given}


def test_what_nobody_has_set_can_be_read_and_removed(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        for path, expected in (
            (f"{NS}/offloadThreshold", (200, -1)),
            (f"{NS}/offloadThresholdInSeconds", (200, -1)),
            (f"{NS}/offloadDeletionLagMs", NOTHING),
            (f"{NS}/offloadPolicies", NOTHING),
            (f"{TOPIC}/offloadPolicies", NOTHING),
            (f"{TOPIC}/offloadPolicies?applied=true", NOTHING),
            (f"{TOPIC}/shadowTopics", NOTHING),
        ):
            assert await rest("GET", path) == expected, path
        assert (await rest("GET", f"{TOPIC}/offload"))[1]["status"] == "NOT_RUN"
        migration = await rest.reason("GET", "/admin/v2/clusters/standalone/migrate")
        assert migration == (404, "Cluster does not exist")
        for path in (
            f"{NS}/offloadDeletionLagMs",
            f"{NS}/removeOffloadPolicies",
            f"{TOPIC}/offloadPolicies",
            f"{TOPIC}/shadowTopics",
        ):
            assert await rest("DELETE", path) == DONE, path
        assert await rest("POST", f"{NS}/migration", "false") == DONE
        assert (await rest("POST", f"{NS}/migration", "true"))[0] == 501

    run(tmp_path, scenario)


def test_numbers_of_offloading_are_stored_in_the_offload_policies(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{NS}/offloadThreshold", "-1") == DONE
        assert await rest("PUT", f"{NS}/offloadThresholdInSeconds", "60") == (200, None)
        assert await rest("PUT", f"{NS}/offloadDeletionLagMs", "70") == DONE
        numbers = {
            "managedLedgerOffloadThresholdInBytes": -1,
            "managedLedgerOffloadThresholdInSeconds": 60,
            "managedLedgerOffloadDeletionLagInMillis": 70,
        }
        assert await rest("GET", f"{NS}/offloadPolicies") == (200, whole(**numbers))
        assert await rest("GET", f"{NS}/offloadDeletionLagMs") == (200, 70)
        record = await rest.broker.topics.policies.namespace_fields("public/default")
        assert record["offload_policies"] == whole(**numbers)
        assert await rest("DELETE", f"{NS}/offloadDeletionLagMs") == DONE
        assert await rest("GET", f"{NS}/offloadDeletionLagMs") == NOTHING
        assert await rest("GET", f"{NS}/offloadThresholdInSeconds") == (200, 60)
        assert await rest("DELETE", f"{NS}/removeOffloadPolicies") == DONE
        assert await rest("GET", f"{NS}/offloadThresholdInSeconds") == (200, -1)

    run(tmp_path, scenario)


def test_fields_of_older_brokers_are_read_and_replaced(tmp_path: Path) -> None:
    older = {"offload_threshold": 4, "offload_threshold_in_seconds": -1}
    lag = {"offload_deletion_lag_ms": 6}

    async def scenario(rest: Rest) -> None:
        path = paths.namespace_policies("public/default")
        await rest.broker.node.store.put(path, json.dumps(older | lag).encode())
        assert await rest("GET", f"{NS}/offloadThreshold") == (200, 4)
        assert await rest("GET", f"{NS}/offloadDeletionLagMs") == (200, 6)
        assert await rest("GET", f"{NS}/offloadPolicies") == NOTHING
        assert await rest("PUT", f"{NS}/offloadThreshold", "5") == DONE
        assert await rest.broker.topics.policies.namespace_fields("public/default") == {
            **{"offload_threshold": -1, "offload_threshold_in_seconds": -1},
            "offload_policies": whole(
                managedLedgerOffloadThresholdInBytes=5, managedLedgerOffloadDeletionLagInMillis=6
            ),
        }

    run(tmp_path, scenario)


def test_offload_policies_of_a_topic_apply_before_those_of_its_namespace(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        of_topic = {**ON_DISK, "managedLedgerOffloadThresholdInBytes": 5}
        path = f"{TOPIC}/offloadPolicies"
        assert await rest("POST", path, json.dumps(of_topic)) == DONE
        told = whole(**of_topic, fileSystemDriver=True)
        assert await rest("GET", path) == (200, told)
        assert await rest("PUT", f"{NS}/offloadThreshold", "77") == DONE
        assert await rest("PUT", f"{NS}/offloadDeletionLagMs", "88") == DONE
        lag = {"managedLedgerOffloadDeletionLagInMillis": 88}
        assert await rest("GET", f"{path}?applied=true") == (200, told | lag)
        assert await rest("DELETE", path) == DONE
        applied = whole(managedLedgerOffloadThresholdInBytes=77, **lag)
        assert await rest("GET", f"{path}?applied=true") == (200, applied)
        assert await rest("GET", path) == NOTHING

    run(tmp_path, scenario)


def test_shadow_topics_that_another_broker_has_set_are_told_and_removed(tmp_path: Path) -> None:
    shadows = ["persistent://public/default/shadow"]

    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        await rest.broker.topics.policies.records.update(
            NAME, False, lambda _: {"shadowTopics": shadows}
        )
        assert await rest("GET", f"{TOPIC}/shadowTopics") == (200, shadows)
        assert await rest("DELETE", f"{TOPIC}/shadowTopics") == DONE
        assert await rest("GET", f"{TOPIC}/shadowTopics") == NOTHING
        refused = await rest.reason("PUT", f"{TOPIC}/shadowTopics", json.dumps(shadows))
        assert refused[0] == 501

    run(tmp_path, scenario)


def test_a_migration_that_another_broker_has_set_is_told(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        path = paths.cluster_policies("standalone")
        await rest.broker.node.store.put(path, b'{"migrated":true}')
        told = await rest("GET", "/admin/v2/clusters/standalone/migrate")
        assert told == (200, {"migrated": True})

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 412),
        ({"managedLedgerOffloadDriver": "tape"}, 412),
        ({"managedLedgerOffloadDriver": "aws-s3"}, 412),
        ({"managedLedgerOffloadDriver": "aws-s3", "gcsManagedLedgerOffloadBucket": "b"}, 412),
        ({"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "b"}, 204),
        ({"managedLedgerOffloadDriver": "S3", "managedLedgerOffloadBucket": "b"}, 204),
        ({"managedLedgerOffloadDriver": "azureblob", "s3ManagedLedgerOffloadBucket": "b"}, 412),
        ({**ON_DISK, "managedLedgerOffloadMaxThreads": 1 << 31}, 400),
        ({**ON_DISK, "managedLedgerOffloadThresholdInBytes": 1 << 31}, 204),
        ({**ON_DISK, "managedLedgerExtraConfigurations": {"a": 1, "b": None}}, 204),
        ({**ON_DISK, "managedLedgerExtraConfigurations": {"a": []}}, 400),
        ({**ON_DISK, "managedLedgerExtraConfigurations": ["a"]}, 400),
        ({**ON_DISK, "managedLedgerOffloadedReadPriority": "TIERED_STORAGE_FIRST"}, 204),
        ([], 400),
        (None, 412),
    ],
)
def test_offload_policies_that_no_broker_could_read_are_refused(
    body: Any, status: int, tmp_path: Path
) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        for base in (NS, TOPIC):
            answer, _ = await rest("POST", f"{base}/offloadPolicies", json.dumps(body))
            assert answer == status
            told, found = await rest("GET", f"{base}/offloadPolicies")
            assert told == (200 if status == 204 else 204)
            if found is not None:
                texts = "managedLedgerExtraConfigurations"
                expected = body | {texts: {"a": "1"} if texts in body else {}}
                assert {name: found[name] for name in expected} == expected

    run(tmp_path, scenario)


def test_a_new_namespace_has_whole_offload_policies() -> None:
    with pytest.raises(HttpError):
        new_record({"offload_policies": {"managedLedgerOffloadMaxThreads": "many"}}, Config())
    record = new_record({"offload_policies": {"managedLedgerOffloadMaxThreads": 3}}, Config())
    assert record["offload_policies"] == whole(managedLedgerOffloadMaxThreads=3)


def test_offload_policies_fit_into_the_record_of_a_topic() -> None:
    policies = offload_policies.read(ON_DISK | {"managedLedgerExtraConfigurations": {"a": "b"}})
    record = TopicRecord(NAME, False, {"offloadPolicies": policies})
    found = decode(encode(record, "standalone"))
    assert found is not None
    assert found.fields["offloadPolicies"].items() >= policies.items()

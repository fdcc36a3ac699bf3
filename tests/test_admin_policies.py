"""REST of policies of namespaces and topics: set, told, applied and removed, in Pulsar's words."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from one_bookie import until
from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.policy_checks import QUOTA_TYPES
from pyxbroker.admin.policy_table import (
    BACKLOG_QUOTA,
    DELAYED_DELIVERY,
    OF_SUBSCRIPTION,
    ROWS,
    PolicyEndpoint,
    Row,
)
from pyxbroker.admin.resources import namespace_policies, topic_policies
from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.policies.resolver import Record, resolve
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.table import TABLE, of_broker
from pyxbroker.policies.values import BacklogQuota, DispatchRate, Policies
from pyxbroker.settings.config import Config
from test_admin_topics import DONE, Rest, run

NS = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"
NP = "/admin/v2/non-persistent/public/default/t"
NAME = TopicName.get("persistent://public/default/t")
SECONDS_MAX = 30.0  # until a change is in force, on a machine that others use
EMPTY = (204, None)
QUOTA = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}

# What is set for a row where a number that its type allows would be refused.
VALUES: dict[str, Any] = {
    "subscriptionAuthMode": "Prefix",
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 2.5,
    },
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 99,
        "deleteWhileInactive": True,
    },
    "autoTopicCreation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "subscriptionTypesEnabled": ["Shared", "Exclusive"],
    "encryptionRequired": True,
    "schemaCompatibilityStrategy": "FORWARD",
    "schemaAutoUpdateCompatibilityStrategy": "Forward",
    "isAllowAutoUpdateSchema": False,
    "schemaValidationEnforced": True,
    "deduplication": True,
    "deduplicationEnabled": True,
    "delayedDelivery": {"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 60_000},
}


def value_of(row: Row, segment: str) -> Any:
    if row.body is None:
        return True
    if segment in VALUES:
        return VALUES[segment]
    if row.body.value is not None:
        return 7
    kinds = {"integer": 7, "boolean": False}
    return {name: kinds[field.kind] for name, field in row.body.fields.items()}


def unset_of(row: Row) -> Any:
    """What is told where nothing is set."""
    value = row.unset(Config())
    return EMPTY if value is None else (200, value)


def rows(level: str) -> Any:
    """Each row that has a endpoint at a level; delayed delivery is one at both."""
    found = [row for row in (*ROWS, DELAYED_DELIVERY) if getattr(row, level) is not None]
    return pytest.mark.parametrize("row", found, ids=[getattr(row, level).segment for row in found])


async def put(rest: Rest, method: str, path: str, row: Row, value: Any, query: str = "") -> Any:
    endpoint = row.topic if path.startswith((TOPIC, NP)) else row.namespace
    assert endpoint is not None
    if endpoint.query:
        return await rest(method, f"{path}?{endpoint.query}={value}{query and '&' + query}")
    body = json.dumps(value) if row.body is not None else ""
    return await rest(method, f"{path}?{query}", body)


# --- of namespaces --------------------------------------------------------------------------------


@rows("namespace")
def test_a_policy_of_a_namespace_is_set_told_and_removed(row: Row, tmp_path: Path) -> None:
    endpoint = row.namespace
    assert endpoint is not None
    path = f"{NS}/{endpoint.segment}"
    value = value_of(row, endpoint.segment)

    async def scenario(rest: Rest) -> None:
        unset = await rest("GET", path)
        assert unset == unset_of(row)
        assert await put(rest, endpoint.method, path, row, value) == DONE
        assert await rest("GET", path) == (200, value)
        record = await rest.broker.topics.policies.namespace_fields("public/default")
        told, refusals = resolve(
            [Record(Level.NAMESPACE, "n", record)], of_broker(Config()), Policies(), "standalone"
        )
        assert refusals == [], "what REST takes is what the table of policies reads"
        # What they are of is not built: they are kept.
        if endpoint.segment not in ("replicatorDispatchRate", "subscriptionAuthMode"):
            assert told != of_broker(Config()), "and it makes a difference"
        if endpoint.removes:
            assert await rest("DELETE", path) == DONE
            empty = [] if row.body is not None and row.body.names else None
            assert await rest("GET", path) == ((200, []) if empty == [] else unset)
        missing = path.replace("default", "none")
        answer = (404, {"reason": ANY})
        assert await rest("GET", missing) == answer
        assert await put(rest, endpoint.method, missing, row, value) == answer

    run(tmp_path, scenario)


def test_what_a_record_says_besides_is_kept(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        record = {
            "publishMaxMessageRate": {"elsewhere": {"x": 1}},
            "unknown": [1],
            "deleted": False,
        }
        path = paths.namespace_policies("public/default")
        await rest.broker.node.store.put(path, json.dumps(record).encode())
        rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
        assert await rest("POST", f"{NS}/publishRate", json.dumps(rate)) == DONE
        found = await rest.broker.node.store.get(path)
        assert found is not None
        rates = {"elsewhere": {"x": 1}, "standalone": rate}
        assert json.loads(found.value) == record | {"publishMaxMessageRate": rates}
        assert await rest("DELETE", f"{NS}/publishRate") == DONE
        found = await rest.broker.node.store.get(path)
        assert found is not None and json.loads(found.value) == record

    run(tmp_path, scenario)


def test_quotas_of_a_namespace_are_in_one_map(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("GET", f"{NS}/backlogQuotaMap") == (200, {})
        size = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
        assert await rest("POST", f"{NS}/backlogQuota", json.dumps(size)) == DONE
        age = {"limitTime": 77, "policy": "consumer_backlog_eviction"}
        query = "?backlogQuotaType=message_age"
        assert await rest("POST", f"{NS}/backlogQuota{query}", json.dumps(age)) == DONE
        both = {
            "destination_storage": size | {"limit": 1000},
            "message_age": age | {"limit": 0, "limitSize": 0},
        }
        assert await rest("GET", f"{NS}/backlogQuotaMap") == (200, both)
        policies = await rest.broker.topics.policies.of_topic(NAME)
        assert policies.backlog_size == BacklogQuota(1000, "producer_exception")
        assert policies.backlog_age == BacklogQuota(77, "consumer_backlog_eviction")
        assert await rest("DELETE", f"{NS}/backlogQuota") == DONE
        assert await rest("GET", f"{NS}/backlogQuotaMap") == (
            200,
            {"message_age": both["message_age"]},
        )
        assert (await rest("POST", f"{NS}/backlogQuota?backlogQuotaType=x", "{}"))[0] == 400

    run(tmp_path, scenario)


# --- of topics ------------------------------------------------------------------------------------


@rows("topic")
@pytest.mark.parametrize("path", [TOPIC, NP], ids=["persistent", "non-persistent"])
def test_a_policy_of_a_topic_is_set_told_applied_and_removed(
    row: Row, path: str, tmp_path: Path
) -> None:
    endpoint = row.topic
    assert endpoint is not None
    value = value_of(row, endpoint.segment)
    method, unset = endpoint.method, unset_of(row)

    async def scenario(rest: Rest) -> None:
        domain, _, rest_of_name = path.removeprefix("/admin/v2/").partition("/")
        name = TopicName.get(f"{domain}://{rest_of_name}")
        topic = await rest.broker.topics.loader.get(name, create=True)
        at = f"{path}/{endpoint.segment}"
        before = topic.policies
        # A topic that is not kept waits for nobody, and has no rates.
        differs = endpoint.segment != "replicatorDispatchRate" and not (
            path == NP and ("Unacked" in endpoint.segment or "ispatchRate" in endpoint.segment)
        )
        applied_before = await rest("GET", at + "?applied=true")
        assert await rest("GET", at) == unset
        assert await put(rest, method, at, row, value) == DONE
        assert await rest("GET", at) == (200, value)
        assert await rest("GET", at + "?isGlobal=true") == unset
        if differs:
            await until(lambda: topic.policies != before, SECONDS_MAX)
        if row.applied is not None:
            assert await rest("GET", at + "?applied=true") == (200, value)
            assert applied_before[0] == 200
        if not endpoint.removes:
            return
        assert await rest("DELETE", at) == DONE
        assert await rest("GET", at) == unset
        await until(lambda: topic.policies == before, SECONDS_MAX)
        # The record that all clusters share is another one, and is asked second.
        assert await put(rest, method, at, row, value, "isGlobal=true") == DONE
        assert await rest("GET", at) == unset
        assert await rest("GET", at + "?isGlobal=true") == (200, value)
        if row.applied is not None:
            assert await rest("GET", at + "?applied=true") == (200, value)

    run(tmp_path, scenario)


def test_inactive_topics_need_no_mode(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        sent = {"maxInactiveDurationSeconds": 900, "deleteWhileInactive": True}
        for base in (NS, TOPIC):
            assert await rest("POST", f"{base}/inactiveTopicPolicies", json.dumps(sent)) == DONE
            assert await rest("GET", f"{base}/inactiveTopicPolicies") == (200, sent)
            policies = await rest.broker.topics.policies.of_topic(NAME)
            assert policies.inactive_topics == (True, "delete_when_no_subscriptions", 900.0)

    run(tmp_path, scenario)


def test_quotas_of_a_topic(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        none = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
        applied = f"{TOPIC}/backlogQuotaMap?applied=true"
        assert await rest("GET", applied) == (200, dict.fromkeys(QUOTA_TYPES, none))
        quota = {"limit": 1000, "policy": "producer_exception"}
        assert await rest("POST", f"{TOPIC}/backlogQuota", json.dumps(quota)) == DONE
        whole = quota | {"limitSize": 1000, "limitTime": 0}
        assert await rest("GET", applied) == (
            200,
            {"destination_storage": whole | {"limitTime": -1}, "message_age": none},
        )
        own = (200, {"destination_storage": whole})
        assert await rest("GET", f"{TOPIC}/backlogQuotaMap") == own
        assert await rest("DELETE", f"{TOPIC}/backlogQuota") == DONE
        assert await rest("GET", f"{TOPIC}/backlogQuotaMap") == (200, {})

    run(tmp_path, scenario)


def test_one_subscription_has_a_rate_of_its_own(tmp_path: Path) -> None:
    rate = {
        "dispatchThrottlingRateInMsg": 41,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }

    async def scenario(rest: Rest) -> None:
        topic = await rest.broker.topic()
        path = f"{TOPIC}/s%2F1/dispatchRate"
        assert await rest("GET", path) == EMPTY
        assert await rest("POST", path, json.dumps(rate)) == DONE
        assert await rest("GET", path) == (200, rate)
        await until(lambda: bool(topic.policies.dispatch_rates_of), SECONDS_MAX)
        assert topic.policies.dispatch_rate_of("s/1") == DispatchRate(41, 0)
        assert topic.policies.dispatch_rate_of("s") == DispatchRate()
        every = rate | {"dispatchThrottlingRateInMsg": 7}
        assert await rest("POST", f"{TOPIC}/subscriptionDispatchRate", json.dumps(every)) == DONE
        applied = await rest("GET", path + "?applied=true")
        assert applied == (200, rate | {"dispatchThrottlingRateInByte": 0})
        assert await rest("DELETE", path) == DONE
        assert await rest("GET", path) == EMPTY
        assert "subscriptionPolicies" not in rest.broker.topics.policies.records.fields(NAME, False)
        applied = await rest("GET", path + "?applied=true")
        assert applied[1]["dispatchThrottlingRateInMsg"] == 7
        long = f"{TOPIC}/{'x' * 5000}/dispatchRate"
        assert (await rest("POST", long, json.dumps(rate)))[0] == 412

    run(tmp_path, scenario)


def test_policies_of_topics_are_of_those_that_are_there(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        missing = (404, {"reason": f"Topic {NAME} not found"})
        assert await rest("GET", f"{TOPIC}/maxProducers") == missing
        assert await rest("POST", f"{TOPIC}/maxProducers", "1") == missing
        assert await rest("PUT", f"{TOPIC}/partitions", "2") == DONE
        assert await rest("POST", f"{TOPIC}/maxProducers", "1") == DONE
        partition = (412, {"reason": "Not allowed to set/get topic policy for a partition"})
        assert await rest("POST", f"{TOPIC}-partition-0/maxProducers", "1") == partition
        nowhere = TOPIC.replace("default", "none")
        assert await rest("GET", f"{nowhere}/maxProducers") == (
            404,
            {"reason": "Namespace not found"},
        )

    run(tmp_path, scenario)


def test_policies_of_topics_may_be_switched_off(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        text = "Topic level policies is disabled, to enable the topic level policy and retry."
        for method, body in (("GET", ""), ("POST", "1"), ("DELETE", "")):
            assert await rest(method, f"{TOPIC}/maxProducers", body) == (405, {"reason": text})

    run(tmp_path, scenario, topicLevelPoliciesEnabled=False)


# --- values that cannot be ------------------------------------------------------------------------


RETENTION_0 = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the"
    " limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To"
    " disable retention both limits must be set to 0."
)
WHOLE = "a whole number of at most 32 bits"
AUTO = "Invalid configuration for autoTopicCreationOverride. the detail is "


def persistence(ensemble: int, write: int, ack: int) -> dict[str, Any]:
    return {
        "bookkeeperEnsemble": ensemble,
        "bookkeeperWriteQuorum": write,
        "bookkeeperAckQuorum": ack,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    }


def retention(minutes: int, megabytes: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


@pytest.mark.parametrize(
    ("target", "body", "status", "text"),
    [
        (f"{NS}/messageTTL", -1, 412, "Invalid value for message TTL, message TTL must >= 0"),
        (f"{NS}/maxProducersPerTopic", -1, 412, "maxProducersPerTopic must be 0 or more"),
        (f"{NS}/maxTopicsPerNamespace", -5, 412, "maxTopicsPerNamespace must be 0 or more"),
        (f"{NS}/maxProducersPerTopic", "1.5", 400, f"The value must be {WHOLE}, not '1.5'."),
        (f"{NS}/maxProducersPerTopic", True, 400, f"The value must be {WHOLE}, not True."),
        (
            f"{NS}/maxProducersPerTopic",
            1 << 31,
            400,
            f"The value must be {WHOLE}, not 2147483648.",
        ),
        (f"{NS}/maxProducersPerTopic", None, 400, "The request entity cannot be empty."),
        (f"{NS}/retention", retention(0, 5), 400, RETENTION_0),
        (f"{NS}/retention", retention(5, 0), 400, RETENTION_0),
        (
            f"{NS}/retention",
            retention(-2, 5),
            400,
            "Invalid retention policy: time limit must be >= -1",
        ),
        (
            f"{NS}/retention",
            retention(5, -2),
            400,
            "Invalid retention policy: size limit must be >= -1",
        ),
        (f"{NS}/retention", [], 400, "The body must be a JSON object, not []."),
        (
            f"{NS}/persistence",
            persistence(6, 1, 1),
            400,
            "Bookkeeper-Ensemble must be <= 5 and > 0.",
        ),
        (
            f"{NS}/persistence",
            persistence(1, 0, 1),
            400,
            "Bookkeeper-WriteQuorum must be <= 5 and > 0.",
        ),
        (
            f"{NS}/persistence",
            persistence(1, 2, 1),
            400,
            "Bookkeeper Ensemble (1) >= WriteQuorum (2) >= AckQuorum (1)",
        ),
        (
            f"{NS}/autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "x"},
            412,
            AUTO + "Unknown topic type [x]",
        ),
        (
            f"{NS}/autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned"},
            412,
            AUTO + "[defaultNumPartitions] cannot be null when the type is partitioned.",
        ),
        (
            f"{NS}/subscriptionTypesEnabled",
            ["Shared", "Other"],
            400,
            "A name must be one of Exclusive, Shared, Failover, Key_Shared, not 'Other'.",
        ),
        (f"{TOPIC}/maxProducers", -1, 412, "maxProducers must be 0 or more"),
        (f"{TOPIC}/maxUnackedMessagesOnConsumer", -1, 412, "maxUnackedNum must be 0 or more"),
        (
            f"{TOPIC}/maxConsumersPerSubscription",
            -1,
            412,
            "Invalid value for maxConsumersPerSubscription",
        ),
        (
            f"{TOPIC}/maxMessageSize",
            1 << 30,
            412,
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than"
            " that in the broker-level",
        ),
        (f"{TOPIC}/messageTTL?messageTTL=-1", None, 412, "Invalid value for message TTL"),
        (
            f"{TOPIC}/messageTTL?messageTTL=x",
            None,
            400,
            "messageTTL must be a whole number of at most 64 bits, not 'x'.",
        ),
        (f"{TOPIC}/backlogQuota", {}, 400, "The policy of a backlog quota cannot be null."),
        (
            f"{NS}/inactiveTopicPolicies",
            {"inactiveTopicDeleteMode": "nope"},
            400,
            "inactiveTopicDeleteMode must be one of delete_when_no_subscriptions,"
            " delete_when_subscriptions_caught_up, not 'nope'.",
        ),
        (
            f"{NS}/delayedDelivery",
            {"tickTime": -1, "active": True},
            400,
            "delayed_delivery_policies.tickTime: -1: expected a whole number from 0",
        ),
        (
            f"{TOPIC}/delayedDelivery",
            {"tickTime": -1, "active": True},
            400,
            "delayedDeliveryTickTimeMillis: -1: expected a whole number from 0",
        ),
        (
            f"{NS}/autoTopicCreation",
            {"allowAutoTopicCreation": False, "defaultNumPartitions": -3},
            400,
            "autoTopicCreationOverride: defaultNumPartitions -3: expected a whole number from 0",
        ),
        *(
            (
                f"{base}/subscribeRate",
                {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 86_401},
                412,
                "ratePeriodInSecond must be <= 86400.",
            )
            for base in (NS, TOPIC)
        ),
        *(
            (
                f"{base}/persistence",
                persistence(1, 1, 1) | {"managedLedgerMaxMarkDeleteRate": 1e19},
                400,
                "persistence: managedLedgerMaxMarkDeleteRate 1e+19: expected a number up to"
                " 9223372036854775807",
            )
            for base in (NS, TOPIC)
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_changes_nothing(
    target: str, body: Any, status: int, text: str, tmp_path: Path
) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        path = paths.namespace_policies("public/default")
        before = await rest.broker.node.store.get(path)
        sent = "" if "?" in target else json.dumps(body) if body is not None else "null"
        assert await rest("POST", target, sent) == (status, {"reason": text})
        assert await rest.broker.node.store.get(path) == before
        assert rest.broker.topics.policies.records.fields(NAME, False) == {}

    run(tmp_path, scenario)


def test_without_a_body_a_topic_that_is_missing_is_told_before_an_object_that_is(
    tmp_path: Path,
) -> None:
    """As Apache Pulsar 4.2 does; a number or a truth value it asks for before it looks."""
    missing = "/admin/v2/persistent/public/default/none"
    nowhere = "/admin/v2/persistent/public/none/t"
    objects = ("dispatchRate", "persistence", "publishRate", "retention", "subscribeRate")
    no_topic = {"reason": "Topic persistent://public/default/none not found"}

    async def scenario(rest: Rest) -> None:
        for segment in (*objects, "subscriptionDispatchRate", "s/dispatchRate"):
            assert await rest("POST", f"{missing}/{segment}", "") == (404, no_topic)
            status, _ = await rest("POST", f"{nowhere}/{segment}", "")
            assert status == 404
        for segment in ("maxConsumers", "maxProducers", "schemaValidationEnforced"):
            status, _ = await rest("POST", f"{missing}/{segment}", "")
            assert status == 400

    run(tmp_path, scenario)


@pytest.mark.parametrize("nothing", ["", "null", " null "])
@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_no_value_removes_a_policy_or_is_refused(level: str, nothing: str, tmp_path: Path) -> None:
    """As pulsar-admin removes some; where nobody means anything by it nothing changes."""
    base = NS if level == "namespace" else TOPIC

    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        outcomes = set()
        for row in (*ROWS, DELAYED_DELIVERY, BACKLOG_QUOTA):
            endpoint: PolicyEndpoint | None = getattr(row, level)
            if endpoint is None or row.body is None:
                continue
            path = f"{base}/{endpoint.segment}"
            value = QUOTA if row is BACKLOG_QUOTA else value_of(row, endpoint.segment)
            assert await put(rest, endpoint.method, path, row, value) == DONE
            before = await fields_at(rest, level)
            answer = await rest(endpoint.method, path, "" if endpoint.query else nothing)
            after = await fields_at(rest, level)
            if endpoint.null_removes:
                assert answer == DONE, path
                assert after != before, path
            else:
                assert answer[0] == 400, path
                assert after == before, path
            outcomes.add((answer[0], endpoint.segment == "deduplicationSnapshotInterval"))
        assert {(204, True), (204, False), (400, False)} == outcomes

    run(tmp_path, scenario)


# As JSON has them, at the ends of what a row lets through.
NUMBERS = ["-9223372036854775809", "-3000000000", "-2", "-1", "0", "1", "2147483647", "9" * 18]
NUMBERS += ["1e300", "1e999", "NaN", "-Infinity", "9" * 400]


def bodies_of(row: Row) -> list[str]:
    """What a client might send: nothing, one field after another with each number, half of it."""
    assert row.body is not None
    if row.body.value is not None:
        return [*NUMBERS, "true", '"x"']
    if row.body.names:
        return ['[""]', "[null]", '["Shared"]', "{}"]
    values: dict[str, list[str]] = {
        "boolean": ["true", "false"],
        "integer": NUMBERS,
        "number": NUMBERS,
    }
    bodies = ["{}"]
    for name, field in row.body.fields.items():
        texts = [f'"{each}"' for each in field.choices] or values.get(field.kind, ['"partitioned"'])
        bodies += [f'{{"{name}":{text}}}' for text in texts]
        whole = {other: json.dumps(7) for other in row.body.fields}
        for other, each in row.body.fields.items():
            if each.kind == "boolean":
                whole[other] = "false"
            elif each.kind == "string":
                whole[other] = f'"{each.choices[0]}"' if each.choices else '"partitioned"'
            elif other.startswith("bookkeeper"):
                whole[other] = "1"
        for text in texts:
            fields = ",".join(f'"{k}":{v}' for k, v in (whole | {name: text}).items())
            bodies.append(f"{{{fields}}}")
    return bodies


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_what_is_taken_is_no_value_that_its_policy_refuses(level: str, tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        taken = refused = 0
        for row in (*ROWS, DELAYED_DELIVERY, BACKLOG_QUOTA, OF_SUBSCRIPTION):
            endpoint = row.namespace if level == "namespace" else row.topic
            if endpoint is None or row.body is None or endpoint.query:
                continue
            path = f"{NS if level == 'namespace' else TOPIC}/{endpoint.segment}"
            path = path.replace("{subName}", "s")
            for body in bodies_of(row):
                before = await fields_at(rest, level)
                status, answer = await rest(endpoint.method, path, body)
                after = await fields_at(rest, level)
                if status == 204:
                    taken += 1
                    record = Record(Level(level), "it", after)
                    found = resolve([record], of_broker(Config()), Policies(), "standalone")
                    assert found[1] == [], (path, body)
                    json.dumps(after, allow_nan=False)
                else:
                    refused += 1
                    assert status in (400, 412) and answer["reason"], (path, body, answer)
                    assert after == before
                await rest("DELETE", path)
        assert taken > 100 and refused > 100

    run(tmp_path, scenario)


async def fields_at(rest: Rest, level: str) -> dict[str, Any]:
    if level == "namespace":
        return await rest.broker.topics.policies.namespace_fields("public/default")
    return rest.broker.topics.policies.records.fields(NAME, False)


def test_a_record_that_is_refused_already_can_still_be_changed(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        path = paths.namespace_policies("public/default")
        quotas = b'{"backlog_quota_map":{"message_age":{"limitTime":"x"},"destination_storage":1}}'
        await rest.broker.node.store.put(path, quotas)
        assert await rest("POST", f"{NS}/retention", json.dumps(retention(10, 2))) == DONE
        await rest.broker.node.store.put(path, b'{"persistence":7,"message_ttl_in_seconds":"x"}')
        assert await rest("POST", f"{NS}/messageTTL", "5") == DONE
        assert await rest("DELETE", f"{NS}/persistence") == DONE
        assert await rest.broker.topics.policies.namespace_fields("public/default") == {
            "message_ttl_in_seconds": 5
        }

    run(tmp_path, scenario)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_refused(number: str, tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        body = json.dumps(persistence(1, 1, 1)).replace("1.0", number)
        assert (await rest("POST", f"{NS}/persistence", body))[0] == 400
        known = f'{{"offload_policies":{{"x":{number}}}}}'
        status, answer = await rest("PUT", "/admin/v2/namespaces/public/new", known)
        assert status == 400 and answer["reason"]
        assert (await rest("GET", "/admin/v2/namespaces/public/new"))[0] == 404

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("base", "what"), [(NS, "namespace"), (TOPIC, "topic")], ids=["namespace", "topic"]
)
def test_a_quota_and_a_retention_that_conflict_are_refused(
    base: str, what: str, tmp_path: Path
) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic()
        retry = "Please increase retention quota and retry"
        quota = {"limitSize": 2 << 20, "policy": "producer_exception"}
        assert await rest("POST", f"{base}/retention", json.dumps(retention(10, 2))) == DONE
        assert await rest("POST", f"{base}/backlogQuota", json.dumps(quota)) == (
            412,
            {"reason": f"Backlog Quota exceeds configured retention quota for {what}. {retry}"},
        )
        smaller = quota | {"limitSize": (2 << 20) - 1}
        assert await rest("POST", f"{base}/backlogQuota", json.dumps(smaller)) == DONE
        too_small = await rest("POST", f"{base}/retention", json.dumps(retention(10, 1)))
        assert too_small[0] == 412
        assert f"must exceed configured backlog quota for {what}" in too_small[1]["reason"]
        age = {"limitTime": 600, "policy": "producer_exception"}
        query = "?backlogQuotaType=message_age"
        assert (await rest("POST", f"{base}/backlogQuota{query}", json.dumps(age)))[0] == 412

    run(tmp_path, scenario)


def test_changes_of_a_namespace_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        segments = ("maxProducersPerTopic", "maxConsumersPerTopic", "maxSubscriptionsPerTopic")
        answers = await asyncio.gather(*(rest("POST", f"{NS}/{each}", "3") for each in segments))
        assert answers == [DONE] * 3
        for each in segments:
            assert await rest("GET", f"{NS}/{each}") == (200, 3)

    run(tmp_path, scenario)


# --- the table ------------------------------------------------------------------------------------


def test_each_place_of_a_policy_is_set_by_a_row() -> None:
    """What the other table reads, REST can set."""
    faces = [
        (level, endpoint.path)
        for row in (*ROWS, BACKLOG_QUOTA, OF_SUBSCRIPTION)
        for level, endpoint in ((Level.NAMESPACE, row.namespace), (Level.TOPIC, row.topic))
        if endpoint is not None
    ]
    delays = {"delayed_delivery", "delay_tick_ms", "delay_max_ms"}
    for policy in TABLE:
        for level, places in policy.paths.items():
            # The other place of a dispatch rate is an older name: it is read only.
            assert policy.name in delays or any(
                (level, place) in faces or (level, place[:1]) in faces for place in places
            ), policy.name


def test_each_endpoint_of_a_policy_says_what_it_does() -> None:
    verbs = {"GET": "Returns ", "POST": "Sets ", "PUT": "Sets ", "DELETE": "Removes "}
    endpoints = (*namespace_policies.ENDPOINTS, *topic_policies.ENDPOINTS)
    assert {each.method for each in endpoints} == set(verbs)
    for each in endpoints:
        assert each.summary.startswith(verbs[each.method]), each.path
        about = each.summary.removeprefix(verbs[each.method])
        about = re.sub("^a (topic|namespace)'s policy: ", "", about)
        assert about.startswith(("how ", "what ", "whether ", "when ", "which ", "after ")), about


def test_numbers_are_read_as_json_has_them() -> None:
    assert Body(Field("number")).read(3) == 3.0
    assert Body(fields={"a": Field("integer", 5)}).read({"b": 1}) == {"a": 5}

"""Policies by REST, set at each level, told, applied, removed (BROKER=apache asks Pulsar)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness.brokers import Broker

from compat_tests.policy_cases import CASES, GLOBAL, NAMESPACE, TOPIC, Case, Place, case_of, until
from compat_tests.test_rest_answers import DONE, ask_json, local
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.table import TABLE

PERSISTENCE = case_of("persistence").value
EVERY_LEVEL = [(case, level) for case in CASES for level in case.levels]


@pytest.fixture(scope="module")
def namespace(broker: Broker) -> Iterator[str]:
    """The path of a namespace of its own."""
    path = "/admin/v2/namespaces/public/of-policies"
    assert broker.request("PUT", path)[0] == 204
    yield path
    broker.request("DELETE", path + "?force=true")


@pytest.fixture
def own_topic(broker: Broker, namespace: str, topic: str) -> str:
    """The path of a topic of its own in that namespace."""
    path = f"{namespace.replace('namespaces', 'persistent')}/{local(topic)}"
    assert broker.request("PUT", path) == DONE
    return path


@pytest.mark.parametrize(
    ("case", "level"), EVERY_LEVEL, ids=lambda each: getattr(each, "name", each)
)
def test_a_policy_is_set_told_applied_and_removed(
    broker: Broker, namespace: str, own_topic: str, case: Case, level: str
) -> None:
    place = Place(broker, case, level, namespace if level == NAMESPACE else own_topic)
    of_topic = place._replace(level=TOPIC, base=own_topic) if case.topic else None
    before = of_topic and of_topic.applied()
    assert place.told() == case.unset
    assert place.set(case.value)[0] in (200, 204)
    assert place.told() == case.expected
    if level in (TOPIC, GLOBAL):
        (other,) = {TOPIC, GLOBAL} - {level}
        assert place._replace(level=other).told() is None
    if of_topic and (case.has_applied or level == TOPIC):
        until(lambda: of_topic.applied() == case.expected, "applied")
    assert place.remove()[0] in (200, 204)
    assert place.told() == case.unset
    if of_topic:
        until(lambda: of_topic.applied() == before, "applied as before")


def test_each_policy_that_can_be_set_has_a_case_at_each_of_its_levels() -> None:
    for policy in TABLE:
        levels = {{Level.NAMESPACE: NAMESPACE, Level.TOPIC: TOPIC}[each] for each in policy.paths}
        if levels:
            assert set(case_of(policy.name).levels) - {GLOBAL} == levels, policy.name


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


def told(broker: Broker, path: str) -> Any:
    """What stands at a path; None for 204."""
    status, text = broker.request("GET", path)
    assert (status, bool(text)) in ((200, True), (204, False)), (status, text)
    return json.loads(text) if text else None


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
    until(lambda: told(broker, segment) == 3)
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

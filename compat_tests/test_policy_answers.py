"""Policies by REST, set at each level, told, applied, removed (BROKER=apache asks Pulsar)."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import Broker

from compat_tests.policy_cases import (
    CASES,
    GLOBAL,
    NAMESPACE,
    NOTHING,
    TOPIC,
    Case,
    Place,
    case_of,
    told,
    until,
)
from compat_tests.policy_differences import REASONS, differs, table
from compat_tests.test_rest_answers import DONE, ask_json, local
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.table import TABLE

PERSISTENCE = case_of("persistence").value
_NUMBERS = itertools.count(1)
QUOTAS_OF_NAMESPACE = "quotas of a namespace after those of a topic were asked for with applied"
EVERY_LEVEL = [(case, level) for case in CASES for level in case.levels]


def new_namespace(broker: Broker) -> str:
    """The path of a fresh namespace."""
    path = f"/admin/v2/namespaces/public/of-policies-{next(_NUMBERS)}"
    assert broker.request("PUT", path) == DONE
    return path


@pytest.fixture(scope="module")
def namespace(broker: Broker) -> str:
    """The path of a namespace in which only topics have policies."""
    return new_namespace(broker)


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
    broker: Broker, own_topic: str, case: Case, level: str
) -> None:
    base = own_topic
    if level == NAMESPACE:
        base = new_namespace(broker)
        own_topic = base.replace("namespaces", "persistent") + "/t"
        assert broker.request("PUT", own_topic) == DONE
    place = Place(broker, case, level, base)
    of_topic = place._replace(level=TOPIC, base=own_topic) if case.topic else None
    assert place.told() == place.unset()
    before = of_topic and of_topic.applied()
    assert place.set(case.value) == DONE
    assert place.told() == case.expected
    if level in (TOPIC, GLOBAL):
        (other,) = {TOPIC, GLOBAL} - {level}
        assert place._replace(level=other).told() == place.unset()
    query = how_to_ask(case, level)
    if of_topic and query is not None:
        until(lambda: of_topic.applied(**query) == case.expected, "applied")
    assert place.remove() == DONE
    if case.quota_type and level == NAMESPACE and differs(QUOTAS_OF_NAMESPACE):
        return
    assert place.told() == place.unset()
    if of_topic:
        until(lambda: of_topic.applied() == before, "applied as before")


@pytest.mark.parametrize(
    ("case", "level"),
    [each for each in EVERY_LEVEL if each[0].value is not None],
    ids=lambda each: getattr(each, "name", each),
)
def test_no_value_removes_a_policy_where_pulsar_takes_it_for_that(
    broker: Broker, own_topic: str, case: Case, level: str
) -> None:
    """pulsar-admin removes some of them so; where it does not, nobody means anything by it."""
    place = Place(broker, case, level, new_namespace(broker) if level == NAMESPACE else own_topic)
    assert place.set(case.value) == DONE
    answer = place.set(NOTHING)
    if level in case.nothing_removes:
        assert answer == DONE
        assert place.told() == place.unset()
    elif not differs("no value for a policy"):
        assert answer[0] == 400
        assert place.told() == case.expected
    else:
        assert answer[0] in (204, 400, 500)


def how_to_ask(case: Case, level: str) -> dict[str, str] | None:
    """What else asks a topic for what holds, where one level says something; None: nothing does."""
    if not case.has_applied:
        return {} if level == TOPIC else None
    replicators, pause = "replicatorDispatchRate", "dispatcherPauseOnAckStatePersistent"
    if case.topic == replicators and not differs("applied, and replicatorDispatchRate"):
        return {} if level == TOPIC else None
    if (case.topic, level) == (pause, NAMESPACE):
        return None if differs("applied, and dispatcherPauseOnAckStatePersistent") else {}
    if (case.topic, level) == ("deduplicationSnapshotInterval", NAMESPACE):
        return None if differs("applied, and deduplicationSnapshotInterval") else {}
    if level == GLOBAL and differs("applied, and the record that all clusters share"):
        return {"isGlobal": "true"}
    return {}


def test_each_policy_that_can_be_set_has_a_case_at_each_of_its_levels() -> None:
    for policy in TABLE:
        levels = {{Level.NAMESPACE: NAMESPACE, Level.TOPIC: TOPIC}[each] for each in policy.paths}
        # test_schemas.py asks for those of schemas.
        if levels and not policy.name.startswith("schema_"):
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
    both = {"message_age": whole, "destination_storage": none}
    assert applied == ({"message_age": whole} if differs("applied, and quotas") else both)
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
    if segment == "subscriptionTypesEnabled" and differs("unknown types of subscriptions"):
        status = 500
    assert broker.request("POST", f"{own_topic}/{segment}", body)[0] == status
    if segment.isalpha():
        assert told(broker, f"{own_topic}/{segment}") is None


def test_a_topic_goes_before_its_namespace(broker: Broker) -> None:
    namespace = new_namespace(broker)
    path = namespace.replace("namespaces", "persistent") + "/levels"
    assert broker.request("PUT", path) == DONE
    segment = f"{path}/maxProducers?applied=true"
    assert told(broker, segment) == 0
    assert broker.request("POST", f"{namespace}/maxProducersPerTopic", 3) == DONE
    until(lambda: told(broker, segment) == 3)
    assert broker.request("POST", f"{path}/maxProducers?isGlobal=true", 2) == DONE
    is_told = not differs("applied, and the record that all clusters share")
    assert told(broker, segment) == (2 if is_told else 3)
    assert broker.request("POST", f"{path}/maxProducers", 1) == DONE
    assert told(broker, segment) == 1
    assert broker.request("DELETE", f"{path}/maxProducers") == DONE
    assert broker.request("DELETE", f"{path}/maxProducers?isGlobal=true") == DONE
    assert told(broker, segment) == 3
    assert broker.request("DELETE", f"{namespace}/maxProducersPerTopic") == DONE
    until(lambda: told(broker, segment) == 0)


def test_a_topic_is_in_its_own_cluster_alone(broker: Broker, own_topic: str) -> None:
    path = own_topic + "/replication"
    assert broker.request("GET", path)[1] == ""
    assert ask_json(broker, "GET", path + "?applied=true") == (200, ["standalone"])
    assert broker.request("POST", path, ["standalone"]) == DONE
    until(lambda: broker.request("GET", path)[1] == '["standalone"]')
    for query, clusters, status in (
        ("", [], 412),
        ("", ["other"], 412),
        ("", ["standalone", "other"], 403),
        ("?isGlobal=true", ["standalone"], 412),
    ):
        assert broker.request("POST", path + query, clusters)[0] == status
    assert broker.request("DELETE", path) == DONE
    until(lambda: broker.request("GET", path)[1] == "")


def test_what_is_not_there_has_no_policies(broker: Broker, own_topic: str) -> None:
    assert broker.request("GET", own_topic + "-none/maxProducers")[0] == 404
    assert broker.request("GET", "/admin/v2/namespaces/public/none/retention")[0] == 404
    assert ask_json(broker, "GET", "/admin/v2/persistent/public/none/t/maxProducers")[0] == 404


def test_each_difference_has_a_reason_and_is_named_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("*polic*.py"))
    literals = {each.value for each in ast.walk(ast.parse(tests)) if isinstance(each, ast.Constant)}
    assert set(table()) <= literals
    assert set(table().values()) == REASONS

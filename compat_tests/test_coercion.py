"""What REST takes for a value of each Java type, in every body (BROKER=apache asks Pulsar)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from harness.brokers import Broker
from harness.coercion_cases import PARAMETERS, REFUSED, ROWS, SAME, Row

from compat_tests.answers.ask import Asker
from compat_tests.answers.cases import Case, cases
from compat_tests.answers.differences import Told
from compat_tests.conftest import broker_kind
from compat_tests.test_rest_answers import DONE

NAMESPACE = "/admin/v2/namespaces/public/coercion"
TOPIC = "/admin/v2/persistent/public/coercion/t"
TENANT = "/admin/v2/tenants/coercion"
GROUP = "/admin/v2/resourcegroups/coercion"
PERSISTENCE = '{"bookkeeperEnsemble":1,"bookkeeperWriteQuorum":1,"bookkeeperAckQuorum":1,'
SET = (204, None)
REFUSALS = range(400, 600)  # 500 is Apache Pulsar's for numbers that are too large


class Place(NamedTuple):
    """Where a value of a type is sent, and where it is told."""

    path: str
    body: str  # with a value for %s
    before: str  # a value that is set first, which no row has
    told: Callable[[Any], Any]
    method: str = "POST"
    read: str = ""
    first: str = ""  # a path that is deleted first


def field(name: str) -> Callable[[Any], Any]:
    return lambda told: (told or {}).get(name)


PLACES: dict[str, Place] = {
    "int": Place(
        f"{NAMESPACE}/dispatchRate",
        '{"dispatchThrottlingRateInMsg":%s}',
        "77",
        field("dispatchThrottlingRateInMsg"),
    ),
    "Integer": Place(
        GROUP, '{"publishRateInMsgs":%s}', "77", field("publishRateInMsgs"), "PUT", first=GROUP
    ),
    "long": Place(
        f"{NAMESPACE}/dispatchRate",
        '{"dispatchThrottlingRateInByte":%s}',
        "77",
        field("dispatchThrottlingRateInByte"),
    ),
    "Long": Place(
        GROUP, '{"publishRateInBytes":%s}', "77", field("publishRateInBytes"), "PUT", first=GROUP
    ),
    "double": Place(
        f"{NAMESPACE}/persistence",
        PERSISTENCE + '"managedLedgerMaxMarkDeleteRate":%s}',
        "77",
        field("managedLedgerMaxMarkDeleteRate"),
    ),
    "boolean": Place(
        f"{NAMESPACE}/autoSubscriptionCreation",
        '{"allowAutoSubscriptionCreation":%s}',
        "true",
        field("allowAutoSubscriptionCreation"),
    ),
    "Boolean": Place(f"{TOPIC}/deduplicationEnabled", "%s", "true", lambda told: told),
    "enum": Place(
        f"{TOPIC}/schemaCompatibilityStrategy", "%s", '"BACKWARD"', lambda told: told, "PUT"
    ),
    "String": Place(
        f"{NAMESPACE}/persistence",
        PERSISTENCE + '"managedLedgerStorageClassName":%s}',
        '"before"',
        field("managedLedgerStorageClassName"),
    ),
    "Set<String>": Place(
        TENANT,
        '{"allowedClusters":["standalone"],"adminRoles":%s}',
        '["before"]',
        field("adminRoles"),
    ),
    "Set<enum>": Place(
        f"{NAMESPACE}/permissions/role",
        "%s",
        '["sinks"]',
        field("role"),
        read=f"{NAMESPACE}/permissions",
    ),
    "Map<String, String>": Place(
        f"{NAMESPACE}/properties",
        "%s",
        '{"before":"x"}',
        lambda told: {key: value for key, value in told.items() if key != "before"},
        "PUT",
        first=f"{NAMESPACE}/properties",
    ),
}


@pytest.fixture(scope="module")
def made(broker: Broker) -> Broker:
    """A broker with what the places are of."""
    assert broker.request("PUT", TENANT, {"allowedClusters": ["standalone"]}) == DONE
    assert broker.request("PUT", NAMESPACE) == DONE
    assert broker.request("PUT", TOPIC) == DONE
    return broker


def ask(broker: Broker, method: str, path: str, text: str | None = None) -> tuple[int, Any]:
    status, told = broker.request(method, path, None if text is None else text.encode())
    try:
        return status, json.loads(told) if told else None
    except ValueError:
        return status, told


def _in_order(value: Any) -> Any:
    """A set has no order."""
    return sorted(value) if isinstance(value, list) and None not in value else value


def wanted(row: Row) -> Any:
    return row.there if broker_kind() == "apache" and row.there is not SAME else row.value


@pytest.mark.parametrize("kind", ROWS)
def test_a_value_of_a_body_is_taken_or_refused_as_pulsar_does(made: Broker, kind: str) -> None:
    assert PLACES.keys() == ROWS.keys()
    place, wrong = PLACES[kind], []
    for row in ROWS[kind]:
        if place.first:
            ask(made, "DELETE", place.first)  # of what is not there Apache Pulsar says 500
        before = place.body % place.before
        assert ask(made, place.method, place.path, before) == SET
        kept = place.told(ask(made, "GET", place.read or place.path)[1])
        status, told = ask(made, place.method, place.path, place.body % row.text)
        found = place.told(ask(made, "GET", place.read or place.path)[1])
        value = wanted(row)
        if value is REFUSED:
            is_right = status in REFUSALS and found == kept
        elif value is None and place.path == GROUP:
            is_right = status == 204 and found == kept  # what is left out there stays
        else:
            is_right = status == 204 and _in_order(found) == _in_order(value)
        if not is_right:
            wrong.append((row.text, value, status, told, found))
    assert not wrong


@pytest.mark.parametrize("kind", PARAMETERS)
def test_a_parameter_is_taken_or_refused_as_pulsar_does(made: Broker, kind: str) -> None:
    wrong = []
    for row in PARAMETERS[kind]:
        if kind == "boolean":
            found = ask(made, "GET", f"{TOPIC}/maxConsumers?applied={row.text}")
            is_right = found[1] == (0 if row.value else None) and found[0] in (200, 204)
        else:
            assert ask(made, "POST", f"{TOPIC}/messageTTL?messageTTL=77") == SET
            status, _ = ask(made, "POST", f"{TOPIC}/messageTTL?messageTTL={row.text}")
            found = ask(made, "GET", f"{TOPIC}/messageTTL")
            is_right = found[1] == (77 if row.value is REFUSED else row.value)
            is_right &= (status in REFUSALS) == (row.value is REFUSED)
        if not is_right:
            wrong.append((row, found))
    assert not wrong


# --- every endpoint -------------------------------------------------------------------------------

Loosen = Callable[[Any], Any]


def _each(change: Loosen) -> Loosen:
    """Changes each value that is neither an object nor a list."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(each) for key, each in value.items()}
        if isinstance(value, list):
            return [walk(each) for each in value]
        return change(value)

    return walk


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _with_unknown(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_unknown(each) for each in value]
    return {**value, "unknown": {"a": [1]}} if isinstance(value, dict) else value


FORMS: dict[str, Loosen] = {
    "numbers as texts": _each(lambda value: str(value) if _is_number(value) else value),
    "whole numbers with a fraction": _each(
        lambda value: value + 0.25 if _is_whole(value) and value >= 0 else value
    ),
    "truth values as texts": _each(
        lambda value: str(value).upper() if isinstance(value, bool) else value
    ),
    "truth values as numbers": _each(
        lambda value: int(value) if isinstance(value, bool) else value
    ),
    "a field more": _with_unknown,
}
# A text without quotes has no other form, and a map of strings no field that is not known.
BARE, MAPS = "antiAffinity", "/properties"


def loosened() -> Iterator[tuple[Case, str, bytes]]:
    """Each good request with a body that has another form, its name, and the body."""
    for case in cases():
        if case.kind != "good" or case.body is None or BARE in case.row:
            continue
        value = json.loads(case.body)
        for name, change in FORMS.items():
            if change is _with_unknown and case.row.endswith(MAPS):
                continue
            other = change(value)
            if json.dumps(other) != json.dumps(value):
                yield case, name, json.dumps(other).encode()


def _compared(answers: Iterable[Told]) -> list[Told]:
    """Answers without times, and without the texts of unforeseen errors, which have addresses."""
    return [
        Told(each.status, re.sub(r'"timestamp":[0-9]+', "", each.text or ""))
        if each.status < 500
        else Told(each.status, None)
        for each in answers
    ]


@pytest.mark.slow
def test_each_body_may_have_its_values_in_other_forms(broker: Broker) -> None:
    """The answer, and what is told afterwards, are those of the body as it should be."""
    asker, strict, wrong = Asker(broker), {}, []
    for case, name, body in loosened():
        if case.name not in strict:
            strict[case.name] = _compared(asker.set_and_read(case))
        told = _compared(asker.set_and_read(case._replace(body=body)))
        if told != strict[case.name]:
            wrong.append((case.row, name, body, strict[case.name], told))
    assert strict
    assert not wrong

"""Each endpoint with good and bad input: our answers are Apache Pulsar's, or a row says why not.

BROKER=apache asks whether the record of its answers is right.
"""

from __future__ import annotations

import pytest
from harness.brokers import Broker

from compat_tests.answers.ask import Asker
from compat_tests.answers.cases import cases
from compat_tests.answers.differences import (
    REASONS,
    RULES,
    Told,
    is_equal,
    is_of_library,
    is_of_state,
    rule_of,
)
from compat_tests.answers.record import OURS, kept, recorded
from compat_tests.conftest import broker_kind

pytestmark = pytest.mark.slow


@pytest.mark.standalone
def test_answers_are_those_of_apache_pulsar_or_a_rule_says_why_not(broker: Broker) -> None:
    theirs, differing = recorded(), recorded(OURS)
    unexplained = []
    for case, told in Asker(broker).ask(cases()):
        there = Told(*theirs.pop(case.name))
        if broker_kind() == "apache":
            is_known = there.status == told.status and (
                there.text is None or is_equal(there, told) or is_of_state(case.name, told)
            )
            is_known |= is_of_library(there) and is_of_library(told)
        elif not is_equal(there, told):
            # A rule explains a kind of difference, of which each one is known.
            is_known = rule_of(case.name, there, told) is not None
            is_known &= differing.get(case.name) == kept(case.name, told)
        else:
            is_known = True
        if not is_known:
            unexplained.append((case.name, there, told))
    assert not unexplained
    assert not theirs, "these were not asked"


def test_rules_have_reasons_of_the_closed_list() -> None:
    assert {rule.reason for rule in RULES} <= REASONS.keys()


def test_a_difference_is_not_explained_by_chance() -> None:
    case = "GET /admin/v2/tenants/{tenant} | good"
    assert rule_of(case, Told(200, '{"a":1}'), Told(404, '{"reason":"x"}')) is None
    assert rule_of(case, Told(404, '{"reason":"x"}'), Told(500, '{"reason":"x"}')) is None
    assert rule_of(case, Told(500, None), Told(500, '{"reason":"x"}')) is not None
    assert not is_equal(Told(404, '{"reason":"x"}'), Told(404, '{"reason":"y"}'))
    assert is_equal(Told(200, '{"a":1,"b":2}'), Told(200, '{"b":2,"a":1}'))

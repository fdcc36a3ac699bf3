"""Apache Pulsar's pulsar-admin (Java): 450 command lines of all its groups, with what they print.

The record has what they printed against Apache Pulsar 4.2.4; what differs is in a closed list.
BROKER=apache asks whether the record is right. `python -m compat_tests.pulsaradmin` makes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.brokers import Broker
from harness.java_admin import Done, JavaAdmin

from compat_tests.conftest import broker_kind
from compat_tests.pulsaradmin import (
    Recorded,
    answers,
    is_equal,
    lines,
    reason_of,
    recorded,
)

pytestmark = pytest.mark.slow(15)

# On a slow machine the script takes longer than a topic that nobody uses is kept.
BROKER_SETTINGS = {"brokerDeleteInactiveTopicsFrequencySeconds": "3600"}

GROUPS = {
    *("bookies", "broker-stats", "brokers", "clusters", "functions", "functions-worker"),
    *("namespaces", "ns-isolation-policy", "packages", "proxy-stats", "resource-quotas"),
    *("resourcegroups", "schemas", "sinks", "sources", "tenants", "topicPolicies", "topics"),
    "transactions",
}


def test_every_group_of_pulsar_admin_has_command_lines() -> None:
    assert {each.split()[0] for each in lines()} - {"publish"} == GROUPS


def test_what_pulsar_admin_prints_is_what_it_prints_for_apache_pulsar(
    broker: Broker, tmp_path: Path
) -> None:
    admin = JavaAdmin()
    record = iter(recorded())
    wrong = []
    try:
        for line, done in answers(broker, admin, tmp_path):
            there = next(record)
            assert there.line == line
            if is_equal(there, done):
                continue
            if broker_kind() == "apache" or reason_of(there, done) is None:
                wrong.append((there, done))
    finally:
        admin.close()
    assert not wrong
    assert next(record, None) is None


def test_a_difference_is_not_explained_by_chance() -> None:
    there = Recorded("tenants list", 0, "public")
    assert reason_of(there, Done(0, "private", "")) is None
    assert not is_equal(there, Done(1, "public", ""))

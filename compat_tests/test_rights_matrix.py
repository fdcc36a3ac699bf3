"""Each endpoint and command asked by each role: told as by Apache Pulsar, or a row says why not.

BROKER=apache asks whether the record of its answers is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from harness.brokers import Broker

from compat_tests.answers.differences import Told
from compat_tests.conftest import broker_kind
from compat_tests.rights import commands, requests
from compat_tests.rights.differences import LET_IN, LOOSER, is_equal, is_known, rule_of
from compat_tests.rights.record import read
from compat_tests.rights.scene import broker_with_rights

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    one = broker_with_rights(broker_kind(), Path(tmp_path_factory.mktemp("rights")) / "broker")
    try:
        one.start()
        yield one
    finally:
        one.close()


def is_recorded(name: str, there: Told, told: Told) -> bool:
    """Return True for an answer as recorded. Whether a broker has taken a bundle yet is chance."""
    return is_equal(name, there, told) or "Please redo the lookup." in (told.text or "")


def check(answers: Iterable[tuple[str, Told]], is_command: bool) -> None:
    theirs = {name: told for name, told in read().items() if commands.is_one(name) == is_command}
    is_right = is_recorded if broker_kind() == "apache" else is_known
    wrong = []
    for name, told in answers:
        there = theirs.pop(name)
        if not is_right(name, there, told):
            wrong.append(f"{name}\n  there {there}\n  here {told}")
    assert not wrong, "\n".join(wrong)
    assert not theirs, "these were not asked"


def test_each_role_is_told_by_the_protocol_what_apache_pulsar_tells_it(broker: Broker) -> None:
    check(commands.told(broker), is_command=True)


def test_each_role_is_told_by_rest_what_apache_pulsar_tells_it(broker: Broker) -> None:
    check(requests.told(broker), is_command=False)


def test_nothing_explains_that_a_role_is_let_in_here_alone() -> None:
    for name, there in read().items():
        rule = rule_of(name, there._replace(status=4), LET_IN)
        assert rule in (None, LOOSER), name

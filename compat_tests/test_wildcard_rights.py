"""Grants for patterns of roles, as Apache Pulsar has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.brokers import Broker
from harness.tokens import with_rights

from compat_tests.conftest import broker_kind
from compat_tests.policy_cases import until
from compat_tests.rights.scene import headers_of
from compat_tests.test_authorization import asked

PATH = "/admin/v2/persistent/public/default/wild"
PARTITION = f"{PATH}-partition-0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    kind = broker_kind()
    settings = with_rights(kind) | {"authorizationAllowWildcardsMatching": "true"}
    directory = Path(tmp_path_factory.mktemp("wildcards")) / "broker"
    one = Broker(kind, directory, settings=settings, headers=headers_of("root"))
    try:
        one.start()
        yield one
    finally:
        one.close()


def test_a_pattern_on_a_partitioned_topic_is_for_the_whole_and_for_no_partition(
    broker: Broker,
) -> None:
    def granted(path: str, role: str) -> None:
        grant = f"{path}/permissions/{role}"
        assert asked(broker, "root", "POST", grant, ["produce", "consume"])[0] == 204

    def may(role: str, path: str) -> bool:
        return asked(broker, role, "GET", f"{path}/subscriptions")[0] == 200

    assert asked(broker, "root", "PUT", f"{PATH}/partitions", 1)[0] == 204
    granted(PATH, "app*")
    granted(PATH, "exact")
    until(lambda: may("exact", PARTITION))  # other brokers of a cluster see grants a moment later
    assert [may("app-1", each) for each in (PATH, PARTITION)] == [True, False]
    assert [may("exact", each) for each in (PATH, PARTITION)] == [True, True]
    granted(PARTITION, "app*")
    until(lambda: may("app-1", PARTITION))
    assert not may("other", PARTITION)

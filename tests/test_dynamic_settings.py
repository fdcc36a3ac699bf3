"""Settings that are marked as dynamic: a running broker goes by the new value, at once."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import wire
from harness.raw import RawConnection

from command_line import Broker, standalone
from pyxbroker.settings.config import SCHEMA

# Runs the command line, and changes one setting when the broker is ready.
CHANGE = """
import asyncio
from pyxbroker.cli import main, standalone
from pyxbroker.roles.standalone import Standalone
print_banner = standalone._print_banner
def change(config, *arguments):
    setattr(config, {key!r}, {value!r})
    print_banner(config, *arguments)
standalone._print_banner = change
if {key!r} == "brokerShutdownTimeoutMs":
    Standalone.stop = lambda self: asyncio.sleep(3600)
main()
"""
DEADLINE_S = 20.0


def rest(broker: Broker, path: str, body: int | None = None) -> tuple[int, str]:
    """Status and text of a GET, or of a PUT with a body, of a topic in public/default."""
    origin = broker.find(r"admin +(http://[^/]+)")
    request = urllib.request.Request(
        f"{origin}/admin/v2/persistent/public/default/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="GET" if body is None else "PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def refuses_new_subscriptions(broker: Broker) -> None:
    with RawConnection(broker.broker_port) as connection:
        topic = "persistent://public/default/t"
        connection.producer(topic, producer_id=2)
        assert connection.subscribe(topic).type == wire.ERROR


def refuses_many_partitions(broker: Broker) -> None:
    status, text = rest(broker, "many/partitions", 3)
    assert (status, "2" in text) == (406, True), text
    assert rest(broker, "few/partitions", 2)[0] == 204


def forgets_the_partitions_of_unused_topics(broker: Broker) -> None:
    assert rest(broker, "p/partitions", 1)[0] == 204
    with RawConnection(broker.broker_port) as connection:
        connection.producer("persistent://public/default/p-partition-0")
        assert json.loads(rest(broker, "p/partitions")[1])["partitions"] == 1
    deadline = time.monotonic() + DEADLINE_S
    while rest(broker, "p/partitions")[0] != 404:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def gives_up_a_stop_at_once(broker: Broker) -> None:
    code, _, err = broker.stop()
    assert code == 1
    assert "did not stop within 0.05 s (brokerShutdownTimeoutMs)" in err


# The new value, and what shows it.
CASES: dict[str, tuple[object, Callable[[Broker], None]]] = {
    "allowAutoSubscriptionCreation": (False, refuses_new_subscriptions),
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": (
        True,
        forgets_the_partitions_of_unused_topics,
    ),
    "brokerShutdownTimeoutMs": (50, gives_up_a_stop_at_once),
    "maxNumPartitionsPerPartitionedTopic": (2, refuses_many_partitions),
}


def test_every_dynamic_setting_has_a_case() -> None:
    assert {key for key, row in SCHEMA.items() if row.dynamic} == set(CASES)


@pytest.mark.parametrize("key", CASES)
def test_a_dynamic_setting_has_its_effect_while_the_broker_runs(tmp_path: Path, key: str) -> None:
    value, shows = CASES[key]
    command = [sys.executable, "-c", CHANGE.format(key=key, value=value)]
    often = ("--set", "brokerDeleteInactiveTopicsFrequencySeconds=1")
    with standalone(tmp_path / "data", *often, command=command) as broker:
        shows(broker)

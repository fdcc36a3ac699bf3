"""`pyxbroker backup` of a running and of a stopped broker, and the restore of both."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pulsar
import pytest
from harness.brokers import Broker, pyxbroker_command

from compat_tests.conftest import BrokerFactory, official_client

pytestmark = [pytest.mark.pyxbroker, pytest.mark.standalone]

SUBSCRIPTION = "/admin/v2/persistent/public/default/orders/subscription/billing"
EARLIEST = pulsar.InitialPosition.Earliest


def backup(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [*pyxbroker_command(), "backup", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def done(*arguments: str | Path) -> str:
    """Run a command that succeeds without a word on stderr, which is no terminal."""
    result = backup(*arguments)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def publish(broker: Broker, bodies: list[bytes]) -> None:
    client = official_client(broker.url)
    try:
        client.subscribe("orders", "billing", initial_position=EARLIEST)
        producer = client.create_producer("orders", "shop")
        for body in bodies:
            producer.send(body)
    finally:
        client.close()


def received(broker: Broker, last: bytes) -> list[bytes]:
    """What the subscription gets, up to a message."""
    client = official_client(broker.url)
    try:
        consumer = client.subscribe("orders", "billing", initial_position=EARLIEST)
        bodies = [b""]
        while bodies[-1] != last:
            bodies.append(consumer.receive(10_000).data())
        return bodies[1:]
    finally:
        client.close()


def test_a_running_and_a_stopped_broker_are_backed_up_and_restored(
    own_broker: BrokerFactory, tmp_path: Path
) -> None:
    broker = own_broker()
    broker.start()
    bodies = [b"%d" % number for number in range(150)]
    publish(broker, bodies[:100])
    assert broker.rest("POST", f"{SUBSCRIPTION}/skip/30")[0] == 204
    time.sleep(2)  # what has no receipt is stored within a second
    running, stopped = tmp_path / "running", tmp_path / "stopped"
    assert "Created" in done("create", running, "--admin-url", broker.web_url)
    publish(broker, bodies[100:])
    broker.kill()
    created = json.loads(
        done("create", stopped, "--data", broker.data, "--base", running, "--json")
    )
    assert created["linkedBytes"] > 0, "what the running one had is linked"
    for source, count in ((running, 100), (stopped, 150)):
        assert "is undamaged" in done("verify", source)
        restored = own_broker()
        assert "Start it with" in done("restore", source, restored.data)
        restored.start()
        assert received(restored, bodies[count - 1]) == bodies[30:count]
        publish(restored, [b"afterwards"])
        restored.kill()
        restored.start()
        assert received(restored, b"afterwards")[-1] == b"afterwards"
        assert " ERROR " not in restored.output(100_000)


def test_an_error_is_one_sentence(own_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = own_broker()
    broker.start()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    free = Broker("pyxbroker", tmp_path / "none").web_url
    here = ("--admin-url", broker.web_url)
    for arguments, sentence in (
        (("create", tmp_path / "b", "--admin-url", free), "No broker answers"),
        (("create", tmp_path / "full", *here), "is not empty"),
        (("create", tmp_path / "b", *here, "--base", tmp_path / "no"), "does not exist"),
        (("create", tmp_path / "b", "--data", broker.data), "is in use by process"),
        (("create", tmp_path / "b", "--data", tmp_path / "no"), "does not exist"),
        (("verify", tmp_path / "full"), "is not a complete backup"),
        (("restore", tmp_path / "full", tmp_path / "b"), "is not a complete backup"),
        (("restore", tmp_path / "no", tmp_path / "b"), "does not exist"),
    ):
        result = backup(*arguments)
        assert (result.returncode, result.stdout) == (1, ""), result
        assert sentence in result.stderr
        assert result.stderr.startswith("pyxbroker: ")
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "b").exists()
    assert "Created" in done("create", tmp_path / "b", *here), "no backup is left under way"

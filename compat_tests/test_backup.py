"""`pyxbroker backup` of a running and of a stopped broker, and the restore of both."""

from __future__ import annotations

import json
import os
import signal
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
        (
            ("create", tmp_path / "b", "--data", broker.data),
            "Without --data, a running broker is backed up",
        ),
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


def interrupt(stuck: Path, target: Path, *arguments: str | Path) -> None:
    """Press Ctrl-C while a command copies `stuck`, a pipe of which no end comes."""
    os.mkfifo(stuck)
    pipe = os.open(stuck, os.O_RDWR)
    # Tests that run in the background of a shell have it ignored, which a process inherits.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*pyxbroker_command(), "backup", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, former)
    try:
        os.write(pipe, b"half")
        deadline = time.monotonic() + 60
        while not any(each.stat().st_size for each in target.rglob(stuck.name)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "nothing is copied"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(pipe)
    assert (process.returncode, out, err) == (130, "", "\npyxbroker: Interrupted.\n")
    assert not target.exists()


def test_ctrl_c_leaves_nothing(own_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = own_broker()
    broker.start()
    publish(broker, [b"1"])
    here, whole, target = ("--admin-url", broker.web_url), tmp_path / "whole", tmp_path / "target"
    stuck = broker.data / "bookie" / "ledgers" / f"{0:016x}.log"
    interrupt(stuck, target, "create", target, *here)
    stuck.unlink()
    assert "Created" in done("create", whole, *here), "the broker does not wait for the first one"
    stuck, *_ = sorted((whole / "entry-logs").iterdir())
    stuck.unlink()
    interrupt(stuck, target, "restore", whole, target)

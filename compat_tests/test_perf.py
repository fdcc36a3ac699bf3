"""`pyxbroker perf` against a running broker; the official client reads what it sends."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker, pyxbroker_command

from compat_tests.conftest import BrokerFactory

FAST = ("-time", "1", "--warmup-time", "0", "--interval", "0")


def perf(broker: Broker, *arguments: str) -> str:
    """Run a subcommand, and return what it printed."""
    command = [*pyxbroker_command(), "perf", *arguments, "--service-url", broker.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def groups(path: Path) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in json.loads(path.read_text())["groups"]}


@pytest.mark.parametrize(
    "options",
    [
        ("-db", "-mk", "producer", "-n", "2"),
        ("-z", "ZSTD"),
        ("-bm", "7"),
    ],
    ids=["unbatched", "compressed", "batched"],
)
def test_the_official_client_reads_what_produce_sends(
    broker: Broker, python_client: pulsar.Client, topic: str, options: tuple[str, ...]
) -> None:
    perf(broker, "produce", topic, "-m", "501", "-r", "max", "-s", "100", *options)
    reader = python_client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(10_000) for _ in range(501)]
    assert not reader.has_message_available()
    assert {len(each.data()) for each in found} == {100}
    keys = {"key-0", "key-1"} if "-mk" in options else {""}
    assert {each.partition_key() for each in found} == keys


def test_produce_keeps_its_rate_and_reports_it(broker: Broker, topic: str, tmp_path: Path) -> None:
    result, log = tmp_path / "result.json", tmp_path / "latencies.hlog"
    printed = perf(
        *(broker, "produce", topic, "-r", "500", *FAST),
        *("--json", str(result), "--histogram-file", str(log)),
        *("--html", str(tmp_path / "page.html")),
    )
    assert "Aggregated throughput stats" in printed
    (group,) = groups(result).values()
    assert group["messages"] == pytest.approx(500, abs=60)
    assert (group["failures"], group["backlog"]) == (0, 0)
    assert 0 < group["latency_ms"]["p50"] <= group["latency_ms"]["max"]
    assert log.read_text().count("HISTF") == 1
    assert "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "options", [("-sp", "Earliest", "-st", "Shared", "-n", "2")], ids=["shared"]
)
def test_consume_and_read_receive_all_messages(
    broker: Broker, topic: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    perf(broker, "produce", topic, "-m", "3000", "-r", "max", "-s", "100")
    result = tmp_path / "result.json"
    for name, more in (("consume", ("-m", "3000", *options)), ("read", ("-n", "3000"))):
        perf(broker, name, topic, *more, "--interval", "0", "--json", str(result))
        assert groups(result)[name]["messages"] == 3000
    # The subscription is acknowledged: a further consumer receives nothing.
    perf(broker, "consume", topic, "-time", "1", *options, "--json", str(result))
    assert groups(result)["consume"]["messages"] == 0


def test_latency_measures_to_the_receipt_and_to_the_arrival(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    perf(broker, "latency", topic, "-r", "500", "-db", *FAST, "--json", str(result))
    found = groups(result)
    assert found["consume"]["messages"] == pytest.approx(found["produce"]["messages"], abs=100)
    assert 0 < found["consume"]["latency_ms"]["p50"] < 5000


def test_a_scenario_runs_its_groups(broker: Broker, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    perf(
        *(broker, "scenario", "run", "iot-telemetry", "-r", "1000", *FAST),
        *("--json", str(result)),
    )
    found = groups(result)
    assert found["devices"]["messages"] == pytest.approx(1000, abs=200)
    assert found["consumers"]["messages"] > 500


def test_a_partitioned_topic_is_sent_to_all_partitions(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    path = topic.replace("persistent://", "/admin/v2/persistent/", 1)
    assert broker.rest("PUT", f"{path}/partitions", 3)[0] == 204
    result = tmp_path / "result.json"
    perf(broker, "produce", topic, "-m", "300", "-r", "max", "-db")
    perf(broker, "read", topic, "-n", "300", "--interval", "0", "--json", str(result))
    for index in range(3):
        status, stats = broker.rest("GET", f"{path}-partition-{index}/stats")
        assert (status, stats["msgInCounter"]) == (200, 100)


def test_ctrl_c_ends_a_scenario_with_the_numbers_of_its_step(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    file, result = tmp_path / "mine.yaml", tmp_path / "result.json"
    file.write_text(
        "warm-up: 0\nsteps: [100, 200]\n"
        f"groups: [{{kind: producers, topics: '{topic}', rate: step}}]"
    )
    options = ("--interval", "0.1", "--json", str(result), "-u", broker.url)
    words = [*pyxbroker_command(), "perf", "scenario", "run", str(file), *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Throughput" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert "Aggregated" in rest and "200 msg/s" not in rest
    found = json.loads(result.read_text())
    assert (found["interrupted"], found["step"]) == (True, "100 msg/s")


def test_a_lost_connection_ends_a_run_with_its_numbers(own_broker: BrokerFactory) -> None:
    broker = own_broker()
    broker.start()
    options = ("--interval", "0.1", "--warmup-time", "0", "-u", broker.url)
    words = [*pyxbroker_command(), "perf", "produce", "orders", *options]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        broker.kill()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Aggregated latency stats" in out
    assert err.startswith("pyxbroker: The run has ended early: pulsar://")


def test_a_broker_that_does_not_exist_is_an_error(topic: str) -> None:
    command = [*pyxbroker_command(), "perf", "produce", topic, "-u", "pulsar://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "No broker answers at pulsar://127.0.0.1:1: connection refused" in done.stderr
    assert "Traceback" not in done.stderr

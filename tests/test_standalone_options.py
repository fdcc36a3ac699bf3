"""What scripts rely on: the ready file, and the options of Apache's launcher."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from command_line import ANY_PORTS, TIMEOUT_S, complaints, error_line, run, standalone


def test_the_ready_file_is_there_while_clients_are_served(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text("of a broker that was killed")
    with standalone(tmp_path / "data", "--ready-file", str(ready)) as broker:
        found = wait_for(ready)
        port = found["webServicePort"]
        with urllib.request.urlopen(f"http://localhost:{port}/admin/v2/clusters") as answer:
            assert json.load(answer) == ["standalone"]
        assert broker.stop()[0] == 0
    assert found == found | {
        "pid": broker.process.pid,
        "brokerServiceUrl": f"pulsar://localhost:{broker.broker_port}",
        "brokerServicePort": broker.broker_port,
        "webServiceUrl": f"http://localhost:{port}",
        "brokerServiceUrlTls": None,
        "brokerServicePortTls": None,
        "dataDirectory": str(tmp_path / "data"),
    }
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data"]


def wait_for(ready: Path) -> dict[str, object]:
    deadline = time.monotonic() + TIMEOUT_S
    while not ready.exists():  # it is written right after the banner
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return dict(json.loads(ready.read_text()))


def test_a_start_that_fails_leaves_no_ready_file(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text("of a broker that was killed")
    arguments = ["--data", tmp_path / "data", "--set", "maxMessageSize=no"]
    assert run("standalone", "--ready-file", ready, *arguments).returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_a_ready_file_that_cannot_be_written_is_refused_before_the_start(tmp_path: Path) -> None:
    ready = tmp_path / "missing" / "ready.json"
    finished = run("standalone", "--data", tmp_path / "data", "--ready-file", ready)
    assert finished.returncode == 1
    assert error_line(finished) == (
        f"pyxbroker: The ready file {ready} cannot be written: No such file or directory."
        " Choose another one with --ready-file."
    )
    assert not (tmp_path / "data").exists()


def test_options_of_apaches_launcher_without_effect_are_accepted(tmp_path: Path) -> None:
    conf = tmp_path / "standalone.conf"
    conf.write_text("clusterName=east\n")
    options = [*("-c", str(conf)), "-nfw", "-nss", *("-a", "127.0.0.1"), "--num-bookies=1"]
    options += ["--zookeeper-port", "2181", "--stream-storage-port=4181"]
    with standalone(tmp_path / "data", *options) as broker:
        web = broker.find(r"(http://127.0.0.1:\d+)/metrics")
        with urllib.request.urlopen(f"{web}/admin/v2/clusters") as answer:
            assert json.load(answer) == ["east"]
        status, _, err = broker.stop()
    assert status == 0 and complaints(err) == []
    lines = [line for line in err.splitlines() if "launcher" in line]
    assert len(lines) == 1
    assert "options=--stream-storage-port,--zookeeper-port" in lines[0]


@pytest.mark.parametrize(
    "option, reason",
    [
        (["--num-bookies", "3"], "--num-bookies is 3, and a standalone has one bookie."),
        (["--bookkeeper-dir", "/bk"], "Name it with --data DIR."),
        (["--metadata-dir=/metadata"], "Name it with --data DIR."),
        (["--only-broker"], "Run `pyxbroker broker` instead."),
        (["--no-broker"], "the storage does not run without a broker."),
    ],
)
def test_options_of_apaches_launcher_that_would_mislead_are_refused(
    tmp_path: Path, option: list[str], reason: str
) -> None:
    finished = run("standalone", "--data", tmp_path / "data", *option)
    assert finished.returncode == 2
    assert reason in finished.stderr
    assert not (tmp_path / "data").exists()


def test_wiped_data_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with standalone(data) as broker:
        url = broker.find(r"(http://localhost:\d+)/metrics")
        path = f"{url}/admin/v2/namespaces/public/mine"
        urllib.request.urlopen(urllib.request.Request(path, method="PUT")).close()
        broker.stop(signal.SIGKILL)
    with standalone(data, "--wipe-data") as broker:
        url = broker.find(r"(http://localhost:\d+)/metrics")
        with urllib.request.urlopen(f"{url}/admin/v2/namespaces/public") as answer:
            assert json.load(answer) == ["public/default"]
        status, _, err = broker.stop()
    assert status == 0 and f'"the data directory was wiped" path={data}' in err


def test_only_data_of_a_standalone_is_wiped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "metadata").mkdir(parents=True)
    (data / "metadata" / "precious").write_text("")
    finished = run("standalone", "--data", data, *ANY_PORTS, "--wipe-data")
    assert finished.returncode == 1
    assert f"The directory {data} is not wiped" in error_line(finished)
    assert (data / "metadata" / "precious").exists()
    elsewhere = ["--set", f"journalDirectories={tmp_path}/journal"]
    finished = run("standalone", "--data", tmp_path / "new", *ANY_PORTS, "--wipe-data", *elsewhere)
    assert finished.returncode == 1
    assert "--wipe-data deletes only what is in --data" in error_line(finished)


def test_a_running_standalone_is_not_wiped(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as broker:
        finished = run("standalone", "--data", tmp_path / "data", *ANY_PORTS, "--wipe-data")
        assert broker.stop()[0] == 0
    assert f"in use by process {broker.process.pid}" in error_line(finished)
    assert list((tmp_path / "data" / "bookie").iterdir())

"""The contract of Apache Pulsar's image, as Testcontainers and files of docker-compose use it.

The commands and requests are those of Testcontainers' Pulsar module. They run on a copy of the tree
that container/Dockerfile assembles, and, where time allows, by chroot in the image itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pulsar
import pytest
from harness.brokers import free_ports, pyxbroker_command
from harness.image import build_image, sizes

ROOT = Path(__file__).resolve().parent.parent
READY_S = 60.0
IMAGE_BYTES_MAX = 120_000_000
# The command of Testcontainers: standalone of PulsarContainer.java.
TESTCONTAINERS = (
    "{home}/bin/apply-config-from-env.py {home}/conf/standalone.conf"
    " && bin/pulsar standalone --no-functions-worker -nss"
)

pytestmark = pytest.mark.pyxbroker


class Home:
    """The folder /pulsar of an image or of a copy, and how a command is started in it."""

    def __init__(self, path: Path, prefix: tuple[str, ...] = (), inside: str = "") -> None:
        self.path = path
        self.inside = inside or str(path)
        self._prefix = prefix

    def start(self, *command: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._prefix, *command],
            cwd=self.path,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def copied(tmp_path: Path) -> Home:
    """A copy of what the Dockerfile puts into /pulsar, with the pyxbroker of this tree."""
    home = tmp_path / "pulsar"
    shutil.copytree(ROOT / "container" / "bin", home / "bin")
    (home / "bin" / "pyxbroker").unlink()
    (home / "bin" / "pyxbroker").symlink_to(pyxbroker_command()[0])
    for name in ("conf", "data", "logs"):
        (home / name).mkdir()
    shutil.copy(ROOT / "conf" / "standalone.conf", home / "conf")
    return Home(home)


@pytest.fixture(scope="module")
def image() -> Path:
    return build_image()


@pytest.fixture
def unpacked(image: Path) -> Home:
    """The image, whose processes see its files and /proc, as its user."""
    enter = (
        'mount -t proc proc "$0/proc" && exec chroot --userspec=10000:0 --groups=0 "$0"'
        """ /bin/sh -c 'cd /pulsar && exec "$0" "$@"' "$@\""""
    )
    prefix = ("unshare", "--mount", "/bin/sh", "-c", enter, str(image))
    shutil.rmtree(image / "pulsar" / "data" / "standalone", ignore_errors=True)
    return Home(image / "pulsar", prefix, "/pulsar")


@contextmanager
def running(
    home: Home, *command: str, plain: Mapping[str, str] | None = None
) -> Iterator[tuple[int, int, subprocess.Popen[str]]]:
    """A started command, with the ports that it is given: of the clients, and of REST."""
    port, web_port = free_ports(2)
    environment = {
        "PULSAR_PREFIX_brokerServicePort": str(port),
        "PULSAR_PREFIX_webServicePort": str(web_port),
        **(plain or {}),
    }
    process = home.start(*command, environment=environment)
    try:
        yield port, web_port, process
    finally:
        process.kill()
        process.communicate()


def wait_for(url: str, body: str | None, process: subprocess.Popen[str]) -> None:
    """Ask as Testcontainers' HTTP wait strategy does: for a status of 200, and for a body."""
    limit = time.monotonic() + READY_S
    while time.monotonic() < limit:
        assert process.poll() is None, process.communicate()[0]
        try:
            with urlopen(url, timeout=5) as answer:
                if body is None or answer.read().decode() == body:
                    return
        except URLError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"no answer of {url} in {READY_S} s")


def publish_and_receive(port: int) -> None:
    client = pulsar.Client(f"pulsar://127.0.0.1:{port}")
    try:
        consumer = client.subscribe("contained", "one")
        client.create_producer("contained").send(b"from a container")
        assert consumer.receive(timeout_millis=30_000).data() == b"from a container"
    finally:
        client.close()


def follow_testcontainers(home: Home) -> None:
    command = TESTCONTAINERS.format(home=home.inside)
    # A setting with and one without the prefix, as files of docker-compose have them.
    plain = {
        "PULSAR_PREFIX_defaultRetentionTimeInMinutes": "7",
        "brokerDeleteInactiveTopicsEnabled": "false",
    }
    with running(home, "/bin/bash", "-c", command, plain=plain) as (port, web_port, process):
        wait_for(f"http://127.0.0.1:{web_port}/admin/v2/clusters", '["standalone"]', process)
        wait_for(f"http://127.0.0.1:{web_port}/metrics", None, process)
        publish_and_receive(port)
        with urlopen(
            f"http://127.0.0.1:{web_port}/admin/v2/brokers/configuration/runtime"
        ) as answer:
            settings = json.load(answer)
        assert settings["defaultRetentionTimeInMinutes"] == "7"
        assert settings["brokerDeleteInactiveTopicsEnabled"] == "false"
    assert (home.path / "data" / "standalone").is_dir()
    written = (home.path / "conf" / "standalone.conf").read_text().splitlines()
    assert "defaultRetentionTimeInMinutes=7" in written
    assert "brokerDeleteInactiveTopicsEnabled=false" in written


def check_health_and_stop(home: Home) -> None:
    launcher = f"{home.inside}/bin/pulsar"
    with running(home, launcher, "standalone") as (port, web_port, process):
        wait_for(f"http://127.0.0.1:{web_port}/admin/v2/clusters", '["standalone"]', process)
        environment = {"PULSAR_PREFIX_webServicePort": str(web_port)}
        check = f"{home.inside}/bin/healthcheck"
        assert home.start(check, environment=environment).wait(30) == 0
        publish_and_receive(port)
        tool = (f"{home.inside}/bin/pulsar-admin", "--admin-url", f"http://127.0.0.1:{web_port}")
        printed, _ = home.start(*tool, "clusters", "list", environment={}).communicate(timeout=30)
        assert printed == "standalone\n"
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=30)
        assert process.returncode == 0, printed
        assert home.start(check, environment=environment).wait(30) == 1


def test_the_commands_and_requests_of_testcontainers_find_a_broker(copied: Home) -> None:
    follow_testcontainers(copied)


def test_the_health_check_follows_the_broker_and_sigterm_stops_it(copied: Home) -> None:
    check_health_and_stop(copied)


def test_settings_of_the_environment_replace_lines_and_hide_secrets(copied: Home) -> None:
    file = copied.path / "conf" / "other.conf"
    file.write_text("# About\n#one=1\none=2\ntwo=2\n")
    environment = {"one": "uno", "PULSAR_PREFIX_tokenSecretKey": "hidden", "three": "3"}
    process = copied.start("bin/apply-config-from-env.py", str(file), environment=environment)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    assert file.read_text() == "# About\n#one=1\none=uno\ntwo=2\ntokenSecretKey=hidden\n"
    assert "tokenSecretKey = ********" in printed and "hidden" not in printed


@pytest.mark.minutes
def test_the_image_keeps_the_contract_and_is_small(unpacked: Home, image: Path) -> None:
    follow_testcontainers(unpacked)
    check_health_and_stop(unpacked)
    compressed, _ = sizes(image)
    assert compressed <= IMAGE_BYTES_MAX

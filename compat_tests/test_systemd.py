"""The unit of packaging/, and what a broker reports to the service manager."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness.brokers import pyxbroker_command
from harness.wheels import PLATFORMS, WheelBuilder, build_sdist

UNIT = Path(__file__).resolve().parent.parent / "packaging" / "pyxbroker.service"
EXPOSURE_MAX = 2.0  # of systemd-analyze: 0 is a service that may do nothing, 10 one without limits

pytestmark = pytest.mark.pyxbroker


def test_a_broker_reports_that_it_is_ready_and_that_it_stops(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(60)
        process = subprocess.Popen(
            [
                *pyxbroker_command(),
                "standalone",
                "--data",
                str(tmp_path / "data"),
                "--broker-port",
                "0",
                "--web-port",
                "0",
            ],
            env=os.environ | {"NOTIFY_SOCKET": str(address)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert manager.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


def analyze(*arguments: object) -> str:
    done = subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_systemd_accepts_the_unit_and_its_hardening(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text = UNIT.read_text()
    assert "ExecStart=/usr/bin/pyxbroker standalone " in text
    unit.write_text(text.replace("/usr/bin/pyxbroker", "/bin/true"))
    assert analyze("verify", unit) == ""
    rated = re.search(
        r"exposure level for \S+: ([\d.]+)", analyze("security", "--offline=true", unit)
    )
    assert rated is not None and float(rated[1]) <= EXPOSURE_MAX


@pytest.mark.minutes
def test_the_debian_package_has_its_layout(tmp_path: Path) -> None:
    builder = WheelBuilder(build_sdist(tmp_path))
    wheel = builder.build(sys.executable, PLATFORMS[0], tmp_path)
    done = subprocess.run(
        ["bash", UNIT.parent / "build-deb.sh", wheel, tmp_path],
        env=os.environ | {"PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    package = done.stdout.strip()
    listed = subprocess.run(
        ["dpkg-deb", "--contents", package], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    modes = {line.split()[-1]: line.split()[:2] for line in listed.splitlines()}
    readable = ["-rw-r--r--", "root/root"]
    assert modes["./usr/lib/systemd/system/pyxbroker.service"] == readable
    assert modes["./usr/lib/sysusers.d/pyxbroker.conf"] == readable
    assert modes["./etc/pyxbroker/standalone.conf"] == readable
    assert modes["./etc/default/pyxbroker"] == ["-rw-r-----", "root/root"]
    assert modes["./usr/bin/pyxbroker"] == ["-rwxr-xr-x", "root/root"]
    assert modes["./usr/lib/pyxbroker/pyxbroker/_native.so"][1] == "root/root"
    assert "./usr/lib/pyxbroker/kazoo/" in modes

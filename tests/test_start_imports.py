"""What a start imports until it answers REST: each module is part of the time that users wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.brokers import free_ports

# Runs the command, asks for the clusters from a thread, prints the modules and ends.
PROGRAM = """
import os, socket, sys, threading, time
import pyxbroker.broker.broker
from pyxbroker.cli import main

pyxbroker.broker.broker.IMPORTS_AFTER_S = 3600
port = int(sys.argv[sys.argv.index("--web-port") + 1])

def ask():
    answer = b""
    while b"200 OK" not in answer:
        try:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET /admin/v2/clusters HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
                answer = client.recv(4096)
        except OSError:
            time.sleep(0.002)
    print("\\nMODULES", *sys.modules, flush=True)
    os._exit(0)

threading.Thread(target=ask, daemon=True).start()
main()
"""

# What only some clients or settings need.
HEAVY = """
cryptography dataclasses email fastavro google.protobuf hashlib http jwt kazoo orjson platform
pyarrow random uuid
pyxbroker.admin.authenticating pyxbroker.admin.policy_table pyxbroker.auth.provider
pyxbroker.base.tls pyxbroker.broker.commands pyxbroker.broker.dispatch pyxbroker.broker.topics
pyxbroker.metadata.zookeeper pyxbroker.mledger pyxbroker.policies.table pyxbroker.proto
pyxbroker.schemas pyxbroker.stats.definitions
""".split()
OURS_MAX = 157


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules that are there when the first request is answered."""
    directory: Path = tmp_path_factory.mktemp("start")
    web_port = free_ports(1)[0]
    run = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM, "standalone", "--data", str(directory / "data")),
            *("--broker-port", "0", "--web-port", str(web_port)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    line = next(line for line in run.stdout.splitlines() if line.startswith("MODULES "))
    return line.split()[1:]


def test_a_start_imports_nothing_that_only_some_need(imported: list[str]) -> None:
    heavy = tuple(f"{name}." for name in HEAVY)
    assert [name for name in imported if f"{name}.".startswith(heavy)] == []


def test_a_start_imports_few_of_our_modules(imported: list[str]) -> None:
    ours = [name for name in imported if name.partition(".")[0] == "pyxbroker"]
    assert len(ours) <= OURS_MAX, ours

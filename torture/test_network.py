"""Links between network namespaces: established connections feel their delays, losses and cuts.

The test runs this file as a program in namespaces of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from harness.network import Impairment, Network, isolate

ROOT = Path(__file__).resolve().parent.parent
_ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
one, _ = server.accept()
while data := one.recv(65536):
    one.sendall(data)
"""
_ASK = """
import socket, sys, time
one = socket.create_connection((sys.argv[1], 7000))
one.settimeout(float(sys.argv[2]))
for line in sys.stdin:
    began = time.monotonic()
    one.sendall(b"x" * 20000)
    left = 20000
    try:
        while left:
            left -= len(one.recv(65536))
        print(time.monotonic() - began, flush=True)
    except TimeoutError:
        print("inf", flush=True)
        break
"""


def test_an_impaired_link_delays_and_cuts_an_established_connection() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torture.test_network"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    seconds = json.loads(done.stdout)
    assert seconds["before"] < 0.1
    assert seconds["delayed"] >= 0.4
    assert seconds["lossy"] < 3
    assert seconds["restored"] < 1
    assert seconds["cut"] == float("inf")
    assert seconds["nothing forwarded"] == 0
    # What the client repeats passes. The answers of the server do not.
    assert seconds["forwarded one way"] > 0 and seconds["dropped the other way"] > 0


def _measure() -> dict[str, float]:
    network = Network(seed=1)
    network.add_host("client")
    address = network.add_host("server")
    server = subprocess.Popen(
        [*network.prefix("server"), sys.executable, "-c", _ECHO, address], stdout=subprocess.PIPE
    )
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    client = subprocess.Popen(
        [*network.prefix("client"), sys.executable, "-c", _ASK, address, "3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    questions, answers = client.stdin, client.stdout
    assert questions is not None and answers is not None

    def ask() -> float:
        questions.write(b"\n")
        questions.flush()
        return float(answers.readline())

    seconds = {"before": ask()}
    network.impair("client", "server", Impairment(delay_s=0.2))
    seconds["delayed"] = ask()
    network.impair("client", "server", Impairment(loss=0.05))
    seconds["lossy"] = ask()
    network.restore("client", "server")
    seconds["restored"] = ask()
    before = network.packets.copy()
    network.impair("client", "server", Impairment(loss=1.0))
    seconds["cut"] = ask()
    seconds["nothing forwarded"] = network.packets["forwarded"] - before["forwarded"]
    network.impair("server", "client", Impairment(loss=1.0), is_one_way=True)
    before = network.packets.copy()
    deadline = time.monotonic() + 20
    while any(network.packets[key] == before[key] for key in ("forwarded", "dropped")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    seconds["forwarded one way"] = network.packets["forwarded"] - before["forwarded"]
    seconds["dropped the other way"] = network.packets["dropped"] - before["dropped"]
    return seconds


if __name__ == "__main__":
    isolate("torture.test_network", [])
    print(json.dumps(_measure()))

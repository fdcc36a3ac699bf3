"""Draws the terminal pictures of docs/pictures from real runs.

    python -m harness.terminal_pictures

A new broker runs in a network of its own, so that its ports are the usual ones. Each picture is an
SVG file with a command and what it printed.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from harness.page_blocks import ROOT, isolated, prepare_network

PICTURES = ROOT / "docs" / "pictures"
HEALTH = "http://localhost:8080/admin/v2/brokers/health"
START = "pyxbroker standalone --data tour-data"
# What is sent before the other commands: a subscription with a backlog.
PREPARE = """
import pulsar
client = pulsar.Client("pulsar://localhost:6650")
consumer = client.subscribe("orders", "billing", consumer_type=pulsar.ConsumerType.Shared)
producer = client.create_producer("orders")
for number in range(3):
    producer.send(f"order {number}".encode())
consumer.acknowledge(consumer.receive(5000))
consumer.acknowledge(consumer.receive(5000))
client.close()
"""
COMMANDS = {
    "why": "pyxbroker why orders billing",
}
COLUMN, LINE, MARGIN = 8.4, 19, 16


def drawing(command: str, output: str) -> str:
    """Return the SVG of a terminal with a command and its output."""
    lines = [f"$ {command}", *output.rstrip("\n").expandtabs().split("\n")]
    width = round(max(len(line) for line in lines) * COLUMN) + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    texts = [
        f'<text x="{MARGIN}" y="{MARGIN + 14 + number * LINE}"'
        f' fill="{"#8be9fd" if number == 0 else "#f8f8f2"}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
        if line
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" font-family="monospace" font-size="14"'
            ' xml:space="preserve">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#282a36"/>',
            *texts,
            "</svg>\n",
        )
    )


def draw(name: str, command: str, output: str) -> None:
    """Write a picture."""
    (PICTURES / f"{name}.svg").write_text(drawing(command, output))


def draw_all() -> None:
    """Run a broker and the commands, and write their pictures."""
    prepare_network()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as directory:
        os.chdir(directory)
        with Path("banner").open("w+") as banner:
            broker = subprocess.Popen(START.split(), stdout=banner, stderr=subprocess.DEVNULL)
            wait_ready(broker)
            draw("start", START, Path("banner").read_text().replace(directory, "/srv"))
        subprocess.run([sys.executable, "-c", PREPARE], stdout=subprocess.DEVNULL, check=True)
        for name, command in COMMANDS.items():
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=True
            )
            draw(name, command, done.stdout)
        broker.terminate()
        broker.wait()


def wait_ready(broker: subprocess.Popen[bytes]) -> None:
    """Wait until a broker answers."""
    while True:
        try:
            with urllib.request.urlopen(HEALTH, timeout=5):
                return
        except OSError:
            assert broker.poll() is None, "the broker has ended"
            time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1:] == ["--isolated"]:
        draw_all()
    else:
        os.chdir(ROOT)
        os.execvp("unshare", isolated("harness.terminal_pictures"))

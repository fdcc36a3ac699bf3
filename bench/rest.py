"""What a request to the web port costs: the broker's CPU, of a real process, over a real socket.

    python -m bench.rest                       three rounds, medians
    python -m bench.rest --rounds 1 --requests 1000

One connection is kept for all requests of a figure. CPU is user and system time of the broker's
process; time is the client's, in which the client's own work counts too.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness.brokers import Broker

TIMEOUT_S = 60
# As many as the broker lets a client send ahead of its answers.
PIPELINED = 32
CLUSTERS = "/admin/v2/clusters"
TOPICS = "/admin/v2/persistent/public/default/rest-"
PARTITIONED = "/admin/v2/persistent/public/default/rest-parts-"

Ask = Callable[[bytes, int], list[int]]


def request(method: str, path: str, body: str = "") -> bytes:
    """A request as common clients send it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost:8080", "Accept: application/json"]
    lines += ["Accept-Encoding: gzip, deflate", "User-Agent: bench/1.0"]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join([*lines, "", ""]) + body).encode()


class Client:
    """A kept connection that sends some requests, then reads as many answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""

    def ask(self, requests: bytes, count: int = 1) -> list[int]:
        """The statuses of `count` answers."""
        self.socket.sendall(requests)
        return [self._answer() for _ in range(count)]

    def _answer(self) -> int:
        while b"\r\n\r\n" not in self._unread:
            self._read()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        _, found, length = head.lower().partition(b"content-length: ")
        size = int(length.split(b"\r\n", 1)[0]) if found else 0
        while len(self._unread) < size:
            self._read()
        self._unread = self._unread[size:]
        return status

    def _read(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._unread += data


def get(ask: Ask, count: int) -> set[int]:
    """The same GET, one after the other."""
    asked = request("GET", CLUSTERS)
    return {ask(asked, 1)[0] for _ in range(count)}


def get_pipelined(ask: Ask, count: int) -> set[int]:
    """The same GET, PIPELINED of them at a time."""
    asked = request("GET", CLUSTERS) * PIPELINED
    return {status for _ in range(count // PIPELINED) for status in ask(asked, PIPELINED)}


def not_found(ask: Ask, count: int) -> set[int]:
    """A path that nothing is at: what HTTP and the routes cost alone."""
    asked = request("GET", "/admin/v2/persistent/public/default/t/nothing/here")
    return {ask(asked, 1)[0] for _ in range(count)}


def put_topics(ask: Ask, count: int) -> set[int]:
    """Topics that are made: each a transaction of the metadata."""
    return {ask(request("PUT", f"{TOPICS}{at}"), 1)[0] for at in range(count)}


def delete_topics(ask: Ask, count: int) -> set[int]:
    """The topics of put_topics go."""
    return {ask(request("DELETE", f"{TOPICS}{at}"), 1)[0] for at in range(count)}


def put_with_body(ask: Ask, count: int) -> set[int]:
    """Partitioned topics, whose number of partitions is the body."""
    paths = (f"{PARTITIONED}{at}/partitions" for at in range(count))
    return {ask(request("PUT", path, "1"), 1)[0] for path in paths}


# Name -> what is done, the status that all of it gets, the share of --requests that is done.
FIGURES: dict[str, tuple[Callable[[Ask, int], set[int]], int, float]] = {
    "GET clusters": (get, 200, 1.0),
    "GET clusters, pipelined": (get_pipelined, 200, 1.0),
    "GET of nothing": (not_found, 404, 1.0),
    "PUT topic": (put_topics, 204, 0.1),
    "DELETE topic": (delete_topics, 204, 0.1),
    "PUT partitions, with a body": (put_with_body, 204, 0.05),
}


def one_life(requests: int, directory: Path) -> dict[str, tuple[float, float]]:
    """(CPU in us, time in us) of a request, for each figure, on a fresh broker."""
    broker = Broker("pyxbroker", directory)
    numbers = {}
    try:
        broker.start()
        for name, (figure, expected, share) in FIGURES.items():
            client = Client(broker.web_port)
            client.ask(request("GET", CLUSTERS))  # the resource's file is imported
            count = max(PIPELINED, int(requests * share) // PIPELINED * PIPELINED)
            began, cpu = time.perf_counter(), broker.cpu_s()
            got = figure(client.ask, count)
            numbers[name] = (
                (broker.cpu_s() - cpu) / count * 1e6,
                (time.perf_counter() - began) / count * 1e6,
            )
            client.socket.close()
            if got != {expected}:
                raise SystemExit(f"{name}: {expected} was expected, not {sorted(got)}")
        broker.stop()
    finally:
        broker.close()
    return numbers


def main() -> int:
    """Prints the medians as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--json", type=Path, help="write all numbers of all rounds to this file")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as workspace:
            rounds.append(one_life(options.requests, Path(workspace) / str(number)))
    print("| request | broker CPU, us | time, us |\n|---|---|---|")
    for name in FIGURES:
        cpu, took = (statistics.median(one[name][at] for one in rounds) for at in (0, 1))
        print(f"| {name} | {cpu:.0f} | {took:.0f} |")
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a hostile client can cost the others: each input alone and many times, beside a polite one.

    python -m torture.hostile [--times 1000] [--megabytes 256] [--only NAME]

Prints one row of a markdown table for each input: CPU of the broker for one, the longest turn of
its loop (a bound of the histogram in /metrics), the polite client's p99, and how memory grew.
Exit status 1 when the polite client lost anything, or a turn took longer than 20 ms.
"""

from __future__ import annotations

import argparse
import math
import selectors
import shutil
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness import wire
from harness.brokers import Broker

from torture.hostile_floods import COMMAND_FLOODS, PEERS, REQUEST_FLOODS
from torture.hostile_inputs import COMMANDS, ENDPOINTS, MORE_COMMANDS, Input, Scene
from torture.polite import Polite, p99_ms

TURN_MS_MAX = 20
EXCHANGE_S_MAX = 60
QUIET_S = 0.1
SILENCE_S = 0.2  # after which nothing more is going to come
WRITE_BYTES = 512 << 10  # at least, while there is so much
LAST_REQUEST = 0x5A5A5A5A5A
BUCKET = "pyxbroker_loop_turn_seconds_bucket{"


class Cost(NamedTuple):
    """What an input cost."""

    name: str
    times: int
    is_answered: bool  # to the end; else the broker hung up, or time was up
    cpu_ms: float  # of all of them
    turn_ms: float  # a bound: the longest turn took at most this
    p99_ms: float
    grown_kib: int
    seconds: float

    def row(self) -> str:
        cells = (
            self.name,
            self.times,
            "yes" if self.is_answered else "no",
            f"{self.cpu_ms / self.times:.3f}",
            f"{self.turn_ms:g}",
            f"{self.p99_ms:.1f}",
            self.grown_kib,
            f"{self.seconds:.1f}",
        )
        return f"| {' | '.join(map(str, cells))} |"


HEAD = """\
| input | times | answered | CPU each, ms | turn at most, ms | p99 beside, ms | memory, KiB | s |
|---|---|---|---|---|---|---|---|"""


class Attack:
    """One broker, a polite client, and who attacks."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.polite = Polite(broker.port)
        self.polite.take()

    def baseline_ms(self, seconds: float = 2.0) -> float:
        """The polite client's p99 while nobody attacks."""
        self.polite.take()
        time.sleep(seconds)
        return p99_ms(self.polite.take())

    def command(self, name: str, each: Input, times: int) -> Cost:
        """Commands of one connection; the answer to a last request tells that all were handled."""
        scene = Scene(self.broker.port, f"{name.lower().replace(' ', '-')}-{times}")
        each.prepare(scene)
        last = wire.command(wire.CONSUMER_STATS, {1: LAST_REQUEST, 4: 1 << 40})
        marker = wire.varint(LAST_REQUEST)

        def frames() -> Iterator[bytes]:
            for n in range(times):
                yield each.make(scene, n)
            yield last

        with scene.raw as raw:
            run = exchange_until(raw.socket, frames(), lambda tail, _: marker in tail)
            return self._measured(name, times, run)

    def endpoint(self, name: str, each: Input, times: int) -> Cost:
        """Requests on one connection, pipelined."""
        with socket.create_connection(("127.0.0.1", self.broker.web_port)) as web:
            scene = None
            requests = (each.make(scene, n) for n in range(times))  # type: ignore[arg-type]
            run = exchange_until(web, requests, lambda _, answers: answers >= times)
            return self._measured(name, times, run)

    def peers(self, name: str, act: Callable[[int, int, int], int], most: int) -> Cost:
        """Peers that do something else than to ask and to read; at most so many of them."""
        done = 0

        def run() -> bool:
            nonlocal done
            done = act(self.broker.port, self.broker.web_port, most)
            return True

        return self._measured(name, 1, run)._replace(times=done)

    def _measured(self, name: str, times: int, run: Callable[[], bool]) -> Cost:
        self._wait_quiet()
        self.polite.take()
        memory, cpu_s, turns = self.broker.memory_kib(), self.broker.cpu_s(), self._turns()
        began = time.monotonic()
        is_answered = run()
        self._wait_quiet()
        seconds = time.monotonic() - began
        cpu_s = self.broker.cpu_s() - cpu_s
        p99 = p99_ms(self.polite.take())
        grown = self.broker.memory_kib() - memory
        turn_ms = longest_ms(turns, self._turns())
        return Cost(name, times, is_answered, cpu_s * 1000, turn_ms, p99, grown, seconds)

    def _turns(self) -> dict[float, int]:
        with urllib.request.urlopen(self.broker.web_url + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return turns_of(text)

    def _wait_quiet(self) -> None:
        """Until the broker does little more than to serve the polite client."""
        until = time.monotonic() + EXCHANGE_S_MAX
        while time.monotonic() < until:
            before = self.broker.cpu_s()
            time.sleep(QUIET_S)
            if self.broker.cpu_s() - before < QUIET_S * 0.5:
                return


def turns_of(text: str) -> dict[float, int]:
    """The histogram: turns that took at most so many ms, by the bound."""
    found = {}
    for line in text.splitlines():
        if line.startswith(BUCKET):
            bound = line.split('le="')[1].split('"')[0]
            found[float(bound.replace("+Inf", "inf")) * 1000] = int(line.rpartition(" ")[2])
    return found


def longest_ms(before: dict[float, int], after: dict[float, int]) -> float:
    """The bound of the longest turn between two histograms."""
    total = after[math.inf] - before[math.inf]
    return min(bound for bound in after if after[bound] - before[bound] == total)


def exchange_until(
    peer: socket.socket, pieces: Iterator[bytes], is_done: Callable[[bytes, int], bool]
) -> Callable[[], bool]:
    """Sends all pieces and reads all answers; ends when they are in, or when the peer hangs up.

    Returns whether they are, and nothing more comes. `is_done` gets the last bytes that came, and
    how many HTTP answers did.
    """

    def run() -> bool:
        until = time.monotonic() + EXCHANGE_S_MAX
        peer.setblocking(False)
        waiting = memoryview(b"")
        tail, answers, is_all_sent, is_answered = b"", 0, False, False
        with selectors.DefaultSelector() as selector:
            selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while time.monotonic() < until:
                for _, ready in selector.select(0.1):
                    try:
                        if ready & selectors.EVENT_READ:
                            data = peer.recv(1 << 20)
                            if not data:
                                return is_answered
                            seen = tail + data
                            answers += seen.count(b"HTTP/1.1 ") - tail.count(b"HTTP/1.1 ")
                            tail = seen[-64:]
                            if is_answered or is_done(seen, answers):
                                # Commands that wait for something are answered after it.
                                is_answered = True
                                until = time.monotonic() + SILENCE_S
                        if ready & selectors.EVENT_WRITE and not is_all_sent:
                            if not waiting:
                                waiting = memoryview(b"".join(_some(pieces)))
                                is_all_sent = not waiting
                                if is_all_sent:
                                    selector.modify(peer, selectors.EVENT_READ)
                                    continue
                            waiting = waiting[peer.send(waiting) :]
                    except BlockingIOError:
                        continue
                    except ConnectionError:
                        return False
        return is_answered

    return run


def _some(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What is sent in one write: many small ones come to the broker in one read."""
    size = 0
    for each in pieces:
        yield each
        size += len(each)
        if size >= WRITE_BYTES:
            return


def times_for(each: Input, scene: Scene | None, times: int, bytes_max: int) -> int:
    """How often: fewer of what is large."""
    size = len(each.make(scene, 0))  # type: ignore[arg-type]
    return max(1, min(times, bytes_max // size, 1 if each.ends else times))


def attack_all(attack: Attack, times: int, bytes_max: int, only: str = "") -> Iterator[Cost]:
    """Every input, alone and many times."""
    scene = Scene(attack.broker.port, "sizes")
    with scene.raw:
        for name, each in (COMMANDS | MORE_COMMANDS).items():
            if only in name:
                for count in dict.fromkeys((1, times_for(each, scene, times, bytes_max))):
                    yield attack.command(name, each, count)
    for name, each in ENDPOINTS.items():
        if only in name:
            for count in dict.fromkeys((1, times_for(each, None, times, bytes_max))):
                yield attack.endpoint(name, each, count)


def flood_all(attack: Attack, times_max: int, only: str = "") -> Iterator[Cost]:
    """Every flood, as large as it is or as many times as there may be."""
    for name, (each, times) in COMMAND_FLOODS.items():
        if only in name:
            yield attack.command(f"flood of {name}", each, min(times, times_max))
    for name, (each, times) in REQUEST_FLOODS.items():
        if only in name:
            yield attack.endpoint(f"flood of {name}", each, min(times, times_max))
    for name, act in PEERS.items():
        if only in name:
            yield attack.peers(name, act, times_max)


def main(arguments: list[str] | None = None) -> int:
    """Runs the suite; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=256, help="of one input at most, in all")
    parser.add_argument("--only", default="", help="inputs with this in their name")
    options = parser.parse_args(arguments)
    workspace = Path(tempfile.mkdtemp(prefix="hostile-"))
    broker = Broker("pyxbroker", workspace / "broker")
    is_late = False
    try:
        broker.start()
        attack = Attack(broker)
        print(f"p99 without anybody else: {attack.baseline_ms():.1f} ms\n\n{HEAD}", flush=True)
        for cost in attack_all(attack, options.times, options.megabytes << 20, options.only):
            print(cost.row(), flush=True)
            is_late = is_late or cost.turn_ms > TURN_MS_MAX
        for cost in flood_all(attack, 20 * options.times, options.only):
            print(cost.row(), flush=True)
            is_late = is_late or cost.turn_ms > TURN_MS_MAX
        print(f"\nThe polite client has all of its {attack.polite.end()} messages.")
    finally:
        broker.close()
        shutil.rmtree(workspace, ignore_errors=True)
    return int(is_late)


if __name__ == "__main__":
    sys.exit(main())

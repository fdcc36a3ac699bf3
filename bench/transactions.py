"""Transactions: how many a second, what each costs, and how long a broker takes to recover them.

    python -m bench.transactions                pyxbroker and Apache Pulsar
    python -m bench.transactions --only pyxbroker --figure rate --seconds 20

One connection speaks the protocol itself, so that no client library is the limit. A transaction is
NEW_TXN, ADD_PARTITION_TO_TXN, its messages of 100 bytes, and END_TXN, each sent as soon as the
broker has answered what comes before. The broker stores each step, and syncs its journal. For the
recovery the broker is killed with SIGKILL; times count from the start of the new process.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed
from harness.transaction_commands import ABORT, COMMIT, TransactionConnection, coordinator_of
from harness.transactions import SETTINGS

from bench import side_by_side
from bench.side_by_side import Numbers

TOPIC = "persistent://public/default/transactions-"
BODY = bytes(100)
LAST = b"the message behind all transactions"
TTL_MS = 3_600_000  # nothing times out meanwhile
LOADS = tuple(itertools.product((1, 100), (1, 10)))  # open at once, messages of each
WINDOW = 1000  # transactions at once while others are prepared for a recovery
START_S = 240.0
FIGURES = ("rate", "aborted", "open")

# (number, title, unit, decimals)
ROWS: list[side_by_side.Row] = [
    row
    for count, messages in LOADS
    for row in (
        (
            f"{count}_{messages}_rate",
            f"transactions, {count} at once, messages of each: {messages}",
            "1/s",
            0,
        ),
        (f"{count}_{messages}_p50_ms", "  commit, p50", "ms", 2),
        (f"{count}_{messages}_p99_ms", "  commit, p99", "ms", 2),
        (f"{count}_{messages}_us", "  broker CPU per transaction", "us", 0),
        (f"{count}_{messages}_client", "  CPU of the load, of one processor", "%", 0),
    )
]
for name, what in (("aborted", "aborted transactions"), ("open", "open transactions")):
    ROWS += [
        (f"{name}_count", what, "", 0),
        (f"{name}_each_us", "  broker CPU of each", "us", 0),
        (f"{name}_each_kib", "  memory of each", "KiB", 2),
        (f"{name}_connect_s", "  restart until CONNECT is answered", "s", 2),
        (f"{name}_coordinator_s", "  until the coordinator grants a transaction", "s", 2),
        (f"{name}_topic_s", "  until the topic stores a message of it", "s", 2),
        (f"{name}_cpu_s", "  broker CPU until then", "s", 2),
        (f"{name}_mib", "  memory then", "MiB", 0),
    ]
ROWS.append(("aborted_read_s", "reading past the aborted ones to a message", "s", 2))


@dataclass
class Transaction:
    """One transaction of a load, which waits for the answer to its last command."""

    least: int = 0
    receipts: int = 0
    ended_at: float = 0.0


class Load:
    """Transactions on one topic, a number of them at once, which are ended alike or stay open."""

    def __init__(self, broker: Broker, topic: str, messages: int, action: int | None) -> None:
        self._raw = coordinator_of(broker)
        self._raw.socket.settimeout(START_S)
        self._topic, self._messages, self._action = topic, messages, action
        self._raw.producer(topic)
        self._asked: dict[int, Transaction] = {}
        self._sent: deque[Transaction] = deque()  # the broker answers SENDs in their order
        self._output: list[bytes] = []
        self._rest = b""
        self.commits_s: list[float] = []
        self.done = 0

    def run(self, at_once: int, is_over: Callable[[], bool]) -> None:
        """Run transactions until the condition holds, and wait for those that have begun."""
        waiting = at_once
        while waiting or self._asked or self._sent:
            for _ in range(waiting):
                if not is_over():
                    self._ask(wire.NEW_TXN, Transaction(), {2: TTL_MS, 3: 0})
            if self._output:
                self._raw.write(b"".join(self._output))
                self._output.clear()
            before = self.done
            if self._asked or self._sent:
                self._receive()
            waiting = self.done - before

    def close(self) -> None:
        self._raw.socket.close()

    def _ask(self, kind: int, one: Transaction, fields: dict) -> None:
        request = self._raw.request_id()
        self._asked[request] = one
        self._output.append(wire.command(kind, {1: request} | fields))

    def _receive(self) -> None:
        data = self._rest + self._raw.socket.recv(1 << 20)
        if len(data) == len(self._rest):
            raise ConnectionClosed
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            # Byte 9 is the type of the command. Receipts are many, so they are not parsed.
            if data[at + 9] == wire.SEND_RECEIPT:
                self._on_receipt()
            else:
                self._on_answer(wire.parse_frame(data[at + 4 : end]))
            at = end
        self._rest = data[at:]

    def _on_receipt(self) -> None:
        one = self._sent.popleft()
        one.receipts += 1
        if one.receipts < self._messages:
            return
        if self._action is None:
            self.done += 1
            return
        one.ended_at = time.perf_counter()
        self._ask(wire.END_TXN, one, {2: one.least, 3: 0, 4: self._action})

    def _on_answer(self, answer: wire.Frame) -> None:
        if answer.type == wire.PING:
            self._output.append(wire.command(wire.PONG, {}))
            return
        outcome = TransactionConnection.outcome(answer)
        assert outcome.code is None, outcome
        one = self._asked.pop(answer.number(1))
        if answer.type == wire.NEW_TXN + 1:
            one.least = answer.number(2)
            self._ask(wire.ADD_PARTITION_TO_TXN, one, {2: one.least, 3: 0, 4: self._topic})
        elif answer.type == wire.ADD_PARTITION_TO_TXN + 1:
            data = wire.metadata("p", 0, 1, fields={22: one.least, 23: 0})
            message = wire.send(1, 0, data, BODY, send_fields={4: one.least, 5: 0})
            self._output.append(message * self._messages)
            self._sent.extend([one] * self._messages)
        else:
            assert answer.type == wire.END_TXN + 1, answer
            self.commits_s.append(time.perf_counter() - one.ended_at)
            self.done += 1


def rate(broker: Broker, at_once: int, messages: int, seconds: float) -> Numbers:
    """Commit transactions for some seconds, after a third of the time that does not count."""
    load = Load(broker, f"{TOPIC}{at_once}-{messages}", messages, COMMIT)
    until = time.perf_counter() + seconds / 3
    load.run(at_once, lambda: time.perf_counter() >= until)
    load.commits_s.clear()
    load.done = 0
    began, broker_s, client_s = time.perf_counter(), broker.cpu_s(), time.process_time()
    until = began + seconds
    load.run(at_once, lambda: time.perf_counter() >= until)
    took_s, broker_s = time.perf_counter() - began, broker.cpu_s() - broker_s
    client_s = time.process_time() - client_s
    load.close()
    of_hundred = statistics.quantiles(load.commits_s, n=100)
    numbers = {
        "rate": load.done / took_s,
        "p50_ms": of_hundred[49] * 1000,
        "p99_ms": of_hundred[98] * 1000,
        "us": broker_s / load.done * 1e6,
        "client": client_s / took_s * 100,
    }
    return {f"{at_once}_{messages}_{name}": value for name, value in numbers.items()}


def recovery(broker: Broker, name: str, count: int) -> Numbers:
    """Kill a broker with so many transactions on one topic, and wait until it serves again."""
    topic = f"{TOPIC}{name}"
    is_aborted = name == "aborted"
    first = TransactionConnection(broker.port, timeout_s=START_S)
    assert first.subscribe(topic, "s").type == wire.SUCCESS
    first.socket.close()
    load = Load(broker, topic, 1, ABORT if is_aborted else None)
    memory_kib, cpu_s = broker.distinct_memory_kib(), broker.cpu_s()
    begun = itertools.count()
    load.run(min(WINDOW, count), lambda: next(begun) >= count)
    numbers = {
        "count": float(load.done),
        "each_us": (broker.cpu_s() - cpu_s) / load.done * 1e6,
        "each_kib": (broker.distinct_memory_kib() - memory_kib) / load.done,
    }
    load.close()
    broker.kill()
    numbers["connect_s"] = broker.start(START_S)
    raw = coordinator_of(broker)
    raw.socket.settimeout(START_S)
    id = raw.begin()
    numbers["coordinator_s"] = time.monotonic() - broker.started_at
    raw.producer(topic)
    assert raw.add_partitions(id, topic).code is None
    assert raw.send_within(id, LAST, 0).code is None
    numbers["topic_s"] = time.monotonic() - broker.started_at
    numbers["cpu_s"] = broker.cpu_s()
    numbers["mib"] = broker.distinct_memory_kib() / 1024
    assert raw.end(id, COMMIT).code is None
    if is_aborted:  # A reader waits behind open ones.
        began = time.monotonic()
        assert raw.subscribe(topic, "s").type == wire.SUCCESS
        raw.flow(1000)
        message = wire.parse_payload(raw.wait_for(wire.MESSAGE, START_S).rest)
        assert message.body == LAST, message
        numbers["read_s"] = time.monotonic() - began
    raw.socket.close()
    return {f"{name}_{each}": value for each, value in numbers.items()}


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--figure", action="append", choices=FIGURES, help="only this figure")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each rate")
    parser.add_argument("--aborted", type=int, default=100_000)
    parser.add_argument("--open", type=int, default=10_000)
    options = parser.parse_args(arguments)
    options.set = [*(f"{key}={value}" for key, value in SETTINGS.items()), *options.set]
    counts = {"aborted": options.aborted, "open": options.open}

    def one_life(broker: Broker) -> Numbers:
        broker.start(START_S)
        numbers: Numbers = {}
        for figure in options.figure or FIGURES:
            if figure in counts:
                numbers |= recovery(broker, figure, counts[figure])
                continue
            for at_once, messages in LOADS:
                numbers |= rate(broker, at_once, messages, options.seconds)
        return numbers

    side_by_side.run(options, ROWS, one_life)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fuzzed requests to REST, beside a polite producer and consumer.

    python -m torture.rest_storm [--requests 1000000] [--seed 1] [--connections 4]

Each request is a row of the tables of endpoints with names, query, body, headers and method changed
at random; several keep-alive connections have many of them under way, and others beside them send
bodies that do not come as they should (rest_bodies.py). The names come from a list that ends, so
that what the requests make is bounded, and so is the memory. Exit status 1 when an answer is a
fault of the broker, a request has no answer, the log has an error or a traceback, the memory grows,
or the polite client loses anything or waits. A problem is told with its seed, its batch or body,
and its request; what has a number is the same in each run of a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.brokers import Broker

from torture.log_judge import Output
from torture.polite import NAMESPACE, Polite, PoliteLost, p99_ms
from torture.rest_bodies import TOO_FEW_BOOKIES, Bodies
from torture.rest_requests import BATCH, NoAnswer, Row, all_rows, an_answer, batch

BODIES = 6  # connections of rest_bodies.py beside
ANSWER_S_MAX = 30
PROBLEMS_MAX = 20
# Many times what the polite client waits, since others use the machine as well.
P99_MS_MAX = 500
GROWTH_KIB_MAX = 64 << 10
# The polite client's messages wait for it until the end: what they take fills these soon.
SETTINGS = {"dbStorage_writeCacheMaxSizeMb": "8", "dbStorage_readAheadCacheMaxSizeMb": "8"}
# What the broker says of what it does not have (not_built.py); any other one above is a fault.
REFUSALS = {501, 503}


@dataclass
class Storm:
    """What became of all requests."""

    port: int
    seed: int
    requests: int
    rows: list[Row] = field(default_factory=all_rows)
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    next_batch: int = 0

    async def run(self, connections: int) -> None:
        """All batches, shared by the connections."""
        await asyncio.gather(*(self._connection() for _ in range(connections)))

    async def _connection(self) -> None:
        while self.next_batch * BATCH < self.requests and len(self.problems) < PROBLEMS_MAX:
            number, self.next_batch = self.next_batch, self.next_batch + 1
            await self._send_all(number, batch(self.seed, number, self.rows))

    async def _send_all(self, number: int, waiting: list[bytes]) -> None:
        """Sends a batch; what stands behind a last answer of a connection goes to the next one."""
        while waiting:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
            writer.write(b"".join(waiting))
            try:
                last = False
                while waiting and not last:
                    last = await self._take(reader, number, waiting[0])
                    del waiting[0]
            except (NoAnswer, TimeoutError) as error:
                self._problem(number, waiting[0], f"no answer: {error!r}")
                del waiting[0]
            finally:
                writer.close()

    async def _take(self, reader: asyncio.StreamReader, number: int, request: bytes) -> bool:
        status, last, body = await asyncio.wait_for(an_answer(reader), ANSWER_S_MAX)
        self.statuses[status] += 1
        if status >= 500 and status not in REFUSALS:
            self._problem(number, request, f"{status} {body[:300]!r}")
        return last

    def _problem(self, number: int, request: bytes, what: str) -> None:
        self.problems.append(f"seed {self.seed}, batch {number}: {request[:400]!r}: {what}")


def log_problems(output: Output) -> list[str]:
    """Tracebacks, and lines that are errors."""
    wrong = [each for each in output.problems() if not each.startswith("the log has ")]
    errors = [each for each in output.log_lines() if " ERROR " in each]
    wrong += [each for each in errors if TOO_FEW_BOOKIES not in each][:5]
    if "Traceback (most recent call last)" in output.text():
        wrong.append("the log has a traceback")
    return wrong


async def _both(whole: Storm, connections: int, bodies: Bodies) -> None:
    """The requests, with bodies that do not come as they should beside them."""
    beside = asyncio.create_task(bodies.run(BODIES))
    try:
        await whole.run(connections)
    finally:
        beside.cancel()
        await asyncio.wait([beside])
    if not beside.cancelled():
        beside.result()


def storm(broker: Broker, requests: int, seed: int, connections: int) -> tuple[str, list[str]]:
    """A summary of what came, and the problems."""
    output = Output(broker.directory / "output.log")
    broker.request("PUT", f"/admin/v2/namespaces/{NAMESPACE}")
    polite = Polite(broker.port)
    try:
        # The first quarter warms up: it makes whatever the names allow.
        whole = Storm(broker.web_port, seed, requests // 4)
        began = time.monotonic()
        bodies = Bodies(broker.web_port, seed, whole.rows)
        asyncio.run(_both(whole, connections, bodies))
        warm_kib = broker.memory_kib()
        whole.requests = requests
        asyncio.run(_both(whole, connections, bodies))
        seconds = time.monotonic() - began
        growth_kib = broker.memory_kib() - warm_kib
        wait_ms = p99_ms(polite.take())
        sent = polite.end()
    except PoliteLost as error:
        return "", [*whole.problems, f"the polite client: {error}"]
    finally:
        polite.close()
    problems = whole.problems + bodies.problems + log_problems(output)
    if growth_kib > GROWTH_KIB_MAX:
        problems.append(f"the broker grew by {growth_kib} KiB after {requests // 4} requests")
    if wait_ms > P99_MS_MAX:
        problems.append(f"the polite client waited {wait_ms:.1f} ms (p99)")
    total = sum(whole.statuses.values())
    told = ", ".join(f"{status}: {many}" for status, many in sorted(whole.statuses.items()))
    others = ", ".join(f"{what}: {many}" for what, many in sorted(bodies.answers.items()))
    return (
        f"seed {seed}: {total} answers, {total / seconds:.0f}/s ({told}); beside them"
        f" {bodies.answers.total()} bodies ({others}); memory {warm_kib} KiB"
        f" after a quarter, {growth_kib:+} KiB at the end; the polite client's {sent} messages"
        f" all came, p99 {wait_ms:.1f} ms"
    ), problems


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rest-storm-") as workspace:
        broker = Broker("pyxbroker", Path(workspace) / "broker", settings=SETTINGS)
        try:
            broker.start()
            text, problems = storm(broker, options.requests, options.seed, options.connections)
        finally:
            broker.close()
    print("\n".join([text, *problems]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fuzzed requests to REST, beside a polite producer and consumer.

    python -m torture.rest_storm [--requests 1000000] [--seed 1] [--connections 4]

Each request is a row of the tables of endpoints with names, query, body, headers and method changed
at random; several keep-alive connections have many of them under way. The names come from a list
that ends, so that what the requests make is bounded, and so is the memory. Exit status 1 when an
answer is a fault of the broker, a request has no answer, the log has an error or a traceback, the
memory grows, or the polite client loses anything or waits. A problem is told with its seed, its
batch and its request; the batch of a number is the same in each run of a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from harness.brokers import Broker

from pyxbroker.admin import pulsar_endpoints
from pyxbroker.admin.endpoints import every_endpoint
from torture.log_judge import Output
from torture.polite import NAMESPACE, Polite, PoliteLost, p99_ms

BATCH = 16  # requests under way on a connection
ANSWER_S_MAX = 30
PROBLEMS_MAX = 20
# Many times what the polite client waits, since others use the machine as well.
P99_MS_MAX = 500
GROWTH_KIB_MAX = 64 << 10
# The polite client's messages wait for it until the end: what they take fills these soon.
SETTINGS = {"dbStorage_writeCacheMaxSizeMb": "8", "dbStorage_readAheadCacheMaxSizeMb": "8"}
# What the broker says of what it does not have (not_built.py); any other one above is a fault.
REFUSALS = {501, 503}

CONTROLS = [f"a%{code:02x}b" for code in (*range(32), 127)]
NAMES = [
    *("..", ".", "%2e%2e", "%2f", "..%2f..%2fetc", "%00", "%", "%zz", "%ff%fe", "%ed%a0%80", ""),
    *("a" * 10_000, quote("ü" * 200), quote("😀"), "%e2%80%ae", "a%20b", "a:b", "a%3ab", "*", "~"),
    *(
        "null",
        "-1",
        "0",
        "1",
        "99999999999999999999",
        "1e9",
        "NaN",
        "persistent:%2f%2f",
        "__proto__",
    ),
    *("t-partition-0", "t-partition--1", "t-partition-99999999999", "0x0_0xffffffff"),
    *CONTROLS,
]
# Names that can be: a request often reaches what an earlier one made.
LIKELY = {
    "cluster": ["storm-a", "storm-b"],
    "tenant": ["storm"],
    "namespace": ["n", "m"],
    "topic": [f"t{number}" for number in range(8)],
    "domain": ["persistent", "non-persistent"],
}
OTHERS = ["s", "x", "1", "0", "latest"]
BODIES = [
    *(
        b"",
        b"{}",
        b"[]",
        b"null",
        b"true",
        b"0",
        b"1",
        b"3",
        b"-1",
        b'"x"',
        b"{nope",
        b"\0",
        b"NaN",
    ),
    *(
        b"1e999",
        b"9" * 5_000,
        b"[" * 5_000,
        b'{"a":' * 3_000,
        b'{"a":1,"a":2}',
        b'"\\ud800"',
        b"\xff",
    ),
    *(b"[" * 500 + b"]" * 500, b'"' + b"a" * 100_000 + b'"', b'["standalone"]', b'["storm-a"]'),
    b'{"allowedClusters":["standalone"],"adminRoles":["a"]}',
    b'{"serviceUrl":"http://127.0.0.1:1","brokerServiceUrl":"pulsar://127.0.0.1:1"}',
    b'{"retentionTimeInMinutes":-5,"retentionSizeInMB":1e30}',
    b'{"retentionTimeInMinutes":1,"retentionSizeInMB":1}',
    b'{"limitSize":1,"limitTime":99999999999999999999,"policy":"producer_request_hold"}',
    b'{"schema":"{\\"type\\":\\"record\\",\\"name\\":\\"r\\",\\"fields\\":[]}"'
    b',"type":"AVRO","properties":{}}',
    b'{"ledgerId":-1,"entryId":9223372036854775808,"partitionIndex":-1}',
    b'{"replication_clusters":["standalone"],"bundles":{"boundaries":[],"numBundles":-1}}',
]
HEADERS = [
    "Content-Type: text/plain",
    "Content-Type: ",
    "Accept: text/html",
    "Authorization: Bearer \xff",
    "Cookie: " + "a" * 4_000,
    "X-" + "b" * 100 + ": \t",
]
# They would change the broker for everybody by being right.
FOR_ALL = re.compile(r"/brokers/(shutdown|configuration)|/metadata|^/metrics")
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class Row(NamedTuple):
    """A method and a path, and the fields of the query."""

    method: str
    path: str
    query: tuple[str, ...]


def all_rows() -> list[Row]:
    """What is served and what Pulsar has besides."""
    ours = [
        Row(row.method, row.path, tuple(one.name for one in row.query))
        for _, row in every_endpoint()
    ]
    theirs = [Row(row.method, row.path, ()) for row in pulsar_endpoints.endpoints()]
    return [row for row in ours + theirs if not FOR_ALL.search(row.path)]


def a_request(dice: random.Random, rows: list[Row]) -> bytes:
    """One request of HTTP that is whole, whatever is in it."""
    row = dice.choice(rows)
    daring = dice.random() < 0.5

    def name(found: re.Match[str]) -> str:
        if daring and dice.random() < 0.4:
            return dice.choice(NAMES)
        return dice.choice(LIKELY.get(found[1], OTHERS))

    path = PARAMETER.sub(name, row.path)
    fields = [field for field in row.query if dice.random() < 0.4]
    if fields:
        values = ["true", "false", "1", *NAMES]
        path += "?" + "&".join(f"{each}={dice.choice(values)}" for each in fields)
    method = row.method
    if dice.random() < 0.1:
        method = dice.choice(["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "BREW"])
    lines = [f"{method} {path} HTTP/1.1", "Host: storm"]
    body = b""
    if method in ("PUT", "POST") or dice.random() < 0.1:
        body = dice.choice(BODIES)
        lines += ["Content-Type: application/json"] if dice.random() < 0.9 else []
    if dice.random() < 0.1:
        lines.append(dice.choice(HEADERS))
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def plain(method: str, path: str, body: bytes = b"") -> bytes:
    """A request without anything wrong."""
    head = f"{method} {path} HTTP/1.1\r\nHost: storm\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


# Made again now and then, since the requests delete it: without a tenant all is 404.
SCENE = [
    plain("PUT", "/admin/v2/tenants/storm", b'{"allowedClusters":["standalone"],"adminRoles":[]}'),
    plain("PUT", "/admin/v2/namespaces/storm/n"),
    plain("PUT", "/admin/v2/persistent/storm/n/t0"),
    plain("PUT", "/admin/v2/persistent/storm/n/t1/partitions", b"3"),
    plain("PUT", "/admin/v2/persistent/storm/n/t0/subscription/s", b"{}"),
]


def batch(seed: int, number: int, rows: list[Row]) -> list[bytes]:
    """The requests of one batch: the same for the same seed and number."""
    dice = random.Random(f"{seed} {number}")
    made = SCENE if number % 8 == 0 else []
    return made + [a_request(dice, rows) for _ in range(BATCH - len(made))]


class NoAnswer(Exception):
    """A connection ended, or nothing came, where an answer is due."""


async def an_answer(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    """Status, whether the connection ends after it, and the body."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        status = int(head[9:12])
        body = b""
        if found := re.search(rb"\r\ncontent-length: *(\d+)", lower):
            body = await reader.readexactly(int(found[1]))
        elif b"\r\ntransfer-encoding: chunked" in lower:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise NoAnswer(f"the connection ended: {error!r}") from error
    return status, b"\r\nconnection: close" in lower, body


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
    wrong += [each for each in output.log_lines() if " ERROR " in each][:5]
    if "Traceback (most recent call last)" in output.text():
        wrong.append("the log has a traceback")
    return wrong


def storm(broker: Broker, requests: int, seed: int, connections: int) -> tuple[str, list[str]]:
    """A summary of what came, and the problems."""
    output = Output(broker.directory / "output.log")
    broker.request("PUT", f"/admin/v2/namespaces/{NAMESPACE}")
    polite = Polite(broker.port)
    try:
        # The first quarter warms up: it makes whatever the names allow.
        whole = Storm(broker.web_port, seed, requests // 4)
        began = time.monotonic()
        asyncio.run(whole.run(connections))
        warm_kib = broker.memory_kib()
        whole.requests = requests
        asyncio.run(whole.run(connections))
        seconds = time.monotonic() - began
        growth_kib = broker.memory_kib() - warm_kib
        wait_ms = p99_ms(polite.take())
        sent = polite.end()
    except PoliteLost as error:
        return "", [*whole.problems, f"the polite client: {error}"]
    finally:
        polite.close()
    problems = whole.problems + log_problems(output)
    if growth_kib > GROWTH_KIB_MAX:
        problems.append(f"the broker grew by {growth_kib} KiB after {requests // 4} requests")
    if wait_ms > P99_MS_MAX:
        problems.append(f"the polite client waited {wait_ms:.1f} ms (p99)")
    total = sum(whole.statuses.values())
    told = ", ".join(f"{status}: {many}" for status, many in sorted(whole.statuses.items()))
    return (
        f"seed {seed}: {total} answers, {total / seconds:.0f}/s ({told}); memory {warm_kib} KiB"
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

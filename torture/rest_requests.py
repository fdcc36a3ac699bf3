"""Fuzzed requests: each is whole HTTP, and the same for the same seed, whatever is in it."""

from __future__ import annotations

import asyncio
import random
import re
from typing import NamedTuple
from urllib.parse import quote

from pyxbroker.admin import pulsar_endpoints
from pyxbroker.admin.endpoints import every_endpoint

BATCH = 16  # requests under way on a connection

CONTROLS = [f"a%{code:02x}b" for code in (*range(32), 127)]
NAMES = [
    *("..", ".", "%2e%2e", "%2f", "..%2f..%2fetc", "%00", "%", "%zz", "%ff%fe", "%ed%a0%80", ""),
    *("a" * 10_000, quote("ü" * 200), quote("😀"), "%e2%80%ae", "a%20b", "a:b", "a%3ab", "*", "~"),
    *("a%2fb%2fc", "a/../../b", "%252e%252e%252f", "%c0%ae%c0%ae", "%5c..%5c", ".%00", "%0d%0a"),
    # No URL has these: the connection ends with the refusal.
    *("\xfc", "\xc3\xbc", "a\0b", "a\tb", "a\x7fb", "a b"),
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
    *(b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    b'{"allowedClusters":' + b"[" * 900 + b'"a"' + b"]" * 900 + b"}",
    b'{"allowedClusters":["standalone"],"adminRoles":["a"]}',
    b'{"allowedClusters":["standalone"],"allowedClusters":[1],"adminRoles":[],"adminRoles":null}',
    b'{"retentionTimeInMinutes":1,"retentionSizeInMB":1,"retentionSizeInMB":"x"}',
    b'{"a\\u0000b":"\\u0000","..":"../..","\\ud83d\\ude00":"\\u202e"}',
    b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(5_000)) + b"}",
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


def a_path(dice: random.Random, row: Row) -> str:
    """The path of a row with names in it, about half of them with strange ones."""
    daring = dice.random() < 0.5

    def name(found: re.Match[str]) -> str:
        if daring and dice.random() < 0.4:
            return dice.choice(NAMES)
        return dice.choice(LIKELY.get(found[1], OTHERS))

    return PARAMETER.sub(name, row.path)


def a_request(dice: random.Random, rows: list[Row]) -> bytes:
    """One request of HTTP that is whole, whatever is in it."""
    row = dice.choice(rows)
    path = a_path(dice, row)
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

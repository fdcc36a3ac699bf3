"""What takes HTTP's bytes apart: httptools, which the broker uses, beside h11.

    python -m bench.http_parsers

The parsers alone, without a socket and without what the broker does with their events.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import h11
import httptools

REQUEST = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost:8080\r\nAccept: */*\r\n\r\n"
LARGE_HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 4_000 + b"\r\n"
CHUNKED = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = 10_000
ROUNDS = 5


class Ignored:
    """Takes all of httptools' events, as a server does, and does nothing with them."""

    def _nothing(self, *data: bytes) -> None:
        pass

    on_message_begin = on_headers_complete = on_message_complete = _nothing
    on_chunk_header = on_chunk_complete = on_url = on_header = on_body = _nothing


def by_httptools(data: bytes) -> None:
    httptools.HttpRequestParser(Ignored()).feed_data(data)


def by_h11(data: bytes) -> None:
    connection: Any = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(data)
    while connection.next_event() not in (h11.NEED_DATA, h11.PAUSED):
        pass


def seconds_of(parse: Callable[[bytes], None], data: bytes, count: int) -> float:
    """For one of these, the least of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(count):
            parse(data)
        best = min(best, (time.process_time() - began) / count)
    return best


def import_ms(module: str) -> float:
    """What importing takes beside asyncio, in a new process, the least of several."""
    times = []
    for _ in range(ROUNDS):
        command = [sys.executable, "-X", "importtime", "-c", f"import asyncio, {module}"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        found = re.search(rf"\| +(\d+) \| {module}$", told, re.MULTILINE)
        assert found is not None, told
        times.append(int(found[1]) / 1e3)
    return min(times)


def main() -> int:
    """Prints a Markdown table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    chunks = CHUNKED + b"1\r\nx\r\n" * CHUNKS + b"0\r\n\r\n"
    print("| | httptools | h11 |\n|---|---|---|")
    print(f"| import, ms | {import_ms('httptools'):.1f} | {import_ms('h11'):.1f} |")
    rows = (
        ("a small request, us", REQUEST, 1_000, 1e6, 1),
        ("a head of 16 KiB in lines of 4 bytes, ms", LARGE_HEAD, 20, 1e3, 1),
        ("a chunk of one byte, us", chunks, 2, 1e6, CHUNKS),
    )
    for name, data, count, unit, parts in rows:
        both = [seconds_of(parse, data, count) * unit / parts for parse in (by_httptools, by_h11)]
        print(f"| {name} | {both[0]:.2f} | {both[1]:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

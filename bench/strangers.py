"""What a connection costs that has not said what it wants: memory while it is held, and CPU.

    python -m bench.strangers [--count 2000]

Opens so many connections of each kind to a broker of its own, one kind after the other, and looks
at how much the process has grown (Pss) and worked when all of them are there, and what the kernel
holds for them (all TCP of the machine: nothing else should have much on its way meanwhile).
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import trustme
from harness.brokers import Broker, free_ports
from harness.certificates import write_certificate
from torture.at_the_door import HELLO, HOST

SETTLING_S = 1.5
WARM_UP = 20
PIECE_BYTES = 4 << 10
PART_OF_A_CONNECT = b"\0\2\0\0\0\1\xff\xfc" + b"x" * (100 << 10)  # of 128 KiB
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

HEAD = (
    "| port | says | bytes of memory each | the kernel's for TCP | microseconds of CPU each |\n"
    "|---|---|---|---|---|"
)


def started(folder: Path, stack: ExitStack) -> tuple[Broker, dict[str, int]]:
    """A broker and its ports."""
    tls_port, web_tls_port = free_ports(2)
    certificate, key = write_certificate(trustme.CA(), folder, "broker", "localhost", HOST)
    settings = {
        "brokerServicePortTls": str(tls_port),
        "webServicePortTls": str(web_tls_port),
        "tlsCertificateFilePath": str(certificate),
        "tlsKeyFilePath": str(key),
        "connectionHandshakeTimeoutSeconds": "60",
    }
    broker = Broker("pyxbroker", folder / "broker", settings=settings)
    stack.callback(broker.close)
    broker.start()
    ports = {"plain": broker.port, "TLS": tls_port, "HTTP": broker.web_port, "HTTPS": web_tls_port}
    return broker, ports


KINDS = (
    *(("plain", "nothing", b""), ("plain", "two bytes", b"\0\0")),
    *(("plain", "7 KiB of a CONNECT of 128", PART_OF_A_CONNECT[: 7 << 10]),),
    *(("plain", "9 KiB of it", PART_OF_A_CONNECT[: 9 << 10]),),
    *(("plain", "100 KiB of it", PART_OF_A_CONNECT), ("TLS", "nothing", b"")),
    *(("TLS", "60 bytes of a ClientHello", HELLO[:60]), ("TLS", "a ClientHello", HELLO)),
    *(("HTTP", "nothing", b""), ("HTTP", "8 bytes of a request", b"GET /adm")),
    *(("HTTPS", "nothing", b""), ("HTTPS", "60 bytes of a ClientHello", HELLO[:60])),
    ("HTTPS", "a ClientHello", HELLO),
)


def held(port: int, says: bytes, count: int, stack: ExitStack) -> None:
    """Connections that stay until the stack is left, and take turns to send what they say: what
    comes at once is more than a broker can ask the kernel to wait for.
    """
    peers = []
    for _ in range(count):
        peers.append(stack.enter_context(socket.create_connection((HOST, port))))
        peers[-1].sendall(says[:PIECE_BYTES])
    for start in range(PIECE_BYTES, len(says), PIECE_BYTES):
        for each in peers:
            with suppress(ConnectionError):  # it gave way
                each.sendall(says[start : start + PIECE_BYTES])
    time.sleep(SETTLING_S)


def tcp_bytes() -> int:
    """What the kernel holds for all sockets of TCP."""
    text = Path("/proc/net/sockstat").read_text()
    return int(re.findall(r"^TCP:.* mem (\d+)$", text, re.M)[0]) * PAGE_BYTES


def row(port: str, what: str, says: bytes, count: int) -> str:
    """Of the table: one kind, at a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder, ExitStack() as stack:
        broker, ports = started(Path(folder), stack)
        with ExitStack() as few:
            held(ports[port], says, WARM_UP, few)  # with them comes what is imported once
        time.sleep(SETTLING_S)
        memory_kib, kernel_bytes = broker.distinct_memory_kib(), tcp_bytes()
        cpu_s = broker.cpu_s()
        held(ports[port], says, count, stack)
        each_bytes = (broker.distinct_memory_kib() - memory_kib) * 1024 / count
        each_us = (broker.cpu_s() - cpu_s) * 1e6 / count
        kernel_each_bytes = (tcp_bytes() - kernel_bytes) / count
    return f"| {port} | {what} | {each_bytes:,.0f} | {kernel_each_bytes:,.0f} | {each_us:.0f} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000)
    count = parser.parse_args().count
    print(HEAD, flush=True)
    for port, what, says in KINDS:
        print(row(port, what, says, count), flush=True)


if __name__ == "__main__":
    main()

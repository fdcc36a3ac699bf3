"""What TLS costs a broker: the same load over both of its ports, in turns.

    python -m bench.tls                       pyxbroker and Apache Pulsar
    python -m bench.tls --only pyxbroker --rounds 5

The official client sends messages of 1 KiB, one by one and in batches, and reads them back, over
the plain port and over that with TLS. CPU is that of the broker's process, for each message; the
ratio is the median of those of single rounds. Then clients connect one after the other.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import pulsar
import trustme
from harness.brokers import Broker, free_ports
from harness.certificates import write_certificate

from bench.side_by_side import Numbers, Row, main_in_rounds, medians_in_turns

PAYLOAD = os.urandom(1024)
LOADS = {"single": 20_000, "batched": 100_000}  # messages of a round
CONNECTIONS = 500
PORTS = ("plain", "tls")


class Urls:
    """Both ports of a broker, and a certificate for the second."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        ca = trustme.CA()
        self.trusted = directory / "ca.pem"
        ca.cert_pem.write_to_path(self.trusted)
        certificate, key = write_certificate(ca, directory, "server", "localhost", "127.0.0.1")
        (self.port,) = free_ports(1)
        broker.settings |= {
            "brokerServicePortTls": str(self.port),
            "tlsCertificateFilePath": str(certificate),
            "tlsKeyFilePath": str(key),
            "tlsTrustCertsFilePath": str(self.trusted),
        }
        self.plain = broker.url

    def client(self, port: str) -> pulsar.Client:
        """A client of one of them."""
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        if port == "plain":
            return pulsar.Client(self.plain, logger=logger)
        return pulsar.Client(
            f"pulsar+ssl://localhost:{self.port}",
            tls_trust_certs_file_path=str(self.trusted),
            logger=logger,
        )


def one_round(broker: Broker, client: pulsar.Client, load: str, topic: str) -> tuple[float, float]:
    """Broker CPU of a message that is sent, and of one that is read, in us."""
    count = LOADS[load]
    producer = client.create_producer(
        topic,
        batching_enabled=load == "batched",
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=128 << 10,
        block_if_queue_full=True,
        max_pending_messages=5000,
    )
    before = broker.cpu_s()
    for _ in range(count):
        producer.send_async(PAYLOAD, lambda *_: None)
    producer.flush()
    sent = broker.cpu_s() - before
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
    before = broker.cpu_s()
    for _ in range(count):
        reader.read_next(30_000)
    read = broker.cpu_s() - before
    return sent / count * 1e6, read / count * 1e6


def connect(broker: Broker, urls: Urls) -> Numbers:
    """Handshakes one after the other, until the client's side is over."""
    context = ssl.create_default_context(cafile=str(urls.trusted))
    before, began = broker.cpu_s(), time.perf_counter()
    for _ in range(CONNECTIONS):
        with (
            socket.create_connection(("127.0.0.1", urls.port)) as sock,
            context.wrap_socket(sock, server_hostname="localhost"),
        ):
            pass
    seconds = time.perf_counter() - began
    return {
        "handshakes": CONNECTIONS / seconds,
        "handshake_us": (broker.cpu_s() - before) / CONNECTIONS * 1e6,
    }


def one_life(broker: Broker, rounds: int) -> Numbers:
    """All numbers of one broker on a fresh data directory."""
    with tempfile.TemporaryDirectory() as directory:
        urls = Urls(broker, Path(directory))
        broker.start()
        spent: dict[str, list[float]] = defaultdict(list)
        for load in LOADS:
            for number in range(rounds + 1):
                for port in PORTS:
                    client = urls.client(port)
                    sent, read = one_round(broker, client, load, f"{load}-{port}-{number}")
                    client.close()
                    if number:  # The first one is for code that is compiled while it runs.
                        spent[f"{load}_sent_{port}"].append(sent)
                        spent[f"{load}_read_{port}"].append(read)
        return medians_in_turns(spent, "tls", "plain") | connect(broker, urls)


def rows() -> list[Row]:
    """Of the table."""
    found: list[Row] = []
    for load in LOADS:
        for what in ("sent", "read"):
            name = f"{load}_{what}"
            found += [
                (f"{name}_plain", f"{load}, {what}: broker CPU, plain", "us", 2),
                (f"{name}_tls", "  TLS", "us", 2),
                (f"{name}_ratio", "  ratio", "", 2),
            ]
    return [
        *found,
        ("handshakes", "connections with a full handshake", "/s", 0),
        ("handshake_us", "  broker CPU", "us", 0),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    return main_in_rounds(__doc__.splitlines()[0], arguments, rows(), one_life)


if __name__ == "__main__":
    sys.exit(main())

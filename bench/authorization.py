"""What it costs to ask who clients are and what they may: a broker that asks beside one that
does not.

    python -m bench.authorization                       pyxbroker and Apache Pulsar
    python -m bench.authorization --only pyxbroker --rounds 5

Two brokers of a kind run at the same time. One of them takes tokens and asks for rights: the role
of the clients was granted the namespace. The official client sends messages of 1 KiB and reads them
back, in turns; CPU is that of the broker's process, for each message, and the ratio is the median
of those of single rounds. Then clients come, make a producer and go, one after the other.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict

import pulsar
from harness.brokers import Broker
from harness.tokens import token, with_rights

from bench.side_by_side import Numbers, Row, main_in_rounds, medians_in_turns
from bench.tls import LOADS, one_round

CLIENTS = 200
ROLE = "writer"
GRANT = f"/admin/v2/namespaces/public/default/permissions/{ROLE}"
SETTLED_S = {"pyxbroker": 3.0, "apache": 20.0}


def client_of(broker: Broker) -> pulsar.Client:
    """Of a role that may what it does, where that is asked."""
    shown = pulsar.AuthenticationToken(token(ROLE)) if broker.headers else None
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(broker.url, authentication=shown, logger=logger)


def come_and_go(broker: Broker) -> float:
    """Broker CPU of a client that connects, makes a producer and leaves, in us."""
    client_of(broker).close()
    before = broker.cpu_s()
    for _ in range(CLIENTS):
        client = client_of(broker)
        client.create_producer("come-and-go")
        client.close()
    return (broker.cpu_s() - before) / CLIENTS * 1e6


def one_life(free: Broker, rounds: int) -> Numbers:
    """All numbers of one kind of broker, on fresh data."""
    asking = Broker(
        free.kind,
        free.directory.with_name(f"{free.kind}-asking"),
        settings=free.settings | with_rights(free.kind),
        headers={"Authorization": f"Bearer {token('root')}"},
    )
    brokers = {"free": free, "asking": asking}
    numbers: Numbers = {}
    spent: dict[str, list[float]] = defaultdict(list)
    try:
        for name, broker in brokers.items():
            numbers[f"start_{name}"] = broker.start() * 1000
            time.sleep(SETTLED_S[broker.kind])
            numbers[f"memory_{name}"] = broker.memory_kib() / 1024
        status, answer = asking.rest("POST", GRANT, ["produce", "consume"])
        assert status == 204, answer
        for number in range(rounds + 1):
            for name, broker in brokers.items():
                found = {"come": come_and_go(broker)}
                for load in LOADS:
                    client = client_of(broker)
                    sent, read = one_round(broker, client, load, f"{load}-{number}")
                    client.close()
                    found |= {f"{load}_sent": sent, f"{load}_read": read}
                if number:  # The first one is for code that is compiled while it runs.
                    for figure, value in found.items():
                        spent[f"{figure}_{name}"].append(value)
    finally:
        asking.close()
    return numbers | medians_in_turns(spent, "asking", "free")


def rows() -> list[Row]:
    """Of the table."""
    titles = {
        f"{load}_{what}": f"{load}, {what}: broker CPU"
        for load in LOADS
        for what in ("sent", "read")
    }
    titles["come"] = "a client comes, makes a producer, goes: broker CPU"
    found: list[Row] = []
    for name, title in titles.items():
        found += [
            (f"{name}_free", title, "us", 2),
            (f"{name}_asking", "  with authorization", "us", 2),
            (f"{name}_ratio", "  ratio", "", 2),
        ]
    return [
        *found,
        ("start_free", "start to the answer to CONNECT", "ms", 0),
        ("start_asking", "  with authorization", "ms", 0),
        ("memory_free", "idle memory", "MiB", 1),
        ("memory_asking", "  with authorization", "MiB", 1),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers, a kind after the other, and prints the table."""
    return main_in_rounds(__doc__.splitlines()[0], arguments, rows(), one_life)


if __name__ == "__main__":
    sys.exit(main())

"""Policies at scale: what they cost where they change nothing, and how soon they hold everywhere.

    python -m bench.policies                         pyxbroker and Apache Pulsar
    python -m bench.policies --only pyxbroker --figure change --topics 20000
    python -m bench.policies --only apache --topics 1000 --closed 1000
    python -m bench.policies --only pyxbroker --short

Each figure has a broker of its own on fresh data; what it needs is set by REST:

cost      three topics of one broker get the same messages in turn: one without a publish rate, one
          with a rate of its own that nobody reaches, one whose namespace has such a rate; told is
          the median of the ratios of their CPU
accuracy  a topic with a publish rate, and one with a dispatch rate, whose client always has more
change    a namespace with many open topics: encryption becomes required, while each of them is sent
          to until it refuses; before that, its publish rate, retention and TTL change
opening   after a restart: topics that have policies of their own, and as many that have none
closed    many closed topics with a TTL, of which nothing is due: the broker after a restart, and
          at rest

A turn is a bound: the longest turn of the event loop took at most that (/metrics has a histogram;
Apache Pulsar has none). Memory is counted once, however often it is mapped.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection
from harness.turns import longest_ms, turns_of

from bench import rates, side_by_side
from bench.rates import BLOCK, RATE
from bench.side_by_side import Numbers
from bench.web_client import WebClient, request

T = TypeVar("T")

PATIENCE_S = 120.0
STOP_S = 600.0
WINDOW = 50  # commands on their way
SENDS = 200  # messages on their way, each to another topic
UNREACHED = {"publishThrottlingRateInMsg": 2_000_000_000, "publishThrottlingRateInByte": 1 << 40}
TTL_S = 86_400
WARM_UP = 200  # topics that are opened before others are timed
TOPICS_PER_LIFE = 20_000  # that are made before a restart closes them
MEASURED_TOPIC_SETTLES_S = 2.0  # Apache Pulsar has a topic's policies in force after its answer


class Scale(NamedTuple):
    """How much of everything."""

    messages: int = 200_000  # to each topic in an alternation
    alternations: int = 10
    seconds: float = 10.0  # of a rate
    topics: int = 10_000
    closed: int = 100_000
    settle_s: float = 3.0  # after a change that no client notices
    after_start_s: float = 400.0
    rest_s: float = 60.0


SHORT = Scale(1_000, 2, 1.0, 20, 20, 0.2, 1.0, 1.0)

# (number, title, unit, decimals)
ROWS = [
    ("without_us", "CPU of a message without a publish rate", "us", 3),
    ("topic_ratio", "  with one of the topic that is not reached", "times as much", 3),
    ("namespace_ratio", "  with one of the namespace that is not reached", "times as much", 3),
    ("publish_off", f"a publish rate of {RATE}/s: what came, off by", "%", 2),
    ("publish_gap_ms", "  longest time without a receipt", "ms", 1),
    ("dispatch_off", f"a dispatch rate of {RATE}/s: what came, off by", "%", 2),
    ("dispatch_gap_ms", "  longest time without a message", "ms", 1),
    ("topics", "open topics in a namespace", "", 0),
    ("encryption_s", "encryption is required: in force on all of them after", "s", 3),
    ("encryption_cpu_s", "  broker CPU, with the messages that ask", "s", 2),
    ("encryption_turn_ms", "  longest turn at most", "ms", 0),
    ("rate_cpu_s", "a publish rate: broker CPU", "s", 2),
    ("rate_turn_ms", "  longest turn at most", "ms", 0),
    ("retention_cpu_s", "a retention: broker CPU", "s", 2),
    ("retention_turn_ms", "  longest turn at most", "ms", 0),
    ("ttl_cpu_s", "a TTL: broker CPU", "s", 2),
    ("ttl_turn_ms", "  longest turn at most", "ms", 0),
    ("without_first_ms", "opened after a restart, without policies: the first topic", "ms", 1),
    ("without_ms", "  each of them", "ms", 3),
    ("without_cpu_ms", "  broker CPU of each", "ms", 3),
    ("without_kib", "  memory of each", "KiB", 1),
    ("without_turn_ms", "  longest turn at most", "ms", 0),
    ("with_first_ms", "with policies of their own: the first topic", "ms", 1),
    ("with_ms", "  each of them", "ms", 3),
    ("with_cpu_ms", "  broker CPU of each", "ms", 3),
    ("with_kib", "  memory of each", "KiB", 1),
    ("with_turn_ms", "  longest turn at most", "ms", 0),
    ("closed", "closed topics with a TTL", "", 0),
    ("start_cpu_s", "  broker CPU after a restart", "s", 2),
    ("start_window_s", "    in the first", "s", 0),
    ("start_turn_ms", "    longest turn at most", "ms", 0),
    ("rest_cpu_s", "  broker CPU of a minute later", "s", 3),
    ("rest_turn_ms", "    longest turn at most", "ms", 0),
    ("rest_mib", "    memory", "MiB", 1),
]


# --- what figures share ---------------------------------------------------------------------------


def make_namespaces(broker: Broker, *names: str) -> None:
    for name in names:
        status, answer = broker.request("PUT", f"/admin/v2/namespaces/public/{name}")
        assert status == 204, (status, answer)


def set_policy(broker: Broker, path: str, body: Any) -> None:
    """Sets a policy of a namespace or a topic: `path` is what comes behind /admin/v2/."""
    status, answer = broker.request("POST", f"/admin/v2/{path}", body)
    assert status == 204, (path, status, answer)


def names_of(namespace: str, topics: int) -> list[str]:
    return [f"persistent://public/{namespace}/t-{number:06}" for number in range(topics)]


def chunks(items: Sequence[T], size: int = WINDOW) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


class Opener:
    """One connection that opens many topics, some of them at a time."""

    def __init__(self, broker: Broker) -> None:
        self.raw = RawConnection(broker.port, timeout_s=PATIENCE_S)
        self._ids = count(1)  # of producers and consumers

    def ask(self, kind: int, fields: Sequence[dict[int, Any]], answer: int) -> None:
        """The same command several times, each of which has such an answer."""
        self.raw.write(b"".join(wire.command(kind, each) for each in fields))
        for _ in fields:
            self.raw.expect(answer)

    def look_up(self, topics: Sequence[str]) -> None:
        request_id = self.raw.request_id
        self.ask(wire.LOOKUP, [{1: t, 2: request_id()} for t in topics], wire.LOOKUP_RESPONSE)

    def produce(self, topics: Sequence[str]) -> list[int]:
        """A producer for each topic; their ids."""
        made: list[int] = []
        for some in chunks(topics):
            self.look_up(some)
            ids = [next(self._ids) for _ in some]
            request_id = self.raw.request_id
            fields = [{1: t, 2: each, 3: request_id()} for t, each in zip(some, ids, strict=True)]
            self.ask(wire.PRODUCER, fields, wire.PRODUCER_SUCCESS)
            made += ids
        return made

    def subscribe(self, topics: Sequence[str]) -> None:
        for some in chunks(topics):
            self.look_up(some)
            fields = [
                {1: t, 2: "s", 3: wire.SHARED, 4: next(self._ids), 5: self.raw.request_id()}
                for t in some
            ]
            self.ask(wire.SUBSCRIBE, fields, wire.SUCCESS)

    def send(self, producers: Sequence[int]) -> set[int]:
        """A message by each producer; those whose topic does not take it, or is closed to them."""
        refused: set[int] = set()
        meta = wire.metadata("p", 0, int(time.time() * 1000))
        for some in chunks(producers, SENDS):
            # Who was sent away meanwhile gets no answer any more.
            waiting = set(some) - refused
            self.raw.write(b"".join(wire.send(each, 0, meta, b"") for each in waiting))
            while waiting:
                answer = self.raw.receive()
                producer = answer.number(1)
                if answer.type in (wire.SEND_ERROR, wire.CLOSE_PRODUCER):
                    refused.add(producer)
                else:
                    assert answer.type == wire.SEND_RECEIPT, answer
                waiting.discard(producer)
        return refused

    def close(self) -> None:
        self.raw.socket.close()


class Account:
    """What a broker uses from now on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turns = self._look()
        self._memory_kib = broker.distinct_memory_kib()
        self._cpu_s = broker.cpu_s()

    def _look(self) -> dict[float, int]:
        if self._broker.kind != "pyxbroker":
            return {}
        return turns_of(self._broker.request("GET", "/metrics")[1])

    def cpu_s(self) -> float:
        return self._broker.cpu_s() - self._cpu_s

    def turn_ms(self) -> float:
        """A bound of the longest turn; NaN of a broker that does not tell."""
        return longest_ms(self._turns, self._look())

    def grown_kib(self) -> int:
        return self._broker.distinct_memory_kib() - self._memory_kib


def restart(broker: Broker) -> None:
    broker.stop(STOP_S)
    broker.start(STOP_S)


# --- the figures ----------------------------------------------------------------------------------


def cost(broker: Broker, scale: Scale) -> Numbers:
    """CPU of a message, without a publish rate and with one that is not reached."""
    make_namespaces(broker, "plain", "rated")
    set_policy(broker, "namespaces/public/rated/publishRate", UNREACHED)
    topics = {"without": "plain/without", "topic": "plain/with", "namespace": "rated/with"}
    connections = {}
    for name, topic in topics.items():
        connections[name] = RawConnection(broker.port, timeout_s=PATIENCE_S)
        connections[name].producer(f"persistent://public/{topic}")
    set_policy(broker, "persistent/public/plain/with/publishRate", UNREACHED)
    time.sleep(MEASURED_TOPIC_SETTLES_S)
    spent: dict[str, list[float]] = {name: [] for name in topics}
    order = list(topics)
    for number in range(scale.alternations + 1):
        for name in order:
            account = Account(broker)
            rates.publish(connections[name], scale.messages // BLOCK)
            if number:  # the first one only warms up
                spent[name].append(account.cpu_s() / scale.messages * 1e6)
        order.append(order.pop(0))
    for connection in connections.values():
        connection.socket.close()
    return {"without_us": statistics.median(spent["without"])} | {
        f"{name}_ratio": statistics.median(
            rated / plain for rated, plain in zip(spent[name], spent["without"], strict=True)
        )
        for name in ("topic", "namespace")
    }


def accuracy(broker: Broker, scale: Scale) -> Numbers:
    """How much comes through a rate that is reached, and how evenly."""
    numbers: Numbers = {}
    for what, measure in (("publish", rates.flood), ("dispatch", rates.drain)):
        topic = f"public/default/{what}"
        with RawConnection(broker.port, timeout_s=PATIENCE_S) as raw:
            raw.producer(f"persistent://{topic}")
        rate = {f"{what}ThrottlingRateInMsg": RATE, f"{what}ThrottlingRateInByte": -1}
        if what == "dispatch":
            rate |= {"ratePeriodInSecond": 1, "relativeToPublishRate": False}
        set_policy(broker, f"persistent/{topic}/{what}Rate", rate)
        time.sleep(MEASURED_TOPIC_SETTLES_S)
        found = measure(broker, f"persistent://{topic}", scale.seconds)
        numbers[f"{what}_off"] = (found[f"{what}_rate"] / RATE - 1) * 100
        numbers[f"{what}_gap_ms"] = found[f"{what}_gap_ms"]
    return numbers


def change(broker: Broker, scale: Scale) -> Numbers:
    """Policies of a namespace with many open topics change."""
    make_namespaces(broker, "many")
    opener = Opener(broker)
    producers = opener.produce(names_of("many", scale.topics))
    opener.send(producers)  # so that their ledgers are there
    numbers: Numbers = {"topics": scale.topics}
    for name, policy, body in (
        ("rate", "publishRate", UNREACHED),
        ("retention", "retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}),
        ("ttl", "messageTTL", TTL_S),
    ):
        account = Account(broker)
        set_policy(broker, f"namespaces/public/many/{policy}", body)
        time.sleep(scale.settle_s)
        numbers |= {f"{name}_cpu_s": account.cpu_s(), f"{name}_turn_ms": account.turn_ms()}
    account, began = Account(broker), time.perf_counter()
    set_policy(broker, "namespaces/public/many/encryptionRequired", True)
    left = set(producers)
    while left:
        left -= opener.send(sorted(left))
    numbers["encryption_s"] = time.perf_counter() - began
    numbers |= {"encryption_cpu_s": account.cpu_s(), "encryption_turn_ms": account.turn_ms()}
    opener.close()
    return numbers


def opening(broker: Broker, scale: Scale) -> Numbers:
    """Topics with policies of their own are opened after a restart, and others without."""
    make_namespaces(broker, "warm", "without", "with")
    opener = Opener(broker)
    opener.produce(names_of("warm", WARM_UP))
    for namespace in ("without", "with"):
        opener.produce(names_of(namespace, scale.topics))
    client = WebClient(broker.web_port)
    for number in range(scale.topics):
        path = f"/admin/v2/persistent/public/with/t-{number:06}/publishRate"
        statuses = client.ask(request("POST", path, json.dumps(UNREACHED)))
        assert statuses == [204], statuses
    opener.close()
    client.socket.close()
    numbers: Numbers = {"topics": scale.topics}
    for namespace in ("without", "with"):
        restart(broker)
        opener = Opener(broker)
        opener.produce(names_of("warm", WARM_UP))
        names = names_of(namespace, scale.topics)
        account, began = Account(broker), time.perf_counter()
        opener.produce(names[:1])
        first_s = time.perf_counter() - began
        opener.produce(names[1:])
        seconds = time.perf_counter() - began
        numbers |= {
            f"{namespace}_first_ms": first_s * 1000,
            f"{namespace}_ms": seconds / scale.topics * 1000,
            f"{namespace}_cpu_ms": account.cpu_s() / scale.topics * 1000,
            f"{namespace}_kib": account.grown_kib() / scale.topics,
            f"{namespace}_turn_ms": account.turn_ms(),
        }
        opener.close()
    return numbers


def closed(broker: Broker, scale: Scale) -> Numbers:
    """Closed topics with a TTL of which nothing is due: the broker at rest."""
    make_namespaces(broker, "closed")
    set_policy(broker, "namespaces/public/closed/messageTTL", TTL_S)
    names = names_of("closed", scale.closed)
    for at in range(0, scale.closed, TOPICS_PER_LIFE):
        some = names[at : at + TOPICS_PER_LIFE]
        opener = Opener(broker)
        opener.subscribe(some)
        opener.send(opener.produce(some))
        opener.close()
        restart(broker)
    account = Account(broker)
    time.sleep(scale.after_start_s)
    numbers: Numbers = {
        "closed": scale.closed,
        "start_cpu_s": account.cpu_s(),
        "start_window_s": scale.after_start_s,
        "start_turn_ms": account.turn_ms(),
    }
    account = Account(broker)
    time.sleep(scale.rest_s)
    return numbers | {
        "rest_cpu_s": account.cpu_s(),
        "rest_turn_ms": account.turn_ms(),
        "rest_mib": broker.distinct_memory_kib() / 1024,
    }


FIGURES: dict[str, Callable[[Broker, Scale], Numbers]] = {
    "cost": cost,
    "accuracy": accuracy,
    "change": change,
    "opening": opening,
    "closed": closed,
}


# Those that are opened by nobody until they are opened again have to stay.
SETTINGS = {"opening": {"brokerDeleteInactiveTopicsEnabled": "false"}}


def one_figure(name: str, like: Broker, scale: Scale) -> Numbers:
    """One figure of a broker like that one, on fresh data."""
    settings = like.settings | SETTINGS.get(name, {})
    broker = Broker(like.kind, like.directory / name, settings=settings)
    try:
        broker.start()
        return FIGURES[name](broker, scale)
    finally:
        broker.close()


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--figure", action="append", choices=FIGURES, help="only this figure")
    parser.add_argument("--short", action="store_true", help="little of everything")
    parser.add_argument("--topics", type=int, help=f"open ones [{Scale().topics}]")
    parser.add_argument("--closed", type=int, help=f"closed ones [{Scale().closed}]")
    options = parser.parse_args(arguments)
    scale = SHORT if options.short else Scale()
    scale = scale._replace(
        topics=options.topics or scale.topics, closed=options.closed or scale.closed
    )

    def one_life(broker: Broker) -> Numbers:
        numbers: Numbers = {}
        for name in options.figure or FIGURES:
            found = one_figure(name, broker, scale)
            told = ", ".join(f"{number} {value:.4g}" for number, value in found.items())
            print(f"{broker.kind} {name}: {told}", file=sys.stderr, flush=True)
            numbers |= found
        return numbers

    side_by_side.run(options, ROWS, one_life)
    return 0


if __name__ == "__main__":
    sys.exit(main())

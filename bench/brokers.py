"""Figures of three brokers of one cluster, on ZooKeeper and two of Apache's bookies.

    python -m bench.brokers --figure topics --topics 100000
    python -m bench.brokers --figure topics --topics 5000 --only apache
    python -m bench.brokers --figure balance          16 minutes

`topics` opens topics on all brokers, looks them up, moves a bundle, kills a broker, and waits until
the others serve its topics. `balance` publishes to 200 bundles at skewed rates and counts the moves
until the brokers have equal parts. Its brokers are in network namespaces (it needs root), and half
of their network is busy: the CPU of this machine also has the client's load.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pulsar
from compat_tests.clusters import Cluster
from harness import wire
from harness.brokers import Broker
from harness.cluster import Cluster as HostsCluster
from harness.network import isolate
from harness.raw import RawConnection

from bench import side_by_side
from bench.policies import chunks
from bench.side_by_side import Numbers

BROKERS, BOOKIES = 3, 2
ZOOKEEPER_MIB = 2048
BUNDLES = 48
NAMESPACE, BALANCED = "public/scale", "public/balanced"
QUORUMS = {
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
}
LOOKUPS = 20_000
PATIENCE_S = 120.0
IDLE_S = 30.0
AGAIN_S = 0.1
# CommandLookupTopicResponse.response
CONNECT = 1

BUNDLES_BALANCED = 200
RATE = 1_000.0  # messages per second
BODY = bytes(1024)
DISK_MIB = 4096  # of a bookie
STEP_S = 0.1
POLL_S = 10.0
BALANCE_S, STAY_S = 300.0, 600.0

ROWS: dict[str, Sequence[side_by_side.Row]] = {
    "topics": (
        ("topics", "topics, each with a subscription", "", 0),
        ("create_ms", "new topic with a message and a subscription", "ms", 3),
        ("create_cpu_ms", "  CPU of the brokers for each", "ms", 3),
        ("topic_kib", "  memory of the brokers for each", "KiB", 1),
        ("lookups", "lookups per second, one connection", "", 0),
        ("lookup_us", "  CPU of the brokers for each", "us", 1),
        ("idle_cpu", "CPU of a broker without messages", "%", 2),
        ("idle_requests", "requests to ZooKeeper without messages, all brokers", "per s", 1),
        ("idle_writes", "  transactions", "per s", 2),
        ("moved", "topics of a bundle that is unloaded", "", 0),
        ("moved_ms", "  until each is served again", "ms", 0),
        ("moved_writes", "  transactions of ZooKeeper for each topic", "", 2),
        ("lost", "topics of a broker that is killed", "", 0),
        ("first_s", "  until the first is served", "s", 2),
        ("served_s", "  until all are served", "s", 2),
        ("lost_cpu_ms", "  CPU of the others for each", "ms", 3),
        ("lost_writes", "  transactions of ZooKeeper for each", "", 2),
    ),
    "balance": (
        ("before", "distance from the mean at the start", "%", 1),
        ("balanced_s", "until no broker is 10 % from the mean", "s", 0),
        ("after", "distance from the mean after 5 minutes", "%", 1),
        ("moves", "moves in 5 minutes", "", 0),
        ("later_moves", "moves in the next 10 minutes", "", 0),
        ("failed", "sends that failed", "", 0),
    ),
}


class Servers:
    """ZooKeeper, bookies and three brokers of one kind."""

    def __init__(self, kind: str, directory: Path, settings: dict[str, str]) -> None:
        self.cluster = Cluster(directory, BOOKIES, zookeeper_mib=ZOOKEEPER_MIB)
        self.cluster.start()
        create = self.cluster.broker if kind == "pyxbroker" else self.cluster.apache_broker
        for number in range(BROKERS):
            create(f"broker-{number}", **QUORUMS, **settings).spawn()
        for broker in self.brokers:
            broker.wait_ready(PATIENCE_S)

    @property
    def brokers(self) -> list[Broker]:
        return [each for each in self.cluster.brokers if each.process is not None]

    def make_namespace(self, name: str, bundles: int) -> None:
        body = {"bundles": {"numBundles": bundles}}
        status, answer = self.brokers[0].request("PUT", f"/admin/v2/namespaces/{name}", body)
        assert status == 204, (status, answer)

    def cpu_s(self) -> float:
        return sum(each.cpu_s() for each in self.brokers)

    def memory_kib(self) -> int:
        return sum(each.distinct_memory_kib() for each in self.brokers)

    def ask_zookeeper(self, word: str) -> str:
        host, _, port = self.cluster.zookeeper.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as one:
            one.sendall(word.encode())
            parts = []
            while part := one.recv(1 << 16):
                parts.append(part)
        return b"".join(parts).decode()

    def writes(self) -> int:
        """Return the number of the last transaction; one may have several writes of Apache's."""
        (line,) = (each for each in self.ask_zookeeper("srvr").splitlines() if "Zxid" in each)
        return int(line.split()[1], 16) & 0xFFFF_FFFF

    def requests(self) -> int:
        told = dict(line.split("\t", 1) for line in self.ask_zookeeper("mntr").splitlines())
        return int(told["zk_packets_received"])


class Client:
    """One connection to each broker; opens topics where a lookup leads to."""

    def __init__(self, servers: Servers) -> None:
        self.at: dict[str, RawConnection] = {}
        for broker in servers.brokers:
            self.at[broker.url] = RawConnection(broker.port, timeout_s=PATIENCE_S)
        self._ids = count(1)

    def leave(self, url: str) -> None:
        self.at.pop(url).socket.close()

    def look_up(self, topics: Sequence[str], first: str) -> dict[str, list[str]]:
        """Return the topics by the URL of their owner; those that failed are missing."""
        owners: dict[str, list[str]] = {}
        asked = {first: (list(topics), False)}
        for _ in range(4):
            further: defaultdict[str, list[str]] = defaultdict(list)
            authoritative: dict[str, bool] = {}
            for url, (names, is_final) in asked.items():
                for name, answer in zip(names, self._ask(url, names, is_final), strict=True):
                    place = answer.data(1).decode()
                    if answer.number(6):
                        continue  # the response also says FAILED
                    if answer.number(3) == CONNECT:
                        owners.setdefault(place, []).append(name)
                    elif place in self.at:
                        further[place].append(name)
                        authoritative[place] = bool(answer.number(5))
            if not further:
                break
            asked = {url: (names, authoritative[url]) for url, names in further.items()}
        return owners

    def _ask(self, url: str, topics: Sequence[str], is_final: bool) -> list[wire.Frame]:
        one = self.at[url]
        ids = [one.request_id() for _ in topics]
        fields = [{1: t, 2: i, 3: int(is_final)} for t, i in zip(topics, ids, strict=True)]
        one.write(b"".join(wire.command(wire.LOOKUP, each) for each in fields))
        answers: dict[int, wire.Frame] = {}
        while len(answers) < len(ids):
            answer = one.receive()
            if answer.type == wire.LOOKUP_RESPONSE:
                answers[answer.number(4)] = answer
        return [answers[each] for each in ids]

    def produce(self, topics: Iterable[str], first: str) -> set[str]:
        """Create a producer for each topic; return the topics that are served."""
        served = set()
        for url, names in self.look_up(list(topics), first).items():
            if url not in self.at:
                continue
            one = self.at[url]
            ids = {one.request_id(): name for name in names}
            fields = [{1: name, 2: next(self._ids), 3: each} for each, name in ids.items()]
            one.write(b"".join(wire.command(wire.PRODUCER, each) for each in fields))
            while ids:
                answer = one.receive()
                if answer.type == wire.PRODUCER_SUCCESS:
                    served.add(ids.pop(answer.number(1)))
                elif answer.type == wire.ERROR:
                    ids.pop(answer.number(1))
        return served

    def serve(self, topics: Sequence[str], urls: Sequence[str]) -> tuple[float, float]:
        """Create producers until each topic is served; return the seconds until the first one and
        until the last one.
        """
        began = time.monotonic()
        left = dict.fromkeys(topics)
        first_s = 0.0
        turn = count()
        while left:
            served: set[str] = set()
            for some in chunks(list(left)):
                served |= self.produce(some, urls[next(turn) % len(urls)])
                if served and not first_s:
                    first_s = time.monotonic() - began
            for name in served:
                del left[name]
            if not served:
                time.sleep(AGAIN_S)
            if time.monotonic() - began > PATIENCE_S + len(topics) / 50:
                raise AssertionError(f"{len(left)} topics are not served, such as {min(left)}")
        return first_s, time.monotonic() - began

    def fill(self, topics: Sequence[str], urls: Sequence[str]) -> dict[str, list[str]]:
        """Create a subscription and a message in each topic; return the topics by owner."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        meta = wire.metadata("p", 0, int(time.time() * 1000))
        for turn, some in enumerate(chunks(topics)):
            for url, names in self.look_up(some, urls[turn % len(urls)]).items():
                found[url] += names
                one = self.at[url]
                fields = [
                    {1: n, 2: "s", 3: wire.SHARED, 4: next(self._ids), 5: one.request_id()}
                    for n in names
                ]
                self._all(one, wire.SUBSCRIBE, fields, wire.SUCCESS)
                ids = [next(self._ids) for _ in names]
                fields = [
                    {1: n, 2: i, 3: one.request_id()} for n, i in zip(names, ids, strict=True)
                ]
                self._all(one, wire.PRODUCER, fields, wire.PRODUCER_SUCCESS)
                one.write(b"".join(wire.send(each, 0, meta, b"") for each in ids))
                for _ in ids:
                    one.wait_for(wire.SEND_RECEIPT)
        return found

    def _all(
        self, one: RawConnection, kind: int, fields: Sequence[dict[int, Any]], answer: int
    ) -> None:
        one.write(b"".join(wire.command(kind, each) for each in fields))
        for _ in fields:
            one.wait_for(answer)


def many_topics(servers: Servers, topics: int) -> Numbers:
    """Open topics on all brokers, look them up, move some, and kill a broker."""
    servers.make_namespace(NAMESPACE, BUNDLES)
    names = [f"persistent://{NAMESPACE}/t-{number:06}" for number in range(topics)]
    client = Client(servers)
    urls = list(client.at)
    memory_kib, cpu_s, began = servers.memory_kib(), servers.cpu_s(), time.monotonic()
    owners = client.fill(names, urls)
    assert sum(map(len, owners.values())) == topics, "some lookups failed"
    numbers: Numbers = {"topics": topics}
    numbers["create_ms"] = (time.monotonic() - began) / topics * 1000
    numbers["create_cpu_ms"] = (servers.cpu_s() - cpu_s) / topics * 1000
    numbers["topic_kib"] = (servers.memory_kib() - memory_kib) / topics

    asked = [random.choice(names) for _ in range(LOOKUPS)]
    cpu_s, began = servers.cpu_s(), time.monotonic()
    for some in chunks(asked):
        client.look_up(some, urls[0])
    numbers["lookups"] = LOOKUPS / (time.monotonic() - began)
    numbers["lookup_us"] = (servers.cpu_s() - cpu_s) / LOOKUPS * 1e6

    time.sleep(2.0)
    cpu_s, requests, writes = servers.cpu_s(), servers.requests(), servers.writes()
    time.sleep(IDLE_S)
    numbers["idle_cpu"] = (servers.cpu_s() - cpu_s) / IDLE_S / BROKERS * 100
    numbers["idle_requests"] = (servers.requests() - requests) / IDLE_S
    numbers["idle_writes"] = (servers.writes() - writes) / IDLE_S

    numbers |= _move(servers, client, names)
    print(json.dumps(numbers), flush=True)  # the rest may take long
    numbers |= _kill(servers, client, names)
    return numbers


def _move(servers: Servers, client: Client, names: Sequence[str]) -> Numbers:
    broker = servers.brokers[0]
    path = f"/lookup/v2/topic/{names[0].replace('://', '/')}/bundle"
    bundle = broker.request("GET", path)[1].strip('"')
    low, high = (int(each, 16) for each in bundle.split("_"))
    moved = [each for each in names if low <= zlib.crc32(each.encode()) < high]
    writes, began = servers.writes(), time.monotonic()
    target = f"/admin/v2/namespaces/{NAMESPACE}/{bundle}/unload"
    status, answer = redirected(servers, "PUT", target)
    assert status == 204, (status, answer)
    client.serve(moved, list(client.at))
    return {
        "moved": len(moved),
        "moved_ms": (time.monotonic() - began) * 1000,
        "moved_writes": (servers.writes() - writes) / len(moved),
    }


def redirected(servers: Servers, method: str, target: str) -> tuple[int, str]:
    """Send a request to that broker which does not redirect it."""
    for broker in servers.brokers:
        status, answer = broker.request(method, target)
        if status != 307:
            return status, answer
    raise AssertionError(f"each broker redirects {target}")


def _kill(servers: Servers, client: Client, names: Sequence[str]) -> Numbers:
    killed = servers.brokers[-1]
    lost = []
    for some in chunks(names):
        lost += client.look_up(some, next(iter(client.at))).get(killed.url, [])
    client.leave(killed.url)
    writes = servers.writes()
    killed.kill()
    servers.cluster.brokers.remove(killed)
    cpu_s = servers.cpu_s()
    first_s, served_s = client.serve(lost, list(client.at))
    return {
        "lost": len(lost),
        "first_s": first_s,
        "served_s": served_s,
        "lost_cpu_ms": (servers.cpu_s() - cpu_s) / len(lost) * 1000,
        "lost_writes": (servers.writes() - writes) / len(lost),
    }


# --- balance --------------------------------------------------------------------------------------


def one_topic_per_bundle() -> list[str]:
    """Return names of topics, each in another one of the equal bundles of a namespace."""
    found: dict[int, str] = {}
    for number in count():
        name = f"persistent://{BALANCED}/t-{number}"
        found.setdefault(zlib.crc32(name.encode()) // (2**32 // BUNDLES_BALANCED), name)
        if all(each in found for each in range(BUNDLES_BALANCED)):
            return [found[each] for each in range(BUNDLES_BALANCED)]
    raise AssertionError


class Publisher:
    """Publishes to each topic at a rate of its own, until it is stopped."""

    def __init__(self, url: str, rates: dict[str, float]) -> None:
        self.failed = 0
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        self._client = pulsar.Client(url, logger=logger)
        self._producers = {
            name: self._client.create_producer(
                name, batching_enabled=False, block_if_queue_full=True
            )
            for name in rates
        }
        self._rates = rates
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        due = {name: random.random() for name in self._rates}
        following = time.monotonic()
        while not self._is_over.is_set():
            for name, producer in self._producers.items():
                due[name] += self._rates[name] * STEP_S
                while due[name] >= 1:
                    producer.send_async(BODY, self._on_sent)
                    due[name] -= 1
            following += STEP_S
            time.sleep(max(0.0, following - time.monotonic()))

    def _on_sent(self, result: Any, _id: Any) -> None:
        self.failed += result != pulsar.Result.Ok

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()


def balance(kind: str, directory: Path, settings: dict[str, str]) -> Numbers:
    """Publish at skewed rates to brokers in network namespaces; see how the bundles move."""
    kinds = {f"broker-{number}": kind for number in range(1, BROKERS + 1)}
    cluster = HostsCluster(kinds, directory, 1, BOOKIES, DISK_MIB)
    for broker in cluster.brokers.values():
        broker.settings |= OF_BALANCE | QUORUMS | settings
    try:
        cluster.start()
        return _balanced(cluster)
    finally:
        cluster.close()
        for bookie in cluster.bookies.values():
            bookie.unmount()


def _balanced(cluster: HostsCluster) -> Numbers:
    body = {"bundles": {"numBundles": BUNDLES_BALANCED}}
    status, answer = cluster.broker.request("PUT", f"/admin/v2/namespaces/{BALANCED}", body)
    assert status == 204, (status, answer)
    names = one_topic_per_bundle()
    weights = [1 / (rank + 1) for rank in range(len(names))]
    random.Random(1).shuffle(weights)
    rates = {n: RATE * w / sum(weights) for n, w in zip(names, weights, strict=True)}
    publisher = Publisher(cluster.broker.url, rates)
    with contextlib.closing(publisher):
        began = time.monotonic()
        owners = _owners(cluster, names)
        distance = _distance(cluster, owners, rates)
        numbers: Numbers = {"before": distance * 100}
        moves = Counter[bool]()
        while (now := time.monotonic() - began) < BALANCE_S + STAY_S:
            if distance <= 0.1 and "balanced_s" not in numbers:
                numbers["balanced_s"] = now
            if now <= BALANCE_S:
                numbers["after"] = distance * 100
            time.sleep(POLL_S)
            previous, owners = owners, _owners(cluster, names)
            some = sum(previous[each] != owners[each] for each in names)
            moves[now > BALANCE_S] += some
            distance = _distance(cluster, owners, rates)
            if some:
                print(f"{now:4.0f} s: {some} moves, {distance:.1%} from the mean", flush=True)
    return numbers | {
        "moves": moves[False],
        "later_moves": moves[True],
        "failed": publisher.failed,
    }


def _owners(cluster: HostsCluster, names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        path = f"/lookup/v2/topic/{name.replace('://', '/')}"
        status, answer = cluster.broker.request("GET", path)
        assert status == 200, (status, answer)
        found[name] = json.loads(answer)["brokerUrl"]
    return found


def _distance(cluster: HostsCluster, owners: dict[str, str], rates: dict[str, float]) -> float:
    """Return the largest relative distance of a broker's rate from the mean."""
    sums = {each.url: 0.0 for each in cluster.brokers.values()}
    for name, url in owners.items():
        sums[url] += rates[name]
    mean = sum(sums.values()) / len(sums)
    return max(abs(each / mean - 1) for each in sums.values())


# --- the program ----------------------------------------------------------------------------------

# Each message goes to two bookies, so a broker sends twice what it receives: half of its network.
# The rates are small, and so is the least difference that the leader evens.
OF_BALANCE = {
    "loadBalancerEnabled": "true",
    "minUnloadMessage": "10",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "loadBalancerOverrideBrokerNicSpeedGbps": f"{RATE * len(BODY) * 8 / BROKERS * 4 / 1e9:.4f}",
}


def topics_of(kind: str, directory: Path, settings: dict[str, str], topics: int) -> Numbers:
    """Run the figure `topics` on a cluster of its own."""
    servers = Servers(kind, directory, {"loadBalancerEnabled": "false"} | settings)
    try:
        return many_topics(servers, topics)
    finally:
        servers.cluster.close()


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit status."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--figure", choices=("topics", "balance"), default="topics")
    parser.add_argument("--topics", type=int, default=100_000)
    options = parser.parse_args(arguments)
    if options.figure == "balance":
        isolate("bench.brokers", arguments)
    settings = dict(each.split("=", 1) for each in options.set)
    workspace = options.workspace or Path(tempfile.mkdtemp(prefix="bench-brokers-"))
    results: dict[str, Numbers] = {}
    try:
        for kind in options.only or ("pyxbroker",):
            if options.figure == "balance":
                results[kind] = balance(kind, workspace / kind, settings)
            else:
                results[kind] = topics_of(kind, workspace / kind, settings, options.topics)
    finally:
        if options.workspace is None:
            shutil.rmtree(workspace, ignore_errors=True)
    print(side_by_side.table(ROWS[options.figure], results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

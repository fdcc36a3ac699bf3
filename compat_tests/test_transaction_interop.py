"""Our broker and Apache Pulsar's take turns on the same transactions.

Each broker is killed with kill -9. The next one reads the logs that the one before has written:
open transactions stay open and hidden, ended ones stay ended, pending acknowledgements stay
pending, and it ends what the other began.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness import wire
from harness.apache_broker import pulsar_command
from harness.brokers import Broker, pyxbroker_command
from harness.raw import Answer
from harness.transaction_commands import (
    ABORT,
    COMMIT,
    COORDINATOR_TOPIC,
    Id,
    TransactionConnection,
)
from harness.transactions import SETTINGS, buffer_stats, transaction_rest, wait_until
from tests.zookeeper_server import ZooKeeperServer

from compat_tests.clusters import Cluster
from compat_tests.test_broker_on_bookkeeper import in_store
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

CONFLICT = 23
NOT_FOUND = 24
UNKNOWN_ERROR = 0
ATTEMPTS = 5
TOPIC = "persistent://public/default/pending"
INPUT = "persistent://public/default/input"
OUTPUT = "persistent://public/default/output"
SNAPSHOTS = "persistent://public/default/__transaction_buffer_snapshot"
BATCHES = {  # several records in an entry of the logs
    f"transaction{log}BatchedWrite{name}": value
    for log in ("Log", "PendingAck")
    for name, value in (("Enabled", "true"), ("MaxDelayInMillis", "100"))
}
Position = tuple[int, int]
ONE_BOOKIE = {
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "metadataStoreSessionTimeoutMillis": "3000",
    "brokerDeleteInactiveTopicsEnabled": "false",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path, bookies=1)
    try:
        one.start()
        yield one
    finally:
        one.close()


class Client(TransactionConnection):
    """A client that keeps the positions and bodies of all messages, by consumer."""

    def __init__(self, port: int) -> None:
        self.positions: dict[int, list[Position]] = {1: [], 2: [], 3: []}
        self.bodies: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
        super().__init__(port)

    def receive(self, timeout_s: float | None = None) -> Answer:
        frame = super().receive(timeout_s)
        if frame.type == wire.MESSAGE:
            self.positions[frame.number(1)].append(wire.position(frame.data(2)))
            self.bodies[frame.number(1)].append(wire.parse_payload(frame.rest).body)
        return frame

    def _take(self, is_wanted: Callable[[Answer], bool]) -> Answer:
        """Return the next frame that is wanted. Messages before it were noted by `receive`."""
        while not is_wanted(frame := self.receive()):
            pass
        return frame


class Turn:
    """A broker that runs, and a client with consumers of Shared and Failover subscriptions."""

    def __init__(self, cluster: Cluster, broker: Broker) -> None:
        async def brokers(store: MetadataStore) -> list[str]:
            return await store.children(paths.BROKERS)

        self.broker = broker
        # The bundles are free when the session of the killed broker has ended.
        wait_until(lambda: not in_store(cluster.zookeeper, brokers))
        broker.spawn()
        broker.wait_ready(90.0)
        self.client: Client = wait_until(self._connected)

    def _connected(self) -> Client | None:
        client = Client(self.broker.port)
        try:
            client.lookup(TOPIC)
            client.lookup(f"{COORDINATOR_TOPIC}-partition-0")
            assert client.connect_coordinator().code is None
        except AssertionError:
            client.socket.close()
            return None
        return client

    def subscribe(self, count: int, name: str = "s", kind: int = wire.SHARED) -> list[Position]:
        """Add a consumer and return the positions of the messages that it gets."""
        consumer_id = 1 if name == "s" else 2
        assert self.client.subscribe(TOPIC, name, consumer_id, kind).type == wire.SUCCESS
        self.client.flow(100, consumer_id)
        return self.receive(count, consumer_id)

    def receive(self, count: int, consumer_id: int = 1) -> list[Position]:
        """The next messages of a consumer, and no more, in the order of their positions."""
        positions = self.client.positions[consumer_id]
        while len(positions) < count:
            self.client.receive()
        self.client.assert_alive()
        self.client.positions[consumer_id] = []
        return sorted(positions)

    def end(self, least: int, action: int, name: str = "s") -> None:
        assert self.client.end_on_subscription((0, least), TOPIC, name, action).code is None

    def kill(self) -> None:
        self.client.socket.close()
        self.broker.kill()


def test_pending_acknowledgements_move_between_the_brokers(cluster: Cluster) -> None:
    ours = cluster.broker("ours", **SETTINGS, **ONE_BOOKIE)
    apaches = cluster.apache_broker("apaches", **SETTINGS, **ONE_BOOKIE)

    turn = Turn(cluster, ours)
    turn.client.producer(TOPIC)
    turn.client.subscribe(TOPIC, "f", 2, wire.FAILOVER)
    turn.subscribe(0)
    for number in range(8):
        turn.client.send(b"m-%d" % number, number)
    at = turn.receive(8)
    acknowledge = turn.client.acknowledge_within
    assert acknowledge((0, 101), at[0], at[1]).code is None
    assert acknowledge((0, 102), at[2]).code is None
    assert acknowledge((0, 103), at[3]).code is None
    turn.end(102, COMMIT)
    turn.end(103, ABORT)
    turn.kill()

    turn = Turn(cluster, apaches)
    assert turn.subscribe(5) == at[3:]
    acknowledge = turn.client.acknowledge_within
    # Apache's broker stores a record of each of these, though they are rejected.
    assert acknowledge((0, 104), at[0]).code == CONFLICT
    assert acknowledge((0, 105), at[4], at[1]).code == CONFLICT
    assert acknowledge((0, 106), at[5]).code is None
    assert acknowledge((0, 107), at[6]).code is None
    turn.end(107, COMMIT)
    turn.end(101, ABORT)
    assert turn.receive(2) == at[:2]
    assert turn.subscribe(8, "f", wire.FAILOVER) == at
    assert acknowledge((0, 110), at[3], cumulative=True, consumer_id=2).code is None
    turn.kill()

    turn = Turn(cluster, ours)
    assert turn.subscribe(5) == [at[0], at[1], at[3], at[4], at[7]]
    assert turn.subscribe(4, "f", wire.FAILOVER) == at[4:]
    acknowledge = turn.client.acknowledge_within
    assert acknowledge((0, 111), at[5]).code == CONFLICT
    assert acknowledge((0, 112), at[5], cumulative=True, consumer_id=2).code == CONFLICT
    turn.end(106, COMMIT)
    turn.end(110, COMMIT, "f")
    assert acknowledge((0, 113), at[4]).code is None
    turn.kill()

    turn = Turn(cluster, apaches)
    assert turn.subscribe(4) == [at[0], at[1], at[3], at[7]]
    assert turn.subscribe(4, "f", wire.FAILOVER) == at[4:]
    turn.end(113, ABORT)
    assert turn.receive(1) == [at[4]]
    turn.kill()


class TransactionsTurn(Turn):
    """A broker that runs, and a client with a consumer of the input and one of the output.

    Nothing is acknowledged outside of transactions. So each turn gets all that is visible.
    """

    INPUT_CONSUMER, OUTPUT_CONSUMER = 1, 3

    def open(self) -> None:
        """Create the producers and the consumers."""
        for number, topic in enumerate((INPUT, OUTPUT), 1):
            self.client.producer(topic, number)
            self._wait_recovered(topic)
        subscribe = self.client.subscribe
        assert subscribe(INPUT, "in", self.INPUT_CONSUMER, wire.SHARED).type == wire.SUCCESS
        assert subscribe(OUTPUT, "out", self.OUTPUT_CONSUMER).type == wire.SUCCESS
        self.client.flow(100, self.INPUT_CONSUMER)
        self.client.flow(100, self.OUTPUT_CONSUMER)

    def _wait_recovered(self, topic: str) -> None:
        """Wait for the recovery of a topic. If two topics of a namespace recover together in Apache
        Pulsar 4.2.4, one may miss its snapshot: the other has taken it from their common reader.
        """
        states = ("Ready", "NoSnapshot")
        wait_until(lambda: buffer_stats(self.broker, topic)["state"] in states)

    def output(self, *wanted: bytes) -> None:
        """Receive these messages of the output in their order, and no more."""
        bodies = self.client.bodies[self.OUTPUT_CONSUMER]
        while len(bodies) < len(wanted):
            self.client.receive()
        self.client.assert_alive()
        assert bodies == [*wanted]
        bodies.clear()

    def transform(self, body: bytes, *positions: Position) -> Id:
        """Begin a transaction that acknowledges input and publishes output."""
        id = self.client.begin(3_600_000)
        self.work(id, body, *positions)
        return id

    def work(self, id: Id, body: bytes, *positions: Position) -> None:
        assert self.client.add_partitions(id, OUTPUT).code is None
        assert self.client.send_within(id, body, id[1], 2).code is None
        if positions:
            assert self.client.add_subscription(id, INPUT, "in").code is None
            assert self.client.acknowledge_within(id, *positions).code is None

    def commit(self, id: Id) -> None:
        assert self.client.end(id, COMMIT).code is None

    def abort(self, id: Id) -> None:
        assert self.client.end(id, ABORT).code is None

    def begin_all(self, count: int) -> list[Id]:
        """Begin transactions whose records the broker may write together."""
        requests = [self.client.request_id() for _ in range(count)]
        fields = [{1: each, 2: 3_600_000, 3: 0} for each in requests]
        self.client.write(b"".join(wire.command(wire.NEW_TXN, each) for each in fields))
        answers = [self.client.wait_for(wire.NEW_TXN + 1) for _ in range(count)]
        assert all(4 not in each.fields for each in answers), answers
        return [(each.number(3), each.number(2)) for each in answers]

    def begin_in_one_entry(self, count: int) -> list[Id]:
        """Begin transactions whose records the broker writes in one entry, as it mostly does."""
        for _ in range(ATTEMPTS):
            entries = log_entries(self.broker)
            begun = self.begin_all(count)
            if log_entries(self.broker) == entries + 1:
                return begun
            for each in begun:
                self.abort(each)
        raise AssertionError("the broker writes each record in an entry of its own")


def log_entries(broker: Broker) -> int:
    """Return the number of entries that a broker has written to the log of its coordinator."""
    stats = transaction_rest(broker, "coordinatorInternalStats/0")[1]["transactionLogStats"]
    count: int = stats["managedLedgerInternalStats"]["entriesAddedCounter"]
    return count


@contextmanager
def turn_of(cluster: Cluster, broker: Broker) -> Iterator[TransactionsTurn]:
    turn = TransactionsTurn(cluster, broker)
    turn.open()
    yield turn
    turn.kill()


class Left(NamedTuple):
    """The transactions that a broker leaves to the next one."""

    to_commit: Id
    to_abort: Id
    ended: Id


BY_OURS = (b"committed", b"committed by Apache's", b"committed by ours")
BY_OURS += (b"ended behind an open one", b"ended by ours")
"""The output after our broker's second turn."""


def test_transactions_move_between_the_brokers(cluster: Cluster) -> None:
    settings = SETTINGS | ONE_BOOKIE
    ours = cluster.broker("ours", **settings)
    apaches = cluster.apache_broker("apaches", **settings)
    apaches_with_batches = cluster.apache_broker("apaches-with-batches", **settings, **BATCHES)

    with turn_of(cluster, ours) as turn:
        at, left = begin_with_ours(turn)
    with turn_of(cluster, apaches) as turn:
        left, ending = continue_with_apaches(turn, at, left)
    with turn_of(cluster, ours) as turn:
        left = continue_with_ours(turn, at, left, ending)
    with turn_of(cluster, apaches_with_batches) as turn:
        left = continue_with_batches(turn, at, left)
    with turn_of(cluster, ours) as turn:
        end_with_ours(turn, at, left)


def begin_with_ours(turn: TransactionsTurn) -> tuple[list[Position], Left]:
    for number in range(8):
        turn.client.send(b"i-%d" % number, number)
    at = turn.receive(8)
    committed = turn.transform(b"committed", at[0])
    aborted = turn.transform(b"aborted", at[1])
    to_commit = turn.transform(b"committed by Apache's", at[2])
    to_abort = turn.transform(b"aborted by Apache's", at[3])
    turn.commit(committed)
    turn.abort(aborted)
    assert turn.receive(1) == at[1:2]
    turn.output(b"committed")
    return at, Left(to_commit, to_abort, committed)


def continue_with_apaches(
    turn: TransactionsTurn, at: list[Position], left: Left
) -> tuple[Left, Id]:
    """Also return a transaction whose end has begun."""
    assert turn.receive(5) == [at[1], *at[4:]]
    turn.output(b"committed")
    assert turn.client.end(left.ended, COMMIT).code == NOT_FOUND
    turn.commit(left.to_commit)
    turn.abort(left.to_abort)
    assert turn.receive(1) == at[3:4]
    turn.output(b"committed by Apache's")
    to_commit = turn.transform(b"committed by ours", at[4])
    to_abort = turn.transform(b"aborted by ours", at[5])
    ended = turn.transform(b"ended behind an open one", at[6])
    turn.commit(ended)
    turn.abort(turn.transform(b"aborted", at[7]))
    assert turn.receive(1) == at[7:]
    turn.output()
    # This topic has no transactions, so Apache's broker cannot complete the end.
    ending = turn.transform(b"ended by ours", at[7])
    assert turn.client.add_partitions(ending, SNAPSHOTS).code is None
    assert turn.client.end(ending, COMMIT).code == UNKNOWN_ERROR
    path = f"transactionMetadata/{ending[0]}/{ending[1]}"
    assert transaction_rest(turn.broker, path)[1]["status"] == "COMMITTING"
    return Left(to_commit, to_abort, ended), ending


def continue_with_ours(turn: TransactionsTurn, at: list[Position], left: Left, ending: Id) -> Left:
    assert turn.receive(2) == [at[1], at[3]]
    turn.output(*BY_OURS[:2])
    turn.commit(ending)
    assert turn.client.end(left.ended, ABORT).code is not None
    turn.commit(left.to_commit)
    turn.abort(left.to_abort)
    assert turn.receive(1) == at[5:6]
    turn.output(*BY_OURS[2:])
    return Left(turn.transform(b"m", at[1]), turn.transform(b"n", at[3]), ending)


def continue_with_batches(turn: TransactionsTurn, at: list[Position], left: Left) -> Left:
    assert turn.receive(1) == at[5:6]
    turn.output(*BY_OURS)
    assert turn.client.end(left.ended, COMMIT).code == NOT_FOUND
    turn.commit(left.to_commit)
    turn.abort(left.to_abort)
    assert turn.receive(1) == at[3:4]
    turn.output(b"m")
    to_commit, aborted = turn.begin_in_one_entry(2)
    turn.work(to_commit, b"x", at[3])
    turn.work(aborted, b"y", at[5])
    turn.abort(aborted)
    assert turn.receive(1) == at[5:6]
    return Left(to_commit, aborted, aborted)


def end_with_ours(turn: TransactionsTurn, at: list[Position], left: Left) -> None:
    assert turn.receive(1) == at[5:6]
    turn.output(*BY_OURS, b"m")
    assert turn.client.end(left.ended, COMMIT).code is not None
    turn.commit(left.to_commit)
    turn.output(b"x")
    assert turn.transform(b"new", at[5])[1] > left.ended[1]


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    one = ZooKeeperServer(tmp_path / "zookeeper")
    try:
        one.start()
        yield one
    finally:
        one.kill()


def test_the_command_for_the_metadata_creates_the_nodes_of_apaches(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Also where another cluster has them, and where there are fewer coordinators."""
    programs = {
        "ours": [*pyxbroker_command(), "initialize-transaction-coordinator-metadata"],
        "apaches": pulsar_command(
            "PulsarTransactionCoordinatorMetadataSetup", 128, f"-Djava.io.tmpdir={tmp_path}"
        ),
    }
    paths_of_nodes = [
        paths.tenant("pulsar"),
        paths.namespace_policies("pulsar/system"),
        paths.partitioned_topic("pulsar/system", "transaction_coordinator_assign"),
    ]

    async def nodes(store: MetadataStore, name: str) -> list[Any]:
        found = [await store.get(f"/{name}{path}") for path in paths_of_nodes]
        return [None if each is None else json.loads(each.value) for each in found]

    for cluster, count in (("east", 2), ("west", 3), ("west", 1)):
        for name, program in programs.items():
            place = f"zk:{zookeeper.address}/{name}"
            options = ["-c", cluster, "-cs", place]
            options += ["--initial-num-transaction-coordinators", str(count)]
            done = subprocess.run([*program, *options], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        ours, apaches = (in_store(zookeeper, partial(nodes, name=name)) for name in programs)
        assert ours == apaches
        assert None not in ours

"""Our broker and Apache Pulsar's take turns on the pending acknowledgements of the same topic.

Each broker is killed with kill -9. The next one reads the log that the one before has written: what
is pending stays hidden, what was committed stays acknowledged, and it ends what the other began.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import Answer
from harness.transaction_commands import ABORT, COMMIT, TransactionConnection
from harness.transactions import SETTINGS, wait_until

from compat_tests.clusters import Cluster
from compat_tests.test_broker_on_bookkeeper import in_store
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

CONFLICT = 23
TOPIC = "persistent://public/default/pending"
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
    """A client that keeps the positions of all messages, by consumer."""

    def __init__(self, port: int) -> None:
        self.positions: dict[int, list[Position]] = {1: [], 2: []}
        super().__init__(port)

    def receive(self, timeout_s: float | None = None) -> Answer:
        frame = super().receive(timeout_s)
        if frame.type == wire.MESSAGE:
            self.positions[frame.number(1)].append(wire.position(frame.data(2)))
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

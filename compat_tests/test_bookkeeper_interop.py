"""Our broker and Apache Pulsar's take turns on the same topics, on ZooKeeper and Apache's bookies.

Each broker is killed with kill -9. The next one must have the same messages under the same ids, and
the same acknowledgements; then it adds its own.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.apache_broker import ApacheBroker
from harness.brokers import Broker

from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import official_client
from compat_tests.interop_scenes import Scene, Turn, scenes
from compat_tests.test_broker_on_bookkeeper import eventually, in_store, set_persistence
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

QUORUMS = {"e1": (1, 1, 1), "e3w3": (3, 3, 2), "e3w2": (3, 2, 2)}
TURNS = 7
"""Ours at even numbers, Apache's at odd ones: three of Apache's."""
AT_ONCE = 6
SETTINGS = {
    "clusterName": CLUSTER,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "brokerDeduplicationEntriesInterval": "20",
    "managedLedgerCursorPositionFlushSeconds": "1",
    "managedLedgerMaxUnackedRangesToPersist": "4000000",
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
    "metadataStoreSessionTimeoutMillis": "3000",
    "delayedDeliveryTickTimeMillis": "200",
}
FLUSHED_S = 2.2
"""After so long, cursors are stored."""


async def _brokers(store: MetadataStore) -> list[str]:
    return await store.children(paths.BROKERS)


class Story:
    """The brokers of a cluster, of which one runs, and what all of them have to agree on."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory, bookies=3)
        self.ours: Broker = self.cluster.broker("ours", **SETTINGS)
        metadata = f"zk:{self.cluster.zookeeper.address}"
        self.apaches = ApacheBroker(directory / "apaches", metadata, SETTINGS)
        self.differences: list[str] = []
        self.log: list[str] = []

    def begin(self) -> None:
        """Start the cluster with a namespace for each of the quorums."""
        self.cluster.start()
        self.ours.start()
        for name, quorums in QUORUMS.items():
            path = f"/admin/v2/namespaces/public/{name}"
            assert self.ours.rest("PUT", path)[0] == 204
            set_persistence(self.ours, path, quorums)
            # Else a ledger without subscriptions is deleted as soon as another one follows.
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            assert self.ours.rest("POST", f"{path}/retention", forever)[0] == 204
        self.ours.kill()

    def play(self, number: int, cast: list[Scene], joining: list[Scene]) -> None:
        """Let one broker check what is there and write more; then kill the broker."""
        broker = self.apaches if number % 2 else self.ours
        # The bundles are free when the session of the killed broker has ended.
        eventually(lambda: not in_store(self.cluster.zookeeper, _brokers))
        began = time.monotonic()
        broker.start(90.0)
        ready = time.monotonic()
        client = official_client(broker.url)
        turn = Turn(number, broker, client)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            checks = [pool.submit(self._try, turn, each, "check") for each in cast]
            for each in checks:
                each.result()
            checked = time.monotonic()
            if number < TURNS - 1:
                for _ in pool.map(lambda each: self._try(turn, each, "write"), cast + joining):
                    pass
        written = time.monotonic()
        client.close()
        time.sleep(FLUSHED_S)
        if number < TURNS - 1:
            broker.kill()
        print(
            f"turn {number} {broker.kind}: start {ready - began:.1f} s, check"
            f" {checked - ready:.1f} s, write {written - checked:.1f} s",
            flush=True,
        )

    def _try(self, turn: Turn, scene: Scene, name: str) -> None:
        began = time.monotonic()
        try:
            getattr(scene, name)(turn)
        except Exception as error:
            kind = type(error).__name__
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.note_difference(
                f"turn {turn.number} of {turn.broker.kind}, {name} of {scene.name}: {kind}:"
                f" {str(error)[:600]} ({where.name}, line {where.lineno})"
            )
        took = time.monotonic() - began
        if took > 2:
            print(f"  {turn.number} {name} {scene.name} {took:.1f} s", flush=True)

    def note_difference(self, text: str) -> None:
        self.differences.append(text)
        print(f"DIFF {text}", flush=True)

    def close(self) -> None:
        self.apaches.close()
        self.cluster.close()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    one = Story(tmp_path_factory.mktemp("interop"))
    try:
        one.begin()
        yield one
    finally:
        one.close()


def play(story: Story, hole_count: int) -> None:
    namespaces = [f"public/{name}" for name in QUORUMS]
    cast = scenes(namespaces, "ours", hole_count)
    joined = scenes(namespaces[-1:], "apaches", hole_count // 10)
    for number in range(TURNS):
        if number == 0:
            story.play(number, [], cast)
        else:
            story.play(number, cast, joined if number == 1 else [])
        if number == 1:
            cast += joined
    print("\n".join(story.log))
    assert not story.differences, "\n".join(story.differences)


def test_brokers_take_turns_on_the_same_topics(story: Story) -> None:
    play(story, 20_000)

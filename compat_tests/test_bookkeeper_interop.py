"""Our broker and Apache Pulsar's take turns on the same topics, on ZooKeeper and Apache's bookies.

Each broker is killed with kill -9. The next one must have the same messages under the same ids, and
the same acknowledgements; then it adds its own.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.apache_broker import ApacheBroker
from harness.bookies import shell
from harness.brokers import Broker

from compat_tests import test_compaction as compaction
from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import official_client
from compat_tests.interop_scenes import Scene, Turn, scenes
from compat_tests.test_broker_on_bookkeeper import eventually, in_store, set_persistence
from pyxbroker.ledger.metadata import LedgerState, decode
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
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
    "metadataStoreSessionTimeoutMillis": "3000",
    "delayedDeliveryTickTimeMillis": "200",
    # A scene without subscriptions waits longer for its turn than inactive topics live.
    "brokerDeleteInactiveTopicsEnabled": "false",
}
OF_APACHES = {"managedLedgerMaxUnackedRangesToPersist": "4000000"}
"""Else Apache's broker stores the acknowledgements of the first ledgers only. Ours stores all."""
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
        self.apaches = ApacheBroker(directory / "apaches", metadata, SETTINGS | OF_APACHES)
        self.differences: list[str] = []

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
        before = {*in_store(self.cluster.zookeeper, _brokers)} - {f"127.0.0.1:{broker.web_port}"}
        began = time.monotonic()
        broker.spawn()
        eventually(lambda: not before & {*in_store(self.cluster.zookeeper, _brokers)})
        broker.wait_ready(90.0)
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


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    one = Story(tmp_path)
    try:
        one.begin()
        yield one
    finally:
        one.close()


def play(story: Story, hole_count: int) -> None:
    """Let the brokers take turns, with topics that ours and topics that Apache's has created."""
    namespaces = [f"public/{name}" for name in QUORUMS]
    cast = scenes(namespaces, "ours", hole_count)
    joining = scenes(namespaces[-1:], "apaches", hole_count // 10)
    story.play(0, [], cast)
    story.play(1, cast, joining)
    for number in range(2, TURNS):
        story.play(number, cast + joining, [])
    assert not story.differences, "\n".join(story.differences)


def test_brokers_take_turns_on_the_same_topics(story: Story) -> None:
    play(story, 20_000)
    agrees_with_the_shell(story)


@pytest.mark.minutes
def test_brokers_take_turns_on_a_million_holes(story: Story) -> None:
    play(story, 1_000_000)


def agrees_with_the_shell(story: Story) -> None:
    """Compare what BookKeeper's shell shows of the ledgers with what this broker reads."""
    path = compaction.path(f"persistent://public/{[*QUORUMS][-1]}/ours-batches")
    [one, *_] = story.ours.rest("GET", f"{path}/internalStats")[1]["ledgers"]
    story.ours.kill()
    number, zookeeper = one["ledgerId"], story.cluster.zookeeper
    commands = (
        ("listledgers", "-meta"),
        ("ledgermetadata", "-ledgerid", str(number)),
        ("readledger", "-ledgerid", str(number)),
        ("listunderreplicated",),
    )
    configuration = story.cluster.bookies[0].configuration
    with ThreadPoolExecutor(2) as pool:
        listed, described, read, lacking = pool.map(
            lambda words: shell(configuration, *words), commands
        )
    ledgers = {int(each): text for each, text in LEDGER.findall(listed)}
    ours = in_store(zookeeper, lambda store: _described(store, ledgers))
    assert len(ledgers) > 50
    assert {each: SHOWN.findall(text) for each, text in ledgers.items()} == ours
    assert [(number, ours[number])] == [
        (int(each), SHOWN.findall(text)) for each, text in LEDGER.findall(described)
    ]
    entries = re.findall(r"Lid=(\d+), Eid=(\d+), EntrySize=(\d+)", read)
    assert [int(entry) for _, entry, _ in entries] == list(range(one["entries"]))
    # The size is that of the ledger up to the entry.
    assert {each for each, _, _ in entries} == {str(number)}
    assert int(entries[-1][2]) == one["size"]
    assert "Under replicated ledger count: 0" in lacking


LEDGER = re.compile(r"ledgerID: (\d+)\n.* (LedgerMetadata\{.*)")
SHOWN = re.compile(
    r"(ensembleSize|writeQuorumSize|ackQuorumSize|state|length|lastEntryId|digestType|ensembles)"
    r"=(\{.*?\}|\w+)"
)


async def _described(
    store: MetadataStore, ledgers: Iterable[int]
) -> dict[int, list[tuple[str, str]]]:
    """Return the metadata of ledgers as BookKeeper's shell shows it."""
    found = {}
    for each in ledgers:
        node = await store.get(paths.ledger(each))
        assert node is not None
        ledger = decode(node.value)
        segments = (
            f"{first}=[{', '.join(bookies)}]" for first, bookies in ledger.ensembles.items()
        )
        end = {"length": ledger.length, "lastEntryId": ledger.last_entry_id}
        shown = {
            "ensembleSize": ledger.ensemble_size,
            "writeQuorumSize": ledger.write_quorum_size,
            "ackQuorumSize": ledger.ack_quorum_size,
            "state": ledger.state.name,
            **(end if ledger.state is LedgerState.CLOSED else {}),
            "digestType": "CRC32C" if ledger.digest_type is None else ledger.digest_type.name,
            "ensembles": f"{{{', '.join(segments)}}}",
        }
        found[each] = [(name, str(value)) for name, value in shown.items()]
    return found

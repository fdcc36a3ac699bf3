"""A broker of a cluster, on ZooKeeper and Apache's bookies: what is stored, and what fails."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import ClusterBroker
from tests.zookeeper_server import ZooKeeperServer

from compat_tests import test_compaction as compaction
from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import official_client
from compat_tests.messages import payload, publish, receive
from pyxbroker.ledger.metadata import LedgerMetadata, decode, encode
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore, open_store
from pyxbroker.mledger.records import decode_managed_cursor_info

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

PATIENCE_S = 30.0
SESSION_MS = "2000"
FOREIGN_LEDGER = 2_000_000_000
SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    one = Cluster(tmp_path_factory.mktemp("cluster"), bookies=3)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def broker(cluster: Cluster) -> ClusterBroker:
    # In all of these tests, ledgers that no node names are garbage after two seconds.
    one = cluster.broker(
        metadataStoreSessionTimeoutMillis=SESSION_MS, ledgerGarbageCollectionIntervalInSeconds="1"
    )
    one.start()
    return one


@pytest.fixture
def client(broker: ClusterBroker) -> Iterator[pulsar.Client]:
    one = official_client(broker.url)
    yield one
    one.close()


def restart(broker: ClusterBroker) -> None:
    """End the broker with kill -9 and start it again."""
    broker.kill()
    broker.start()


def eventually(check: Callable[[], Any]) -> Any:
    """Return what the check returns, as soon as that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := check()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def in_store(zookeeper: ZooKeeperServer, work: Callable[[MetadataStore], Any]) -> Any:
    """Return what a coroutine returns that gets the metadata."""

    async def run() -> Any:
        store = open_store(f"zk:{zookeeper.address}")
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def ledgers_of(cluster: Cluster, broker: ClusterBroker, topic: str) -> list[LedgerMetadata]:
    """Return the metadata of a topic's ledgers."""
    stats = broker.rest("GET", f"{compaction.path(topic)}/internalStats")[1]
    ids = [each["ledgerId"] for each in stats["ledgers"]]

    async def read(store: MetadataStore) -> list[LedgerMetadata]:
        found = [await store.get(paths.ledger(each)) for each in ids]
        return [decode(each.value) for each in found if each is not None]

    found: list[LedgerMetadata] = in_store(cluster.zookeeper, read)
    return found


def set_persistence(broker: ClusterBroker, path: str, quorums: tuple[int, int, int]) -> None:
    ensemble, write, ack = quorums
    body = {
        "bookkeeperEnsemble": ensemble,
        "bookkeeperWriteQuorum": write,
        "bookkeeperAckQuorum": ack,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }
    code, answer = broker.rest("POST", f"{path}/persistence", body)
    assert code == 204, answer


def quorums_of(ledger: LedgerMetadata) -> tuple[int, int, int]:
    return ledger.ensemble_size, ledger.write_quorum_size, ledger.ack_quorum_size


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 2, 2)])
def test_nothing_is_lost_with_a_killed_broker(
    cluster: Cluster, broker: ClusterBroker, quorums: tuple[int, int, int]
) -> None:
    namespace = f"public/e{quorums[0]}"
    assert broker.rest("PUT", f"/admin/v2/namespaces/{namespace}")[0] == 204
    set_persistence(broker, f"/admin/v2/namespaces/{namespace}", quorums)
    topic = f"persistent://{namespace}/t"
    client = official_client(broker.url)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=2000)
    bodies = [payload(number) for number in range(2000)]
    publish(client.create_producer(topic, batching_enabled=False), bodies[:500])
    publish(client.create_producer(topic, block_if_queue_full=True), bodies[500:])
    messages = [consumer.receive(10_000) for _ in range(500)]
    for each in messages[::2]:
        consumer.acknowledge(each)
    for each in messages[1:100:2]:
        consumer.acknowledge(each)
    client.close()
    time.sleep(1.5)  # the cursor is stored once per second
    restart(broker)
    client = official_client(broker.url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in bodies] == bodies
    ledgers = ledgers_of(cluster, broker, topic)
    assert [quorums_of(each) for each in ledgers] == [quorums] * 2
    assert ledgers[0].is_closed
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=2000)
    assert sorted(receive(consumer, 1700)) == sorted([*bodies[101:500:2], *bodies[500:]])
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    client.close()


def test_a_policy_of_a_topic_decides_its_next_ledger(
    cluster: Cluster, broker: ClusterBroker, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/policy"
    producer = client.create_producer(topic)
    producer.send(b"0")
    set_persistence(broker, compaction.path(topic), (3, 3, 2))
    assert broker.rest("PUT", f"{compaction.path(topic)}/unload")[0] == 204
    producer.send(b"1")
    found = [quorums_of(each) for each in ledgers_of(cluster, broker, topic)]
    assert found == [(2, 2, 2), (3, 3, 2)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(5000).data() for _ in range(2)] == [b"0", b"1"]


class Numbered(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


def test_schemas_and_compacted_topics_survive(broker: ClusterBroker) -> None:
    client = official_client(broker.url)
    typed = "persistent://public/default/typed"
    schema = pulsar.schema.AvroSchema(Numbered)
    client.create_producer(typed, schema=schema).send(Numbered(number=5))
    topic = "persistent://public/default/compacted"
    for number in range(3):
        compaction.publish(client, topic, *((key, b"%d" % number) for key in "abc"))
    compaction.compact(broker, topic)
    client.close()
    restart(broker)
    client = official_client(broker.url)
    reader = client.create_reader(typed, pulsar.MessageId.earliest, schema=schema)
    assert reader.read_next(5000).value().number == 5
    assert broker.rest("GET", "/admin/v2/schemas/public/default/typed/schema")[1]["type"] == "AVRO"
    view = compaction.read(client, topic)
    assert sorted(view) == [(key, b"2") for key in "abc"]
    client.close()


def test_what_a_killed_broker_left_behind_is_deleted(
    cluster: Cluster, broker: ClusterBroker
) -> None:
    topic = "persistent://public/default/garbage"
    client = official_client(broker.url)
    consumers = [client.subscribe(topic, name) for name in ("gone", "stays")]
    bodies = [payload(number) for number in range(10)]
    publish(client.create_producer(topic), bodies)
    for each in consumers:
        each.acknowledge([each.receive(10_000) for _ in range(5)][-1])
    nodes = [paths.cursor("public/default/persistent/garbage", name) for name in ("gone", "stays")]
    gone, stays = eventually(lambda: in_store(cluster.zookeeper, partial(_cursor_ledgers, nodes)))
    broker.kill()
    client.close()

    async def crash(store: MetadataStore) -> None:
        # The broker was killed after it had deleted the node of a subscription.
        await store.delete(nodes[0])
        left = await store.get(paths.ledger(gone))
        assert left is not None
        found = decode(left.value)
        assert not found.is_closed
        foreign = {**found.custom_metadata, "application": b"distributedlog"}
        foreign_value = encode(found._replace(custom_metadata=foreign))
        await store.put(paths.ledger(FOREIGN_LEDGER), foreign_value)

    async def left(store: MetadataStore) -> list[bool]:
        return [await store.exists(paths.ledger(each)) for each in (gone, stays, FOREIGN_LEDGER)]

    in_store(cluster.zookeeper, crash)
    broker.start()
    eventually(lambda: not in_store(cluster.zookeeper, left)[0])
    assert in_store(cluster.zookeeper, left) == [False, True, True]
    assert f'event="a ledger is deleted that no node names" ledger={gone}' in broker.output(10**6)
    metrics = broker.request("GET", "/metrics")[1]
    assert re.search(r"^pyxbroker_garbage_ledgers_deleted_total\S* [1-9]", metrics, re.M)
    client = official_client(broker.url)
    assert receive(client.subscribe(topic, "stays"), 9) == [*bodies[:4], *bodies[5:]]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in bodies] == bodies
    client.close()


async def _cursor_ledgers(nodes: list[str], store: MetadataStore) -> list[int] | None:
    """Return the ledgers of cursors once all of them have one."""
    found = [await store.get(each) for each in nodes]
    ledgers = [
        decode_managed_cursor_info(each.value).cursorsLedgerId for each in found if each is not None
    ]
    return None if min(ledgers) < 0 else ledgers


def test_delayed_messages_survive(broker: ClusterBroker) -> None:
    topic = "persistent://public/default/delayed"
    client = official_client(broker.url)
    client.subscribe(topic, "s", consumer_type=SHARED).close()
    producer = client.create_producer(topic)
    due = time.time() + 4
    producer.send(b"late", deliver_at=int(due * 1000))
    producer.send(b"now")
    client.close()
    restart(broker)
    client = official_client(broker.url)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    assert receive(consumer, 2) == [b"now", b"late"]
    assert time.time() > due - 0.5
    client.close()


def test_sends_continue_when_a_bookie_is_killed(
    cluster: Cluster, broker: ClusterBroker, client: pulsar.Client
) -> None:
    """Two of three bookies have each entry; the killed one is replaced."""
    topic = "persistent://public/default/replaced"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    sent, gaps = 0, [0.0]
    is_over = threading.Event()

    def send() -> None:
        nonlocal sent
        while not is_over.is_set():
            began = time.monotonic()
            producer.send(payload(sent))
            sent += 1
            gaps.append(time.monotonic() - began)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        eventually(lambda: sent > 50)
        [ledger] = ledgers_of(cluster, broker, topic)
        victim = next(each for each in cluster.bookies if each.bookie_id in ledger.ensembles[0])
        victim.kill()
        before = sent
        eventually(lambda: sent > before + 200)
    finally:
        is_over.set()
        sender.join()
    assert max(gaps) < 10
    assert receive(consumer, sent) == [payload(number) for number in range(sent)]
    replaced = ledgers_of(cluster, broker, topic)[-1]
    assert victim.bookie_id not in replaced.ensembles[max(replaced.ensembles)]
    metrics = broker.request("GET", "/metrics")[1]
    client_series = "pulsar_managedLedger_client_bookkeeper_client_NUM_ENSEMBLE_CHANGE"
    assert re.search(rf"^{client_series}{{.*}} [1-9]", metrics, re.M)
    for bookie in cluster.bookies:
        added = rf'_ADD_ENTRY_count{{.*bookie="{bookie.bookie_id}",success="true"}} [1-9]'
        assert re.search(added, metrics), bookie.bookie_id
    assert 'pyxbroker_bookies{cluster="' in metrics
    victim.start()


def test_without_enough_bookies_the_health_check_says_so_and_the_broker_continues(
    cluster: Cluster, broker: ClusterBroker
) -> None:
    topic = "persistent://public/default/lacking"
    client = official_client(broker.url, operation_timeout_seconds=60)
    producer = client.create_producer(topic, send_timeout_millis=0)
    consumer = client.subscribe(topic, "s")
    producer.send(b"before")
    for each in cluster.bookies[:2]:
        each.kill()
    code, answer = eventually(lambda: _refused(broker))
    assert code == 503
    assert re.match(
        r"Messages cannot be stored in new ledgers: they need 2 writable bookies"
        r" \(managedLedgerDefaultEnsembleSize\), and [123] are registered.*\.",
        answer["reason"],
    )
    producer.send_async(b"meanwhile", lambda result, message_id: None)
    time.sleep(1)
    for each in cluster.bookies[:2]:
        each.spawn()
    for each in cluster.bookies[:2]:
        each.wait_ready()
    producer.send(b"after")
    # The client may get again what it has not acknowledged.
    came: dict[bytes, None] = {}
    while b"after" not in came:
        came |= dict.fromkeys(receive(consumer, 1))
    assert list(came) == [b"before", b"meanwhile", b"after"]
    eventually(lambda: _refused(broker) is None)
    client.close()


def _refused(broker: ClusterBroker) -> tuple[int, Any] | None:
    code, text = broker.request("GET", "/admin/v2/brokers/health")
    return None if code == 200 else (code, json.loads(text))


def test_consumers_that_keep_up_read_from_the_cache(
    broker: ClusterBroker, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/cached"
    consumers = [client.subscribe(topic, f"s{number}") for number in range(3)]
    before = _cached(broker)
    bodies = [payload(number) for number in range(500)]
    publish(client.create_producer(topic, batching_enabled=False), bodies)
    for each in consumers:
        assert receive(each, 500) == bodies
    after = _cached(broker)
    assert after["inserted_entries_total"] - before["inserted_entries_total"] >= 500
    assert broker.rest("GET", f"{compaction.path(topic)}/internalStats")[0] == 200
    # Entries leave the cache within a second, so few of them are read from a bookie, if any.
    eventually(lambda: _cached(broker)["entries"] == 0)
    assert _cached(broker)["used_size"] == 0


def _cached(broker: ClusterBroker) -> dict[str, float]:
    text = broker.request("GET", "/metrics")[1]
    found = re.findall(r"^pulsar_ml_cache_(\w+)\{[^}]*\} (\S+)", text, re.M)
    return {name: float(value) for name, value in found}


def test_a_clean_stop_leaves_no_session(cluster: Cluster, broker: ClusterBroker) -> None:
    broker.stop()
    assert in_store(cluster.zookeeper, lambda store: store.children(paths.BROKERS)) == []
    broker.start()
    in_registry = in_store(cluster.zookeeper, lambda store: store.children(paths.BROKERS))
    assert in_registry == [f"127.0.0.1:{broker.web_port}"]


def test_a_lost_session_is_followed_by_a_new_registration(
    cluster: Cluster, broker: ClusterBroker, client: pulsar.Client
) -> None:
    producer = client.create_producer("persistent://public/default/session")
    cluster.zookeeper.pause()
    time.sleep(3 * int(SESSION_MS) / 1000)
    producer.send(b"meanwhile")
    cluster.zookeeper.resume()
    registered = paths.broker(f"127.0.0.1:{broker.web_port}")
    eventually(lambda: in_store(cluster.zookeeper, lambda store: store.get(registered)))
    client.create_producer("persistent://public/default/session-2").send(b"after")
    producer.send(b"after")


def test_a_lost_session_ends_the_process_if_the_settings_ask_for_that(
    cluster: Cluster, broker: ClusterBroker
) -> None:
    broker.stop()
    strict = cluster.broker(
        "strict",
        metadataStoreSessionTimeoutMillis=SESSION_MS,
        zookeeperSessionExpiredPolicy="shutdown",
    )
    strict.start()
    cluster.zookeeper.pause()
    assert strict.process is not None
    assert strict.process.wait(timeout=PATIENCE_S) == 1
    cluster.zookeeper.resume()
    assert strict.output().splitlines()[-1] == (
        "pyxbroker: The broker stopped: the session with ZooKeeper is lost"
        " (zookeeperSessionExpiredPolicy)."
    )
    broker.start()


def run(broker: ClusterBroker) -> tuple[int, str]:
    """Run a broker that is expected to end by itself; return its status and output."""
    done = subprocess.run(
        broker.command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
        cwd=broker.directory,
    )
    return done.returncode, done.stdout


async def tree(store: MetadataStore, path: str = "/") -> dict[str, bytes]:
    """Return all nodes below a path."""
    found = {}
    for name in await store.children(path):
        child = f"{path.rstrip('/')}/{name}"
        node = await store.get(child)
        found[child] = b"" if node is None else node.value
        found |= await tree(store, child)
    return found


BAD = {
    "cluster": (
        {"clusterName": "west"},
        r"zk:\S+ has no cluster 'west': clusterName must be one of east\.",
    ),
    "password": (
        {"managedLedgerPassword": "secret"},
        r"ledger \d+ at zk:\S+/ledgers has another password: set managedLedgerPassword to the"
        r" password of the cluster\.",
    ),
    "root": (
        {"bookkeeperMetadataServiceUri": "zk+hierarchical://{zookeeper}/elsewhere"},
        r"there is no BookKeeper cluster at zk:\S+/elsewhere: it has no INSTANCEID\. Check"
        r" bookkeeperMetadataServiceUri, or run pyxbroker initialize-cluster-metadata\.",
    ),
    "layout": (
        {},
        r"the ledgers at zk:\S+/ledgers have the layout '1 flat:1', but this broker only knows .*",
    ),
    "chroot": (
        {"metadataStoreUrl": "zk:{zookeeper}/nothing"},
        r"zk:\S+/nothing has no cluster: run pyxbroker initialize-cluster-metadata, or correct"
        r" metadataStoreUrl\.",
    ),
    "digest": (
        {"managedLedgerDigestType": "MD5"},
        r".*managedLedgerDigestType is 'MD5'; expected one of CRC32C, CRC32, MAC, DUMMY\.",
    ),
    "store": (
        {"metadataStoreUrl": "embedded:here"},
        r"metadataStoreUrl is 'embedded:here': a broker of a cluster needs ZooKeeper, as in .*",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_setting_is_one_sentence_and_nothing_is_written(
    cluster: Cluster, broker: ClusterBroker, case: str
) -> None:
    settings, sentence = BAD[case]
    zookeeper = cluster.zookeeper.address
    client = official_client(broker.url)
    client.create_producer("persistent://public/default/compared").send(b"")
    client.close()
    broker.stop()
    wrong = cluster.broker(
        f"wrong-{case}",
        **{key: value.format(zookeeper=zookeeper) for key, value in settings.items()},
    )
    layout = paths.LEDGER_LAYOUT

    async def set_layout(store: MetadataStore) -> bytes:
        found = await store.get(layout)
        assert found is not None
        await store.put(layout, b"1\nflat:1")
        return found.value

    good = in_store(cluster.zookeeper, set_layout) if case == "layout" else None
    before = in_store(cluster.zookeeper, tree)
    code, output = run(wrong)
    assert code == 1
    assert before == in_store(cluster.zookeeper, tree)
    last = output.splitlines()[-1]
    assert re.fullmatch(f"pyxbroker: (The broker cannot start: )?{sentence}", last), output
    assert "Traceback" not in output
    if good is not None:
        in_store(cluster.zookeeper, lambda store: store.put(layout, good))
    broker.start()


def test_the_broker_waits_for_zookeeper_and_bookies(tmp_path: Path) -> None:
    """Its metadata, that of the bookies and that which clusters share are in different places."""
    cluster = Cluster(tmp_path, bookies=1, is_apart=True)
    one = dict.fromkeys(
        ("managedLedgerDefaultEnsembleSize", "managedLedgerDefaultWriteQuorum"), "1"
    )
    broker = cluster.broker(managedLedgerDefaultAckQuorum="1", **one)
    try:
        cluster.zookeeper.start()
        cluster.initialize()
        cluster.zookeeper.kill()
        broker.spawn()
        wait = "The broker is not ready: it waits for "
        eventually(lambda: _waits(broker, f"{wait}ZooKeeper at {cluster.zookeeper.address}."))
        cluster.zookeeper.start()
        bookies = (
            "writable bookies: new ledgers need 1 (managedLedgerDefaultEnsembleSize), 0 are"
            " registered."
        )
        eventually(lambda: _waits(broker, wait + bookies))
        cluster.bookies[0].start()
        broker.wait_ready(timeout_s=PATIENCE_S)
        client = official_client(broker.url)
        client.create_producer("persistent://public/default/t").send(b"stored")
        client.close()
        assert broker.request("GET", "/admin/v2/brokers/health") == (200, "ok")
        told = broker.rest("GET", "/admin/v2/brokers/internal-configuration")[1]
        assert told["metadataStoreUrl"] == cluster.metadata
        assert told["configurationMetadataStoreUrl"] == cluster.shared
        assert told["bookkeeperMetadataServiceUri"] == cluster.ledgers
        states = re.findall(r'event="the broker is starting" waits_for="(\w+)', broker.output())
        assert states == ["ZooKeeper", "an", "the", "writable"]
        nodes = in_store(cluster.zookeeper, tree)
        assert "/pulsar/managed-ledgers/public/default/persistent/t" in nodes
        assert "/shared/admin/policies/public/default" in nodes
        assert [each for each in nodes if re.match(r"/bookies/ledgers/00/0000/L\d{4}$", each)]
        assert not {"/pulsar/ledgers", "/pulsar/admin/policies", "/ledgers", "/admin"} & set(nodes)
        written = {each.name for each in broker.directory.iterdir()}
        assert written == {"output.log", "standalone.conf"}, "a broker has no data of its own"
    finally:
        cluster.close()


def _waits(broker: ClusterBroker, reason: str) -> bool:
    if broker.http_status("/admin/v2/brokers/health") != 503:
        return False
    return broker.rest("GET", "/admin/v2/brokers/health")[1] == {"reason": reason}


def test_the_metadata_of_a_cluster_is_created_once(cluster: Cluster) -> None:
    before = in_store(cluster.zookeeper, partial(tree, path="/admin"))
    assert cluster.initialize() == f"The metadata of cluster {CLUSTER!r} is complete.\n"
    assert before == in_store(cluster.zookeeper, partial(tree, path="/admin"))

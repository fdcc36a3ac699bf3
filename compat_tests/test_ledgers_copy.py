"""`pyxbroker ledgers copy`: a standalone becomes a cluster on ZooKeeper and Apache's bookies."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker, pyxbroker_command
from tests.zookeeper_server import ZooKeeperServer

from compat_tests import test_compaction as compaction
from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import official_client
from compat_tests.messages import payload, publish
from compat_tests.test_broker_on_bookkeeper import in_store, tree
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

TOPICS = [f"persistent://acme/a/t{number}" for number in range(50)]
TYPED = "persistent://acme/a/typed"
COMPACTED = "persistent://acme/a/compacted"
MESSAGES = 40
SHARED = pulsar.ConsumerType.Shared
BATCH_ACKS = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}
PATIENCE_S = 60


class Numbered(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path / "cluster", bookies=2)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Broker]:
    settings = BATCH_ACKS | {"managedLedgerMaxEntriesPerLedger": "15"}
    settings |= {"managedLedgerMinLedgerRolloverTimeMinutes": "0"}
    settings |= {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
    one = Broker("pyxbroker", tmp_path / "standalone", settings=settings)
    one.start()
    yield one
    one.close()


def fill(broker: Broker) -> None:
    """Topics with holes and partly acknowledged batches, schemas, policies and rights."""

    def admin(method: str, path: str, body: Any = None) -> None:
        code, answer = broker.rest(method, f"/admin/v2/{path}", body)
        assert code in (200, 204), (path, answer)

    admin("PUT", "tenants/acme", {"adminRoles": ["root"], "allowedClusters": ["standalone"]})
    admin("PUT", "namespaces/acme/a")
    admin("POST", "namespaces/acme/a/permissions/role", ["produce"])
    admin("POST", "namespaces/acme/a/messageTTL", 100_000)
    admin("POST", "namespaces/acme/a/dispatchRate", {"dispatchThrottlingRateInMsg": 100_000})
    client = official_client(broker.url)
    for number, topic in enumerate(TOPICS):
        consumer = client.subscribe(
            topic, "s", SHARED, properties={"n": str(number)}, batch_index_ack_enabled=True
        )
        bodies = [payload(number * 100 + each) for each in range(MESSAGES)]
        single = client.create_producer(topic, batching_enabled=False)
        publish(single, bodies[: MESSAGES // 2])
        batched = client.create_producer(topic, batching_enabled=True)
        publish(batched, bodies[MESSAGES // 2 :])
        for _ in range(MESSAGES):
            message = consumer.receive(10_000)
            if message.data() in bodies[:: 2 + number % 3]:
                consumer.acknowledge(message)
    admin("POST", f"{TOPICS[0].replace('://', '/')}/maxConsumers", 7)
    schema = pulsar.schema.AvroSchema(Numbered)
    client.create_producer(TYPED, schema=schema).send(Numbered(number=5))
    for number in range(3):
        compaction.publish(client, COMPACTED, *((key, b"%d" % number) for key in "abc"))
    compaction.compact(broker, COMPACTED)
    client.close()


def state_of(broker: Broker) -> dict[str, Any]:
    """Return what clients and operators see of the topics."""
    client = official_client(broker.url)
    found: dict[str, Any] = {}

    def admin(path: str) -> Any:
        code, answer = broker.rest("GET", f"/admin/v2/{path}")
        assert code == 200, (path, answer)
        return answer

    for topic in (*TOPICS, TYPED, COMPACTED):
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        messages = []
        while reader.has_message_available():
            message = reader.read_next(10_000)
            messages.append((str(message.message_id()), message.data(), message.properties()))
        reader.close()
        path = topic.replace("://", "/")
        cursors = {
            name: (cursor["markDeletePosition"], cursor["individuallyDeletedMessages"])
            for name, cursor in admin(f"{path}/internalStats")["cursors"].items()
            if not name.startswith("reader-")
        }
        subscriptions = {
            name: (each["msgBacklog"], each["subscriptionProperties"])
            for name, each in admin(f"{path}/stats")["subscriptions"].items()
            if not name.startswith("reader-")
        }
        found[topic] = messages, cursors, subscriptions
    found["view"] = [(key, data) for key, data in compaction.read(client, COMPACTED)]
    client.close()
    found["policies"] = admin("namespaces/acme/a")
    found["rights"] = admin("namespaces/acme/a/permissions")
    found["tenant"] = admin("tenants/acme")
    found["limit"] = admin(f"{TOPICS[0].replace('://', '/')}/maxConsumers")
    found["schema"] = admin("schemas/acme/a/typed/schema")
    return found


def renamed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with the name of the new cluster in its policies."""
    parts = ("policies", "tenant")
    text = json.dumps([state[part] for part in parts]).replace('"standalone"', f'"{CLUSTER}"')
    return state | dict(zip(parts, json.loads(text), strict=True))


def unacknowledged(broker: Broker) -> list[list[bytes]]:
    """Return the messages that the subscriptions of some topics still get."""
    client = official_client(broker.url)
    found = []
    for topic in TOPICS[:6]:
        consumer = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
        messages = []
        while True:
            try:
                messages.append(consumer.receive(10_000 if not messages else 100).data())
            except pulsar.Timeout:
                break
        consumer.close()
        found.append(sorted(messages))
    client.close()
    return found


class Command:
    """The command for one standalone and one cluster."""

    def __init__(self, standalone: Broker, cluster: Cluster) -> None:
        settings = standalone.directory / "broker.conf"
        settings.write_text("metadataStoreSessionTimeoutMillis=2000\n")
        line = [*pyxbroker_command(), "ledgers", "copy", "--from", str(standalone.data)]
        line += ["--to", f"zk:{cluster.zookeeper.address}", "--config", str(settings)]
        self.line = [*line, "--cluster", CLUSTER, "--in-flight", "2"]

    def run(self, *options: str, status: int = 0) -> str:
        """Return the output of the command."""
        done = subprocess.run(
            [*self.line, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout


def test_a_standalone_becomes_a_cluster(cluster: Cluster, standalone: Broker) -> None:
    fill(standalone)
    command = Command(standalone, cluster)
    assert "is in use by process" in command.run(status=1)
    before = state_of(standalone)
    assert any(holes != "[]" for _, (_, holes) in before[TOPICS[0]][1].items())
    left = unacknowledged(standalone)
    assert standalone.stop() == 0
    nodes = in_store(cluster.zookeeper, tree)
    assert "Nothing was changed; --apply copies." in command.run()
    assert in_store(cluster.zookeeper, tree) == nodes

    kill_at(cluster.zookeeper, command, _some_ledgers)
    kill_at(cluster.zookeeper, command, _some_topics)
    assert "The copy is complete." in command.run("--apply")
    again = command.run("--apply", "--verify")
    assert "An earlier copy is complete; nothing is left to copy." in again
    assert "ledgers are equal on both sides" in again

    broker = cluster.broker(**BATCH_ACKS)
    broker.start()
    assert state_of(broker) == renamed(before)
    assert unacknowledged(broker) == left
    client = official_client(broker.url)
    for topic in TOPICS[:3]:
        last = re.findall(r"\d+", before[topic][0][-1][0])
        assert client.create_producer(topic).send(b"next").ledger_id() > int(last[0])
    client.close()
    assert re.search(r"broker 127.0.0.1:\d+ serves the cluster", command.run(status=1))


async def _some_ledgers(store: MetadataStore) -> bool:
    return len(await store.children("/ledgers/00/0000")) >= 20


async def _some_topics(store: MetadataStore) -> bool:
    node = await store.get(paths.COPY)
    return node is not None and json.loads(node.value)["phase"] == "nodes"


def kill_at(
    zookeeper: ZooKeeperServer, command: Command, is_due: Callable[[MetadataStore], Any]
) -> None:
    """Kill the command as soon as the cluster's metadata fulfils a condition."""

    process = subprocess.Popen([*command.line, "--apply"], stdout=subprocess.DEVNULL)

    async def wait(store: MetadataStore) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not await is_due(store):
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline

    in_store(zookeeper, wait)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

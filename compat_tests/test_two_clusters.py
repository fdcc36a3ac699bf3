"""Two clusters with metadata and bookies of their own, which share one configuration store."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pulsar
import pytest
from harness.bookies import Bookie
from harness.brokers import ClusterBroker, pyxbroker_command
from tests.zookeeper_server import ZooKeeperServer

from compat_tests.conftest import official_client
from compat_tests.messages import receive
from compat_tests.test_several_brokers import ask, eventually, get, seen

pytestmark = [pytest.mark.interop, pytest.mark.pyxbroker]

ONE_BOOKIE = dict.fromkeys(
    (
        "managedLedgerDefaultEnsembleSize",
        "managedLedgerDefaultWriteQuorum",
        "managedLedgerDefaultAckQuorum",
    ),
    "1",
)
HEALTH = "/admin/v2/brokers/health"


class Clusters(NamedTuple):
    """The clusters of one instance, each with one broker, and their configuration store."""

    configuration: ZooKeeperServer
    east: ClusterBroker
    west: ClusterBroker


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    directory = tmp_path_factory.mktemp("clusters")
    local, configuration = (ZooKeeperServer(directory / name) for name in ("local", "shared"))
    shared = f"zk:{configuration.address}"
    with contextlib.ExitStack() as stack:
        brokers = []
        for each in local, configuration:
            stack.callback(each.kill)
            each.start()
        for name in "east", "west":
            place = f"{local.address}/{name}"
            ledgers = {"metadataServiceUri": f"zk+hierarchical://{place}/ledgers"}
            settings = {"clusterName": name, "configurationMetadataStoreUrl": shared}
            broker = ClusterBroker(directory / name, f"zk:{place}", settings=settings | ONE_BOOKIE)
            initialize(name, f"zk:{place}", shared, broker)
            bookie = Bookie(directory / f"bookie-{name}", local.address, ledgers)
            stack.callback(bookie.kill)
            stack.callback(broker.close)
            bookie.start()
            broker.start()
            brokers.append(broker)
        yield Clusters(configuration, *brokers)


def initialize(cluster: str, local: str, shared: str, broker: ClusterBroker) -> None:
    line = [*pyxbroker_command(), "initialize-cluster-metadata", "--cluster", cluster]
    line += ["--metadata-store", local, "--configuration-metadata-store", shared]
    line += ["--web-service-url", f"http://127.0.0.1:{broker.web_port}"]
    line += ["--broker-service-url", broker.url]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def namespace(clusters: Clusters) -> str:
    """A namespace of cluster east, in a tenant of both clusters that west creates."""
    both = {"allowedClusters": ["east", "west"]}
    ask(clusters.west, "/admin/v2/tenants/shared", "PUT", both)
    seen(lambda: get(clusters.east, "/admin/v2/tenants/shared")[0] == 200)
    ask(clusters.east, "/admin/v2/namespaces/shared/east", "PUT")
    return "shared/east"


def test_a_cluster_sees_what_another_one_changes(clusters: Clusters, namespace: str) -> None:
    east, west = clusters.east, clusters.west
    assert sorted(ask(east, "/admin/v2/clusters")) == ["east", "west"]
    seen(lambda: "shared/east" in ask(west, "/admin/v2/namespaces/shared"))
    clusters_of = f"/admin/v2/namespaces/{namespace}/replication"
    assert ask(west, clusters_of) == ask(east, clusters_of) == ["east"]
    assert ask(east, "/admin/v2/namespaces/public/default/replication") == ["east", "west"]
    policy = f"/admin/v2/namespaces/{namespace}/maxProducersPerTopic"
    for value, (changing, other) in enumerate([(east, west), (west, east)], 5):
        ask(changing, policy, "POST", value)
        seen(lambda value=value, other=other: ask(other, policy) == value)
    ask(west, "/admin/v2/resourcegroups/few", "PUT", {"publishRateInMsgs": 7})
    seen(lambda: ask(east, "/admin/v2/resourcegroups/few")["publishRateInMsgs"] == 7)

    # Bundles and dynamic settings are those of one cluster.
    name = "maxPublishRatePerTopicInMessages"
    ask(east, f"/admin/v2/brokers/configuration/{name}/17", "POST")
    seen(lambda: ask(east, "/admin/v2/brokers/configuration/runtime")[name] == "17")
    assert ask(west, "/admin/v2/brokers/configuration/runtime")[name] == "0"
    ask(east, f"/admin/v2/brokers/configuration/{name}", "DELETE")

    # Each cluster has topics of its own in a namespace of both.
    for broker in east, west:
        with contextlib.closing(official_client(broker.url)) as client:
            consumer = client.subscribe("public/default/both", "s")
            client.create_producer("public/default/both").send(broker.url.encode())
            assert receive(consumer, 1) == [broker.url.encode()]


def test_a_namespace_of_another_cluster_is_refused_or_served_by_a_peer(
    clusters: Clusters, namespace: str
) -> None:
    east, west = clusters.east, clusters.west
    topic, path = f"persistent://{namespace}/t", f"persistent/{namespace}/t"
    seen(lambda: get(west, f"/admin/v2/namespaces/{namespace}")[0] == 200)
    reason = (
        "Namespace missing local cluster name in clusters list: local_cluster=west"
        f" ns={namespace} clusters=[east]"
    )
    for method, target in (
        ("GET", f"/lookup/v2/topic/{path}"),
        ("GET", f"/admin/v2/{path}/stats"),
        ("PUT", f"/admin/v2/{path}/partitions"),
        ("PUT", f"/admin/v2/namespaces/{namespace}/0x00000000_0x40000000/unload"),
    ):
        status, text = get(west, target, method, 2 if method == "PUT" else None)
        assert (status, json.loads(text)) == (412, {"reason": reason}), target
    with (
        contextlib.closing(official_client(west.url, operation_timeout_seconds=2)) as client,
        pytest.raises(pulsar.PulsarException),
    ):
        client.create_producer(topic)

    # East is a peer of west now, so west names the broker of east.
    ask(west, "/admin/v2/clusters/west/peers", "POST", ["east"])
    seen(lambda: get(west, f"/lookup/v2/topic/{path}")[0] == 200)
    assert ask(west, f"/lookup/v2/topic/{path}")["brokerUrl"] == east.url
    with contextlib.closing(official_client(west.url)) as client:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"by way of west")
        assert receive(consumer, 1) == [b"by way of west"]
        assert ask(west, f"/admin/v2/{path}/stats")["msgInCounter"] == 1
    assert ask(west, f"/admin/v2/{path}/partitions")["partitions"] == 0
    ask(west, f"/admin/v2/persistent/{namespace}/spread/partitions", "PUT", 2)
    assert ask(east, f"/admin/v2/persistent/{namespace}/spread/partitions")["partitions"] == 2


def test_a_broker_serves_on_without_the_configuration_store(clusters: Clusters) -> None:
    east = clusters.east
    topic = "persistent://public/default/serves-on"
    with contextlib.closing(official_client(east.url)) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        producer.send(b"0")
        clusters.configuration.kill()
        eventually(lambda: get(east, HEALTH)[0] == 503)
        assert f"configuration store (zk:{clusters.configuration.address})" in get(east, HEALTH)[1]
        for number in range(1, 20):
            producer.send(b"%d" % number)
        # A client that comes now needs policies that are in memory.
        with contextlib.closing(official_client(east.url)) as other:
            other.create_producer(topic).send(b"20")
        assert receive(consumer, 21) == [b"%d" % number for number in range(21)]
        clusters.configuration.start()
        eventually(lambda: get(east, HEALTH)[0] == 200)
        ask(east, "/admin/v2/namespaces/public/default/maxProducersPerTopic", "POST", 9)
        seen(
            lambda: (
                ask(clusters.west, "/admin/v2/namespaces/public/default/maxProducersPerTopic") == 9
            )
        )

"""A cluster for tests: ZooKeeper, Apache's bookies, and the metadata that our command creates."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.apache_broker import ApacheBroker
from harness.bookies import Bookie
from harness.brokers import Broker, BrokerFailed, ClusterBroker, pyxbroker_command
from tests.zookeeper_server import ZooKeeperServer

CLUSTER = "east"


class Cluster:
    """ZooKeeper and bookies; `brokers` are those that `broker` has created.

    With `is_apart`, the metadata of the cluster, of the bookies, and that which clusters share are
    in three places of ZooKeeper.
    """

    def __init__(
        self, directory: Path, bookies: int, is_apart: bool = False, zookeeper_mib: int = 128
    ) -> None:
        self.directory = directory
        self.zookeeper = ZooKeeperServer(directory / "zookeeper", zookeeper_mib)
        address = self.zookeeper.address
        self.metadata = self.shared = f"zk:{address}"
        self.ledgers = ""
        if is_apart:
            self.metadata, self.shared = f"zk:{address}/pulsar", f"zk:{address}/shared"
            self.ledgers = f"zk+hierarchical://{address}/bookies/ledgers"
        self.bookies = [self._bookie(number) for number in range(bookies)]
        self.brokers: list[Broker] = []

    def _bookie(self, number: int) -> Bookie:
        settings = {"metadataServiceUri": self.ledgers} if self.ledgers else None
        directory = self.directory / f"bookie-{number}"
        return Bookie(directory, self.zookeeper.address, settings)

    def start(self) -> None:
        """Start ZooKeeper and all bookies on new metadata."""
        self.zookeeper.start()
        self.initialize()
        for each in self.bookies:
            each.spawn()
        for each in self.bookies:
            each.wait_ready()

    def initialize(self) -> str:
        """Create the metadata; return what the command prints."""
        if not self.ledgers:
            return self._initialize(self.metadata, self.shared)
        bookies = f"zk:{self.zookeeper.address}/bookies"
        self._initialize(bookies, bookies)
        there = ("--existing-bk-metadata-service-uri", self.ledgers)
        return self._initialize(self.metadata, self.shared, *there)

    def _initialize(self, metadata: str, shared: str, *options: str) -> str:
        line = [*pyxbroker_command(), "initialize-cluster-metadata", "--cluster", CLUSTER]
        line += ["--metadata-store", metadata, "--configuration-metadata-store", shared, *options]
        line += ["--web-service-url", "http://127.0.0.1:8080"]
        line += ["--broker-service-url", "pulsar://127.0.0.1:6650"]
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise BrokerFailed(f"the metadata was not created:\n{done.stdout}")
        return done.stdout

    def broker(self, name: str = "broker", **settings: str) -> ClusterBroker:
        """Return a broker that is not started yet."""
        places = {"clusterName": CLUSTER}
        if self.ledgers:
            places["configurationMetadataStoreUrl"] = self.shared
            places["bookkeeperMetadataServiceUri"] = self.ledgers
        directory = self.directory / name
        one = ClusterBroker(directory, self.metadata, settings=places | settings)
        self.brokers.append(one)
        return one

    def apache_broker(self, name: str, **settings: str) -> ApacheBroker:
        """Return a broker of Apache's that is not started yet."""
        settings = {"clusterName": CLUSTER} | settings
        one = ApacheBroker(self.directory / name, self.metadata, settings)
        self.brokers.append(one)
        return one

    def add_bookie(self) -> Bookie:
        """Start one more bookie."""
        one = self._bookie(len(self.bookies))
        self.bookies.append(one)
        one.start()
        return one

    def close_brokers(self) -> None:
        """Kill the brokers."""
        while self.brokers:
            self.brokers.pop().close()

    def close(self) -> None:
        """Kill everything."""
        self.close_brokers()
        for each in self.bookies:
            each.kill()
        self.zookeeper.kill()

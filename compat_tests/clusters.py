"""A cluster for tests: ZooKeeper, Apache's bookies, and the metadata that our command creates."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.bookies import Bookie
from harness.brokers import BrokerFailed, ClusterBroker, pyxbroker_command
from tests.zookeeper_server import ZooKeeperServer

CLUSTER = "east"


class Cluster:
    """ZooKeeper and bookies; `brokers` are those that `broker` has created."""

    def __init__(self, directory: Path, bookies: int) -> None:
        self.directory = directory
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.bookies = [self._bookie(number) for number in range(bookies)]
        self.brokers: list[ClusterBroker] = []

    def _bookie(self, number: int) -> Bookie:
        return Bookie(self.directory / f"bookie-{number}", self.zookeeper.address)

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
        url = f"zk:{self.zookeeper.address}"
        line = [*pyxbroker_command(), "initialize-cluster-metadata", "--cluster", CLUSTER]
        line += ["--metadata-store", url, "--configuration-metadata-store", url]
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
        one = ClusterBroker(
            self.directory / name,
            f"zk:{self.zookeeper.address}",
            settings={"clusterName": CLUSTER, **settings},
        )
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

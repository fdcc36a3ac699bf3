"""Brokers of ours on ZooKeeper and Apache's bookies, in the place of one standalone.

`Broker("cluster", ...)` is a BrokerOnCluster: the tests of a standalone run against `BROKERS`
brokers (default 1) of one cluster, whose URLs are those of a random one at each use. One ZooKeeper
and two bookies serve all clusters of this process; each cluster has metadata of its own.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.zookeeper_server import ZooKeeperServer

from harness.bookies import Bookie
from harness.brokers import Broker, BrokerFailed, ClusterBroker, pyxbroker_command

CLUSTER = "standalone"
"""The name that tests of a standalone expect."""
BOOKIES = 2
SETTINGS = {
    "clusterName": CLUSTER,
    "metadataStoreSessionTimeoutMillis": "6000",
    "managedLedgerDefaultEnsembleSize": str(BOOKIES),
    "managedLedgerDefaultWriteQuorum": str(BOOKIES),
    "managedLedgerDefaultAckQuorum": str(BOOKIES),
}
_NUMBERS = itertools.count(1)


class Servers:
    """ZooKeeper and the bookies; they end with this process, as all that `reaper` knows."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="shared-cluster-"))
        self.zookeeper = ZooKeeperServer(self.directory / "zookeeper")
        self.zookeeper.start()
        self.ledgers = f"zk+hierarchical://{self.zookeeper.address}/bookies/ledgers"
        self.initialize("/bookies")
        settings = {"metadataServiceUri": self.ledgers}
        bookies = [
            Bookie(self.directory / f"bookie-{number}", self.zookeeper.address, settings)
            for number in range(BOOKIES)
        ]
        for each in bookies:
            each.spawn()
        for each in bookies:
            each.wait_ready()

    def initialize(self, path: str, *options: str) -> str:
        """Create the metadata of a cluster; return the address of its store."""
        store = f"zk:{self.zookeeper.address}{path}"
        line = [*pyxbroker_command(), "initialize-cluster-metadata", "--cluster", CLUSTER]
        line += ["--metadata-store", store, "--configuration-metadata-store", store, *options]
        line += ["--web-service-url", "http://127.0.0.1:8080"]
        line += ["--broker-service-url", "pulsar://127.0.0.1:6650"]
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise BrokerFailed(f"the metadata was not created:\n{done.stdout}")
        return store


@cache
def servers() -> Servers:
    return Servers()


class BrokerOnCluster(Broker):
    """The brokers of one cluster, under the interface of one broker."""

    def __init__(self, kind: str, directory: Path, **options: Any) -> None:
        settings = SETTINGS | (options.pop("settings", None) or {})
        super().__init__("pyxbroker", directory, settings=settings, **options)
        self.metadata = ""
        self.others: list[ClusterBroker] = []

    @property
    def url(self) -> str:
        one = random.choice([self, *self.others])
        return f"pulsar://{one.host}:{one.port}"

    @property
    def web_url(self) -> str:
        one = random.choice([self, *self.others])
        return f"http://{one.host}:{one.web_port}"

    def command(self) -> list[str]:
        return ClusterBroker.command(self)  # type: ignore[arg-type]

    def spawn(self) -> None:
        if not self.metadata:
            path = f"/cluster-{next(_NUMBERS)}"
            bookies = ("--existing-bk-metadata-service-uri", servers().ledgers)
            self.metadata = servers().initialize(path, *bookies)
            self.settings["configurationMetadataStoreUrl"] = self.metadata
            self.settings["bookkeeperMetadataServiceUri"] = servers().ledgers
            for number in range(1, int(os.environ.get("BROKERS", "1"))):
                place = self.directory / f"broker-{number}"
                one = ClusterBroker(place, self.metadata, settings=self.settings)
                one.environment, one.headers = self.environment, self.headers
                self.others.append(one)
        super().spawn()
        for each in self.others:
            each.spawn()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        super().wait_ready(timeout_s)
        for each in self.others:
            each.wait_ready(timeout_s)

    def stop(self, timeout_s: float = 30.0) -> int:
        for each in self.others:
            each.stop(timeout_s)
        return super().stop(timeout_s)

    def kill(self) -> None:
        for each in self.others:
            each.kill()
        super().kill()

    def close(self) -> None:
        for each in self.others:
            each.close()
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)

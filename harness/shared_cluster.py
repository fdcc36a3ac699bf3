"""Brokers of ours on ZooKeeper and Apache's bookies, in the place of one standalone.

`Broker("cluster", ...)` is a BrokerOnCluster: the tests of a standalone run against `BROKERS`
brokers (default 1) of one cluster. Each client gets the URL of a random one, and REST of a test
goes to one. One ZooKeeper and two bookies serve all clusters of this process; each cluster has
metadata of its own.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from tests.zookeeper_server import ZooKeeperServer

from harness.bookies import Bookie
from harness.brokers import Broker, BrokerFailed, ClusterBroker, free_ports, pyxbroker_command

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
WITH_PORTS = {
    *("brokerServicePortTls", "webServicePortTls", "bindAddresses", "advertisedListeners"),
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
        self._bookies = bookies
        for each in bookies:
            each.spawn()
        for each in bookies:
            each.wait_ready()

    def close(self) -> None:
        """Kill them and remove what they wrote."""
        for each in self._bookies:
            each.kill()
        self.zookeeper.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

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


def _with_own_ports(value: str, ports: dict[str, str]) -> str:
    """Return the value of a setting with other ports, which are chosen once."""

    def own(found: re.Match[str]) -> str:
        if found[0] not in ports:
            ports[found[0]] = str(free_ports(1)[0])
        return ports[found[0]]

    return re.sub(r"(?<=:)\d+|^\d+$", own, value)


@cache
def servers() -> Servers:
    return Servers()


def close_servers() -> None:
    """Close the servers of this process, if it has some."""
    if servers.cache_info().currsize:
        servers().close()
        servers.cache_clear()


class BrokerOnCluster(Broker):
    """The brokers of one cluster, under the interface of one broker."""

    def __init__(self, kind: str, directory: Path, **options: Any) -> None:
        settings = SETTINGS | (options.pop("settings", None) or {})
        super().__init__("pyxbroker", directory, settings=settings, **options)
        self.metadata = ""
        self.others: list[ClusterBroker] = []
        self._ports: list[dict[str, str]] = []  # of each other broker, by those of this one

    @property
    def url(self) -> str:
        one = random.choice([self, *self.others])
        return f"pulsar://{one.host}:{one.port}"

    @property
    def web_url(self) -> str:
        """The URL of one broker for all of a test: another one sees its changes a moment later."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        return random.Random(test).choice(self.web_urls())

    def ports(self) -> list[int]:
        return [one.port for one in (self, *self.others)]

    def as_first(self, text: str) -> str:
        own = {of_other: of_first for each in self._ports for of_first, of_other in each.items()}
        return re.sub(r"(?<=:)\d+", lambda found: own.get(found[0], found[0]), text)

    def web_urls(self) -> list[str]:
        return [f"http://{one.host}:{one.web_port}" for one in (self, *self.others)]

    def _members(self) -> list[psutil.Process]:
        members = super()._members()
        for each in self.others:
            members += each._members()
        return members

    def output(self, size: int = 4000) -> str:
        texts = [super().output(size), *(each.output(size) for each in self.others)]
        return "\n".join(texts)

    def logs(self) -> list[Path]:
        return [*super().logs(), *(log for each in self.others for log in each.logs())]

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
                self.others.append(ClusterBroker(place, self.metadata))
                self._ports.append({})
        super().spawn()
        for each, ports in zip(self.others, self._ports, strict=True):
            each.environment, each.headers = self.environment, self.headers
            ports |= {str(self.port): str(each.port), str(self.web_port): str(each.web_port)}
            each.settings = self.settings | {
                name: _with_own_ports(value, ports)
                for name, value in self.settings.items()
                if name in WITH_PORTS
            }
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

"""ZooKeeper, Apache's bookies and brokers, each in a network namespace of its own.

Each bookie has a small file system in memory, which a test can fill.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.apache_broker import pulsar_command
from harness.bookies import Bookie
from harness.brokers import Broker, BrokerFailed, pyxbroker_command
from harness.clock import Clock
from harness.java_build import tool
from harness.network import Network
from harness.small_disk import SmallDisk
from pyxbroker.testing import reaper

ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
ZOOKEEPER_PORT = 2181
BOOKIE_PORT = 3181
DISK_MIB = 512
SESSION_MS = 6000
REDIRECTS_MAX = 8
BROKERS_PATH = "/loadbalance/brokers"
_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
BOOKIE_SETTINGS = {
    "journalSyncData": "true",
    "journalMaxSizeMB": "16",
    "journalMaxBackups": "0",
    "logSizeLimit": str(16 << 20),
    "zkTimeout": str(SESSION_MS),
    # A disk that is filled to READ_ONLY_USAGE makes the bookie read-only within half a second.
    "diskCheckInterval": "500",
    "diskUsageThreshold": "0.9",
    "diskUsageWarnThreshold": "0.85",
    "diskUsageLwmThreshold": "0.85",
    "dbStorage_rocksDB_writeBufferSizeMB": "8",
    "gcWaitTime": "30000",
    "flushInterval": "2000",
}
READ_ONLY_USAGE = 0.93
_GET_CHILDREN_2 = 12
_CHILDREN_VERSION_AT = 36  # in the Stat that follows the names
_CLOSE_SESSION = struct.pack(">ii", 1, -11)


class ZooKeeper:
    """One server of Debian's package; `start` may be called again after `kill`."""

    def __init__(self, directory: Path, host: str, prefix: list[str]) -> None:
        self.directory = directory
        self.host, self.port = host, ZOOKEEPER_PORT
        self._prefix = prefix
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it serves."""
        if not ZOOKEEPER_JAR.exists():
            raise BrokerFailed("a ZooKeeper is needed: apt-get install zookeeper")
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(
            f"dataDir={self.directory}/data\nclientPort={self.port}\n"
            "admin.enableServer=false\ntickTime=500\nminSessionTimeout=1000\n"
            "maxSessionTimeout=60000\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n"
        )
        java = [tool("java", "default-jdk-headless"), "-Xmx128m", *_JAVA]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with (self.directory / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [*self._prefix, *java, "-cp", str(ZOOKEEPER_JAR), main, str(configuration)],
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,
            )
        reaper.began(self.process.pid)
        deadline = time.monotonic() + 30
        while self.ask("ruok") != "imok":
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BrokerFailed("ZooKeeper did not start")
            time.sleep(0.05)

    def ask(self, word: str) -> str:
        """Send one of ZooKeeper's four-letter commands; empty when there is no answer."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.host, self.port), timeout=2) as connection,
        ):
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        return ""

    def expire_sessions(self, host: str) -> int:
        """End the sessions of all connections from a host; return how many there were."""
        sessions = [
            int(line.split("sid=")[1].split(",")[0], 16)
            for line in self.ask("cons").splitlines()
            if line.strip().startswith(f"/{host}:") and "sid=0x" in line
        ]
        for session in sessions:
            self._end_session(session)
        return len(sessions)

    def list_children(self, path: str) -> list[str]:
        """Return the names of the children of a node."""
        return self._children(path)[0]

    def count_changes(self, path: str) -> int:
        """Return how often children of a node were created or deleted."""
        return self._children(path)[1]

    def _children(self, path: str) -> tuple[list[str], int]:
        connect = struct.pack(">iqiqi", 0, 0, SESSION_MS, 0, 16) + bytes(16)
        name = path.encode()
        request = struct.pack(">iii", 1, _GET_CHILDREN_2, len(name)) + name + b"\0"
        with socket.create_connection((self.host, self.port), timeout=5) as connection:
            for body in (connect, request, _CLOSE_SESSION):
                connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as answers:
                for _ in range(2):
                    (size,) = struct.unpack(">i", answers.read(4))
                    answer = answers.read(size)
        _, _, error, count = struct.unpack_from(">iqii", answer)
        if error:
            raise BrokerFailed(f"{path} cannot be listed: {error}")
        names, at = [], 20
        for _ in range(count):
            (size,) = struct.unpack_from(">i", answer, at)
            names.append(answer[at + 4 : at + 4 + size].decode())
            at += 4 + size
        (changes,) = struct.unpack_from(">i", answer, at + _CHILDREN_VERSION_AT)
        return names, changes

    def _end_session(self, session: int) -> None:
        # The server derives the password from the id, so a second connection can take the session
        # over and close it. The first one then finds that it has expired.
        request = struct.pack(">iqiqi", 0, 0, SESSION_MS, session, 16) + _password_of(session)
        with socket.create_connection((self.host, self.port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            connection.recv(4096)
            connection.sendall(struct.pack(">i", len(_CLOSE_SESSION)) + _CLOSE_SESSION)
            with contextlib.suppress(OSError):
                connection.recv(4096)

    def kill(self) -> None:
        if self.process is not None:
            send(self.process, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _password_of(session: int) -> bytes:
    """Return the 16 bytes of java.util.Random that ZooKeeperServer.generatePasswd gives."""
    state = ((session ^ 0xB3415C00) ^ 0x5DEECE66D) & ((1 << 48) - 1)
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        password += struct.pack("<I", state >> 16)
    return password


class ClusterBroker(Broker):
    """A broker of the cluster: ours (`pyxbroker`) or Apache's."""

    def __init__(
        self, kind: str, directory: Path, host: str, prefix: list[str], zookeeper: ZooKeeper
    ) -> None:
        super().__init__(kind, directory)
        self.host = host
        self.prefix = prefix
        self.port, self.web_port = 6650, 8080
        self.zookeeper = zookeeper
        self.clock: Clock | None = None
        store = f"zk:{zookeeper.address}"
        self.settings = {
            "clusterName": "storm",
            "metadataStoreUrl": store,
            "configurationMetadataStoreUrl": store,
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
            "advertisedAddress": host,
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            "bookkeeperClientTimeoutInSeconds": "5",
            "managedLedgerDefaultEnsembleSize": "3",
            "managedLedgerDefaultWriteQuorum": "3",
            "managedLedgerDefaultAckQuorum": "2",
            "managedLedgerMaxEntriesPerLedger": "200",
            "managedLedgerMinLedgerRolloverTimeMinutes": "0",
            "loadBalancerEnabled": "false",
            "defaultNumberOfNamespaceBundles": "4",
        }
        if kind == "apache":
            self.settings |= {
                "systemTopicEnabled": "false",
                "topicLevelPoliciesEnabled": "false",
                "numIOThreads": "2",
                "numHttpServerThreads": "4",
                "managedLedgerCacheSizeMB": "32",
            }

    def command(self) -> list[str]:
        path = self.directory / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        if self.kind == "apache":
            line = self._pulsar("PulsarBrokerStarter")
            return [*self.prefix, *line, "--broker-conf", str(path)]
        return [*self.prefix, *pyxbroker_command(), "broker", "--config", str(path)]

    def _pulsar(self, main: str) -> list[str]:
        return pulsar_command(main, 512, f"-Djava.io.tmpdir={self.directory}")

    def use_clock(self, clock: Clock) -> None:
        """Let the broker run with a clock of its own."""
        self.clock = clock
        self.environment |= clock.environment

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the broker answers, and has its metadata."""
        super().wait_ready(timeout_s)
        deadline = time.monotonic() + (timeout_s or 60)
        while self.http_status("/admin/v2/namespaces/public/default") != 200:
            self._check(deadline)
            time.sleep(0.01)

    @property
    def broker_id(self) -> str:
        """The name of the broker in the cluster."""
        return f"{self.host}:{self.web_port}"

    def request(
        self, method: str, path: str, body: Any = None, timeout_s: float = 60.0
    ) -> tuple[int, str]:
        """Return status and text of an answer; follow redirects to other brokers."""
        host = self.host
        for _ in range(REDIRECTS_MAX):
            connection = http.client.HTTPConnection(host, self.web_port, timeout=timeout_s)
            with contextlib.closing(connection):
                text = None if body is None else json.dumps(body)
                headers = {} if body is None else {"Content-Type": "application/json"}
                connection.request(method, path, text, headers)
                answer = connection.getresponse()
                content = answer.read().decode()
            if answer.status != http.client.TEMPORARY_REDIRECT:
                return answer.status, content
            there = urlsplit(answer.headers["Location"])
            host = there.hostname or host
            path = f"{there.path}?{there.query}" if there.query else there.path
        raise BrokerFailed(f"{method} {path} is redirected again and again")

    def initialize(self) -> None:
        """Write the metadata of the cluster into an empty ZooKeeper."""
        store = f"zk:{self.zookeeper.address}"
        options = [
            *("--cluster", "storm", "--metadata-store", store),
            *("--configuration-metadata-store", store),
            *("--web-service-url", self.web_url, "--broker-service-url", self.url),
        ]
        if self.kind == "apache":
            command = [*self._pulsar("PulsarClusterMetadataSetup"), *options]
        else:
            command = [*pyxbroker_command(), "initialize-cluster-metadata", *options]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise BrokerFailed(f"the metadata cannot be initialized:\n{done.stdout[-3000:]}")


class ClusterBookie(Bookie):
    """A bookie with a disk of its own."""

    def __init__(
        self, directory: Path, zookeeper: str, host: str, prefix: list[str], disk_mib: int
    ) -> None:
        directory.mkdir(parents=True)
        size = f"size={disk_mib}m"
        self._disk_mib = disk_mib
        mount = ["mount", "-t", "tmpfs", "-o", size, "none", str(directory)]
        subprocess.run(mount, check=True)
        self.disk = SmallDisk(directory)
        place = {"host": host, "port": BOOKIE_PORT, "prefix": prefix}
        super().__init__(directory, zookeeper, BOOKIE_SETTINGS, **place)  # type: ignore[arg-type]

    def unmount(self) -> None:
        """Remove the disk of a bookie that has ended."""
        subprocess.run(["umount", "-l", str(self.directory)], check=True)

    def fill(self, usage: float) -> None:
        """Take the free space, up to a share of the disk."""
        if usage >= 1:
            self.disk.fill()
            return
        size = self._disk_mib << 20
        wanted = self.disk.free_bytes() - int(size * (1 - usage))
        with (self.disk.path / "others").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(wanted, 1))


class Cluster:
    """All hosts of one cluster, started."""

    def __init__(
        self,
        brokers: Mapping[str, str],
        directory: Path,
        seed: int,
        bookies: int = 4,
        disk_mib: int = DISK_MIB,
    ) -> None:
        self.network = network = Network(seed)
        address = network.add_host("zookeeper")
        self.zookeeper = ZooKeeper(directory / "zookeeper", address, network.prefix("zookeeper"))
        self.brokers: dict[str, ClusterBroker] = {}
        """By the name of the host; `brokers` has the kind of each."""
        for name, kind in brokers.items():
            place = (network.add_host(name), network.prefix(name))
            self.brokers[name] = ClusterBroker(kind, directory / name, *place, self.zookeeper)
        network.add_host("clients")
        self.bookies: dict[str, ClusterBookie] = {}
        for number in range(1, bookies + 1):
            name = f"bookie-{number}"
            bookie_place = (network.add_host(name), network.prefix(name))
            self.bookies[name] = ClusterBookie(
                directory / name, self.zookeeper.address, *bookie_place, disk_mib
            )

    @property
    def broker(self) -> ClusterBroker:
        """The first broker, or the only one."""
        return next(iter(self.brokers.values()))

    def start(self) -> None:
        """Start everything and wait until the brokers serve."""
        self.zookeeper.start()
        self.broker.initialize()
        for bookie in self.bookies.values():
            bookie.spawn()
        for bookie in self.bookies.values():
            bookie.wait_ready()
        for broker in self.brokers.values():
            broker.spawn()
        for broker in self.brokers.values():
            broker.wait_ready()

    def registered_brokers(self) -> list[str]:
        """Return the names of the brokers that are registered."""
        watched = self.zookeeper.list_children(BROKERS_PATH)
        return [name for name, broker in self.brokers.items() if broker.broker_id in watched]

    def writable_bookies(self) -> list[str]:
        """Return the names of the bookies that are registered as writable."""
        watched = self.zookeeper.list_children("/ledgers/available")
        return [name for name, bookie in self.bookies.items() if bookie.bookie_id in watched]

    def close(self) -> None:
        """Kill all processes."""
        for broker in self.brokers.values():
            broker.kill()
        for bookie in self.bookies.values():
            bookie.kill()
        self.zookeeper.kill()


def send(process: subprocess.Popen[bytes] | None, signum: signal.Signals) -> None:
    """Send a signal to the process group of a server; one that has ended takes none."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)

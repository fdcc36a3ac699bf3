"""Starts and stops the brokers that the tests and the benchmarks drive: ours and its peers.

Each broker is one process group on free ports of 127.0.0.1 with its own data directory.  The kinds:

``pyxbroker``    the command beside the running interpreter, or ``PYXBROKER_COMMAND``
``pulsar-lite``  the program inside the ``pulsar-lite`` wheel
``apache``       Apache Pulsar standalone through ``run.sh`` of the folder ``PYXBROKER_PEERS``
                 (default: ``shared/peers`` beside the repository), with synced journal
``cluster``      ``BROKERS`` of ours on ZooKeeper and Apache's bookies (``shared_cluster.py``)
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from pyxbroker.testing import reaper

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("pyxbroker", "pulsar-lite", "apache", "cluster")
PORTS = (10_000, 32_000)
CHANCE = random.SystemRandom()  # that of the tests may be the same in each of their processes
_COORDINATOR = (
    "/lookup/v2/topic/persistent/pulsar/system/transaction_coordinator_assign-partition-0"
)
_HANDSHAKE = bytes.fromhex("000000110000000d08021209") + b"\x0a\x05tests\x20\x15"


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; they are held together so that all differ.

    They are below those that the kernel gives to whoever connects: with many tests at once one of
    these would be taken before the broker binds it.
    """
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", CHANCE.randrange(*PORTS)))
            except OSError:
                one.close()
            else:
                sockets.append(one)
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def peers_directory() -> Path:
    """The folder with ``apache-pulsar/run.sh``."""
    default = ROOT.parent / "shared" / "peers"
    return Path(os.environ.get("PYXBROKER_PEERS", default)).resolve()


class BrokerFailed(Exception):
    """The process ended, or was not ready in time; the text holds the end of its output."""


class Broker:
    """One broker process; ``start`` may be called again after ``stop`` or ``kill``."""

    host = "127.0.0.1"

    def __new__(cls, kind: Any = None, /, *_: Any, **__: Any) -> Broker:
        """Make the brokers of a cluster where the kind is `cluster`."""
        if kind != "cluster":
            return super().__new__(cls)
        from harness.shared_cluster import BrokerOnCluster

        return super().__new__(BrokerOnCluster)

    def __init__(
        self,
        kind: str,
        directory: Path,
        *,
        settings: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,  # of requests; who asks, where that counts
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown broker {kind!r}; known are {', '.join(KINDS)}")
        self.kind = kind
        self.directory = directory
        self.data = directory / "data"
        self.settings = settings or {}
        self.environment = environment or {}
        self.headers = headers or {}
        self.port, self.web_port, self._bookie_port = free_ports(3)
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """The binary service URL."""
        return f"pulsar://{self.host}:{self.port}"

    @property
    def web_url(self) -> str:
        """The HTTP service URL."""
        return f"http://{self.host}:{self.web_port}"

    def ports(self) -> list[int]:
        """The ports of the protocol of all brokers that this object stands for."""
        return [self.port]

    def as_first(self, text: str) -> str:
        """Return a text about any of the brokers as if it were about the first."""
        return text

    def web_urls(self) -> list[str]:
        """The HTTP service URLs of all brokers that this object stands for."""
        return [self.web_url]

    def command(self) -> list[str]:
        """The command line; writes the configuration file it names."""
        if self.kind == "pulsar-lite":
            # Its default logs a line per message, which would be unfair to its figures.
            line = [_pulsar_lite(), "--log-level", "warn", "--addr", f"127.0.0.1:{self.port}"]
            return [*line, "--db-path", str(self.data)]
        if self.kind == "apache":
            return [
                str(peers_directory() / "apache-pulsar" / "run.sh"),
                "standalone",
                str(self.data),
                str(self._apache_configuration()),
            ]
        line = [*pyxbroker_command(), "standalone", "--data", str(self.data)]
        line += ["--broker-port", str(self.port), "--web-port", str(self.web_port)]
        if self.settings:
            line += ["--config", str(self._write_configuration(self.settings))]
        if "metadataStoreUrl" in self.settings:  # a file's one is passed over
            line += ["--metadata", self.settings["metadataStoreUrl"]]
        return line

    def _write_configuration(self, settings: dict[str, str]) -> Path:
        path = self.directory / "standalone.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _apache_configuration(self) -> Path:
        text = (peers_directory() / "apache-pulsar" / "standalone.conf").read_text()
        lines = (line for line in text.splitlines() if "=" in line and not line.startswith("#"))
        settings = dict(line.split("=", 1) for line in lines)
        settings |= {
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
            "bookiePort": str(self._bookie_port),
            # As Pulsar ships it; without it the bookie refuses entries near the size limit.
            "nettyMaxFrameSizeBytes": "5253120",
        }
        return self._write_configuration(settings | self.settings)

    def spawn(self) -> None:
        """Start the process and return at once."""
        # Else the one that runs would answer for the new one, and be left behind.
        assert self.process is None or self.process.poll() is not None, "it is running"
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with (self.directory / "output.log").open("ab") as output:
            self.started_at = time.monotonic()
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        reaper.began(self.process.pid)

    def start(self, timeout_s: float | None = None) -> float:
        """Start and wait until CONNECT is answered; returns the seconds that took."""
        self.spawn()
        self.wait_ready(timeout_s)
        return time.monotonic() - self.started_at

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait for the answer to CONNECT; Apache Pulsar must also have its default namespace, and
        its transaction coordinators where they are switched on.
        """
        limit = timeout_s or (90.0 if self.kind == "apache" else 20.0)
        deadline = time.monotonic() + limit
        while not self.answers():
            self._check(deadline)
            time.sleep(0.002 if self.kind != "apache" else 0.1)
        self._check_alive()  # else somebody else has the port, and answered
        if self.kind == "apache":
            paths = ["/admin/v2/namespaces/public/default"]
            if self.settings.get("transactionCoordinatorEnabled") == "true":
                paths.append(_COORDINATOR)
            for path in paths:
                while self.http_status(path) not in (200, 307):
                    self._check(deadline)
                    time.sleep(0.1)

    def _check_alive(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            status = self.process.returncode
            raise BrokerFailed(f"{self.kind} ended with {status}:\n{self.output()}")

    def _check(self, deadline: float) -> None:
        self._check_alive()
        if time.monotonic() > deadline:
            output = self.output()
            self.kill()
            raise BrokerFailed(f"{self.kind} was not ready in time:\n{output}")

    def answers(self) -> bool:
        """Whether CONNECT is answered now."""
        try:
            with socket.create_connection((self.host, self.port), timeout=5) as connection:
                connection.sendall(_HANDSHAKE)
                return len(connection.recv(64)) > 8
        except OSError:
            return False

    def http_status(self, path: str) -> int:
        """The status of a GET on the web port, or 0 when nobody answers."""
        connection = http.client.HTTPConnection(self.host, self.web_port, timeout=10)
        try:
            connection.request("GET", path, headers=self.headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def rest(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, the answer's JSON or None) of an admin request; a body is sent as JSON."""
        status, text = self.request(method, path, body)
        return status, json.loads(text) if text else None

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """The same with the answer's text. Bytes are sent as they are, other bodies as JSON."""
        status, _, data = self.exchange(method, path, body, self.headers)
        return status, data.decode()

    def exchange(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 60,
        at: str | None = None,
        media: str | None = "application/json",
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the status, the headers and the body of an answer; redirects are followed.

        `at` is one of `web_urls`, by default any; `media` is the type of a body.
        """
        place, asked = at or self.web_url, path
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        content = {} if body is None or media is None else {"Content-Type": media}
        for _ in range(4):
            netloc = place.removeprefix("http://")
            connection = http.client.HTTPConnection(netloc, timeout=timeout_s)
            with contextlib.closing(connection):
                connection.request(method, asked, data, (headers or {}) | content)
                answer = connection.getresponse()
                text = answer.read()
            if answer.status != 307:
                return answer.status, dict(answer.getheaders()), text
            *parts, asked = answer.headers["Location"].split("/", 3)
            place, asked = "/".join(parts), f"/{asked}"
        raise AssertionError(f"{path} is redirected without end")

    def output(self, size: int = 4000) -> str:
        """The end of what the process printed."""
        return (self.directory / "output.log").read_bytes()[-size:].decode(errors="replace")

    def logs(self) -> list[Path]:
        """The files with what the processes printed."""
        return [self.directory / "output.log"]

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, then wait; returns the exit status."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"{self.kind} did not stop on SIGTERM") from None
        self._forget()
        return status

    def kill(self) -> None:
        """SIGKILL to the whole process group, then wait."""
        if self.process is not None:
            # It may have ended by itself, which is what is wanted here.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._forget()

    def _forget(self) -> None:
        assert self.process is not None
        reaper.ended(self.process.pid)
        self.process = None

    def close(self) -> None:
        """Kill the process and remove everything it wrote."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def processes(self) -> list[psutil.Process]:
        """The processes of all brokers that this object stands for."""
        return self._members()

    def cpu_s(self) -> float:
        """Seconds of CPU of the process group so far: in nanoseconds for what runs, in steps of a
        clock tick (10 ms) for children that ended.
        """
        members = self._members()
        ended = [member.cpu_times() for member in members]
        return sum(_cpu_clock_s(member.pid) for member in members) + sum(
            each.children_user + each.children_system for each in ended
        )

    def memory_kib(self) -> int:
        """Resident memory of the process group, in KiB."""
        return sum(member.memory_info().rss for member in self._members()) // 1024

    def distinct_memory_kib(self) -> int:
        """Resident memory of the process group, in KiB, where a page counts once however often it
        is mapped (``Pss``): a JVM with ZGC has its heap in three places, and so three times in the
        resident memory.
        """
        rolled = [
            Path(f"/proc/{member.pid}/smaps_rollup").read_text() for member in self._members()
        ]
        return sum(int(re.findall(r"^Pss: +(\d+) kB", text, re.M)[0]) for text in rolled)

    def peak_memory_kib(self) -> int:
        """The most resident memory that each process of the group has had, in KiB, from
        ``/proc/<pid>/status``: psutil does not know it on Linux.
        """
        peaks = [Path(f"/proc/{member.pid}/status").read_text() for member in self._members()]
        return sum(int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) for text in peaks)

    def written_bytes(self) -> int:
        """What the process group made the file system write so far."""
        return sum(member.io_counters().write_bytes for member in self._members())

    def _members(self) -> list[psutil.Process]:
        assert self.process is not None
        return _group(self.process.pid)


class ClusterBroker(Broker):
    """A broker of a cluster, ours or Apache's; its metadata is at ``metadata``."""

    def __init__(
        self,
        directory: Path,
        metadata: str,
        *,
        kind: str = "pyxbroker",
        settings: dict[str, str] | None = None,
    ) -> None:
        super().__init__(kind, directory, settings=settings)
        self.metadata = metadata

    def command(self) -> list[str]:
        """The command line; writes the configuration file it names."""
        settings = {
            "metadataStoreUrl": self.metadata,
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
        }
        if self.kind == "apache":
            settings["configurationMetadataStoreUrl"] = self.metadata
            program = str(peers_directory() / "apache-pulsar" / "run.sh")
            line = [program, "broker", str(self.data)]
        else:
            line = [*pyxbroker_command(), "broker", "--config"]
        return [*line, str(self._write_configuration(settings | self.settings))]


def pyxbroker_command() -> list[str]:
    """The command that runs pyxbroker."""
    beside = str(Path(sys.executable).parent / "pyxbroker")
    return os.environ.get("PYXBROKER_COMMAND", beside).split()


def _pulsar_lite() -> str:
    spec = importlib.util.find_spec("pulsar_lite")
    if spec is None or spec.origin is None:
        raise BrokerFailed("pulsar-lite is not installed: pip install pulsar-lite")
    return str(Path(spec.origin).parent / "bin" / "pulsar-lite")


def _cpu_clock_s(pid: int) -> float:
    """The CPU clock of a process with all its threads, as clock_getcpuclockid(3) names it on Linux:
    the complement of the id, above two bits for the scheduler's account.
    """
    return time.clock_gettime((~pid << 3) | 2)


def _group(leader: int) -> list[psutil.Process]:
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == leader:
                members.append(psutil.Process(pid))
    return members

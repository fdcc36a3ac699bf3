"""Starts Apache BookKeeper's bookies, each a small JVM on a free port with its own directory.

Their metadata is in a ZooKeeper that the caller has started. `format_metadata` is BookKeeper's
shell, as `shell` is for any other of its commands.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from harness.brokers import BrokerFailed, free_ports
from harness.java_build import JavaProgram, tool
from pyxbroker.testing import reaper

SERVER = JavaProgram("apachebookies")
START_TIMEOUT_S = 60
_SMALL = (
    *("-Xms16m", "-Xmx96m", "-XX:MaxDirectMemorySize=128m", "-XX:+UseSerialGC"),
    *("-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"),
)
_SETTINGS = {
    "allowLoopback": "true",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "8",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "journalPreAllocSizeMB": "4",
    "logSizeLimit": "67108864",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    "diskUsageLwmThreshold": "0.97",
    "serverNumIOThreads": "2",
    "numAddWorkerThreads": "2",
    "numReadWorkerThreads": "2",
    # As Pulsar ships it.
    "nettyMaxFrameSizeBytes": "5253120",
}
# A request of v2 to read entry 0 of ledger 0.
_READ = bytes.fromhex("00000014 02020000") + bytes(16)


def _java(main: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
    java = tool("java", "default-jdk-headless")
    return [java, *_SMALL, *flags, "-cp", f"{SERVER.jars()}/*", main, *arguments]


class Bookie:
    """One bookie; `start` may be called again after `stop` or `kill`."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        settings: dict[str, str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Write the configuration. prefix: the beginning of the command line."""
        self.directory = directory
        self.host = host
        self.port = port or free_ports(1)[0]
        self.prefix = prefix
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        values = _SETTINGS | {
            "advertisedAddress": host,
            "metadataServiceUri": f"zk+hierarchical://{zookeeper}/ledgers",
            "bookiePort": str(self.port),
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
        }
        self.configuration = directory / "bookie.conf"
        lines = (f"{key}={value}\n" for key, value in (values | (settings or {})).items())
        self.configuration.write_text("".join(lines))

    @property
    def bookie_id(self) -> str:
        return f"{self.host}:{self.port}"

    def spawn(self) -> None:
        """Start the process and return immediately."""
        assert self.process is None, "it is running"
        main = "org.apache.bookkeeper.server.Main"
        # A process that is killed leaves the libraries that it has unpacked.
        temporary = self.directory / "temporary"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        flags = (f"-Djava.io.tmpdir={temporary}",)
        line = _java(main, "--conf", str(self.configuration), flags=flags)
        with (self.directory / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [*self.prefix, *line],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,
            )
        reaper.began(self.process.pid)

    def wait_ready(self) -> None:
        """Wait until the bookie answers a request: it has a port some seconds before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self.process is not None
            with (
                contextlib.suppress(OSError),
                socket.create_connection((self.host, self.port), timeout=1) as connection,
            ):
                connection.sendall(_READ)
                if connection.recv(4):
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                output = (self.directory / "output.log").read_text(errors="replace")
                raise BrokerFailed(f"a bookie did not start:\n{output[-3000:]}")
            time.sleep(0.05)

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def pause(self) -> None:
        """Stop all threads; connections stay open. Only kill() ends the pause."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        # On a busy machine its threads run on for a while.
        os.waitpid(self.process.pid, os.WUNTRACED)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """End the process with kill -9, or with another signal."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)
        self.process.wait(timeout=30)
        reaper.ended(self.process.pid)
        self.process = None


def shell(configuration: Path, *arguments: str) -> str:
    """Run a command of BookKeeper's shell; return what it prints. Raises BrokerFailed."""
    main = "org.apache.bookkeeper.bookie.BookieShell"
    line = _java(main, "-conf", str(configuration), *arguments)
    done = subprocess.run(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise BrokerFailed(f"{' '.join(arguments)} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def format_metadata(configuration: Path) -> None:
    """Create BookKeeper's paths in an empty ZooKeeper."""
    shell(configuration, "metaformat", "-nonInteractive")

"""A real ZooKeeper server for tests: Debian's `zookeeper` package, on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from harness.brokers import free_ports

from pyxbroker.testing import reaper

JAR = Path("/usr/share/java/zookeeper.jar")
START_TIMEOUT_S = 30


class ZooKeeperServer:
    """One server with its data in `directory`; it can be killed, started again, stopped still."""

    def __init__(self, directory: Path, heap_mib: int = 128) -> None:
        self.directory = directory
        self._heap_mib = heap_mib
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and waits until it serves."""
        java = shutil.which("java")
        if java is None or not JAR.exists():
            pytest.fail("a real ZooKeeper is needed: apt-get install zookeeper")
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(
            f"dataDir={self.directory}/data\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\ntickTime=200\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\n4lw.commands.whitelist=*\n"
        )
        log = (self.directory / "zookeeper.log").open("ab")
        self._process = subprocess.Popen(
            [
                *(java, f"-Xmx{self._heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", str(JAR), "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
                str(configuration),
            ],
            stdout=log,
            stderr=log,
            cwd=self.directory,
            start_new_session=True,
        )
        reaper.began(self._process.pid)
        log.close()
        self._wait_until_serving()

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            if self.command("ruok") == "imok":
                return
            time.sleep(0.05)
        self.kill()
        log = (self.directory / "zookeeper.log").read_text(errors="replace")
        pytest.fail(f"ZooKeeper did not start:\n{log[-2000:]}")

    def command(self, word: str) -> str:
        """Sends one of ZooKeeper's four-letter commands; empty when nobody answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(word.encode())
                answer = b""
                while part := connection.recv(4096):
                    answer += part
                return answer.decode()
        except OSError:
            return ""

    def pause(self) -> None:
        """The server keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        # On a busy machine it goes on for a while: until all of its threads have stopped.
        os.waitpid(self._process.pid, os.WUNTRACED)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(timeout=10)
            reaper.ended(self._process.pid)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server runs"
        os.kill(self._process.pid, number)

"""A broker process for tests: start, end, pause, restart, and a clock that can be set ahead."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from pyxbroker.testing import reaper

TIMEOUT_S = 30.0
LOG_LINES = 40
BINDS_MAX = 20
BIND_PAUSE_S = 0.1
# A kill of the process loses nothing without syncs: the operating system has the bytes.
SETTINGS: dict[str, object] = {
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "journalSyncData": False,
    "forceDeleteNamespaceAllowed": True,
    "forceDeleteTenantAllowed": True,
}
ENVIRONMENT_OF_SETTINGS = "PULSAR_PREFIX_"


class BrokerFailed(Exception):
    """Raised when the process has ended or did not answer in time, with the end of its log."""


def broker(**settings: object) -> Broker:
    """Return a broker for a `with` or `async with` statement.

    `settings` are those of `pyxbroker config`, such as `brokerDeduplicationEnabled=True`. The
    process starts with the block and ends with it. If the block raises an exception, the data
    directory stays, and the last lines of the log are printed on stderr.
    """
    return Broker(settings)


class Broker:
    """A broker process on free ports of this host, with a directory of its own."""

    service_url: str
    """URL for clients, such as pulsar://127.0.0.1:34567."""
    admin_url: str
    """URL of the admin REST API and of /metrics."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        self.settings = SETTINGS | dict(settings or {})
        self.directory: Path
        """The directory with the data and the log."""
        self.keeps_files = False
        """True: the directory stays when the broker is closed."""
        self._ports = ("0", "0")
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_paused = False
        self._ahead_s = 0.0

    # --- start and end ------------------------------------------------------------------------

    def __enter__(self) -> Broker:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.keeps_files = self.keeps_files or kind is not None
        self.close()
        if self.keeps_files:
            print(self.report(), file=sys.stderr)

    async def __aenter__(self) -> Broker:
        from asyncio import to_thread

        await to_thread(self.open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from asyncio import to_thread

        await to_thread(self.__exit__, kind, error, traceback)

    def open(self) -> None:
        """Create the directory and start the process. Raises BrokerFailed."""
        self.directory = Path(tempfile.mkdtemp(prefix="pyxbroker-test-"))
        reaper.created(self.directory)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the process, and delete the directory unless `keeps_files` is set."""
        self.kill()
        if not self.keeps_files:
            shutil.rmtree(self.directory, ignore_errors=True)
        reaper.deleted(self.directory)

    def start(self) -> None:
        """Start the process, with the ports that it had before, and wait until it serves clients.
        Raises BrokerFailed.
        """
        for left in reversed(range(BINDS_MAX)):
            began = self.log_path.stat().st_size if self.log_path.exists() else 0
            try:
                return self._start()
            except BrokerFailed:
                # Connections of other processes may have had one of the ports meanwhile.
                is_taken = b"address already in use" in self._log_bytes(began).lower()
                if not (is_taken and left and self._ports[0] != "0"):
                    raise
            time.sleep(BIND_PAUSE_S)

    def stop(self) -> None:
        """Stop the process cleanly (SIGTERM), unless it has ended. Raises BrokerFailed."""
        self.resume()
        if self._process is None:
            return
        self._process.terminate()
        try:
            status = self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._fail(f"did not stop within {TIMEOUT_S:g} s")
        self._forget()
        if status != 0:
            self._fail(f"ended with status {status}")

    def kill(self) -> None:
        """Kill the process (SIGKILL), unless it has ended. Stored messages survive."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._forget()

    def restart(self) -> None:
        """Stop the process unless it has ended, and start it on the same ports and data. Raises
        BrokerFailed.
        """
        self.stop()
        self.start()

    # --- while it runs ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True from a start until a stop or a kill, and while the broker is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process. Raises BrokerFailed if it has ended."""
        if self._process is None:
            self._fail("does not run")
        return self._process.pid

    def pause(self) -> None:
        """Stop the process (SIGSTOP), as if its host hung: it answers nothing until `resume`."""
        os.killpg(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Continue a paused process (SIGCONT)."""
        if self._is_paused and self._process is not None:
            os.killpg(self._process.pid, signal.SIGCONT)
        self._is_paused = False

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Set the broker's clock ahead, and return when the broker has done what is due by then.
        Raises BrokerFailed.
        """
        whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if whole < timedelta(0):
            raise ValueError("the clock cannot be set back")
        if self._is_paused or self._control is None:
            self._fail("does not run, or is paused")
        self._ahead_s += whole.total_seconds()
        self._control.sendall(f"{self._ahead_s}\n".encode())
        self._await_answer("did not set its clock")

    # --- files --------------------------------------------------------------------------------

    @property
    def data_directory(self) -> Path:
        """The directory of messages and metadata."""
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        """The log of the process, and of those before it."""
        return self.directory / "broker.log"

    def report(self) -> str:
        """Return the last lines of the log, and the directory if it stays."""
        lines = self._log_bytes().decode(errors="replace").splitlines()[-LOG_LINES:]
        if self.keeps_files:
            lines.append(f"The files of the broker are in {self.directory}")
        return "\n".join(lines)

    def _log_bytes(self, since: int = 0) -> bytes:
        with contextlib.suppress(FileNotFoundError), self.log_path.open("rb") as file:
            file.seek(since)
            return file.read()
        return b""

    # --- the process --------------------------------------------------------------------------

    def _start(self) -> None:
        assert self._process is None, "the process runs"
        self._control, theirs = socket.socketpair()
        with theirs, self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        reaper.began(self._process.pid)
        self._await_answer("was not ready")
        ready: dict[str, Any] = json.loads(self._ready_file.read_text())
        self.service_url, self.admin_url = ready["brokerServiceUrl"], ready["webServiceUrl"]
        self._ports = (str(ready["brokerServicePort"]), str(ready["webServicePort"]))

    @property
    def _ready_file(self) -> Path:
        return self.directory / "ready.json"

    def _command(self, control: int) -> list[str]:
        line = [sys.executable, "-m", "pyxbroker", "standalone"]
        line += ["--data", str(self.data_directory), "--ready-file", str(self._ready_file)]
        line += ["--broker-port", self._ports[0], "--web-port", self._ports[1]]
        line += ["--test-control", f"{control}:{self._ahead_s}"]
        for key, value in self.settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            line += ["--set", f"{key}={text}"]
        return line

    def _await_answer(self, failure: str) -> None:
        """Wait for a line of the process. Raises BrokerFailed."""
        assert self._control is not None and self._process is not None
        deadline = time.monotonic() + TIMEOUT_S
        answer = b""
        while not answer.endswith(b"\n"):
            self._control.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                found = self._control.recv(4096)
            except TimeoutError:
                self._end(f"{failure} within {TIMEOUT_S:g} s")
            if not found:
                status = self._process.wait()
                self._end(f"{failure}: it ended with status {status}")
            answer += found

    def _end(self, failure: str) -> NoReturn:
        self.kill()
        self._fail(failure)

    def _fail(self, failure: str) -> NoReturn:
        raise BrokerFailed(f"The broker {failure}.\n{self.report()}")

    def _forget(self) -> None:
        """Release what belongs to a process that has ended."""
        if self._process is not None:
            reaper.ended(self._process.pid)
        if self._control is not None:
            self._control.close()
        self._process = self._control = None
        self._is_paused = False


def _environment() -> dict[str, str]:
    """Return the environment of this process without settings of brokers."""
    found = {k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT_OF_SETTINGS)}
    if path := found.get("PYTHONPATH"):
        # The process has another working directory.
        found["PYTHONPATH"] = os.pathsep.join(
            str(Path(each).absolute()) for each in path.split(os.pathsep)
        )
    return found

"""Runs the command line as real processes, on free ports."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "pyxbroker"]
ANY_PORTS = ["--broker-port", "0", "--web-port", "0"]
TIMEOUT_S = 30


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )


def imported_by(*arguments: str) -> set[str]:
    """The modules that a command has imported when it is done."""
    code = (
        f"import sys, pyxbroker.cli as c; c.main({list(arguments)!r}); print(); print(*sys.modules)"
    )
    listing = subprocess.run(
        [sys.executable, "-c", f"{code}; print(); print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(listing.stdout.split())


class Broker:
    """A running `pyxbroker standalone`, after its banner."""

    def __init__(self, process: subprocess.Popen[str], banner: str) -> None:
        self.process = process
        self.banner = banner
        self.broker_port = int(self.find(r"pulsar://[\w.]+:(\d+)"))

    def find(self, pattern: str) -> str:
        found = re.search(pattern, self.banner)
        assert found is not None, self.banner
        return found[1]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit status, the rest of stdout, and stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


@contextmanager
def standalone(
    data: Path, *arguments: str, command: Sequence[str] = COMMAND, **environment: str
) -> Iterator[Broker]:
    """Serves `data` until the block ends; `command` runs the command line some other way."""
    process = subprocess.Popen(
        [*command, "standalone", "--data", str(data), *ANY_PORTS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield Broker(process, read_banner(process))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def read_banner(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = ""
    deadline = time.monotonic() + TIMEOUT_S
    while "Ctrl-C" not in text:
        ready, _, _ = select.select([process.stdout], [], [], deadline - time.monotonic())
        chunk = os.read(process.stdout.fileno(), 65536).decode() if ready else ""
        if not chunk:
            process.kill()
            raise AssertionError(f"no banner: {text}{process.communicate()[1]}")
        text += chunk
    return text


def complaints(err: str) -> list[str]:
    """Warnings and errors of a log; not that a turn took long, which a busy machine can cause."""
    lines = re.findall(r" (?:ERROR|WARNING) .*", err)
    return [line for line in lines if not line.startswith(" WARNING loop event=")]


def error_line(finished: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that a failed command writes."""
    lines = [line for line in finished.stderr.splitlines() if line.startswith("pyxbroker: ")]
    assert len(lines) == 1, finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout == ""
    return lines[0]

"""Runs the code blocks of a page of the documentation, in their order, as a reader would.

    python -m harness.page_blocks docs/tutorial.md

The page gets a network, processes and a working directory of its own, so the ports are those that
it names.  A broker runs unless the page begins by starting one.  `console` blocks have commands
after `$ ` and what they print, `sh` blocks only commands, `python` blocks are programs.  In what a
block prints, `...` stands for any text, in a line of its own for any lines.  A comment before a
block changes what happens with it:

    <!-- not run: REASON -->   the block is left out
    <!-- background -->        the block starts a broker, which replaces the one that runs, killed
    <!-- prints -->            the block is what the one before it prints
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
RUN = ("console", "sh", "python")
SHOWN = ("text", "yaml", "ini", "json", "toml", "properties", "java")
_MARKER = re.compile(r"<!-- (not run: .+|background|prints) -->")
_FENCE = re.compile(r"( *)```(\S*)$")
# Pulsar's client for Python logs to stdout.
_LOG_LINE = re.compile(r"^[-\d]{10} [:.\d]{12} (INFO|WARN) .*\n", re.MULTILINE)
_HEALTH = "http://localhost:8080/admin/v2/brokers/health"
_BROKER = "pyxbroker standalone --data broker-of-the-page"
_READY_S = 60.0
_BLOCK_S = 60.0


class Block(NamedTuple):
    """A fenced block of code."""

    page: str
    line: int
    tag: str
    marker: str
    """What the comment before the block says; empty without one."""
    text: str

    @property
    def is_run(self) -> bool:
        return self.tag in RUN and not self.marker.startswith("not run")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class BlockFailed(Exception):
    """Raised when a block failed or printed something else than the page says."""


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    marker = tag = ""
    begin = indent = 0
    lines: list[str] | None = None
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if lines is not None and fence:
            yield Block(page.name, begin, tag, marker, "\n".join(lines) + "\n")
            lines, marker = None, ""
        elif lines is not None:
            lines.append(line[indent:])
        elif fence:
            begin, indent, tag, lines = number, len(fence[1]), fence[2], []
        elif found := _MARKER.fullmatch(line.strip()):
            marker = found[1]
        elif line.strip():
            marker = ""


class Page:
    """The run of a page: its broker and its working directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._broker: subprocess.Popen[str] | None = None

    def start_broker(self, command: str) -> None:
        """Start a broker by a command, after killing the one that runs."""
        self.kill_broker()
        self._broker = subprocess.Popen(
            ["bash", "-c", command], cwd=self._directory, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                with urllib.request.urlopen(_HEALTH, timeout=5):
                    return
            except OSError:
                if self._broker.poll() is not None or time.monotonic() > deadline:
                    raise BlockFailed(f"no broker is ready: {command}") from None
                time.sleep(0.02)

    def kill_broker(self) -> None:
        if self._broker is not None:
            os.killpg(self._broker.pid, signal.SIGKILL)
            self._broker.wait()

    def run(self, block: Block, expected: str | None) -> None:
        """Run a block; `expected` is what a following block says that it prints."""
        if block.marker == "background":
            self.start_broker(block.text)
        elif block.tag == "console":
            for command, output in _commands_of(block):
                self._run(block, ["bash", "-ec", command], output)
        elif block.tag == "sh":
            self._run(block, ["bash", "-euo", "pipefail", "-c", block.text], expected)
        else:
            self._run(block, [sys.executable, "-c", block.text], expected)

    def _run(self, block: Block, command: list[str], expected: str | None) -> None:
        # Files, because a process that a block leaves running would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            done = subprocess.run(
                command, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=output,
                stderr=errors, timeout=_BLOCK_S, check=False,
            )  # fmt: skip
            output.seek(0)
            errors.seek(0)
            printed = _LOG_LINE.sub("", output.read())
            if done.returncode != 0:
                raise BlockFailed(f"{block}: status {done.returncode}\n{printed}{errors.read()}")
        if expected is not None and not is_as_shown(printed, expected):
            raise BlockFailed(f"{block}: the page shows\n{expected}\nand it is\n{printed}")


def is_as_shown(printed: str, shown: str) -> bool:
    """Return True if a text is the one that a page shows, where `...` stands for any text."""
    pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def _commands_of(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield the commands of a `console` block, and what each prints if the block shows it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, output = part, ""
        if found := re.match(r"((?:.*\\\n)*.*)\n", part):
            command, output = found[1], part[found.end() :]
        yield command, output if output.strip() else None


def run_page(page: Path) -> None:
    """Run the blocks of a page in a network of this process's own."""
    prepare_network()
    blocks = [*blocks_of(page)]
    with tempfile.TemporaryDirectory(prefix="page-") as directory:
        run = Page(Path(directory))
        first = next((block for block in blocks if block.is_run), None)
        if first is None or first.marker != "background":
            run.start_broker(_BROKER)
        try:
            for number, block in enumerate(blocks, start=1):
                shown = [
                    each.text for each in blocks[number : number + 1] if each.marker == "prints"
                ]
                if block.is_run:
                    run.run(block, shown[0] if shown else None)
        finally:
            run.kill_broker()


def prepare_network() -> None:
    """Open the loopback of a new network, and let commands find `pyxbroker`."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    scripts = Path(sys.executable).parent
    os.environ["PATH"] = f"{scripts}{os.pathsep}{os.environ['PATH']}"


def isolated(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in a network and among processes of its own."""
    kinds = ("--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    return ["unshare", *kinds, sys.executable, "-m", module, "--isolated", *arguments]


def run_isolated(page: Path) -> str:
    """Run the blocks of a page in namespaces of its own; return what failed, or an empty text."""
    done = subprocess.run(
        isolated("harness.page_blocks", str(page.resolve())),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr or f"status {done.returncode}"


def main() -> NoReturn:
    """Run the pages that the command line names."""
    if sys.argv[1:2] == ["--isolated"]:
        try:
            run_page(Path(sys.argv[2]))
        except (BlockFailed, subprocess.TimeoutExpired) as error:
            sys.exit(str(error))
        sys.exit(0)
    failures = [
        f"{page}: {failed}" for page in sys.argv[1:] if (failed := run_isolated(Path(page)))
    ]
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()

"""How far a fuzz target has come: CPU of all its runs, and since when it finds nothing new.

A target is done when it had its CPU, when its last part of that brought no new edge (libFuzzer's
`cov`; its features, which also count how often an edge is passed, grow for days), and when nothing
is left that it found. What is known stands beside its corpus, in build/fuzz/corpus/TARGET.json, so
a run that was cut goes on where it was.

Edges of two builds are not comparable: when the code that it runs has changed, the CPU stays, and
the calm begins anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SAVE_SECONDS = 10.0
END_SECONDS_MAX = 60.0  # for the last input, and the last figures
OUTPUT_LINES_MAX = 400
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CODE = ("**/*.py", "**/*.pyx", "**/*.pxd", "**/*.c", "**/*.h")

PULSE = re.compile(r"^#(\d+)\s+(\w+)\s+cov: (\d+) ft: (\d+)")
UNITS = re.compile(r"^stat::number_of_executed_units: +(\d+)")


@dataclass(frozen=True)
class Goal:
    cpu_seconds: float
    calm_seconds: float


@dataclass
class Progress:
    """Of one target, over all its runs."""

    cpu_seconds: float = 0.0
    inputs: int = 0
    edges: int = 0
    features: int = 0
    new_at: float = 0.0  # the CPU that had been used when the last new edge was found
    findings: int = 0  # over all runs, mended or not; one that is tried again is the same
    is_broken: bool = False  # what was found is not known to be mended
    code: str = ""  # what the edges are those of

    @property
    def calm_seconds(self) -> float:
        return self.cpu_seconds - self.new_at

    def is_done(self, goal: Goal) -> bool:
        is_calm = self.calm_seconds >= goal.calm_seconds
        return self.cpu_seconds >= goal.cpu_seconds and is_calm and not self.is_broken

    def begin(self, code: str) -> None:
        """A run begins, of code with this digest."""
        if code != self.code:
            self.code = code
            self.edges = self.features = 0
            self.new_at = self.cpu_seconds

    def saw(self, edges: int, features: int, is_new: bool) -> None:
        """Coverage as a run tells it; is_new: it has grown since that run read its corpus."""
        if is_new or edges > self.edges:
            self.new_at = self.cpu_seconds
        self.edges = max(self.edges, edges)
        self.features = max(self.features, features)

    def save(self, path: Path) -> None:
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Progress:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


@dataclass
class Run:
    """What one process has told so far."""

    cpu_seconds: float = 0.0
    inputs: int = 0
    edges: int | None = None  # None: it has not read its corpus yet

    def follow(self, line: str, progress: Progress) -> None:
        """Reads a line of its output."""
        units = UNITS.match(line)
        pulse = PULSE.match(line)
        inputs = int((units or pulse)[1]) if units or pulse else self.inputs  # type: ignore[index]
        progress.inputs += max(inputs - self.inputs, 0)
        self.inputs = max(inputs, self.inputs)
        if pulse is None or (self.edges is None and pulse[2] != "INITED"):
            return
        edges, features = int(pulse[3]), int(pulse[4])
        is_new = self.edges is not None and edges > self.edges
        progress.is_broken = False  # what was found is in the corpus, which was read
        progress.saw(edges, features, is_new)
        self.edges = max(edges, self.edges or 0)

    def used(self, cpu_seconds: float, progress: Progress) -> None:
        """The process has used so much CPU since it began."""
        progress.cpu_seconds += max(cpu_seconds - self.cpu_seconds, 0.0)
        self.cpu_seconds = max(cpu_seconds, self.cpu_seconds)


@dataclass(frozen=True)
class Ended:
    """How a run ended; without an error when we ended it, or it itself, and it found nothing."""

    error: str
    output: str


@dataclass(frozen=True)
class Program:
    """A target that ends only when it finds something."""

    command: Sequence[str]
    environment: Mapping[str, str]
    code: str  # the digest of what it runs


def saturate(program: Program, kept: Path, goal: Goal, cut: threading.Event) -> Ended:
    """Runs a target until it is done, or cut.

    `kept` is the file of its progress. Whatever ends this, the process is gone and the progress is
    kept.
    """
    progress, run = Progress.load(kept), Run()
    progress.begin(program.code)
    if progress.is_done(goal) or cut.is_set():
        return Ended("", "")
    lines: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
    process = subprocess.Popen(
        program.command,
        env=dict(program.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # who interrupts us does not interrupt an input
    )
    assert process.stdout is not None
    saved, asked_to_end = time.monotonic(), 0.0
    try:
        for line in lines_of(process.stdout):
            run.used(cpu_seconds_of(process.pid), progress)
            if line is not None:
                lines.append(line)
                run.follow(line, progress)
            now = time.monotonic()
            if now - saved >= SAVE_SECONDS:
                progress.save(kept)
                saved = now
            if cut.is_set():
                return Ended("", "")
            if asked_to_end and now - asked_to_end > END_SECONDS_MAX:
                process.kill()
            elif not asked_to_end and run.edges is not None and progress.is_done(goal):
                process.send_signal(signal.SIGUSR1)  # libFuzzer ends after the input
                asked_to_end = now
        run.used(cpu_seconds_of(process.pid), progress)
        status = process.wait()
        error = _error(status, run, bool(asked_to_end))
        if error:
            progress.findings += not progress.is_broken
            progress.is_broken = True
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        progress.save(kept)
    return Ended(error, "\n".join(lines))


def _error(status: int, run: Run, is_asked: bool) -> str:
    if is_asked:  # it was well until then, and its end may not come by itself
        return "" if status in (0, -signal.SIGKILL, -signal.SIGUSR1) else f"exit status {status}"
    if status == 0:
        return "" if run.inputs else "it ran no input"
    return f"exit status {status}"


def lines_of(stream: IO[bytes], seconds: float = 1.0) -> Iterator[str | None]:
    """Lines as they come; None when none came for some time, so that the caller can look up."""
    pending = b""
    while True:
        if not select.select([stream], [], [], seconds)[0]:
            yield None
            continue
        some = os.read(stream.fileno(), 65536)
        if not some:
            break
        *whole, pending = (pending + some).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if pending:
        yield pending.decode(errors="replace")


def cpu_seconds_of(process: int) -> float:
    """Of all its threads, in user and system; also of one that ended and is not waited for."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return 0.0
    fields = text.rpartition(")")[2].split()  # the name, in brackets, may have spaces
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def digest(*places: Path) -> str:
    """Of files, and of the code in folders."""
    found = hashlib.sha1()
    for place in places:
        inside = {each for pattern in CODE for each in place.glob(pattern)}
        for path in sorted(inside) if place.is_dir() else [place]:
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def table(rows: Iterable[tuple[str, Progress]], goal: Goal) -> str:
    """Markdown; minutes are of CPU."""
    lines = [
        "| target | CPU, min | inputs | edges | features | no new edge for, min | findings | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in rows:
        state = "done" if each.is_done(goal) else "finding" if each.is_broken else "goes on"
        lines.append(
            f"| {name} | {each.cpu_seconds / 60:.1f} | {each.inputs:,} | {each.edges:,}"
            f" | {each.features:,} | {each.calm_seconds / 60:.1f} | {each.findings} | {state} |"
        )
    return "\n".join(lines)

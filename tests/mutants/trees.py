"""A copy of the tree for each worker: mutants are planted and built there, nowhere else."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mutants.draw import Mutant

# What was built is copied too, so that a mutant builds one module.
BUILT = ("src/pyxbroker/*.so", "src/pyxbroker/proto/descriptors.bin", "build/*.txt")
BUILT_FOLDERS = (
    "build/cython",
    "build/temp.*",
    "build/native-tests/plain",
    "build/goclient",
    "build/java*",
)
BUILD_SECONDS_MAX = 600
POLL_SECONDS = 0.5
# A mutant may ask for memory, or write, without end: KiB, and blocks of 512 bytes.
LIMITED = f'ulimit -v {12 << 20}; ulimit -f {4 << 20}; ulimit -c 0; exec "$@"'
# AddressSanitizer takes terabytes of addresses, and has a limit of memory itself.
LIMITED_BY_ASAN = f'ulimit -f {4 << 20}; ulimit -c 0; exec "$@"'
# Mutants are compiled in half the time that -O3 takes, and may have variables that nobody uses. An
# object that is newer than its source stays: setuptools would make all of a module anew.
COMPILER = """#!/bin/sh
source= object= before=
for each in "$@"; do
    case $before in -c) source=$each ;; -o) object=$each ;; esac
    before=$each
done
if [ -n "$source" ] && [ "$object" -nt "$source" ]; then exit 0; fi
exec {compiler} "$@" -O1 -g0 -w
"""


class Stopped(Exception):
    """The run was cut, and what a command said is nothing to go by."""


class Run(NamedTuple):
    """How a command ended; None: it did not, and was ended."""

    status: int | None
    output: str
    seconds: float


class Tree:
    def __init__(self, place: Path, number: int = 0) -> None:
        self.place = place
        self._run_id = f"{os.getpid()}-{number}"
        self._pristine = place.parent / f"{place.name}-built"
        self._compiler = place.parent / f"{place.name}-cc"
        self._output = place.parent / f"{place.name}-output.txt"
        self._mutant: Mutant | None = None
        self._is_stopped = False
        self._original = ""
        self._times = (0, 0)

    def copy_from(self, root: Path) -> None:
        """Everything that git has or would take, and what was built of it."""
        shutil.rmtree(self.place, ignore_errors=True)
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        paths = [root / name for name in listed.stdout.split("\0") if name]
        paths = [path for path in paths if path.is_file() or path.is_symlink()]
        names = [path.relative_to(root).as_posix() for path in paths]
        for pattern in BUILT:
            names += [path.relative_to(root).as_posix() for path in root.glob(pattern)]
        for name in names:
            target = self.place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
        for pattern in BUILT_FOLDERS:
            for folder in root.glob(pattern):
                shutil.copytree(folder, self.place / folder.relative_to(root))
        (self.place / ".venv").symlink_to((root / ".venv").resolve())
        self._keep_built()

    def _keep_built(self) -> None:
        shutil.rmtree(self._pristine, ignore_errors=True)
        self._pristine.mkdir(parents=True)
        for module in (self.place / "src" / "pyxbroker").glob("*.so"):
            shutil.copy2(module, self._pristine)
        compiler = os.environ.get("CC", "cc")
        self._compiler.write_text(COMPILER.format(compiler=compiler))
        self._compiler.chmod(0o755)

    # --- a mutant -----------------------------------------------------------------------------

    def plant(self, mutant: Mutant) -> None:
        path = self.place / mutant.path
        status = path.stat()
        self._original, self._times = path.read_text(), (status.st_atime_ns, status.st_mtime_ns)
        self._mutant = mutant
        path.write_text(mutant.text)

    def restore(self) -> None:
        """The tree is what it was, also what was built. Other objects of C are made anew from a
        source that seems changed, so that none of the mutant stays."""
        mutant, self._mutant = self._mutant, None
        assert mutant is not None
        path = self.place / mutant.path
        path.write_text(self._original)
        if mutant.language == "python":
            os.utime(path, ns=self._times)
        else:
            for module in self._pristine.glob(f"{module_of(mutant)}.*"):
                shutil.copy2(module, self.place / "src" / "pyxbroker")
        shutil.rmtree(self.place / ".hypothesis", ignore_errors=True)

    def build(self, mutant: Mutant) -> bool:
        """Builds the module that has the mutant; False when it does not compile."""
        if mutant.language == "python":
            return True
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        changes = {"PYXBROKER_MODULES": module_of(mutant), "CC": str(self._compiler)}
        return self.run(command, BUILD_SECONDS_MAX, changes).status == 0

    # --- commands -----------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Tests and the processes that they start take our code from the copy."""
        path = [self.place / "src", self.place, self.place / "tests"]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYXBROKER_COMMAND": f"{sys.executable} -m pyxbroker",
            "NATIVE_TESTS_OUT": str(self.place / "build" / "native-tests"),
            "PYTEST_ADDOPTS": f"--basetemp={self.place}-tmp",
            "MUTANTS_RUN": self._run_id,
        }

    def run(
        self,
        command: Sequence[str],
        seconds_max: float,
        changes: dict[str, str] | None = None,
        until: str = "",
        limits: str = LIMITED,
    ) -> Run:
        """Runs a command in the copy, or until it writes a text; nothing that it starts stays."""
        start = time.monotonic()
        # Into a file: what is left of a mutant may hold a pipe open.
        with self._output.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", limits, "sh", *command],
                cwd=self.place,
                env=self.environment() | (changes or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        status: int | None = None
        try:
            while time.monotonic() - start < seconds_max and not self._is_stopped:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(POLL_SECONDS)
                    break
                if until and until in self._output.read_text(errors="replace"):
                    break
        finally:
            self._end_all()
            process.wait()
        if self._is_stopped:
            raise Stopped
        text = self._output.read_text(errors="replace")
        return Run(status, text, time.monotonic() - start)

    def stop(self) -> None:
        """Whoever runs a command has Stopped. Any thread."""
        self._is_stopped = True
        self._end_all()

    def compiler(self) -> dict[str, str]:
        return {"CC": str(self._compiler)}

    def _end_all(self) -> None:
        """Ends what this tree started, wherever it went, and waits until it is gone."""
        while marked := self._marked():
            for process in marked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)

    def _marked(self) -> list[int]:
        """Processes with our mark in their environment."""
        mark = f"MUTANTS_RUN={self._run_id}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found


def module_of(mutant: Mutant) -> str:
    return "_native" if mutant.language == "c" else Path(mutant.path).stem

"""Builds the programs in Java that the tests drive: ``javaclient/``, ``javaadmin/`` and
``javarecords/``, and fetches the jars of others, which have no sources here: ``apachebookies/``.

Maven fetches the jars that a program's ``pom.xml`` names from Maven Central, and keeps them for all
builds of a user; ``javac`` takes seconds.  ``python -m harness.java_build NAME`` does it ahead; a
test run does it by itself when the sources are newer than the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Annotations that only other compilers read are not among the jars.
_LINT = "-Xlint:all,-classfile,-path,-processing"


class JavaMissing(Exception):
    """There is no usable JDK or Maven; the text says what to install."""


def tool(name: str, package: str) -> str:
    """The path of a command; raises ``JavaMissing``, which names the package that has it."""
    found = shutil.which(name)
    if found is None:
        raise JavaMissing(
            f"Apache Pulsar's classes need `{name}`, which is not on the PATH: install a JDK 17 or"
            f" newer and Maven (apt-get install {package})"
        )
    return found


class JavaProgram:
    """The program in the folder of a name beside this file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sources = Path(__file__).resolve().parent / name
        self.folder = ROOT / "build" / name
        self._jars, self._classes = self.folder / "jars", self.folder / "classes"
        self._built = False

    def build(self) -> None:
        """Fetches the jars and compiles, if the sources are newer.

        Several processes may ask at once; one builds, the others wait for it.  Raises
        ``JavaMissing``, or ``RuntimeError`` with the output of the tool that failed.
        """
        if self._built:
            return
        javac = tool("javac", "default-jdk-headless")
        with self._locked():
            pom = self._fetch()
            files = sorted(self.sources.glob("*.java"))
            path = ["-cp", f"{self._jars}/*", "-d", str(self._classes)]
            if files:
                line = [javac, _LINT, "-Werror", *path, *map(str, files)]
                _make(self._classes, [pom, *files], *line)
        self._built = True

    def jars(self) -> Path:
        """The folder with the jars that ``pom.xml`` names; nothing is compiled."""
        with self._locked():
            self._fetch()
        return self._jars

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fetch(self) -> Path:
        """Fetches the jars; returns the file that names them."""
        maven, pom = tool("mvn", "maven"), self.sources / "pom.xml"
        copy = ["dependency:copy-dependencies", f"-Djars={self._jars}"]
        _make(self._jars, [pom], maven, "-q", "-B", "-f", str(pom), *copy)
        return pom

    def command(self, main: str, *flags: str) -> list[str]:
        """The command line that runs the class ``main``, quick to start and small; builds."""
        self.build()
        java = tool("java", "default-jdk-headless")
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # Libraries that are unpacked there stay when the process is killed.
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        small.append(f"-Djava.io.tmpdir={temporary}")
        return [java, *small, *flags, "-cp", f"{self._jars}/*:{self._classes}", main]


def _make(folder: Path, sources: list[Path], *command: str) -> None:
    """Runs what fills a folder, unless that was done with these sources."""
    stamp = folder.with_suffix(".sources")
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run(*command)
    stamp.write_text(digest.hexdigest())


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout}")


def main() -> None:
    """Build the programs that are named."""
    for name in sys.argv[1:]:
        program = JavaProgram(name)
        try:
            program.build()
        except (JavaMissing, RuntimeError) as error:
            sys.exit(f"{name}: {error}")
        print(program.folder.relative_to(ROOT))


if __name__ == "__main__":
    main()

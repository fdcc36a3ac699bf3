"""Apache Pulsar's own classes read and write records: the program in ``javarecords``.

A test run builds it by itself when its sources are newer: Maven fetches 21 jars (15 MB) from Maven
Central, which it keeps for all builds of a user; ``javac`` takes a second.  ``python -m
harness.apache_records`` does it ahead.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path(__file__).resolve().parent / "javarecords"
BUILD = ROOT / "build" / "javarecords"
JARS, CLASSES = BUILD / "jars", BUILD / "classes"
# Annotations that only other compilers read are not among the jars.
_LINT = "-Xlint:all,-classfile,-path,-processing"


class JavaMissing(Exception):
    """There is no usable JDK or Maven; the text says what to install."""


class Written(NamedTuple):
    """What Apache's classes made: the Java fields of an object, and its bytes."""

    fields: dict[str, Any]
    value: bytes


def _tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise JavaMissing(
            f"Apache Pulsar's classes need `{name}`, which is not on the PATH: install a JDK 17 or"
            f" newer and Maven (apt-get install {package})"
        )
    return found


@functools.cache
def build() -> None:
    """Fetches the jars and compiles, if the sources are newer.

    Several processes may ask at once; one builds, the others wait for it.  Raises ``JavaMissing``,
    or ``RuntimeError`` with the output of the tool that failed.
    """
    maven, javac = _tool("mvn", "maven"), _tool("javac", "default-jdk-headless")
    BUILD.mkdir(parents=True, exist_ok=True)
    stamp = BUILD / "sources"
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _fingerprint()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(JARS, ignore_errors=True)
        shutil.rmtree(CLASSES, ignore_errors=True)
        pom = str(SOURCES / "pom.xml")
        _run(maven, "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-Djars={JARS}")
        sources = [str(each) for each in sorted(SOURCES.glob("*.java"))]
        _run(javac, _LINT, "-Werror", "-cp", f"{JARS}/*", "-d", str(CLASSES), *sources)
        stamp.write_text(wanted)


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


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


class ApacheRecords:
    """A process of the program; to be closed."""

    def __init__(self) -> None:
        build()
        self._process = subprocess.Popen(
            [
                *(_tool("java", "default-jdk-headless"), "-Xmx256m", "-XX:+UseSerialGC"),
                *("-XX:TieredStopAtLevel=1", "-Dslf4j.internal.verbosity=ERROR"),
                *("-cp", f"{JARS}/*:{CLASSES}", "Records"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def read(self, kind: str, value: bytes) -> dict[str, Any]:
        """The Java fields of what Apache's class of a kind makes of bytes."""
        answer = self._ask({"read": kind, "value": base64.b64encode(value).decode()})
        fields: dict[str, Any] = answer["fields"]
        return fields

    def write(self, kind: str, but: dict[str, Any]) -> Written:
        """An object of Apache's class of a kind with a value in every field.

        but: those that it has to have, by the names of Java's fields on the way, with dots between;
        of protobuf messages an object within the other, and null is for what it does not have.
        """
        answer = self._ask({"write": kind, "but": but})
        return Written(answer["fields"], base64.b64decode(answer["value"]))

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Java ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait(20)
        self._process.stdout.close()
        assert status == 0, f"Java ended with {status}"


def main() -> None:
    """Build."""
    try:
        build()
    except (JavaMissing, RuntimeError) as error:
        sys.exit(f"javarecords: {error}")
    print(CLASSES.relative_to(ROOT))


if __name__ == "__main__":
    main()

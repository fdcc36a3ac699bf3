"""Builds the program of ``goclient/``, with which the tests drive Apache Pulsar's Go client.

``make goclient`` does it ahead; a test run does it by itself when the sources are newer than the
program.  A build from nothing takes about a minute and a half of processor time; Go keeps what it
compiled, so later builds take a second or two.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path(__file__).resolve().parent / "goclient"
BUILD = ROOT / "build" / "goclient"
# The Go that fetches a newer one by itself when the module needs it.
_OLDEST = (1, 21)
# Where distributions and Go's own archive put it, for machines that do not have it on the PATH.
_PLACES = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")


class GoMissing(Exception):
    """There is no usable Go; the text says what to install."""


@functools.cache
def go() -> str:
    """The path of the ``go`` command; raises ``GoMissing``."""
    found = shutil.which("go") or next((place for place in _PLACES if Path(place).exists()), None)
    if found is None:
        raise GoMissing(
            f"the tests with Pulsar's Go client need Go {_text(_wanted())} or newer, and there is "
            f"no `go` on the PATH nor at one of {_PLACES}; install it (https://go.dev/dl)"
        )
    if _version(found) < _OLDEST:
        raise GoMissing(
            f"{found} is Go {_text(_version(found))}; Pulsar's Go client needs "
            f"{_text(_wanted())} or newer, or {_text(_OLDEST)} or newer, which fetches that by "
            "itself; install it (https://go.dev/dl)"
        )
    return found


@functools.cache
def program() -> Path:
    """The built program, built now if it is older than its sources.

    Several processes may ask at once; one builds, the others wait for it.  Raises ``GoMissing``,
    or ``RuntimeError`` with the compiler's output.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    built, stamp = BUILD / "goclient", BUILD / "goclient.sources"
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _fingerprint()
        if not (built.exists() and stamp.exists() and stamp.read_text() == wanted):
            # Under a new name first: a program that runs must not be written to.
            fresh = BUILD / "goclient.new"
            run("build", "-ldflags=-s -w", "-o", str(fresh), ".")
            fresh.replace(built)
            stamp.write_text(wanted)
    return built


def run(*arguments: str) -> None:
    """Run a ``go`` command in the program's folder; raises ``RuntimeError`` with its output."""
    done = subprocess.run(
        [go(), *arguments],
        cwd=SOURCES,
        env=os.environ | _environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"go {arguments[0]} failed:\n{done.stdout}")


def _environment() -> dict[str, str]:
    # Without cgo the client takes its codecs in Go, and no C compiler has to match Go's.
    settings = {"GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off"}
    if _version(go()) < _wanted():
        settings["GOTOOLCHAIN"] = "auto"
    return settings


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def _version(command: str) -> tuple[int, ...]:
    # GOTOOLCHAIN=local asks the command itself, not what it would fetch.
    shown = subprocess.run(
        [command, "version"],
        env=os.environ | {"GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = re.search(r"\bgo(\d+)\.(\d+)", shown)
    if found is None:
        raise GoMissing(f"`{command} version` printed {shown!r}, which names no version")
    return int(found[1]), int(found[2])


def _wanted() -> tuple[int, ...]:
    found = re.search(r"^go (\d+)\.(\d+)", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "go.mod has no go line"
    return int(found[1]), int(found[2])


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def main() -> None:
    """Build; with ``--lint`` check the form of the sources and let ``go vet`` look at them."""
    try:
        if sys.argv[1:] == ["--lint"]:
            formatter = str(Path(go()).resolve().parent / "gofmt")
            files = [str(path) for path in SOURCES.glob("*.go")]
            shown = subprocess.run(
                [formatter, "-l", *files], capture_output=True, text=True, check=True
            )
            if shown.stdout:
                raise RuntimeError(f"gofmt would change:\n{shown.stdout}")
            run("vet", ".")
        else:
            print(program().relative_to(ROOT))
    except (GoMissing, RuntimeError) as error:
        sys.exit(f"goclient: {error}")


if __name__ == "__main__":
    main()

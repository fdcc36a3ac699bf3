"""What `pip install pyxbroker` brings: sdist and wheel are whole, and a broker starts from them.

On the Python that runs the tests, and on the oldest and the newest one that is supported. Those
come from PATH or pyenv, else from uv, which is on PyPI and fetches them from GitHub. A machine that
has them in none of these ways fails the test: who says that a version is supported has tried it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from harness import wire
from harness.raw import RawConnection

pytestmark = pytest.mark.slow(120)

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "persistent://public/default/packaged"
START_S = 60.0
LISTENS = re.compile(r"pulsar://[^ :]+:(\d+)")


def supported() -> list[str]:
    """The versions of Python that pyproject.toml names, the oldest first."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    return sorted(found, key=lambda version: int(version.split(".")[1]))


RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHERS = [each for each in (supported()[0], supported()[-1]) if each != RUNNING]


def run(*command: object, cwd: Path | None = None) -> str:
    """What a command printed; its end with an error is the test's failure."""
    # Nothing of the tree that is tested may be found instead of what is installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def tree_of_sources(target: Path) -> Path:
    """A copy of what git has, so that nothing that was built before is packed by chance."""
    names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the backend that pyproject.toml names, as every front end does it."""
    source = tree_of_sources(tmp_path_factory.mktemp("source"))
    (source / "src" / "pyxbroker" / "commit.txt").write_text("0123456789ab\n")  # of a checkout
    target = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, target, cwd=source)
    (made,) = target.iterdir()
    return made


@cache
def wheel_of(sdist: Path, python: str, target: Path) -> Path:
    """A wheel built of the sdist alone, with what pyproject.toml asks for and nothing else."""
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", target, sdist)
    (made,) = target.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(sdist, sys.executable, tmp_path_factory.mktemp("wheel"))


def test_the_sdist_has_what_a_build_needs_and_nothing_that_was_built(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        files = {each.name.partition("/")[2] for each in archive if each.isfile()}
    tracked = set(run("git", "ls-files", "src", "proto", cwd=ROOT).split())
    assert sorted(tracked - names) == []
    connector = run("git", "ls-files", "spark", cwd=ROOT).split()
    assert connector and {f"src/pyxbroker/{name}" for name in connector} <= files
    assert {"pyproject.toml", "setup.py", "LICENSE", "README.md", "PKG-INFO"} <= names
    assert [name for name in names if name.endswith((".so", ".o", ".pyc"))] == []


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA")))
        assert archive.read("pyxbroker/commit.txt") == b"0123456789ab\n"
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"pyxbroker"}
    sources = ROOT / "src" / "pyxbroker"
    for suffix in ("py", "pyi", "pxd"):
        # Path.rglob() does not follow the symbolic link to spark/.
        paths = [*sources.rglob(f"*.{suffix}"), *(sources / "spark").rglob(f"*.{suffix}")]
        wanted = {f"pyxbroker/{path.relative_to(sources)}" for path in paths}
        assert wanted and sorted(wanted - names) == []
    assert {"pyxbroker/py.typed", "pyxbroker/proto/descriptors.bin"} <= names
    built = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    assert built == {"_native", *(path.stem for path in sources.glob("*.pyx"))}
    leftovers = (".c", ".h", ".o", ".pyx", ".pyc", ".proto")
    assert [name for name in names if name.endswith(leftovers) or "test" in name] == []
    assert b"Requires-Dist: uvloop" in metadata


def test_a_build_tells_how_far_it_is(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    command += ["--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "objects")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYXBROKER_MODULES": "turn_watch,storage"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = re.findall(r"^pyxbroker: +(\d+) % of the modules: compiled (\S+)$", done.stdout, re.M)
    assert {name for _, name in told} == {"pyxbroker.storage", "pyxbroker.turn_watch"}
    assert told[-1][0] == "100"


def start_and_publish(python: Path, directory: Path) -> None:
    """A broker that is installed takes a message, outside of the tree, and stops when asked to."""
    command = [python.parent / "pyxbroker", "standalone", "--data", directory / "data"]
    output = directory / "output.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command), "--broker-port", "0", "--web-port", "0"],
            cwd=directory,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdout=file,
            stderr=file,
        )
    try:
        with RawConnection(port_of(process, output)) as one:
            one.producer(TOPIC)
            one.send(b"from a wheel", 7)
            assert one.expect(wire.SEND_RECEIPT).number(2) == 7
            assert one.subscribe(TOPIC).type == wire.SUCCESS
            one.flow(1)
            assert wire.parse_payload(one.wait_for(wire.MESSAGE).rest).body == b"from a wheel"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def port_of(process: subprocess.Popen[bytes], output: Path) -> int:
    """The port that the broker says it took."""
    for _ in range(int(START_S * 20)):
        found = LISTENS.search(output.read_text())
        if found is not None:
            return int(found[1])
        assert process.poll() is None, output.read_text()
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"no port after {START_S} s: {output.read_text()}")


def installed(wheel: Path, python: str, directory: Path) -> Path:
    """The Python of a fresh environment with the wheel, and what it asks for from PyPI."""
    run(python, "-m", "venv", directory)
    fresh = directory / "bin" / "python"
    run(fresh, "-m", "pip", "install", "-q", wheel)
    where = run(fresh, "-c", "import pyxbroker; print(pyxbroker.__file__)", cwd=directory)
    assert where.startswith(str(directory)), where
    return fresh


def test_a_broker_starts_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    start_and_publish(installed(wheel, sys.executable, tmp_path / "venv"), tmp_path)


@pytest.mark.parametrize("version", OTHERS)
def test_a_broker_starts_on_the_oldest_and_the_newest_python(
    sdist: Path, tmp_path: Path, python_of: PythonOf, version: str
) -> None:
    python = python_of(version)
    wheel = wheel_of(sdist, python, tmp_path / "wheel")
    start_and_publish(installed(wheel, python, tmp_path / "venv"), tmp_path)


class PythonOf:
    """Finds the Python of a version that can build a package, or installs it for these tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, version: str) -> str:
        return next(filter(builds, places_of(version)), None) or self._from_uv(version)

    def _from_uv(self, version: str) -> str:
        """uv is a package of PyPI; the Pythons that it brings have their headers."""
        environment = self._directory / "uv"
        if not environment.exists():
            run(sys.executable, "-m", "venv", environment)
            run(environment / "bin" / "python", "-m", "pip", "install", "-q", "uv")
        uv, place = environment / "bin" / "uv", self._directory / "pythons"
        command = [uv, "python", "install", "--no-bin", "--install-dir", place, version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (
            f"Python {version} is not on this machine (on PATH, or of pyenv, with its headers), and"
            f" uv cannot fetch it: {done.stderr}"
        )
        (python,) = place.glob(f"cpython-{version}.*/bin/python{version}")
        return str(python)


@pytest.fixture(scope="module")
def python_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonOf]:
    directory = tmp_path_factory.mktemp("pythons")
    yield PythonOf(directory)
    shutil.rmtree(directory)


def places_of(version: str) -> list[str]:
    """Where a Python of this version may be."""
    found = [shutil.which(f"python{version}")]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += sorted(str(path) for path in versions.glob(f"{version}.*/bin/python{version}"))
    return [each for each in found if each is not None]


def builds(python: str) -> bool:
    """Whether it runs (pyenv's shims may not), makes environments and has C headers."""
    check = (
        "import ensurepip, sqlite3, ssl, sysconfig, venv, pathlib, sys;"
        "sys.exit(not pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())"
    )
    done = subprocess.run([python, "-c", check], capture_output=True, check=False)
    return done.returncode == 0

"""What `pip install pyxbroker` brings: sdist and wheels are whole, and a broker starts from them.

The wheels are those of `make wheel` for this machine's processor, on the oldest Python that is
supported and on the one that runs the tests. The newest Python builds the sdist from scratch. The
Pythons come from PATH or pyenv, else from uv, which is on PyPI and fetches them from GitHub. On a
machine that has them in none of these ways the test fails: a supported version is a tried one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pulsar
import pytest
from harness.wheels import (
    PLATFORMS,
    WHEEL_BYTES_MAX,
    WheelBuilder,
    WheelError,
    build_sdist,
    check_wheel,
    find_python,
    supported_versions,
)

pytestmark = pytest.mark.slow(120)

ROOT = Path(__file__).resolve().parent.parent
START_S = 60.0
LISTENS = re.compile(r"pulsar://[^ :]+:(\d+)[^$]*?http://[^ :]+:(\d+)")
X86_64 = next(each for each in PLATFORMS if each.tag == "manylinux_2_28_x86_64")
RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"


def clean_environment() -> dict[str, str]:
    """The variables without PYTHONPATH, by which the tree would hide what is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def environment_without_compiler() -> dict[str, str]:
    """The variables of a machine that has no compiler: whatever calls one fails."""
    return clean_environment() | {"PATH": "/nonexistent", "CC": "/bin/false", "CXX": "/bin/false"}


def run(*command: object, cwd: Path | None = None, without_compiler: bool = False) -> str:
    """What a command printed; its end with an error is the test's failure."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=environment_without_compiler() if without_compiler else clean_environment(),
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
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the first of several workers builds what all of them use."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packages"
    folder.mkdir(exist_ok=True)
    yield folder


@contextmanager
def alone(shared: Path) -> Iterator[None]:
    """Wait until no other worker builds in the folder."""
    with (shared / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def sdist(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the backend that pyproject.toml names, as every front end does it."""
    with alone(shared):
        for made in shared.glob("*.tar.gz"):
            return made
        source = tree_of_sources(tmp_path_factory.mktemp("source"))
        (source / "src" / "pyxbroker" / "commit.txt").write_text("0123456789ab\n")  # of a checkout
        return build_sdist(shared, source)


def wheel_of(sdist: Path, python: str, version: str) -> Path:
    """The wheel of a Python for this machine's processor."""
    shared = sdist.parent
    with alone(shared):
        for made in shared.glob(f"*-cp{version.replace('.', '')}-*.whl"):
            return made
        return WheelBuilder(sdist, shared / "work").build(python, X86_64, shared)


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    return wheel_of(sdist, sys.executable, RUNNING)


@pytest.fixture(scope="module")
def minimal(wheel: Path) -> Path:
    """The Python of an environment with the wheel, without extras, installed without a compiler."""
    folder = wheel.parent / "minimal"
    with alone(wheel.parent):
        if folder.exists():
            return folder / "bin" / "python"
        return installed(wheel, sys.executable, folder)


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
        sbom = json.loads(archive.read(next(name for name in names if "/sboms/" in name)))
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
    assert [name for name in names if name.endswith(leftovers) or "/test_" in name] == []
    assert b"Requires-Dist: uvloop" in metadata
    assert b"License-Expression: Apache-2.0" in metadata
    assert next(name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.name.endswith("-manylinux_2_28_x86_64.whl")
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == "pyxbroker"
    scopes = {each["name"]: each.get("scope") for each in sbom["components"]}
    assert {"Cython", "Zig"} <= set(scopes)
    assert (scopes["uvloop"], scopes["kazoo"]) == ("required", "optional")


def test_a_wheel_that_needs_a_newer_system_is_refused(wheel: Path, tmp_path: Path) -> None:
    """The tree's own module is built for this machine, and has its lines for a debugger."""
    (module,) = (ROOT / "src" / "pyxbroker").glob(
        f"_native.cpython-{RUNNING.replace('.', '')}-*.so"
    )
    refused = tmp_path / wheel.name
    shutil.copy(wheel, refused)
    with zipfile.ZipFile(refused, "a") as archive:
        archive.write(module, f"pyxbroker/{module.name}")
    with pytest.raises(WheelError, match=r"does not confirm|is not stripped"):
        check_wheel(refused, X86_64)


def test_only_wheels_for_musl_do_without_re2(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path]
    written = tmp_path / "pyxbroker.egg-info" / "requires.txt"
    run(*command, cwd=ROOT)
    assert "google-re2" in written.read_text().partition("[")[0]
    run("env", "CC=zig cc -target x86_64-linux-musl", *command, cwd=ROOT)
    assert "uvloop" in written.read_text() and "google-re2" not in written.read_text()


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


@contextmanager
def running(python: Path, directory: Path) -> Iterator[tuple[int, int]]:
    """A broker that is installed, outside of the tree; its ports. It stops when asked to."""
    command = [python.parent / "pyxbroker", "standalone", "--data", directory / "data"]
    output = directory / "output.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command), "--broker-port", "0", "--web-port", "0"],
            cwd=directory,
            env=environment_without_compiler(),
            stdout=file,
            stderr=file,
        )
    try:
        yield ports_of(process, output)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def ports_of(process: subprocess.Popen[bytes], output: Path) -> tuple[int, int]:
    """The ports that the broker says it took."""
    for _ in range(int(START_S * 20)):
        found = LISTENS.search(output.read_text())
        if found is not None:
            return int(found[1]), int(found[2])
        assert process.poll() is None, output.read_text()
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"no ports after {START_S} s: {output.read_text()}")


def start_and_publish(python: Path, directory: Path) -> None:
    """The official client publishes one message to an installed broker, and receives it."""
    with running(python, directory) as (port, _):
        client = pulsar.Client(f"pulsar://127.0.0.1:{port}")
        try:
            consumer = client.subscribe("packaged", "one")
            client.create_producer("packaged").send(b"from a wheel")
            assert consumer.receive(timeout_millis=30_000).data() == b"from a wheel"
        finally:
            client.close()


def installed(package: Path, python: str, directory: Path, *, compiles: bool = False) -> Path:
    """The Python of a fresh environment with the package, and what it asks for from PyPI."""
    run(python, "-m", "venv", directory)
    fresh = directory / "bin" / "python"
    run(fresh, "-m", "pip", "install", "-q", package, without_compiler=not compiles)
    where = run(fresh, "-c", "import pyxbroker; print(pyxbroker.__file__)", cwd=directory)
    assert where.startswith(str(directory)), where
    return fresh


def test_a_broker_starts_from_the_wheel(minimal: Path, tmp_path: Path) -> None:
    start_and_publish(minimal, tmp_path)


def test_a_broker_starts_on_the_oldest_python(
    sdist: Path, tmp_path: Path, python_of: PythonOf
) -> None:
    oldest = supported_versions()[0]
    python = python_of(oldest)
    wheel = wheel_of(sdist, python, oldest)
    start_and_publish(installed(wheel, python, tmp_path / "venv"), tmp_path)


def test_the_newest_python_builds_the_sdist_from_scratch(
    sdist: Path, tmp_path: Path, python_of: PythonOf
) -> None:
    python = python_of(supported_versions()[-1])
    start_and_publish(installed(sdist, python, tmp_path / "venv", compiles=True), tmp_path)


def test_without_extras_the_first_steps_of_the_readme_work(minimal: Path, tmp_path: Path) -> None:
    listed = json.loads(run(minimal, "-m", "pip", "list", "--format=json"))
    names = {each["name"].lower() for each in listed}
    assert names.isdisjoint(
        {"pyjwt", "cryptography", "bcrypt", "kazoo", "pyspark", "pulsar-client"}
    )
    with running(minimal, tmp_path) as (port, web_port):
        retention = Request(
            f"http://127.0.0.1:{web_port}/admin/v2/namespaces/public/default/retention",
            b'{"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}',
            {"Content-Type": "application/json"},
        )
        with urlopen(retention) as answer:
            assert answer.status == 204
        client = pulsar.Client(f"pulsar://127.0.0.1:{port}")
        consumer = client.subscribe("orders", "billing", pulsar.ConsumerType.Shared)
        client.create_producer("orders").send(b"order 0")
        consumer.acknowledge(consumer.receive(timeout_millis=30_000))
        client.close()
        for path in (
            "admin/v2/brokers/health",
            "lookup/v2/topic/persistent/public/default/orders",
            "metrics/",
        ):
            with urlopen(f"http://127.0.0.1:{web_port}/{path}") as answer:
                assert answer.status == 200
    assert "archive" in run(minimal.parent / "pyxbroker", "pipeline", "list", without_compiler=True)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "standalone --metadata zk:127.0.0.1:1 --data data",
            "The metadata store 'zk:127.0.0.1:1' needs the package kazoo, which is not installed:"
            " pip install 'pyxbroker[zookeeper]'.",
        ),
        (
            "initialize-cluster-metadata --cluster c --metadata-store zk:127.0.0.1:1"
            " --configuration-metadata-store zk:127.0.0.1:1 --web-service-url http://c:8080",
            "The cluster is not initialized: The metadata store 'zk:127.0.0.1:1' needs the package"
            " kazoo, which is not installed: pip install 'pyxbroker[zookeeper]'.",
        ),
        (
            "standalone --data data --set authenticationEnabled=true"
            " --set authenticationProviders="
            "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
            " --set tokenSecretKey=data:;base64,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "AuthenticationProviderToken needs the package PyJWT, which is not installed:"
            " pip install 'pyxbroker[auth]'.",
        ),
        (
            "standalone --data data --set authenticationEnabled=true"
            " --set authenticationProviders="
            "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic"
            " --set basicAuthConf=users",
            "basicAuthConf (users), line 1: a hash of bcrypt needs the package bcrypt, which is not"
            " installed: pip install 'pyxbroker[auth]'.",
        ),
        (
            "standalone --data data --set brokerServicePortTls=0"
            " --set tlsEnabledWithKeyStore=true --set tlsKeyStore=users"
            " --set tlsKeyStorePassword=x",
            "tlsKeyStore (JKS): users is in PKCS12, which needs the package cryptography, which is"
            " not installed: pip install 'pyxbroker[auth]'.",
        ),
        (
            "tokens create --secret-key users --subject orders",
            "pyxbroker tokens create needs the package PyJWT, which is not installed:"
            " pip install 'pyxbroker[auth]'.",
        ),
        (
            "tokens create-key-pair --output-private-key a --output-public-key b",
            "pyxbroker tokens create-key-pair needs the package cryptography, which is not"
            " installed: pip install 'pyxbroker[auth]'.",
        ),
    ],
)
def test_what_needs_an_extra_names_it(
    minimal: Path, tmp_path: Path, command: str, sentence: str
) -> None:
    (tmp_path / "users").write_text(f"alice:$2y$05${'O' * 53}\n")
    if command.startswith("standalone"):
        command += " --broker-port 0 --web-port 0"
    done = subprocess.run(
        [minimal.parent / "pyxbroker", *command.split()],
        cwd=tmp_path,
        env=environment_without_compiler(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done
    assert done.stderr.splitlines()[-1] == f"pyxbroker: {sentence}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("tool", ["pipx", "uv"])
def test_pipx_and_uvx_run_the_wheel(wheel: Path, tmp_path: Path, tool: str) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "-q", tool)
    if tool == "pipx":
        command = ["env", f"PIPX_HOME={tmp_path}", programs / "pipx", "run", "--spec", wheel]
    else:
        command = [programs / "uvx", "--python", sys.executable, "--from", wheel]
    printed = run(*command, "pyxbroker", "version", cwd=tmp_path)
    assert "0123456789ab" in printed


class PythonOf:
    """Finds the Python of a version that can build a package, or installs it for these tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, version: str) -> str:
        return find_python(version) or self._from_uv(version)

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

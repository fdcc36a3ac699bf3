"""Builds what is not plain Python: the protobuf descriptor set, `pyxbroker._native` (C11), and
one extension module for each `src/pyxbroker/*.pyx`.

Everything is incremental: only a module whose sources, headers or flags changed is compiled again.

Environment:
  PYXBROKER_SANITIZE=address,undefined   build with these sanitizers, frame pointers and -O1
  PYXBROKER_WERROR=1                     warnings in our own C are errors
  PYXBROKER_MODULES=_native,frames       build only these extension modules (none: no one)
  PYXBROKER_SBOM=FILE                    a bill of materials that goes into the wheel
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import IO, NoReturn

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# setuptools hands paths on to the compiler as they are, so they stay relative to this folder.
os.chdir(Path(__file__).resolve().parent)

PACKAGE = Path("src/pyxbroker")
NATIVE = Path("src/bookie_native")
PROTO = Path("proto")
BUILD = Path("build")
COMMIT = PACKAGE / "commit.txt"
DESCRIPTORS = PACKAGE / "proto" / "descriptors.bin"

# What the README needs.
REQUIREMENTS = [
    "cramjam>=2.8",
    "fastavro>=1.9",
    "httptools>=0.6.4",
    "orjson>=3.9",
    "protobuf>=5.26",
    "uvloop>=0.19",
]
# google-re2 has no wheels for musl, and no environment marker names the C library. Without it,
# clients evaluate topic patterns.
if "musl" not in f"{sysconfig.get_config_var('HOST_GNU_TYPE')} {os.environ.get('CC')}":
    REQUIREMENTS.append("google-re2>=1.1")

CYTHON_DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
    "binding": False,
}


def _fail(sentence: str) -> NoReturn:
    """Ends the build with one sentence that says what to do, and no traceback."""
    sys.stdout.flush()
    raise SystemExit(f"pyxbroker: {sentence}")


def _take_build_lock() -> IO[str]:
    """Waits until no other build works in this tree; the lock lasts as long as this process."""
    BUILD.mkdir(exist_ok=True)
    lock = (BUILD / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _write_if_changed(path: Path, text: str) -> str:
    """Leaves the file's time alone when nothing changed, so that it can be a dependency."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(path)


def note_commit() -> None:
    """Writes which commit is built, for `pyxbroker version`. An sdist brings the file with it."""
    if not Path(".git").exists():
        return
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return  # without git nobody knows
    _write_if_changed(COMMIT, found.stdout)


def compile_descriptors() -> None:
    """Compiles proto/*.proto to one serialized FileDescriptorSet, unless it is up to date."""
    sources = sorted(PROTO.glob("*.proto"))
    if not sources:
        return
    names = " ".join(source.name for source in sources)
    listing = _write_if_changed(BUILD / "proto-files.txt", names)
    newest = max(Path(path).stat().st_mtime_ns for path in [*sources, listing])
    if DESCRIPTORS.exists() and DESCRIPTORS.stat().st_mtime_ns >= newest:
        return
    DESCRIPTORS.parent.mkdir(parents=True, exist_ok=True)
    unfinished = BUILD / "descriptors.tmp"
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        f"--proto_path={PROTO}",
        "--include_imports",
        f"--descriptor_set_out={unfinished}",
        *[source.name for source in sources],
    ]
    if subprocess.run(command, check=False).returncode != 0:
        _fail("protoc could not compile proto/*.proto; its message is above.")
    shutil.move(unfinished, DESCRIPTORS)


def _flags() -> tuple[list[str], list[str]]:
    """The compiler's and the linker's flags that every extension module shares.

    Of what a debugger wants to know there are the lines, which take a quarter less time to compile
    than all of it: stacks have their names and lines.
    """
    sanitizers = os.environ.get("PYXBROKER_SANITIZE", "")
    if not sanitizers:
        return ["-O3", "-g1", "-fno-plt"], []
    sanitize = f"-fsanitize={sanitizers}"
    return ["-O1", "-g1", "-fno-omit-frame-pointer", sanitize], [sanitize]


def extension_modules() -> list[Extension]:
    """The C module and one module for each .pyx that exists."""
    compile_args, link_args = _flags()
    wanted = [name for name in os.environ.get("PYXBROKER_MODULES", "").split(",") if name]
    own_args = ["-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden"]
    if os.environ.get("PYXBROKER_WERROR"):
        own_args.append("-Werror")
    native_sources = sorted(str(path) for path in NATIVE.glob("*.c"))
    flags = " ".join([*compile_args, *own_args, *native_sources])
    # One file per kind of build, so that `make asan` does not make `make build` start again.
    variant = re.sub(r"\W+", "-", os.environ.get("PYXBROKER_SANITIZE", "") + own_args[-1])
    depends = [_write_if_changed(BUILD / f"flags{variant}.txt", flags)]
    depends += sorted(str(path) for path in NATIVE.glob("*.h"))
    modules = []
    if native_sources:
        modules.append(
            Extension(
                "pyxbroker._native",
                native_sources,
                include_dirs=[str(NATIVE)],
                extra_compile_args=compile_args + own_args,
                extra_link_args=[*link_args, "-pthread"],
                depends=depends,
            )
        )
    for source in sorted(PACKAGE.glob("*.pyx")):
        modules.append(
            Extension(
                f"pyxbroker.{source.stem}",
                [str(source)],
                include_dirs=[str(NATIVE), str(PACKAGE)],
                extra_compile_args=[*compile_args, "-D_GNU_SOURCE", "-Wno-unused-function"],
                extra_link_args=link_args,
                depends=depends,
            )
        )
    return [each for each in modules if not wanted or each.name.split(".")[-1] in wanted]


def _is_cython(module: Extension) -> bool:
    return any(source.endswith(".pyx") for source in module.sources)


class Progress:
    """Prints a line for each file that was built, with the share of the build that is done.

    Weights are sizes of sources. Files that were up to date count, and have no line.
    """

    # How long a byte of Cython takes to be translated and compiled, beside one of C to be compiled.
    TRANSLATION = 3
    COMPILATION = 9

    def __init__(self, modules: list[Extension]) -> None:
        self._weights: dict[tuple[str, str], int] = {}
        for each in modules:
            size = sum(Path(source).stat().st_size for source in each.sources)
            if _is_cython(each):
                self._weights["translated", each.name] = self.TRANSLATION * size
                size *= self.COMPILATION
            self._weights["compiled", each.name] = size
        self._done = 0
        self._lock = threading.Lock()

    def step(self, what: str, module: str, built: Path, before: int) -> None:
        """Counts a step that makes the file `built`, which was of the time `before`."""
        with self._lock:
            self._done += self._weights[what, module]
            if _time_of(built) != before:
                share = 100 * self._done // sum(self._weights.values())
                print(f"pyxbroker: {share:3} % of the modules: {what} {module}", flush=True)


def _time_of(path: Path) -> int:
    """When a file was written, in ns; 0 where there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


class BuildExtensions(build_ext):
    """Translates Cython to C under build/, then compiles what changed, two modules at a time."""

    def finalize_options(self) -> None:
        self.distribution.ext_modules = extension_modules()
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        if self.extensions:  # else an installation goes on beside a build
            self._lock = _take_build_lock()
        compile_descriptors()
        self._progress = Progress(self.extensions)
        self._translate([each for each in self.extensions if _is_cython(each)])
        super().run()

    def _translate(self, modules: list[Extension]) -> None:
        """Replaces the .pyx among the modules' sources by the C that Cython makes of it."""
        if not modules:
            return
        try:
            from Cython.Build import cythonize
            from Cython.Compiler.Errors import CompileError
        except ImportError:
            _fail("Cython is needed to build; run `make build` or `pip install .`, which bring it.")
        try:
            for each in modules:
                made = BUILD / "cython" / Path(each.sources[0]).with_suffix(".c")
                before = _time_of(made)
                (translated,) = cythonize(
                    [each],
                    build_dir=str(BUILD / "cython"),
                    compiler_directives=CYTHON_DIRECTIVES,
                    include_path=["src"],
                    quiet=True,
                )
                each.sources = translated.sources
                self._progress.step("translated", each.name, made, before)
        except CompileError as error:
            _fail(f"Cython refused a module ({error}); its messages are above.")

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            _fail(
                f"a C compiler is needed and {compiler!r} was not found; install one"
                " (Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc)."
            )
        header = Path(sysconfig.get_path("include")) / "Python.h"
        if not header.exists():
            _fail(
                f"Python's C headers are needed and {header} does not exist; install them"
                " (Debian, Ubuntu: apt-get install python3-dev)."
            )
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        made = Path(self.get_ext_fullpath(ext.name))
        before = _time_of(made)
        super().build_extension(ext)
        self._progress.step("compiled", ext.name, made, before)


class BuildPython(build_py):
    """The descriptor set is package data, so it has to exist before the package is collected."""

    def run(self) -> None:
        compile_descriptors()
        super().run()


class BuildWheel(bdist_wheel):
    """Adds the bill of materials, at the place that PEP 770 names."""

    def write_wheelfile(self, wheelfile_base: str, *args: str) -> None:
        super().write_wheelfile(wheelfile_base, *args)
        sbom = os.environ.get("PYXBROKER_SBOM")
        if sbom:
            folder = Path(wheelfile_base, "sboms")
            folder.mkdir(exist_ok=True)
            shutil.copyfile(sbom, folder / "pyxbroker.cdx.json")


note_commit()
setup(
    install_requires=REQUIREMENTS,
    ext_modules=[Extension("pyxbroker._native", ["src/bookie_native/module.c"])],
    cmdclass={
        "bdist_wheel": BuildWheel,
        "build_ext": BuildExtensions,
        "build_py": BuildPython,
    },
)

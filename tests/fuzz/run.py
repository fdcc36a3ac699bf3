#!/usr/bin/env python3
"""Runs every fuzz target for some seconds: `python tests/fuzz/run.py --seconds 60 [--target NAME]`.

Targets are the files fuzz_*.py (Cython modules through their test faces, and what parses in Python)
and fuzz_*.c (the storage, libFuzzer) beside this one. The extension modules are built once more
with clang under ASan and UBSan with coverage counters, and atheris guides the inputs. Where clang
or atheris is missing, nothing runs and the exit status is 2: `--plain` has to ask for less, which
is the Python targets over the modules as they are, with inputs by plain mutation.

Inputs that broke something are kept in build/fuzz/artifacts/TARGET; corpora grow in
build/fuzz/corpus/TARGET. The exit status is 1 when a target found something, 2 when one could not
be run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
BUILD = PROJECT / "build" / "fuzz"
NATIVE = PROJECT / "src" / "bookie_native"
NATIVE_TESTS = HERE.parent / "native"
SANITIZERS = "address,undefined"
PYTHON_MODULES = ("module.c", "module_faults.c")  # they need Python's headers, and no fuzzing
OVERTIME_SECONDS = 60  # for starting up, and for a last input that takes long
SHOWN_LINES = 40


class CannotRun(Exception):
    """A target could not be built or started; the sentence says why."""


class Engines(NamedTuple):
    """What targets run with."""

    clang: str
    python: str  # the engine of the targets in Python
    environment: dict[str, str]  # of those


def main() -> int:
    options = parse_options()
    targets = sorted([*HERE.glob("fuzz_*.py"), *([] if options.plain else HERE.glob("fuzz_*.c"))])
    if options.target:
        targets = [each for each in targets if options.target in each.stem]
    if not targets:
        print(f"fuzz: no target is named {options.target}", file=sys.stderr)
        return 2
    try:
        engines = find_engines(options.plain)  # builds what the targets share
    except CannotRun as error:
        print(f"fuzz: cannot run: {error}", file=sys.stderr)
        return 2
    if options.build:
        return 0

    def attempt(target: Path) -> int:
        try:
            return run_target(target, engines, options)
        except CannotRun as error:
            print(f"fuzz {target.stem}: cannot run: {error}", flush=True)
            return 2

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(attempt, targets))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the fuzz targets.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--target", help="only targets whose name has this in it")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument("--build", action="store_true", help="only build what the targets share")
    parser.add_argument(
        "--plain", action="store_true", help="without sanitizers and guidance, and no targets in C"
    )
    return parser.parse_args()


def run_target(target: Path, engines: Engines, options: argparse.Namespace) -> int:
    """Runs one target and prints a line about it; 0 when it found nothing, else 1."""
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31 - 1) + 1
    artifacts = BUILD / "artifacts" / target.stem
    corpus = BUILD / "corpus" / target.stem
    for each in (artifacts, corpus):
        each.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".py":
        engine, environment = engines.python, engines.environment
        command = [
            *(sys.executable, str(target), f"--engine={engine}", f"--seconds={options.seconds}"),
            *(f"--corpus={corpus}", f"--artifacts={artifacts}", f"--seed={seed}"),
        ]
    else:
        engine, environment = "libFuzzer", dict(os.environ)
        command = [
            *(str(build_native(target, engines.clang)), f"-max_total_time={options.seconds}"),
            *(f"-artifact_prefix={artifacts}/", f"-seed={seed}", "-print_final_stats=1"),
            str(corpus),
        ]
    started = time.monotonic()
    status, output = run_limited(command, environment, options.seconds + OVERTIME_SECONDS)
    took = time.monotonic() - started
    runs = re.search(r"stat::number_of_executed_units: +(\d+)", output)
    # A target that ran nothing has shown nothing, whatever its status says.
    passed = status == 0 and runs is not None and int(runs.group(1)) > 0
    print(
        f"fuzz {target.stem}: {'ok' if passed else 'FAILED'}, {engine}, seed {seed},"
        f" {runs.group(1) if runs else 'no'} inputs in {took:.0f} s"
        f" ({int(runs.group(1)) / took if runs else 0:.0f}/s){coverage(output)}",
        flush=True,
    )
    if passed:
        return 0
    print("\n".join(output.splitlines()[-SHOWN_LINES:]))
    print(f"fuzz {target.stem}: exit status {status}; its inputs are in {shown(artifacts)}")
    return 1


def coverage(output: str) -> str:
    found = re.findall(r"cov: (\d+) ft: (\d+)", output)
    return f", {found[-1][0]} edges, {found[-1][1]} features" if found else ""


def shown(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def run_limited(
    command: list[str], environment: dict[str, str], seconds: int
) -> tuple[int | str, str]:
    """Exit status (or what ended it) and the output of a program that must end by itself."""
    try:
        run = subprocess.run(
            command,
            env=environment,
            cwd=PROJECT,
            timeout=seconds,
            check=False,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return f"none: it did not end within {seconds} s", text
    return run.returncode, run.stdout


# --- building -----------------------------------------------------------------------------------


def find_engines(plain: bool) -> Engines:
    """What is there to run targets with, and the modules built for it. Raises CannotRun."""
    if plain:
        return Engines("", "plain", dict(os.environ))
    name = os.environ.get("CLANG", "clang")
    clang = shutil.which(name)
    if clang is None:
        raise CannotRun(f"there is no {name}; install clang, set CLANG, or say --plain.")
    atheris = importlib.util.find_spec("atheris")
    if atheris is None or atheris.origin is None:
        raise CannotRun("there is no atheris for this Python; install it, or say --plain.")
    runtime = Path(atheris.origin).parent.parent / "asan_with_fuzzer.so"
    if not runtime.exists():
        raise CannotRun(f"this atheris has no {runtime.name}; install another, or say --plain.")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(runtime),
        "PYTHONPATH": str(build_modules(clang)),
        # Python's own allocator would hide reads past the end of an input from ASan.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    return Engines(clang, "atheris", environment)


def build_modules(clang: str) -> Path:
    """Builds the extension modules under the sanitizers, with coverage counters."""
    library = BUILD / "lib"
    build(
        [
            *(sys.executable, "setup.py", "-q", "build"),
            *(f"--build-lib={library}", f"--build-temp={BUILD / 'objects'}"),
        ],
        CC=clang,
        PYXBROKER_SANITIZE=f"{SANITIZERS},fuzzer-no-link",
    )
    return library


def build_native(target: Path, clang: str) -> Path:
    """Builds a target in C with the storage and what its tests share."""
    program = BUILD / target.stem
    sources = [each for each in sorted(NATIVE.glob("*.c")) if each.name not in PYTHON_MODULES]
    # The test_*.c and bench_*.c have a main of their own; the rest is what they share.
    shared = [
        each
        for each in sorted(NATIVE_TESTS.glob("*.c"))
        if not each.name.startswith(("test_", "bench_", "memory"))
    ]
    program.parent.mkdir(parents=True, exist_ok=True)
    build(
        [
            *(clang, "-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer"),
            f"-fsanitize=fuzzer,{SANITIZERS}",
            "-fno-sanitize-recover=all",
            *(f"-I{NATIVE}", f"-I{NATIVE_TESTS}"),
            *map(str, [*sources, *shared, target]),
            *("-o", str(program), "-pthread"),
        ]
    )
    return program


def build(command: list[str], **variables: str) -> None:
    run = subprocess.run(
        command,
        cwd=PROJECT,
        env={**os.environ, **variables},
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if run.returncode != 0:
        raise CannotRun(f"it could not be built:\n{run.stdout}")


if __name__ == "__main__":
    sys.exit(main())

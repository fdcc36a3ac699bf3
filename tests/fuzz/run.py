#!/usr/bin/env python3
"""Runs every fuzz target for some seconds: `python tests/fuzz/run.py --seconds 60 [--target NAME]`,
or until nothing new comes: `--cpu-minutes 60 [--calm-minutes 15] [--jobs 1]` (see saturation.py).

Targets are the files fuzz_*.py (Cython modules through their test faces, and what parses in Python)
and fuzz_*.c (the storage, libFuzzer) beside this one. The extension modules are built once more
with clang under ASan and UBSan with coverage counters, and atheris guides the inputs. Where clang
or atheris is missing, nothing runs and the exit status is 2: `--plain` has to ask for less, which
is the Python targets over the modules as they are, with inputs by plain mutation.

Inputs that broke something are kept in build/fuzz/artifacts/TARGET; corpora grow in
build/fuzz/corpus/TARGET. With --cpu-minutes the CPU of all such runs is added up, one that was cut
goes on where it was, and what was found before is tried first. The exit status is 1 when a target
found something, 2 when one could not be run, or was cut before it was done.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from saturation import Goal, Program, Progress, digest, saturate, table

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
BUILD = PROJECT / "build" / "fuzz"
NATIVE = PROJECT / "src" / "bookie_native"
NATIVE_TESTS = HERE.parent / "native"
SANITIZERS = "address,undefined"
PYTHON_MODULES = ("module.c", "module_faults.c")  # they need Python's headers, and no fuzzing
OVERTIME_SECONDS = 60  # for starting up, and for a last input that takes long
SHOWN_LINES = 40

cut = threading.Event()  # somebody ended us: what is known of --cpu-minutes is kept


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
        targets = [each for each in targets if any(name in each.stem for name in options.target)]
    if not targets:
        print(f"fuzz: no target is named {' or '.join(options.target)}", file=sys.stderr)
        return 2
    try:
        engines = find_engines(options.plain)  # builds what the targets share
    except CannotRun as error:
        print(f"fuzz: cannot run: {error}", file=sys.stderr)
        return 2
    if options.build:
        return 0

    run = run_target if options.cpu_minutes is None else saturate_target
    if options.cpu_minutes is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: cut.set())

    def attempt(target: Path) -> int:
        try:
            return run(target, engines, options)
        except CannotRun as error:
            print(f"fuzz {target.stem}: cannot run: {error}", flush=True)
            return 2

    with ThreadPoolExecutor(options.jobs) as pool:
        status = max(pool.map(attempt, targets))
    if options.cpu_minutes is not None:
        rows = [(each.stem.removeprefix("fuzz_"), Progress.load(kept_of(each))) for each in targets]
        print(table(rows, goal_of(options)))
    return status


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the fuzz targets.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument(
        "--cpu-minutes", type=float, help="instead: until a target has had so much CPU in all"
    )
    parser.add_argument(
        "--calm-minutes", type=float, default=15, help="and no new edge in its last ones (15)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at a time")
    parser.add_argument(
        "--target", action="append", help="only targets whose name has this in it (repeatable)"
    )
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument("--build", action="store_true", help="only build what the targets share")
    parser.add_argument(
        "--plain", action="store_true", help="without sanitizers and guidance, and no targets in C"
    )
    options = parser.parse_args()
    if options.plain and options.cpu_minutes is not None:
        parser.error("--plain knows no coverage, so nothing says when a target is done.")
    return options


def run_target(target: Path, engines: Engines, options: argparse.Namespace) -> int:
    """Runs one target and prints a line about it; 0 when it found nothing, else 1."""
    seed = seed_of(options)
    engine, artifacts = engine_of(target, engines), folder("artifacts", target)
    command, environment = command_of(target, engines, options.seconds, seed)
    started = time.monotonic()
    with temporary(environment) as environment:
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


def saturate_target(target: Path, engines: Engines, options: argparse.Namespace) -> int:
    """Runs one target until it is done; 0 then, 1 when it found something, 2 when it was cut."""
    if cut.is_set():
        return 2
    artifacts, corpus = folder("artifacts", target), folder("corpus", target)
    for each in artifacts.iterdir():
        shutil.copyfile(each, corpus / f"found-{each.name}")
    seed, goal = seed_of(options), goal_of(options)
    command, environment = command_of(target, engines, 0, seed)
    code = digest(*code_of(target, environment))
    with temporary(environment) as environment:
        ended = saturate(Program(command, environment, code), kept_of(target), goal, cut)
    progress = Progress.load(kept_of(target))
    if not ended.error:
        is_done = progress.is_done(goal)
        print(f"fuzz {target.stem}: {'done' if is_done else 'cut'}, seed {seed}", flush=True)
        return 0 if is_done else 2
    print("\n".join(ended.output.splitlines()[-SHOWN_LINES:]))
    where = shown(artifacts)
    print(f"fuzz {target.stem}: {ended.error}, seed {seed}; its inputs are in {where}", flush=True)
    return 1


@contextlib.contextmanager
def temporary(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """An environment with a folder for temporary files, which libFuzzer does not tidy up."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as place:
        yield environment | {"TMPDIR": place}


def command_of(
    target: Path, engines: Engines, seconds: int, seed: int
) -> tuple[list[str], dict[str, str]]:
    """A target as a program, and its environment; 0 seconds: until it is ended.

    Those in C are built.
    """
    artifacts, corpus = folder("artifacts", target), folder("corpus", target)
    if target.suffix == ".py":
        command = [
            *(sys.executable, str(target), f"--engine={engines.python}", f"--seconds={seconds}"),
            *(f"--corpus={corpus}", f"--artifacts={artifacts}", f"--seed={seed}"),
        ]
        return command, engines.environment
    command = [
        *(str(build_native(target, engines.clang)), f"-max_total_time={seconds}"),
        *(f"-artifact_prefix={artifacts}/", f"-seed={seed}", "-print_final_stats=1"),
        str(corpus),
    ]
    return command, dict(os.environ)


def code_of(target: Path, environment: dict[str, str]) -> list[Path]:
    """Files and folders of the code that a target runs. Raises CannotRun."""
    if target.suffix != ".py":
        return [NATIVE, NATIVE_TESTS, target]
    command = [sys.executable, str(target), "--code"]
    run = subprocess.run(command, env=environment, check=False, text=True, capture_output=True)
    if run.returncode != 0 or not run.stdout:
        raise CannotRun(f"it does not tell its code:\n{run.stderr}")
    return [Path(line) for line in run.stdout.splitlines()]


def engine_of(target: Path, engines: Engines) -> str:
    return engines.python if target.suffix == ".py" else "libFuzzer"


def seed_of(options: argparse.Namespace) -> int:
    return options.seed if options.seed is not None else secrets.randbelow(2**31 - 1) + 1


def goal_of(options: argparse.Namespace) -> Goal:
    return Goal(60 * options.cpu_minutes, 60 * options.calm_minutes)


def folder(kind: str, target: Path) -> Path:
    """Of a target's corpus or artifacts; it is made."""
    path = BUILD / kind / target.stem
    path.mkdir(parents=True, exist_ok=True)
    return path


def kept_of(target: Path) -> Path:
    """How far a target has come."""
    return folder("corpus", target).with_suffix(".json")


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
            *(clang, "-std=gnu11", "-g1", "-O1", "-fno-omit-frame-pointer"),
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

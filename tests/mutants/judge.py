"""What becomes of a mutant: its module is built, then the tests run that should notice it, the
nearest first, each with a limit of time.

A test that fails is run once more alone, since some fail on a busy machine now and then: only what
fails twice has noticed something.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mutants.draw import Mutant
from mutants.reach import NO_JUDGES, Reach, folder_of, pytest_command
from mutants.trees import LIMITED, LIMITED_BY_ASAN, Run, Tree

KILLED, SURVIVED, NOT_COMPILED = "killed", "survived", "did not compile"
NATIVE_TESTS = ("sh", "tests/native/build.sh")
# The variants, and their limits. What the second one alone notices is the use of freed memory.
VARIANTS = {"plain": LIMITED, "asan": LIMITED_BY_ASAN}
OF_ASAN = {"ASAN_OPTIONS": "hard_rss_limit_mb=12288"}
NO_TEST = "no_test_has_this_name"
NATIVE_BUILD_SECONDS_MAX = 600
NOT_IN_NATIVE_TESTS = ("module.c", "module_faults.c")
FALSE_ALARMS_MAX = 5
DEEP = (
    ["compat_tests"],
    ["torture/test_torture.py", "torture/test_errors.py", "torture/test_hostile.py"],
)
DEEP_SECONDS_MAX = 1800

RESULT = re.compile(r"^(\S+\.py::.+?) (PASSED|FAILED|ERROR)\b", re.MULTILINE)
STARTED = re.compile(r"^(\S+\.py::.+?) *(?:Fatal Python error.*)?$", re.MULTILINE)
NOT_IMPORTED = re.compile(
    r"^(?:ERROR|_+ ERROR) collecting (\S+)|^ERROR (\w*tests/\S+)", re.MULTILINE
)


@dataclass(frozen=True)
class Outcome:
    what: str
    by: str = ""  # the first test that failed
    how: str = ""  # when it did not just fail
    stages: str = ""  # what was run
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Judge:
    def __init__(self, tree: Tree, reach: Reach, only_near: bool = False, deep: bool = False):
        self._tree = tree
        self._reach = reach
        self._only_near = only_near
        self._deep = deep
        self._native_seconds_max = dict.fromkeys(VARIANTS, 0.0)

    def prepare(self) -> None:
        """Builds the tests in C, and sees how long they take when nothing is broken."""
        for variant in VARIANTS:
            self._run_native(variant, NATIVE_BUILD_SECONDS_MAX, NO_TEST)
            run = self._run_native(variant, NATIVE_BUILD_SECONDS_MAX)
            if run.status != 0:
                text = run.output[-4000:]
                raise SystemExit(f"mutants: the tests in C fail as they are ({variant}):\n{text}")
            self._native_seconds_max[variant] = 60 + 4 * run.seconds

    def judge(self, mutant: Mutant) -> Outcome:
        start = time.monotonic()
        self._tree.plant(mutant)
        try:
            outcome = self._outcome(mutant)
        finally:
            self._tree.restore()
        seconds = round(time.monotonic() - start, 1)
        return Outcome(outcome.what, outcome.by, outcome.how, outcome.stages, seconds)

    def _outcome(self, mutant: Mutant) -> Outcome:
        stages = []
        if mutant.language == "c" and Path(mutant.path).name not in NOT_IN_NATIVE_TESTS:
            for variant in VARIANTS:
                stages.append(f"native {variant}")
                found = self._native(variant)
                if found is not None:
                    return found
        if not self._tree.build(mutant):
            return Outcome(NOT_COMPILED)
        near = self._reach.near(mutant)
        for name, tests in self._selections(mutant, near):
            stages.append(name)
            found = self._pytest(tests)
            if found is not None:
                return found
        for tests in DEEP if self._deep else ():
            stages.append(f"deep {folder_of(tests[0])}")
            found = self._pytest(tests, DEEP_SECONDS_MAX)
            if found is not None:
                return found
        return Outcome(SURVIVED, stages=", ".join(stages))

    def _selections(self, mutant: Mutant, near: list[str]) -> list[tuple[str, list[str]]]:
        stages = [("near", near), ("clients", self._reach.clients(mutant))]
        if not self._only_near and not self._reach.is_exact(mutant):
            stages.append(("all", self._reach.rest(near)))
        return [each for each in stages if each[1]]

    # --- the tests in C -----------------------------------------------------------------------

    def _run_native(self, variant: str, seconds_max: float, *only: str) -> Run:
        command = [*NATIVE_TESTS, variant, *only]
        changes = self._tree.compiler() | OF_ASAN
        return self._tree.run(command, seconds_max, changes, "FAILED ", VARIANTS[variant])

    def _native(self, variant: str) -> Outcome | None:
        run = self._run_native(variant, self._native_seconds_max[variant])
        if run.status == 0:
            return None
        failed = re.search(r"^FAILED +(.*)$", run.output, re.MULTILINE)
        if failed is not None:
            return Outcome(KILLED, f"tests/native: {failed[1]}")
        if run.status is None:
            done = re.findall(r"^ok +(\S+)", run.output, re.MULTILINE)
            return Outcome(
                KILLED, f"tests/native: after {done[-1] if done else '-'}", "time is over"
            )
        return Outcome(NOT_COMPILED)

    # --- pytest -------------------------------------------------------------------------------

    def _pytest(self, tests: list[str], seconds_max: float | None = None) -> Outcome | None:
        """Asks tests of one folder."""
        if seconds_max is None:
            seconds_max = 60 + 4 * self._reach.seconds_of(tests)
        passed_over = list(self._reach.failing)
        for _ in range(FALSE_ALARMS_MAX):
            run = self._run(tests, passed_over, seconds_max)
            if run.status in (0, 5):
                return None
            test, how = first_failure(run)
            if how or self._fails_again(test):
                return Outcome(KILLED, test, how)
            passed_over.append(test)
        return None

    def _run(self, tests: list[str], passed_over: list[str], seconds_max: float) -> Run:
        arguments = [*tests]
        for name in NO_JUDGES:
            arguments += ["--ignore", f"tests/{name}"]
        for test in passed_over:
            arguments += ["--deselect", test]
        path = self._tree.place / "build" / "pytest-arguments.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(arguments) + "\n")
        command = pytest_command(folder_of(tests[0]), "-x", f"@{path}")
        return self._tree.run(command, seconds_max)

    def _fails_again(self, test: str) -> bool:
        seconds_max = 60 + 4 * self._reach.seconds_of([test])
        return self._tree.run(pytest_command(folder_of(test), test), seconds_max).status != 0


def first_failure(run: Run) -> tuple[str, str]:
    """The test that failed first, and how when it did not simply fail."""
    results = {match[1].strip(): match[2] for match in RESULT.finditer(run.output)}
    for test, result in results.items():
        if result != "PASSED":
            return test, ""
    broken = NOT_IMPORTED.search(run.output)
    if broken is not None:
        return broken[1] or broken[2], "not imported"
    started = [match[1] for match in STARTED.finditer(run.output) if match[1] not in results]
    running = started[-1] if started else ""
    if run.status is None:
        return running, "time is over"
    if run.status < 0:
        return running, f"signal {-run.status}"
    if "conftest" in run.output or "ImportError" in run.output or "Traceback" in run.output:
        return running, "not imported"
    raise RuntimeError(f"pytest ended with {run.status}:\n{run.output[-4000:]}")

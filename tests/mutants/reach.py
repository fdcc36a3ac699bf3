"""What the tests reach: recorded from them for Python, a table for what is compiled.

The record is kept in build/mutants/reach.json by the name of each test file and a digest of it, so
that only tests that changed are recorded again. It says how long each test takes, too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mutants.draw import Mutant
from mutants.sources import Source
from mutants.trees import Tree

RECORD_SECONDS_MAX = 3600
RECORDED_TOGETHER = 12  # test files: a run that is cut goes on behind those that are kept
UNIT_TESTS, CLIENT_TESTS = "tests", "compat_tests"
# Which tests of a folder are asked. Of the files with real clients only a few are, see `clients`.
MARKS = {
    UNIT_TESTS: "not slow",
    CLIENT_TESTS: "not minutes and not spark",
    "torture": "not slow and not spark",
}
NO_TEST_IS_LEFT = 5  # pytest's status, when all have other marks
# Of the real clients' test files, as long as they take when nothing is broken.
CLIENT_SECONDS_MAX = 120.0
# They look at the text of the tree, and notice no bug or any change, or take too long.
NO_JUDGES = (
    "test_tidy.py",
    "test_claims.py",
    "test_native_arrows.py",
    "test_package.py",
    "test_mutants.py",
)

# The tests that are near each compiled module, without `tests/test_` and `.py`.
CYTHON = {
    "add_stats": "add_stats metrics",
    "ackset": "ackset chunked_messages batch_acks hostile_records cursor_ledger cursor dispatch",
    "avro_columns": "avro_columns without_memory",
    "bitmap": "ackset cursor_ledger cursor dispatch_models dispatch without_memory",
    "bookie_channel": "remote_bookie",
    "bookie_frames": "remote_bookie",
    "buffers": "buffers connection without_memory",
    "commands": "commands entry dispatch long_commands connection handshake refused_sends service",
    "compaction": "latest_messages without_memory compaction compacted_view",
    "connection": "connection turn liveness long_commands refused_sends publish_gate handshake"
    " dispatchers service without_memory",
    "delayed_index": "delayed delayed_delivery without_memory",
    "delivery": "dispatch dispatch_models ack_costs unacked_limits dispatchers read_trouble"
    " delayed_delivery chunked_messages batch_acks key_shared_dispatch many_consumers"
    " non_persistent",
    "entry_columns": "entry_columns avro_columns without_memory",
    "entry": "entry confirmed_runs embedded_bookie positions publish_steps managed_ledger"
    " without_memory",
    "frames": "frames connection",
    "hash_ranges": "selectors key_shared key_shared_dispatch without_memory",
    "keys": "key_shared key_shared_dispatch dispatch_models ack_costs without_memory",
    "load_generator": "load_generator",
    "metric_lines": "metric_lines metrics",
    "publish_checks": "policy_checks publish_steps",
    "quorum": "quorum entry ledger embedded_bookie managed_ledger without_memory",
    "storage": "entry embedded_bookie ledger read_trouble dispatch",
    "sequence_ids": "deduplication entry confirmed_runs publish_gate",
    "tls": "tls tls_connection connection",
    "turn": "turn connection watchers flow_costs",
    "turn_watch": "stalls metrics without_memory",
}
C = (
    "digest storage storage_start storage_bad_days storage_failure embedded_bookie"
    " garbage_collection lost_files entry ledger metrics"
)
# Those of real clients, without `compat_tests/test_` and `.py`. Spark alone has entries as columns.
CYTHON_CLIENTS = {
    "add_stats": "metrics",
    "ackset": "acknowledgement chunks redelivery",
    "avro_columns": "",
    "bitmap": "acknowledgement key_shared redelivery",
    "bookie_channel": "bookie_connection",
    "bookie_frames": "bookie_connection",
    "buffers": "backpressure codecs",
    "commands": "bad_input consumers encryption producers",
    "compaction": "compaction",
    "connection": "backpressure bad_input producers tls",
    "delayed_index": "delayed",
    "delivery": "acknowledgement consumers failover key_shared redelivery",
    "entry_columns": "",
    "entry": "codecs entry_metadata reading",
    "frames": "bad_input producers",
    "hash_ranges": "key_shared",
    "keys": "key_shared",
    "load_generator": "perf",
    "metric_lines": "metrics",
    "publish_checks": "encryption policy_limits producers schemas",
    "quorum": "full_disk restart",
    "storage": "read_errors reading",
    "sequence_ids": "deduplication",
    "tls": "certificate_refusals tls",
    "turn": "consumers producers",
    "turn_watch": "metrics",
}
C_CLIENTS = "full_disk read_errors reading restart"


class Reach:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._files = json.loads(path.read_text())
        self.seconds: dict[str, float] = {}
        self.failing: list[str] = []  # without any mutant: they judge nothing
        self._callers: dict[str, set[str]] = {}
        self._index()

    def _index(self) -> None:
        self.seconds, self.failing = {}, []
        callers: dict[str, set[str]] = defaultdict(set)
        for file, record in sorted(self._files.items()):
            for test, found in record["tests"].items():
                self.seconds[test] = found["seconds"]
                if not found["passed"]:
                    self.failing.append(test)
                for function in found["calls"]:
                    callers[function].add(test)
            for function in record["process"]:
                callers[function].add(file)
        self._callers = dict(callers)

    # --- recording ----------------------------------------------------------------------------

    def record(self, tree: Tree, jobs: int) -> None:
        """Runs the tests that are new or changed since they were recorded, in a copy."""
        digests = {
            path.relative_to(tree.place).as_posix(): hashlib.sha1(path.read_bytes()).hexdigest()
            for folder in (UNIT_TESTS, CLIENT_TESTS)
            for path in sorted((tree.place / folder).glob("test_*.py"))
            if path.name not in NO_JUDGES
        }
        known = {name for name, each in self._files.items() if each["digest"] == digests.get(name)}
        self._files = {name: self._files[name] for name in sorted(known)}
        for folder in (UNIT_TESTS, CLIENT_TESTS):
            stale = [name for name in digests if name not in known and folder_of(name) == folder]
            self._record_folder(tree, stale, digests, jobs)
        self._index()

    def _record_folder(
        self, tree: Tree, stale: list[str], digests: dict[str, str], jobs: int
    ) -> None:
        while stale:
            print(f"mutants: recording what {len(stale)} test files reach", flush=True)
            some, stale = stale[:RECORDED_TOGETHER], stale[RECORDED_TOGETHER:]
            self._files |= self._recorded(tree, some, digests, jobs)
            unfinished = self._path.with_suffix(".tmp")
            unfinished.write_text(json.dumps(self._files))
            unfinished.replace(self._path)

    def _recorded(
        self, tree: Tree, stale: list[str], digests: dict[str, str], jobs: int
    ) -> dict[str, dict[str, Any]]:
        folder = tree.place / "build" / "calls"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = tree.environment()["PYTHONPATH"]
        changes = {
            "MUTANTS_RECORD": str(folder),
            "PYTHONPATH": f"{path}:{tree.place / 'tests' / 'mutants' / 'hook'}",
        }
        # A broker that the tests of a file share is started once.
        spread = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
        command = pytest_command(folder_of(stale[0]), "-p", "mutants.recorder", *spread, *stale)
        run = tree.run(command, RECORD_SECONDS_MAX, changes)
        if run.status not in (0, 1, NO_TEST_IS_LEFT):
            raise SystemExit(f"mutants: the tests could not be recorded:\n{run.output[-4000:]}")
        result = self._read(tree, folder, stale, digests)
        failing = [
            test
            for record in result.values()
            for test, found in record["tests"].items()
            if not found["passed"]
        ]
        # Following the calls costs time, which some tests do not have.
        for test in failing:
            status = tree.run(pytest_command(folder_of(test), test), RECORD_SECONDS_MAX).status
            result[test.split("::")[0]]["tests"][test]["passed"] = status == 0
        return result

    @staticmethod
    def _read(
        tree: Tree, folder: Path, stale: list[str], digests: dict[str, str]
    ) -> dict[str, dict[str, Any]]:
        names = _Names(tree.place)
        result: dict[str, dict[str, Any]] = {
            name: {"digest": digests[name], "tests": {}, "process": []} for name in stale
        }
        of_process: dict[str, set[str]] = defaultdict(set)
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                try:
                    found = json.loads(line)
                except ValueError:
                    continue  # the last line of a process that was killed
                calls = {names.of(*each) for each in found["calls"]}
                if "test" not in found:
                    of_process[found["file"]] |= calls
                    continue
                result[found["test"].split("::")[0]]["tests"][found["test"]] = {
                    "seconds": found["seconds"],
                    "passed": found["passed"],
                    "calls": sorted(calls),
                }
        for name, functions in of_process.items():
            result[name]["process"] = sorted(functions)
        return result

    # --- who is asked -------------------------------------------------------------------------

    def near(self, mutant: Mutant) -> list[str]:
        """The tests that are asked first, a file after the other, the quickest files first."""
        module = Path(mutant.path).stem
        if mutant.language == "python":
            tests = (each for each in self._callers_of(mutant) if folder_of(each) == UNIT_TESTS)
            return self._by_file(tests, module)
        words = C if mutant.language == "c" else CYTHON.get(module, module)
        return self._quickest_first(self._files_of(UNIT_TESTS, words))

    def clients(self, mutant: Mutant) -> list[str]:
        """The files of tests with real clients that are asked then: the quickest ones, and one
        however long it takes. Most of them reach what every broker does."""
        module = Path(mutant.path).stem
        if mutant.language == "python":
            callers = {each.split("::")[0] for each in self._callers_of(mutant)}
            files = [each for each in callers if folder_of(each) == CLIENT_TESTS]
        else:
            words = C_CLIENTS if mutant.language == "c" else CYTHON_CLIENTS.get(module, "")
            files = self._files_of(CLIENT_TESTS, words)
        files = self._quickest_first(files)
        while len(files) > 1 and self.seconds_of(files) > CLIENT_SECONDS_MAX:
            files.pop()
        return files

    def _files_of(self, folder: str, words: str) -> list[str]:
        """Those that were recorded of a list of names."""
        files = [f"{folder}/test_{word}.py" for word in words.split()]
        return [each for each in files if each in self._files]

    def _callers_of(self, mutant: Mutant) -> set[str]:
        if self.is_exact(mutant):
            return self._callers.get(f"{mutant.path}::{mutant.function}", set())
        inside = f"{mutant.path}::"
        found: set[str] = set()
        for function, callers in self._callers.items():
            if function.startswith(inside) and function != inside:
                found |= callers
        return found

    def is_exact(self, mutant: Mutant) -> bool:
        """Whether no other test than those can notice it: it is in a Python function, and only who
        calls that can. What stands in a module or in a class is used by whoever imports it.
        """
        last = mutant.function.split(".")[-1].lstrip("_")
        return mutant.language == "python" and bool(last) and not last[0].isupper()

    def _by_file(self, tests: Iterable[str], module: str) -> list[str]:
        """The file that is named after the module first, then the quickest ones."""
        of_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests):
            of_file[test.split("::")[0]].append(test)
        for file, found in of_file.items():
            if file in found:
                of_file[file] = [file]
        own = f"tests/test_{module}.py"
        order = sorted(of_file, key=lambda file: (file != own, self.seconds_of(of_file[file])))
        return [test for file in order for test in _whole_tests(of_file[file])]

    def rest(self, near: Iterable[str]) -> list[str]:
        """All unit tests' files that are not asked as a whole already, the quickest first."""
        files = {each for each in self._files if folder_of(each) == UNIT_TESTS}
        return self._quickest_first(files - set(near))

    def _quickest_first(self, files: Iterable[str]) -> list[str]:
        return sorted(files, key=lambda file: (self.seconds_of([file]), file))

    def seconds_of(self, selection: Iterable[str]) -> float:
        """How long tests, or whole files, take when nothing is broken."""
        wanted = set(selection)
        return sum(
            seconds
            for test, seconds in self.seconds.items()
            if {test, test.split("[")[0], test.split("::")[0]} & wanted
        )


class _Names:
    """Functions by the place where they begin."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: dict[str, Source] = {}

    def of(self, file: str, line: int) -> str:
        source = self._sources.get(file)
        if source is None:
            path = Path(file)
            name = path.relative_to(self._root).as_posix()
            source = self._sources[file] = Source(name, path.read_text())
        return f"{source.path}::{source.function_at(line)}"


def _whole_tests(tests: list[str]) -> list[str]:
    """Without their parameters, whose names a command line may not take."""
    return list(dict.fromkeys(test.split("[")[0] for test in tests))


def folder_of(test: str) -> str:
    return test.split("/")[0]


def pytest_command(folder: str, *arguments: str) -> list[str]:
    """Runs tests of a folder."""
    plain = ["-v", "--tb=no", "-m", MARKS[folder], "-p", "no:randomly"]
    plain += ["-p", "no:pyxbroker"]  # its module is not in a tree that has only some modules
    return [sys.executable, "-u", "-m", "pytest", *plain, *arguments]

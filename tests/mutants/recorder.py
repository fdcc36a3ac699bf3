"""What each test calls, how long it takes, and whether it passes: a line of JSON for each test.

A pytest plugin: `-p mutants.recorder`, with MUTANTS_RECORD=FOLDER in the environment. A process
that a test starts is followed by `hook/sitecustomize.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from mutants.calls import follow


class Recorder:
    """The plugin."""

    def __init__(self, folder: Path, source: str) -> None:
        self._folder = folder
        self._source = source
        self._seen: dict[int, CodeType] = {}
        self._passed = True
        self._output = (folder / f"tests-{os.getpid()}.jsonl").open("a", buffering=1)

    def _on_code(self, code: CodeType) -> None:
        self._seen[id(code)] = code

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        test_file = item.nodeid.split("::")[0]
        os.environ["MUTANTS_CALLS"] = f"{self._folder}|{test_file}|{self._source}"
        self._seen, self._passed = {}, True
        follow(self._on_code)
        start = time.monotonic()
        result = yield
        seconds = time.monotonic() - start
        sys.settrace(None)
        calls = {(code.co_filename, code.co_firstlineno) for code in self._seen.values()}
        record = {
            "test": item.nodeid,
            "seconds": round(seconds, 3),
            "passed": self._passed,
            "calls": sorted(each for each in calls if each[0].startswith(self._source)),
        }
        self._output.write(json.dumps(record) + "\n")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and not report.failed


def pytest_configure(config: pytest.Config) -> None:
    folder = os.environ.get("MUTANTS_RECORD")
    if folder is not None:
        source = str(Path.cwd() / "src" / "pyxbroker") + os.sep
        config.pluginmanager.register(Recorder(Path(folder), source), "mutants-recorder")

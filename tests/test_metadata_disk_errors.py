"""The embedded store on a disk that fails: a process of its own, whose calls are made to fail.

What is answered is there after a kill, what is refused is refused with Unavailable, and no error of
the disk is taken for damage or for an absent node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.errors import Errors, build_errors

DATABASE = "metadata/metadata.db"
WAL = "metadata/metadata.db-wal"
CHANGES = "metadata.copies/*.changes"
COPIES = "metadata.copies/*.copy.tmp"

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.store import MetadataError

async def main():
    store = EmbeddedStore(Path(sys.argv[1]) / "metadata")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            if name == "put":
                result = (await store.put(arguments[0], arguments[1].encode())).version
            elif name == "fill":
                await asyncio.gather(*(store.put(f"/f/{n}", bytes(2000)) for n in range(1000)))
                result = None
            elif name == "get":
                node = await store.get(arguments[0])
                result = node and node.value.decode()
            elif name == "sleep":
                result = await asyncio.sleep(arguments[0])
            elif name == "make_copy":
                result = (await store.make_copy()).name
            elif name == "findings":
                result = [each.sentence for each in store.findings]
            else:
                result = await getattr(store, name)(*arguments)
        except MetadataError as error:
            result = [type(error).__name__, str(error)]
        print(json.dumps(result), flush=True)

asyncio.run(main())
"""


class Process:
    """A store in a process of its own; every call returns its answer."""

    def __init__(self, errors: Errors) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(errors.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **errors.environment()},
        )

    def __call__(self, *request: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_errors(tmp_path_factory.mktemp("errors"))


@pytest.fixture
def errors(library: Path, tmp_path: Path) -> Iterator[Errors]:
    (tmp_path / "data").mkdir()
    made = Errors(library, tmp_path / "data", tmp_path / "control")
    yield made
    made.close()


@pytest.fixture
def start(errors: Errors) -> Iterator[Any]:
    """Starts a store's process and opens it."""
    processes: list[Process] = []

    def new() -> Process:
        process = Process(errors)
        processes.append(process)
        assert process("open") is None
        return process

    yield new
    for process in processes:
        process.kill()


@pytest.mark.parametrize("call", ["sync", "write"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
def test_a_commit_that_the_disk_refuses_is_unavailable_and_the_store_goes_on(
    errors: Errors, start: Any, call: str, error: str
) -> None:
    """After a failed sync nothing but that transaction is in doubt: the next one is written over
    it, page by page.
    """
    store = start()
    store("put", "/a", "before")
    rule = errors.rule(WAL, call, error=error)
    kind, sentence = store("put", "/a", "refused")
    assert kind in ("Unavailable", "NoSpace") and "metadata.db" in sentence
    assert store("get", "/a") == "before"
    assert errors.hits(rule) >= 1
    errors.clear()
    assert store("put", "/a", "after") == 1
    assert store("put", "/b", "after") == 0
    store.kill()
    again = start()
    assert (again("get", "/a"), again("get", "/b")) == ("after", "after")
    assert again("findings") == []


def test_a_refused_commit_may_be_there_after_a_kill_but_not_by_halves(
    errors: Errors, start: Any
) -> None:
    store = start()
    store("put", "/a", "before")
    errors.rule(WAL, "sync", error="EIO")
    assert store("put", "/a", "refused")[0] == "Unavailable"
    store.kill()
    errors.clear()
    again = start()
    assert again("get", "/a") in ("before", "refused")
    assert again("findings") == []
    assert isinstance(again("put", "/a", "next"), int)


@pytest.mark.parametrize("is_first", [False, True], ids=["in the log", "at its beginning"])
@pytest.mark.parametrize("is_killed_refusing", [False, True], ids=["after", "meanwhile"])
def test_what_refused_commits_leave_in_the_log_is_no_damage(
    errors: Errors, start: Any, is_first: bool, is_killed_refusing: bool
) -> None:
    """Each shorter than the one before: the ends of all of them stay in the log."""
    store = start()
    store("put", "/a", "before")
    assert store("close") is None
    assert store("open") is None
    store("put", "/a", "first of this log")
    if is_first:
        store("sleep", 0.3)  # it is folded in when nobody waits
    errors.rule(WAL, "sync", error="EIO")
    for size in (30_000, 20_000, 10_000):
        assert store("put", f"/{size}", "x" * size)[0] == "Unavailable"
    if not is_killed_refusing:
        errors.clear()
        assert store("put", "/a", "after") == 2
    store.kill()
    errors.clear()
    again = start()
    assert again("findings") == []
    assert again("get", "/a") == ("first of this log" if is_killed_refusing else "after")


def test_an_error_of_a_read_is_neither_damage_nor_absence(errors: Errors, start: Any) -> None:
    store = start()
    store("fill")  # More than what a start reads.
    assert store("close") is None
    store.kill()
    store = start()
    rule = errors.rule(DATABASE, "read", error="EIO")
    answers = [store("get", f"/f/{number}") for number in range(0, 1000, 50)]
    assert errors.hits(rule) > 0
    refused = [answer for answer in answers if isinstance(answer, list)]
    assert {kind for kind, _ in refused} == {"Unavailable"}, refused[0]
    assert not [answer for answer in answers if answer is None]
    errors.clear()
    assert all(store("get", f"/f/{number}") == "\0" * 2000 for number in range(0, 1000, 50))
    assert store("findings") == []


@pytest.mark.parametrize("place", [DATABASE, WAL, CHANGES, "metadata.copies/"])
def test_a_start_waits_for_a_disk_that_fails_and_refuses_in_the_end(
    errors: Errors, start: Any, place: str
) -> None:
    store = start()
    store("put", "/a", "value")
    store.kill()
    before = {path: path.read_bytes() for path in errors.root.rglob("*") if path.is_file()}
    process = Process(errors)
    errors.rule(place, "open", "read", error="EIO")
    started = time.monotonic()
    kind, sentence = process("open")
    assert (kind, 2 <= time.monotonic() - started < 10) == ("Unavailable", True)
    assert str(errors.root) in sentence
    process.kill()
    errors.clear()
    for path, content in before.items():
        assert path.read_bytes() == content, path
    errors.rule(place, "open", "read", error="EIO", seconds=0.7)
    again = start()
    assert again("get", "/a") == "value"
    assert again("findings") == []


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_change_log_that_fails_costs_no_commit_and_begins_anew(
    errors: Errors, start: Any, call: str, error: str
) -> None:
    store = start()
    store("put", "/a", "value")
    rule = errors.rule(CHANGES, call, error=error)
    for number in range(20):
        assert store("put", "/n", str(number)) == number
    store("sleep", 0.3)
    assert errors.hits(rule) >= 1
    errors.clear()
    assert store("make_copy").endswith(".copy")
    assert store("put", "/n", "last") == 20
    store.kill()
    # The new records are whole: the database may go.
    (errors.root / DATABASE).write_bytes(b"gone" * 1000)
    again = start()
    assert (again("get", "/n"), again("get", "/a")) == ("last", "value")


def test_a_copy_that_fails_is_told_and_the_store_goes_on(errors: Errors, start: Any) -> None:
    store = start()
    store("put", "/a", "value")
    errors.rule(COPIES, "write", error="ENOSPC")
    assert store("make_copy")[0] == "NoSpace"
    assert store("put", "/a", "more") == 1
    errors.clear()
    assert store("make_copy").endswith(".copy")
    assert not list((errors.root / "metadata.copies").glob("*.tmp"))


def test_a_fold_that_fails_leaves_everything_in_the_log(errors: Errors, start: Any) -> None:
    store = start()
    rule = errors.rule(DATABASE, "write", "sync", error="EIO")
    for number in range(300):
        assert store("put", "/n", str(number)) == number
    assert errors.hits(rule) >= 1
    store.kill()
    errors.clear()
    again = start()
    assert again("get", "/n") == "299"
    assert again("findings") == []

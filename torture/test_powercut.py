"""The judge is judged: small programs whose losses are known, under the power-cut simulator."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.cut import Mode, UncoveredCall
from torture.simulator import Simulator, build_library

PRELUDE = """
import os, signal, sys, threading, mmap
def put(path, data, at=0, flags=0):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    os.pwrite(fd, data, at)
    return fd
def sync_folder(path="."):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""

Run = Callable[..., Simulator]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def run(library: Path, tmp_path: Path) -> Run:
    """Runs a program in the watched tree; it must end by its own SIGKILL."""
    simulator = Simulator(library, tmp_path / "tree")

    def execute(program: str, *, watched: bool = True) -> Simulator:
        source = PRELUDE + textwrap.dedent(program) + "\ndie()\n"
        environment = os.environ | (simulator.environment() if watched else {})
        done = subprocess.run(
            [sys.executable, "-c", source], cwd=simulator.root, env=environment, check=False
        )
        assert done.returncode == -9, "the program failed before its end"
        return simulator

    return execute


def cut(simulator: Simulator, mode: Mode = Mode.NOTHING, seed: int = 0) -> dict[str, bytes]:
    """Cut the power and return what is left."""
    simulator.cut(random.Random(seed), mode)
    root = simulator.root
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_synced_file_survives_and_an_unsynced_one_does_not(run: Run) -> None:
    simulator = run(
        """
        os.fsync(put("kept", b"a" * 1000)); put("lost", b"b" * 1000); sync_folder()
        """
    )
    assert cut(simulator) == {"kept": b"a" * 1000, "lost": b""}


def test_a_name_needs_the_sync_of_its_folder(run: Run) -> None:
    assert cut(run('os.fsync(put("file", b"data"))')) == {}


def test_a_folder_needs_the_sync_of_its_parent(run: Run) -> None:
    program = """
        os.mkdir("a"); os.mkdir("a/b"); os.fsync(put("a/b/f", b"1"))
        sync_folder("a/b"); sync_folder("a")
        """
    assert cut(run(program)) == {}
    assert cut(run(program + "\n        sync_folder('.')")) == {"a/b/f": b"1"}


def test_overwrites_go_back_to_the_synced_bytes(run: Run) -> None:
    run('put("file", b"0" * 4096)', watched=False)
    simulator = run(
        """
        fd = put("file", b"1" * 1000, 100); os.fdatasync(fd)
        os.pwrite(fd, b"2" * 500, 300); os.pwrite(fd, b"3" * 8192, 4000)
        """
    )
    assert cut(simulator) == {"file": b"0" * 100 + b"1" * 1000 + b"0" * 2996}


def test_appends_and_truncation_go_back(run: Run) -> None:
    run('put("grown", b"0" * 100); put("shrunk", b"1" * 3000)', watched=False)
    simulator = run(
        """
        fd = os.open("grown", os.O_WRONLY | os.O_APPEND); os.write(fd, b"x"); os.write(fd, b"y")
        os.truncate("shrunk", 7); open("shrunk", "ab").write(b"zz")
        """
    )
    assert cut(simulator) == {"grown": b"0" * 100, "shrunk": b"1" * 3000}


def test_opening_with_truncation_goes_back(run: Run) -> None:
    run('put("file", b"precious")', watched=False)
    assert cut(run('open("file", "wb").write(b"new")')) == {"file": b"precious"}


def test_rename_over_a_file_goes_back(run: Run) -> None:
    run('put("file", b"old")', watched=False)
    program = 'fd = put("new", b"new"); os.fsync(fd); os.rename("new", "file")'
    assert cut(run(program)) == {"file": b"old"}
    assert cut(run(program + "; sync_folder()")) == {"file": b"new"}


def test_rename_before_the_data_is_synced_leaves_an_empty_file(run: Run) -> None:
    simulator = run('put("new", b"new"); os.rename("new", "file"); sync_folder()')
    assert cut(simulator) == {"file": b""}


def test_unlink_goes_back(run: Run) -> None:
    run('put("file", b"old"); put("other", b"old")', watched=False)
    assert cut(run('os.unlink("file")')) == {"file": b"old", "other": b"old"}
    assert cut(run('os.unlink("file"); sync_folder(); os.unlink("other")')) == {"other": b"old"}


def test_direct_writes_alone_are_not_durable(run: Run) -> None:
    run('put("file", b"0" * 8192)', watched=False)
    program = """
        page = mmap.mmap(-1, 4096); page.write(b"1" * 4096)
        fd = os.open("file", os.O_RDWR | os.O_DIRECT%s); os.pwritev(fd, [page], 4096)
        """
    assert cut(run(program % "")) == {"file": b"0" * 8192}
    assert cut(run(program % " | os.O_DSYNC")) == {"file": b"0" * 4096 + b"1" * 4096}


def test_a_synchronous_write_survives_between_lost_ones(run: Run) -> None:
    run('put("file", b"0" * 4096)', watched=False)
    simulator = run(
        """
        fd = put("file", b"1" * 4096)
        os.close(put("file", b"2" * 512, 1024, os.O_DSYNC))
        os.pwrite(fd, b"3" * 512, 0)
        """
    )
    assert cut(simulator) == {"file": b"0" * 1024 + b"2" * 512 + b"0" * 2560}


def test_a_write_during_the_sync_is_not_covered_by_it(run: Run) -> None:
    simulator = run(
        """
        fd = put("file", b""); sync_folder()
        for number in range(50):
            os.pwrite(fd, b"a", number)
            os.fsync(fd)
        os.pwrite(fd, b"b", 50)
        """
    )
    assert cut(simulator) == {"file": b"a" * 50}


def test_threads_are_followed(run: Run) -> None:
    simulator = run(
        """
        def work(n):
            fd = put(f"f{n}", b"")
            for k in range(100):
                os.pwrite(fd, b"%d" % n, k)
            os.fsync(fd); os.pwrite(fd, b"x" * 50, 100)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        sync_folder()
        """
    )
    assert cut(simulator) == {f"f{n}": b"%d" % n * 100 for n in range(8)}


def test_a_random_prefix_is_kept_and_its_end_is_torn(run: Run) -> None:
    seen = set()
    for seed in range(25):
        run('fd = put("file", b"-" * 5120); os.ftruncate(fd, 5120)', watched=False)
        simulator = run(
            """
            fd = os.open("file", os.O_RDWR)
            for n in range(5): os.pwrite(fd, b"%d" % n * 1024, n * 1024)
            """
        )
        data = cut(simulator, Mode.PREFIX, seed)["file"]
        full = b"".join(b"%d" % n * 1024 for n in range(5))
        kept = len(data) - data.count(b"-")
        assert kept % 512 == 0, "torn at something else than a sector"
        assert data == full[:kept] + b"-" * (5120 - kept)
        seen.add(kept)
    assert len(seen) > 4, f"the moments are not random: {seen}"
    assert any(kept % 1024 for kept in seen), "nothing was ever torn"


def test_each_file_has_a_moment_of_its_own(run: Run) -> None:
    names = ("a", "b")
    seen = set()
    for seed in range(25):
        for name in names:
            run(f'fd = put("{name}", b"-" * 5120); os.ftruncate(fd, 5120)', watched=False)
        simulator = run(
            """
            files = [os.open(name, os.O_RDWR) for name in "ab"]
            for n in range(5):
                for fd in files: os.pwrite(fd, b"x" * 1024, n * 1024)
            """
        )
        left = cut(simulator, Mode.FILES, seed)
        kept = [len(left[name].rstrip(b"-")) for name in names]
        assert all(
            left[name] == b"x" * n + b"-" * (5120 - n) for name, n in zip(names, kept, strict=True)
        )
        seen.add((kept[0] > kept[1] + 1024, kept[1] > kept[0] + 1024))
    # Either may have kept what came long after the other's moment.
    assert {(True, False), (False, True)} <= seen


def test_sectors_are_kept_or_lost_one_by_one(run: Run) -> None:
    run('put("file", b"0" * 16384)', watched=False)
    data = cut(run('put("file", b"1" * 16384)'), Mode.SECTORS, 3)["file"]
    sectors = {data[at : at + 512] for at in range(0, 16384, 512)}
    assert sectors == {b"0" * 512, b"1" * 512}
    assert b"0" * 512 + b"1" * 512 in data and b"1" * 512 + b"0" * 512 in data


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("synchronous", ["FULL", "OFF"])
def test_sqlite_keeps_its_promise_and_only_that(run: Run, mode: Mode, synchronous: str) -> None:
    run(
        """
        import sqlite3
        db = sqlite3.connect("db"); db.execute("pragma journal_mode=wal")
        db.execute("create table t(n)"); db.execute("insert into t values(0)"); db.commit()
        """,
        watched=False,
    )
    simulator = run(
        f"""
        import sqlite3
        db = sqlite3.connect("db"); db.execute("pragma synchronous={synchronous}")
        for n in range(1, 41): db.execute("insert into t values(?)", (n,)); db.commit()
        """
    )
    simulator.cut(random.Random(5), mode)
    import sqlite3

    db = sqlite3.connect(simulator.root / "db")
    rows = [row[0] for row in db.execute("select n from t order by n")]
    db.close()
    assert rows == list(range(len(rows)))
    if synchronous == "FULL":
        assert len(rows) == 41
    elif mode is Mode.NOTHING:
        assert len(rows) < 41


def test_what_cannot_be_followed_is_reported(run: Run) -> None:
    simulator = run('os.close(put("a", b"1")); os.link("a", "b")')
    with pytest.raises(UncoveredCall, match="link"):
        cut(simulator)

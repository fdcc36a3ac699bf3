"""Judges the library of disk errors: small programs whose errors are known."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.errors import KINDS, Errors, build_errors

from torture.cut import Mode
from torture.simulator import Simulator, build_library

# What a program does is told by the errno names (or values) that it prints, one a line.
PRELUDE = """
import errno, mmap, os, sqlite3, sys, threading, time
def attempt(call, *arguments):
    try:
        value = call(*arguments)
        print(value if isinstance(value, int) else "ok", flush=True)
        return value
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
    except sqlite3.OperationalError as error:
        print(error, flush=True)
"""

Run = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_errors(tmp_path_factory.mktemp("library"))


@pytest.fixture
def errors(library: Path, tmp_path: Path) -> Iterator[Errors]:
    for folder in (
        "metadata",
        "bookie/journal",
        "bookie/ledgers",
        "bookie/current",
        "metadata.copies",
    ):
        (tmp_path / "data" / folder).mkdir(parents=True)
    made = Errors(library, tmp_path / "data", tmp_path / "control")
    yield made
    made.close()


def start(errors: Errors, program: str, more: dict[str, str] | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", PRELUDE + textwrap.dedent(program)],
        cwd=errors.root,
        env=os.environ | errors.environment(more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def run(errors: Errors) -> Run:
    def execute(program: str) -> list[str]:
        process = start(errors, program)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return output.split("\n")[:-1]

    return execute


CALLS = {
    "open": 'attempt(os.open, "f", os.O_RDWR)',
    "read": "attempt(os.read, fd, 5); attempt(os.pread, fd, 5, 0); "
    "attempt(os.preadv, fd, [bytearray(5)], 0); attempt(os.readv, fd, [bytearray(5)])",
    "write": 'attempt(os.write, fd, b"x"); attempt(os.pwrite, fd, b"x", 0); '
    'attempt(os.pwritev, fd, [b"x"], 0); attempt(os.writev, fd, [b"x"])',
    "sync": "attempt(os.fsync, fd); attempt(os.fdatasync, fd)",
    "rename": 'attempt(os.rename, "f", "f2")',
    "unlink": 'attempt(os.unlink, "f")',
    "truncate": 'attempt(os.ftruncate, fd, 1); attempt(os.truncate, "f", 1)',
    "allocate": "attempt(os.posix_fallocate, fd, 0, 5)",
    "punch": "attempt(punch)",
    "mmap": "attempt(mmap.mmap, fd, 10)",
    "mkdir": 'attempt(os.mkdir, "f3")',
}
PUNCH = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def punch():
    if libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4)) != 0:
        raise OSError(ctypes.get_errno(), "")
try: fd = os.open("f", os.O_RDWR)
except OSError: pass
"""


@pytest.mark.parametrize("call", CALLS)
def test_each_call_fails_while_its_rule_is_in_force_and_no_other_does(
    errors: Errors, run: Run, call: str
) -> None:
    rule = errors.rule("f*", call, error=errno.EDQUOT)
    for other, program in CALLS.items():
        (errors.root / "f").write_bytes(b"0123456789")
        if (errors.root / "f3").exists():
            (errors.root / "f3").rmdir()
        if other == call:
            said = run(PUNCH + program)
            assert {*said} == {"EDQUOT"}
            assert errors.hits(rule) >= len(said)
        elif call != "open":  # Without a descriptor there are no other calls.
            assert "EDQUOT" not in run(PUNCH + program), other
    assert {place.call for place in errors.places()} == {call}
    errors.clear()
    (errors.root / "f").write_bytes(b"0123456789")
    assert "EDQUOT" not in run(PUNCH + CALLS[call])


def test_rules_change_while_the_process_runs(errors: Errors) -> None:
    (errors.root / "f").write_bytes(b"x" * 10)
    process = start(
        errors,
        """
        fd = os.open("f", os.O_RDWR)
        for line in sys.stdin:
            attempt(os.pwrite, fd, b"abc", 0)
        """,
    )
    assert process.stdin is not None and process.stdout is not None
    to, back = process.stdin, process.stdout

    def one_write() -> str:
        to.write("\n")
        to.flush()
        return back.readline().strip()

    assert one_write() == "3"
    errors.rule("f", "write", error="ENOSPC", skip=1, hits_max=2)
    assert [one_write() for _ in range(5)] == ["3", "ENOSPC", "ENOSPC", "3", "3"]
    errors.clear()
    with errors.window(0.3):
        errors.rule("f", "write", error="EIO")
    assert one_write() == "EIO"
    time.sleep(0.35)
    assert one_write() == "3"
    errors.clear()
    errors.rule("f", "write", delay_ms=200)
    began = time.monotonic()
    assert one_write() == "3"
    assert 0.2 <= time.monotonic() - began < 1
    process.stdin.close()
    assert process.wait() == 0


def test_short_reads_and_writes(errors: Errors, run: Run) -> None:
    (errors.root / "f").write_bytes(b"0" * 8192)
    errors.rule("f", "read", "write", bytes_max=700)
    program = """
        fd = os.open("f", os.O_RDWR)
        attempt(os.pwrite, fd, b"1" * 1000, 0)
        attempt(os.pwritev, fd, [b"1" * 500, b"1" * 500, b"1" * 500], 0)
        attempt(lambda: len(os.pread(fd, 4096, 0)))
        attempt(lambda: os.preadv(fd, [bytearray(500), bytearray(500)], 0))
        direct = os.open("f", os.O_RDWR | os.O_DIRECT)
        page = mmap.mmap(-1, 4096)
        attempt(os.pwritev, direct, [page], 4096)
        """
    assert run(program) == ["700", "700", "700", "700", "512"]
    assert (errors.root / "f").read_bytes()[:1000] == b"1" * 700 + b"0" * 300


def test_the_kinds_of_files_are_told_apart(errors: Errors, run: Run) -> None:
    files = {
        "journal": "bookie/journal/0000000000000001.journal",
        "journal_new": "bookie/journal/prepare.tmp",
        "entry_log": "bookie/ledgers/0000000000000001.log",
        "entry_log_new": "bookie/ledgers/0000000000000002.log.tmp",
        "metadata": "metadata/metadata.db",
        "metadata_wal": "metadata/metadata.db-wal",
        "metadata_other": "metadata/changes",
        "metadata_copies": "metadata.copies/0000000001.changes",
        "journal_manifest": "bookie/journal/journal.manifest",
        "log_manifest": "bookie/ledgers/manifest.tmp",
        "cookie": "bookie/current/VERSION",
        "reserve": "bookie/ledgers/reserve",
        "lock": "pyxbroker.lock",
        "directory": "bookie/ledgers",
    }
    assert {*files} | {"any"} == {*KINDS}
    for path in files.values():
        if path != files["directory"]:
            (errors.root / path).write_bytes(b"")
    program = f"for path in {[*files.values()]}: attempt(os.fsync, os.open(path, os.O_RDONLY))"
    for kind in KINDS:
        rule = errors.rule(kind, "sync", error="EIO")
        expected = ["EIO" if kind in (one, "any") else "ok" for one in files]
        assert run(program) == expected, kind
        errors.clear(rule)


def test_a_rename_is_hit_by_its_old_and_by_its_new_name(errors: Errors, run: Run) -> None:
    program = """
        os.close(os.open("bookie/ledgers/1.log.tmp", os.O_CREAT | os.O_WRONLY))
        folder = os.open("bookie/ledgers", os.O_RDONLY)
        attempt(lambda: os.rename("1.log.tmp", "1.log", src_dir_fd=folder, dst_dir_fd=folder))
        """
    for kind in ("entry_log", "entry_log_new"):
        rule = errors.rule(kind, "rename", error="EIO")
        assert run(program) == ["EIO"]
        errors.clear(rule)
    assert run(program) == ["ok"]


def test_files_elsewhere_are_left_alone(errors: Errors, run: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"12345")
    errors.rule("any", "open", "read", "write", "sync", error="EIO")
    program = f"""
        fd = os.open("{tmp_path}/elsewhere", os.O_RDWR)
        attempt(os.pread, fd, 5, 0); attempt(os.fsync, fd)
        ends = os.pipe(); attempt(os.write, ends[1], b"12")
        """
    assert run(program) == ["ok", "ok", "2"]
    assert errors.hits() == 0


def test_a_directory_is_one_before_it_is_made(errors: Errors, run: Run) -> None:
    errors.rule("directory", "mkdir", error="ENOSPC", hits_max=1)
    assert run('attempt(os.mkdir, "new"); attempt(os.mkdir, "new")') == ["ENOSPC", "ok"]
    assert [place.path for place in errors.places()] == ["new/"]


def test_listing_a_directory_fails_as_a_read_of_it(errors: Errors, run: Run) -> None:
    errors.rule("bookie/ledgers/", "read", error="EIO")
    assert run('attempt(os.listdir, "bookie/ledgers"); attempt(os.listdir, "bookie")') == [
        "EIO",
        "ok",
    ]
    errors.clear()
    errors.rule("bookie/ledgers/", "open", error="EMFILE")
    assert run('attempt(os.listdir, "bookie/ledgers")') == ["EMFILE"]


def test_populating_a_map_fails_as_a_read_of_its_file(errors: Errors, run: Run) -> None:
    (errors.root / "f").write_bytes(b"1" * 8192)
    errors.rule("f", "read", error="EIO")
    program = """
        page = mmap.mmap(os.open("f", os.O_RDWR), 8192)
        attempt(page.madvise, 22, 4096, 4096)
        other = mmap.mmap(-1, 4096)
        attempt(other.madvise, 22)
        """
    assert run(program) == ["EFAULT", "ok"]


@pytest.mark.parametrize(
    ("kind", "call"),
    [("metadata_wal", "write"), ("metadata_wal", "sync"), ("metadata", "read")],
)
def test_sqlite_meets_the_errors(errors: Errors, run: Run, kind: str, call: str) -> None:
    errors.rule(kind, call, error="EIO")
    program = """
        def create():
            db = sqlite3.connect("metadata/metadata.db")
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=full")
            db.execute("create table t(n)")
            db.commit()
        attempt(create)
        """
    assert any("disk I/O error" in line for line in run(program))
    errors.clear()
    assert errors.hits() > 0
    assert not any("error" in line for line in run(program))


def test_threads_share_the_count(errors: Errors, run: Run) -> None:
    errors.rule("f", "write", error="EIO", hits_max=100)
    program = """
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        failed = []
        def work():
            for _ in range(100):
                try: os.pwrite(fd, b"x", 0)
                except OSError: failed.append(1)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(failed))
        """
    assert run(program) == ["100"]
    assert errors.hits() == 100


def test_errors_and_power_cuts_work_together(
    errors: Errors, tmp_path_factory: pytest.TempPathFactory
) -> None:
    simulator = Simulator(build_library(tmp_path_factory.mktemp("cut")), errors.root)
    errors.rule("lost", "sync", error="EIO")
    program = """
        for name in ("kept", "lost"):
            fd = os.open(name, os.O_RDWR | os.O_CREAT)
            os.write(fd, b"data"); attempt(os.fsync, fd)
        os.fsync(os.open(".", os.O_RDONLY))
        os.kill(os.getpid(), 9)
        """
    process = start(errors, program, simulator.environment())
    output, _ = process.communicate(timeout=30)
    assert process.returncode == -9
    assert output.split() == ["ok", "EIO"]
    simulator.cut(random.Random(1), Mode.NOTHING)
    assert (errors.root / "kept").read_bytes() == b"data"
    assert (errors.root / "lost").read_bytes() == b""


def test_a_library_without_its_rules_ends_the_process(errors: Errors) -> None:
    errors.control.write_bytes(b"nothing")
    process = start(errors, "print(1)")
    process.communicate()
    assert process.returncode == 96

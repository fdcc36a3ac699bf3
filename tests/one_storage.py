"""One C storage in a directory, opened and closed as a test goes."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import select
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import copy_as_killed
from pyxbroker import _native

MIB = 1 << 20


def header(ledger: int, entry: int) -> bytes:
    return struct.pack(">qqqqI", ledger, entry, entry - 1, 0, 0)


def payload(ledger: int, entry: int, size: int = 200) -> bytes:
    return random.Random(ledger * 1_000_003 + entry).randbytes(size)


class Bookie:
    """One storage in a directory, opened and closed as the test goes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.storage: _native.Storage
        self.events: list[tuple[int, str]] = []

    def open(self, **options: Any) -> _native.Storage:
        self.open_at(self.directory, **options)
        return self.storage

    def open_at(self, directory: Path, **options: Any) -> None:
        settings: dict[str, Any] = {
            "journal_file_bytes": 2 * MIB,
            "dirty_bytes_max": 1 * MIB,
            "cache_bytes_max": 4 * MIB,
            "entry_bytes_max": 256 << 10,
        }
        settings.update(options)
        self.storage = _native.Storage(directory / "journal", directory / "ledgers", **settings)

    def add(self, ledger: int, entry: int, size: int = 200) -> int:
        """Adds one entry, waiting while the cache is full."""
        data = payload(ledger, entry, size)
        while True:
            try:
                return self.storage.add(header(ledger, entry), data, _native.crc32c(data))
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.storage.commit()
                self.wait_ring()

    def wait_ring(self, seconds: float = 30.0) -> None:
        ready, _, _ = select.select([self.storage.event_fd], [], [], seconds)
        assert ready, "the storage did not ring its event descriptor"
        os.read(self.storage.event_fd, 8)

    def wait_durable(self, sequence: int) -> None:
        self.storage.commit()
        while self.storage.durable_sequence < sequence:
            self.wait_ring()

    def wait(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the storage did not come to the expected state"
            time.sleep(0.002)

    def take_events(self) -> list[tuple[int, str]]:
        while (event := self.storage.next_event()) is not None:
            self.events.append(event)
        return self.events

    def read(self, ledger: int, entry: int, count: int = 1) -> list[tuple[int, bytes]] | int:
        """The run of entries from the cache or the logs."""
        cached = self.storage.read(ledger, entry, entry + count - 1, count, 1 << 40)
        if cached:
            return cached
        self.storage.read_submit(ledger, entry, entry + count - 1, count, 1 << 40, "tag")
        while True:
            for tag, result in self.storage.read_completions():
                assert tag == "tag"
                return result
            self.wait_ring()

    def assert_holds(self, ledger: int, entries: range, size: int = 200) -> None:
        for entry in entries:
            assert self.read(ledger, entry) == [
                (entry, header(ledger, entry) + payload(ledger, entry, size))
            ]

    def flush(self) -> None:
        before = self.storage.stats()["flushes"]
        self.storage.flush()
        self.wait(lambda: self.storage.stats()["flushes"] > before)


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    made = Bookie(tmp_path / "bookie")
    yield made
    if hasattr(made, "storage"):
        with contextlib.suppress(OSError):  # of a journal that a test made fail
            made.storage.close(flush=False)


def copy_of(bookie: Bookie, name: str) -> Path:
    """The directory as a kill -9 would leave it now."""
    target = bookie.directory.parent / name
    copy_as_killed(bookie.directory, target)
    return target

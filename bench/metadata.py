"""What the embedded metadata store costs, and the databases that it might have been.

    python -m bench.metadata                    on the disk of the temporary directory
    python -m bench.metadata --directory DIR    on that of DIR

The first table writes one node of 200 bytes in each transaction with bare databases; LMDB is among
them where the package `lmdb` is installed. The second one goes through the store: its thread, the
change log and the loop. CPU is that of the whole process.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pyxbroker.metadata.embedded import EmbeddedStore

TRANSACTIONS = 1_000
VALUE = b"x" * 200
PIPELINED = 5_000
OPENINGS = 9

Write = Callable[[int], object]

SQLITE = {
    "SQLite, WAL, synchronous=FULL, exclusive": ("EXCLUSIVE", "WAL"),
    "SQLite, WAL, shared memory index": ("NORMAL", "WAL"),
    "SQLite, rollback journal, persist": ("EXCLUSIVE", "PERSIST"),
}


def sqlite(directory: Path, locking: str, journal: str) -> Write:
    """Opens a database; the result writes one node and waits for the disk."""
    database = sqlite3.connect(directory / "db", isolation_level=None)
    database.execute(f"PRAGMA locking_mode={locking}")
    database.execute(f"PRAGMA journal_mode={journal}")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS node(path TEXT PRIMARY KEY, value BLOB)")
    return lambda number: database.execute(
        "INSERT OR REPLACE INTO node VALUES(?, ?)", (f"/n/{number % 100}", VALUE)
    )


def lmdb(directory: Path, writemap: bool) -> Write:
    """The same with LMDB."""
    module: Any = importlib.import_module("lmdb")
    environment = module.open(str(directory / "lmdb"), map_size=64 << 20, writemap=writemap)

    def write(number: int) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(b"/n/%d" % (number % 100), VALUE)

    return write


def overwrite(directory: Path) -> Write:
    """No database: a block of a file, and its sync."""
    file = os.open(directory / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(file, bytes(400 << 10), 0)
    os.fsync(file)

    def write(number: int) -> None:
        os.pwrite(file, bytes(4096), number % 100 * 4096)
        os.fdatasync(file)

    return write


def databases(directory: Path) -> None:
    """Prints the first table."""
    makers: dict[str, Callable[[Path], Write]] = {"no database: 4 KiB, fdatasync": overwrite}
    for name, (locking, journal) in SQLITE.items():
        makers[name] = lambda where, a=locking, b=journal: sqlite(where, a, b)  # type: ignore[misc]
    if importlib.util.find_spec("lmdb") is not None:
        makers["LMDB"] = lambda where: lmdb(where, False)
        makers["LMDB, writemap"] = lambda where: lmdb(where, True)
    print("| database | median, ms | p99, ms | CPU, us | opening, ms |\n|---|---|---|---|---|")
    for name, make in makers.items():
        place = Path(tempfile.mkdtemp(dir=directory))
        began = time.perf_counter()
        write = make(place)
        opening = time.perf_counter() - began
        took = []
        cpu = time.process_time()
        for number in range(TRANSACTIONS):
            began = time.perf_counter()
            write(number)
            took.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
        cuts = statistics.quantiles(took, n=100)
        row = [f"{cuts[49] * 1e3:.2f}", f"{cuts[98] * 1e3:.2f}", f"{cpu / TRANSACTIONS * 1e6:.0f}"]
        print(f"| {name} | {' | '.join(row)} | {opening * 1e3:.1f} |")


async def each(name: str, count: int, act: Callable[[int], Awaitable[object]]) -> None:
    """One row: an operation at a time."""
    took = []
    cpu = time.process_time()
    for number in range(count):
        began = time.perf_counter()
        await act(number)
        took.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    print(f"| {name} | {statistics.median(took) * 1e3:.2f} | {cpu / count * 1e6:.0f} |")


def copy_as_killed(source: Path, target: Path) -> None:
    """Copy the files of an open store. The store's thread may rename a file during the copy: then
    the copy is made again.
    """
    while True:
        try:
            shutil.copytree(source, target)
        except shutil.Error:
            shutil.rmtree(target)
        else:
            return


async def opened(name: str, source: Path, place: Path) -> None:
    """One row: opening a copy of a directory."""
    took, used = [], []
    for _ in range(OPENINGS):
        shutil.copytree(source, place)
        store = EmbeddedStore(place / "metadata")
        began, cpu = time.perf_counter(), time.process_time()
        await store.open()
        took.append(time.perf_counter() - began)
        used.append(time.process_time() - cpu)
        await store.close()
        shutil.rmtree(place)
    print(f"| {name} | {statistics.median(took) * 1e3:.1f} | {statistics.median(used) * 1e6:.0f} |")


async def through_the_store(directory: Path) -> None:
    """Prints the second table."""
    print("\n| | median, ms | CPU, us |\n|---|---|---|")
    (directory / "empty").mkdir()
    await opened("opening: a new directory", directory / "empty", directory / "opened")
    store = EmbeddedStore(directory / "a" / "metadata")
    await store.open()
    for number in range(30):
        await store.put(f"/n/{number}", VALUE)
    copy_as_killed(directory / "a", directory / "killed-30")
    await store.close()
    await opened("opening: 30 nodes, closed cleanly", directory / "a", directory / "opened")
    await opened("opening: 30 nodes, after a kill", directory / "killed-30", directory / "opened")
    await store.open()
    await each("`put` that overwrites", TRANSACTIONS, lambda n: store.put("/n/1", VALUE))

    async def come_and_go(number: int) -> None:
        await store.put("/n/new", VALUE)
        await store.delete("/n/new")

    await each("`put` that creates and its `delete`", TRANSACTIONS, come_and_go)
    await each(
        "`put` of an ephemeral node", TRANSACTIONS, lambda n: store.put("/e", b"", ephemeral=True)
    )
    await each("`get`", TRANSACTIONS, lambda n: store.get("/n/1"))
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[store.put(f"/p/{number % 1200}", VALUE) for number in range(PIPELINED)])
    took, cpu = (time.perf_counter() - began) / PIPELINED, (time.process_time() - cpu) / PIPELINED
    print(f"| {PIPELINED:,} puts at once, for each | {took * 1e3:.3f} | {cpu * 1e6:.0f} |")
    copy_as_killed(directory / "a", directory / "killed-1200")
    await store.close()
    await opened(
        "opening: 1,200 nodes, after a kill", directory / "killed-1200", directory / "opened"
    )


def main() -> int:
    """Prints both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where the files are (default: temporary)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        databases(Path(name))
        asyncio.run(through_the_store(Path(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

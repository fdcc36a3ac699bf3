"""One flipped bit in any file of the embedded store: noticed, repaired, and never a wrong answer.

The same stores, as a clean stop and as a kill leave them, are opened again and again with another
bit flipped. Each has two sources of everything it knows, so one bit must not cost anything.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from metadata_backends import coroutine_test
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.store import GetResult

SEEDS = 300
FILES = (
    *("metadata/metadata.db", "metadata/metadata.db-wal"),
    *("metadata.copies/0000000001.changes", "metadata.copies/0000000002.changes"),
    "metadata.copies/0000000002.copy",
)

Content = dict[str, GetResult]


async def fill(store: EmbeddedStore, seed: int) -> None:
    """Nodes of all ages: written once and often, deleted, made again, numbered, large."""
    rng = random.Random(seed)
    for number in range(20):
        await store.put(f"/managed-ledgers/t{number}", rng.randbytes(rng.randrange(300)))
    await store.put("/large", rng.randbytes(9000))
    for number in range(0, 20, 3):
        await store.put(f"/managed-ledgers/t{number}", rng.randbytes(40))
    for number in range(1, 20, 5):
        await store.delete(f"/managed-ledgers/t{number}")
    await store.put("/managed-ledgers/t6", b"again")
    for _ in range(3):
        await store.put("/ids/ID-", b"", sequential=True)


async def content(store: EmbeddedStore) -> Content:
    found: Content = {}
    pending = ["/"]
    while pending:
        path = pending.pop()
        node = await store.get(path)
        assert node is not None, path
        found[path] = node
        pending += [f"{path.rstrip('/')}/{name}" for name in await store.children(path)]
    return found


async def read(directory: Path) -> Content:
    store = EmbeddedStore(directory / "metadata")
    await store.open()
    try:
        return await content(store)
    finally:
        await store.close()


class Snapshot:
    """The files of a store at one moment, and what it knew."""

    def __init__(self, directory: Path, expected: Content) -> None:
        self.directory = directory
        self.expected = expected
        self.files = [name for name in FILES if (directory / name).exists()]


async def make_snapshots(tmp_path: Path) -> dict[str, Snapshot]:
    """`closed`, `killed` with all in SQLite's log, `copied` with a copy and folded in."""
    live = tmp_path / "live"
    store = EmbeddedStore(live / "metadata")
    await store.open()
    await fill(store, 1)
    snapshots = {}

    async def take(name: str) -> None:
        expected = await content(store)
        shutil.copytree(live, tmp_path / name)
        snapshots[name] = Snapshot(tmp_path / name, expected)

    await take("killed")
    await store.make_copy()
    await fill(store, 2)
    await take("copied")
    for number in range(70):
        await store.put("/managed-ledgers/t2", b"%d" % number)
    await asyncio.sleep(0.5)  # The log is folded in and stays as it is.
    await take("folded")
    await store.close()
    snapshots["closed"] = Snapshot(live, snapshots["folded"].expected)
    return snapshots


@pytest.mark.parametrize("part", range(4))
def test_one_flipped_bit_costs_nothing(tmp_path: Path, part: int) -> None:
    async def scenario() -> None:
        snapshots = await make_snapshots(tmp_path)
        repaired = 0
        for seed in range(part, SEEDS, 4):
            repaired += await flip(tmp_path, snapshots, seed)
        assert repaired > SEEDS // 4 // 10  # The flips hit something.

    asyncio.run(scenario())


async def flip(tmp_path: Path, snapshots: dict[str, Snapshot], seed: int) -> bool:
    """Opens a snapshot with one bit flipped, twice; whether the store said anything of it."""
    rng = random.Random(seed)
    snapshot = snapshots[rng.choice(sorted(snapshots))]
    name = rng.choice(snapshot.files)
    directory = tmp_path / f"flip-{seed}"
    shutil.copytree(snapshot.directory, directory)
    path = directory / name
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    first = rng.random() < 0.2  # Heads are small and matter.
    offset = rng.randrange(min(used, 128) if first else used)
    data[offset] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    context = f"seed {seed}: {snapshot.directory.name}, {name}, byte {offset}"
    store = EmbeddedStore(directory / "metadata")
    await store.open()
    findings = store.findings
    assert await content(store) == snapshot.expected, context
    numbered = await store.put("/ids/ID-", b"", sequential=True)
    assert numbered.path == f"/ids/ID-{expected_number(snapshot):010d}", context
    await store.put("/after", b"the flip")
    await store.close()
    after = await read(directory)
    assert after.pop("/after").value == b"the flip", context
    after.pop(numbered.path)
    assert after.keys() == snapshot.expected.keys(), context
    shutil.rmtree(directory)
    return bool(findings)


def expected_number(snapshot: Snapshot) -> int:
    return sum(path.startswith("/ids/ID-") for path in snapshot.expected)


@coroutine_test
async def test_without_a_flip_nothing_is_found(tmp_path: Path) -> None:
    for snapshot in (await make_snapshots(tmp_path)).values():
        store = EmbeddedStore(snapshot.directory / "metadata")
        await store.open()
        assert store.findings == []
        assert await content(store) == snapshot.expected
        await store.close()

"""Allocations of what is compiled that fail, each once: MemoryError, nothing worse, and all goes on
when there is memory again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.no_memory import build_no_memory, environment

PROGRAM = """
import ctypes, tempfile, uvloop
from array import array
from pyxbroker.ackset import AckSet
from pyxbroker.avro_columns import LONG, AvroProgram
from pyxbroker.base import compression
from pyxbroker.entry import AckRun, EntryBatch, EntryRun
from pyxbroker.compaction import KEY_PARTS, LatestMessages
from pyxbroker.delayed_index import DelayedIndex
from pyxbroker.hash_ranges import HashRanges, HeldRanges
from pyxbroker.connection import Connections
from pyxbroker.delivery import ConsumerState
from pyxbroker.entry_columns import BYTES, VARIABLE, EntryColumns
from pyxbroker.keys import KeyShared
from pyxbroker.quorum import PendingAdds
from pyxbroker.turn_watch import TurnWatch
from compacting import Sent, batch, single
from manual_loop import ManualLoop
from one_broker import section
from oracles import wire
from oracles.columns import rows_of
from served import Notes, Producer, connected

def acks():
    run = AckRun()
    for entry_id in range(40):
        run.add(1, entry_id, [7] * (entry_id % 3 * 5), 64)
    assert [run.position(at)[:2] for at in range(40)] == [(1, at) for at in range(40)]
    assert [len(run.ack_set(at)) for at in range(40)] == [at % 3 * 5 for at in range(40)]

def runs():
    run = EntryRun.of(b"entry")
    run.add_broker_metadata(1, 5)
    run.copy_data()
    found = EntryBatch.of_run(run)
    assert found.data(0).endswith(b"entry")

def compacted():
    latest = LatestMessages(bytes(16))
    entries = [
        EntryBatch.of_run(EntryRun.of(each))
        for each in (
            batch(Sent("a", b"1"), Sent("b", b"1")),
            *(single(f"k{at}", b"x") for at in range(100)),
            single("a", b"2"),
        )
    ]
    for each in entries:
        assert latest.scan(each, 0) == 1
    for part in range(KEY_PARTS):
        latest.resolve(part, None)
    latest.begin_selection()
    assert latest.select(entries[0], 0, -1, 1 << 20) == (None, 0, True)
    assert latest.rebuild(entries[0], 0, None)[1] == [1]
    for each in entries[1:]:
        run, at, partly = latest.select(each, 0, -1, 1 << 20)
        assert (run.count, at, partly) == (1, 1, False)

def spilled():
    latest = LatestMessages(bytes(16))
    one = EntryBatch.of_run(EntryRun.of(batch(*[Sent("a", b"1")] * 10_000)))
    latest.scan(one, 0)
    with tempfile.TemporaryFile() as file:
        latest.spill(file)
        for part in range(KEY_PARTS):
            latest.resolve(part, file)

def delayed():
    index = DelayedIndex()
    for at in range(5_000):
        index.put(at, 1, at)
    assert len(index.take_due(5_000, 5_000)) == 5_000

def ranges():
    held = HeldRanges()
    for slot in range(1, 20):
        held.add(slot, HashRanges.of([(slot * 10, slot * 10 + 5)]))
    for slot in range(1, 20, 2):
        held.remove(slot)
    assert held.conflict(HashRanges.of([(20, 21)])) == 2

def keys():
    state = KeyShared(True)
    state.set_owners(array("H", [30_000, 65_535]), array("i", [1, 2]))
    for at in range(300):
        state.put(at * 211 % 65_536, 1, at)
    planned = state.plan(1, 300, 0) + state.plan(2, 300, 0)
    assert sum(last - first + 1 for _, first, last in planned) == 300
    for at in range(300):
        assert state.drop(1, at, at) == 1
    assert state.waiting == 0

def holes():
    acks = AckSet(1, -1, True)
    for at in range(1, 40_000, 2):
        acks.add(1, at)
    acks.acknowledge_batch(1, 2, [7])
    assert acks.holes and len(acks.ranges(1)) == 20_000
    assert acks.encode_runs(1, 0, 1 << 16, False)[0] and acks.encode_ranges(1_000)

def program():
    AvroProgram((8,), [(LONG, -1, 0, 0, None, None)])

def columns():
    found = EntryColumns(BYTES, (VARIABLE,), compression, -1)
    found.set_range((3, -1, -1), (4, 0, -1))
    for number in range(20):
        found.take_entry(3, number, section(b"x" * 5000, partition_key="k", event_time=1))
    assert len(rows_of(found.finish())) == 20

def joined():
    loop = ManualLoop()
    limits = dict.fromkeys(("frame_bytes_max", "sends_max", "publish_bytes_max"), 1 << 20)
    return loop, *connected(Connections(loop, Notes(loop), **limits))

def frames():
    loop, connection, far = joined()
    sent = b""
    try:
        for size in (100, 20_000, 40_000):
            connection.send_frame(bytes([size >> 8]) * size)
            sent += bytes([size >> 8]) * size
    finally:
        while loop.go_round():
            pass
        assert not sent or far.recv(1 << 20) == sent
        connection.close()

def receipts():
    loop, connection, far = joined()
    producer = Producer(connection, 1, Notes(loop))
    try:
        for number in range(3_000):
            producer.send_receipts(producer.refused_run(number, number), stored=False)
    finally:
        connection.close()

def deliveries():
    loop, connection, far = joined()
    consumer = ConsumerState(connection, 2, -1)
    consumer.permits = 200
    try:
        # Of the ninth a part is sent, and its header forgotten before the others.
        for size in [1] * 8 + [500_000] + [1] * 50:
            one = EntryBatch.of_run(EntryRun.of(section(bytes(size))))
            assert consumer.deliver(one, 0, 1, AckSet(0, -1), {}, []) == 1
            if size > 1:
                loop.go_round()
    finally:
        connection.send_frame(wire.frame(b"last"))
        got = b""
        while loop.go_round() or not got.endswith(b"last"):
            got += far.recv(1 << 20)
        frames, size, error = wire.scan(got, 1 << 20)
        assert error is None and len(frames) == 1 + consumer.msg_out
        connection.close()

def adds():
    pending = PendingAdds(3, 2, 2)
    assert pending.add(1_000) == 0
    for index in range(3):
        pending.on_ack(index, 0, 999)
    assert pending.last_add_confirmed == 999

def watch():
    loop = uvloop.new_event_loop()
    try:
        TurnWatch(loop, 1.0).close()
    finally:
        loop.close()

memory = ctypes.CDLL(None)
name, part = {name}, {part}
fails = 0
for after in range(10_000):
    assert memory.no_memory_begin(part.encode(), after, 1) == 0
    try:
        globals()[name]()
        refused = False
    except MemoryError:
        refused = True
    failed = memory.no_memory_end()
    assert refused <= failed
    fails += refused
    if not failed:
        break
print("refused", fails)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_no_memory(tmp_path_factory.mktemp("no-memory"))


@pytest.mark.parametrize(
    ("module", "name", "refusals"),
    [
        ("entry", "acks", 6),
        ("entry", "runs", 3),
        ("compaction", "compacted", 100),
        ("compaction", "spilled", 4),
        ("delayed_index", "delayed", 5),
        ("hash_ranges", "ranges", 20),
        ("keys", "keys", 20),
        ("bitmap", "holes", 3),
        ("avro_columns", "program", 1),
        ("entry_columns", "columns", 10),
        ("buffers", "frames", 3),
        ("buffers", "receipts", 3),
        ("buffers", "deliveries", 3),
        ("quorum", "adds", 2),
        ("turn_watch", "watch", 3),
    ],
)
def test_an_allocation_that_fails_is_a_memory_error(
    library: Path, module: str, name: str, refusals: int
) -> None:
    program = PROGRAM.replace("{name}", repr(name)).replace("{part}", repr(f"/{module}."))
    path = f"{Path(__file__).parent}:" + ":".join(sys.path)
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(library) | {"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    assert int(run.stdout.split()[1]) >= refusals, run.stdout

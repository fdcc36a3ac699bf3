"""The rules of transaction buffers, against a model that looks at the whole log each time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import pytest

from pyxbroker.base.topic_name import SNAPSHOT_INDEXES, SNAPSHOT_SEGMENTS, SNAPSHOTS
from pyxbroker.broker.transactions import snapshot_records
from pyxbroker.broker.transactions.buffer import ENDED_MAX, Buffer, Snapshot
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.snapshot_records import Index, Segment
from pyxbroker.entry import Position

SEEDS = 400
STEPS = 80
LEDGER_ENTRIES = 5


class Entry(NamedTuple):
    """A message, or a marker; txn None: a message outside of transactions."""

    position: Position
    txn: TxnId | None
    commit: bool | None = None


class Log:
    """Stored entries, and what a consumer may receive of them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.stored = 0  # also those that were trimmed

    def append(self, txn: TxnId | None, commit: bool | None = None) -> Entry:
        position = Position(*divmod(self.stored, LEDGER_ENTRIES))
        self.stored += 1
        entry = Entry(position, txn, commit)
        self.entries.append(entry)
        return entry

    def visible(self, history: list[Entry]) -> list[Position]:
        """Return what consumers may receive. history: all entries that were ever stored."""
        first: dict[TxnId, Position] = {}
        committed: set[TxnId] = set()
        hidden: set[TxnId] = set()
        for position, txn, commit in history:
            if txn is None:
                continue
            if commit is None:
                if txn not in hidden:
                    first.setdefault(txn, position)
            elif first.pop(txn, None) is not None:
                (committed if commit else hidden).add(txn)
        limit = min(first.values(), default=Position(2**62, 0))
        return [
            each.position
            for each in self.entries
            if each.commit is None
            and each.position < limit
            and (each.txn not in hidden or each.txn in committed)
        ]


class Simulation:
    """Random commands for one topic, with crashes after which any stored snapshot may be found."""

    def __init__(self, seed: int, kind: type[Buffer]) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        self.buffer = kind()
        self.log = Log()
        self.history: list[Entry] = []
        self.snapshots = [self.snapshot()]
        self.next_ids = [0, 0]  # of two coordinators
        self.open: list[TxnId] = []
        self.ended: list[TxnId] = []  # that the buffer must remember
        self.forgotten: list[TxnId] = []

    def run(self) -> None:
        commands = (
            *(self.send, self.send, self.send, self.begin, self.begin, self.end, self.end),
            *(self.end_again, self.send_late, self.store, self.crash, self.trim, self.raise_mark),
        )
        for _ in range(STEPS):
            self.random.choice(commands)()
            assert self.visible() == self.log.visible(self.history)
        while self.open:
            self.end()
        assert self.buffer.limit is None, "nothing holds consumers back after all ends"

    def visible(self) -> list[Position]:
        limit = self.buffer.limit
        return [
            each.position
            for each in self.log.entries
            if each.commit is None
            and (limit is None or each.position < limit)
            and each.txn not in self.buffer.aborted
        ]

    def store_entry(self, txn: TxnId | None, commit: bool | None = None) -> None:
        entry = self.log.append(txn, commit)
        self.history.append(entry)
        apply(self.buffer, entry)

    # --- commands ---

    def begin(self) -> None:
        coordinator = self.random.randrange(2)
        self.open.append(TxnId(coordinator, self.next_ids[coordinator]))
        self.next_ids[coordinator] += 1

    def send(self) -> None:
        txn = self.random.choice([*self.open, None])
        assert txn is None or not self.buffer.refuses(txn)
        self.store_entry(txn)

    def send_late(self) -> None:
        if self.ended:
            txn = self.random.choice(self.ended)
            assert self.buffer.refuses(txn)

    def end(self) -> None:
        if self.open:
            txn = self.open.pop(self.random.randrange(len(self.open)))
            self.store_entry(txn, self.random.random() < 0.5)
            self.ended.append(txn)

    def end_again(self) -> None:
        """A caller that repeats an end, or makes a mistake."""
        if self.ended or self.forgotten:
            txn = self.random.choice([*self.ended, *self.forgotten])
            if not self.buffer.has_ended(txn) or self.random.random() < 0.2:
                self.store_entry(txn, self.random.random() < 0.5)

    def raise_mark(self) -> None:
        coordinator = self.random.randrange(2)
        least = [each.least for each in self.open if each.most == coordinator]
        mark = min(least, default=self.next_ids[coordinator]) - 1
        self.buffer.raise_low_water_mark(coordinator, mark)
        assert self.buffer.stray() is None, "only transactions that were ended are aborted"
        assert self.buffer.refuses(TxnId(coordinator, mark))

    def snapshot(self) -> Snapshot:
        limit = self.buffer.limit
        before = [
            each.position for each in self.log.entries if limit is None or each.position < limit
        ]
        return self.buffer.snapshot(before[-1] if before else Position(-1, -1))

    def store(self) -> None:
        self.snapshots.append(self.snapshot())

    def crash(self) -> None:
        snapshot = self.random.choice(self.snapshots)
        self.buffer = self.kind(snapshot.aborted)
        for entry in self.log.entries:
            if entry.position > snapshot.max_read:
                apply(self.buffer, entry)
        self.forgotten += self.ended
        self.ended.clear()

    def trim(self) -> None:
        first = self.log.entries[0].position.ledger_id if self.log.entries else 0
        limit = self.buffer.limit
        last = self.log.entries[-1].position.ledger_id if self.log.entries else 0
        first = min(first + 1, last if limit is None else limit.ledger_id)
        self.log.entries = [each for each in self.log.entries if each.position.ledger_id >= first]
        self.buffer.trim(first)
        oldest = next(iter(self.buffer.aborted.values()), None)
        assert oldest is None or oldest.ledger_id >= first


def apply(buffer: Buffer, entry: Entry) -> None:
    if entry.txn is None:
        return
    if entry.commit is None:
        buffer.on_message(entry.txn, entry.position)
    else:
        buffer.on_end(entry.txn, entry.commit, entry.position)


def test_consumers_see_what_the_model_says_after_any_crash() -> None:
    for seed in range(SEEDS):
        Simulation(seed, Buffer).run()


class HidesWhatWasCommitted(Buffer):
    """Any ABORT hides the messages of its transaction, as in Apache Pulsar."""

    def on_end(self, txn: TxnId, commit: bool, position: Position) -> None:
        super().on_end(txn, commit, position)
        if not commit:
            self.aborted[txn] = position


class ForgetsTheOldest(Buffer):
    """The limit is the message of the newest open transaction."""

    def on_end(self, txn: TxnId, commit: bool, position: Position) -> None:
        super().on_end(txn, commit, position)
        self.limit = next(reversed(self.ongoing.values()), None)


class SnapshotsTooLate(Buffer):
    """Recovery does not read the messages of open transactions again."""

    def snapshot(self, max_read: Position) -> Snapshot:
        newest = max(self.ongoing.values(), default=max_read)
        return super().snapshot(newest)


def failures(kind: type[Buffer]) -> Iterator[int]:
    for seed in range(SEEDS):
        try:
            Simulation(seed, kind).run()
        except AssertionError:
            yield seed


@pytest.mark.parametrize("kind", [HidesWhatWasCommitted, ForgetsTheOldest, SnapshotsTooLate])
def test_the_model_finds_a_planted_bug(kind: type[Buffer]) -> None:
    assert next(failures(kind), None) is not None


def test_messages_without_an_end_are_aborted_by_the_low_water_mark_of_their_coordinator() -> None:
    buffer = Buffer()
    stray, other = TxnId(0, 3), TxnId(1, 3)
    buffer.on_message(other, Position(0, 0))
    buffer.on_message(stray, Position(0, 1))
    buffer.raise_low_water_mark(0, 3)
    assert buffer.stray() is None, "the oldest one belongs to another coordinator"
    buffer.on_end(other, True, Position(0, 2))
    assert buffer.stray() == stray
    buffer.on_end(stray, False, Position(0, 3))
    assert buffer.stray() is None
    assert stray in buffer.aborted


def test_a_bounded_number_of_ended_transactions_is_remembered() -> None:
    buffer = Buffer()
    for least in range(2 * ENDED_MAX):
        buffer.on_message(TxnId(0, least), Position(0, 2 * least))
        buffer.on_end(TxnId(0, least), True, Position(0, 2 * least + 1))
    remembered = [least for least in range(2 * ENDED_MAX) if buffer.refuses(TxnId(0, least))]
    assert remembered == list(range(ENDED_MAX, 2 * ENDED_MAX))


def test_trimming_costs_no_time_until_ledgers_are_deleted() -> None:
    """The end of each transaction trims, and many transactions may be aborted."""
    count = 100_000
    buffer = Buffer((TxnId(0, n), Position(1 + n // 90_000, n)) for n in range(count))
    began = time.process_time()
    for ledger_id in (1, 2):
        for _ in range(30_000):
            buffer.trim(ledger_id)
    assert time.process_time() - began < 0.3
    assert len(buffer.aborted) == count - 90_000
    assert buffer.refuses(TxnId(0, 89_999))


# What Apache Pulsar 4.2.4 writes (Schema.AVRO of its classes).
NAME = "persistent://public/default/t"
NAME_HEX = "023a70657273697374656e743a2f2f7075626c69632f64656661756c742f74"
SINGLE = bytes.fromhex("02020806040200010e" + NAME_HEX)
SEGMENT = bytes.fromhex("02040402d804000008060a" + NAME_HEX)
INDEX = bytes.fromhex("0202080612100a000202020e0c00010e" + NAME_HEX)


def test_snapshots_have_the_bytes_of_apache_pulsar() -> None:
    snapshot = Snapshot(Position(7, -1), ((TxnId(1, 2), Position(3, 4)),))
    assert snapshot_records.encode(NAME, snapshot) == SINGLE
    assert snapshot_records.decode(SINGLE) == snapshot
    txns = [TxnId(1, 2), TxnId(0, 300)]
    assert snapshot_records.encode_segment(NAME, 5, txns, Position(3, 4)) == SEGMENT
    assert snapshot_records.decode_segment(SEGMENT) == txns
    segments = (Segment(5, Position(3, 4), Position(8, 9)),)
    index = Index(Position(7, -1), segments, (TxnId(6, 7),))
    assert snapshot_records.encode_index(NAME, index) == INDEX
    assert snapshot_records.decode_index(INDEX) == index


@pytest.mark.parametrize(
    ("local_name", "digest"),
    [
        (SNAPSHOTS, "f4ea75fd271c5383d19b19cf93697d69f1b9c42da7bd67ca8216ad19983cc987"),
        (SNAPSHOT_SEGMENTS, "31a50228141c111efa67c8f19d4ba97565e9da2c68c2dde7ac32ede37f800a74"),
        (SNAPSHOT_INDEXES, "2bcdde5e725148e52c1d1769a80296653c20eade1f6fc66c53de65170260e422"),
    ],
)
def test_schemas_have_the_definitions_of_apache_pulsar(local_name: str, digest: str) -> None:
    """Their digests, since each has half a thousand characters."""
    assert sha256(snapshot_records.definition(local_name)).hexdigest() == digest


@pytest.mark.parametrize("value", [b"", b"\x02", SINGLE[:-1], b"\xff" * 20])
def test_values_that_are_no_snapshots_are_refused(value: bytes) -> None:
    decoders = (
        snapshot_records.decode,
        snapshot_records.decode_segment,
        snapshot_records.decode_index,
    )
    for decode in decoders:
        with pytest.raises(ValueError, match="not a snapshot"):
            decode(value)

"""The machine of pending acknowledgements against a naive model, with crashes and replays."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from pyxbroker.ackset import AckSet
from pyxbroker.base.signed import words_of
from pyxbroker.broker.transactions import pending_acks
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.pending_ack_log import (
    LogRecord,
    Operation,
    decode_records,
    encode_record,
)
from pyxbroker.broker.transactions.pending_acks import Ack, PendingAcks, TrimIndex
from pyxbroker.entry import AckRun
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.proto import TransactionPendingAck as pb

LEDGER = 3
ENTRIES = 12
BATCH = 4  # messages of each odd entry; the even ones are no batches
SEEDS = range(400)

Message = tuple[int, int]


def messages_of(entry: int) -> set[Message]:
    return {(entry, index) for index in range(BATCH if entry % 2 else 1)}


def named_by(ack: Ack) -> set[Message]:
    if not ack.left:
        return messages_of(ack.entry_id)
    return {(ack.entry_id, index) for index in range(BATCH) if not ack.left >> index & 1}


class Model:
    """Each message is free, acknowledged, or pending for one transaction."""

    def __init__(self) -> None:
        self.acknowledged: set[Message] = set()
        self.committed: set[Message] = set()
        self.durable: set[Message] = set()  # on the cursor
        self.pending: dict[Message, TxnId] = {}
        self.cumulative: tuple[TxnId, set[Message]] | None = None

    def acknowledge(self, txn: TxnId, acks: list[Ack]) -> bool:
        if any(map(self._conflicts, acks)):
            return False
        for ack in acks:
            self.pending.update(dict.fromkeys(named_by(ack), txn))
        return True

    def _conflicts(self, ack: Ack) -> bool:
        everything, named = messages_of(ack.entry_id), named_by(ack)
        if everything <= self.acknowledged or (ack.left and named & self.acknowledged):
            return True
        return bool(named & self.pending.keys())

    def acknowledge_up_to(self, txn: TxnId, ack: Ack) -> bool:
        wanted = named_by(ack).union(*(messages_of(entry) for entry in range(ack.entry_id)))
        entries = range(ack.entry_id + 1)
        if all(messages_of(entry) <= self.acknowledged for entry in entries):
            return False
        if self.cumulative is not None:
            holder, current = self.cumulative
            if holder != txn or not wanted > current:
                return False
        self.cumulative = txn, wanted
        return True

    def end(self, txn: TxnId, commit: bool) -> None:
        mine = {message for message, holder in self.pending.items() if holder == txn}
        for message in mine:
            del self.pending[message]
        if self.cumulative is not None and self.cumulative[0] == txn:
            mine |= self.cumulative[1]
            self.cumulative = None
        if commit:
            self.acknowledged |= mine
            self.committed |= mine

    def acknowledge_plainly(self, ack: Ack) -> None:
        self.acknowledged |= named_by(ack)

    def persist(self) -> None:
        self.durable = set(self.acknowledged)

    def crash(self) -> None:
        """Nothing is pending of what the cursor's durable state has."""
        self.acknowledged = self.durable | self.committed
        for message in self.durable & self.pending.keys():
            del self.pending[message]
        if self.cumulative is not None:
            up_to = range(max(entry for entry, _ in self.cumulative[1]) + 1)
            if all(messages_of(entry) <= self.durable for entry in up_to):
                self.cumulative = None

    def free(self) -> set[Message]:
        everything = set().union(*map(messages_of, range(ENTRIES)))
        up_to = set() if self.cumulative is None else self.cumulative[1]
        return everything - self.acknowledged - self.pending.keys() - up_to


class System:
    """The machine, a cursor and a log. The cursor's durable state may be older than its state."""

    def __init__(self) -> None:
        self.pending = PendingAcks()
        self.cursor = AckSet(LEDGER, -1)
        self.durable_acks: list[AckRun] = []  # that make the cursor's durable state
        self.acks: list[AckRun] = []
        self.log: list[bytes] = []

    def append(self, operation: Operation, txn: TxnId, cumulative: bool, *acks: Ack) -> None:
        self.log.append(encode_record(LogRecord(operation, txn, cumulative, acks)))

    def acknowledge(self, txn: TxnId, acks: list[Ack]) -> bool:
        if self.pending.conflict(txn, acks, self.cursor) is not None:
            return False
        self.append(Operation.ACK, txn, False, *acks)
        self.pending.acknowledge(txn, acks)
        return True

    def acknowledge_up_to(self, txn: TxnId, ack: Ack) -> bool:
        if self.pending.cumulative_conflict(txn, ack, self.cursor) is not None:
            return False
        self.append(Operation.ACK, txn, True, ack)
        self.pending.acknowledge_cumulatively(txn, ack)
        return True

    def end(self, txn: TxnId, commit: bool) -> None:
        individually, cumulatively = self.pending.holds(txn)
        operation = Operation.COMMIT if commit else Operation.ABORT
        if individually:
            self.append(operation, txn, False)
        if cumulatively:
            self.append(operation, txn, True)
        self.take(txn, commit)

    def take(self, txn: TxnId, commit: bool) -> None:
        last = self.pending.take_cumulative(txn)
        if commit and last is not None:
            self.acknowledge_on_cursor(*(Ack(LEDGER, each) for each in range(last.entry_id)), last)
        while acks := self.pending.take(txn, 2):
            if commit:
                self.acknowledge_on_cursor(*acks)

    def acknowledge_on_cursor(self, *acks: Ack) -> None:
        run = AckRun()
        for ack in acks:
            run.add(*ack.position, ack.words, ack.batch_size)
        self.acks.append(run)
        self.apply(run)

    def apply(self, run: AckRun) -> None:
        self.cursor.add_run(run, lambda ledger_id: ENTRIES - 1)
        self.cursor.advance(lambda ledger_id, entry_id: None)

    def persist(self) -> None:
        self.durable_acks = list(self.acks)

    def crash(self) -> None:
        """Lose everything but the log and the cursor's durable state, and replay."""
        self.cursor = AckSet(LEDGER, -1)
        self.acks = list(self.durable_acks)
        for run in self.acks:
            self.apply(run)
        self.pending = PendingAcks()
        for entry in self.log:
            for record in decode_records(entry):
                if record.operation is not Operation.ACK:
                    self.take(record.txn, record.operation is Operation.COMMIT)
                elif record.is_cumulative:
                    self.pending.replay_cumulative(record.txn, record.acks[0], self.cursor)
                else:
                    self.pending.replay(record.txn, record.acks, self.cursor)

    def free(self) -> set[Message]:
        found = set()
        for entry in range(ENTRIES):
            if (LEDGER, entry) > self.pending.highest:
                assert self.pending.left(LEDGER, entry) is None
            left = self.pending.left(LEDGER, entry)
            if left == 0 or self.cursor.is_acknowledged(LEDGER, entry):
                continue
            bits = -1 if left is None else left
            words = self.cursor.ack_set(LEDGER, entry)
            bits &= words[0] if words else -1
            found |= {message for message in messages_of(entry) if bits >> message[1] & 1}
        return found


def an_ack(random: Random) -> Ack:
    entry = random.randrange(ENTRIES)
    if entry % 2 == 0 or random.random() < 0.3:
        return Ack(LEDGER, entry)
    left = random.randrange(1, (1 << BATCH) - 1)
    return Ack(LEDGER, entry, left, BATCH)


def fault(seed: int) -> str:
    """Return the first difference of the machine and the model, or ""."""
    random = Random(seed)
    system, model = System(), Model()
    transactions = [TxnId(random.randrange(2), number) for number in range(4)]
    for step in range(60):
        txn = random.choice(transactions)
        match random.randrange(9):
            case 0 | 1 | 2:
                acks = list({each.entry_id: each for each in map(an_ack, [random] * 2)}.values())
                if system.acknowledge(txn, acks) != model.acknowledge(txn, acks):
                    return f"step {step}: {txn} acknowledges {acks}"
            case 3:
                entry = random.randrange(ENTRIES)
                left = (1 << BATCH) - (1 << random.randrange(1, BATCH))
                ack = Ack(LEDGER, entry, left * (entry % 2), BATCH * (entry % 2))
                if system.acknowledge_up_to(txn, ack) != model.acknowledge_up_to(txn, ack):
                    return f"step {step}: {txn} acknowledges up to {ack}"
            case 4 | 5:
                commit = random.random() < 0.4
                system.end(txn, commit)
                model.end(txn, commit)
            case 6:
                system.persist()
                model.persist()
            case 7:
                system.crash()
                model.crash()
            case 8:
                ack = an_ack(random)
                system.acknowledge_on_cursor(ack)
                model.acknowledge_plainly(ack)
        if system.free() != model.free():
            return f"step {step}: {system.free() ^ model.free()} differ"
    return ""


def test_the_machine_does_what_the_model_does() -> None:
    assert {fault(seed) for seed in SEEDS} == {""}


def _plant_forgotten_whole(patch: pytest.MonkeyPatch) -> None:
    """Plant: an entry is released for dispatch, but stays in the set of pending entries."""
    take = PendingAcks.take

    def taken(self: PendingAcks, txn: TxnId, count_max: int) -> list[Ack]:
        found = take(self, txn, count_max)
        for ack in found:
            if not ack.left and ack.entry_id % 5 == 0:
                self._whole.add(*ack.position)
        return found

    patch.setattr(PendingAcks, "take", taken)


def _plant_strict_replay(patch: pytest.MonkeyPatch) -> None:
    """Plant: as in Pulsar, one acknowledged position rejects the whole record at the replay."""

    def replay(self: PendingAcks, txn: TxnId, acks: Any, cursor: Any) -> None:
        if self.conflict(txn, acks, cursor) is None:
            self.acknowledge(txn, acks)

    patch.setattr(PendingAcks, "replay", replay)


def _plant_blind_overlap(patch: pytest.MonkeyPatch) -> None:
    """Plant: two transactions may acknowledge the same message of a batch."""
    patch.setattr(pending_acks, "_overlap", lambda left, other, batch_size: False)


@pytest.mark.parametrize(
    "plant", [_plant_forgotten_whole, _plant_strict_replay, _plant_blind_overlap]
)
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    assert any(fault(seed) for seed in SEEDS)


# --- records -----------------------------------------------------------------------------------


def test_records_have_pulsars_form() -> None:
    acks = (Ack(3, 4), Ack(3, 5, 0b101, 70), Ack(7, 2**40, 1 << 63 | 1 << 64, 65))
    record = LogRecord(Operation.ACK, TxnId(2, -1), False, acks)
    entry = encode_record(record)
    message = pb.PendingAckMetadataEntry.FromString(entry)
    assert (message.txnid_most_bits, message.txnid_least_bits) == (2, 2**64 - 1)
    assert message.pending_ack_metadata[2].ack_set == [-(2**63), 1]
    assert message.pending_ack_metadata[0].HasField("batch_size")
    assert decode_records(entry) == [record]
    commit = LogRecord(Operation.COMMIT, TxnId(1, 1), True)
    assert decode_records(encode_record(commit)) == [commit]


def test_batches_of_records_are_read() -> None:
    records = [
        LogRecord(Operation.ACK, TxnId(0, number), number == 1, (Ack(3, number),))
        for number in range(3)
    ]
    batch = pb.BatchedPendingAckMetadataEntry(
        pending_ack_logs=[
            pb.PendingAckMetadataEntry.FromString(encode_record(each)) for each in records
        ]
    )
    assert decode_records(b"\x0e\x01\x00\x01" + batch.SerializeToString()) == records
    with pytest.raises(MalformedRecord):
        decode_records(b"\x0e\x01\x00\x02" + batch.SerializeToString())
    with pytest.raises(MalformedRecord):
        decode_records(pb.PendingAckMetadataEntry().SerializeToString())


def test_a_rejected_record_has_no_effect() -> None:
    pending, cursor = PendingAcks(), AckSet(3, -1)
    pending.replay(TxnId(0, 1), [Ack(3, 0)], cursor)
    pending.replay(TxnId(0, 2), [Ack(3, 1), Ack(3, 0)], cursor)
    assert pending.transactions() == [TxnId(0, 1)]
    pending.replay_cumulative(TxnId(0, 1), Ack(3, 5), cursor)
    pending.replay_cumulative(TxnId(0, 2), Ack(3, 6), cursor)
    assert pending.cumulative == (TxnId(0, 1), Ack(3, 5))


def test_many_acknowledgements_of_many_transactions_end_in_a_short_time() -> None:
    """Ends take seconds if one looks at all that is, or was, pending."""
    pending, one, count = PendingAcks(), TxnId(0, 10**6), 60_000
    pending.acknowledge(one, [Ack(3, entry, 1, BATCH) for entry in range(count)])
    for number in range(count):
        pending.acknowledge(TxnId(0, number), [Ack(4, number)])
    began = time.process_time()
    while pending.take(one, 256):
        pass
    for number in range(5_000):
        assert pending.take(TxnId(0, number), 256) == [Ack(4, number)]
        pending.raise_low_water_mark(0, number - 1)
        assert pending.stray(0) is None
    assert time.process_time() - began < 0.6
    pending.raise_low_water_mark(0, 5_001)
    assert pending.stray(0) == TxnId(0, 5_000)


def test_numbers_of_ended_transactions_are_forgotten() -> None:
    """The oldest transaction stays open, and the others would pile up behind it."""
    pending = PendingAcks()
    pending.acknowledge(TxnId(0, 0), [Ack(3, 0)])
    for number in range(1, 10_000):
        pending.acknowledge(TxnId(0, number), [Ack(3, number)])
        pending.take(TxnId(0, number), 1)
    assert len(pending._holders[0]) < 2_000
    pending.raise_low_water_mark(0, 0)
    assert pending.stray(0) == TxnId(0, 0)


def test_the_index_has_few_points_and_trims_only_what_is_passed() -> None:
    index = TrimIndex(2)
    for number in range(100):
        index.note((9, number), [Ack(3, number)])
    assert len(index._points) < 15
    assert index.trim_to((3, -1)) is None
    first = index.trim_to((3, 50))
    assert first is not None and first <= (9, 50)
    index.note((9, 100), [Ack(3, 2)])
    assert index.trim_to((3, 50)) is None
    last = index.trim_to((3, 99))
    assert last is not None and (9, 50) < last <= (9, 100)


def test_words_are_those_of_java() -> None:
    assert words_of(0) == []
    assert words_of(1 << 127 | 1) == [1, -(2**63)]
    assert pending_acks.bits_of([1, -(2**63)]) == 1 << 127 | 1

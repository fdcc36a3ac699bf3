"""A simulator of transactions: coordinators, topics with their subscriptions, and clients.

The machines of the broker (`Coordinator`, `Buffer`, `PendingAcks`, `TrimIndex`) run unchanged in
model nodes, which do with them what the broker does, over model logs. A seed decides everything
else. Requests are delayed, lost, repeated, and reordered between connections. Answers are lost.
Nodes crash, and any prefix of the appends that are not durable yet is stored. Recoveries find an
old snapshot, an old cursor, or a log without the records of some ended transactions. Clients
consume, transform and produce, acknowledge the same messages in two transactions or outside of
them, one by one or cumulatively, leave without an end, and end transactions that have timed out.

`simulate(seed)` raises Violation when one of these does not hold:

- a transaction gets one decision, which is durable before anything shows it, and an END_TXN that
  was answered with success survives with its decision;
- each reader receives the messages of committed transactions and those outside of transactions,
  each once, in the order of the log, on all topics, and no others;
- a message whose acknowledgement was answered is delivered again only after an abort;
- an acknowledgement is refused only if the end of its transaction has begun, and then always by
  the node that has ended it; others are answered with a conflict if, and only if, the message is
  acknowledged or pending, so that two transactions never commit the same acknowledgement;
- when the faults end, every transaction ends, no topic holds its readers back, nothing is pending,
  and what was not acknowledged is delivered;
- nodes that recover then have the same state.

What must hold follows from whole logs (transaction_model.py).

`python tests/simulate_transactions.py --seeds N [--first SEED]` runs many seeds.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, NamedTuple

import simulating
from pyxbroker.base.errors import InvalidTxnStatus, PulsarError, TransactionNotFound
from pyxbroker.broker.transactions.buffer import Buffer, Snapshot
from pyxbroker.broker.transactions.coordinator import Coordinator, LogRecord, Status
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.pending_acks import Ack, PendingAcks, TrimIndex
from pyxbroker.entry import Position
from transaction_model import (
    CONFLICT,
    LOST,
    OK,
    REFUSED,
    Entry,
    Model,
    ModelAcks,
    PendingRecord,
    Violation,
)

LEDGER_ENTRIES = 3
EVENTS_MAX = 20_000
Participant = tuple[str, str | None]
"""A topic, and the name of a subscription."""
POSITIONS = [Position(*divmod(at, LEDGER_ENTRIES)) for at in range(2_000)]
BEGIN = Position(0, -1)

CUMULATIVE = (0, 0, 0, 0.5, 1, 1)
"""Parts of cumulative acknowledgements of the second subscription."""
LOSS = 0.06  # most requests, and answers, that are lost
COPY = 0.08  # requests that arrive a second time


def index_of(position: tuple[int, int]) -> int:
    """Return the number of an entry in its log."""
    return position[0] * LEDGER_ENTRIES + position[1]


def position_of(at: int) -> Position:
    """Return the position of an entry; -1: the one before the first."""
    return POSITIONS[at] if at >= 0 else BEGIN


class Call:
    """A request, which is answered once."""

    __slots__ = ("_answer", "_simulation", "is_answered")

    def __init__(self, simulation: Simulation, answer: Callable[[Any], None]) -> None:
        self._simulation = simulation
        self._answer = answer
        self.is_answered = False

    def answer(self, value: Any) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._simulation.later(self._answer, value)


class Log:
    """A log: records are appended, then durable in that order. It survives its owner."""

    def __init__(self, simulation: Simulation, on_durable: Callable[[Any], None]) -> None:
        self.durable: list[Any] = []
        self._pending: deque[tuple[Any, list[Callable[[int], None]]]] = deque()
        self._simulation = simulation
        self._on_durable = on_durable
        self._epoch = 0
        self._is_slow = simulation.chance() < 0.2

    def append(self, record: Any, callback: Callable[[int], None]) -> None:
        """Append a record. The callback gets its number when it is durable."""
        self._pending.append((record, [callback]))
        self._simulation.later(self._confirm, self._epoch)

    def after_last(self, callback: Callable[[int], None]) -> None:
        """Call back when all that was appended is durable."""
        if self._pending:
            self._pending[-1][1].append(callback)
        else:
            callback(len(self.durable) - 1)

    def _confirm(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        simulation = self._simulation
        if self._is_slow and simulation.has_faults and simulation.chance() < 0.9:
            simulation.later(self._confirm, epoch)
            return
        record, callbacks = self._pending.popleft()
        at = len(self.durable)
        self.durable.append(record)
        self._on_durable(record)
        for each in callbacks:
            each(at)

    def crash(self, stored: float) -> None:
        """The owner has crashed: a part of what is pending is durable."""
        for _ in range(int(stored * (len(self._pending) + 1))):
            record, _ = self._pending.popleft()
            self.durable.append(record)
            self._on_durable(record)
        self._pending.clear()
        self._epoch += 1


class Owner:
    """What is stored of a coordinator or a topic, and the node that owns it now, if any."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.node: Any = None

    def start(self) -> Any:
        """Return a new node."""
        raise NotImplementedError

    def recover(self) -> None:
        if self.node is None:
            self.node = self.start()
            self.node.resume()

    def crash(self) -> None:
        node, self.node = self.node, None
        if node is not None:
            self.lose()
            for call in node.calls:
                call.answer(LOST)
            self.simulation.later(self.recover)

    def lose(self) -> None:
        """Lose what is not durable."""
        raise NotImplementedError


class Node:
    """A part of a broker that has loaded a coordinator or a topic, until it crashes."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def resume(self) -> None:
        """Continue what was under way."""


# --- coordinators -------------------------------------------------------------------------------


class StoredCoordinator(Owner):
    """The log of a coordinator. Records of ended transactions are deleted some time later."""

    def __init__(self, simulation: Simulation, id: int) -> None:
        super().__init__(simulation)
        self.id = id
        self.log = Log(simulation, partial(simulation.model.on_decision, id))
        self.ended: set[int] = set()
        self.deleted: set[int] = set()
        self.sequence = -1

    def start(self) -> Any:
        return self.simulation.plants.coordinator_node(self.simulation, self)

    def lose(self) -> None:
        chance = self.simulation.chance
        self.log.crash(chance())
        if chance() < 0.5:
            deleted = {each for each in self.ended if chance() < 0.5}
            self.deleted |= deleted
            self.ended -= deleted
            self.sequence = max(self.sequence, max(deleted, default=-1))


class CoordinatorNode(Node):
    """A running coordinator, as RunningCoordinator."""

    def __init__(self, simulation: Simulation, stored: StoredCoordinator) -> None:
        super().__init__()
        self.simulation = simulation
        self.stored = stored
        self.id = stored.id
        self.state = simulation.plants.coordinator(stored.id)
        self._ends: dict[int, list[Call]] = {}
        self._left: dict[int, int] = {}  # participants that have not ended a transaction
        for record in stored.log.durable:
            if record.least not in stored.deleted:
                self.state.replay(record)
        self.state.sequence = max(self.state.sequence, stored.sequence)

    def resume(self) -> None:
        for each in list(self.state.transactions.values()):
            if each.status is not Status.OPEN:
                self._drive(each.least, None, [])

    def append(self, record: LogRecord | None, callback: Callable[[], None]) -> None:
        """Call back once a record, or without one those before, are durable."""
        if record is None:
            self.stored.log.after_last(lambda at: callback())
        else:
            self.stored.log.append(record, lambda at: callback())

    def new(self, call: Call) -> None:
        record = self.state.new(1_000, 0, None)
        self.append(record, partial(call.answer, TxnId(self.id, record.least)))

    def add(self, least: int, participant: Participant, call: Call) -> None:
        topic, subscription = participant
        try:
            if subscription is None:
                record = self.state.add_partitions(least, [topic], 0)
            else:
                record = self.state.add_subscriptions(least, [(topic, subscription)], 0)
        except (TransactionNotFound, InvalidTxnStatus) as error:
            self.refuse(error, call)
        else:
            self.append(record, partial(call.answer, OK))

    def refuse(self, error: PulsarError, call: Call) -> None:
        """Answer with an error once the records on which it rests are durable."""
        self.append(None, partial(call.answer, error))

    def end(self, least: int, is_commit: bool, call: Call) -> None:
        try:
            record = self.state.begin_end(least, is_commit, 0)
        except (TransactionNotFound, InvalidTxnStatus) as error:
            self.refuse(error, call)
            return
        waiting = self._ends.get(least)
        if waiting is None:
            self._drive(least, record, [call])
        else:
            waiting.append(call)

    def _drive(self, least: int, record: LogRecord | None, calls: list[Call]) -> None:
        self._ends[least] = calls
        self.append(record, partial(self._end_everywhere, least))

    def _end_everywhere(self, least: int) -> None:
        found = self.state.find(least)
        participants: list[Participant] = []
        if found is not None:
            participants += found.subscriptions
            participants += [(topic, None) for topic in found.partitions]
            self._left[least] = len(participants)
            for each in participants:
                self._attempt(least, each)
        if not participants:
            self._finish(least)

    def _attempt(self, least: int, participant: Participant) -> None:
        found = self.state.find(least)
        assert found is not None
        topic, subscription = participant
        is_commit = found.status is Status.COMMITTING
        end = (subscription, TxnId(self.id, least), is_commit, self.state.low_water_mark)
        owner = self.simulation.topics[topic]
        self.simulation.request(owner, "end", end, partial(self._on_ended, least, participant))

    def _on_ended(self, least: int, participant: Participant, answer: Any) -> None:
        if self.stored.node is not self:
            return
        if answer is LOST:
            self._attempt(least, participant)
            return
        self._left[least] -= 1
        if not self._left[least]:
            self._finish(least)

    def _finish(self, least: int) -> None:
        self.append(self.state.finish_end(least, 0), partial(self._on_finished, least))

    def _on_finished(self, least: int) -> None:
        self.stored.ended.add(least)
        for call in self._ends.pop(least):
            call.answer(OK)

    def time_out(self, least: int) -> None:
        """Abort a transaction that is open."""
        if self.state.transactions[least].status is Status.OPEN:
            self.end(least, False, Call(self.simulation, lambda answer: None))


# --- topics and their subscriptions -------------------------------------------------------------


class StoredTopic(Owner):
    """The log of a topic, its snapshots and its subscriptions."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation)
        self.name = name
        self.log = Log(simulation, partial(simulation.model.on_entry, name))
        self.first = 0  # entries before it are deleted
        self.snapshots: list[Snapshot] = []
        self.subscriptions: dict[str, StoredSubscription] = {}
        self.reader = Reader(self)

    def start(self) -> Any:
        return self.simulation.plants.topic_node(self.simulation, self)

    def lose(self) -> None:
        chance = self.simulation.chance
        self.log.crash(chance())
        for each in self.subscriptions.values():
            each.log.crash(chance())
            each.model.crash(each.durable_acks, each.log.durable)

    def trim_ledgers(self) -> None:
        """Store the cursors, and delete the ledgers that everybody has read."""
        if self.node is not None:
            for each in self.node.subscriptions.values():
                each.persist()
        self.reader.read()
        marks = [each.durable_mark for each in self.subscriptions.values()]
        end = min([self.reader.next, *(mark + 1 for mark in marks)])
        self.first = max(self.first, end - end % LEDGER_ENTRIES)


class Reader:
    """A reader of a topic, which survives its nodes."""

    def __init__(self, topic: StoredTopic) -> None:
        self.topic = topic
        self.next = 0
        self.received: list[int] = []

    def read(self) -> None:
        node = self.topic.node
        if node is None:
            return
        end = node.end_of_reading
        while self.next < end:
            if node.delivers(self.next):
                self.received.append(self.next)
            self.next += 1


class TopicNode(Node):
    """A loaded topic with its transaction buffer, as TransactionBuffer, and its subscriptions."""

    def __init__(self, simulation: Simulation, stored: StoredTopic) -> None:
        super().__init__()
        self.simulation = simulation
        self.stored = stored
        self.model = simulation.model
        self.buffer: Buffer = simulation.plants.buffer()
        self.is_ready = False
        self._is_beginning = False
        self._held: list[tuple[TxnId, Call]] = []
        if stored.snapshots:
            self._recover(stored.snapshots)
        pending_acks = simulation.plants.subscription_node
        self.subscriptions = {
            name: pending_acks(self, each) for name, each in stored.subscriptions.items()
        }

    def _recover(self, snapshots: list[Snapshot]) -> None:
        chance = self.simulation.chance
        snapshot = snapshots[-1] if chance() < 0.8 else snapshots[int(chance() * len(snapshots))]
        self.buffer = buffer = self.simulation.plants.buffer(snapshot.aborted)
        log = self.stored.log.durable
        for at in range(max(index_of(snapshot.max_read) + 1, self.stored.first), len(log)):
            txn, end = log[at]
            if end is not None:
                buffer.on_end(txn, end, POSITIONS[at])
            elif txn is not None:
                buffer.on_message(txn, POSITIONS[at])
        self.is_ready = True

    # --- publishing ---

    def send(self, txn: TxnId | None, call: Call) -> None:
        if txn is not None and not self.is_ready:
            self._held.append((txn, call))
            if not self._is_beginning:
                self._is_beginning = True
                self.simulation.later(self._begin, self.take_snapshot())
        elif txn is not None and self.buffer.refuses(txn):
            call.answer(REFUSED)
        else:
            self.stored.log.append(Entry(txn), partial(self._on_sent, txn, call))

    def _begin(self, snapshot: Snapshot) -> None:
        self.stored.snapshots.append(snapshot)
        if self.stored.node is self:
            self.is_ready = True
            held, self._held = self._held, []
            for txn, call in held:
                self.send(txn, call)

    def _on_sent(self, txn: TxnId | None, call: Call, at: int) -> None:
        if txn is not None:
            self.buffer.on_message(txn, POSITIONS[at])
        call.answer(at)

    # --- ends of transactions ---

    def end(
        self, subscription: str | None, txn: TxnId, is_commit: bool, mark: int, call: Call
    ) -> None:
        if subscription is not None:
            self.subscriptions[subscription].end(txn, is_commit, mark, call)
        elif not self.is_ready and not is_commit:
            self.buffer.remember_end(txn, is_commit)
            call.answer(OK)
        elif self.buffer.has_ended(txn):
            self._on_end(txn, mark, call)
        else:
            self._append_marker(txn, is_commit, partial(self._on_end, txn, mark, call))

    def _append_marker(self, txn: TxnId, is_commit: bool, then: Callable[[], None]) -> None:
        def on_stored(at: int) -> None:
            self.buffer.on_end(txn, is_commit, POSITIONS[at])
            then()

        self.buffer.begin_end(txn)
        self.stored.log.append(Entry(txn, is_commit), on_stored)

    def _on_end(self, txn: TxnId, mark: int, call: Call) -> None:
        self.buffer.raise_low_water_mark(txn.most, mark)
        self._abort_strays(call)

    def _abort_strays(self, call: Call) -> None:
        stray = self.buffer.stray()
        if stray is not None:
            self._append_marker(stray, False, partial(self._abort_strays, call))
            return
        self.buffer.trim(self.stored.first // LEDGER_ENTRIES)
        call.answer(OK)

    # --- snapshots ---

    def take_snapshot(self) -> Snapshot:
        return self.buffer.snapshot(position_of(self.end_of_reading - 1))

    def store_snapshot(self) -> None:
        if self.is_ready:
            self.buffer.trim(self.stored.first // LEDGER_ENTRIES)
            self.simulation.later(self.stored.snapshots.append, self.take_snapshot())

    # --- reading ---

    @property
    def end_of_reading(self) -> int:
        limit = self.buffer.limit
        return len(self.stored.log.durable) if limit is None else index_of(limit)

    def delivers(self, at: int) -> bool:
        """Return True if an entry before `end_of_reading` is delivered. Raises Violation if that is
        wrong.
        """
        entry = self.stored.log.durable[at]
        if entry.end is not None:
            return False
        is_visible = entry.txn is None or entry.txn not in self.buffer.aborted
        self.model.check_visibility(self.stored, at, is_visible)
        return is_visible


class StoredSubscription:
    """The log of pending acknowledgements of a subscription, and its durable cursor."""

    def __init__(
        self, simulation: Simulation, topic: StoredTopic, name: str, cumulative_part: float
    ) -> None:
        self.topic = topic
        self.name = name
        self.cumulative_part = cumulative_part  # of the acknowledgements
        self.participant = (topic.name, name)
        self.log = Log(simulation, lambda record: None)
        self.log_starts = [0]  # each that the log's cursor had; any but the former ones is lost
        self.durable_acks: frozenset[int] = frozenset()
        self.durable_mark = -1
        self.model = ModelAcks()
        # Transactions that were answered that they have acknowledged a message, by message.
        self.answered: dict[int, list[TxnId]] = {}
        topic.subscriptions[name] = self

    @property
    def node(self) -> SubscriptionNode | None:
        found = self.topic.node
        return None if found is None else found.subscriptions[self.name]


class ModelCursor:
    """The acknowledged entries of a subscription: what PendingAcks asks of an AckSet."""

    def __init__(self, acknowledged: Iterable[int]) -> None:
        self.acknowledged = set(acknowledged)
        self.mark = -1
        self._move()

    def _move(self) -> None:
        while self.mark + 1 in self.acknowledged:
            self.mark += 1

    def add(self, at: int) -> None:
        self.acknowledged.add(at)
        self._move()

    def add_up_to(self, at: int) -> None:
        self.acknowledged.update(range(at + 1))
        self._move()

    @property
    def mark_delete(self) -> tuple[int, int]:
        return position_of(self.mark)

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return ledger_id * LEDGER_ENTRIES + entry_id in self.acknowledged

    def ack_set(self, ledger_id: int, entry_id: int) -> list[int]:
        return []


class SubscriptionNode:
    """A loaded subscription with its pending acknowledgements, as PendingAckHandle."""

    def __init__(self, topic: TopicNode, stored: StoredSubscription) -> None:
        self.topic = topic
        self.stored = stored
        self.simulation = topic.simulation
        plants = self.simulation.plants
        self.pending = plants.pending_acks()
        self.index = plants.trim_index(self.simulation.trim_records_min)
        self.cursor = ModelCursor(stored.durable_acks)
        self.delivered: set[int] = set()  # to consumers, which have not acknowledged them
        self._replay(stored)

    def _replay(self, stored: StoredSubscription) -> None:
        starts, log = stored.log_starts, stored.log.durable
        start = starts[int(self.simulation.chance() * len(starts))]
        for number in range(start, len(log)):
            record = log[number]
            at = record.acknowledged
            acks = () if at is None else (Ack(*POSITIONS[at]),)
            self.index.note((0, number), acks)
            if not acks:
                self.pending.begin_end(record.txn)
                self._take(record.txn, record.is_commit)
            elif record.is_cumulative:
                self.pending.replay_cumulative(record.txn, acks[0], self.cursor)
            else:
                self.pending.replay(record.txn, acks, self.cursor)

    def acknowledge(self, txn: TxnId, at: int, is_cumulative: bool, call: Call) -> None:
        """Acknowledge a message in a transaction, with those before it if is_cumulative."""
        acks, model = [Ack(*POSITIONS[at])], self.stored.model
        if self.pending.refuses(txn):
            if txn not in self.topic.model.is_commit:
                raise Violation(f"{txn} must not acknowledge, and no end has begun")
            call.answer(REFUSED)
            return
        if txn in model.ended:
            raise Violation(f"{txn} acknowledges {at} of {self.stored.participant} after its end")
        if is_cumulative:
            text = self.pending.cumulative_conflict(txn, acks[0], self.cursor)
            is_conflict = model.conflicts_up_to(txn, at)
        else:
            text = self.pending.conflict(txn, acks, self.cursor)
            is_conflict = model.conflicts(at)
        if (text is not None) != is_conflict:
            raise Violation(f"{txn} acknowledges {at} of {self.stored.participant}: {text}")
        if text is not None:
            call.answer(CONFLICT)
            return
        record = PendingRecord(txn, is_cumulative, at)
        self.stored.log.append(record, partial(self._on_stored, acks, call))
        model.acknowledge(record)
        if is_cumulative:
            self.pending.acknowledge_cumulatively(txn, acks[0])
        else:
            self.pending.acknowledge(txn, acks)

    def _on_stored(self, acks: list[Ack], call: Call, number: int) -> None:
        self.index.note((0, number), acks)
        call.answer(OK)

    def acknowledge_plainly(self, at: int) -> None:
        self.cursor.add(at)
        self.stored.model.acknowledged.add(at)

    def end(self, txn: TxnId, is_commit: bool, mark: int, call: Call) -> None:
        self._end(txn, is_commit, partial(self._on_ended, txn, mark, call))

    def _end(self, txn: TxnId, is_commit: bool, then: Callable[[], None]) -> None:
        self.pending.begin_end(txn)
        kinds = [
            each for each, held in zip((False, True), self.pending.holds(txn), strict=True) if held
        ]
        log = self.stored.log
        for is_cumulative in kinds:
            record = PendingRecord(txn, is_cumulative, None, is_commit)
            log.append(record, lambda number: self.index.note((0, number), ()))
        self.stored.model.end(txn, is_commit)
        self._take(txn, is_commit)
        self.after_end(then, bool(kinds))

    def after_end(self, then: Callable[[], None], has_records: bool) -> None:
        """Continue when the end of a transaction is durable, also if another call has begun it."""
        self.stored.log.after_last(lambda number: then())

    def _take(self, txn: TxnId, is_commit: bool) -> None:
        last = self.pending.take_cumulative(txn)
        if last is not None:
            if is_commit:
                self.cursor.add_up_to(index_of(last.position))
            else:
                self.delivered.clear()
        while found := self.pending.take(txn, 1):
            for ack in found:
                if is_commit:
                    self.cursor.add(index_of(ack.position))
                else:
                    self.delivered.discard(index_of(ack.position))

    def _on_ended(self, txn: TxnId, mark: int, call: Call) -> None:
        self.topic.model.check_end(self.stored, txn)
        model, pending, has_strays = self.stored.model, self.pending, False
        for each in model.holders():
            if each.most == txn.most and each.least <= mark:
                model.end(each, False)
        pending.raise_low_water_mark(txn.most, mark)
        while (stray := pending.stray(txn.most)) is not None:
            self._end(stray, False, lambda: None)
            has_strays = True
        if has_strays:
            self.stored.log.after_last(lambda number: self._trim(call))
        else:
            self._trim(call)

    def _trim(self, call: Call) -> None:
        position = self.index.trim_to(self.cursor.mark_delete)
        if position is not None:
            self.persist()
            starts = self.stored.log_starts
            starts.append(position[1] + 1)
        call.answer(OK)

    def persist(self) -> None:
        """Store the cursor."""
        self.stored.durable_acks = frozenset(self.cursor.acknowledged)
        self.stored.durable_mark = self.cursor.mark

    def deliver(self) -> int | None:
        """Return the next message for a consumer, or None."""
        at, end = self.cursor.mark + 1, self.topic.end_of_reading
        cursor, stored = self.cursor.acknowledged, self.stored
        while at < end:
            if at not in cursor and at not in self.delivered:
                if not self.topic.delivers(at):
                    self.acknowledge_plainly(at)
                elif self.pending.left(*POSITIONS[at]) is None:
                    self.topic.model.check_delivery(stored, at)
                    self.delivered.add(at)
                    return at
                elif not stored.model.is_pending(at):
                    raise Violation(f"{at} of {stored.participant} is pending for no transaction")
            at += 1
        return None


# --- clients ------------------------------------------------------------------------------------


class Work:
    """A transaction of a client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.simulation = client.simulation
        self.txn = TxnId(-1, -1)
        self.is_waiting = True  # for an answer of the coordinator
        self.is_failed = False
        self.is_ending = False
        self.unanswered = 0
        self.added: set[Participant] = set()
        self.owner = self.simulation.random_coordinator()
        self.held: list[tuple[StoredSubscription, int]] = []  # messages
        self.simulation.request(self.owner, "new", (), self._on_new)

    def _on_new(self, answer: Any) -> None:
        if answer is LOST:
            self.close()
            return
        model = self.simulation.model
        if answer in model.given:
            raise Violation(f"{answer} was given to two clients")
        model.given.add(answer)
        self.txn = answer
        self.is_waiting = False

    def close(self) -> None:
        """Leave the transaction, and give back what is not acknowledged."""
        if self.client.work is self:
            self.client.work = None
        for subscription, at in self.held:
            if subscription.node is not None:
                subscription.node.delivered.discard(at)

    def step(self) -> None:
        chance = self.simulation.chance
        if self.is_waiting or self.is_ending:
            if chance() < 0.03:
                self.close()
            elif self.is_ending and chance() < 0.05:
                self.end(chance() < 0.5)  # as a client that repeats it, or changes its mind
            return
        r = chance()
        if r < 0.35:
            topic = self.simulation.random_topic()
            self._within((topic.name, None), partial(self._send, topic))
        elif r < 0.65:
            self._consume()
        elif r < 0.7:
            self._acknowledge_of_another()
        elif r < 0.72:
            self.close()
        elif self.is_failed or not self.unanswered:
            self.end(not self.is_failed and chance() < 0.75)

    def _within(self, participant: Participant, then: Callable[[], None]) -> None:
        """Continue once the coordinator knows a participant."""
        if participant in self.added:
            then()
            return
        self.is_waiting = True
        self.simulation.request(
            *(self.owner, "add", (self.txn.least, participant)),
            partial(self._on_added, participant, then),
        )

    def _on_added(self, participant: Participant, then: Callable[[], None], answer: Any) -> None:
        self.is_waiting = False
        if answer is OK:
            self.added.add(participant)
            then()
        else:
            self.is_failed = True

    def _send(self, topic: StoredTopic) -> None:
        self.unanswered += 1
        self.simulation.request(topic, "send", (self.txn,), partial(self._on_sent, topic))

    def _on_sent(self, topic: StoredTopic, answer: Any) -> None:
        self.unanswered -= 1
        if isinstance(answer, int):
            self.simulation.model.sent.setdefault(self.txn, []).append((topic.name, answer))
        else:
            self.is_failed = True

    def _consume(self) -> None:
        subscription = self.simulation.random_subscription()
        node = subscription.node
        at = None if node is None else node.deliver()
        if at is None:
            return
        self.held.append((subscription, at))
        self._within(subscription.participant, partial(self._acknowledge, subscription, at))

    def _acknowledge_of_another(self) -> None:
        recent = self.simulation.recent
        if recent:
            subscription, at = recent[int(self.simulation.chance() * len(recent))]
            self._within(subscription.participant, partial(self._acknowledge, subscription, at))

    def _acknowledge(self, subscription: StoredSubscription, at: int) -> None:
        self.unanswered += 1
        self.simulation.recent.append((subscription, at))
        is_cumulative = self.simulation.chance() < subscription.cumulative_part
        self.simulation.request(
            *(subscription.topic, "acknowledge", (subscription.name, self.txn, at, is_cumulative)),
            partial(self._on_acknowledged, subscription, at, is_cumulative),
        )

    def _on_acknowledged(
        self, subscription: StoredSubscription, at: int, is_cumulative: bool, answer: Any
    ) -> None:
        self.unanswered -= 1
        if answer is OK:
            up_to = range(at + 1) if is_cumulative else (at,)
            for each in up_to:
                subscription.answered.setdefault(each, []).append(self.txn)
        else:
            self.is_failed = True

    def end(self, is_commit: bool) -> None:
        self.is_ending = True
        self.simulation.request(
            self.owner, "end", (self.txn.least, is_commit), partial(self._on_end, is_commit)
        )

    def _on_end(self, is_commit: bool, answer: Any) -> None:
        if answer is not LOST:
            self.simulation.model.on_ended(self.txn, is_commit, answer)
        elif self.client.work is self:
            self.end(is_commit)
            return
        if self.client.work is self and self.simulation.chance() < 0.1:
            self.end(is_commit is (self.simulation.chance() < 0.5))  # once more, or the other one
        self.close()


class Client:
    """A worker, with one transaction at a time."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.work: Work | None = None

    def step(self) -> None:
        if self.work is not None:
            self.work.step()
            return
        r = self.simulation.chance()
        if r < 0.15:
            topic = self.simulation.random_topic()
            self.simulation.request(topic, "send", (None,), lambda answer: None)
        elif r < 0.2:
            recent = self.simulation.recent
            if recent:
                subscription, at = recent[int(self.simulation.chance() * len(recent))]
                if subscription.node is not None:
                    subscription.node.acknowledge_plainly(at)
        elif r < 0.4:
            subscription = self.simulation.random_subscription()
            node = subscription.node
            at = None if node is None else node.deliver()
            if at is not None and node is not None:
                node.acknowledge_plainly(at)
        else:
            self.work = Work(self)


# --- the simulation -----------------------------------------------------------------------------


class Plants(NamedTuple):
    """The classes under test, or others with a bug."""

    coordinator: type[Coordinator] = Coordinator
    buffer: type[Buffer] = Buffer
    pending_acks: type[PendingAcks] = PendingAcks
    trim_index: type[TrimIndex] = TrimIndex
    coordinator_node: type[CoordinatorNode] = CoordinatorNode
    topic_node: type[TopicNode] = TopicNode
    subscription_node: type[SubscriptionNode] = SubscriptionNode


class Simulation:
    """One seed."""

    def __init__(self, seed: int, plants: Plants) -> None:
        self.plants = plants
        self.chance = chance = Random(seed).random
        self.model = Model()
        self.has_faults = True
        self.loss = LOSS * chance()
        self.crashes = 0
        self.recent: list[tuple[StoredSubscription, int]] = []
        self._events: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.trim_records_min = 1 + int(chance() * 3)
        self.coordinators = [StoredCoordinator(self, id) for id in range(1 + (chance() < 0.3))]
        topics = [StoredTopic(self, name) for name in "ABC"[: 2 + (chance() < 0.3)]]
        self.topics = {each.name: each for each in topics}
        self.all_topics = topics
        self.subscriptions = [
            StoredSubscription(self, topics[0], "s", 0),
            StoredSubscription(self, topics[int(chance() * 2)], "t", CUMULATIVE[int(chance() * 6)]),
        ]
        self.owners: list[Owner] = [*self.coordinators, *topics]
        for each in self.owners:
            each.recover()
        for topic in topics[: 1 + (chance() < 0.5)]:
            for _ in range(int(chance() * 6)):
                topic.node.send(None, Call(self, lambda answer: None))
        self.clients = [Client(self) for _ in range(2 + (chance() < 0.5))]

    # --- events ---

    def later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call some time later."""
        self._events.append((call, arguments))

    def request(
        self, owner: Owner, method: str, arguments: tuple[Any, ...], answer: Callable[[Any], None]
    ) -> None:
        """Send a request to the node of an owner. The answer may be LOST."""
        self._events.append((self._arrive, (owner, method, arguments, Call(self, answer))))

    def _arrive(self, owner: Owner, method: str, arguments: tuple[Any, ...], call: Call) -> None:
        node = owner.node
        if node is None:
            call.answer(LOST)
            return
        if self.has_faults:
            r = self.chance()
            if r < self.loss:
                call.answer(LOST)
                return
            if r < 2 * self.loss:
                self.later(call.answer, LOST)
            elif r < 2 * self.loss + COPY:
                copied = (owner, None if method == "end" else node, method, arguments)
                self._events.append((self._arrive_again, copied))
        node.calls.append(call)
        self._call(node, method, arguments, call)

    def _arrive_again(
        self, owner: Owner, node: Node | None, method: str, arguments: tuple[Any, ...]
    ) -> None:
        """A copy of a request arrives, by another connection. Only an end finds later nodes."""
        if self.has_faults and self.chance() < 0.8:
            self._events.append((self._arrive_again, (owner, node, method, arguments)))
        elif owner.node is not None and node in (None, owner.node):
            self._call(owner.node, method, arguments, Call(self, lambda answer: None))

    @staticmethod
    def _call(node: Any, method: str, arguments: tuple[Any, ...], call: Call) -> None:
        if method == "acknowledge":
            name, *acknowledged = arguments
            node.subscriptions[name].acknowledge(*acknowledged, call)
        else:
            getattr(node, method)(*arguments, call)

    def _run_event(self) -> None:
        events = self._events
        at = int(self.chance() * len(events))
        call, arguments = events[at]
        last = events.pop()
        if at < len(events):
            events[at] = last
        call(*arguments)

    def drain(self) -> None:
        """Run until nothing happens any more."""
        events = self._events
        for _ in range(EVENTS_MAX):
            if not events:
                return
            self._run_event()
        raise Violation("the nodes never come to rest")

    # --- what is chosen ---

    def random_topic(self) -> StoredTopic:
        return self.all_topics[int(self.chance() * len(self.all_topics))]

    def random_coordinator(self) -> StoredCoordinator:
        return self.coordinators[int(self.chance() * len(self.coordinators))]

    def random_subscription(self) -> StoredSubscription:
        return self.subscriptions[int(self.chance() * len(self.subscriptions))]

    # --- the run ---

    def run(self) -> None:
        chance = self.chance
        steps = 20 + int(chance() * 40)
        while steps:
            r = chance()
            if r < 0.85 and self._events:
                self._run_event()
                continue
            steps -= 1
            if r < 0.97:
                self.clients[int(chance() * len(self.clients))].step()
            else:
                self._happen(chance())
        self.settle()
        self.check()
        for each in self.owners:
            each.crash()
        self.drain()
        self.check()

    def _happen(self, r: float) -> None:
        """Let something happen that no client asks for."""
        if r < 0.3:
            self.owners[int(self.chance() * len(self.owners))].crash()
            self.crashes += 1
        elif r < 0.4:
            node = self.random_coordinator().node
            for least in list(node.state.transactions) if node is not None else ():
                if self.chance() < 0.5:
                    node.time_out(least)
        elif r < 0.65:
            topic = self.random_topic()
            if topic.node is not None:
                topic.node.store_snapshot()
        elif r < 0.75:
            subscription = self.random_subscription().node
            if subscription is not None:
                subscription.persist()
        elif r < 0.85:
            self.random_topic().trim_ledgers()
        else:
            self.random_topic().reader.read()

    def settle(self) -> None:
        """End the faults, and wait until every transaction has ended."""
        if self.chance() < 0.3:
            for each in self.owners:
                each.crash()
        self.has_faults = False
        for each in self.owners:
            each.recover()
        self.drain()
        for client in self.clients:
            if client.work is not None:
                client.work.close()
        for stored in self.coordinators:
            for least in list(stored.node.state.transactions):
                stored.node.time_out(least)
        self.drain()
        for stored in self.coordinators:
            self._commit_everywhere(stored)

    def _commit_everywhere(self, stored: StoredCoordinator) -> None:
        """Commit a transaction with each topic and subscription: it aborts what came too late."""
        answers: list[Any] = []

        def ask(owner: Owner, method: str, *arguments: Any) -> Any:
            self.request(owner, method, arguments, answers.append)
            self.drain()
            if not answers:
                raise Violation(f"{method} gets no answer")
            return answers.pop()

        txn = ask(stored, "new")
        for each in self.subscriptions:
            ask(stored, "add", txn.least, each.participant)
        for topic in self.all_topics:
            ask(stored, "add", txn.least, (topic.name, None))
            at = ask(topic, "send", txn)
            self.model.sent.setdefault(txn, []).append((topic.name, at))
        self.model.on_ended(txn, True, ask(stored, "end", txn.least, True))

    def check(self) -> None:
        """Check the state of nodes at rest."""
        model = self.model
        for stored in self.coordinators:
            if stored.node.state.transactions:
                raise Violation(f"transactions do not end: {list(stored.node.state.transactions)}")
        for topic in self.all_topics:
            self._check_topic(topic)
        for txn, sent in model.sent.items():
            for name, at in sent:
                is_received = at in self.topics[name].reader.received
                if is_received is not model.is_commit.get(txn):
                    raise Violation(f"message {at} of {name} in {txn}: received {is_received}")
        for subscription in self.subscriptions:
            self._check_subscription(subscription)

    def _check_topic(self, topic: StoredTopic) -> None:
        node, end = topic.node, len(topic.log.durable)
        if node.end_of_reading != end:
            raise Violation(f"readers of {topic.name} are held back: {node.buffer.ongoing}")
        topic.reader.read()
        expected = self.model.visible(topic)
        received = [at for at in topic.reader.received if not self.model.is_late(topic, at)]
        if received != expected:
            raise Violation(f"the reader of {topic.name} received {received}, not {expected}")
        for at in range(topic.first, end):
            node.delivers(at)

    def _check_subscription(self, subscription: StoredSubscription) -> None:
        node, model = subscription.node, subscription.model
        assert node is not None
        if not node.pending.is_empty or model.holders():
            raise Violation(f"{subscription.participant}: pending {node.pending.transactions()}")
        node.delivered.clear()
        while (at := node.deliver()) is not None:
            node.acknowledge_plainly(at)
        end = len(subscription.topic.log.durable)
        if not model.acknowledged == node.cursor.acknowledged or node.cursor.mark != end - 1:
            raise Violation(f"{subscription.participant}: {node.cursor.mark} of {end}")
        if not subscription.cumulative_part:
            for at, txns in subscription.answered.items():
                if sum(self.model.is_commit[txn] for txn in txns) > 1:
                    raise Violation(f"{at} of {subscription.participant} committed by {txns}")


def simulate(seed: int, plants: Plants = Plants()) -> Simulation:  # noqa: B008
    """Run one seed to its end. Raises Violation."""
    simulation = Simulation(seed, plants)
    try:
        simulation.run()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error
    return simulation


if __name__ == "__main__":
    sys.exit(simulating.main("Simulate transactions by seeds.", simulate, Violation))

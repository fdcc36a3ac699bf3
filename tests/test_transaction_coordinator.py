"""The state of a transaction coordinator: each command, recovery, and random crashes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from pyxbroker.base import limits
from pyxbroker.base.errors import (
    InvalidTxnStatus,
    PulsarError,
    TooManyRequests,
    TransactionNotFound,
)
from pyxbroker.broker.transactions import coordinator
from pyxbroker.broker.transactions.coordinator import (
    NEXT,
    Coordinator,
    LogRecord,
    Operation,
    Status,
)

NOW_MS = 1_000_000


def new(state: Coordinator) -> int:
    return state.new(60_000, NOW_MS, None).least


def in_status(status: Status) -> tuple[Coordinator, int]:
    """A coordinator with a transaction in a status."""
    state = Coordinator(3)
    least = new(state)
    if status is not Status.OPEN:
        is_commit = status in (Status.COMMITTING, Status.COMMITTED)
        state.begin_end(least, is_commit, NOW_MS)
    if status in (Status.COMMITTED, Status.ABORTED):
        state.finish_end(least, NOW_MS)
    return state, least


COMMANDS: dict[str, Callable[[Coordinator, int], LogRecord | None]] = {
    "add": lambda state, least: state.add_partitions(least, ["t"], NOW_MS),
    "commit": lambda state, least: state.begin_end(least, True, NOW_MS),
    "abort": lambda state, least: state.begin_end(least, False, NOW_MS),
}
NOT_FOUND = TransactionNotFound, "The transaction with this txdID `(3,0)`not found "


def wrong(wanted: str, present: str) -> tuple[type[PulsarError], str]:
    text = f"Expect Txn `(3,0)` to be in {wanted} status but it is in {present} status"
    return InvalidTxnStatus, text


@pytest.mark.parametrize(
    ("status", "command", "expected"),
    [
        (Status.OPEN, "add", Operation.ADD_PARTITION),
        (Status.OPEN, "commit", Status.COMMITTING),
        (Status.OPEN, "abort", Status.ABORTING),
        (Status.COMMITTING, "add", wrong("OPEN", "COMMITTING")),
        (Status.COMMITTING, "commit", None),
        (Status.COMMITTING, "abort", wrong("ABORTING", "COMMITTING")),
        (Status.ABORTING, "add", wrong("OPEN", "ABORTING")),
        (Status.ABORTING, "commit", wrong("COMMITTING", "ABORTING")),
        (Status.ABORTING, "abort", None),
        (Status.COMMITTED, "add", NOT_FOUND),
        (Status.COMMITTED, "commit", None),
        (Status.COMMITTED, "abort", NOT_FOUND),
        (Status.ABORTED, "add", NOT_FOUND),
        (Status.ABORTED, "commit", NOT_FOUND),
        (Status.ABORTED, "abort", None),
    ],
)
def test_each_command_in_each_status(status: Status, command: str, expected: Any) -> None:
    state, least = in_status(status)
    if isinstance(expected, tuple):
        with pytest.raises(expected[0]) as error:
            COMMANDS[command](state, least)
        assert str(error.value) == expected[1]
        return
    record = COMMANDS[command](state, least)
    if expected is None:
        assert record is None
    elif isinstance(expected, Operation):
        assert record is not None and record.operation is expected
    else:
        assert record is not None
        assert (record.operation, record.expected, record.new) == (
            *(Operation.UPDATE, Status.OPEN),
            expected,
        )


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Status, Status)))
def test_a_replayed_change_of_status_has_an_effect_only_if_it_is_legal(
    before: Status, after: Status
) -> None:
    """Pulsar's logs have changes that it refused."""
    state, least = in_status(before)
    record = LogRecord(Operation.UPDATE, least, NOW_MS, 0, before, after)
    was_ended = before in (Status.COMMITTED, Status.ABORTED)
    assert state.replay(record) == (after in NEXT[before] and not was_ended)
    found = state.find(least)
    now = state.ended[least] if found is None else found.status
    assert now is (after if after in NEXT[before] else before)
    other = record._replace(expected=next(each for each in Status if each is not now))
    assert not state.replay(other)


def test_the_low_water_mark_is_below_the_oldest_transaction() -> None:
    state = Coordinator(0)
    assert state.low_water_mark == 0
    numbers = [new(state) for _ in range(3)]
    assert numbers == [0, 1, 2] and state.low_water_mark == -1
    for ended, mark in ((1, -1), (0, 1), (2, 0)):
        state.begin_end(ended, True, NOW_MS)
        state.finish_end(ended, NOW_MS)
        assert state.low_water_mark == mark


def test_a_client_can_hold_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Coordinator(0, active_max=2)
    first = new(state)
    new(state)
    with pytest.raises(TooManyRequests, match="maxActiveTransactionsPerCoordinator"):
        new(state)
    state.begin_end(first, False, NOW_MS)
    with pytest.raises(TooManyRequests):
        new(state)  # it is not ended yet
    state.finish_end(first, NOW_MS)
    least = new(state)
    assert least == 2  # a refusal takes no number
    monkeypatch.setattr(coordinator, "TRANSACTION_PARTICIPANTS_MAX", 3)
    state.add_partitions(least, ["a", "b"], NOW_MS)
    with pytest.raises(TooManyRequests, match="would have 4 partitions"):
        state.add_subscriptions(least, [("a", "s"), ("b", "s")], NOW_MS)
    assert state.add_partitions(least, ["a", "b"], NOW_MS) is None
    monkeypatch.setattr(coordinator, "TRANSACTION_NAMES_BYTES_MAX", state.names_bytes + 100)
    with pytest.raises(TooManyRequests, match="too many"):
        state.add_partitions(least, ["c"], NOW_MS)
    for each in list(state.transactions):
        state.begin_end(each, True, NOW_MS)
        state.finish_end(each, NOW_MS)
    assert state.names_bytes == 0
    assert limits.OPEN_TRANSACTIONS_MAX == 100_000


def test_so_many_ended_transactions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "ENDED_MAX", 2)
    state = Coordinator(0)
    for _ in range(3):
        least = new(state)
        state.begin_end(least, True, NOW_MS)
        state.finish_end(least, NOW_MS)
    assert state.begin_end(1, True, NOW_MS) is None
    with pytest.raises(TransactionNotFound):
        state.begin_end(0, True, NOW_MS)


# --- random crashes -------------------------------------------------------------------------------


class World:
    """A coordinator with its log, the participants, and what clients were answered.

    A step makes a record durable, ends a transaction at a participant, sends a command, or crashes.
    """

    def __init__(self, seed: int, make: Callable[[], Coordinator]) -> None:
        self.random = random.Random(seed)
        self.make = make
        self.log: list[LogRecord] = []  # durable
        self.numbers: set[int] = set()  # given to clients
        self.wanted: dict[int, bool] = {}  # the outcome that a client was answered
        self.added: dict[int, set[str]] = {}  # that clients were answered
        self.outcomes: dict[tuple[int, str], set[bool]] = {}  # at participants
        self.start()

    def start(self) -> None:
        """Recover from the durable records."""
        self.state = self.make()
        for record in self.log:
            self.state.replay(record)
        self.waiting: list[tuple[LogRecord, Callable[[], None]]] = []
        self.ends: dict[int, list[str]] = {}  # participants that are left
        for each in self.state.transactions.values():
            if each.status is not Status.OPEN:
                self.ends[each.least] = list(each.partitions)

    def run(self, steps: int) -> None:
        step: Callable[[], None]
        for _ in range(steps):
            step = self.random.choice(
                (self.new, self.add, self.end, self.end, *(self.store,) * 4, *(self.drive,) * 4)
            )
            step()
            if self.random.random() < 0.02:
                self.start()
        self.finish()

    def finish(self) -> None:
        """Complete what is under way, and check everything."""
        for least in list(self.state.transactions):
            found = self.state.transactions[least]
            if found.status is Status.OPEN:
                self.begin_end(least, False)
        while self.waiting or self.ends:
            self.store()
            self.drive()
        assert not self.state.transactions
        for (least, name), outcomes in self.outcomes.items():
            assert len(outcomes) == 1, f"{least} was committed and aborted at {name}"
        for least, is_commit in self.wanted.items():
            for name in self.added.get(least, ()):
                assert self.outcomes[least, name] == {is_commit}, (least, name)

    def new(self) -> None:
        record = self.state.new(1, NOW_MS, None)

        def answer() -> None:
            assert record.least not in self.numbers, "a number was given twice"
            self.numbers.add(record.least)

        self.waiting.append((record, answer))

    def add(self) -> None:
        if self.numbers:
            least, name = self.random.choice(sorted(self.numbers)), self.random.choice("abc")
            try:
                record = self.state.add_partitions(least, [name], NOW_MS)
            except PulsarError:
                return
            if record is not None:
                answer = lambda: self.added.setdefault(least, set()).add(name)  # noqa: E731
                self.waiting.append((record, answer))

    def end(self) -> None:
        if self.numbers:
            least = self.random.choice(sorted(self.numbers))
            self.begin_end(least, self.random.random() < 0.5)

    def begin_end(self, least: int, is_commit: bool) -> None:
        try:
            record = self.state.begin_end(least, is_commit, NOW_MS)
        except PulsarError:
            return
        if record is not None:
            found = self.state.transactions[least]

            def drive() -> None:
                self.ends[least] = list(found.partitions)

            self.waiting.append((record, drive))
        elif least in self.state.ended and not self.waiting:
            self.wanted[least] = is_commit

    def store(self) -> None:
        if self.waiting:
            record, answer = self.waiting.pop(0)
            self.log.append(record)
            answer()

    def drive(self) -> None:
        if not self.ends:
            return
        least = self.random.choice(sorted(self.ends))
        left = self.ends[least]
        found = self.state.transactions[least]
        is_commit = found.status is Status.COMMITTING
        if left:
            name = left.pop(self.random.randrange(len(left)))
            self.outcomes.setdefault((least, name), set()).add(is_commit)
            return
        del self.ends[least]
        record = self.state.finish_end(least, NOW_MS)
        assert record is not None

        def answer() -> None:
            assert self.wanted.setdefault(least, is_commit) == is_commit
            # Participants that a client was not answered about have no messages.

        self.waiting.append((record, answer))


def test_a_transaction_has_one_outcome_whatever_crashes() -> None:
    for seed in range(300):
        World(seed, lambda: Coordinator(0)).run(200)


class ForgetsNumbers(Coordinator):
    """A planted bug: the last number is that of the transactions that are open."""

    def replay(self, record: LogRecord) -> bool:
        has_effect = super().replay(record)
        self.sequence = max(self.transactions, default=-1)
        return has_effect


class OpensAgain(Coordinator):
    """A planted bug: the recovery ignores that a transaction was committing."""

    def replay(self, record: LogRecord) -> bool:
        return record.new is not Status.COMMITTING and super().replay(record)


@pytest.mark.parametrize("bug", [ForgetsNumbers, OpensAgain])
def test_planted_bugs_are_found(bug: type[Coordinator]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(300):
            World(seed, lambda: bug(0)).run(200)

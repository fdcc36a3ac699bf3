"""The state of one transaction coordinator, without its log, its participants and its clock.

Each change has a record, which the caller appends to the log. What follows from the change (an
answer, the end of a transaction at its participants) waits until the record is durable. The state
changes immediately: records are durable in the order in which they were returned, and when one is
not stored, the caller discards the coordinator and replays the log into a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from pyxbroker.base.errors import InvalidTxnStatus, TooManyRequests, TransactionNotFound
from pyxbroker.base.limits import (
    OPEN_TRANSACTIONS_MAX,
    TRANSACTION_NAMES_BYTES_MAX,
    TRANSACTION_PARTICIPANTS_MAX,
)
from pyxbroker.broker.transactions.ids import TxnId

ENDED_MAX = 10_000
"""Ended transactions whose outcome a coordinator remembers, for clients that repeat END_TXN."""
PARTICIPANT_BYTES = 100
NO_TRANSACTION = -1


class Status(IntEnum):
    """The status of a transaction (TxnStatus), with Pulsar's numbers."""

    OPEN = 0
    COMMITTING = 1
    COMMITTED = 2
    ABORTING = 3
    ABORTED = 4


class Operation(IntEnum):
    """The kind of a record (TransactionMetadataOp), with Pulsar's numbers."""

    NEW = 0
    ADD_PARTITION = 1
    ADD_SUBSCRIPTION = 2
    UPDATE = 3


NEXT: dict[Status, frozenset[Status]] = {
    Status.OPEN: frozenset((Status.OPEN, Status.COMMITTING, Status.ABORTING)),
    Status.COMMITTING: frozenset((Status.COMMITTING, Status.COMMITTED)),
    Status.ABORTING: frozenset((Status.ABORTING, Status.ABORTED)),
    Status.COMMITTED: frozenset((Status.COMMITTED,)),
    Status.ABORTED: frozenset((Status.ABORTED,)),
}
"""Every legal change of a transaction's status."""
ENDED_AS = {Status.COMMITTING: Status.COMMITTED, Status.ABORTING: Status.ABORTED}


class LogRecord(NamedTuple):
    """A record of the log (TransactionMetadataEntry). Times are in ms since 1970."""

    operation: Operation
    least: int
    modified_ms: int
    sequence: int
    """The last number that the coordinator has given to a transaction (max_local_txn_id)."""
    expected: Status = Status.OPEN
    new: Status = Status.OPEN
    partitions: tuple[str, ...] = ()
    subscriptions: tuple[tuple[str, str], ...] = ()
    """Topics, each with the name of a subscription."""
    timeout_ms: int = 0
    start_ms: int = 0
    owner: str | None = None
    """The role of the client; None without authentication."""


class Transaction:
    """A transaction whose end is not in the log yet."""

    __slots__ = (
        *("least", "modified_ms", "owner", "partitions", "start_ms", "status", "subscriptions"),
        "timeout_ms",
    )

    def __init__(self, record: LogRecord) -> None:
        self.least = record.least
        self.status = Status.OPEN
        self.owner = record.owner
        self.start_ms = record.start_ms
        self.timeout_ms = record.timeout_ms
        self.modified_ms = record.modified_ms
        # Ordered sets.
        self.partitions: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}

    @property
    def participants(self) -> int:
        """The number of partitions and subscriptions."""
        return len(self.partitions) + len(self.subscriptions)


class Coordinator:
    """The transactions of one coordinator. Numbers of transactions are their least bits."""

    def __init__(self, id: int, active_max: int = 0) -> None:
        """Create an empty one. `active_max`: most transactions that are not ended; 0: the limit of
        this broker.
        """
        self.id = id
        self.active_max = active_max
        self.sequence = NO_TRANSACTION
        # Both lose their first ones, which a dict finds the more slowly the more it has lost.
        self.transactions: OrderedDict[int, Transaction] = OrderedDict()  # by number, ascending
        self.ended: OrderedDict[int, Status] = OrderedDict()
        """The outcomes of the last transactions that ended."""
        self.names_bytes = 0
        self.created = self.committed = self.aborted = self.timed_out = 0

    # --- commands -------------------------------------------------------------------------------

    def new(self, timeout_ms: int, now_ms: int, owner: str | None) -> LogRecord:
        """Begin a transaction; its number is in the record. Raises TooManyRequests."""
        limit = min(self.active_max or OPEN_TRANSACTIONS_MAX, OPEN_TRANSACTIONS_MAX)
        if len(self.transactions) >= limit:
            raise TooManyRequests(
                f"Transaction coordinator {self.id} has {limit} active transactions, which is its"
                " limit (maxActiveTransactionsPerCoordinator); end some of them, or try again."
            )
        self.sequence += 1
        record = LogRecord(
            *(Operation.NEW, self.sequence, now_ms, self.sequence),
            timeout_ms=timeout_ms,
            start_ms=now_ms,
            owner=owner,
        )
        self.transactions[record.least] = Transaction(record)
        self.created += 1
        return record

    def add_partitions(self, least: int, names: Iterable[str], now_ms: int) -> LogRecord | None:
        """Add partitions to an open transaction; None: all of them are known.

        Raises TransactionNotFound, InvalidTxnStatus, TooManyRequests.
        """
        found = self._open(least)
        added = tuple(dict.fromkeys(name for name in names if name not in found.partitions))
        return self._add(Operation.ADD_PARTITION, found, now_ms, partitions=added)

    def add_subscriptions(
        self, least: int, pairs: Iterable[tuple[str, str]], now_ms: int
    ) -> LogRecord | None:
        """Add subscriptions, each a topic and a name, like add_partitions."""
        found = self._open(least)
        added = tuple(dict.fromkeys(pair for pair in pairs if pair not in found.subscriptions))
        return self._add(Operation.ADD_SUBSCRIPTION, found, now_ms, subscriptions=added)

    def begin_end(self, least: int, is_commit: bool, now_ms: int) -> LogRecord | None:
        """Begin the end of a transaction; None: the same end has begun, or is complete.

        Raises TransactionNotFound, InvalidTxnStatus.
        """
        wanted = Status.COMMITTING if is_commit else Status.ABORTING
        if self.ended.get(least) is ENDED_AS[wanted]:
            return None
        found = self._find(least)
        if found.status is wanted:
            return None
        if wanted not in NEXT[found.status]:
            raise self._wrong_status(found, wanted)
        return self._update(found, wanted, now_ms)

    def finish_end(self, least: int, now_ms: int) -> LogRecord | None:
        """Complete the end of a transaction, after all its participants have ended it; None: it is
        complete.
        """
        found = self.transactions.get(least)
        if found is None:
            return None
        if found.status is Status.COMMITTING:
            self.committed += 1
        else:
            self.aborted += 1
        return self._update(found, ENDED_AS[found.status], now_ms)

    def find(self, least: int) -> Transaction | None:
        """Return a transaction that is not ended, or None."""
        return self.transactions.get(least)

    @property
    def low_water_mark(self) -> int:
        """The number below the oldest transaction that is not ended, or 0 without one."""
        return next(iter(self.transactions), 1) - 1

    # --- recovery -------------------------------------------------------------------------------

    def replay(self, record: LogRecord) -> bool:
        """Apply a record of the log, in order; return False if it has no effect.

        Pulsar appends a record before it checks it, so that its logs have records that it refused.
        """
        self.sequence = max(self.sequence, record.sequence, record.least)
        if record.operation is Operation.NEW:
            if record.least in self.transactions or record.least in self.ended:
                return False
            self.transactions[record.least] = Transaction(record)
            return True
        found = self.transactions.get(record.least)
        if found is None:
            return False
        if record.operation is Operation.UPDATE:
            if record.expected is not found.status or record.new not in NEXT[found.status]:
                return False
            self._set_status(found, record.new)
        elif found.status is not Status.OPEN:
            return False
        else:
            self._note_added(found, record.partitions, record.subscriptions)
        found.modified_ms = record.modified_ms
        return True

    # --- changes --------------------------------------------------------------------------------

    def _find(self, least: int) -> Transaction:
        found = self.transactions.get(least)
        if found is None:
            raise not_found(TxnId(self.id, least))
        return found

    def _open(self, least: int) -> Transaction:
        found = self._find(least)
        if found.status is not Status.OPEN:
            raise self._wrong_status(found, Status.OPEN)
        return found

    def _wrong_status(self, found: Transaction, wanted: Status) -> InvalidTxnStatus:
        txn = TxnId(self.id, found.least)
        return InvalidTxnStatus(
            f"Expect Txn `{txn}` to be in {wanted.name} status but it is in"
            f" {found.status.name} status"
        )

    def _add(
        self,
        operation: Operation,
        found: Transaction,
        now_ms: int,
        partitions: tuple[str, ...] = (),
        subscriptions: tuple[tuple[str, str], ...] = (),
    ) -> LogRecord | None:
        if not (partitions or subscriptions):
            return None
        count = found.participants + len(partitions) + len(subscriptions)
        if count > TRANSACTION_PARTICIPANTS_MAX:
            raise TooManyRequests(
                f"Transaction {TxnId(self.id, found.least)} would have {count} partitions and"
                f" subscriptions, and at most {TRANSACTION_PARTICIPANTS_MAX} are allowed."
            )
        if self.names_bytes + _bytes_of(partitions, subscriptions) > TRANSACTION_NAMES_BYTES_MAX:
            raise TooManyRequests(
                f"The open transactions of transaction coordinator {self.id} have too many"
                " partitions and subscriptions; end some of them, or try again."
            )
        self._note_added(found, partitions, subscriptions)
        found.modified_ms = now_ms
        return LogRecord(
            *(operation, found.least, now_ms, self.sequence),
            partitions=partitions,
            subscriptions=subscriptions,
        )

    def _note_added(
        self,
        found: Transaction,
        partitions: tuple[str, ...],
        subscriptions: tuple[tuple[str, str], ...],
    ) -> None:
        # A replayed record of Pulsar's may repeat what is known.
        partitions = tuple(each for each in partitions if each not in found.partitions)
        subscriptions = tuple(each for each in subscriptions if each not in found.subscriptions)
        found.partitions.update(dict.fromkeys(partitions))
        found.subscriptions.update(dict.fromkeys(subscriptions))
        self.names_bytes += _bytes_of(partitions, subscriptions)

    def _update(self, found: Transaction, new: Status, now_ms: int) -> LogRecord:
        expected = found.status
        assert new in NEXT[expected], f"{expected!r} to {new!r}"
        self._set_status(found, new)
        found.modified_ms = now_ms
        return LogRecord(
            *(Operation.UPDATE, found.least, now_ms, self.sequence), expected=expected, new=new
        )

    def _set_status(self, found: Transaction, new: Status) -> None:
        found.status = new
        if new not in ENDED_AS.values():
            return
        del self.transactions[found.least]
        self.names_bytes -= _bytes_of(found.partitions, found.subscriptions)
        self.ended[found.least] = new
        if len(self.ended) > ENDED_MAX:
            self.ended.popitem(last=False)


def not_found(txn: TxnId) -> TransactionNotFound:
    """Return the error for a transaction that does not exist, or has ended."""
    return TransactionNotFound(f"The transaction with this txdID `{txn}`not found ")


def _bytes_of(partitions: Iterable[str], subscriptions: Iterable[tuple[str, str]]) -> int:
    """Return what names count for in TRANSACTION_NAMES_BYTES_MAX."""
    total = 0
    for name in partitions:
        total += len(name) + PARTICIPANT_BYTES
    for topic, name in subscriptions:
        total += len(topic) + len(name) + PARTICIPANT_BYTES
    return total

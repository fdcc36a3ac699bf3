"""The transactions of one topic: which stored messages consumers may receive.

The state is what the log of the topic says, in its order: messages of transactions, and the markers
that end transactions. Consumers receive nothing from the first message of the oldest open
transaction on, so the order of the log is preserved. They never receive messages of aborted
transactions. A snapshot has what recovery needs: the aborted transactions, and the position from
which the log must be read again.

A message is hidden only by the ABORT of a transaction that was open until then. An ABORT after a
COMMIT hides nothing, unlike in Apache Pulsar.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.entry import Position

COMMIT_MARKER = 21
ABORT_MARKER = 22
"""Marker types of the entries that end a transaction (MarkerType)."""

ENDED_MAX = 1_000
"""Ended transactions that a topic remembers, to refuse their late messages."""


class Snapshot(NamedTuple):
    """The state of a buffer that recovery continues from."""

    max_read: Position
    """The last entry before the first message of the oldest open transaction."""
    aborted: tuple[tuple[TxnId, Position], ...] = ()
    """The aborted transactions with the positions of their markers."""


class Buffer:
    """The state of the transactions of one topic."""

    def __init__(self, aborted: Iterable[tuple[TxnId, Position]] = ()) -> None:
        self.ongoing: OrderedDict[TxnId, Position] = OrderedDict()
        """The first message of each open transaction, in the order of the log."""
        self.aborted: dict[TxnId, Position] = dict(aborted)
        """The marker of each aborted transaction, in the order of the log."""
        self.first_ledger_id = 0
        """The first ledger of the log, as of the last call of `trim`."""
        self._trimmed = 0
        self.low_water_marks: dict[int, int] = {}
        """For each coordinator, the id up to which all its transactions have ended."""
        self.limit: Position | None = None
        """The first entry that consumers must not receive yet; None: they may receive all."""
        # Values: True if the transaction was committed, False if it was aborted without messages.
        self._ended: OrderedDict[TxnId, bool] = OrderedDict()
        self._ending: set[TxnId] = set()  # their markers are not stored yet

    # --- publishing ---------------------------------------------------------------------------

    def refuses(self, txn: TxnId) -> bool:
        """Return True if a message of a transaction must not be stored: its end has begun."""
        mark = self.low_water_marks.get(txn.most)
        is_below = mark is not None and txn.least <= mark
        return is_below or txn in self._ending or self.has_ended(txn)

    def begin_end(self, txn: TxnId) -> None:
        """Refuse messages of a transaction from now on: they would be stored after its marker.

        Such a message may be aborted after a recovery that does not read the marker, which would
        hide the messages that were committed.
        """
        self._ending.add(txn)

    def has_ended(self, txn: TxnId) -> bool:
        """Return True if a transaction has ended, as far as the topic remembers, and no message of
        it was stored after that.
        """
        return (txn in self._ended or txn in self.aborted) and txn not in self.ongoing

    # --- the log, in its order ----------------------------------------------------------------

    def on_message(self, txn: TxnId, position: Position) -> None:
        """Take note of a stored message."""
        if txn in self.aborted or txn in self.ongoing:
            return
        self.ongoing[txn] = position
        if self.limit is None:
            self.limit = position

    def on_end(self, txn: TxnId, commit: bool, position: Position) -> None:
        """Take note of a stored marker."""
        self._ending.discard(txn)
        was_open = self.ongoing.pop(txn, None) is not None
        if was_open and not commit and not self._ended.get(txn, False):
            self.aborted[txn] = position
        elif txn in self.aborted:
            # Its marker is read again after a snapshot, which may not have the position.
            self.aborted[txn] = max(self.aborted[txn], position)
        else:
            self.remember_end(txn, commit)
        self.limit = next(iter(self.ongoing.values()), None)

    def remember_end(self, txn: TxnId, commit: bool) -> None:
        """Refuse later messages of a transaction, as long as the topic remembers it."""
        self._ended[txn] = self._ended.pop(txn, False) or commit
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    # --- transactions without an end ----------------------------------------------------------

    def raise_low_water_mark(self, coordinator: int, mark: int) -> None:
        """Note that all transactions of a coordinator up to an id have ended."""
        self.low_water_marks[coordinator] = max(mark, self.low_water_marks.get(coordinator, mark))

    def stray(self) -> TxnId | None:
        """Return the oldest open transaction if its coordinator has ended it long ago, else None.

        Its messages came after the end, or for a transaction that never existed. No end will come
        for them, so the caller aborts it.
        """
        txn = next(iter(self.ongoing), None)
        mark = None if txn is None else self.low_water_marks.get(txn.most)
        return txn if txn is not None and mark is not None and txn.least <= mark else None

    # --- snapshots ----------------------------------------------------------------------------

    def trim(self, first_ledger_id: int) -> None:
        """Forget aborted transactions whose markers, and so messages, are not stored any more."""
        if first_ledger_id <= self.first_ledger_id:
            return
        self.first_ledger_id = first_ledger_id
        gone = []
        for txn, marker in self.aborted.items():
            if marker.ledger_id >= first_ledger_id:
                break
            gone.append(txn)
        for txn in gone:
            del self.aborted[txn]
        for txn in gone[-ENDED_MAX:]:
            self.remember_end(txn, False)
        self._trimmed += len(gone)

    @property
    def aborted_since_opening(self) -> int:
        """The number of transactions that have been in `aborted`, including those of a snapshot."""
        return self._trimmed + len(self.aborted)

    def snapshot(self, max_read: Position) -> Snapshot:
        """Return the present state. max_read: the last entry before `limit`, or of the log."""
        return Snapshot(max_read, tuple(self.aborted.items()))

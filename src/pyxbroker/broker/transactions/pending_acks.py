"""The pending acknowledgements of a subscription: those of transactions that are still open.

A pending acknowledgement hides messages from consumers. The commit of its transaction makes it a
real one, the abort releases the messages. A position is pending as a whole, for one transaction,
or in part: several transactions may have acknowledged different messages of a batch. In addition
one transaction may have acknowledged cumulatively. Mirrors Pulsar's PendingAckHandleImpl.

The machine has no clock, futures or storage. It can be rebuilt by replaying the records of the
log: `replay_*` has the same effect as the call whose record was stored, except that positions
which the cursor has acknowledged since are left out.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from pyxbroker.ackset import PositionSet
from pyxbroker.base.signed import bits_of, word_count, words_of
from pyxbroker.broker.transactions.ids import TxnId

ENDED_MAX = 1_000
"""Ended transactions that a subscription remembers, to refuse their late acknowledgements."""
RELEASED_MIN = 1_000  # numbers in a heap that may be of transactions that hold nothing any more


class Ack(NamedTuple):
    """An acknowledged position."""

    ledger_id: int
    entry_id: int
    left: int = 0
    """The unacknowledged messages of the batch, a bit for each; 0: the whole entry is
    acknowledged."""
    batch_size: int = 0  # 0: unknown

    @property
    def position(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id

    @property
    def order(self) -> tuple[int, int, float]:
        """A key that is higher the more a cumulative acknowledgement acknowledges."""
        first_left = (self.left & -self.left).bit_length() if self.left else float("inf")
        return self.ledger_id, self.entry_id, first_left

    @property
    def words(self) -> list[int]:
        """The ack set as signed 64-bit words; [] for a whole entry."""
        return words_of(self.left)

    def __str__(self) -> str:
        """Return the position as Pulsar's errors have it (AckSetPositionImpl)."""
        words = word_count(self.left)
        ack_set = f"with long[] size of {words}" if words else "is null"
        return f"{self.ledger_id}:{self.entry_id} (ackSet {ack_set})"


class Cursor(Protocol):
    """The acknowledgements of the subscription's cursor (AckSet)."""

    @property
    def mark_delete(self) -> tuple[int, int]: ...
    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool: ...
    def ack_set(self, ledger_id: int, entry_id: int) -> list[int]: ...


class _Held:
    """The positions that one transaction has acknowledged one by one."""

    __slots__ = ("parts", "whole")

    def __init__(self) -> None:
        self.whole = PositionSet()
        self.parts: dict[tuple[int, int], Ack] = {}


class PendingAcks:
    """The positions that open transactions of one subscription have acknowledged."""

    def __init__(self) -> None:
        self.cumulative: tuple[TxnId, Ack] | None = None
        self.low_water_marks: dict[int, int] = {}  # by coordinator
        self.highest = (-1, -1)  # no later position is pending
        self.part_words = 0  # size of the ack sets, in words of 64 bits
        self._held: dict[TxnId, _Held] = {}
        # Heaps, by coordinator: the numbers of transactions that hold something, or have held.
        self._holders: dict[int, list[int]] = {}
        self._whole = PositionSet()
        self._parts: dict[tuple[int, int], dict[TxnId, Ack]] = {}
        self._ended: OrderedDict[TxnId, None] = OrderedDict()  # the last of them, for `refuses`

    # --- acknowledging ------------------------------------------------------------------------

    def refuses(self, txn: TxnId) -> bool:
        """Return True if a transaction must not acknowledge any more: its end has begun.

        No end would come for such an acknowledgement, so it would be released although it was
        answered with success.
        """
        mark = self.low_water_marks.get(txn.most)
        return txn in self._ended or (mark is not None and txn.least <= mark)

    def conflict(self, txn: TxnId, acks: Iterable[Ack], cursor: Cursor) -> str | None:
        """Return Pulsar's text for the first position that the transaction may not acknowledge, or
        None.
        """
        for ack in acks:
            if self._is_acknowledged(ack, cursor):
                return f"try to ack message:{ack} already acked before."
            if self._is_pending(ack):
                what = "batch message" if ack.left else "message"
                return f"try to ack {what}:{ack} in pending ack status."
        return None

    def cumulative_conflict(self, txn: TxnId, ack: Ack, cursor: Cursor) -> str | None:
        """Return Pulsar's text if a cumulative acknowledgement is not possible, or None."""
        mark = cursor.mark_delete
        if ack.position <= mark:
            return (
                f"try to cumulative ack position: {ack} within range of cursor's"
                f" markDeletePosition: {mark[0]}:{mark[1]}"
            )
        if self.cumulative is not None:
            holder, current = self.cumulative
            # Also if acknowledgements without a transaction have passed it: a crash may undo them.
            if holder != txn or ack.order <= current.order:
                return (
                    f"try to cumulative batch ack position: {ack} within range of current"
                    f" currentPosition: {current}"
                )
        return None

    def acknowledge(self, txn: TxnId, acks: Sequence[Ack]) -> None:
        """Make positions pending. The caller has checked for conflicts."""
        self.highest = max([self.highest, *(ack.position for ack in acks)])
        held = self._held.get(txn)
        if held is None:
            held = self._held[txn] = _Held()
            self._note_holder(txn)
        for ack in acks:
            position = ack.position
            if position in held.whole:
                continue
            former = held.parts.get(position)
            if ack.left:
                if former is not None:
                    both = former.left & ack.left
                    ack = ack._replace(left=both, batch_size=ack.batch_size or former.batch_size)
                self._drop_part(txn, held, position)
            elif former is not None:
                self._drop_part(txn, held, position)
            if ack.left:
                held.parts[position] = ack
                self._parts.setdefault(position, {})[txn] = ack
                self.part_words += word_count(ack.left)
            else:
                held.whole.add(*position)
                self._whole.add(*position)
        if not len(held.whole) and not held.parts:
            del self._held[txn]

    def acknowledge_cumulatively(self, txn: TxnId, ack: Ack) -> None:
        """Make everything up to a position pending. The caller has checked for conflicts."""
        if not self.holds(txn)[1]:
            self._note_holder(txn)
        self.cumulative = txn, ack
        self.highest = max(self.highest, ack.position)

    def _note_holder(self, txn: TxnId) -> None:
        numbers = self._holders.setdefault(txn.most, [])
        heapq.heappush(numbers, txn.least)
        if len(numbers) > 2 * len(self._held) + RELEASED_MIN:
            numbers[:] = sorted(each.least for each in self.transactions() if each.most == txn.most)

    def _is_acknowledged(self, ack: Ack, cursor: Cursor) -> bool:
        """Return True if the cursor has acknowledged the entry, or one of these messages."""
        if cursor.is_acknowledged(*ack.position):
            return True
        if not ack.left:
            return False
        left = bits_of(cursor.ack_set(*ack.position))
        return left != 0 and _overlap(ack.left, left, ack.batch_size)

    def _is_pending(self, ack: Ack) -> bool:
        """Return True if the entry, or one of these messages, is pending individually."""
        parts = self._parts.get(ack.position, _NO_PARTS).values()
        if ack.position in self._whole or (parts and not ack.left):
            return True
        return any(
            _overlap(ack.left, part.left, ack.batch_size or part.batch_size) for part in parts
        )

    # --- replaying ----------------------------------------------------------------------------

    def replay(self, txn: TxnId, acks: Sequence[Ack], cursor: Cursor) -> None:
        """Apply the record of an individual acknowledgement.

        A rejected acknowledgement may have a record, since Pulsar checks for conflicts after it has
        stored the record. Positions that the cursor has acknowledged may have been acknowledged
        after the record was stored. The others are still pending.
        """
        fresh = [ack for ack in acks if not self._is_settled(ack, cursor)]
        if fresh and not any(map(self._is_pending, fresh)):
            self.acknowledge(txn, fresh)

    def replay_cumulative(self, txn: TxnId, ack: Ack, cursor: Cursor) -> None:
        """Apply the record of a cumulative acknowledgement, which may have been rejected."""
        if self.cumulative_conflict(txn, ack, cursor) is None:
            self.acknowledge_cumulatively(txn, ack)

    @staticmethod
    def _is_settled(ack: Ack, cursor: Cursor) -> bool:
        """Return True if the cursor has acknowledged all that an acknowledgement names."""
        if cursor.is_acknowledged(*ack.position):
            return True
        left = bits_of(cursor.ack_set(*ack.position))
        return bool(ack.left and left) and left & ~ack.left == 0

    # --- the end of a transaction ---------------------------------------------------------------

    def begin_end(self, txn: TxnId) -> None:
        """Refuse acknowledgements of a transaction from now on."""
        self._ended[txn] = None
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def holds(self, txn: TxnId) -> tuple[bool, bool]:
        """Return if a transaction has acknowledged individually, and if cumulatively."""
        return txn in self._held, self.cumulative is not None and self.cumulative[0] == txn

    def take(self, txn: TxnId, count_max: int) -> list[Ack]:
        """Remove up to count_max individual acknowledgements of a transaction and return them."""
        held = self._held.get(txn)
        if held is None:
            return []
        taken: list[Ack] = []
        while held.parts and len(taken) < count_max:
            # The last one: a dict finds its first one the more slowly the more it has lost.
            position, ack = held.parts.popitem()
            self._forget_part(txn, position, ack)
            taken.append(ack)
        while len(held.whole) and len(taken) < count_max:
            ledger_id, first, last = held.whole.first_range(count_max - len(taken))
            held.whole.discard_range(ledger_id, first, last)
            self._whole.discard_range(ledger_id, first, last)
            taken += [Ack(ledger_id, entry_id) for entry_id in range(first, last + 1)]
        if not held.parts and not len(held.whole):
            del self._held[txn]
        return taken

    def take_cumulative(self, txn: TxnId) -> Ack | None:
        """Remove the cumulative acknowledgement of a transaction and return it."""
        if self.cumulative is None or self.cumulative[0] != txn:
            return None
        ack = self.cumulative[1]
        self.cumulative = None
        return ack

    def raise_low_water_mark(self, coordinator: int, mark: int) -> None:
        """Note that all transactions of a coordinator up to a number have ended."""
        self.low_water_marks[coordinator] = max(mark, self.low_water_marks.get(coordinator, mark))

    def stray(self, coordinator: int) -> TxnId | None:
        """Return a transaction up to the low-water mark that holds acknowledgements, or None.

        They came after its end. No end will come for them, so the caller aborts it.
        """
        numbers = self._holders.get(coordinator)
        while numbers and numbers[0] <= self.low_water_marks.get(coordinator, -1):
            txn = TxnId(coordinator, numbers[0])
            if any(self.holds(txn)):
                return txn
            heapq.heappop(numbers)
        return None

    def _drop_part(self, txn: TxnId, held: _Held, position: tuple[int, int]) -> None:
        former = held.parts.pop(position, None)
        if former is not None:
            self._forget_part(txn, position, former)

    def _forget_part(self, txn: TxnId, position: tuple[int, int], ack: Ack) -> None:
        self.part_words -= word_count(ack.left)
        parts = self._parts[position]
        del parts[txn]
        if not parts:
            del self._parts[position]

    # --- what is pending ------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if nothing is pending."""
        return not self._held and self.cumulative is None

    @property
    def transaction_count(self) -> int:
        """The number of transactions with individual acknowledgements."""
        return len(self._held)

    def transactions(self) -> list[TxnId]:
        """Return the transactions that hold acknowledgements, the oldest first."""
        found = list(self._held)
        if self.cumulative is not None and self.cumulative[0] not in self._held:
            found.append(self.cumulative[0])
        return found

    def left(self, ledger_id: int, entry_id: int) -> int | None:
        """Return what is not pending of an entry: None for all of it, 0 for nothing, otherwise a
        bit for each message of the batch.
        """
        position = ledger_id, entry_id
        if position in self._whole:
            return 0
        found: int | None = None
        if self.cumulative is not None:
            ack = self.cumulative[1]
            if position < ack.position or (position == ack.position and not ack.left):
                return 0
            if position == ack.position:
                found = ack.left
        for part in self._parts.get(position, _NO_PARTS).values():
            found = part.left if found is None else found & part.left
        return found

    def individual(self, ledger_id: int, entry_id: int) -> Ack | None:
        """Return what is individually pending of an entry, as one acknowledgement, or None."""
        position = ledger_id, entry_id
        if position in self._whole:
            return Ack(ledger_id, entry_id)
        found: Ack | None = None
        for part in self._parts.get(position, _NO_PARTS).values():
            found = part if found is None else part._replace(left=found.left & part.left)
        return found

    def holders(self, ledger_id: int, entry_id: int) -> Iterator[TxnId]:
        """Yield the transactions for which an entry is pending."""
        position = ledger_id, entry_id
        if self.cumulative is not None and position <= self.cumulative[1].position:
            yield self.cumulative[0]
        for txn, held in self._held.items():
            if position in held.whole or position in held.parts:
                yield txn


_NO_PARTS: dict[TxnId, Ack] = {}


def _overlap(left: int, other: int, batch_size: int) -> bool:
    """Return True if two ack sets acknowledge the same message of a batch.

    Beyond the batch all bits are 0, so without its size nothing is known, and as in Pulsar nothing
    overlaps.
    """
    return ~(left | other) & ((1 << batch_size) - 1) != 0


class TrimIndex:
    """The points at which the log can be trimmed: up to each of them, everything that the log
    acknowledges lies at or before a position of the topic. Mirrors the index of MLPendingAckStore.
    """

    def __init__(self, records_min: int) -> None:
        self._records_min = records_min
        self._points: list[tuple[tuple[int, int], tuple[int, int]]] = []  # (topic, log), ascending
        self._highest = (-1, -1)  # position of the topic that was acknowledged
        self._records = 0  # since the last point

    def note(self, log_position: tuple[int, int], acks: Iterable[Ack]) -> None:
        """Note a stored record and the positions that it acknowledges."""
        self._highest = max([self._highest, *(ack.position for ack in acks)])
        self._records += 1
        if self._records >= self._records_min * max(1, len(self._points)):
            self._records = 0
            if self._points and self._points[-1][0] == self._highest:
                del self._points[-1]
            self._points.append((self._highest, log_position))

    def trim_to(self, mark_delete: tuple[int, int]) -> tuple[int, int] | None:
        """Return the log position up to which the log is not needed once the subscription's
        mark-delete position is durable, and forget the points up to there; None if all is needed.
        """
        passed = 0
        while passed < len(self._points) and self._points[passed][0] <= mark_delete:
            passed += 1
        if not passed:
            return None
        trimmed = self._points[passed - 1][1]
        del self._points[:passed]
        return trimmed

"""Acknowledged positions, their bitmaps and bytes: the same as plain sets, for any steps.

An input is a list of steps with numbers from small to the ends of 64 bits. What a cursor knows of
its ledgers comes first: an id behind the end of one is not acknowledged, as in the broker. What was
stored is restored from bytes that anybody may have written.
"""

from __future__ import annotations

from contextlib import suppress

import driver

from oracles.ackset import SlowAckSet, longs_in
from pyxbroker.ackset import AckSet, PositionSet

ENDS = {3: 5, 5: 200, 7: -1, 8: 63, 11: 4500}  # ledger id -> last entry
OPEN_LEDGER = 11
LEDGERS = [*ENDS, 99, -1, 2**63 - 1]
STEPS_MAX = 60
RUN_BYTES_MAX = 40


def ledger_after(ledger_id: int, entry_id: int) -> int | None:
    """As ManagedLedger.ledger_after answers it."""
    if ledger_id not in ENDS or ledger_id == OPEN_LEDGER or entry_id < ENDS[ledger_id]:
        return None
    return min(each for each in ENDS if each > ledger_id)


class Cursor:
    """An ack set, and the slow one that has to be the same."""

    def __init__(self) -> None:
        self.acks = AckSet(3, -1, tracked=True)
        self.slow = SlowAckSet(3, -1)

    def take_over_mark(self) -> None:
        """The fast one moves its mark by itself when nothing lies between."""
        mark = tuple(self.acks.mark_delete)
        while self.slow.mark != mark:
            ledger, entry = self.slow.mark
            assert ledger == mark[0] and entry < mark[1], f"the mark went to {mark}"
            self.slow.mark = (ledger, entry + 1)
            self.slow.single.remove(self.slow.mark)

    def add(self, ledger: int, steps: driver.Steps) -> None:
        entry = steps.number()
        if 0 <= entry <= ENDS.get(ledger, -1):
            assert self.acks.add(ledger, entry) == self.slow.add((ledger, entry))
            self.take_over_mark()

    def look(self, ledger: int, steps: driver.Steps) -> None:
        first, last = steps.number(), steps.number()
        known = self.acks.is_acknowledged(ledger, first)
        assert known == self.slow.contains((ledger, first))
        expected = sum(first <= each <= last for each in self.slow.ids(ledger))
        assert self.acks.acknowledged_up_to(ledger, first, last) == expected

    def add_range(self, ledger: int, steps: driver.Steps) -> None:
        lower, upper = steps.number(), steps.number()
        last = ENDS.get(ledger, -1)
        self.acks.add_range(ledger, lower, upper, last)
        self.acks.drop_acknowledged_batches()
        for entry in range(max(lower, -1) + 1, min(upper, last) + 1):
            self.slow.add((ledger, entry))
        self.take_over_mark()

    def add_runs(self, ledger: int, steps: driver.Steps) -> None:
        """Runs of which one number may be anything are refused, or give entries that there are."""
        last = ENDS.get(ledger, -1)
        before = set(self.slow.ids(ledger))
        with suppress(ValueError):
            self.acks.add_runs(ledger, steps.rest(steps.byte() % RUN_BYTES_MAX), last)
        self.take_what_came(ledger, last, before)

    def add_longs(self, ledger: int, steps: driver.Steps) -> None:
        last = ENDS.get(ledger, -1)
        before = set(self.slow.ids(ledger))
        self.acks.add_longs(ledger, [steps.number() for _ in range(steps.byte() % 8)], last)
        self.take_what_came(ledger, last, before)

    def take_what_came(self, ledger: int, last: int, before: set[int]) -> None:
        ids = {
            entry
            for lower, upper in self.acks.ranges(ledger)
            for entry in range(lower + 1, upper + 1)
        }
        assert before <= ids, "what was acknowledged is not any more"
        assert all(0 <= each <= last for each in ids), "an entry that there is not is acknowledged"
        self.acks.drop_acknowledged_batches()
        for entry in sorted(ids - before):
            assert self.slow.add((ledger, entry)), f"{entry} is before the mark"

    def add_batch(self, ledger: int, steps: driver.Steps) -> None:
        entry = steps.number()
        words = [steps.number() for _ in range(steps.byte() % 4)]
        if 0 <= entry <= ENDS.get(ledger, -1):
            left = frozenset(
                64 * at + bit
                for at, word in enumerate(words)
                for bit in range(64)
                if word >> bit & 1
            )
            found = self.acks.acknowledge_batch(ledger, entry, words)
            assert found == self.slow.acknowledge_batch((ledger, entry), left)
            self.take_over_mark()

    def advance(self, ledger: int, steps: driver.Steps) -> None:
        if self.slow.mark[0] in ENDS:
            self.acks.advance(ledger_after)
            self.slow.advance(ledger_after)

    def move(self, ledger: int, steps: driver.Steps) -> None:
        entry = min(steps.number(), ENDS.get(ledger, -1))
        self.acks.mark_delete_to(ledger, max(entry, -1))
        self.slow.mark_delete_to((ledger, max(entry, -1)))

    def store(self, ledger: int, steps: driver.Steps) -> None:
        """What is stored, whole and in pieces, is restored as it was."""
        bytes_max = 64 + steps.byte()
        copy = AckSet(*self.acks.mark_delete)
        changed_only = bool(steps.byte() & 1)
        for each in self.acks.ledger_ids():
            word = 0
            while word != -1:
                runs, word = self.acks.encode_runs(each, word, bytes_max, changed_only)
                assert len(runs) <= bytes_max
                copy.add_runs(each, runs, ENDS[each])
        for each in self.acks.batch_ledger_ids():
            entry = 0
            while entry != -1:
                _, entry = self.acks.encode_batches(each, entry, 5, bytes_max, changed_only)
        if not changed_only:
            assert copy.holes == self.acks.holes
            for each in self.acks.ledger_ids():
                assert copy.ranges(each) == self.acks.ranges(each)
        self.acks.encode_ranges(5)

    def check(self) -> None:
        acks, slow = self.acks, self.slow
        assert tuple(acks.mark_delete) == slow.mark
        assert acks.holes == len(slow.single)
        assert acks.ledger_ids() == sorted({ledger for ledger, _ in slow.single})
        for ledger in acks.ledger_ids():
            assert acks.ranges(ledger) == slow.ranges(ledger)
            assert acks.ranges(ledger, 3) == slow.ranges(ledger)[:3]
            assert longs_in(acks, ledger) == slow.longs(ledger)
        assert acks.partial == len(slow.left)
        for position, left in slow.left.items():
            assert acks.unacked_in_batch(*position) == len(left)


STEPS = (
    Cursor.add,
    Cursor.look,
    Cursor.add_range,
    Cursor.add_runs,
    Cursor.add_longs,
    Cursor.add_batch,
    Cursor.advance,
    Cursor.move,
    Cursor.store,
)


def run_cursor(steps: driver.Steps) -> None:
    cursor = Cursor()
    for _ in range(STEPS_MAX):
        if not steps:
            break
        step = STEPS[steps.byte() % len(STEPS)]
        step(cursor, LEDGERS[steps.byte() % len(LEDGERS)], steps)
    cursor.check()


def run_positions(steps: driver.Steps) -> None:
    """A set of positions against a set of tuples."""
    found = PositionSet()
    expected: set[tuple[int, int]] = set()
    for _ in range(STEPS_MAX):
        if not steps:
            break
        kind = steps.byte() % 3
        ledger = LEDGERS[steps.byte() % len(LEDGERS)]
        first = steps.number()
        if kind == 0 and 0 <= first <= 1 << 16:  # an entry that exists
            found.add(ledger, first)
            expected.add((ledger, first))
        elif kind == 1:
            last = steps.number()
            found.discard_range(ledger, first, last)
            expected = {
                each for each in expected if each[0] != ledger or not first <= each[1] <= last
            }
        elif expected and first > 0:
            of, begin, end = found.first_range(first)
            assert (of, begin) == min(expected)
            assert all((of, each) in expected for each in range(begin, end + 1))
            assert end - begin < first
            assert end - begin + 1 == first or (of, end + 1) not in expected
        assert ((ledger, first) in found) == ((ledger, first) in expected)
    assert len(found) == len(expected)


def seeds() -> list[bytes]:
    """A byte that chooses the set, and steps: a kind, a ledger, numbers."""
    spread = bytes(byte for at in range(60) for byte in (0, 1, at * 2))
    everything = bytes(
        byte for kind in range(len(STEPS)) for byte in (kind, kind % 5, 9, 40, 3, 7, 1, 2)
    )
    extreme = bytes(
        byte for kind in range(len(STEPS)) for edge in range(200, 211) for byte in (kind, 1, edge)
    )
    bodies = (spread, everything, extreme, b"")
    return [bytes([which]) + each for which in (0, 1) for each in bodies]


def one_input(data: bytes) -> None:
    steps = driver.Steps(data)
    (run_positions if steps.byte() & 1 else run_cursor)(steps)


if __name__ == "__main__":
    driver.main(seeds, one_input)

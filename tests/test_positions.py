"""The arithmetic of positions over many ledgers, against a plain list of what is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from one_bookie import LIMITS, Node, Runs, check_positions, entries, settled, until
from pyxbroker.ackset import AckSet
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.entry import Position
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.mledger.managed_ledger import ManagedLedger

# (entries of a closed ledger, how far its id is from the one before)
closed_ledgers = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=6)


def ledgers_of(closed: list[tuple[int, int]]) -> ManagedLedger:
    """A managed ledger with closed ledgers, and one that nothing was written to yet."""
    managed_ledger = ManagedLedger(
        "t", cast(Any, None), cast(Any, SimpleNamespace(turn=None)), LIMITS
    )
    ledger_id = 10
    last = None
    for count, step in closed:
        ledger_id += step
        managed_ledger.adopt_ledger(
            LedgerHandle(ledger_id, [cast(Any, None)], 1, 1, managed_ledger)
        )
        managed_ledger.ledgers[ledger_id].entries = count
        last = Position(ledger_id, count - 1) if count else last
    current = LedgerHandle(ledger_id + 1, [cast(Any, None)], 1, 1, managed_ledger)
    managed_ledger.adopt_ledger(current)
    managed_ledger.current = current
    managed_ledger.last_confirmed = last or managed_ledger.first_position()
    return managed_ledger


@given(closed_ledgers, st.integers(0, 4))
def test_positions_over_any_mix_of_ledgers(closed: list[tuple[int, int]], written: int) -> None:
    """Lists as other owners may leave them: ledgers without entries, gaps of ids, trimmed ones."""
    managed_ledger = ledgers_of(closed)
    current = managed_ledger.current
    assert isinstance(current, LedgerHandle)
    check_positions(managed_ledger)
    for entry_id in range(written):
        current.pending.add(1)
        current.pending.on_ack(0, entry_id, entry_id)
        managed_ledger.last_confirmed = Position(current.ledger_id, entry_id)
        check_positions(managed_ledger)


def test_positions_hold_while_ledgers_change(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(LIMITS._replace(entries_per_ledger_max=3))
        runs = Runs()
        for n, data in enumerate(entries(0, 120)):
            managed_ledger.append(runs.run(data))
            if n % 5 == 0:
                await asyncio.sleep(0)
                if managed_ledger.last_confirmed.entry_id >= 0:
                    check_positions(managed_ledger)
        await until(lambda: runs.answered == 120)
        await settled(managed_ledger)
        check_positions(managed_ledger)

    async def main() -> None:
        async with Node(tmp_path / "bookie") as node:
            await scenario(node)

    asyncio.run(main())


# --- a mark so many entries further ---------------------------------------------------------------


class CountedAcks:
    """What is acknowledged, and how many entries were looked at to count it."""

    def __init__(self, acks: AckSet) -> None:
        self._acks = acks
        self.looked_at = 0

    def acknowledged_up_to(self, ledger_id: int, first: int, last: int) -> int:
        self.looked_at += last - first + 1
        return self._acks.acknowledged_up_to(ledger_id, first, last)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._acks, name)


def mark_after(
    managed_ledger: ManagedLedger, acks: AckSet, left: list[Position], count: int
) -> tuple[Position, int]:
    """The mark when so many of those that are left are acknowledged, and what was looked at."""
    counted = CountedAcks(acks)
    topic = SimpleNamespace(managed_ledger=managed_ledger)
    subscription = SimpleNamespace(acks=counted, backlog=len(left))
    mark = PersistentTopic.mark_after(cast(Any, topic), cast(Any, subscription), count)
    return mark, counted.looked_at


@given(closed_ledgers, st.data())
def test_a_mark_is_behind_as_many_entries_as_are_left(
    closed: list[tuple[int, int]], data: st.DataObject
) -> None:
    managed_ledger = ledgers_of(closed)
    kept = [managed_ledger.position_of(index) for index in range(managed_ledger.entries)]
    at = data.draw(st.integers(0, len(kept)))
    mark = kept[at - 1] if at else managed_ledger.first_position()
    acks = AckSet(*mark)
    acked = data.draw(st.sets(st.sampled_from(kept[at:]))) if kept[at:] else set()
    for each in acked:
        acks.add(*each)
    acks.add(9, 0)  # of a ledger that is not kept
    left = [each for each in kept[at:] if each not in acked]
    here = acks.mark_delete if left else managed_ledger.last_confirmed
    assert mark_after(managed_ledger, acks, left, 0)[0] == here
    for count in range(1, len(left)):
        assert mark_after(managed_ledger, acks, left, count)[0] == left[count - 1]
    for count in (len(left), len(left) + 1):
        assert mark_after(managed_ledger, acks, left, count)[0] == managed_ledger.last_confirmed


def test_entries_that_are_acknowledged_are_counted_once_for_a_mark() -> None:
    """There may be a million of them, and a bisection that begins anew counts twenty times."""
    size = 3000
    managed_ledger = ledgers_of([(size, 1)] * 3)
    kept = [managed_ledger.position_of(index) for index in range(managed_ledger.entries)]
    acks = AckSet(*managed_ledger.first_position())
    for each in kept[1::2]:
        acks.add(*each)
    left = kept[::2]
    for count in (1, 2, 1000, 1500, 1501, 3000, 4000, 4499):
        mark, looked_at = mark_after(managed_ledger, acks, left, count)
        assert mark == left[count - 1]
        assert looked_at < 3 * size + size + 20, "all once, and one ledger once more"

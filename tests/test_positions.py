"""The arithmetic of positions over many ledgers, against a plain list of what is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from one_bookie import LIMITS, Node, Runs, check_positions, entries, settled, until
from pyxbroker.entry import Position
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.mledger.managed_ledger import ManagedLedger

# (entries of a closed ledger, how far its id is from the one before)
closed_ledgers = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=6)


@given(closed_ledgers, st.integers(0, 4))
def test_positions_over_any_mix_of_ledgers(closed: list[tuple[int, int]], written: int) -> None:
    """Lists as other owners may leave them: ledgers without entries, gaps of ids, trimmed ones."""
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

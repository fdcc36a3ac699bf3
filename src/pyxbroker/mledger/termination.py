"""Terminating a managed ledger, after which it can be read and acknowledged, but not written.

The list in metadata stores the last entry (terminatedPosition), so that the managed ledger is never
opened for writing again. Mirrors ManagedLedgerImpl.asyncTerminate.
"""

from __future__ import annotations

from pyxbroker.base.clock import wall_s
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.state import State


async def terminate(managed_ledger: ManagedLedger) -> Position:
    """Close the last ledger for good and return the last position, with entry id -1 if that ledger
    is empty. Runs appended before are confirmed; later ones are refused.

    Raises ManagedLedgerError, also if the managed ledger cannot be written any more.
    """
    while managed_ledger.state is State.CREATING_LEDGER:
        await managed_ledger.finish_tasks()
    if managed_ledger.terminated_position is not None:
        await managed_ledger.finish_tasks()
    elif managed_ledger.state is State.OPEN:
        managed_ledger.state = State.TERMINATED
        managed_ledger.terminated_position = managed_ledger.last_confirmed
        managed_ledger.spawn(_terminate(managed_ledger))
        await managed_ledger.finish_tasks()
    if managed_ledger.state is not State.TERMINATED or managed_ledger.terminated_position is None:
        raise managed_ledger.refusal()
    return managed_ledger.terminated_position


async def _terminate(managed_ledger: ManagedLedger) -> None:
    handle = managed_ledger.current
    assert handle is not None
    try:
        await handle.drain()
        await managed_ledger.client.close(handle)
        info = managed_ledger.ledgers[handle.ledger_id]
        info.entries = handle.last_add_confirmed + 1
        info.size = handle.length
        info.timestamp_ms = int(wall_s() * 1000)
        managed_ledger.terminated_position = managed_ledger.last_confirmed
        managed_ledger.stored_end = managed_ledger.terminated_position
        await managed_ledger.write_info()
        managed_ledger.current = None
    except (LedgerError, MetadataError) as error:
        # The outcome is unknown until the managed ledger is opened again.
        failure = ManagedLedgerError(f"{managed_ledger.name} was not terminated: {error}")
        managed_ledger.fail(State.FAILED, failure)
    except ManagedLedgerError:
        # Another broker owns it, and it is fenced.
        return

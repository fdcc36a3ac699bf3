"""Terminating a managed ledger: it can be read and acknowledged for ever, and not written again.

Its list in metadata says so (terminatedPosition, the last entry there will ever be), so that it is
not opened for writing again. Mirrors ManagedLedgerImpl.asyncTerminate.
"""

from __future__ import annotations

import time

from pyxbroker.entry import Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.state import State


async def terminate(managed_ledger: ManagedLedger) -> Position:
    """Closes the last ledger for good; returns the last position, of which the entry id is -1 when
    its ledger is empty. What was appended before is confirmed; what comes later is refused.

    Raises ManagedLedgerError, also when the managed ledger cannot be written any more.
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
        info.timestamp_ms = int(time.time() * 1000)
        managed_ledger.terminated_position = managed_ledger.last_confirmed
        managed_ledger.stored_end = managed_ledger.terminated_position
        await managed_ledger.write_info()
        managed_ledger.current = None
    except (LedgerError, MetadataError) as error:
        # It is not known how much of it is done: whoever opens it again finds out.
        told = ManagedLedgerError(f"{managed_ledger.name} was not terminated: {error}")
        managed_ledger.fail(State.FAILED, told)
    except ManagedLedgerError:
        # It belongs to another broker, and is fenced.
        return

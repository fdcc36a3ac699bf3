"""What a managed ledger refuses."""

from __future__ import annotations


class ManagedLedgerError(Exception):
    """An operation of a managed ledger failed."""


class ManagedLedgerFenced(ManagedLedgerError):
    """Another owner has taken the managed ledger over."""


class ManagedLedgerNotReady(ManagedLedgerError):
    """It was closed, or something is under way that has to end first: it helps to ask again."""


class ManagedLedgerWriteFailed(ManagedLedgerError):
    """The journal failed: nothing can be added until the broker is started again."""


class ManagedLedgerTerminated(ManagedLedgerError):
    """The managed ledger was terminated: nothing can be added any more."""


class ManagedLedgerTakenBack(ManagedLedgerError):
    """There was no room for a run, and it was taken back; of several, the last one first."""

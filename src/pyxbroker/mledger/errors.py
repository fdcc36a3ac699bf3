"""Errors of managed ledgers."""

from __future__ import annotations


class ManagedLedgerError(Exception):
    """An operation of a managed ledger failed."""


class ManagedLedgerFenced(ManagedLedgerError):
    """Another broker has taken the managed ledger over."""


class ManagedLedgerNotReady(ManagedLedgerError):
    """The managed ledger was closed, or an operation must finish first: the caller may retry."""


class ManagedLedgerWriteFailed(ManagedLedgerError):
    """The journal failed: nothing can be added until the broker is restarted."""


class ManagedLedgerTooFewBookies(ManagedLedgerError):
    """Nothing can be added until there are enough bookies for the next ledger."""


class ManagedLedgerTerminated(ManagedLedgerError):
    """The managed ledger was terminated: nothing can be added any more."""


class ManagedLedgerTakenBack(ManagedLedgerError):
    """A run was taken back for lack of space; of several runs the last one comes first."""

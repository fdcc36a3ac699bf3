"""Errors of ledger operations."""

from __future__ import annotations

import os

from pyxbroker.ledger.bookie import DAMAGED, FENCED, NO_ENTRY, NO_LEDGER, UNAUTHORIZED


class LedgerError(Exception):
    """A ledger operation failed; code is the bookie's answer (ledger/bookie.py), or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class LedgerFenced(LedgerError):
    """Another writer has taken the ledger over: this one must stop."""


class JournalFailed(LedgerError):
    """A bookie cannot store entries any more; acknowledged entries can be read."""


class EntryDamaged(LedgerError):
    """An entry is stored and fails its checksum on every bookie that has it."""


class NoSuchEntry(LedgerError):
    """No bookie has the entry."""


class NoSuchLedger(NoSuchEntry):
    """The ledger has no metadata, or it was deleted."""


class WrongPassword(LedgerError):
    """A ledger was created with another password than this broker has."""


class NotEnoughBookies(LedgerError):
    """Fewer bookies are available than a new ledger requires."""


def error_of(code: int, ledger_id: int, entry_id: int) -> LedgerError:
    """Return the error for a bookie's code about one entry."""
    where = f"{ledger_id}:{entry_id}"
    if code == FENCED:
        return LedgerFenced(f"ledger {ledger_id} was taken over by another writer", code)
    if code == UNAUTHORIZED:
        return WrongPassword(
            f"a bookie refuses access to ledger {ledger_id}: it was made with another password, or"
            " the bookie requires authentication",
            code,
        )
    if code == DAMAGED:
        return EntryDamaged(f"entry {where} is damaged on disk", code)
    if code in (NO_ENTRY, NO_LEDGER):
        return NoSuchEntry(f"entry {where} is not on its bookie", code)
    return LedgerError(f"the bookie failed for entry {where}: {os.strerror(-code)}", code)


def journal_failed(bookie_id: str, code: int) -> JournalFailed:
    """Return the error for a bookie whose journal failed with a code."""
    return JournalFailed(
        f"the journal of bookie {bookie_id} failed ({os.strerror(-code)}): nothing can be stored"
        " until the broker is started again, and what is stored can be read",
        code,
    )


def is_lost(error: BaseException) -> bool:
    """Return True if an entry is lost. Any other LedgerError may be temporary."""
    return isinstance(error, (EntryDamaged, NoSuchEntry))

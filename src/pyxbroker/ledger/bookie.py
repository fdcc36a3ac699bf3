"""The bookie contract: what a ledger asks of a bookie, and the codes of the answers.

EmbeddedBookie (bookie/embedded.py) implements it in this process; a connection to a bookie
elsewhere implements it as well. No method answers within the call: an answer arrives in a later
callback. It may arrive late, twice, out of order or never, and the callers in ledger/ are correct
in each case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyxbroker.entry import Digest, EntryBatch, EntryRun

# Codes of failed requests (storage.h, enum storage_error; bookie_frames.pxd for a remote bookie).
NO_LEDGER = -2
FAILED = -5
BUSY = -11
UNAUTHORIZED = -13
"""The ledger has another master key, or the bookie requires authentication."""
REFUSED = -22
"""The bookie does not understand the request, or the entry exceeds its limit."""
READ_ONLY = -30
NO_ENTRY = -61
DAMAGED = -74
FULL = -105
DISCONNECTED = -107
TIMED_OUT = -110
FENCED = -116

LOST_CODES = frozenset({NO_LEDGER, NO_ENTRY, DAMAGED})
"""Codes of a missing entry. Any other code does not tell whether the entry is stored."""

# Flags of an add.
ADD_RECOVERY = 1
ADD_HIGH_PRIORITY = 0x100
"""State of the broker itself (BookKeeper's high-priority writes): it does not wait behind what
clients publish, and a bookie without space for clients still stores it."""


class Stripe(NamedTuple):
    """The entries of a run that go to one bookie of an ensemble that is larger than its write
    quorum: those with `(position - entry_id) mod ensemble_size < write_quorum`.
    """

    position: int
    ensemble_size: int
    write_quorum: int

    def has(self, entry_id: int) -> bool:
        """Return True if the bookie stores this entry."""
        return (self.position - entry_id) % self.ensemble_size < self.write_quorum


class Adder(Protocol):
    """The writer of a ledger, which receives the answers to its adds. Adds carry the master key of
    its digest.

    `slot` is the number that the writer gave with the add. A writer gives each bookie that joins
    its ensemble a new slot, so that a late answer of a replaced bookie is recognized.
    """

    @property
    def digest(self) -> Digest: ...

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        """Take note that entries first..last are durable on the bookie."""

    def on_adds_failed(self, slot: int, first: int, code: int) -> None:
        """Take note that the bookie will not store the entries from first on."""

    def on_add_taken_back(self, slot: int, run: EntryRun) -> bool:
        """Take back a run that the bookie has not stored; return False to keep it waiting."""


ReadCallback = Callable[[EntryBatch | int], None]
"""Called with the entries, or with the code of the failure."""
PositionCallback = Callable[[int], None]
"""Called with an entry id, which is at least -1, or with the code of the failure."""


class Bookie(Protocol):
    """One bookie, in this process or elsewhere."""

    bookie_id: str
    is_embedded: bool
    """The bookie is in this process and has the latest entries in its write cache."""
    failure: int
    """0, or the code of the failure after which the bookie stores nothing until it is restarted."""
    holding: bool
    """The bookie has no space for adds without ADD_HIGH_PRIORITY: they wait."""

    def add_run(
        self,
        adder: Adder,
        slot: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        flags: int = 0,
        stripe: Stripe | None = None,
    ) -> bool:
        """Add the entries of a run, or those of its stripe; `length` counts the bytes of the ledger
        before the run. Return False if the bookie still needs the run's data after the call.
        """

    def take_back(self, only: Adder | None = None) -> None:
        """Offer waiting runs, newest first, back to their writers (Adder.on_add_taken_back)."""

    def read_cached(
        self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """Return entries from first on that are in memory; None if first is not, or if the bookie
        is in another process.
        """

    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
        fencing_key: bytes | None = None,
    ) -> None:
        """Read consecutive entries from first on, at most to last. With the ledger's master key the
        bookie fences the ledger before it reads.
        """

    def fence(self, ledger_id: int, digest: Digest, callback: PositionCallback) -> None:
        """Refuse all further adds to the ledger but those with ADD_RECOVERY. When that is durable,
        pass the last add confirmed that the bookie knows to the callback. A bookie without the
        ledger answers -1. `digest` is that of the ledger, with its master key: a bookie in another
        process answers DAMAGED if the entry that names the position fails it.
        """

    def last_entry(self, ledger_id: int, callback: PositionCallback) -> None:
        """Pass the highest entry id that the bookie stores to the callback, -1 without any."""

    def delete_ledger(self, ledger_id: int) -> None:
        """Free the ledger's space, now or when the bookie notices that the metadata is gone."""

"""Type stub of quorum.pyx: pending adds of a ledger."""

from collections.abc import Sequence

from pyxbroker.entry import EntryRun

class PendingAdds:
    """Counts acks of a ledger's entries and confirms them in order (BookKeeper's PendingAddOp).

    Raise ValueError unless 0 < ack_quorum <= write_quorum <= ensemble_size <= 32.
    """

    def __init__(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, next_entry_id: int = 0
    ) -> None: ...
    @property
    def first(self) -> int:
        """The oldest unconfirmed entry."""
    @property
    def next(self) -> int:
        """Id of the next entry to be added."""
    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is confirmed together with all entries before it; -1: none."""
    @property
    def pending(self) -> int:
        """Number of unconfirmed entries."""
    def add(self, count: int) -> int:
        """Add entries; return the id of the first. Raise ValueError unless count is positive."""
    def write_set(self, entry_id: int) -> list[int]:
        """Return the ensemble indexes that an entry is written to, in order."""
    def unacked(self, entry_id: int) -> list[int]:
        """Return the ensemble indexes that have not acknowledged a pending entry."""
    def on_ack(self, index: int, first: int, last: int) -> int:
        """Record that the bookie at an ensemble index stored entries first..last; return the last
        add confirmed.
        """
    @property
    def is_held(self) -> bool:
        """True until resume(): nothing is confirmed."""
    def hold(self) -> None:
        """Count acknowledgements, but confirm nothing until resume()."""
    def resume(self) -> int:
        """Confirm the acknowledged entries; return the last add confirmed."""
    def truncate(self, first: int) -> None:
        """Remove the entries from `first` on, which were sent to no bookie. Raise ValueError."""
    def forget(self, index: int) -> None:
        """Discard the acks of a replaced bookie for unconfirmed entries."""

class PendingRuns(PendingAdds):
    """The unconfirmed runs of a ledger's writer, and the acks of their entries."""

    def append(self, run: EntryRun) -> int:
        """Give a run its entry ids; return the first."""
    def on_run_ack(self, index: int, first: int, last: int) -> Sequence[EntryRun]:
        """Do as on_ack; return the runs that are confirmed now, in order."""
    def take_confirmed(self) -> Sequence[EntryRun]:
        """Remove and return the runs whose entries are all confirmed, in order."""
    @property
    def has_runs(self) -> bool:
        """True if a run is not confirmed."""
    @property
    def newest(self) -> EntryRun | None:
        """The run that was appended last, if it is not confirmed; otherwise None."""
    def unconfirmed(self) -> list[EntryRun]:
        """Return the unconfirmed runs, in order."""
    def take_all(self) -> list[EntryRun]:
        """Remove and return the unconfirmed runs; their entries stay pending."""
    def take_back(self) -> None:
        """Remove the run that was appended last, which was sent to no bookie."""

"""Pending adds of a ledger (quorum.pyx)."""

class PendingAdds:
    """Counts acks of one ledger's entries and confirms them in order (BookKeeper's PendingAddOp).

    ValueError when not 0 < ack_quorum <= write_quorum <= ensemble_size <= 32.
    """

    def __init__(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, next_entry_id: int = 0
    ) -> None: ...
    @property
    def first(self) -> int:
        """The oldest entry that is not confirmed."""
    @property
    def next(self) -> int:
        """Id of the next entry to be added."""
    @property
    def last_add_confirmed(self) -> int:
        """The last entry of which it and all before it are confirmed; -1: none."""
    @property
    def pending(self) -> int:
        """Entries added and not confirmed."""
    def add(self, count: int) -> int:
        """Takes count further entries; returns the id of the first. ValueError for none."""
    def write_set(self, entry_id: int) -> list[int]:
        """Ensemble indexes that an entry is written to, in order."""
    def unacked(self, entry_id: int) -> list[int]:
        """Ensemble indexes of the write set of a pending entry without its ack. ValueError."""
    def on_ack(self, index: int, first: int, last: int) -> int:
        """The bookie at an ensemble index has entries first..last; the last confirmed id."""
    @property
    def is_held(self) -> bool:
        """Nothing is confirmed until resume()."""
    def hold(self) -> None:
        """Count acknowledgements, but confirm nothing until resume()."""
    def resume(self) -> int:
        """Confirm what was acknowledged meanwhile; return the last confirmed id."""
    def truncate(self, first: int) -> None:
        """Takes back the entries from first on, which no bookie was given. ValueError."""
    def forget(self, index: int) -> None:
        """The bookie at an ensemble index was replaced: what it acknowledged is void."""

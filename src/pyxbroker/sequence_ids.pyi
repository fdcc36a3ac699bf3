"""Type stub of sequence_ids.pyx: detection of duplicate SENDs."""

from pyxbroker.entry import EntryBatch, EntryRun

NO_SEQUENCE_ID: int
IS_DUPLICATE: int
IS_UNKNOWN: int

class SequenceIds:
    """The highest sequence ids of one producer name."""

    persisted: int
    last_seen: float
    has_failed: bool

    def __init__(self, persisted: int = ...) -> None: ...
    @property
    def pushed(self) -> int:
        """The highest sequence id appended or stored."""
    def take(self, run: EntryRun) -> bool:
        """Record a run as appended if all its SENDs are new, and return True. Otherwise change
        nothing.
        """
    def classify(self, run: EntryRun, i: int) -> int:
        """Classify one SEND of a run as 0, IS_DUPLICATE or IS_UNKNOWN, and record a new one as
        appended.
        """
    def confirm(self, run: EntryRun) -> None:
        """Record a run as stored."""
    def reset(self) -> None:
        """Reset to the stored ids after some appended entries were not stored."""

def collect_highest(batch: EntryBatch, found: dict[bytes, int], name_bytes_max: int) -> None:
    """Collect the highest sequence id of each producer in entries into found."""

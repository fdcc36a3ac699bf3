"""What Python sees of sequence_ids.pyx: which SENDs repeat what their producer has sent before."""

from pyxbroker.entry import EntryBatch, EntryRun

NO_SEQUENCE_ID: int
IS_DUPLICATE: int
IS_UNKNOWN: int

class SequenceIds:
    """The highest sequence ids of one producer's name."""

    persisted: int
    last_seen: float
    has_failed: bool

    def __init__(self, persisted: int = ...) -> None: ...
    @property
    def pushed(self) -> int:
        """Of what was appended, or is stored."""
    def take(self, run: EntryRun) -> bool:
        """Whether all SENDs of a run are new; then they are noted as appended, else none is."""
    def judge(self, run: EntryRun, i: int) -> int:
        """What one SEND of a run is: 0, IS_DUPLICATE, IS_UNKNOWN; a new one is noted."""
    def confirm(self, run: EntryRun) -> None:
        """A run is stored."""
    def reset(self) -> None:
        """Nothing is under way any more, and not all of it was stored."""

def replay(batch: EntryBatch, found: dict[bytes, int], name_bytes_max: int) -> None:
    """Takes the highest sequence id of each producer from entries into found."""

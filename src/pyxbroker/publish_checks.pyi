"""Type stub of publish_checks.pyx: the SENDs of a run that a topic's policies forbid."""

from pyxbroker.entry import EntryRun

NOT_ENCRYPTED: int
TOO_LARGE: int
TOO_LATE: int

def forbidden(
    run: EntryRun, encrypted: bool, bytes_max: int, delay_max_ms: int
) -> list[tuple[int, int]]:
    """Return (index, reason) of each refused SEND; a limit of 0 is no limit."""

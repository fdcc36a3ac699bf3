"""What Python sees of publish_checks.pyx: which SENDs of a run a topic's policies forbid."""

from pyxbroker.entry import EntryRun

NOT_ENCRYPTED: int
TOO_LARGE: int
TOO_LATE: int

def forbidden(
    run: EntryRun, encrypted: bool, bytes_max: int, delay_max_ms: int
) -> list[tuple[int, int]]:
    """(index, reason) of each SEND that is refused; a limit of 0 is none."""

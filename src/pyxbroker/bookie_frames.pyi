"""Type stub of bookie_frames.pyx: frames between a broker and a bookie."""

from pyxbroker.entry import Digest, EntryRun

def frames_of(
    run: EntryRun, digest: Digest, last_add_confirmed: int, length: int, flags: int = 0
) -> tuple[bytes, int]:
    """Return the bytes of a run's add requests, and the address of their memory. For tests."""

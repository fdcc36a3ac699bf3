"""The progress of reading and copying files."""

from __future__ import annotations


class Progress:
    """Counts bytes. Subclasses show them; this class shows nothing."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    def begin(self, total: int) -> None:
        """Start with a number of bytes."""
        self.done, self.total = 0, total

    def add(self, count: int) -> None:
        """Count bytes that were read or copied."""
        self.done += count

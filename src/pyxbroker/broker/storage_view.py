"""The broker's view of its storage: can entries be stored, why not, and notification of changes.

`standalone` implements it for its disks (bookie/space.py), a broker without a disk for the bookies
that it can reach (roles/remote_storage.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class StorageView(Protocol):
    """The state of the storage, on the event loop's thread."""

    refusal: str | None
    """Human-readable reason why storage refuses writes, or None while it accepts them."""
    has_failed: bool
    """The refusal lasts until the process is restarted."""

    @property
    def shortage(self) -> str | None:
        """Reason why some entries may not be stored although others are, or None."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call callback() after each change of `refusal` from or to None, and of `has_failed`."""

    def set_holding(self, on: bool) -> None:
        """Begin or end holding back what clients publish, while it cannot be stored."""

    def take_back(self) -> None:
        """Return the runs that are held back to their ledgers, which then drop them."""

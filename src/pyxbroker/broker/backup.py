"""The interface of the data of a running broker for backups (roles/backup_source.py)."""

from __future__ import annotations

from typing import Any, Protocol


class BackupRefused(Exception):
    """Raised when no backup is possible; `status` is that of the HTTP answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class BackupSource(Protocol):
    """The data of a broker as of one moment, for one backup at a time.

    All methods raise BackupRefused.
    """

    async def begin(self) -> dict[str, Any]:
        """Choose a moment, and delay deletions of data; return what a copy of it consists of."""

    def renew(self, moment_id: str) -> None:
        """Extend the time for which deletions are delayed."""

    def end(self, moment_id: str) -> None:
        """End the delay of deletions. Raises if it has ended before."""

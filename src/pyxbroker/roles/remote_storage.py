"""The storage of a broker without disks: the bookies of a cluster."""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.ledger.pool import BookiePool
from pyxbroker.ledger.registered_bookies import RegisteredBookies


class RemoteStorage:
    """A StorageView (broker/storage_view.py) of the bookies that this broker can reach.

    It refuses nothing for the whole broker: each topic waits for the bookies of its own ledgers, or
    refuses producers while its next ledger has too few bookies. `shortage` is what the health check
    reports.
    """

    refusal: str | None = None
    has_failed = False

    def __init__(self, bookies: RegisteredBookies, pool: BookiePool, ensemble: int) -> None:
        self._bookies = bookies
        self._pool = pool
        self._ensemble = ensemble

    @property
    def shortage(self) -> str | None:
        """The reason why a new ledger cannot be created with the default ensemble, or None."""
        writable = self._bookies.view.writable
        silent = sum(self._pool.trouble_of(bookie_id) is not None for bookie_id in writable)
        usable = len(writable) - silent
        if usable >= self._ensemble:
            return None
        unreachable = f", of which {silent} cannot be reached" if silent else ""
        return (
            "Messages cannot be stored in new ledgers: they need"
            f" {self._ensemble} writable bookies (managedLedgerDefaultEnsembleSize), and"
            f" {len(writable)} are registered{unreachable}."
        )

    async def probe(self) -> None:
        """Try again to connect to writable bookies that could not be reached."""
        for bookie_id in self._bookies.view.writable:
            if self._pool.trouble_of(bookie_id) is not None:
                self._pool[bookie_id].open()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register nothing: `refusal` does not change."""

    def set_holding(self, on: bool) -> None:
        """Do nothing: no SENDs are held back."""

    def take_back(self) -> None:
        """Do nothing: no SENDs are held back."""

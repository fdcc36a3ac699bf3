"""The bookies of a cluster, by their ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyxbroker.ledger.registered_bookies import Address
from pyxbroker.ledger.remote import RemoteBookie, RemoteSettings
from pyxbroker.turn import Turn


class BookiePool(dict[str, RemoteBookie]):
    """A connection for each bookie that a ledger names: the pool creates it for any id that it is
    asked for.

    `on_full(True)` is called when one of the bookies has too many bytes of adds to answer, and
    `on_full(False)` when none of them has.
    """

    def __init__(
        self,
        turn: Turn,
        address_of: Callable[[str], Address],
        on_full: Callable[[bool], None] = lambda full: None,
        settings: RemoteSettings | None = None,
    ) -> None:
        super().__init__()
        self._turn = turn
        self._on_full = on_full
        self._settings = settings or RemoteSettings()
        self._address_of = address_of
        self._full = 0

    def __missing__(self, bookie_id: str) -> RemoteBookie:
        bookie = RemoteBookie(
            bookie_id, self._turn, self._address_of, self._settings, self._count_full
        )
        self[bookie_id] = bookie
        return bookie

    def trouble_of(self, bookie_id: str) -> str | None:
        """Return why a bookie has no connection; None if it has one, or was not asked for."""
        bookie = self.get(bookie_id)
        return None if bookie is None else bookie.trouble

    def _count_full(self, is_full: bool) -> None:
        self._full += 1 if is_full else -1
        if self._full == is_full:
            self._on_full(is_full)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(bookie.close() for bookie in self.values()))

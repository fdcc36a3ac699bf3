"""The bookies of a cluster, by their ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from pyxbroker.ledger.remote import Address, RemoteBookie, RemoteSettings
from pyxbroker.turn import Turn


def parse_address(bookie_id: str) -> Address:
    """Return the host and port of an id `host:port`. Raise LookupError for another id."""
    host, _, port = bookie_id.rpartition(":")
    if not host or not port.isdigit():
        raise LookupError(f"the bookie {bookie_id} is not registered, and its id is no host:port")
    return host.strip("[]"), int(port)


class BookiePool(Mapping[str, RemoteBookie]):
    """A connection for each bookie that a ledger has named. Any id is a key; iteration covers those
    that were asked for.

    `on_full(True)` is called when one of the bookies has too many bytes of adds to answer, and
    `on_full(False)` when none of them has.
    """

    def __init__(
        self,
        turn: Turn,
        on_full: Callable[[bool], None] = lambda full: None,
        settings: RemoteSettings | None = None,
        address_of: Callable[[str], Address] = parse_address,
    ) -> None:
        self._turn = turn
        self._on_full = on_full
        self._settings = settings or RemoteSettings()
        self._address_of = address_of
        self._bookies: dict[str, RemoteBookie] = {}
        self._full = 0

    def __getitem__(self, bookie_id: str) -> RemoteBookie:
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            bookie = RemoteBookie(
                bookie_id, self._turn, self._address_of, self._settings, self._count_full
            )
            self._bookies[bookie_id] = bookie
        return bookie

    def __iter__(self) -> Iterator[str]:
        return iter(self._bookies)

    def __len__(self) -> int:
        return len(self._bookies)

    def __contains__(self, bookie_id: object) -> bool:
        return isinstance(bookie_id, str)

    def trouble_of(self, bookie_id: str) -> str | None:
        """Return why a bookie has no connection; None if it has one, or was not asked for."""
        bookie = self._bookies.get(bookie_id)
        return None if bookie is None else bookie.trouble

    def _count_full(self, is_full: bool) -> None:
        self._full += 1 if is_full else -1
        if self._full == is_full:
            self._on_full(is_full)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(bookie.close() for bookie in self._bookies.values()))

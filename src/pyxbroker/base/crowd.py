"""Who waits, by where they come from, and who of them gives way when they are too many.

From the network that has most of them the first one does: who comes with thousands pushes out its
own, and not somebody from elsewhere who waits beside them. Nobody is searched for: one more, one
less and who gives way cost the same, however many there are.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

IPV6_PREFIX = 64

K = TypeVar("K", bound=Hashable)


class Crowd(Generic[K]):
    """Those that wait, each of them once."""

    def __init__(self) -> None:
        self._networks: dict[K, str] = {}  # where each comes from
        self._members: dict[str, dict[K, None]] = {}  # of a network, who came first comes first
        # Networks by how many members they have, those with most at the end; of equals who has had
        # so many for longest comes first.
        self._by_size: list[dict[str, None]] = []

    def __len__(self) -> int:
        return len(self._networks)

    def __contains__(self, key: K) -> bool:
        return key in self._networks

    def __iter__(self) -> Iterator[K]:
        return iter(self._networks)

    def add(self, key: K, address: str) -> None:
        """Somebody waits; who does already keeps its place."""
        if key in self._networks:
            return
        network = network_of(address)
        self._networks[key] = network
        members = self._members.setdefault(network, {})
        members[key] = None
        self._resize(network, len(members) - 1, len(members))

    def discard(self, key: K) -> None:
        """It does not wait, or not any more."""
        network = self._networks.pop(key, None)
        if network is None:
            return
        members = self._members[network]
        del members[key]
        if not members:
            del self._members[network]
        self._resize(network, len(members) + 1, len(members))

    def first(self) -> K | None:
        """Who gives way: of the network that has most who came first; None where nobody waits."""
        if not self._by_size:
            return None
        return next(iter(self._members[next(iter(self._by_size[-1]))]))

    def _resize(self, network: str, before: int, now: int) -> None:
        sizes = self._by_size
        if before:
            del sizes[before - 1][network]
        if now:
            if now > len(sizes):
                sizes.append({})
            sizes[now - 1][network] = None
        while sizes and not sizes[-1]:
            sizes.pop()


def network_of(address: str) -> str:
    """What one client has for itself: an address of IPv4, a network of IPv6."""
    return _network_of_ipv6(address) if ":" in address else address


@lru_cache(maxsize=1024)
def _network_of_ipv6(address: str) -> str:
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))

"""A queue of waiting connections that evicts fairly among networks.

The network with the most entries loses its oldest one. A client that opens thousands of connections
therefore evicts its own, and not those of other networks. Adding, removing and choosing the next
entry to evict take constant time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

IPV6_PREFIX = 64

K = TypeVar("K", bound=Hashable)


class EvictionQueue(Generic[K]):
    """Waiting entries, each at most once."""

    def __init__(self) -> None:
        self._networks: dict[K, str] = {}  # of each entry
        self._members: dict[str, dict[K, None]] = {}  # entries of a network, oldest first
        # Element n has the networks with n + 1 members; the network with that many members for the
        # longest time comes first.
        self._by_size: list[dict[str, None]] = []

    def __len__(self) -> int:
        return len(self._networks)

    def __contains__(self, key: K) -> bool:
        return key in self._networks

    def __iter__(self) -> Iterator[K]:
        return iter(self._networks)

    def add(self, key: K, address: str) -> None:
        """Add an entry. One that is present keeps its position."""
        if key in self._networks:
            return
        network = network_of(address)
        self._networks[key] = network
        members = self._members.setdefault(network, {})
        members[key] = None
        self._resize(network, len(members) - 1, len(members))

    def discard(self, key: K) -> None:
        """Remove an entry if it is present."""
        network = self._networks.pop(key, None)
        if network is None:
            return
        members = self._members[network]
        del members[key]
        if not members:
            del self._members[network]
        self._resize(network, len(members) + 1, len(members))

    def first(self) -> K | None:
        """Return the entry to evict: the oldest of the largest network; None if none exists."""
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
    """Return the range of addresses that one client may own: an IPv4 address, or an IPv6 /64."""
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

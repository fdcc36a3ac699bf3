"""Who waits, and who of them gives way."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from counted_keys import CountedKey
from pyxbroker.base.eviction_queue import EvictionQueue


def crowd_of(*members: tuple[Any, str]) -> EvictionQueue[Any]:
    crowd: EvictionQueue[Any] = EvictionQueue()
    for key, address in members:
        crowd.add(key, address)
    return crowd


def gone(crowd: EvictionQueue[Any]) -> list[Any]:
    """All of them, as they give way."""
    order = []
    while len(crowd):
        order.append(crowd.first())
        crowd.discard(order[-1])
    assert crowd.first() is None
    return order


def test_of_the_network_that_has_most_the_first_gives_way() -> None:
    crowd = crowd_of((1, "a"), *((each, "b") for each in range(2, 6)), (6, "c"), (7, "c"))
    assert gone(crowd) == [2, 3, 6, 4, 1, 7, 5]


def test_who_comes_with_thousands_pushes_out_its_own() -> None:
    crowd = crowd_of(("honest", "10.0.0.1"))
    for number in range(100):
        crowd.add(number, "10.0.0.2")
    for number in range(100, 5_000):
        assert crowd.first() == number - 100
        crowd.discard(number - 100)
        crowd.add(number, "10.0.0.2")
    assert "honest" in crowd


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    here = [(each, f"2001:db8::{each}") for each in range(1, 3)]
    crowd = crowd_of((0, "10.0.0.1"), (9, "2001:db8:0:1::1"), *here)
    assert crowd.first() == 1


def test_where_all_have_as_many_who_came_first_gives_way() -> None:
    crowd = crowd_of(*((each, f"10.0.0.{each}") for each in range(10)))
    assert gone(crowd) == list(range(10))


def test_who_is_there_keeps_its_place_and_who_is_not_may_leave() -> None:
    crowd = crowd_of((1, "a"), (2, "a"), (1, "a"))
    crowd.discard(3)
    assert list(crowd) == [1, 2] and gone(crowd) == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 15), st.sampled_from("abcd"), st.booleans())))
def test_whoever_comes_and_goes_it_is_one_of_a_network_that_has_most(
    steps: list[tuple[int, str, bool]],
) -> None:
    crowd: EvictionQueue[int] = EvictionQueue()
    there: dict[int, str] = {}
    for key, address, comes in steps:
        if comes:
            crowd.add(key, address)
            there.setdefault(key, address)
        else:
            crowd.discard(key)
            there.pop(key, None)
        networks = list(there.values())
        first = crowd.first()
        assert len(crowd) == len(there) and set(crowd) == set(there)
        if first is None:
            assert not there
        else:
            network = there[first]
            assert networks.count(network) == max(map(networks.count, networks))
            assert first == next(each for each, other in there.items() if other == network)
    assert len(gone(crowd)) == len(there)
    assert not crowd._members and not crowd._by_size  # nothing of who has gone


def test_who_gives_way_is_found_without_a_look_at_all() -> None:
    crowd = crowd_of(*((CountedKey(each), f"10.0.{each % 7}.1") for each in range(5_000)))
    CountedKey.looks = 0
    for _ in range(100):
        first = crowd.first()
        crowd.discard(first)
        crowd.add(first, "10.0.0.1")
    assert CountedKey.looks < 1_000

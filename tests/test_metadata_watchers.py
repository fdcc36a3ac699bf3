"""Who hears of a change is looked up by its path, however many watch other nodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import Notification, NotificationKind
from pyxbroker.metadata.watchers import Watchers


class Looks(dict[str, Any]):
    """A table that notes how many watchers it was asked for by each look."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def get(self, path: str, default: Any = None) -> Any:
        some = super().get(path, default)
        self.found.append(len(some))
        return some


def _ignore(news: Notification) -> None:
    pass


@pytest.mark.parametrize("question", [Watchers.of, Watchers.is_watched, Watchers.is_list_watched])
def test_a_change_costs_no_look_at_those_who_watch_other_nodes(
    question: Callable[[Watchers, str], object],
) -> None:
    watchers = Watchers()
    watchers._below, watchers._above = below, above = Looks(), Looks()
    watchers.add(_ignore, f"{paths.MANAGED_LEDGERS}/", None, False)
    for number in range(1_000):
        watchers.add(_ignore, paths.managed_ledgers(f"t/n{number}"), 4, True)
    path = paths.managed_ledger("t/n7/persistent/topic")
    question(watchers, path)
    assert sum(below.found + above.found) <= 2
    assert len(below.found + above.found) <= path.count("/") + 2


def test_what_is_looked_up_is_what_a_walk_through_all_finds() -> None:
    rng = random.Random(5)
    watchers = Watchers()
    removers: dict[int, Callable[[], None]] = {}
    known: dict[int, tuple[str, bool]] = {}
    for number in range(1, 2_001):
        prefix, above = _some_path(rng) + rng.choice(["", "/"]), rng.random() < 0.5
        removers[number] = watchers.add(_ignore, prefix, None, above)
        known[number] = prefix, above
        if rng.random() < 0.9:
            gone = rng.choice(list(known))
            del known[gone]
            removers[gone]()
            removers[gone]()
        assert len(watchers) == len(known)
        path = _some_path(rng) or "/"
        heard = [each for each, (prefix, above) in known.items() if _hears(path, prefix, above)]
        assert [each.number for each in watchers.of(path)] == heard
    for number in known:
        removers[number]()
    assert not watchers._below and not watchers._above


def _some_path(rng: random.Random) -> str:
    return "".join(f"/{rng.choice(['a', 'b', 'ab'])}" for _ in range(rng.randrange(4)))


def _hears(path: str, prefix: str, above: bool) -> bool:
    is_below = prefix in ("", "/") or path == prefix or path.startswith(prefix.rstrip("/") + "/")
    return is_below or (above and prefix.startswith(f"{path}/"))


@coroutine_test
async def test_who_goes_while_others_are_called_hears_of_no_later_change() -> None:
    store = MemoryStore()
    heard: list[str] = []
    added: list[Callable[[], None]] = []

    def first(news: Notification) -> None:
        heard.append("first")
        remove_first()
        remove_last()
        added.append(store.watch(lambda news: heard.append("new"), prefix="/n"))

    remove_first = store.watch(first, prefix="/n")
    store.watch(lambda news: heard.append("between"))
    remove_last = store.watch(lambda news: heard.append("last"), prefix="/n")
    store._notify(Notification(NotificationKind.MODIFIED, "/n"))
    assert heard == ["first", "between", "last"]
    heard.clear()
    store._notify(Notification(NotificationKind.MODIFIED, "/n"))
    assert heard == ["between", "new"]

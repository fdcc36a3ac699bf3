"""Callbacks of a managed ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.log import get_logger

if TYPE_CHECKING:
    from pyxbroker.mledger.errors import ManagedLedgerError
    from pyxbroker.turn import Turn


log = get_logger(__name__)


class Listener(Protocol):
    """The user of a managed ledger, notified of its failure."""

    def on_managed_ledger_failed(self, error: ManagedLedgerError) -> None: ...

    def on_managed_ledger_write_failed(self, error: ManagedLedgerError) -> None: ...


CALLED_TOGETHER_MAX = 16  # watchers that are called together


class Watchers:
    """Watchers for new entries: each is called once at the end of a turn that brought entries.

    Many watchers are called in rounds that span several turns. A round begins after the previous
    one has ended, so all watchers are called equally often.
    """

    __slots__ = ("_calls", "_is_due", "_round", "_turn")  # one instance per topic

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._calls: dict[Callable[[], None], None] = {}  # in order of registration
        self._is_due = False  # entries arrived that the current round may have missed
        self._round: Iterator[Callable[[], None]] | None = None  # watchers still to be called

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Callable[[], None]) -> None:
        self._calls[call] = None

    def remove(self, call: Callable[[], None]) -> None:
        """Remove a watcher if it is registered."""
        self._calls.pop(call, None)

    def schedule_round(self) -> None:
        """Schedule a call of each watcher at the end of this turn, for new entries."""
        if not self._is_due:
            self._is_due = True
            if self._round is None:
                self._turn.at_end(self._call)

    def _call(self) -> None:
        self._turn.notifications.run(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        calls = tuple(self._calls)
        if len(calls) > CALLED_TOGETHER_MAX:
            self._round = iter(calls)
            self._continue_round()
            return
        for call in calls:
            _notify(call)

    def _continue_round(self) -> None:
        """Continue a round as long as there is time."""
        assert self._round is not None, "no round is in progress"
        news = self._turn.notifications
        began_ns = news.now_ns()
        for call in self._round:
            # Watchers may have been removed since the round began.
            if call in self._calls:
                _notify(call)
            if news.has_used_slice(began_ns):
                news.later(self._continue_round)
                return
        self._round = None
        if self._is_due:
            news.later(self._begin)


def _notify(call: Callable[[], None]) -> None:
    # A failing watcher must not affect the others.
    try:
        call()
    except Exception as error:
        log.failure("a watcher of new entries failed", error)

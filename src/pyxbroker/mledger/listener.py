"""Who is told what of a managed ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.log import get_logger

if TYPE_CHECKING:
    from pyxbroker.mledger.errors import ManagedLedgerError
    from pyxbroker.turn import Turn


log = get_logger(__name__)


class Listener(Protocol):
    """Who uses the managed ledger: told of its end."""

    def on_managed_ledger_failed(self, error: ManagedLedgerError) -> None: ...

    def on_managed_ledger_write_failed(self, error: ManagedLedgerError) -> None: ...


FEW = 16  # watchers that are told in one go


class Watchers:
    """Who waits for more entries: called once in each turn that brought some, at its end.

    Many are called in rounds that take several turns, each of which begins when the one before it
    is over: all are told as often, and who was told last does not wait for others to be told twice.
    """

    __slots__ = ("_calls", "_is_due", "_round", "_turn")  # there is one for each of many topics

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._calls: dict[Callable[[], None], None] = {}  # in their order
        self._is_due = False  # there is more than the round that is under way may know of
        self._round: Iterator[Callable[[], None]] | None = None  # those who are not told yet

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Callable[[], None]) -> None:
        self._calls[call] = None

    def remove(self, call: Callable[[], None]) -> None:
        """Nothing happens when it is not there."""
        self._calls.pop(call, None)

    def call_at_end(self) -> None:
        """There is more."""
        if not self._is_due:
            self._is_due = True
            if self._round is None:
                self._turn.at_end(self._call)

    def _call(self) -> None:
        self._turn.notifications.run(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        calls = tuple(self._calls)
        if len(calls) > FEW:
            self._round = iter(calls)
            self._go_on()
            return
        for call in calls:
            _tell(call)

    def _go_on(self) -> None:
        """A part of a round, as long as there is time for it."""
        assert self._round is not None, "a round ends here, and begins before it goes on"
        news = self._turn.notifications
        began_ns = news.now_ns()
        for call in self._round:
            # Some may have left since the round began.
            if call in self._calls:
                _tell(call)
            if news.has_used_slice(began_ns):
                news.later(self._go_on)
                return
        self._round = None
        if self._is_due:
            news.later(self._begin)


def _tell(call: Callable[[], None]) -> None:
    # One that fails must not keep the news from the others.
    try:
        call()
    except Exception as error:
        log.failure("news of entries was not taken in", error)

"""Who is told what of a managed ledger."""

from __future__ import annotations

from collections.abc import Callable
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


class Watchers:
    """Who waits for more entries: called once in each turn that brought some, at its end."""

    __slots__ = ("_calls", "_is_due", "_turn")  # there is one for each of many topics

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._calls: dict[Callable[[], None], None] = {}  # in their order
        self._is_due = False

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
            self._turn.at_end(self._call)

    def _call(self) -> None:
        self._is_due = False
        for call in tuple(self._calls):
            # One that fails must not keep the news from the others.
            try:
                call()
            except Exception as error:
                log.failure("news of entries was not taken in", error)

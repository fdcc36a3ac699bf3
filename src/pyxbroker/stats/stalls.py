"""Log of event-loop turns that take too long: one line for each, with the functions that ran.

A separate thread inspects the loop's stack while such a turn lasts. The line contains names of
functions and no data of clients.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol

from pyxbroker.base.log import get_logger

log = get_logger("pyxbroker.loop")

STALL_S = 0.1
FRAMES_MAX = 20
NOT_SEEN = "not seen"
COMPILED = "compiled code"
_BELOW = ("asyncio", "uvloop")  # packages whose frames call the code of a turn


class Watch(Protocol):
    """turn_watch.TurnWatch."""

    def wait(self) -> tuple[int, int, float]: ...

    def elapsed(self, turn: int) -> float: ...


class StallLog:
    """The thread that watches the event loop of the thread that created it."""

    def __init__(self, watch: Watch, *, stalled: int, ended: int) -> None:
        self._watch = watch
        self._stalled = stalled
        self._ended = ended
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the last line. The watch must be closed already."""
        self._thread.join()

    def _run(self) -> None:
        turn_seen = 0
        ran = NOT_SEEN
        while True:
            what, turn, seconds = self._watch.wait()
            if what == self._ended:
                log.warning(
                    "the event loop was held up",
                    ms=round(seconds * 1000),
                    ran=ran if turn == turn_seen else NOT_SEEN,
                )
            elif what == self._stalled:
                stack = self._stack()
                lasted = self._watch.elapsed(turn)
                if not lasted:
                    continue  # the stack is of another turn
                if turn == turn_seen:
                    log.error("the event loop is stuck", s=round(lasted), ran=stack)
                turn_seen, ran = turn, stack
            else:
                return

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        names = list(_names(frame))
        del frame  # it would keep its local variables alive
        return " < ".join(names[:FRAMES_MAX]) or COMPILED


def _names(frame: FrameType | None) -> Iterator[str]:
    """Yield the functions of a stack, from the innermost one to the caller in the loop."""
    while frame is not None:
        code = frame.f_code
        module = str(frame.f_globals.get("__name__", Path(code.co_filename).stem))
        name = getattr(code, "co_qualname", code.co_name)  # absent in Python 3.10
        if module.split(".")[0] in _BELOW and name.split(".")[-1] in ("run", "wrapper"):
            return
        if module.split(".")[0] != "importlib":  # the importing function is listed anyway
            yield f"{module.removeprefix('pyxbroker.')}.{name}:{frame.f_lineno}"
        frame = frame.f_back

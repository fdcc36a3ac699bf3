"""The live page of `pyxbroker top` on a terminal: keys and repainting, by curses."""

from __future__ import annotations

import asyncio
import contextlib
import curses
import os
import signal
import sys
from typing import Any

from pyxbroker.cli import fail
from pyxbroker.cli.top.page import (
    FIRST_SORT,
    SORTS,
    SUBSCRIPTIONS,
    TOPICS,
    Line,
    View,
    live_page,
    topic_page,
)
from pyxbroker.cli.top.samples import Snapshot
from pyxbroker.cli.top.watch import Watch
from pyxbroker.client.errors import ClientError

ENTER = (curses.KEY_ENTER, ord("\n"), ord("\r"))
ERASE = (curses.KEY_BACKSPACE, 127, 8)
ESCAPE = 27
ESCAPE_DELAY_MS = 50
MOVES = {
    curses.KEY_UP: -1,
    ord("k"): -1,
    curses.KEY_DOWN: 1,
    ord("j"): 1,
    curses.KEY_PPAGE: -10,
    curses.KEY_NPAGE: 10,
    curses.KEY_HOME: -1_000_000,
    curses.KEY_END: 1_000_000,
}
WANTED_CHARACTERS_MAX = 200


def run(watch: Watch, interval_s: float, sort: str) -> None:
    """Show the page until the user ends it. Raises ClientError if no broker answers at first."""
    asyncio.run(_run(watch, interval_s, View(sort=sort or FIRST_SORT[TOPICS])))


async def _run(watch: Watch, interval_s: float, view: View) -> None:
    try:
        first = await watch.sample()  # before the terminal changes, to report errors as sentences
        with _terminal() as window:
            await Screen(window, watch, interval_s, view, first).show()
    finally:
        watch.close()


@contextlib.contextmanager
def _terminal() -> Any:
    """Give the terminal to curses, and restore it."""
    try:
        window = curses.initscr()
    except curses.error:
        fail(
            f"TERM is {os.environ.get('TERM', '')!r}, an unknown terminal: set it, or use --once.",
            2,
        )
    try:
        curses.noecho()
        curses.cbreak()
        curses.set_escdelay(ESCAPE_DELAY_MS)
        window.keypad(True)
        window.nodelay(True)
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        yield window
    finally:
        window.keypad(False)
        with contextlib.suppress(curses.error):
            curses.curs_set(1)
        curses.endwin()


class Screen:
    """The page, the state that keys change, and the samples that it shows."""

    def __init__(
        self, window: Any, watch: Watch, interval_s: float, view: View, first: Snapshot
    ) -> None:
        self._window = window
        self._watch = watch
        self._interval_s = interval_s
        self._view = view
        self._found = first
        self._topic: dict[str, Any] = {}
        self._problem = ""
        self._ended = asyncio.Event()
        self._refresh = asyncio.Event()

    async def show(self) -> None:
        """Repaint after each key, each sample and each change of the terminal's size."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._read_keys)
        loop.add_signal_handler(signal.SIGWINCH, self._resize)
        sampling = asyncio.ensure_future(self._sample())
        sampling.add_done_callback(lambda _: self._ended.set())
        try:
            self._paint()
            await self._ended.wait()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGWINCH)
            sampling.cancel()
        if not sampling.cancelled() and sampling.done():
            sampling.result()

    async def _sample(self) -> None:
        await asyncio.sleep(min(1.0, self._interval_s))  # the first rates come soon
        while True:
            if not self._view.is_paused:
                try:
                    self._found = await self._watch.sample()
                    if self._view.topic:
                        self._topic = await self._watch.topic(self._view.topic)
                    self._problem = ""
                except ClientError as error:
                    self._problem = str(error)
                self._paint()
            self._refresh.clear()
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._refresh.wait(), self._interval_s)

    # --- keys -----------------------------------------------------------------------------------

    def _read_keys(self) -> None:
        while True:
            try:
                key = self._window.get_wch()
            except curses.error:  # no more keys
                break
            code = ord(key) if isinstance(key, str) else key
            if self._view.is_typing:
                self._type(code, key)
            else:
                self._press(code)
        if not self._ended.is_set():
            self._paint()

    def _type(self, code: int, key: str | int) -> None:
        view = self._view
        if code in ENTER:
            view.is_typing = False
        elif code == ESCAPE:
            view.is_typing, view.wanted = False, ""
        elif code in ERASE:
            view.wanted = view.wanted[:-1]
        elif isinstance(key, str) and key.isprintable():
            view.wanted = (view.wanted + key)[:WANTED_CHARACTERS_MAX]

    def _press(self, code: int) -> None:
        view = self._view
        if code == ord("q"):
            self._ended.set()
        elif code == ord("p"):
            view.is_paused = not view.is_paused
        elif code == ESCAPE or code in ERASE:
            if view.topic:
                view.topic = ""
            else:
                view.wanted = ""
        elif view.topic:
            return
        elif chr(code) in SORTS:
            view.sort, view.selected = chr(code), 0
        elif code in (ord("\t"), ord("t"), ord("s")):
            other = SUBSCRIPTIONS if view.table == TOPICS else TOPICS
            view.table = {ord("t"): TOPICS, ord("s"): SUBSCRIPTIONS}.get(code, other)
            view.sort, view.selected = FIRST_SORT[view.table], 0
        elif code == ord("/"):
            view.is_typing = True
        elif code in MOVES:
            view.selected += MOVES[code]
        elif code in ENTER:
            rows = view.rows(self._found)
            if rows:
                view.topic, self._topic = rows[min(view.selected, len(rows) - 1)].names[0], {}
                self._refresh.set()

    # --- painting -------------------------------------------------------------------------------

    def _resize(self) -> None:
        curses.update_lines_cols()
        curses.resizeterm(curses.LINES, curses.COLS)
        self._paint()

    def _paint(self) -> None:
        height, width = self._window.getmaxyx()
        if self._view.topic:
            lines = topic_page(self._view.topic, self._topic, width)[: height - 1]
            lines += [Line("")] * (height - 1 - len(lines))
            lines.append(Line("Esc back   p pause   q quit"[:width]))
        else:
            lines = live_page(self._found, self._view, width, height)
        if self._problem:
            lines[-1] = Line(self._problem[:width], "head")
        self._window.erase()
        for at, line in enumerate(lines[:height]):
            style = {"head": curses.A_BOLD, "selected": curses.A_REVERSE}.get(line.style, 0)
            # curses cannot write the last cell of the screen.
            with contextlib.suppress(curses.error):
                self._window.addnstr(at, 0, line.text, width, style)
        self._window.refresh()

"""One line on stderr that shows the progress of a job.

On a terminal the line is overwritten. Otherwise a new line is printed at intervals, so that a log
stays short. An unchanged line is not repeated.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TERMINAL_INTERVAL_S = 0.2
LOG_INTERVAL_S = 10.0
CHECK_INTERVAL_S = 0.3
ERASE = "\r\x1b[K"


class Progress:
    """The progress line of a job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._interval_s = TERMINAL_INTERVAL_S if self._is_terminal else LOG_INTERVAL_S
        self._next_at = 0.0
        self._last = ""
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        """Show the progress, at most once per interval."""
        with self._lock:
            if text != self._last and time.monotonic() >= self._next_at:
                self._write(text, end="" if self._is_terminal else "\n")

    def print_line(self, text: str) -> None:
        """Print a line that is not overwritten."""
        with self._lock:
            if text != self._last or self._is_terminal:
                self._write(text, end="\n")

    def clear(self) -> None:
        """Remove the line from a terminal, before other output is written."""
        with self._lock:
            if self._is_terminal and self._last:
                print(ERASE, end="", file=sys.stderr, flush=True)
            self._last = ""

    @contextmanager
    def watched(self, current: Callable[[], str | None]) -> Iterator[None]:
        """Show what `current` returns, at intervals, while the body runs. None: show nothing."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(CHECK_INTERVAL_S):
                if (text := current()) is not None:
                    self.show(text)

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _write(self, text: str, end: str) -> None:
        line = f"{self._name}: {text}"
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            line = f"{ERASE}{line if end else line[:width]}"
        print(line, end=end, file=sys.stderr, flush=True)
        self._last = text
        self._next_at = time.monotonic() + self._interval_s


def number(count: float) -> str:
    """Return a count with separators of thousands."""
    return f"{count:,.0f}"

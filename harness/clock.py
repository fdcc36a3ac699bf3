"""A wall clock for one process, which a test can set (clock.c)."""

from __future__ import annotations

import struct
from pathlib import Path

from harness.preloaded import build

SOURCE = Path(__file__).with_suffix(".c")


class Clock:
    """The clock of the programs that are started with `environment`."""

    def __init__(self, directory: Path) -> None:
        library = build(SOURCE, directory)
        self._path = directory / "clock"
        self.set_ahead(0.0)
        self.environment = {"LD_PRELOAD": str(library), "PYXBROKER_CLOCK": str(self._path)}

    def set_ahead(self, seconds: float) -> None:
        """Set the clock ahead of the machine's, or behind it if `seconds` is negative."""
        # The programs have mapped the file, so it is written in place.
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("<q", int(seconds * 1e9)))

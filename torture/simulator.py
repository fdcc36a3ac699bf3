"""Builds the power-cut library and runs programs under it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from harness.preloaded import build

from torture.cut import Mode, PowerCut, Report

SOURCE = Path(__file__).resolve().with_name("powercut.c")


def build_library(directory: Path) -> Path:
    """Compile powercut.c into ``directory``; returns the library's path."""
    return build(SOURCE, directory)


class Simulator:
    """One watched tree, its undo log and its graves; all three on one file system."""

    def __init__(self, library: Path, root: Path) -> None:
        self.library = library
        self.root = root.resolve()
        self.log = self.root.with_name(self.root.name + ".undo")
        self.graves = self.root.with_name(self.root.name + ".graves")
        self.root.mkdir(parents=True, exist_ok=True)
        self.forget()

    def environment(self) -> dict[str, str]:
        """What a watched program needs in its environment."""
        return {
            "LD_PRELOAD": str(self.library),
            "POWERCUT_ROOT": str(self.root),
            "POWERCUT_LOG": str(self.log),
            "POWERCUT_GRAVES": str(self.graves),
        }

    def forget(self) -> None:
        """Take all that is on the disk now as durable."""
        self.log.unlink(missing_ok=True)
        shutil.rmtree(self.graves, ignore_errors=True)
        self.graves.mkdir()

    def cut(self, generator: random.Random, mode: Mode) -> Report:
        """Cut the power (the program is dead already) and forget the log."""
        report = PowerCut(self.root, self.log, generator, mode).apply()
        self.forget()
        return report

    def used(self) -> bool:
        """Whether a watched program has written its log since the last cut."""
        return self.log.exists()

    def remove(self) -> None:
        """Remove tree, log and graves."""
        for path in (self.root, self.graves):
            shutil.rmtree(path, ignore_errors=True)
        self.log.unlink(missing_ok=True)

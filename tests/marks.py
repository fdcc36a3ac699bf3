"""Which tests `make quicktest` leaves out: those that start processes, as what their functions and
fixtures refer to tells, and those that long_tests.txt names.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
OURS = tuple(f"{ROOT / name}{os.sep}" for name in ("tests", "harness", "bench", "torture"))
STARTING = (
    *(subprocess, multiprocessing, psutil.Popen),
    *(subprocess.Popen, subprocess.run, subprocess.check_output, subprocess.check_call),
    *(os.fork, os.system, asyncio.create_subprocess_exec, asyncio.create_subprocess_shell),
)
LONG = Path(__file__).parent / "long_tests.txt"


def long_tests() -> list[str]:
    """The names in LONG: tests without their parameters."""
    lines = LONG.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


class Starters:
    """Remembers what was looked at."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def starts(self, found: Any) -> bool:
        """Return True if a function or class refers to what starts a process, be it through other
        functions of the tests.
        """
        if any(found is each for each in STARTING):
            return True
        found = inspect.unwrap(found) if callable(found) else found
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        if not isinstance(found, (types.FunctionType, type)) or not _is_ours(found):
            return False
        if id(found) not in self._known:
            self._known[id(found)] = False  # functions that refer to each other
            self._known[id(found)] = any(self.starts(each) for each in _referred(found))
        return self._known[id(found)]


def _is_ours(found: types.FunctionType | type) -> bool:
    if isinstance(found, type):
        return _file_of(inspect.getmodule(found)).startswith(OURS)
    return found.__code__.co_filename.startswith(OURS)


def _file_of(module: types.ModuleType | None) -> str:
    return getattr(module, "__file__", None) or ""


def _referred(found: types.FunctionType | type) -> Iterator[Any]:
    """What a function names of its module, or the functions of a class and its bases."""
    if isinstance(found, type):
        yield from (each for base in found.__mro__ for each in vars(base).values())
        return
    codes = [found.__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in code.co_names:
            named = found.__globals__.get(name)
            yield named
            if isinstance(named, types.ModuleType) and _file_of(named).startswith(OURS):
                yield from (getattr(named, each, None) for each in code.co_names)

"""Which of our Python functions are called; `recorder` asks in tests, `hook` in their processes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


def follow(on_code: Callable[[CodeType], None]) -> None:
    """Calls on_code for every call of a Python function, in this thread and in later ones.

    A trace function that asks for no lines costs less than a profile function, which is told of
    returns and of calls of C as well.
    """

    def trace(frame: FrameType, event: str, _: Any) -> None:
        on_code(frame.f_code)

    threading.settrace(trace)
    sys.settrace(trace)


def follow_process(folder: Path, test_file: str, source: str) -> None:
    """Writes down what this process calls of the folder `source`, for all tests of a file."""
    seen: dict[int, CodeType] = {}
    path = folder / f"process-{os.getpid()}-{time.time_ns()}.jsonl"
    output = path.open("a", buffering=1)

    def on_code(code: CodeType) -> None:
        if id(code) not in seen:
            seen[id(code)] = code  # kept, so that its id is not given to another one
            if code.co_filename.startswith(source):
                key = (code.co_filename, code.co_firstlineno)
                output.write(json.dumps({"file": test_file, "calls": [key]}) + "\n")

    follow(on_code)

"""Allocations that fail in a process of its own: builds no_memory.c and says how it is loaded.

    library = build_no_memory(workspace)
    subprocess.run([sys.executable, "-c", program], env=environment(library))

and in the program, of which one extension module gets no memory:

    import ctypes
    memory = ctypes.CDLL(None)
    memory.no_memory_begin(b"/compaction.", after, times)
    failed = memory.no_memory_end()
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.preloaded import build


def build_no_memory(directory: Path) -> Path:
    """Compile no_memory.c into ``directory``; returns the library's path."""
    return build(Path(__file__).resolve().with_name("no_memory.c"), directory)


def environment(library: Path) -> dict[str, str]:
    """Of a process that has the library: before ASan's, when this process has that."""
    preloaded = [str(library), *os.environ.get("LD_PRELOAD", "").split()]
    sanitizer = [*os.environ.get("ASAN_OPTIONS", "").split(":"), "verify_asan_link_order=0"]
    return os.environ | {
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": ":".join(each for each in sanitizer if each),
    }

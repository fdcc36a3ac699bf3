"""Libraries that are loaded before a program's own: compiled here, from one file of C each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HEADERS = Path(__file__).resolve().parent


def build(source: Path, directory: Path) -> Path:
    """Compile a file of C into ``directory``; returns the library's path."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / f"{source.stem}.so"
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [os.environ.get("CC", "cc"), *flags, f"-I{HEADERS}", "-o", library, source, "-ldl"],
        check=True,
    )
    return library

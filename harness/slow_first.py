"""In which order the files of tests are run by several processes: what takes long comes first.

`--dist worksteal` gives each process a stretch of the list, as many tests to each, and who is done
takes from the end of what another one has. A long test there would be waited for by all. So each
stretch begins with files that have long tests and ends with those that have short ones. A file's
tests stay together, for the sake of fixtures that they share.

How long tests take is measured by each such run, for the next one; of a file that was never run so
its marks are all that is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

Seconds = dict[str, float]
"""How long the longest test of each file took."""


def read_seconds(path: Path) -> Seconds:
    """What the last runs have measured; nothing where none of them has, or left it damaged."""
    try:
        found = json.loads(path.read_text())
        return {str(name): float(each) for name, each in found.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


def write_seconds(path: Path, measured: Mapping[str, float]) -> None:
    """Keeps what this run has measured, and what earlier ones have of other files."""
    kept = read_seconds(path) | {name: round(each, 2) for name, each in measured.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(kept, indent=0, sort_keys=True))
    part.replace(path)


def slow_first(
    files: Mapping[str, Sequence[T]], seconds: Mapping[str, float], processes: int
) -> list[T]:
    """The tests of all files, in an order for so many processes.

    seconds: of the longest test of each file.
    """
    stretches: list[list[T]] = [[] for _ in range(processes)]
    for name in sorted(files, key=lambda name: (-seconds[name], name)):
        min(stretches, key=len).extend(files[name])
    # A process gets as many tests as the others: what is too much of one goes behind the others.
    left = sum(map(len, stretches))
    sizes: list[int] = []
    for n in range(processes):
        sizes.append(left // (processes - n))
        left -= sizes[-1]
    over: list[T] = []
    for stretch, size in zip(stretches, sizes, strict=True):
        over += stretch[size:]
        del stretch[size:]
    for stretch, size in zip(stretches, sizes, strict=True):
        missing = size - len(stretch)
        stretch += over[:missing]
        del over[:missing]
    return [each for stretch in stretches for each in stretch]

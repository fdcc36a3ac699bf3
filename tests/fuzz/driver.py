"""Runs one Python target: coverage-guided by atheris, or by plain mutation of its seeds.

A target is a module with two functions: `seeds()` gives inputs to begin with, made by code, and
`one_input(data)` raises when something is wrong. run.py starts a target in a process of its own,
so that an input which ends the process is found too: the plain engine leaves the input it tries in
a file before it tries it, and libFuzzer, inside atheris, leaves the one that ended it.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "src"
TESTS = PROJECT / "tests"
sys.path[:0] = [str(TESTS), str(PROJECT)]  # for the oracles, and for what the judges share

INPUT_BYTES_MAX = 512
SECONDS_MAX = 5.0  # of processor time for one look; far more than any takes
GROWTH_BYTES_MAX = 160 << 20  # of the process, by one look
EDGES = (0, 64, 4096, 65535, 2**31, -(2**31), 2**32, 2**57, 2**62, 2**63 - 1, -(2**63))
LENGTHS = (0, 1, 3, 4, 5, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)


def guided(*packages: str) -> AbstractContextManager[Any]:
    """Python modules of ours that are imported within it guide the inputs, as extensions do."""
    if "--engine=atheris" not in sys.argv:
        return nullcontext()
    import atheris

    return atheris.instrument_imports(include=list(packages))


def look_within_bounds(looks: Sequence[Callable[[bytes], Any]], data: bytes) -> None:
    """One look at an input, whose first byte chooses it: in bounded time and memory."""
    if not data:
        return
    began = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    looks[data[0] % len(looks)](bytes(data[1:]))
    grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    took = time.process_time() - began
    assert took < SECONDS_MAX, f"{len(data)} bytes took {took:.1f} s"
    assert grew < GROWTH_BYTES_MAX, f"{len(data)} bytes took {grew} bytes of memory"


def main(
    seeds: Callable[[], list[bytes]],
    one_input: Callable[[bytes], None],
    input_bytes_max: int = INPUT_BYTES_MAX,
) -> None:
    """What a target calls when it is the program; `--code` alone tells which code it runs."""
    if sys.argv[1:] == ["--code"]:
        print("\n".join(str(path) for path in code()))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("atheris", "plain"), required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--artifacts", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    options.input_bytes_max = input_bytes_max
    options.corpus.mkdir(parents=True, exist_ok=True)
    options.artifacts.mkdir(parents=True, exist_ok=True)
    for i, each in enumerate(seeds()):
        (options.corpus / f"seed-{i:03}").write_bytes(each)
    # A broken target would find nothing; the inputs it starts from have to pass.
    for each in sorted(options.corpus.iterdir()):
        one_input(each.read_bytes())
    if options.engine == "atheris":
        _run_atheris(one_input, options)
    else:
        _run_plain(one_input, options)


def code() -> list[Path]:
    """Sources of all modules of ours that this process has imported.

    What is compiled may share inlined code, so the declarations of all count for each.
    """
    found: set[Path] = set()
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/")
        if TESTS in path.parents:
            found.add(path)
        elif name.partition(".")[0] == "pyxbroker":
            found.update(_sources_of(name, path))
    return sorted(found)


def _sources_of(name: str, path: Path) -> list[Path]:
    """Of a module that was imported from there, maybe from a build."""
    place = SOURCE.joinpath(*name.split("."))
    if path.name == "__init__.py":
        return [place / "__init__.py"]
    if path.suffix == ".py":
        return [place.with_suffix(".py")]
    shared = [*(SOURCE / "bookie_native").glob("*.h"), *place.parent.glob("*.pxd")]
    own = place.with_suffix(".pyx")
    return [own, *shared] if own.exists() else [*(SOURCE / "bookie_native").glob("*.[ch]")]


def _run_atheris(one_input: Callable[[bytes], None], options: argparse.Namespace) -> None:
    import atheris

    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={options.seconds}",
            f"-max_len={options.input_bytes_max}",
            f"-artifact_prefix={options.artifacts}/",
            f"-seed={options.seed}",
            "-print_final_stats=1",
            str(options.corpus),
        ],
        one_input,
    )
    atheris.Fuzz()


def _run_plain(one_input: Callable[[bytes], None], options: argparse.Namespace) -> None:
    chance = random.Random(options.seed)
    corpus = [each.read_bytes() for each in sorted(options.corpus.iterdir())]
    current = options.artifacts / "current-input"
    runs = 0
    until = time.monotonic() + options.seconds
    with current.open("wb", buffering=0) as kept:
        while time.monotonic() < until:
            data = mutated(chance, corpus)[: options.input_bytes_max]
            kept.truncate(0)
            os.pwrite(kept.fileno(), data, 0)
            one_input(data)
            runs += 1
    current.unlink()
    print(f"stat::number_of_executed_units: {runs}")


def mutated(chance: random.Random, corpus: list[bytes]) -> bytes:
    """One of the inputs with a few changes of the kinds that break parsers."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        kind = chance.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at : at + 4] = chance.choice(LENGTHS).to_bytes(4, "big")
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 8))
        elif kind == 3:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 4:
            other = chance.choice(corpus)
            data[at:] = other[chance.randint(0, len(other)) :]
        else:
            data[at : at + chance.randint(1, 8)] = b""
    return bytes(data)


class Steps:
    """An input as numbers: what operations are done, and with what."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether there is more of it."""
        return self._at < len(self._data)

    def byte(self) -> int:
        """0 to 255; 0 behind the end."""
        at, self._at = self._at, self._at + 1
        return self._data[at] if at < len(self._data) else 0

    def number(self) -> int:
        """A signed number of 64 bits: often small, often at the edge of something."""
        kind = self.byte()
        if kind < 128:
            return kind
        if kind < 192:
            return kind - 160 << (self.byte() & 15)
        edge = EDGES[kind % len(EDGES)]
        return max(min(edge + self.byte() % 5 - 2, 2**63 - 1), -(2**63))

    def rest(self, count: int) -> bytes:
        """The next bytes, up to count."""
        at, self._at = self._at, self._at + count
        return self._data[at : at + count]

"""Runs a simulator over many seeds, on all cores."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

SEEDS_PER_PART = 500


def _violations(
    simulate: Callable[[int], Any], violation: type[Exception], seeds: range
) -> tuple[int, list[str]]:
    found = []
    for seed in seeds:
        try:
            simulate(seed)
        except violation as error:
            found.append(str(error))
    return len(seeds), found


def main(about: str, simulate: Callable[[int], Any], violation: type[Exception]) -> int:
    """Run the seeds of the command line; return 1 if `simulate` raises a violation, otherwise 0."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", type=int, default=10_000, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: cores")
    options = parser.parse_args()
    began = shown = time.monotonic()
    last = options.first + options.seeds
    parts = [
        range(at, min(at + SEEDS_PER_PART, last))
        for at in range(options.first, last, SEEDS_PER_PART)
    ]
    done, found = 0, 0
    with multiprocessing.Pool(options.processes) as pool:
        run = partial(_violations, simulate, violation)
        for count, violations in pool.imap_unordered(run, parts):
            done += count
            found += len(violations)
            for each in violations:
                print(each, flush=True)
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                print(f"{done} of {options.seeds} seeds, {found} violations", flush=True)
    took_s = time.monotonic() - began
    print(f"{done} seeds, {found} violations, {took_s:.0f} s, {done / took_s:.0f} seeds per second")
    return 1 if found else 0

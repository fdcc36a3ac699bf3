"""What benchmarks with one life of a broker each share: options, a folder for data, a table."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.brokers import Broker

KINDS = ("pyxbroker", "apache")
Numbers = dict[str, float]
Row = tuple[str, str, str, int]  # number, title, unit, decimals


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all of them have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--only", action="append", choices=KINDS, help="this broker (repeatable)")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    made.add_argument("--json", type=Path, help="write the numbers to this file")
    made.add_argument("--workspace", type=Path, help="folder for data (default: temporary)")
    return made


def run(
    options: argparse.Namespace, rows: Sequence[Row], one_life: Callable[[Broker], Numbers]
) -> None:
    """Runs the brokers one after the other, on fresh data, and prints the table."""
    settings = dict(each.split("=", 1) for each in options.set)
    workspace = options.workspace or Path(tempfile.mkdtemp(prefix="pyxbroker-bench-"))
    results: dict[str, Numbers] = {}
    try:
        for kind in options.only or KINDS:
            broker = Broker(kind, workspace / kind, settings=settings)
            try:
                results[kind] = one_life(broker)
            finally:
                broker.close()
    finally:
        if options.workspace is None:
            shutil.rmtree(workspace, ignore_errors=True)
    print(table(rows, results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def medians_in_turns(spent: Mapping[str, Sequence[float]], over: str, under: str) -> Numbers:
    """Medians of each number over the rounds, and `<figure>_ratio` for those that are there as
    `<figure>_<over>` and `<figure>_<under>`: the median of the ratios of single rounds.
    """
    numbers = {name: statistics.median(each) for name, each in spent.items()}
    for name in [each.removesuffix(f"_{over}") for each in spent if each.endswith(f"_{over}")]:
        pairs = zip(spent[f"{name}_{over}"], spent[f"{name}_{under}"], strict=True)
        numbers[f"{name}_ratio"] = statistics.median(one / other for one, other in pairs)
    return numbers


def main_in_rounds(
    description: str,
    arguments: list[str] | None,
    rows: Sequence[Row],
    one_life: Callable[[Broker, int], Numbers],
) -> int:
    """The main function of a benchmark whose broker lives for `--rounds` rounds."""
    made = parser(description)
    made.add_argument("--rounds", type=int, default=3)
    options = made.parse_args(arguments)
    run(options, rows, lambda broker: one_life(broker, options.rounds))
    return 0


def table(rows: Sequence[Row], results: dict[str, Numbers]) -> str:
    """The numbers as a Markdown table; a dash where a broker has none."""
    lines = ["| figure | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for number, title, unit, decimals in rows:
        values = [numbers.get(number, math.nan) for numbers in results.values()]
        if all(map(math.isnan, values)):
            continue
        cells = ["-" if math.isnan(each) else f"{each:,.{decimals}f}" for each in values]
        lines.append(f"| {title}{', ' * bool(unit)}{unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)

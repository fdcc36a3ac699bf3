"""What benchmarks with one life of a broker each share: options, a folder for data, a table."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
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

"""End-to-end figures of pyxbroker beside pulsar-lite and Apache Pulsar, from one and the same run.

    python -m bench.run                       all brokers, all figures, three rounds, medians
    python -m bench.run --only pyxbroker --figure unbatched4 --rounds 1
    python -m bench.run --short               our broker alone, little load, as CI does

The brokers take turns within each round, so that a slow minute of the machine hits all of them.
Apache Pulsar runs with a synced journal, as ours does by default; pulsar-lite acknowledges before
it syncs.  Broker CPU is user + system time of the process and its children.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from harness.brokers import KINDS, Broker

from bench.e2e import FIGURES, NEEDS, STARTS, Figure, LoadFailed, Numbers, Scale

# (figure, number, title, unit, decimals, what is to be reached)
Row = tuple[str, str, str, str, int, str]
ROWS: list[Row] = [
    ("start", "first_ack_ms", "start to first durable acknowledged message", "ms", 0, "300"),
    ("ready", "rest_ms", "start to 200 on /admin/v2/clusters", "ms", 0, "120"),
    ("idle", "memory_mib", "idle memory", "MiB", 1, "40"),
    ("idle", "cpu_percent", "idle CPU", "% of a core", 2, "0.5"),
    ("sequential", "p50_ms", "unbatched 1 KiB, one at a time, p50", "ms", 3, "0.3 x Apache"),
    ("sequential", "p99_ms", "unbatched 1 KiB, one at a time, p99", "ms", 3, "0.15 x Apache"),
    ("unbatched4", "rate", "unbatched 1 KiB, 4 producers", "msg/s", 0, ""),
    ("unbatched4", "broker_us", "  broker CPU per message", "us", 2, "16"),
    ("unbatched4", "client_us", "  client CPU per message", "us", 2, ""),
    ("batched", "rate", "batched 1 KiB, 128 KiB batches", "msg/s", 0, ""),
    ("batched", "broker_us", "  broker CPU per message", "us", 2, "1.8"),
    ("batched", "client_us", "  client CPU per message", "us", 2, ""),
    ("backlog_cache", "rate", "reading the backlog, from cache", "msg/s", 0, ""),
    ("backlog_cache", "broker_us", "  broker CPU per message", "us", 2, "0.4"),
    ("backlog_disk", "rate", "reading the backlog, from disk", "msg/s", 0, ""),
    ("backlog_disk", "broker_us", "  broker CPU per message", "us", 2, "0.4"),
    ("end_to_end", "p50_ms", "end to end 100 B at 1,000/s, p50", "ms", 3, "pulsar-lite"),
    ("end_to_end", "p99_ms", "end to end 100 B at 1,000/s, p99", "ms", 3, "pulsar-lite"),
    ("end_to_end", "broker_us", "  broker CPU per message", "us", 1, ""),
    ("topics", "mean_ms", "new topic with producer", "ms", 2, "1.5"),
    ("topics", "grown_kib", "  memory of each", "KiB", 1, "8"),
    ("shared100", "rate", "100 Shared consumers, delivered", "msg/s", 0, ""),
    ("shared100", "broker_us", "  broker CPU per delivered message", "us", 2, "0.33 x Apache"),
    ("fanout100", "rate", "100 subscriptions, delivered", "msg/s", 0, ""),
    ("fanout100", "broker_us", "  broker CPU per delivered message", "us", 2, "0.33 x Apache"),
]

FAILURES: list[str] = []
Results = dict[str, dict[str, list[Numbers]]]  # broker, figure, rounds


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=KINDS, help="this broker (repeatable)")
    parser.add_argument("--figure", action="append", choices=FIGURES, help="only this figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="write all numbers of all rounds to this file")
    parser.add_argument("--workspace", type=Path, help="folder for data (default: temporary)")
    options = parser.parse_args(arguments)
    if options.short:
        options.rounds = 1
        options.only = options.only or ["pyxbroker"]
    options.only = options.only or list(KINDS)
    return options


def figures_to_run(wanted: list[str] | None) -> list[str]:
    """The wanted figures in their order, with those they need."""
    names = set(wanted or FIGURES)
    names |= {NEEDS[name] for name in names if name in NEEDS}
    return [name for name in FIGURES if name in names]


def _create(kind: str, directory: Path, settings: dict[str, str], name: str) -> Broker:
    return Broker(kind, directory / name, settings=settings)


def one_life(
    figures: Mapping[str, Figure], scale: Scale, create: Callable[[str], Broker]
) -> dict[str, Numbers]:
    """All figures of one kind of broker; each start has a broker of its own, all others share one.
    `create` gets a name for the broker's directory.
    """
    numbers: dict[str, Numbers] = {}
    for name in figures:
        if name in STARTS:
            with contextlib.closing(create(name)) as starting:
                numbers[name] = figures[name](starting, scale)
                print(f"  {starting.kind} {name}: {_brief(numbers[name])}", flush=True)
    left = [name for name in figures if name not in STARTS]
    if left:
        with contextlib.closing(create("serving")) as broker:
            broker.start()
            for name in left:
                began = time.monotonic()
                try:
                    numbers[name] = figures[name](broker, scale)
                except LoadFailed as error:
                    # A peer's failure is a finding, its other figures still count.
                    print(f"  {broker.kind} {name} FAILED: {error}", flush=True)
                    FAILURES.append(f"{broker.kind} {name}")
                    continue
                took = time.monotonic() - began
                print(f"  {broker.kind} {name} ({took:.0f} s): {_brief(numbers[name])}", flush=True)
    return numbers


def _brief(numbers: Numbers) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def median(results: Results, kind: str, figure: str, number: str) -> float | None:
    """The median over the rounds, or None where there is no such number."""
    values = [one[number] for one in results.get(kind, {}).get(figure, []) if number in one]
    return statistics.median(values) if values else None


def add(results: Results, kind: str, life: dict[str, Numbers]) -> None:
    """Add the numbers of one round."""
    for figure, numbers in life.items():
        results.setdefault(kind, {}).setdefault(figure, []).append(numbers)


def report(results: Results, rows: Sequence[Row] = ROWS) -> int:
    """Print the table and the figures that failed; return the exit status."""
    print(table(results, rows))
    for failure in FAILURES:
        print(f"failed: {failure}")
    return 1 if any(failure.startswith("pyxbroker") for failure in FAILURES) else 0


def table(results: Results, rows: Sequence[Row] = ROWS) -> str:
    """The figures as a Markdown table with the ratios of ours to the others."""
    kinds = [kind for kind in KINDS if kind in results]
    others = [kind for kind in kinds if kind != "pyxbroker" and "pyxbroker" in kinds]
    heads = ["figure", *kinds, *(f"ours / {kind}" for kind in others), "to reach"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for figure, number, title, unit, decimals, goal in rows:
        values = {kind: median(results, kind, figure, number) for kind in kinds}
        if all(value is None for value in values.values()):
            continue
        cells = [f"{title}, {unit}"]
        cells += ["-" if v is None else f"{v:,.{decimals}f}" for v in values.values()]
        for kind in others:
            ours, other = values["pyxbroker"], values[kind]
            cells.append("-" if ours is None or not other else f"{ours / other:.2f}")
        lines.append("| " + " | ".join([*cells, goal]) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit status."""
    options = parse(arguments)
    scale = Scale.short() if options.short else Scale()
    figures = {name: FIGURES[name] for name in figures_to_run(options.figure)}
    workspace = options.workspace or Path(tempfile.mkdtemp(prefix="bench-"))
    settings = dict(item.split("=", 1) for item in options.set)
    results: Results = {}
    try:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            for kind in options.only:
                ours = settings if kind == "pyxbroker" else {}
                create = partial(_create, kind, workspace / f"{kind}-{number}", ours)
                add(results, kind, one_life(figures, scale, create))
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    return report(results)


if __name__ == "__main__":
    sys.exit(main())

"""Kill -9, power cuts, disk errors and flipped bits, round after round, every promise checked.

    python -m torture.run --kill-rounds 200 --cut-rounds 200 [--seed N] [--broker KIND]
    python -m torture.run --kill-rounds 200 --cut-rounds 200 --load resends
    python -m torture.run --error-rounds 500 --flip-rounds 500 [--jobs 2]

A round lets several producers and consumers work, ends the broker at a random moment, starts it
again, measures how long until a topic can be read, and reads everything back.  A data directory
lives for a few rounds, then a fresh one begins, because the first seconds of a directory are the
most fragile.  Exit status 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from harness.brokers import KINDS

from torture.error_rounds import ErrorTorture
from torture.flip_rounds import FlipTorture
from torture.model import Verdict
from torture.resends import ResendTorture
from torture.rounds import Torture

NAMES = {"kill": "kill -9", "cut": "power cut", "error": "disk errors", "flip": "flipped bits"}
TRYING_ROUNDS = 5  # in so many rounds something is acknowledged, unless the test is broken
LOADS: dict[str, type[Torture]] = {"plain": Torture, "resends": ResendTorture}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind in ("kill", "cut", "error", "flip"):
        parser.add_argument(f"--{kind}-rounds", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the rounds")
    parser.add_argument("--broker", choices=KINDS, default="pyxbroker")
    parser.add_argument(
        "--load",
        choices=LOADS,
        default="plain",
        help="of kills and power cuts: every message once, or again and again with deduplication",
    )
    parser.add_argument("--load-s", type=float, default=0.8, help="longest load of a round")
    parser.add_argument("--ready-limit-s", type=float, default=1.0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--keep", help="folder that keeps the data directories of failed rounds")
    parser.add_argument("--workspace", help="folder for the data (default: a temporary one)")
    parser.add_argument("--verbose", action="store_true", help="one line per round")
    options = parser.parse_args(arguments)
    asked = [options.kill_rounds, options.cut_rounds, options.error_rounds, options.flip_rounds]
    if not any(count is not None for count in asked):
        options.kill_rounds = options.cut_rounds = 200
    return options


def make(kind: str, options: argparse.Namespace, workspace: Path) -> Torture:
    """The torture of one kind of rounds."""
    if kind == "error":
        return ErrorTorture(options, workspace)
    if kind == "flip":
        return FlipTorture(options, workspace)
    return LOADS[options.load](options, workspace, cut=kind == "cut")


def run_rounds(kind: str, count: int, options: argparse.Namespace, job: int) -> Verdict:
    """One job's rounds of one kind."""
    base = Path(options.workspace or tempfile.mkdtemp(prefix="torture-"))
    workspace = base / f"{kind}-{job}"
    options = argparse.Namespace(**vars(options) | {"seed": options.seed + 1000 * job})
    torture = make(kind, options, workspace)
    try:
        return asyncio.run(torture.rounds(count))
    finally:
        torture.close()
        shutil.rmtree(workspace if options.workspace else base, ignore_errors=True)


def run_kind(kind: str, count: int, options: argparse.Namespace) -> Verdict:
    """All rounds of one kind, in as many processes as asked for."""
    if options.jobs == 1:
        return run_rounds(kind, count, options, 0)
    shares = [count // options.jobs + (n < count % options.jobs) for n in range(options.jobs)]
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = [
            pool.submit(run_rounds, kind, share, options, number)
            for number, share in enumerate(shares)
        ]
        whole = Verdict()
        for job in jobs:
            whole.add(job.result())
    return whole


def summary(name: str, verdict: Verdict) -> str:
    """A few lines about a kind of rounds."""
    ready = [seconds * 1000 for seconds in verdict.ready_s] or [0.0]
    text = (
        f"{name}: {verdict.rounds} rounds, {len(verdict.problems)} broken promises, "
        f"{verdict.promised} acknowledged messages checked, {verdict.read_back} read back, "
        f"{verdict.redelivered} delivered again; ready again in median "
        f"{statistics.median(ready):.0f} ms, at most {max(ready):.0f} ms"
    )
    return "\n".join([text, *verdict.table()])


def main(arguments: list[str] | None = None) -> int:
    """Run all kinds of rounds; the exit status."""
    options = parse(arguments)
    broken = 0
    print(f"seed {options.seed}, broker {options.broker}, load {options.load}", flush=True)
    lines = []
    for kind, name in NAMES.items():
        count = getattr(options, f"{kind}_rounds")
        if count:
            verdict = run_kind(kind, count, options)
            broken += len(verdict.problems)
            lines.append(summary(name, verdict))
            if not verdict.promised or not verdict.read_back:
                # A single round may end before the first receipt.
                broken += count >= TRYING_ROUNDS
                lines.append(f"{name}: nothing was acknowledged or read, so nothing was tried")
    print("\n".join(lines))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

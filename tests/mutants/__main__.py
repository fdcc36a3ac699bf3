"""Plants bugs in copies of the tree and says which of them the tests notice.

python -m mutants [--seed N] [--count 200] [--jobs 2] [--only near] [--again] [--deep]

Results are kept in build/mutants/seed-N.json: a run that was cut goes on where it was. The exit
status is 1 when a mutant survives that is not listed in kept.py.
"""

from __future__ import annotations

import argparse
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutants.draw import Drawing, Mutant
from mutants.judge import NOT_COMPILED, Judge, Outcome
from mutants.kept import EQUIVALENT, KEPT, kept_for
from mutants.named import named_mutants
from mutants.reach import Reach
from mutants.results import Results, line_of, table, unlisted
from mutants.trees import Tree

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutants"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--count", type=int, default=200, help="how many are drawn, besides those with a name")
    add("--jobs", type=int, default=2)
    add("--only", choices=["near", "named", "drawn"], action="append", default=[],
        help="near: not the whole suite after the tests that are near and a few real clients;"
        " named, drawn: only those mutants")  # fmt: skip
    add("--deep", action="store_true", help="survivors meet all real clients and the torture, too")
    add("--again", action="store_true", help="survivors of an earlier run are judged anew")
    add("--table", action="store_true", help="judge nothing, print what was found so far")
    return parser.parse_args()


class Work:
    """Mutants for the workers: those with a name, then those that are drawn."""

    def __init__(self, options: argparse.Namespace, results: Results) -> None:
        self._results = results
        self._again = options.again
        self._lock = threading.Lock()
        self._named = [] if "drawn" in options.only else list(named_mutants(ROOT))
        self._drawing = Drawing(ROOT, options.seed, 0 if "named" in options.only else options.count)

    def next(self) -> Mutant | None:
        """One that is not judged yet."""
        while True:
            mutant = self._next()
            if mutant is None:
                return None
            kept = kept_for(mutant, KEPT)
            if kept is not None and kept.kind == EQUIVALENT:
                self._drawing.again(mutant)
                continue
            known = self._results.known(mutant, self._again, kept)
            if known is None:
                return mutant
            if known == NOT_COMPILED:
                self.again(mutant)

    def _next(self) -> Mutant | None:
        with self._lock:
            if self._named:
                return self._named.pop(0)
        return self._drawing.next()

    def again(self, mutant: Mutant) -> None:
        if mutant.name:
            raise SystemExit(f"mutants: {mutant.name} does not compile any more")
        self._drawing.again(mutant)


def main() -> int:
    options = parse_options()
    # A shell lets its background jobs ignore it, and tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    BUILD.mkdir(parents=True, exist_ok=True)
    results = Results(BUILD / f"seed-{options.seed}.json", ROOT, "near" in options.only)
    work = Work(options, results)
    if options.table:
        while work.next() is not None:
            pass
    else:
        _judge_all(options, results, work)
    rows = results.rows()
    text = table(rows)
    (BUILD / f"seed-{options.seed}.txt").write_text(text + "\n")
    print(text)
    return 1 if unlisted(rows) else 0


def _judge_all(options: argparse.Namespace, results: Results, work: Work) -> None:
    trees = [Tree(BUILD / f"tree-{number}", number) for number in range(options.jobs)]
    for tree in trees:
        tree.copy_from(ROOT)
    reach = Reach(BUILD / "reach.json")
    reach.record(trees[0], options.jobs)
    for test in reach.failing:
        print(f"mutants: {test} fails without any mutant, and judges nothing", flush=True)

    def judge_some(tree: Tree) -> None:
        judge = Judge(tree, reach, "near" in options.only, options.deep)
        judge.prepare()
        while (mutant := work.next()) is not None:
            outcome: Outcome = judge.judge(mutant)
            row = results.add(mutant, outcome, kept_for(mutant, KEPT))
            print(line_of(row), flush=True)
            if outcome.what == NOT_COMPILED:
                work.again(mutant)

    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for done in [pool.submit(judge_some, tree) for tree in trees]:
                done.result()
        finally:
            for tree in trees:
                tree.stop()


if __name__ == "__main__":
    raise SystemExit(main())

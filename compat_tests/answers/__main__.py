"""Asks a broker all cases, and keeps or compares what it says.

python -m compat_tests.answers record              asks Apache Pulsar, and writes the record
python -m compat_tests.answers page FILE           asks ours, writes the table into a page, and what
                                                   differs into differing.json
python -m compat_tests.answers show [PATTERN]      asks ours, and prints each difference
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from harness.brokers import Broker

from compat_tests.answers.ask import Asker
from compat_tests.answers.cases import Case, cases
from compat_tests.answers.differences import REASONS, Told, is_equal, rule_of
from compat_tests.answers.record import OURS, THEIRS, record, recorded

BEGIN, END = "<!-- answers: begin -->\n", "<!-- answers: end -->\n"
EQUAL = "equal"


def asked(kind: str, pattern: str = "") -> list[tuple[Case, Told]]:
    """What a broker of its own says."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(kind, Path(directory) / "broker")
        try:
            broker.start()
            chosen = [each for each in cases() if re.search(pattern, each.name)]
            return list(Asker(broker).ask(chosen))
        finally:
            broker.close()


def page(path: Path) -> None:
    """Writes the tables between their marks."""
    theirs = recorded()
    groups: dict[str, Counter[str]] = {}
    rules: Counter[tuple[str, str]] = Counter()
    differing: dict[str, Told] = {}
    for case, told in asked("pyxbroker"):
        there = Told(*theirs[case.name])
        counts = groups.setdefault(case.group, Counter())
        if is_equal(there, told):
            counts[EQUAL] += 1
            continue
        rule = rule_of(case.name, there, told)
        if rule is None:
            sys.exit(f"{case.name}: {there} there, {told} here: no rule explains it")
        counts[rule.reason] += 1
        differing[case.name] = told
        rules[rule.reason, rule.what] += 1
    record(OURS, differing)
    whole = sum(groups.values(), Counter[str]())
    columns = (EQUAL, *REASONS)
    lines = [
        f"| group | cases | {' | '.join(columns)} |",
        "|---|" + "---|" * (len(columns) + 1),
        *(_row(group, counts, columns) for group, counts in groups.items()),
        _row("all", whole, columns),
        "",
        "| why | what differs | cases |",
        "|---|---|---|",
        *(f"| {why} | {what} | {count:,} |" for (why, what), count in rules.most_common()),
        "",
    ]
    before, _, rest = path.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(before + BEGIN + "\n".join(lines) + END + after)


def _row(group: str, counts: Counter[str], columns: tuple[str, ...]) -> str:
    cells = " | ".join(f"{counts[each]:,}" for each in columns)
    return f"| {group} | {sum(counts.values()):,} | {cells} |"


def show(pattern: str) -> None:
    """Prints what differs, and why."""
    theirs = recorded()
    for case, told in asked("pyxbroker", pattern):
        there = Told(*theirs[case.name])
        if not is_equal(there, told):
            rule = rule_of(case.name, there, told)
            print(f"{case.name}\n  there: {there}\n  here:  {told}\n  {rule and rule.what}")


def main(verb: str, *arguments: str) -> None:
    if verb == "record":
        record(THEIRS, {case.name: told for case, told in asked("apache")})
    elif verb == "page":
        page(Path(*arguments))
    elif verb == "show":
        show(*(arguments or ("",)))
    else:
        sys.exit(__doc__)


main(*(sys.argv[1:] or ("",)))

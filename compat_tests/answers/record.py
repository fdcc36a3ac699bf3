"""What Apache Pulsar 4.2.4 answered, as it was asked once: statuses, and what it said in its own
words; and what is answered here where that differs, so that no rule explains a new difference.

A line has a row and the answers to its cases, by their number in a list of all answers. Texts that
Pulsar did not write (pages of its container, Java's exceptions) and those that are compared by
their status alone (statistics, settings) are left out: None.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from compat_tests.answers.differences import Told, is_of_library, is_of_state

THEIRS = Path(__file__).parent / "apache-4.2.4.json"
OURS = Path(__file__).parent / "differing.json"
Answer = tuple[int, str | None]


def kept(name: str, told: Told) -> Answer:
    """What is recorded of an answer."""
    left_out = is_of_library(told) or is_of_state(name, told)
    return told.status, None if left_out else told.text


def record(file: Path, answers: Mapping[str, Told]) -> None:
    """Writes a file."""
    numbers: dict[Answer, int] = {}
    rows: dict[str, dict[str, int]] = {}
    for name, told in answers.items():
        row, _, kind = name.partition(" | ")
        rows.setdefault(row, {})[kind] = numbers.setdefault(kept(name, told), len(numbers))
    lines = [
        "{",
        '"answers": [',
        *as_lines(json.dumps(each) for each in numbers),
        "],",
        '"rows": {',
    ]
    lines += as_lines(f"{json.dumps(row)}: {json.dumps(kinds)}" for row, kinds in rows.items())
    file.write_text("\n".join([*lines, "}", "}", ""]))


def as_lines(values: Iterable[str]) -> list[str]:
    """With commas between, as JSON wants them."""
    found = list(values)
    return [each + "," for each in found[:-1]] + found[-1:]


def recorded(file: Path = THEIRS) -> dict[str, Answer]:
    """The answer to each case of a file, by its name."""
    whole = json.loads(file.read_text())
    answers = [(status, text) for status, text in whole["answers"]]
    return {
        f"{row} | {kind}": answers[number]
        for row, kinds in whole["rows"].items()
        for kind, number in kinds.items()
    }

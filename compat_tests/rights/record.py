"""What Apache Pulsar 4.2.4 told each role, as it was asked once.

A line has what is asked, and for each kind of a case (of what is missing; empty: nothing is) and
each role the number of the answer in a list of all answers. Pages of its container are left out: of
these the status alone is compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from compat_tests.answers.differences import Told, is_of_library
from compat_tests.answers.record import as_lines
from compat_tests.rights.scene import ROLES

FILE = Path(__file__).parent / "apache-4.2.4.json"


def write(answers: Mapping[str, Told]) -> None:
    """Writes the file. A name is "role | what is asked", or "role | what is asked | kind"."""
    numbers: dict[Told, int] = {}
    asked: dict[str, dict[str, dict[str, int]]] = {}
    for name, told in answers.items():
        role, _, whole = name.partition(" | ")
        what, _, kind = whole.partition(" | ")
        kept = told._replace(text=None) if is_of_library(told) else told
        by_role = asked.setdefault(what, {}).setdefault(kind, {})
        by_role[role] = numbers.setdefault(kept, len(numbers))
    roles = list(ROLES)
    lines = ["{", f'"roles": {json.dumps(roles)},', '"answers": [']
    lines += [*as_lines(json.dumps(each) for each in numbers), "],", '"asked": {']
    lines += as_lines(
        f"{json.dumps(what)}: "
        + json.dumps({kind: [of.get(role) for role in roles] for kind, of in kinds.items()})
        for what, kinds in asked.items()
    )
    FILE.write_text("\n".join([*lines, "}", "}", ""]))


def read() -> dict[str, Told]:
    """What each role was told, by its name."""
    whole = json.loads(FILE.read_text())
    answers = [Told(*each) for each in whole["answers"]]
    return {
        " | ".join((role, what, kind)).removesuffix(" | "): answers[number]
        for what, kinds in whole["asked"].items()
        for kind, numbers in kinds.items()
        for role, number in zip(whole["roles"], numbers, strict=True)
        if number is not None
    }

"""The groups, commands and options that pulsar-admin's help lists, and how many of them we have.

python -m compat_tests.pulsaradmin_names          prints the table of docs/admin.md
python -m compat_tests.pulsaradmin_names record   asks pulsar-admin (Java) for its help again
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.java_admin import JavaAdmin

from pyxbroker.cli.admin import GROUPS, running

RECORD = Path(__file__).parent / "answers" / "pulsaradmin-names.json"
UNUSED_URL = "http://127.0.0.1:1"
LEFT_OUT = {"documents", "source", "sink"}  # the first generates pages, the others are old names
GENERAL = {"--help -h", "--version -v"}
NO_FUNCTIONS = "the broker runs no functions and connectors"
WHY_MISSING = {
    "schemas": "`extract`, which reads classes of Java",
    "clusters": "`delete --all`, which deletes all tenants",
    "functions": NO_FUNCTIONS,
    "functions-worker": NO_FUNCTIONS,
    "sources": NO_FUNCTIONS,
    "sinks": NO_FUNCTIONS,
    "packages": NO_FUNCTIONS,
    "proxy-stats": "the proxy of Pulsar is another program",
}

Names = dict[str, dict[str, list[str]]]
"""For each group its commands, each with the names of each of its options."""


def recorded() -> Names:
    names: Names = json.loads(RECORD.read_text())
    return names


def missing_options() -> Iterator[tuple[str, str, str]]:
    """Options of commands that we have which lack one of their names."""
    for group, commands in recorded().items():
        ours = running.table_of(group) if group in GROUPS else {}
        for command, options in commands.items():
            if command in ours:
                known = {name for each in ours[command].options for name in each.names}
                for names in options:
                    if not set(names.split()) <= known:
                        yield group, command, names


def coverage() -> Iterator[str]:
    """The lines of the table."""
    yield "| group | commands | options | missing |"
    yield "|---|---|---|---|"
    theirs = recorded()
    lacking = list(missing_options())
    for group in sorted(theirs, key=lambda group: (group not in GROUPS, group)):
        commands = theirs[group]
        ours = running.table_of(group) if group in GROUPS else {}
        has = [each for each in commands if each in ours]
        options = sum(len(commands[each]) for each in has)
        options -= sum(each[0] == group and " -r" not in each[2] for each in lacking)
        total = sum(map(len, commands.values()))
        counts = f"{len(has)} of {len(commands)} | {options} of {total}"
        yield f"| `{group}` | {counts} | {WHY_MISSING.get(group, '')} |".replace("|  |", "| |")


def record(admin: JavaAdmin) -> Names:
    """What pulsar-admin's help lists."""
    groups = [each for each in _commands_in(_help(admin)) if each not in LEFT_OUT]
    names: Names = {}
    for group in groups:
        names[group] = {
            command: sorted(set(_options_in(_help(admin, group, command))) - GENERAL)
            for command in _commands_in(_help(admin, group))
        }
    return names


def _help(admin: JavaAdmin, *words: str) -> str:
    done = admin.run(UNUSED_URL, *words, "--help")
    return done.output + done.errors


def _commands_in(text: str) -> list[str]:
    """The names behind `Commands:`."""
    lines = text.partition("Commands:\n")[2].splitlines()
    found = [re.match(r"  ([\w-]+(?:, [\w-]+)*)(?: |$)", line) for line in lines]
    names = [name for each in found if each for name in each[1].split(", ")]
    return [each for each in names if each not in ("help", "generate")]


def _options_in(text: str) -> Iterator[str]:
    """The names of each option, separated by blanks."""
    for line in text.splitlines():
        found = re.match(r" {2,6}(-[\w-]+(?:=\S+)?(?:, -[\w-]+(?:=\S+)?)*)", line)
        if found:
            yield " ".join(sorted(re.findall(r"(?:^|, )(-[\w-]+)", found[1])))


def main() -> None:
    if sys.argv[1:] != ["record"]:
        print("\n".join(coverage()))
        return
    admin = JavaAdmin()
    try:
        names = record(admin)
    finally:
        admin.close()
    RECORD.write_text(
        "{\n"
        + ",\n".join(
            f"{json.dumps(group)}: {{\n"
            + ",\n".join(
                f" {json.dumps(each)}: {json.dumps(names[group][each])}" for each in names[group]
            )
            + "\n}"
            for group in names
        )
        + "\n}\n"
    )


if __name__ == "__main__":
    main()

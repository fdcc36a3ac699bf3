"""Helpers that the package's command lines share: parsers, and exits with an error message.

Exit codes: 0 done, or stopped cleanly; 1 an error, described by one sentence on stderr; 2 wrong
usage; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn


def fail(sentence: str, status: int = 1) -> NoReturn:
    """Exit with an error that the parser could not detect."""
    end = "" if sentence.endswith((".", "?", "!")) else "."
    print(f"pyxbroker: {sentence}{end}", file=sys.stderr)
    sys.exit(status)


def print_waiting(what: str) -> None:
    """Say on stderr what the command waits for."""
    print(f"Waiting for {what}.", file=sys.stderr, flush=True)


def no_such(what: str, name: str, names: Iterable[str]) -> str:
    """Return the error message for an unknown name; `names` are the known ones."""
    from pyxbroker.base.suggestions import did_you_mean

    meant = did_you_mean(name, names)
    return f"No such {what} {name!r}" + (f"; {meant}" if meant else ".")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Capitalizes "Usage:" like the titles of the argument groups."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


class Parser(argparse.ArgumentParser):
    """The options of one command. Answers a wrong option with a sentence and similar names.

    Options are added to `options`: an argument group does not create a formatter for each option,
    which would import shutil for the width of the terminal.
    """

    def __init__(self, name: str, about: str, arguments: str = "[OPTIONS]") -> None:
        prog = f"pyxbroker {name}".rstrip()
        super().__init__(
            prog=prog,
            usage=f"{prog} {arguments}",
            description=about,
            formatter_class=HelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        self.leading: Callable[[], Parser] | None = None
        """The parser of the options that stand before the command's name."""
        self._positionals.title = "Arguments"
        self.options = self.add_argument_group("Options")
        self.options.add_argument("-h", "--help", action="help", help="Show this message and exit.")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values of the options. Exits after wrong usage, or after the help."""
        values, unknown = self.parse_known_args(arguments)
        for each in unknown:
            name = each.partition("=")[0]
            if each.startswith("-") and name.strip("-"):
                if self.leading is not None and name in (before := self.leading()).names:
                    self.error(f"{name} stands before the command: {before.usage}")
                self.error(no_such("option", name, self.names))
            if each != "--":
                self.error(f"Unexpected argument {each!r}.")
        return values

    @property
    def names(self) -> list[str]:
        """The names of the options that the help shows."""
        shown = (each for each in self._actions if each.help is not argparse.SUPPRESS)
        return [name for each in shown for name in each.option_strings]

    def takes_value(self, name: str) -> bool:
        action = self._option_string_actions.get(name)
        return action is not None and action.nargs != 0

    def error(self, message: str) -> NoReturn:
        help_command = f"Try '{self.prog} --help' for help."
        self.exit(2, f"{self.format_usage()}{help_command}\n\nError: {message}\n")


class Group(Parser):
    """The options of a command with subcommands."""

    def __init__(self, name: str, about: str, commands: Mapping[str, str], examples: str) -> None:
        super().__init__(name, about, "[OPTIONS] COMMAND [ARGS]...")
        self.epilog = examples
        self.commands = commands
        width = max(map(len, commands))
        lines = (f"{each:{width}}  {summary}" for each, summary in commands.items())
        self.add_argument_group("Commands", "\n".join(lines))

    def choose(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Return the subcommand and its arguments. The options of a group take no values."""
        words = (at for at, each in enumerate(arguments) if not each.startswith("-"))
        at = next(words, len(arguments))
        self.parse(arguments[:at])
        if at == len(arguments):
            self.exit(2, self.format_help())
        if arguments[at] not in self.commands:
            self.error(no_such("command", arguments[at], self.commands))
        return arguments[at], arguments[at + 1 :]

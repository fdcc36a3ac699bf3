"""The command line: `pyxbroker <command>`, one file per command.

A command's file is imported when the command is run, so that `pyxbroker version` does not pay for
the broker, nor the broker for the other commands. Its function `command` takes the arguments that
follow the command's name.

Exit codes: 0 done, or stopped cleanly; 1 an error, told in one sentence on stderr; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from pyxbroker import __version__

# Each command, and what the help says about it; its module has its name.
COMMANDS = {
    "standalone": "Serve a whole Pulsar in one process: broker, storage, metadata and REST.",
    "metadata": "Check, back up, restore and repair the embedded metadata.",
    "tokens": "Make keys and tokens of clients, and look at them.",
    "config": "Print every setting with its default and its meaning.",
    "version": "Print the version of pyxbroker and of the Python that runs it.",
}

ABOUT = """\
A message broker that speaks Apache Pulsar's protocols.

Start one with `pyxbroker standalone`; any Pulsar client can then use
pulsar://localhost:6650.
"""

EXAMPLES = """\
Examples:
  pyxbroker standalone                      a broker on 6650 and 8080, data in ./data/standalone
  pyxbroker standalone --data /srv/pulsar   the same, its data there
  pyxbroker metadata check                  is the metadata in ./data/standalone as it was written?
  pyxbroker tokens create-secret-key -o k   a key that clients' tokens are signed with
  pyxbroker config --markdown               every setting, its default and what it does
  pyxbroker COMMAND --help                  more about one command
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command. Raises SystemExit unless it is done."""
    try:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            if sys.stdout is not None:  # as it is when the process was started without one
                sys.stdout.flush()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        fail("Interrupted.")
    except BrokenPipeError:
        # Who read has seen enough, as `head` does. Python writes what is left when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _run(arguments: Sequence[str]) -> None:
    group = Group("", ABOUT, COMMANDS, EXAMPLES)
    group.options.add_argument(
        "--version",
        action="version",
        version=f"pyxbroker {__version__}",
        help="Show the version and exit.",
    )
    name, rest = group.choose(arguments)
    # What is imported stays: to look for garbage in it is a tenth of a start.
    gc.disable()
    module = importlib.import_module(f"pyxbroker.cli.{name}")
    gc.freeze()
    gc.enable()
    module.command(rest)


def fail(sentence: str) -> NoReturn:
    """Ends the process with an error that is not one of usage."""
    print(f"pyxbroker: {sentence.rstrip('.')}.", file=sys.stderr)
    sys.exit(1)


def no_such(what: str, name: str, names: Iterable[str]) -> str:
    """The answer to the name of something that there is not; `names` are those that there are."""
    from pyxbroker.base.near_names import did_you_mean

    meant = did_you_mean(name, names)
    return f"No such {what} {name!r}" + (f"; {meant}" if meant else ".")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Writes usage as it writes the titles of our groups."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


class Parser(argparse.ArgumentParser):
    """The options of one command; a wrong one is answered in one sentence, with the nearest names.

    Options are added to `options`: a group does not make a formatter for each, which would import
    shutil for the width of the terminal.
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
        self.options = self.add_argument_group("Options")
        self.options.add_argument("-h", "--help", action="help", help="Show this message and exit.")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The values of the options. Ends the process for wrong usage, or after the help."""
        values, unknown = self.parse_known_args(arguments)
        for each in unknown:
            name = each.partition("=")[0]
            if each.startswith("-") and name.strip("-"):
                self.error(no_such("option", name, self._option_string_actions))
            if each != "--":
                self.error(f"Unexpected argument {each!r}.")
        return values

    def error(self, message: str) -> NoReturn:
        help_command = f"Try '{self.prog} --help' for help."
        self.exit(2, f"{self.format_usage()}{help_command}\n\nError: {message}\n")


class Group(Parser):
    """The options of a command that has commands of its own."""

    def __init__(self, name: str, about: str, commands: Mapping[str, str], examples: str) -> None:
        super().__init__(name, about, "[OPTIONS] COMMAND [ARGS]...")
        self.epilog = examples
        self.commands = commands
        width = max(map(len, commands))
        lines = (f"{each:{width}}  {summary}" for each, summary in commands.items())
        self.add_argument_group("Commands", "\n".join(lines))

    def choose(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """The command, and its arguments; no option of a group takes a value."""
        words = (at for at, each in enumerate(arguments) if not each.startswith("-"))
        at = next(words, len(arguments))
        self.parse(arguments[:at])
        if at == len(arguments):
            self.exit(2, self.format_help())
        if arguments[at] not in self.commands:
            self.error(no_such("command", arguments[at], self.commands))
        return arguments[at], arguments[at + 1 :]

"""The command line: `pyxbroker <command>`, one file per command.

A command's file is imported when the command is run (or when the help lists it), so that
`pyxbroker version` does not pay for the broker, nor the broker for the other commands.

Exit codes: 0 done, or stopped cleanly; 1 an error, told in one sentence on stderr; 2 wrong usage.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import click

from pyxbroker import __version__

# The command's name, and the module whose attribute `command` it is.
COMMANDS = {
    "standalone": "pyxbroker.cli.standalone",
    "metadata": "pyxbroker.cli.metadata",
    "config": "pyxbroker.cli.config",
    "version": "pyxbroker.cli.version",
}

EPILOG = """\b
Examples:
  pyxbroker standalone                      a broker on 6650 and 8080, data in ./data/standalone
  pyxbroker standalone --data /srv/pulsar   the same, its data there
  pyxbroker metadata check                  is the metadata in ./data/standalone as it was written?
  pyxbroker config --markdown               every setting, its default and what it does
  pyxbroker COMMAND --help                  more about one command
"""


class Command(click.Command):
    """A command that answers an option that it has not with the nearest ones."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            names = [name for each in self.get_params(ctx) for name in each.opts]
            raise no_such("option", error.option_name, names, ctx) from None


class Group(Command, click.Group):
    """A group of such commands that answers a command that it has not in the same way."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise no_such("command", name, self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)


def no_such(
    what: str, name: str, names: Iterable[str], ctx: click.Context | None = None
) -> click.UsageError:
    """The answer to the name of something that there is not; `names` are those that there are."""
    from pyxbroker.base.near_names import did_you_mean

    meant = did_you_mean(name, names)
    return click.UsageError(f"No such {what} {name!r}" + (f"; {meant}" if meant else "."), ctx)


class CommandGroup(Group):
    """A group that knows its commands by name and imports one when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


@click.group(
    cls=CommandGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="pyxbroker", message="%(prog)s %(version)s")
def main() -> None:
    """A message broker that speaks Apache Pulsar's protocols.

    Start one with `pyxbroker standalone`; any Pulsar client can then use pulsar://localhost:6650.
    """

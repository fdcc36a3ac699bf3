"""The command line: `pyxbroker <command>`, one file per command.

A command's file is imported when the command is run (or when the help lists it), so that
`pyxbroker version` does not pay for the broker, nor the broker for the other commands.

Exit codes: 0 done, or stopped cleanly; 1 an error, told in one sentence on stderr; 2 wrong usage.
"""

from __future__ import annotations

import importlib

import click

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


class CommandGroup(click.Group):
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
def main() -> None:
    """A message broker that speaks Apache Pulsar's protocols.

    Start one with `pyxbroker standalone`; any Pulsar client can then use pulsar://localhost:6650.
    """

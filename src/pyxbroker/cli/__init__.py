"""The command line: `pyxbroker <command>`, one file per command.

A command's file is imported when the command is run, so that `pyxbroker version` does not pay for
the broker, nor the broker for the other commands. Its function `command` takes the arguments that
follow the command's name.

Exit codes: 0 done, or stopped cleanly; 1 an error, told in one sentence on stderr; 2 wrong usage.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

from pyxbroker import __version__
from pyxbroker.base.command_line import Group as Group
from pyxbroker.base.command_line import Parser as Parser
from pyxbroker.base.command_line import fail as fail
from pyxbroker.base.command_line import no_such as no_such

# Each command, and what the help says about it; its module has its name.
COMMANDS = {
    "standalone": "Serve a whole Pulsar in one process: broker, storage, metadata and REST.",
    "metadata": "Check, back up, restore and repair the embedded metadata.",
    "tokens": "Make keys and tokens of clients, and look at them.",
    "pipeline": "Run a job of Spark's on topics: archive, replay, aggregate, analytics, audit.",
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
  pyxbroker pipeline list                   jobs of Spark's on topics: archive, audit and others
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

"""The command line: `pyxbroker <command>`, one file per command.

A command's module is imported only when the command runs, so that no command pays for the imports
of another. Its function `command` takes the arguments that follow the command's name.

Exit codes: 0 success or clean shutdown; 1 an error, explained in one sentence on stderr; 2 wrong
usage; 130 Ctrl-C.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from pyxbroker import __version__
from pyxbroker.base.command_line import Group as Group
from pyxbroker.base.command_line import Parser as Parser
from pyxbroker.base.command_line import fail as fail
from pyxbroker.base.command_line import no_such as no_such
from pyxbroker.base.command_line import print_waiting as print_waiting

# Each command with its text in the help; its module has the same name with _ for -.
COMMANDS = {
    "standalone": "Run broker, storage, metadata and REST in one process.",
    "broker": "Run a broker of a cluster on ZooKeeper and BookKeeper.",
    "initialize-cluster-metadata": "Create the metadata of a new cluster in ZooKeeper.",
    "initialize-transaction-coordinator-metadata": "Create the metadata of transactions there.",
    "ledgers": "Copy a standalone to a cluster.",
    "backup": "Back up a standalone while it runs, verify and restore backups.",
    "metadata": "Check, back up, restore and repair the embedded metadata.",
    "tokens": "Create and inspect keys and tokens of clients.",
    "admin": "Administer a broker: the commands of pulsar-admin.",
    "client": "Send and receive messages.",
    "perf": "Measure a broker by a load of messages.",
    "why": "Print why a topic or a subscription does not move.",
    "top": "Show what the brokers of a cluster do, live.",
    "pipeline": "Run a Spark job on topics: archive, replay, aggregate, analytics, audit.",
    "config": "Print all settings with their defaults and descriptions.",
    "version": "Print the version of pyxbroker and of the Python that runs it.",
}

INTERRUPTED = 128 + int(signal.SIGINT)

ABOUT = """\
A message broker that speaks Apache Pulsar's protocols.

Start a broker with `pyxbroker standalone`. Any Pulsar client can then connect
to pulsar://localhost:6650.
"""

EXAMPLES = """\
Examples:
  pyxbroker standalone                      run a broker on 6650 and 8080, data in ./data/standalone
  pyxbroker standalone --data /srv/pulsar   run a broker with its data in /srv/pulsar
  pyxbroker metadata check                  check the metadata in ./data/standalone for damage
  pyxbroker tokens create-secret-key -o k   create a key that signs the tokens of clients
  pyxbroker pipeline list                   list the Spark jobs
  pyxbroker config --markdown               describe all settings
  pyxbroker COMMAND --help                  more about one command
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Raise SystemExit on failure."""
    _open_closed_streams()
    try:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        fail("Interrupted.", INTERRUPTED)
    except BrokenPipeError:
        # The reader has closed the pipe, like `head`. Redirect what Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the process was started without. Otherwise a
    file of the broker would get its number, and what libraries print there.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _run(arguments: Sequence[str]) -> None:
    group = Group("", ABOUT, COMMANDS, EXAMPLES)
    group.options.add_argument(
        "--version",
        action="version",
        version=f"pyxbroker {__version__}",
        help="Show the version and exit.",
    )
    name, rest = group.choose(arguments)
    # Imported modules stay in memory. Collecting garbage among them takes a tenth of the start.
    gc.disable()
    module = importlib.import_module(f"pyxbroker.cli.{name.replace('-', '_')}")
    gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as __main__.py has set it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    module.command(rest)

"""`pyxbroker client`: sends and receives messages, with the options of `pulsar-client`.

Exit codes: 0 done; 1 an error, explained in one sentence on stderr; 2 wrong usage; 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from pyxbroker.cli import Group

COMMANDS = {
    "produce": "Send messages: from options, files or lines of stdin.",
    "consume": "Receive messages of a subscription, and acknowledge them.",
    "read": "Read messages from a position on, without a subscription.",
    "tail": "Print the last messages of a topic, and those that come.",
}
WITH_VALUE = frozenset(
    (
        *("--url", "--listener-name", "--token", "--auth-plugin", "--auth-params"),
        *("--tls-trust-cert-path", "--tlsTrustCertsFilePath", "-ml", "--memory-limit"),
        "--context",
    )
)
"""The options with a value that may stand before the command."""
MODULES = {"produce": "produce", "consume": "receive", "read": "receive", "tail": "receive"}

ABOUT = """\
Send and receive messages. The options are those of `pulsar-client`.

A topic with an Avro or JSON schema takes JSON, and `--output json` prints JSON.
"""

EXAMPLES = """\
Examples:
  pyxbroker client produce orders -m hello -k customer-7
  pyxbroker client produce orders --lines - < orders.jsonl
  pyxbroker client consume orders -s billing -n 0 --output json
  pyxbroker client read orders -m earliest -n 0 --end
  pyxbroker client tail orders --url pulsar+ssl://broker:6651 --token file:///etc/client.jwt
"""


def command(arguments: Sequence[str]) -> None:
    group = Group("client", ABOUT, COMMANDS, EXAMPLES)
    leading = _options_before_command(arguments)
    name, rest = group.choose(arguments[leading:])
    module = importlib.import_module(f"pyxbroker.cli.client.{MODULES[name]}")
    getattr(module, name)([*arguments[:leading], *rest])


def _options_before_command(arguments: Sequence[str]) -> int:
    """Return how many words are connection options that stand before the command, as scripts for
    pulsar-client have them.
    """
    at = 0
    while at < len(arguments):
        name, equals, _ = arguments[at].partition("=")
        if name in WITH_VALUE:
            at += 1 if equals else 2
        elif name == "--tls-allow-insecure":
            at += 1
        else:
            break
    return at

"""`pyxbroker admin`: the commands of pulsar-admin.

`tables/` has a table for each group of commands, and is imported for one group only. rows.py says
what a row means; running.py sends its request and prints the answer.

Exit codes: 0 done; 1 refused by the broker, or no broker answers; 2 wrong usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyxbroker.cli import Parser, no_such
from pyxbroker.cli.admin.output import FORMATS
from pyxbroker.cli.login_options import add_admin_url, add_login_options

# Each group with its text in the help; its module in tables/ has the same name with _ for -.
GROUPS = {
    "tenants": "Tenants, their administrators and clusters.",
    "namespaces": "Namespaces and their policies.",
    "topics": "Topics, subscriptions and messages.",
    "topicPolicies": "Policies of single topics.",
    "schemas": "Schemas of topics.",
    "clusters": "Clusters and failure domains.",
    "brokers": "Brokers and their dynamic configuration.",
    "broker-stats": "Statistics of a broker.",
    "bookies": "Bookies and their racks.",
    "ns-isolation-policy": "Namespaces that are reserved for some brokers.",
    "resourcegroups": "Resource groups.",
    "resource-quotas": "Resource quotas of bundles.",
    "transactions": "Transactions and their coordinators.",
}
# Commands next to the groups, which pulsar-admin does not have.
COMMANDS = {"completion": "Print a script that completes names: bash, zsh or fish."}
HIDDEN = ("complete",)

ABOUT = """\
Administer a broker by the commands and options of Apache Pulsar's pulsar-admin.

URL and login come from these options. What is not given is taken from one other
place, the first of these that there is:
  1. the context that --context names, in ~/.config/pyxbroker/contexts.toml
  2. the client.conf that the environment variable PULSAR_CLIENT_CONF names
  3. the context that contexts.toml names as `current`
"""

EXAMPLES = """\
Examples:
  pyxbroker admin tenants list
  pyxbroker admin namespaces set-retention public/default --time 7d --size 10G
  pyxbroker admin --output json topics stats orders
  pyxbroker admin topics delete orders --yes
  pyxbroker admin namespaces --help         the commands of a group

A contexts.toml has the options of each context by their names:
  current = "production"
  [contexts.production]
  admin-url = "https://broker:8443"
  token = "file:///etc/admin.jwt"

Exit codes: 0 done; 1 refused, or no broker answers; 2 wrong usage.
"""


def command(arguments: Sequence[str]) -> None:
    parser = admin_parser()
    if not arguments:
        parser.exit(2, parser.format_help())
    options = parser.parse(arguments)
    name, *rest = options.words
    if name in HIDDEN or name in COMMANDS:
        from pyxbroker.cli.admin import completion

        completion.command(name, rest)
    elif name in GROUPS:
        from pyxbroker.cli.admin import running

        running.run_group(name, rest, options)
    else:
        parser.error(no_such("group", name, [*GROUPS, *COMMANDS]))


def admin_parser() -> Parser:
    """Return the parser of the options before the group."""
    parser = Parser("admin", ABOUT, "[OPTIONS] GROUP COMMAND [ARGS]...")
    parser.epilog = EXAMPLES
    parser.add_argument("words", metavar="GROUP", nargs=argparse.PARSER, help=argparse.SUPPRESS)
    commands = {**GROUPS, **COMMANDS}
    width = max(map(len, commands))
    lines = (f"{each:{width}}  {about}" for each, about in commands.items())
    parser.add_argument_group("Groups", "\n".join(lines))
    add_admin_url(parser)
    add_login_options(parser)
    add = parser.options.add_argument
    add(
        "--tls-enable-hostname-verification",
        action="store_true",
        default=None,
        help="Check the name in the certificate, as is done anyway.",
    )
    add("--tls-provider", metavar="NAME", help="No effect: it is one of Java.")
    add("--request-timeout", metavar="SECONDS", type=_timeout, help="Time for one request [30].")
    add_common_options(parser)
    return parser


def _timeout(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds.")
    return int(text)


def add_common_options(parser: Parser) -> None:
    """Add the options that may follow the command, too."""
    parser.options.add_argument(
        "--output",
        choices=FORMATS,
        default=argparse.SUPPRESS,
        metavar="FORMAT",
        help="text as pulsar-admin prints it, json or table [text].",
    )
    parser.options.add_argument(
        "--yes",
        action="store_true",
        default=argparse.SUPPRESS,
        help="Do not ask before data is destroyed.",
    )

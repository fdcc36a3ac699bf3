"""`pyxbroker top`: shows what the brokers of a cluster do, as a live page or once.

Exit codes: 0 done; 1 no broker answers; 2 wrong usage; 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from pyxbroker.cli import Parser, fail
from pyxbroker.cli.broker_requests import admin_settings, complete_admin, failure, refusal
from pyxbroker.cli.login_options import add_admin_url, add_login_options
from pyxbroker.cli.top.page import SORTS, whole_page
from pyxbroker.cli.top.samples import Row, Snapshot
from pyxbroker.cli.top.watch import Watch
from pyxbroker.client.errors import ClientError, HttpRefused

ABOUT = """\
Show topics by rate, subscriptions by backlog and age, connections, storage and the
event loop of all brokers of a cluster. The numbers are those of /metrics.

Examples:
  pyxbroker top
  pyxbroker top --admin-url https://broker:8443 --token file:///etc/admin.jwt
  pyxbroker top --once --sort backlog --rows 5
  pyxbroker top --once --output json
"""

WIDTH_WITHOUT_TERMINAL = 132


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    if options.interval <= 0 or options.rows < 0:
        fail("--interval has to be above 0, and --rows 0 or more.", 2)
    complete_admin(options)
    settings = admin_settings(options)
    is_once = options.once or options.output == "json"
    if not is_once and not (sys.stdout.isatty() and sys.stdin.isatty()):
        fail("stdin and stdout are no terminal: use --once.", 2)
    watch = Watch(settings, all_brokers=not options.this_broker)
    try:
        if is_once:
            asyncio.run(_once(watch, options))
        else:
            from pyxbroker.cli.top.screen import run

            run(watch, options.interval, _sort_key(options))
    except HttpRefused as error:
        needed = "a superuser, or --this-broker"
        fail(refusal(options.admin_url, error, "list the brokers", needed))
    except ClientError as error:
        fail(failure(options.admin_url, error))


def _parser() -> Parser:
    parser = Parser("top", ABOUT)
    add = parser.options.add_argument
    add_admin_url(parser)
    add_login_options(parser)
    add("--this-broker", action="store_true", help="Ask no other brokers of the cluster.")
    add("--interval", metavar="S", type=float, default=2.0, help="Seconds [%(default)g].")
    add("--once", action="store_true", help="Print one page, and end.")
    add("--output", choices=("text", "json"), default="text", help="json: once [%(default)s].")
    add("--sort", choices=tuple(name for name, _ in SORTS.values()), help="The order at first.")
    add("--rows", metavar="N", type=int, default=20, help="Rows with --once; 0: all [%(default)s].")
    return parser


async def _once(watch: Watch, options: Namespace) -> None:
    """Print what two samples show."""
    try:
        await watch.sample()
        await asyncio.sleep(options.interval)
        found = await watch.sample()
    finally:
        watch.close()
    if options.output == "json":
        print(json.dumps(_object(found), indent=2))
        return
    width = WIDTH_WITHOUT_TERMINAL
    if sys.stdout.isatty():
        import shutil

        width = shutil.get_terminal_size().columns
    for line in whole_page(found, _sort_key(options), width, options.rows):
        print(line)


def _object(found: Snapshot) -> dict[str, object]:
    return {
        "brokers": _objects(found.brokers, "broker"),
        "topics": _objects(found.topics, "topic", "broker"),
        "subscriptions": _objects(found.subscriptions, "topic", "subscription", "broker"),
        "failures": found.failures,
    }


def _objects(rows: Sequence[Row], *titles: str) -> list[dict[str, object]]:
    return [{**dict(zip(titles, row.names, strict=True)), **row.numbers} for row in rows]


def _sort_key(options: Namespace) -> str:
    """Return the key of the order that the options name; empty: none."""
    return next((key for key, (name, _) in SORTS.items() if name == options.sort), "")

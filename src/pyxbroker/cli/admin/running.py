"""Runs one command of a group: parses its options, sends its request, prints the answer."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from pyxbroker.base.command_line import Group, Parser, fail
from pyxbroker.cli.admin import GROUPS, add_common_options, admin_parser, output
from pyxbroker.cli.admin.rows import Command, Encoded, Option, Pairs
from pyxbroker.cli.broker_requests import (
    TIMEOUT_S,
    admin_client,
    complete_admin,
    failure,
    refusal,
)
from pyxbroker.client.admin import AdminClient
from pyxbroker.client.errors import ClientError, HttpRefused


def table_of(group: str) -> Mapping[str, Command]:
    """Return the commands of a group by name."""
    name = "".join(f"_{each.lower()}" if each.isupper() else each for each in group)
    module = importlib.import_module(f"{__package__}.tables.{name.replace('-', '_')}")
    commands: Mapping[str, Command] = module.COMMANDS
    return commands


def run_group(group: str, words: Sequence[str], options: argparse.Namespace) -> None:
    """Run a command. options: those before the group."""
    commands = table_of(group)
    abouts = {name: each.about for name, each in commands.items()}
    group_parser = Group(f"admin {group}", GROUPS[group], abouts, "")
    group_parser.leading = admin_parser
    name, rest = group_parser.choose(words)
    values = parse(group, name, commands[name], rest)
    for each in ("output", "yes"):
        if hasattr(values, each):
            setattr(options, each, getattr(values, each))
    complete_admin(options)
    confirm(commands[name], values, getattr(options, "yes", False))
    answer = asyncio.run(_send(commands[name], values, options))
    text = text_of(commands[name], answer, getattr(options, "output", "text"))
    if text:
        print(text)


# --- options --------------------------------------------------------------------------------------


def parse(group: str, name: str, command: Command, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the options. Exits after wrong usage, or after the help."""
    parser = command_parser(group, name, command)
    values = parser.parse(arguments)
    for each in command.options:
        if getattr(values, each.dest) is None:
            setattr(values, each.dest, each.default)
    wrong = command.check(values) if command.check else ""
    if wrong:
        parser.error(wrong)
    return values


def command_parser(group: str, name: str, command: Command) -> Parser:
    places = " ".join(each.names[0].upper() for each in command.options if each.is_argument)
    parser = Parser(f"admin {group} {name}", command.about, f"[OPTIONS] {places}".rstrip())
    parser.leading = admin_parser
    exclusive: dict[str, Any] = {}
    for each in command.options:
        target: Any = parser.options
        if each.one_of:
            if each.one_of not in exclusive:
                exclusive[each.one_of] = parser.options.add_mutually_exclusive_group(required=True)
            target = exclusive[each.one_of]
        _add(parser, target, each)
    add_common_options(parser)
    return parser


def _add(parser: Parser, target: Any, option: Option) -> None:
    if option.is_argument:
        parser.add_argument(
            option.names[0],
            metavar=option.names[0].upper(),
            type=option.convert or str,
            nargs=None if option.is_required else "?",
            help=option.about,
        )
    elif option.convert is None:
        target.add_argument(
            *option.names,
            dest=option.dest,
            action="store_const",
            const=option.value,
            help=option.about,
        )
    else:
        about = option.about
        if option.default is not None and not option.to.startswith("{"):
            about += f" [{option.default}]".replace("%", "%%")
        target.add_argument(
            *option.names,
            dest=option.dest,
            metavar="VALUE",
            type=option.convert,
            required=option.is_required,
            help=about,
            action=_Merge,
        )


class _Merge(argparse.Action):
    """Stores a value. An option that is repeated adds to a list or to pairs."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest)
        if isinstance(values, list) and isinstance(before, list):
            values = before + values
        elif isinstance(values, Pairs) and isinstance(before, Pairs):
            values = Pairs({**before, **values})
        setattr(namespace, self.dest, values)


def confirm(command: Command, values: argparse.Namespace, is_sure: bool) -> None:
    """Ask the operator before data is destroyed. Exits unless the operator agrees."""
    if not command.destroys or is_sure:
        return
    if command.unless and getattr(
        values, command.unless.lstrip("-")
    ) is not command.unless.startswith("-"):
        return
    what = command.destroys.format(**vars(values))
    if not sys.stdin.isatty():
        fail(f"This {what}: confirm with --yes", 2)
    print(f"This {what}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("Nothing was done.")


# --- requests -------------------------------------------------------------------------------------


async def _send(command: Command, values: argparse.Namespace, options: argparse.Namespace) -> Any:
    url = options.admin_url
    try:
        async with admin_client(options) as client:
            return await answer_of(client, command, values)
    except HttpRefused as error:
        fail(refusal(url, error, "do that", "a role with the right"))
    except ClientError as error:
        fail(failure(url, error, options.request_timeout or TIMEOUT_S))


async def answer_of(client: AdminClient, command: Command, values: argparse.Namespace) -> Any:
    """Send the requests of a command, and return the JSON of the answer, or its text."""
    if command.run is not None:
        return await command.run(client, values)
    path, body = path_and_body(command, values)
    answer = await client.request(command.method, path, body)
    try:
        return json.loads(answer.body) if answer.body else None
    except ValueError:
        return answer.body.decode(errors="replace")


def path_and_body(command: Command, values: argparse.Namespace) -> tuple[str, Any]:
    """Return the path of a request with its query, and the body; None: it has none."""
    path = command.path
    query: dict[str, str] = {}
    body: Any = command.body
    for each in command.options:
        value = getattr(values, each.dest)
        if each.to.startswith("{"):
            path = path.replace(each.to, _part(each.to, value))
        elif value is None or not each.to:
            continue
        elif each.to.startswith("?"):
            if each.convert is not None or value is not each.default:
                query[each.to[1:]] = value if isinstance(value, str) else _json_text(value)
        elif each.to == "=":
            body = value
        else:
            body = {**(body or {}), each.to: value}
    return path + (f"?{urlencode(query)}" if query else ""), body


def _part(place: str, value: Any) -> str:
    """Return a part of a path."""
    if value is None:
        return ""
    text = value if isinstance(value, Encoded) else quote(str(value), safe="")
    return f"/{text}" if place.startswith("{/") else text


def _json_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _bytes_text(value: Any) -> str:
    """Return the payload of a message as JSON can contain it."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    raise TypeError(f"{type(value).__name__} has no form in JSON.")


def text_of(command: Command, answer: Any, form: str) -> str:
    """Return what is printed; empty: nothing."""
    if form == "json":
        return json.dumps(answer, indent=2, ensure_ascii=False, default=_bytes_text)
    if answer is None and command.method != "GET":
        return ""
    if form == "table":
        return output.table_of(answer)
    if command.printed is not None:
        return command.printed(answer)
    return output.text_of(answer)

"""`pyxbroker why`: asks a broker why a topic or a subscription does not move.

Exit codes: 0 if the broker has answered, whatever the answer is; 1 if it has not, or if the topic
or the subscription does not exist; 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.cli import Parser, fail
from pyxbroker.cli.broker_requests import (
    FORBIDDEN,
    UNAUTHORIZED,
    admin_client,
    complete_admin,
    failure,
    refusal,
)
from pyxbroker.cli.login_options import add_admin_url, add_login_options
from pyxbroker.client.admin import topic_path
from pyxbroker.client.errors import ClientError, HttpRefused

ABOUT = """\
Print why a topic takes no messages, or why a subscription does not get any.

The answer is one sentence and its evidence. Without SUBSCRIPTION it is about the
topic and its producers, with one line for each subscription. The topic is not
opened for it.

Examples:
  pyxbroker why orders
  pyxbroker why persistent://shop/eu/orders billing --admin-url https://broker:8443
  pyxbroker why orders billing --token file:///etc/admin.jwt --output json
"""

NOT_FOUND, UNAVAILABLE = 404, 503


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    try:
        path = topic_path(options.topic, _resource(options.subscription))
    except InvalidTopicName as error:
        fail(str(error))
    complete_admin(options)
    try:
        answer = asyncio.run(_ask(options, path))
    except HttpRefused as error:
        fail(_refusal(options.admin_url, error))
    except ClientError as error:
        fail(failure(options.admin_url, error))
    if options.output == "json":
        print(json.dumps(answer, indent=2))
    else:
        for line in _lines(answer):
            print(line)


def _parser() -> Parser:
    parser = Parser("why", ABOUT, "[OPTIONS] TOPIC [SUBSCRIPTION]")
    parser.add_argument("topic", metavar="TOPIC", help="The topic, or one of its partitions.")
    parser.add_argument("subscription", metavar="SUBSCRIPTION", nargs="?", help="A subscription.")
    add_admin_url(parser)
    add_login_options(parser)
    parser.options.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="text or json [%(default)s].",
    )
    return parser


def _resource(subscription: str | None) -> str:
    return "why" if subscription is None else f"subscription/{quote(subscription, safe='')}/why"


async def _ask(options: Namespace, path: str) -> dict[str, Any]:
    async with admin_client(options) as client:
        answer = await client.get(path)
    if not isinstance(answer, dict):
        raise ClientError(f"{options.admin_url} answered with something else.")
    return answer


def _refusal(url: str, error: HttpRefused) -> str:
    """Return the sentence for the status of an error."""
    if error.status in (UNAUTHORIZED, FORBIDDEN):
        return refusal(url, error, "ask about the topic", "an administrator of its tenant")
    if error.status == UNAVAILABLE:
        return error.reason
    if error.status != NOT_FOUND:
        return str(error)
    if any(word in error.reason for word in ("exist", "found", "deleted")):
        return error.reason
    return f"{url} does not know this question, so it is not a pyxbroker"


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    yield _shown(answer.get("sentence"))
    yield ""
    names = ("reason", "topic", "subscription", "owner", "since")
    width = max(map(len, (*names, *answer.get("evidence", ()))))
    for name in names:
        if name in answer:
            yield f"{name:{width}}  {_shown(answer[name])}"
    for name, value in answer.get("evidence", {}).items():
        if not isinstance(value, list):
            yield f"{name:{width}}  {_shown(value)}"
            continue
        for number, each in enumerate(value):
            yield f"{'' if number else name:{width}}  {_shown(each)}"
    subscriptions = answer.get("subscriptions", [])
    if subscriptions:
        yield ""
        yield "Subscriptions:"
    for each in subscriptions:
        yield f"  {_shown(each['subscription'])}: {each['reason']}: {_shown(each['sentence'])}"


def _shown(value: object) -> str:
    """Return a value as text in one line."""
    if isinstance(value, str) and value.isprintable():
        return value
    return json.dumps(value)

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
from urllib.parse import quote, urlsplit

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.cli import Parser, fail
from pyxbroker.client.addresses import ServiceUrl
from pyxbroker.client.admin import AdminClient, topic_path
from pyxbroker.client.authentication import Authentication, TokenAuthentication, method_named
from pyxbroker.client.errors import (
    AnswerTimeout,
    BadSetting,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    HttpRefused,
    TlsFailed,
    UntrustedCertificate,
)
from pyxbroker.client.settings import ClientSettings
from pyxbroker.client.tls import TlsSettings

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

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, UNAVAILABLE = 401, 403, 404, 503
TIMEOUT_S = 30.0


def command(arguments: Sequence[str]) -> None:
    options = _parser().parse(arguments)
    try:
        path = topic_path(options.topic, _resource(options.subscription))
    except InvalidTopicName as error:
        fail(str(error))
    _check_url(options.admin_url)
    try:
        answer = asyncio.run(_ask(options, path))
    except HttpRefused as error:
        fail(_refusal(options.admin_url, error))
    except ClientError as error:
        fail(_failure(options.admin_url, error))
    if options.output == "json":
        print(json.dumps(answer, indent=2))
    else:
        for line in _lines(answer):
            print(line)


def _parser() -> Parser:
    parser = Parser("why", ABOUT, "[OPTIONS] TOPIC [SUBSCRIPTION]")
    parser.add_argument("topic", metavar="TOPIC", help="The topic, or one of its partitions.")
    parser.add_argument("subscription", metavar="SUBSCRIPTION", nargs="?", help="A subscription.")
    add = parser.options.add_argument
    add(
        "--admin-url",
        metavar="URL",
        default="http://localhost:8080",
        help="http:// or https://host:port of any broker [%(default)s].",
    )
    add("--output", choices=("text", "json"), default="text", help="text or json [%(default)s].")
    add("--token", metavar="TOKEN", help="A token, or file:///path of one.")
    add("--auth-plugin", metavar="CLASS", help="Another kind of login, as in pulsar-admin.")
    add("--auth-params", metavar="TEXT", default="", help="The parameters of that login.")
    add("--tls-trust-cert-path", metavar="FILE", help="PEM file of trusted authorities.")
    add("--tls-allow-insecure", action="store_true", help="Accept any certificate.")
    return parser


def _resource(subscription: str | None) -> str:
    return "why" if subscription is None else f"subscription/{quote(subscription, safe='')}/why"


async def _ask(options: Namespace, path: str) -> dict[str, Any]:
    tls = TlsSettings(
        options.tls_trust_cert_path,
        "--tls-trust-cert-path",
        accept_untrusted=options.tls_allow_insecure,
    )
    settings = ClientSettings(
        options.admin_url, _authentication(options), tls, operation_timeout_s=TIMEOUT_S
    )
    async with AdminClient(settings) as client:
        answer = await client.get(path)
    if not isinstance(answer, dict):
        raise ClientError(f"{options.admin_url} answered with something else.")
    return answer


def _authentication(options: Namespace) -> Authentication:
    """Return the login that the options describe. Raises BadSetting."""
    if options.token is not None:
        return TokenAuthentication("--token", options.token)
    if options.auth_plugin is None:
        return Authentication()
    method = method_named(options.auth_plugin)
    if method is None:
        fail(f"--auth-plugin {options.auth_plugin} is not known")
    return method("--auth-params", options.auth_params)


def _check_url(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        fail(f"--admin-url is {url!r}; expected http://HOST:PORT or https://HOST:PORT.", 2)
    if urlsplit(url).path not in ("", "/"):
        fail(f"--admin-url is {url!r}; expected http://HOST:PORT or https://HOST:PORT, no path.", 2)
    try:
        ServiceUrl(url)
    except BadSetting:
        fail(f"--admin-url is {url!r}; expected a host, and a port of 0 to 65535.", 2)


def _refusal(url: str, error: HttpRefused) -> str:
    """Return the sentence for the status of an error."""
    if error.status == UNAUTHORIZED:
        return (
            f"{url} does not accept the credentials, or needs some (401: {error.reason}): use"
            " --token, or --auth-plugin with --auth-params"
        )
    if error.status == FORBIDDEN:
        return (
            f"{url} does not let this role ask about the topic (403: {error.reason}): use the"
            " credentials of an administrator of its tenant"
        )
    if error.status == UNAVAILABLE:
        return error.reason
    if error.status != NOT_FOUND:
        return str(error)
    if any(word in error.reason for word in ("exist", "found", "deleted")):
        return error.reason
    return f"{url} does not know this question, so it is not a pyxbroker"


def _failure(url: str, error: ClientError) -> str:
    """Return the sentence for an error without an answer."""
    if isinstance(error, UntrustedCertificate):
        return (
            f"{error}: name its authority with --tls-trust-cert-path, or use --tls-allow-insecure"
        )
    if not isinstance(error, ConnectionFailed):
        return str(error)
    parts = urlsplit(error.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    where = origin if url.startswith(origin) else f"{origin}, to which {url} redirects,"
    if isinstance(error, TlsFailed):
        return (
            f"{where} refuses TLS ({error.reason}): use http:// for a port without TLS"
            " (webServicePort), and https:// for webServicePortTls"
        )
    if isinstance(error, AnswerTimeout):
        return f"{where} accepts connections, and has not answered for {TIMEOUT_S:g} s"
    if isinstance(error, ConnectFailed):
        return (
            f"No broker answers at {where.rstrip(',')}: {error.reason}; check the URL, and that"
            " the broker runs"
        )
    return (
        f"{where} does not answer as a web server ({error.reason}): --admin-url needs the web port"
        " of a broker (webServicePort), with https:// that of webServicePortTls"
    )


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

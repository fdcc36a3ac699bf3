"""Requests of commands to a broker's web port, and the sentences for their failures."""

from __future__ import annotations

from argparse import Namespace
from urllib.parse import urlsplit

from pyxbroker.cli import fail
from pyxbroker.cli.connecting import client_settings, untrusted
from pyxbroker.cli.login_options import complete
from pyxbroker.client.addresses import ServiceUrl
from pyxbroker.client.admin import AdminClient
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

UNAUTHORIZED, FORBIDDEN = 401, 403
TIMEOUT_S = 30.0


def complete_admin(options: Namespace) -> None:
    """Set what the command line lacks.

    Exits if its source cannot be read, or if `--admin-url` is not the URL of a web port.
    """
    complete(options)
    _check_url(options.admin_url)


def _check_url(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        fail(f"--admin-url is {url!r}; expected http://HOST:PORT or https://HOST:PORT.", 2)
    if urlsplit(url).path not in ("", "/"):
        fail(f"--admin-url is {url!r}; expected http://HOST:PORT or https://HOST:PORT, no path.", 2)
    try:
        ServiceUrl(url)
    except BadSetting:
        fail(f"--admin-url is {url!r}; expected a host, and a port of 0 to 65535.", 2)


def admin_client(options: Namespace) -> AdminClient:
    """Return a client for the broker that the options name."""
    return AdminClient(admin_settings(options))


def admin_settings(options: Namespace) -> ClientSettings:
    """Return the settings of a client for the broker that the options name.

    Exits after wrong usage.
    """
    timeout_s = getattr(options, "request_timeout", None) or TIMEOUT_S
    return client_settings(options, options.admin_url, operation_timeout_s=timeout_s)


def refusal(url: str, error: HttpRefused, asks: str, needed: str) -> str:
    """Return the sentence for the status of an error.

    asks: what the role would do; needed: the credentials that it takes.
    """
    if error.status == UNAUTHORIZED:
        return (
            f"{url} does not accept the credentials, or needs some (401: {error.reason}): use"
            " --token, or --auth-plugin with --auth-params"
        )
    if error.status == FORBIDDEN:
        return (
            f"{url} does not let this role {asks} (403: {error.reason}): use the credentials of"
            f" {needed}"
        )
    return error.reason


def failure(url: str, error: ClientError, timeout_s: float = TIMEOUT_S) -> str:
    """Return the sentence for an error without an answer."""
    if isinstance(error, UntrustedCertificate):
        return untrusted(error)
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
        return f"{where} accepts connections, and has not answered for {timeout_s:g} s"
    if isinstance(error, ConnectFailed):
        return (
            f"No broker answers at {where.rstrip(',')}: {error.reason}; check the URL, and that"
            " the broker runs"
        )
    return (
        f"{where} does not answer as a web server ({error.reason}): --admin-url needs the web port"
        " of a broker (webServicePort), with https:// that of webServicePortTls"
    )

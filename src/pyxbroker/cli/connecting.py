"""The options of commands that speak Pulsar's protocol with a cluster: its URL, login and TLS.

An option that the command line lacks is taken from the file that PULSAR_CLIENT_CONF names, with the
keys of Pulsar's client.conf.
"""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from pyxbroker.base.properties import ConfigError, read_properties
from pyxbroker.cli import Parser, fail
from pyxbroker.client.addresses import ServiceUrl
from pyxbroker.client.authentication import Authentication, TokenAuthentication, method_named
from pyxbroker.client.errors import (
    AnswerTimeout,
    BadSetting,
    BrokerRefused,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    TlsFailed,
    UntrustedCertificate,
)
from pyxbroker.client.settings import ClientSettings
from pyxbroker.client.tls import CertificateFiles, TlsSettings

CLIENT_CONF = "PULSAR_CLIENT_CONF"
BROKER_URL = "pulsar://localhost:6650"
UNAUTHORIZED_CODES = ("AuthenticationError", "AuthorizationError")


def add_login_options(parser: Parser) -> None:
    """Add the options of the login and of TLS, named as in pulsar-client and pulsar-admin."""
    add = parser.options.add_argument
    add("--token", metavar="TOKEN", help="A token, or file:///path of one.")
    add("--auth-plugin", metavar="CLASS", help="Another kind of login, by its class in Java.")
    add("--auth-params", metavar="TEXT", help="The parameters of that login.")
    add(
        *("--tls-trust-cert-path", "--tlsTrustCertsFilePath"),
        metavar="FILE",
        help="PEM file of trusted authorities.",
    )
    add("--tls-allow-insecure", action="store_true", help="Accept any certificate.")


def client_conf() -> dict[str, str]:
    """Return the keys of the file that PULSAR_CLIENT_CONF names; exits if it is unreadable."""
    path = os.environ.get(CLIENT_CONF)
    if not path:
        return {}
    try:
        return {key: text for _, key, text in read_properties(Path(path)) if text}
    except ConfigError as error:
        fail(f"{CLIENT_CONF}: {error}")


def client_settings(
    options: Namespace, url: str, url_name: str, schemes: tuple[str, ...]
) -> ClientSettings:
    """Return the settings of a client. url_name: the option or key that has the URL.

    Exits after wrong usage.
    """
    conf = client_conf()
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in schemes:
        expected = " or ".join(f"{each}://HOST:PORT" for each in schemes)
        fail(f"{url_name} is {url!r}; expected {expected}.", 2)
    try:
        ServiceUrl(url)
        return ClientSettings(
            url,
            _login(options, conf),
            _tls(options, conf),
            listener=getattr(options, "listener_name", None) or "",
        )
    except BadSetting as error:
        fail(str(error), 2)


def _login(options: Namespace, conf: dict[str, str]) -> Authentication:
    if options.token is not None:
        return TokenAuthentication("--token", options.token)
    plugin, name = options.auth_plugin, "--auth-plugin"
    params, params_name = options.auth_params or "", "--auth-params"
    if plugin is None and not params:
        plugin, name = conf.get("authPlugin"), f"authPlugin in {CLIENT_CONF}"
        params, params_name = conf.get("authParams", ""), f"authParams in {CLIENT_CONF}"
    if plugin is None:
        if params and options.auth_params:
            fail("--auth-params needs --auth-plugin.", 2)
        return Authentication()
    method = method_named(plugin)
    if method is None:
        fail(f"{name} is {plugin!r}; expected token, basic, tls, oauth2 or the class in Java.", 2)
    return method(params_name, params)


def _tls(options: Namespace, conf: dict[str, str]) -> TlsSettings:
    trusted, name = options.tls_trust_cert_path, "--tls-trust-cert-path"
    if trusted is None:
        trusted, name = conf.get("tlsTrustCertsFilePath"), f"tlsTrustCertsFilePath in {CLIENT_CONF}"
    own = None
    if "tlsCertificateFilePath" in conf and "tlsKeyFilePath" in conf:
        own = CertificateFiles(conf["tlsCertificateFilePath"], conf["tlsKeyFilePath"])
    return TlsSettings(
        trusted,
        name,
        accept_untrusted=options.tls_allow_insecure
        or conf.get("tlsAllowInsecureConnection") == "true",
        verify_host=conf.get("tlsEnableHostnameVerification") != "false",
        own=own,
    )


def failure(settings: ClientSettings, error: ClientError) -> str:
    """Return the sentence for an error of a client."""
    url = settings.service_url
    if isinstance(error, UntrustedCertificate):
        return (
            f"{error}: name its authority with --tls-trust-cert-path, or use --tls-allow-insecure"
        )
    if isinstance(error, BrokerRefused) and error.code in UNAUTHORIZED_CODES:
        return (
            f"{error.url or url} does not accept the credentials, or needs others ({error.code}:"
            f" {error.message}): use --token, or --auth-plugin with --auth-params"
        )
    if isinstance(error, TlsFailed):
        return (
            f"{error.url} refuses TLS ({error.reason}): use pulsar:// for a port without TLS"
            " (brokerServicePort), and pulsar+ssl:// for brokerServicePortTls"
        )
    if isinstance(error, AnswerTimeout):
        return f"{error.url} accepts connections, and does not answer"
    if isinstance(error, ConnectFailed):
        return (
            f"No broker answers at {error.url}: {error.reason}; check the URL, and that the broker"
            " runs"
        )
    if isinstance(error, ConnectionFailed):
        return f"{error}; check that the URL has the right port of a broker (brokerServicePort)"
    return str(error)

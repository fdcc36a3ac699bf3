"""The settings of clients from options (login_options.py), and the sentences for errors of Pulsar's
protocol.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from pyxbroker.cli import fail
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

UNAUTHORIZED_CODES = ("AuthenticationError", "AuthorizationError")


def check_service_url(url: str, name: str) -> None:
    """Exit if a URL is none of the protocol. name: the option that has it."""
    if not url.startswith(("pulsar://", "pulsar+ssl://")):
        fail(f"{name} is {url!r}; expected pulsar://HOST:PORT or pulsar+ssl://HOST:PORT.", 2)


def client_settings(options: Namespace, url: str, **more: Any) -> ClientSettings:
    """Return the settings of a client of a URL. `more`: other fields of the settings.

    login_options.complete has been called before. Exits after wrong usage.
    """
    try:
        ServiceUrl(url)
        return ClientSettings(url, _login(options), _tls(options), **more)
    except BadSetting as error:
        fail(str(error), 2)


def _login(options: Namespace) -> Authentication:
    if options.token is not None:
        return TokenAuthentication("--token", options.token)
    if options.auth_plugin is None:
        if options.auth_params:
            fail("--auth-params needs --auth-plugin.", 2)
        return Authentication()
    method = method_named(options.auth_plugin)
    if method is None:
        fail(
            f"--auth-plugin is {options.auth_plugin!r}; expected token, basic, tls, oauth2 or the"
            " class in Java.",
            2,
        )
    return method("--auth-params", options.auth_params or "")


def _tls(options: Namespace) -> TlsSettings:
    certificate, key = options.tls_certificate_file, options.tls_key_file
    return TlsSettings(
        options.tls_trust_cert_path,
        "--tls-trust-cert-path",
        accept_untrusted=bool(options.tls_allow_insecure),
        verify_host=options.tls_enable_hostname_verification is not False,
        own=CertificateFiles(certificate, key) if certificate and key else None,
    )


def untrusted(error: UntrustedCertificate) -> str:
    """Return the sentence for a certificate."""
    return f"{error}: name its authority with --tls-trust-cert-path, or use --tls-allow-insecure"


def failure(settings: ClientSettings, error: ClientError) -> str:
    """Return the sentence for an error of a client."""
    url = settings.service_url
    if isinstance(error, UntrustedCertificate):
        return untrusted(error)
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

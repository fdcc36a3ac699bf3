"""The options of TLS and authentication, for our client and for the official one.

Options have the names of Java's client. `authPluginClassName` is one of its classes, or the last
word of such a name; `authParams` are its parameters. Options of `pulsar.admin.` are for REST, and
default to those of `pulsar.client.`. The client (client/) reads credentials each time it sends
them.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyxbroker.client.authentication import (
    Authentication,
    BasicAuthentication,
    TlsAuthentication,
    is_path,
    method_named,
)
from pyxbroker.client.errors import BadSetting, ClientError, IssuerUnreachable
from pyxbroker.client.tls import CertificateFiles, TlsSettings
from pyxbroker.spark.errors import NotReachable, PulsarSparkError, WrongOption
from pyxbroker.spark.options import Options

_log = logging.getLogger(__name__)


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of the client's settings and credentials as those of Spark."""
    try:
        yield
    except ClientError as error:
        # Not `from error`, whose frames may have a secret.
        raise spark_error(error) from None


def spark_error(error: ClientError) -> PulsarSparkError:
    """Return the error of Spark for one about settings or credentials."""
    kinds = {BadSetting: WrongOption, IssuerUnreachable: NotReachable}
    return kinds.get(type(error), PulsarSparkError)(str(error))


class Security:
    """TLS and authentication for the brokers' port or for REST. Can be pickled."""

    def __init__(self, options: Options, of_rest: bool = False) -> None:
        """Check the options. Raises WrongOption."""

        def value(name: str) -> tuple[str, Any]:
            """Return the full name of an option, and its value."""
            if of_rest and options.is_given(f"pulsar.admin.{name}"):
                return f"pulsar.admin.{name}", options[f"pulsar.admin.{name}"]
            return f"pulsar.client.{name}", options[f"pulsar.client.{name}"]

        trusted_option, trusted = value("tlsTrustCertsFilePath")
        files = value("tlsCertificateFilePath"), value("tlsKeyFilePath")
        self.authentication = _authentication_of(
            *value("authPluginClassName"), *value("authParams")
        )
        if (files[0][1] is None) != (files[1][1] is None):
            raise WrongOption(f"{files[0][0]} and {files[1][0]} have to be given together.")
        for name, path in files:
            if path is not None and not is_path(path):
                raise WrongOption(f"{name} has to be the path of a file.")
        own = None
        if files[0][1] is not None:
            given_as = f"{files[0][0]} and {files[1][0]}"
            own = CertificateFiles(
                *(files[0][1], files[1][1]),
                f"the certificate and the key that are given as {given_as}",
            )
        self.tls = TlsSettings(
            *(trusted, trusted_option),
            accept_untrusted=bool(value("tlsAllowInsecureConnection")[1]),
            # On by default, as in curl; Java's client before 4.0 had it off.
            verify_host=value("tlsHostnameVerificationEnable")[1] is not False,
            own=own,
        )

    def credentials(self) -> bytes:
        """Return the credentials. Raises PulsarSparkError."""
        with translated():
            return self.authentication.credentials()

    def header(self) -> str:
        """Return the header Authorization, empty without one. Raises PulsarSparkError."""
        with translated():
            return self.authentication.header()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context, and read its files. Raises WrongOption."""
        with translated():
            return self.tls.context(self.authentication.certificate())

    def official(self) -> dict[str, Any]:
        """Return the arguments of the official client."""
        own: dict[str, Any] = {
            "tls_trust_certs_file_path": self.tls.trusted,
            "tls_allow_insecure_connection": self.tls.accept_untrusted,
            "tls_validate_hostname": self.tls.verify_host and not self.tls.accept_untrusted,
            "authentication": self._official_authentication(),
        }
        files = self.authentication.certificate() or self.tls.own
        if files is not None:
            own["tls_certificate_file_path"] = files.certificate
            own["tls_private_key_file_path"] = files.key
        return own

    def _official_authentication(self) -> Any:
        login = self.authentication
        if not login.method:
            return None
        import pulsar

        if isinstance(login, BasicAuthentication):
            return pulsar.AuthenticationBasic(login.user, login.password)
        if isinstance(login, TlsAuthentication):
            return pulsar.AuthenticationTLS(*login.files)

        def supply() -> str:
            """Return the token. The client calls this whenever a broker requests it."""
            try:
                return self.credentials().decode()
            except PulsarSparkError as error:
                # An exception in the client's thread would end the process.
                _log.warning("cannot read the token for the broker: %s", error)
                return ""

        return pulsar.AuthenticationToken(supply)


def _authentication_of(
    class_option: str, name: str | None, option: str, params: Any
) -> Authentication:
    if name is None:
        if params is not None:
            raise WrongOption(f"{option} is given, and {class_option} is not.")
        return Authentication()
    make = method_named(name)
    if make is None:
        raise WrongOption(
            f"{class_option} is {name!r}: supported are AuthenticationToken, AuthenticationBasic,"
            " AuthenticationTls and AuthenticationOAuth2."
        )
    if params is None:
        raise WrongOption(f"{class_option} is given, and {option} is not.")
    with translated():
        return make(option, params.text)

"""TLS of a client: the authorities that it trusts, and its own certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from pyxbroker.client.errors import BadSetting


class CertificateFiles:
    """PEM files of a client's certificate and its key. setting: their name in error messages."""

    def __init__(self, certificate: str, key: str, setting: str = "the certificate") -> None:
        self.certificate = certificate
        self.key = key
        self.setting = setting


@dataclass(frozen=True)
class TlsSettings:
    """The authorities that verify the server, and the client's own certificate."""

    trusted: str | None = None
    """A PEM file with authorities; None: those of the system."""
    trusted_setting: str = "the file of trusted certificates"
    """The name of `trusted` in error messages."""
    accept_untrusted: bool = False
    verify_host: bool = True
    own: CertificateFiles | None = None

    def context(self, own: CertificateFiles | None = None) -> ssl.SSLContext:
        """Read the files and return a context. own: a certificate that replaces the settings' one.

        Raises BadSetting.
        """
        own = own or self.own
        try:
            context = ssl.create_default_context(cafile=self.trusted)
        except (OSError, ssl.SSLError) as error:
            raise BadSetting(
                f"{self.trusted_setting}: {self.trusted} cannot be used: {reason_of(error)}."
            ) from None
        if self.accept_untrusted or not self.verify_host:
            context.check_hostname = False
        if self.accept_untrusted:
            context.verify_mode = ssl.CERT_NONE
        if own is not None:
            try:
                context.load_cert_chain(own.certificate, own.key, _refuse_password)
            except (OSError, ValueError) as error:
                raise BadSetting(f"{own.setting} cannot be used: {reason_of(error)}.") from None
        return context


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")


def reason_of(error: Exception) -> str:
    """Return why a file cannot be used, without its name."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM").lower().replace("_", " ")
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)

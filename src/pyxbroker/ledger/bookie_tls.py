"""TLS to bookies, as the settings bookkeeperTLS... describe it.

As in Pulsar, bookkeeperTLSClientAuthentication enables TLS, and the broker then has a certificate
of its own. Host names are verified with bookkeeper_tlsHostnameVerificationEnabled only.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from pyxbroker.base.properties import ConfigError
from pyxbroker.base.tls import (
    StoreFile,
    TlsContexts,
    load_key_store,
    load_trust_store,
    reason_of,
    refuse_password,
)

_KEY = "bookkeeperTLSKeyFilePath"
_TRUSTED = "bookkeeperTLSTrustCertsFilePath"


class BookieTls:
    """The settings of a context. The constructor raises ConfigError."""

    def __init__(self, config: Any) -> None:
        self.certificate: str = config.bookkeeperTLSCertificateFilePath
        self.key: str = config.bookkeeperTLSKeyFilePath
        self.trusted: str = config.bookkeeperTLSTrustCertsFilePath
        self.verifies_host: bool = config.bookkeeper_tlsHostnameVerificationEnabled
        self.check_s: float = config.bookkeeperTlsCertFilesRefreshDurationSeconds
        self.key_store = _store(
            _KEY,
            config.bookkeeperTLSKeyFileType,
            self.key,
            config.bookkeeperTLSKeyStorePasswordPath,
        )
        self.trust_store = _store(
            _TRUSTED,
            config.bookkeeperTLSTrustCertTypes,
            self.trusted,
            config.bookkeeperTLSTrustStorePasswordPath,
        )
        required = {_KEY: self.key}
        if self.key_store is None:
            required["bookkeeperTLSCertificateFilePath"] = self.certificate
        for name, value in required.items():
            if not value:
                raise ConfigError(
                    f"{name} is empty, but bookkeeperTLSClientAuthentication requires it."
                )

    @property
    def files(self) -> list[str]:
        """The paths of the files to watch."""
        return [each for each in (self.key, self.certificate, self.trusted) if each]


def _store(name: str, kind: str, path: str, password_path: str) -> StoreFile | None:
    """Return the key store of a setting; None for PEM. Its password is in a file."""
    if kind == "PEM" or not path:
        return None
    if kind not in ("JKS", "PKCS12"):
        raise ConfigError(f"{name}: files of type {kind!r} are unknown. Use PEM, JKS or PKCS12.")
    try:
        password = Path(password_path).read_text().strip() if password_path else ""
    except OSError as error:
        raise ConfigError(
            f"{name}: its password in {password_path} cannot be read: {reason_of(error)}."
        ) from None
    return StoreFile(name, kind, path, password)


def make_context(settings: BookieTls) -> ssl.SSLContext:
    """Read the files and create a context. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.verifies_host
    if settings.key_store is not None:
        load_key_store(context, settings.key_store)
    else:
        try:
            context.load_cert_chain(settings.certificate, settings.key, refuse_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"bookkeeperTLSCertificateFilePath, {_KEY}: {settings.certificate} and"
                f" {settings.key} cannot be used: {reason_of(error)}."
            ) from None
    if settings.trust_store is not None:
        load_trust_store(context, settings.trust_store)
        return context
    try:
        if settings.trusted:
            context.load_verify_locations(settings.trusted)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{_TRUSTED}: {settings.trusted} cannot be used: {reason_of(error)}."
        ) from None
    return context


def make_contexts(config: Any) -> TlsContexts | None:
    """Return the contexts for connections to bookies, which follow the files; None: no TLS."""
    if not config.bookkeeperTLSClientAuthentication:
        return None
    return TlsContexts(BookieTls(config), make=make_context)

"""TLS contexts, those of the server above all: created from files, and anew when these change.

The files are PEM, or Java key stores (key_stores.py). OpenSSL reads a private key from a file only.
A key from a key store is therefore written to an anonymous file in memory (memfd), which other
users cannot open and which disappears with its descriptor. A key that is encrypted on disk is never
written there in plain.

A connection keeps the context that it began with. If new files cannot be used, the previous context
stays in use and the log gives the reason.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyxbroker.base.key_stores import KeyStoreError, read_key_store
from pyxbroker.base.log import get_logger
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.tls_ciphers import TLS_1_3_CIPHERS, read_ciphers
from pyxbroker.base.tls_connection import ServerContext

log = get_logger("pyxbroker.tls")

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
RENEW_S = 1.0  # minimum time between two reads of a key store, or of invalid files


class StoreFile:
    """A key store and its password, which no repr shows."""

    __slots__ = ("name", "password", "path")

    def __init__(self, setting: str, kind: str, path: str, password: str) -> None:
        self.name = f"{setting} ({kind}): {path}"
        self.path = path
        self.password = password


class TlsSettings:
    """The settings of a context; `config` has the names of settings/sections/tls.py."""

    def __init__(self, config: Any) -> None:
        self.certificate: str = config.tlsCertificateFilePath
        self.key: str = config.tlsKeyFilePath
        self.trusted: str = config.tlsTrustCertsFilePath
        self.key_store: StoreFile | None = None  # replaces the PEM files
        self.trust_store: StoreFile | None = None  # with a key store; None: system authorities
        required = ("tlsCertificateFilePath", "tlsKeyFilePath")
        if config.tlsEnabledWithKeyStore:
            required = ("tlsKeyStore", "tlsKeyStorePassword")
            self._use_key_stores(config)
        self.is_required: bool = config.tlsRequireTrustedClientCertOnConnect
        self.allows_untrusted: bool = config.tlsAllowInsecureConnection
        self.protocols: list[str] = _words(config.tlsProtocols)
        self.ciphers = read_ciphers(config.tlsCiphers)
        self.check_s: float = config.tlsCertRefreshCheckDurationSec
        for name in required:
            if not getattr(config, name):
                raise ConfigError(f"{name} is empty, but TLS requires it.")
        if self.is_required and self.allows_untrusted:
            raise ConfigError(
                "tlsRequireTrustedClientCertOnConnect and tlsAllowInsecureConnection contradict"
                " each other: set one of them to false."
            )
        if unknown := [each for each in self.protocols if each not in VERSIONS]:
            raise ConfigError(
                f"tlsProtocols names {unknown[0]!r}; supported are {', '.join(VERSIONS)}."
            )
        self._apply_ciphers()

    def _use_key_stores(self, config: Any) -> None:
        self.key_store = StoreFile(
            "tlsKeyStore", config.tlsKeyStoreType, config.tlsKeyStore, config.tlsKeyStorePassword
        )
        if config.tlsTrustStore:
            self.trust_store = StoreFile(
                "tlsTrustStore",
                config.tlsTrustStoreType,
                config.tlsTrustStore,
                config.tlsTrustStorePassword,
            )
        elif config.tlsTrustCertsFilePath:
            raise ConfigError(
                "tlsTrustCertsFilePath is not read with tlsEnabledWithKeyStore, and tlsTrustStore"
                " is empty: put the authorities of clients into a trust store, or clear"
                " tlsTrustCertsFilePath to trust those of the system."
            )

    def _apply_ciphers(self) -> None:
        """Apply `ciphers` to TLS 1.3, whose ciphers Python cannot select."""
        named, older = self.ciphers
        if named and not older:
            if self.protocols and "TLSv1.3" not in self.protocols:
                raise ConfigError(
                    "tlsCiphers names only ciphers of TLSv1.3, and tlsProtocols excludes it: no"
                    " client could connect. Add ciphers of TLSv1.2, or TLSv1.3 to tlsProtocols."
                )
            self.protocols = ["TLSv1.3"]
        has_tls_1_3 = "TLSv1.3" in (self.protocols or VERSIONS)
        if (named or older) and has_tls_1_3 and set(named) != set(TLS_1_3_CIPHERS):
            log.warning(
                "tlsCiphers cannot select among the ciphers of TLSv1.3: OpenSSL's defaults apply;"
                " tlsProtocols=TLSv1.2 excludes TLSv1.3",
                named=",".join(named),
                taken=",".join(TLS_1_3_CIPHERS),
            )

    @property
    def files(self) -> list[str]:
        """The paths of the files to watch."""
        if self.key_store is not None:
            stores = (self.key_store, self.trust_store)
            return [each.path for each in stores if each is not None]
        return [each for each in (self.certificate, self.key, self.trusted) if each]


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Read the files and create a context. Raises ConfigError."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [VERSIONS[each] for each in settings.protocols or VERSIONS]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    # A renegotiation costs the server much more than the client.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _disable_resumption(context)
    if settings.ciphers.older:
        context.set_ciphers(settings.ciphers.older)
    _load_certificate(context, settings)
    if settings.allows_untrusted:
        # With any other mode OpenSSL ends the handshake when a certificate is not trusted.
        context.verify_mode = ssl.CERT_NONE
        return context
    context.verify_mode = ssl.CERT_REQUIRED if settings.is_required else ssl.CERT_OPTIONAL
    _load_trusted(context, settings)
    return context


def _disable_resumption(context: ssl.SSLContext) -> None:
    """Disable session resumption, which would skip the check of the client's certificate.

    TLS 1.3 has no sessions left to resume. Python cannot disable OpenSSL's session cache of TLS
    1.2, which belongs to the context and is released with it. tls_connection.py checks that the
    certificate of a resumed session has not expired, and keeps sessions with a certificate out of
    the cache.
    """
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.key_store is not None:
        load_key_store(context, settings.key_store)
        return
    try:
        context.load_cert_chain(settings.certificate, settings.key, refuse_password)
    except (OSError, ValueError) as error:
        raise ConfigError(_certificate_error(settings, error)) from None


def _load_trusted(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.trust_store is not None:
        load_trust_store(context, settings.trust_store)
        return
    try:
        if settings.trusted and settings.key_store is None:
            context.load_verify_locations(settings.trusted)
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tlsTrustCertsFilePath: {settings.trusted} cannot be used: {reason_of(error)}."
        ) from None


def load_key_store(context: ssl.SSLContext, file: StoreFile) -> None:
    try:
        pem = read_key_store(file.path, file.password).pem_of_key()
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as unnamed:
                unnamed.write(pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    except KeyStoreError as error:
        raise ConfigError(f"{file.name} {error}.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file.name} cannot be used: {reason_of(error)}.") from None


def load_trust_store(context: ssl.SSLContext, file: StoreFile) -> None:
    try:
        store = read_key_store(file.path, file.password)
        if store.keys:
            raise KeyStoreError("has a private key, and a trust store may have certificates only")
        context.load_verify_locations(cadata=store.pem_of_trusted())
    except KeyStoreError as error:
        raise ConfigError(f"{file.name} {error}.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file.name} cannot be used: {reason_of(error)}.") from None


def refuse_password() -> str:
    raise ValueError("the key is encrypted")


def _certificate_error(settings: TlsSettings, error: Exception) -> str:
    for name, path in (
        ("tlsCertificateFilePath", settings.certificate),
        ("tlsKeyFilePath", settings.key),
    ):
        try:
            Path(path).read_bytes()
        except OSError as unreadable:
            return f"{name}: {path} cannot be read: {reason_of(unreadable)}."
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"tlsKeyFilePath: {settings.key} is not the key of the certificate"
            f" {settings.certificate}."
        )
    return (
        f"tlsCertificateFilePath, tlsKeyFilePath: {settings.certificate} and {settings.key} cannot"
        f" be used: {reason_of(error)}. Both must be PEM, the key without a"
        " password; put a key with a password into a key store (tlsEnabledWithKeyStore)."
    )


def reason_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


_Seen = list[tuple[int, int, int] | None]  # modification time, size and inode of each file


class TlsContexts:
    """The context for new connections, following the files. The constructor raises ConfigError."""

    def __init__(
        self,
        settings: Any,
        clock: Callable[[], float] = time.monotonic,
        make: Callable[[Any], ssl.SSLContext] | None = None,
    ) -> None:
        self._settings = settings  # TlsSettings, or what `make` reads
        self._clock = clock
        self._make = make
        self._seen = self._stat_files()
        self._next = clock() + settings.check_s
        self._current = (make or make_context)(settings)
        self._renewing: threading.Thread | None = None
        self._renewed_at = -RENEW_S
        self._tried = self._seen  # state of PEM files at the last attempt

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._settings.check_s
            self._refresh()
        return self._current

    def _refresh(self) -> None:
        seen = self._stat_files()
        if seen == self._seen:
            return
        # Connections must not cause repeated reads of unusable files. PEM files that have changed
        # again are read immediately.
        now, of_store = self._clock(), self._settings.key_store is not None
        if now < self._renewed_at + RENEW_S and (of_store or seen == self._tried):
            return
        if not of_store:
            self._renewed_at, self._tried = now, seen
            self._renew(seen)
        elif self._renewing is None or not self._renewing.is_alive():
            # Opening a key store takes tens of milliseconds, so a thread does it.
            self._renewed_at = now
            self._renewing = threading.Thread(target=self._renew, args=(seen,), name="key-store")
            self._renewing.start()

    def _renew(self, seen: _Seen) -> None:
        try:
            self._current = (self._make or make_context)(self._settings)
        except ConfigError as error:
            # Perhaps only some of the files have been replaced yet: the next check tries again.
            log.error("new certificates cannot be used, keeping the previous ones", error=error)
            return
        self._seen = seen
        log.info("certificates reloaded", certificate=self._settings.files[0])

    def _stat_files(self) -> _Seen:
        """Return what identifies the current version of each file."""
        seen: _Seen = []
        for path in self._settings.files:
            try:
                found = Path(path).stat()
            except OSError:
                seen.append(None)
            else:
                seen.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return seen

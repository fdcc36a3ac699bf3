"""Certificates of clients: the role is the common name (Pulsar's AuthenticationProviderTls).

The TLS handshake (base/tls.py) rejects certificates that are not trusted, so this module sees only
trusted ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyxbroker.auth.provider import Identity, NoCredentials


class CertificateProvider:
    """Uses the common name of the client's certificate as its role."""

    method = "tls"
    of_certificate = True

    async def authenticate(self, shown: bytes) -> Identity:
        if not shown:
            raise NoCredentials("There is no certificate with a common name.")
        return Identity(shown.decode())

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        return b""  # the headers of a request do not count


def common_name_of(certificate: Mapping[str, Any] | None) -> str:
    """Return the common name of a certificate (ssl.getpeercert), or an empty string. Of several it
    is the last one: Pulsar takes the first in the order of RFC 2253, which is reversed.
    """
    for parts in reversed((certificate or {}).get("subject", ())):
        for name, value in parts:
            if name == "commonName" and value:
                return str(value)
    return ""

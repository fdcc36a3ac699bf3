"""Certificates of clients: the role is the common name (Pulsar's AuthenticationProviderTls).

Whether a certificate is trusted is decided by the handshake (base/tls.py): one that is not trusted
is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyxbroker.auth.provider import Identity, NotShown


class CertificateProvider:
    """Takes the common name for a role."""

    method = "tls"
    of_certificate = True

    async def authenticate(self, shown: bytes) -> Identity:
        if not shown:
            raise NotShown("There is no certificate with a common name.")
        return Identity(shown.decode())

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        return b""  # nothing that a request could say counts


def common_name_of(certificate: Mapping[str, Any] | None) -> str:
    """That of a certificate as Python's ssl tells it (getpeercert); empty without. Of several it is
    the last one: Pulsar takes the first of the name as RFC 2253 writes it, which is backwards.
    """
    for parts in reversed((certificate or {}).get("subject", ())):
        for name, value in parts:
            if name == "commonName" and value:
                return str(value)
    return ""

"""Certificates of an authority of one's own, in files as brokers and clients read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization


def write_certificate(
    ca: trustme.CA,
    directory: Path,
    name: str,
    *hosts: str,
    common_name: str | None = None,
    key_type: trustme.KeyType = trustme.KeyType.ECDSA,
    **times: Any,
) -> tuple[Path, Path]:
    """A new certificate and its key, PEM; the key in the one form that Java reads, too.

    times: `not_before` and `not_after`.
    """
    # Java takes none with an empty list of names.
    names = hosts or ("client",)
    issued = ca.issue_cert(*names, common_name=common_name, key_type=key_type, **times)
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    private = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, key

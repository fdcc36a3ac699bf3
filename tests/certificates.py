"""Certificates of the tests' own authority, which no file outlives."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import trustme


@lru_cache
def authority() -> trustme.CA:
    """One for the whole process: keys take a while."""
    return trustme.CA()


class Files(NamedTuple):
    """PEM files, as the settings name them."""

    certificate: Path
    key: Path
    trusted: Path  # of the authority


def write_files(
    directory: Path, *names: str, common_name: str | None = None, ca: trustme.CA | None = None
) -> Files:
    """A new certificate for these names, with its key and authority."""
    ca = ca or authority()
    issued = ca.issue_cert(*(names or ("localhost", "127.0.0.1")), common_name=common_name)
    directory.mkdir(parents=True, exist_ok=True)
    files = Files(*(directory / name for name in ("cert.pem", "key.pem", "ca.pem")))
    files.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    files.key.write_bytes(issued.private_key_pem.bytes())
    ca.cert_pem.write_to_path(files.trusted)
    return files


@lru_cache
def server_context() -> ssl.SSLContext:
    """Of a server that asks for no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("localhost").configure_cert(context)
    return context


@lru_cache
def client_context() -> ssl.SSLContext:
    """Of a client that trusts the authority."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context

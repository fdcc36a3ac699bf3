"""Certificates of the tests' own authority, which no file outlives."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import trustme
from harness.certificates import write_certificate

from pyxbroker.base.tls_connection import ServerContext


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
    directory.mkdir(parents=True, exist_ok=True)
    hosts = names or ("localhost", "127.0.0.1")
    certificate, key = write_certificate(ca, directory, "cert", *hosts, common_name=common_name)
    trusted = directory / "ca.pem"
    ca.cert_pem.write_to_path(trusted)
    return Files(certificate, key, trusted)


@lru_cache
def server_context() -> ssl.SSLContext:
    """Of a server that asks for no certificate."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("localhost").configure_cert(context)
    return context


@lru_cache
def client_context() -> ssl.SSLContext:
    """Of a client that trusts the authority."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context

"""A broker with TLS on both of its further ports, an authority, and certificates that it gave."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pulsar
import trustme
from harness.brokers import Broker, free_ports
from harness.certificates import write_certificate

from compat_tests.conftest import broker_kind

IMPATIENT_S = 5


class Scene:
    """A broker with both TLS ports, an authority, and certificates that it gave."""

    def __init__(
        self,
        directory: Path,
        headers: dict[str, str] | None = None,
        first: str = "",
        **settings: str,
    ) -> None:
        """first: whose certificate the broker finds when it starts, as `first.pem`."""
        self.ca = trustme.CA()
        self.directory = directory
        self.trusted = directory / "ca.pem"
        self.ca.cert_pem.write_to_path(self.trusted)
        self.certificate, self.key = self.issue("server", "localhost", "127.0.0.1")
        self.clients = directory / "clients.pem"
        self.ca.cert_pem.write_to_path(self.clients)
        self.first = self.issue("first", common_name=first) if first else None
        self.port, self.web_port = free_ports(2)
        names = {
            "brokerServicePortTls": str(self.port),
            "webServicePortTls": str(self.web_port),
            "tlsCertificateFilePath": str(self.certificate),
            "tlsKeyFilePath": str(self.key),
            "tlsTrustCertsFilePath": str(self.clients),
        }
        self.broker = Broker(
            broker_kind(), directory / "broker", settings=names | settings, headers=headers
        )
        if self.first is None:
            self.broker.start()
        else:
            self._start_for(self.first)

    def _start_for(self, files: tuple[Path, Path]) -> None:
        """Starts a broker that answers nobody but who has a certificate."""
        self.broker.spawn()
        until = time.monotonic() + 180
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                path = "/admin/v2/namespaces/public/default"
                if self.web(path, self.context(files))[0] == 200:
                    return
            assert time.monotonic() < until, self.broker.output()
            time.sleep(0.2)

    @property
    def url(self) -> str:
        return f"pulsar+ssl://localhost:{self.port}"

    def issue(
        self, name: str, *hosts: str, ca: trustme.CA | None = None, **more: Any
    ) -> tuple[Path, Path]:
        """A certificate in files, and its key. More: see write_certificate."""
        return write_certificate(ca or self.ca, self.directory, name, *hosts, **more)

    def client(self, **options: Any) -> pulsar.Client:
        return pulsar.Client(
            self.url,
            tls_trust_certs_file_path=str(self.trusted),
            tls_validate_hostname=True,
            operation_timeout_seconds=IMPATIENT_S,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            **options,
        )

    def shake_hands(self, port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
        """A connection on which the server has spoken after the handshake, or an SSLError."""
        sock = socket.create_connection(("127.0.0.1", port), timeout=IMPATIENT_S)
        return context.wrap_socket(sock, server_hostname="localhost")

    def web(self, path: str, context: ssl.SSLContext) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            "localhost", self.web_port, timeout=10, context=context
        )
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def context(self, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.trusted))
        if files is not None:
            context.load_cert_chain(*files)
        return context

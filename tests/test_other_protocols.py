"""The log names the protocol of a client that does not speak that of the port, and what to do."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

import pytest
from harness.brokers import free_ports

from certificates import write_files
from command_line import TIMEOUT_S, standalone
from pyxbroker.base.other_protocols import (
    explain_tls,
    spoken_to_binary_port,
    spoken_to_web_port,
)

CONNECT = bytes.fromhex("000000110000000d08021209") + b"\x0a\x05tests\x20\x15"
REQUEST = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_each_port_names_the_protocol_that_it_does_not_speak(tmp_path: Path) -> None:
    files = write_files(tmp_path / "tls")
    broker_tls, web, web_tls = free_ports(3)
    options = [
        *("--web-port", str(web)),
        *("--set", f"brokerServicePortTls={broker_tls}", "--set", f"webServicePortTls={web_tls}"),
        *("--set", f"tlsCertificateFilePath={files.certificate}"),
        *("--set", f"tlsKeyFilePath={files.key}"),
    ]
    with standalone(tmp_path / "data", *options) as broker:
        for port, first in (
            (broker.broker_port, client_hello()),
            (broker.broker_port, REQUEST),
            (broker_tls, CONNECT),
            (broker_tls, REQUEST),
            (web, client_hello()),
            (web, CONNECT),
            (web_tls, CONNECT),
            (web_tls, REQUEST),
        ):
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
                client.sendall(first)
                while client.recv(1 << 16):
                    pass  # it is closed
        err = broker.stop()[2]
    reasons = re.findall(r'event=closed .*reason="([^"(]*[^" (])', err)
    assert [(each.partition(":")[0], each.split()[-1]) for each in reasons] == [
        ("TLS was spoken to a port without TLS", "brokerServicePortTls"),
        ("HTTP was spoken to the port of the binary protocol", "webServicePort"),
        ("the client does not speak TLS", "brokerServicePort"),
        ("the client does not speak TLS", "brokerServicePort"),
        ("TLS was spoken to a port without TLS", "webServicePortTls"),
        ("the binary protocol was spoken to the web port", "brokerServicePort"),
        ("the client does not speak TLS", "webServicePort"),
        ("the client does not speak TLS", "webServicePort"),
    ]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_a_request_is_known_by_four_bytes(method: str) -> None:
    assert "HTTP" in str(spoken_to_binary_port(f"{method} / HTTP/1.1".encode()[:4]))


def test_what_is_not_known_is_not_named() -> None:
    assert spoken_to_binary_port(b"SSH-") is None
    assert spoken_to_web_port(b"SSH-2.0") is None
    assert explain_tls("CERTIFICATE_VERIFY_FAILED", "binary") == "TLS: CERTIFICATE_VERIFY_FAILED"

"""Sentences for clients that speak another protocol than that of the port: imported when one does.

A client with a wrong port or scheme in its URL is the usual reason, so each sentence names both.
"""

from __future__ import annotations

_TLS_HANDSHAKE = b"\x16\x03"
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ")
_FRAME = b"\x00\x00"  # the size of a CONNECT is less than 64 KiB, but for very long tokens
# OpenSSL's reasons for a record that is none of TLS.
_NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"}

_PLAIN_PORT = {
    "binary": (
        "TLS was spoken to a port without TLS: use pulsar:// there, or pulsar+ssl:// with the port"
        " of brokerServicePortTls"
    ),
    "web": (
        "TLS was spoken to a port without TLS: use http:// there, or https:// with the port of"
        " webServicePortTls"
    ),
}
_TLS_PORT = {
    "binary": (
        "the client does not speak TLS: use pulsar+ssl:// there, or pulsar:// with the port of"
        " brokerServicePort"
    ),
    "web": (
        "the client does not speak TLS: use https:// there, or http:// with the port of"
        " webServicePort"
    ),
}
_HTTP = (
    "HTTP was spoken to the port of the binary protocol: use pulsar:// there, or http:// with the"
    " port of webServicePort"
)
_BINARY = (
    "the binary protocol was spoken to the web port: use http:// there, or pulsar:// with the port"
    " of brokerServicePort"
)


def spoken_to_binary_port(first: bytes) -> str | None:
    """Return the sentence for the first bytes of a client that no frame begins with, or None."""
    if first.startswith(_TLS_HANDSHAKE):
        return _PLAIN_PORT["binary"]
    return _HTTP if any(each.startswith(first[:4]) for each in _METHODS) else None


def spoken_to_web_port(first: bytes) -> str | None:
    """Return the sentence for the first bytes of a client that no request begins with, or None."""
    if first.startswith(_TLS_HANDSHAKE):
        return _PLAIN_PORT["web"]
    return _BINARY if first.startswith(_FRAME) else None


def explain_tls(reason: str, port: str) -> str:
    """Return the sentence for a TLS handshake that failed with OpenSSL's reason on a port, which is
    "binary" or "web".
    """
    if any(each in reason for each in _NOT_TLS):
        return f"{_TLS_PORT[port]} ({reason})"
    return f"TLS: {reason}"
